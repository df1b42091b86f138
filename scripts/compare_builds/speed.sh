# compare_builds/speed.sh: the parts `speed` and `pytorch` of compare-builds.sh, which sources this file and explains its variables.

# transfer_times NAME ARGUMENTS...: fills the cache folders NAME/before and NAME/after with the same kernel times. BEFORE
# times the kernels of a training and of its evaluation; AFTER resumes this run and saves the times in its own spelling.
transfer_times() {
    local name=$1 d=$WORK/times-$1
    shift
    # shellcheck disable=SC2046
    set -- "$@" $(common) data.kind=synthetic data.root= data.train_images=1024 data.val_images=256 train.save_every=0
    mkdir -p "$d/after" "$WORK/cache/$name"/{before,after}
    copy_times "$@" ||
        row INFO speed "$name" "kernel times not shared, each program times its own: $(
            tail -n 1 "$logs/times-$name.txt" | cut -c 1-200)"
    rm -rf "$d"
}
copy_times() { # ARGUMENTS...; name, d: of transfer_times
    local cache=$WORK/cache/$name file gpu_name
    CRESNET_CACHE=$cache/timing call "times-$name" before train "$@" --steps 1 -o "$d/before" \
        >>"$logs/times-$name.txt" &&
        file=$(cd "$cache/timing" 2>/dev/null && ls -- *.txt) && gpu_name=${file#costs-} &&
        gpu_name=${gpu_name#kernel-times-} && cache_times "$d/before/step-1" "$cache/before" "$gpu_name" &&
        cp -a "$d/before/step-1" "$d/after/" || return 1
    CRESNET_CACHE=$cache/unused call "times-$name" after train "$@" --steps 2 -o "$d/after" --resume "$d/after/step-1" \
        >>"$logs/times-$name.txt" && cache_times "$d/after/step-2" "$cache/after" "$gpu_name"
}
# cache_times CHECKPOINT CACHE GPU.txt: the kernel times of a checkpoint become a cache file. Version 0.1 has other names.
cache_times() {
    if [ -f "$1/kernel_times.txt" ]; then
        cp "$1/kernel_times.txt" "$2/kernel-times-$3"
    else
        cp "$1/costs.txt" "$2/costs-$3"
    fi && cp "$2"/*-"$3" "$logs/kernel-times-$name-${2##*/}.tsv"
}

lines() { cat "$1"/*.txt 2>/dev/null | wc -l; }
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

too_slow() { awk "BEGIN { exit !($1 > $SPEED_LOSS) }" </dev/null; } # PERCENT
# speed_case WHAT TIMES COMMAND...: images/s of `bench COMMAND...` by both builds in turn. TIMES: a name of transfer_times
speed_case() {
    local what=$1 times=$2 side n rate loss known a b result memory text=
    shift 2
    local log=speed-${what//[^A-Za-z0-9]/-}
    time_left || { row SKIP speed "$what" "no time left"; return; }
    # One run of each that is not counted: kernels that the shared times do not know are timed now.
    for side in before after; do
        known=$(lines "$WORK/cache/$times/$side")
        CRESNET_CACHE=$WORK/cache/$times/$side call "$log" $side bench "$@" data.kind=synthetic data.root= \
            "train.device=$DEVICE" --json -q >"$WORK/warm-$side.json" ||
            { row FAIL speed "$what" "$side: $(tail -n 1 "$logs/$log.txt" | cut -c 1-160)"; return; }
        known=$(($(lines "$WORK/cache/$times/$side") - known))
        [ "$known" -eq 0 ] || text="$text; $known kernels timed by $side itself"
    done
    rm -f "$WORK"/rates-*
    for _ in 1 2; do
        for ((n = 0; n < ROUNDS; n++)); do
            for side in before after; do
                rate=$(CRESNET_CACHE=$WORK/cache/$times/$side call "$log" $side bench "$@" data.kind=synthetic \
                    data.root= "train.device=$DEVICE" --json -q | tee -a "$logs/$log.txt" |
                    sed -n 's/.*"images_per_s": *\([0-9.]*\).*/\1/p')
                [ -n "$rate" ] || { row FAIL speed "$what" "$side printed no images_per_s"; return; }
                echo "$rate" >>"$WORK/rates-$side"
            done
        done
        a=$(median <"$WORK/rates-before") b=$(median <"$WORK/rates-after")
        loss=$(calculate %.2f "100 * (1 - $b / $a)")
        too_slow "$loss" || break
    done
    if too_slow "$loss"; then result=FAIL; else result=PASS; fi
    row $result speed "$what" "$a and $b img/s, ratio $(calculate %.4f "$b / $a") (before: $(paste -sd' ' \
        "$WORK/rates-before"); after: $(paste -sd' ' "$WORK/rates-after"))$text"
    # Workspaces of kernels belong to the memory: it must be equal where both programs chose by the same times.
    result=PASS
    memory=$(python3 "$root/scripts/compare_checkpoints.py" json "$WORK"/warm-{before,after}.json pool_mib store_mib \
        host_mib) || { if [ -z "$text" ]; then result=FAIL; else result=INFO; fi; }
    row $result speed "... memory" "$memory"
}

# quantized_case CONFIG: one step is trained, then quantised by BEFORE; both programs time their kernels for it.
quantized_case() {
    local log=times-int8
    # shellcheck disable=SC2046
    call $log before train "$1" -b 64 train.precision=fp16 $(common) data.kind=synthetic data.root= \
        data.train_images=512 data.val_images=256 --steps 1 -o "$WORK/float" >>"$logs/$log.txt" &&
        call $log before quantize "$WORK/float" --images 64 train.device="$DEVICE" -q -o "$WORK/int8" \
            >>"$logs/$log.txt" || { row SKIP speed "infer ResNet-50 int8 b256" "BEFORE cannot quantise"; return; }
    mkdir -p "$WORK/cache/int8"/{before,after}
    # The run has train.threads=1, and one thread copies 256 images in more time than the GPU needs for them.
    speed_case "infer ResNet-50 int8 b256" int8 infer "$WORK/int8" train.eval_batch=256 train.threads=0 --steps 1000
}

part_speed() {
    local net=$CONFIGS/resnet50.ini cifar=$CONFIGS/cifar10-resnet20.ini batch sparse
    gpu || { row SKIP speed "speed" "needs a GPU: DEVICE=cuda"; return; }
    sparse="prune.sparsity=0.9 prune.scope=uniform"
    if [ -f "${STR_BUDGET:-}" ]; then
        sparse="prune.budget=$STR_BUDGET prune.sparsity=0.9023"
    else
        row INFO speed "STR budget" "STR_BUDGET is not set: every layer is pruned by 90 % instead"
    fi
    transfer_times resnet50 "$net" -b 256 train.precision=fp16
    speed_case "train ResNet-50 fp16 b256" resnet50 step "$net" -b 256 train.precision=fp16 --steps 60
    speed_case "infer ResNet-50 fp16 b256" resnet50 infer "$net" train.eval_batch=256 train.precision=fp16 --steps 60
    quantized_case "$net"
    transfer_times resnet50-32 "$net" -b 32 train.precision=fp16
    speed_case "train ResNet-50 fp16 b32" resnet50-32 step "$net" -b 32 train.precision=fp16 --steps 100
    transfer_times resnet18 "$CONFIGS/resnet18.ini" -b 256 train.precision=fp16
    speed_case "train ResNet-18 fp16 b256" resnet18 step "$CONFIGS/resnet18.ini" -b 256 train.precision=fp16 --steps 60
    for batch in 128 1024; do
        transfer_times cifar$batch "$cifar" -b $batch model.shortcut=B train.precision=fp16
        speed_case "train CIFAR ResNet-20 fp16 b$batch" cifar$batch step "$cifar" -b $batch model.shortcut=B \
            train.precision=fp16 --steps 1000
    done
    # The same masks as those of `bench infer`: the smallest initial weights are pruned before step 1. A training that
    # starts from these weights uses sparse kernels.
    # shellcheck disable=SC2046,SC2086
    call times-sparse before train "$net" -b 32 train.precision=fp32 $sparse $(common) data.kind=synthetic data.root= \
        data.train_images=1024 data.val_images=256 --steps 1 -o "$WORK/str" >>"$logs/times-sparse.txt"
    transfer_times sparse "$net" -b 32 train.precision=fp32 "model.weights=$WORK/str/step-1"
    # shellcheck disable=SC2086
    speed_case "infer ResNet-50 STR 90 % fp32 b32" sparse infer "$net" --batch 32 train.precision=fp32 $sparse \
        train.sparse=yes --steps 60
}

part_pytorch() {
    if ! gpu || [ ! -f "$PYTORCH_PEER" ] || ! python3 -c 'import torch' 2>/dev/null; then
        row SKIP pytorch "PyTorch" "needs a GPU, PyTorch and $PYTORCH_PEER"
        return
    fi
    while read -r line; do row INFO pytorch "$(cut -d' ' -f1-5 <<<"$line")" "$line"; done < <(
        for arguments in "train 50 256 224 fp16-compile-graph" "infer 50 256 224 fp16-compile-graph"; do
            # shellcheck disable=SC2086
            time_left && timeout 150 python3 "$PYTORCH_PEER" $arguments 2>>"$logs/pytorch.txt" | tr -s ' \t' ' ' |
                grep -E '^(train|infer) '
        done)
}

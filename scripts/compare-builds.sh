#!/usr/bin/env bash
# compare-builds.sh BEFORE AFTER [PART ...]: shows that two builds of cresnet compute the same results equally fast.
# Run it before a release and after every refactoring. BEFORE and AFTER are build folders; each holds the program
# `cresnet`, and may hold `steps_tool` in tests/. Both builds may be the same folder: this tests the script.
#
# It prints one table with PASS, FAIL, INFO and SKIP lines. The last line is "N passed, N failed, N skipped".
# Exit code: 0 nothing failed, 1 something failed, 2 wrong usage.
#
# Parts; without PART all except pytorch:
#   plan       number of ops, peak memory and host memory of planned programs are equal (offline H200, and the CPU)
#   results    networks and pruned networks trained for 20 steps by both programs: losses, checkpoints and
#              evaluation are bitwise identical; AFTER resumes a checkpoint of BEFORE
#   gradients  gradients of one step are bitwise identical (needs steps_tool in both builds)
#   speed      training and inference, both builds in turn (needs a GPU): at most SPEED_LOSS percent slower
#   pytorch    speed of PyTorch on the same GPU, for information
#
# Variables and their defaults:
#   DEVICE=cpu        cpu or cuda
#   CONFIGS           folder of configurations (BEFORE/configs if it exists, else configs/ of this tree). They should be
#                     the configurations of the older program: the newer program must still read them.
#   OUT=build/compare folder for table.txt and the logs of all commands
#   WORK=OUT/work     folder for checkpoints; it needs up to 15 GB with DEVICE=cuda and is removed at the end
#   CASES             regular expression: only these cases of `results`, e.g. '^resnet50'
#   PRECISIONS        fp32 on the CPU; "fp16 fp32 bf16" on a GPU
#   JOBS              cases of `results` that run at the same time (1 on the CPU, 5 on a GPU)
#   IMAGES            folder with train/ and val/ of JPEG files: adds a case that decodes and augments them
#   STR_BUDGET        STR_Budgets_ResNet50.csv; without it `speed` prunes every layer by 90 %
#   ROUNDS=3          timed runs of each build in `speed`; repeated once if the limit is missed
#   SPEED_LOSS=1      largest accepted loss of speed, in percent
#   PYTORCH_PEER      PyTorch program for the part pytorch (.gpu/torch_resnet.py)
#   LIMIT_S=560       seconds for everything; parts that would start later are skipped
#
# How two builds get the same kernels on a GPU
#   On a GPU cresnet times the candidate kernels once and then takes the fastest. Times vary, so two runs may choose
#   different kernels, and different kernels round differently. Two comparisons exclude this:
#   - With train.measure=no kernels are chosen by their order and by the roofline model. Both programs train 20 steps
#     from scratch this way.
#   - With measured times, BEFORE trains one step. Its checkpoint carries the kernel times (kernel_times.txt; costs.txt
#     in version 0.1). Both programs resume this checkpoint, so both choose by the same times. The cache file
#     of BEFORE cannot be handed over: its first line names the version and a hash of all kernel names, and a program
#     with other kernels drops the file. A checkpoint is read through the table of old and new kernel names.
#   `speed` uses the same route: AFTER resumes a checkpoint of BEFORE and saves it again. The kernel times in the new
#   checkpoint have the spelling of AFTER and become its cache file. A difference in speed then comes from the programs
#   and not from another choice of kernels.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; }

case ${1:-} in -h | --help) usage && exit 0 ;; esac
[ $# -ge 2 ] || { usage >&2; exit 2; }
before=$(realpath "$1") after=$(realpath "$2")
shift 2
for build in "$before" "$after"; do
    [ -x "$build/cresnet" ] || { echo "compare-builds.sh: $build/cresnet does not exist" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- plan results gradients speed
for part in "$@"; do
    case $part in plan | results | gradients | speed | pytorch) ;;
    *) echo "compare-builds.sh: unknown part $part" >&2; exit 2 ;;
    esac
done

DEVICE=${DEVICE:-cpu}
gpu() { [ "$DEVICE" = cuda ]; }
if [ -z "${CONFIGS:-}" ]; then
    if [ -d "$before/configs" ]; then CONFIGS=$before/configs; else CONFIGS=$root/configs; fi
fi
OUT=$(realpath -m "${OUT:-$root/build/compare}")
WORK=$(realpath -m "${WORK:-$OUT/work}")/compare-$$
JOBS=${JOBS:-$(gpu && echo 5 || echo 1)}
PRECISIONS=${PRECISIONS:-$(gpu && echo fp16 fp32 bf16 || echo fp32)}
ROUNDS=${ROUNDS:-3} SPEED_LOSS=${SPEED_LOSS:-1} LIMIT_S=${LIMIT_S:-560}
PYTORCH_PEER=${PYTORCH_PEER:-$root/.gpu/torch_resnet.py}
logs=$OUT/logs rows=$OUT/rows
export GOMP_SPINCOUNT=10000 PYTHONUNBUFFERED=1

rm -rf "$logs" "$rows"
mkdir -p "$WORK" "$logs" "$rows"
trap 'rm -rf "$WORK"' EXIT

# cuDNN and cuBLAS may exist only as Python wheels that PyTorch depends on. The programs search LD_LIBRARY_PATH.
if gpu; then
    wheels=$(python3 -c 'import nvidia; print(next(iter(nvidia.__path__)))' 2>/dev/null)
    for folder in "$wheels"/*/lib; do
        [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
fi

# ---- the table ----

# row RESULT PART WHAT NUMBERS: adds a line to the table. Parallel cases set row_file to a file of their own.
row_file=$rows/00
row() { printf '%-4s %-9s %-42s %s\n' "$@" | tee -a "$row_file" >&2; }
table() { cat "$rows"/* 2>/dev/null; }
time_left() { [ "$SECONDS" -lt "$LIMIT_S" ]; }

# compare PART WHAT MODE ARGUMENTS...: a PASS or FAIL line from compare_checkpoints.py
compare() {
    local part=$1 what=$2 text result=PASS
    shift 2
    text=$(python3 "$root/scripts/compare_checkpoints.py" "$@" 2>&1) || result=FAIL
    row $result "$part" "$what" "$text"
}

program() { if [ "$1" = before ]; then echo "$before/cresnet"; else echo "$after/cresnet"; fi; }
calculate() { awk "BEGIN { printf \"$1\", $2 }" </dev/null; }

# call LOG SIDE ARGUMENTS...: runs one of the two programs; everything it prints on standard error goes to the log.
call() {
    local log=$logs/$1.txt side=$2
    shift 2
    { echo "\$ cresnet ($side) $*"; } >>"$log"
    timeout -k 5 200 "$(program "$side")" "$@" 2>>"$log"
}

# ---- plan ----

# Fields of `plan --json`. They do not depend on measured times, because the device is offline or is the CPU.
plan_case() { # NAME ARGUMENTS...
    local name=$1 side
    shift
    for side in before after; do
        call "plan-$name" $side plan "$@" data.kind=synthetic data.root= --json -q >"$WORK/plan-$side.json" || {
            row FAIL plan "$name" "$side: $(tail -n 1 "$logs/plan-$name.txt" | cut -c 1-160)"
            return
        }
    done
    compare plan "$name" json "$WORK/plan-before.json" "$WORK/plan-after.json" ops peak_bytes bound_bytes store_bytes \
        host_bytes flops
}

part_plan() {
    local net=$CONFIGS/resnet50.ini
    plan_case "ResNet-50 fp16 b256, H200" "$net" -b 256 train.precision=fp16 --target h200
    plan_case "... evaluation" "$net" -b 256 train.precision=fp16 --target h200 --which eval
    plan_case "... memory.limit 6 GiB" "$net" -b 256 train.precision=fp16 --target h200 memory.limit=6GiB
    plan_case "... fp32, offload only" "$net" -b 256 train.precision=fp32 --target h200 memory.limit=16GiB \
        memory.recompute=no
    plan_case "ResNet-20 fp16 b128, H200" "$CONFIGS/cifar10-resnet20.ini" -b 128 train.precision=fp16 --target h200
    plan_case "ResNet-50 fp32 b32, CPU" "$net" -b 32 train.precision=fp32 --device cpu
    plan_case "ResNet-50 2:4 fp16 eval, H200" "$net" -b 256 train.precision=fp16 --target h200 --which eval \
        prune.pattern=2:4 prune.scope=uniform prune.sparsity=0.5
}

# ---- results ----

# train LOG SIDE OUTPUT STEPS ARGUMENTS...
train() {
    local log=$1 side=$2 output=$3 steps=$4
    shift 4
    CRESNET_CACHE=$WORK/cache-$log call "$log" "$side" train "$@" --steps "$steps" -o "$output" >>"$logs/$log.txt"
}

# The setting of every case: a line a step in the log, checkpoints at steps 10 and 20, all of them kept.
common() {
    echo train.device="$DEVICE" train.deterministic=yes train.log_every=1 train.save_every=10 train.keep=100 \
        train.tensorboard=no data.workers=2 train.threads=1
}

# fail_case NAME STAGE: the line for a program that stopped with an error
fail_case() { row FAIL results "$1" "$2 failed: $(tail -n 1 "$logs/$1.txt" | cut -c 1-200)"; }

# result_case NAME ARGUMENTS...: one network in one precision, by both programs
result_case() {
    local name=$1 d=$WORK/$1 side
    shift
    mkdir -p "$d"
    # shellcheck disable=SC2046
    set -- "$@" $(common)

    # From scratch; on a GPU with kernels that do not depend on measured times.
    local fixed=
    ! gpu || fixed=train.measure=no
    for side in before after; do
        # shellcheck disable=SC2086
        train "$name" $side "$d/scratch-$side" 20 "$@" $fixed || { fail_case "$name" "20 steps by $side"; return; }
    done
    compare results "$name, losses" logs "$d"/scratch-{before,after}/log.jsonl 1 20
    compare results "$name, checkpoint" checkpoints "$d"/scratch-{before,after}/step-20
    compare_evaluation "$name" "$d/scratch-before/step-20" $fixed

    # With measured times on a GPU: BEFORE trains one step, and both programs resume its checkpoint. See above.
    local run=$d/scratch-before
    if gpu; then
        train "$name" before "$d/first" 1 "$@" || { fail_case "$name" "first step by before"; return; }
        for side in before after; do
            mkdir -p "$d/timed-$side"
            cp -a "$d/first/step-1" "$d/timed-$side/"
            train "$name" $side "$d/timed-$side" 20 "$@" --resume "$d/timed-$side/step-1" ||
                { fail_case "$name" "20 steps by $side, timed kernels"; return; }
        done
        compare results "$name, timed kernels, losses" logs "$d"/timed-{before,after}/log.jsonl 2 20
        compare results "$name, timed kernels, checkpoint" checkpoints "$d"/timed-{before,after}/step-20
        run=$d/timed-before fixed=
    fi

    # AFTER resumes BEFORE's checkpoint of step 10, without --force. `train --resume PATH` writes to the run of PATH.
    mkdir -p "$d/resumed"
    cp -a "$run/step-10" "$d/resumed/"
    train "$name" after "$d/resumed" 20 "$@" --resume "$d/resumed/step-10" ||
        { fail_case "$name" "resume at step 10"; return; }
    compare results "$name, resumed, losses" logs "$run/log.jsonl" "$d/resumed/log.jsonl" 11 20
    compare results "$name, resumed, checkpoint" checkpoints "$run/step-20" "$d/resumed/step-20"
    rm -rf "$d"
}

# Both programs evaluate the same checkpoint: the weights, not their averages, which newer programs prefer.
compare_evaluation() { # NAME CHECKPOINT ARGUMENTS...
    local name=$1 checkpoint=$2 side weights
    shift 2
    for side in before after; do
        weights=
        ! "$(program $side)" eval --help | grep -q -- --no-ema || weights=--no-ema
        # shellcheck disable=SC2086
        CRESNET_CACHE=$WORK/cache-$name call "$name" $side eval "$checkpoint" "$@" $weights --json -q \
            >"$WORK/$name/eval-$side.json" || { fail_case "$name" "evaluation by $side"; return; }
    done
    compare results "$name, evaluation" json "$WORK/$name"/eval-{before,after}.json images \
        "right|correct" top1 top5 loss
}

# The lowest of three memory limits that BEFORE can keep by recomputing and offloading: a fraction of the planned pool
# plus the memory that a limit always contains. Empty if it can keep none.
memory_limit() { # ARGUMENTS...; name: of the case
    local fraction mib
    for fraction in 0.75 0.85 0.95; do
        mib=$(call "$name" before plan "$@" train.device="$DEVICE" --json -q | python3 -c '
import json, sys
plan = json.load(sys.stdin)
fixed = plan["store_bytes"] + plan["input_bytes"] + ((112 << 20) if sys.argv[1] == "cuda" else 0)
print(round((fixed + float(sys.argv[2]) * plan["peak_bytes"]) / (1 << 20)))' "$DEVICE" $fraction) || return
        call "$name" before plan "$@" train.device="$DEVICE" "memory.limit=${mib}MiB" --json -q >>"$logs/$name.txt" &&
            echo "memory.limit=${mib}MiB" && return
    done
}

# Prints the cases, one a line: name, precisions (-: all), arguments. Two words are replaced:
#   LIMIT              a memory limit that both programs must keep
#   PRUNED VALUES...   weights of a network that BEFORE pruned with these values. Its masks stay as they are, so
#                      training and evaluation use sparse kernels. Training uses dense kernels while masks change.
result_cases() {
    local cifar=$CONFIGS/cifar10-resnet20.ini imagenet18=$CONFIGS/resnet18.ini imagenet50=$CONFIGS/resnet50.ini
    local synthetic="data.kind=synthetic data.root=" folder="data.kind=folder data.root=${IMAGES:-}"
    local small="data.image_size=32 data.train_images=1280 data.val_images=100" large="model.classes=10 optim.lr=0.01"
    local images="data.train_images=80 data.val_images=16" big="data.train_images=1280"
    local gradual="prune.end=1.8 prune.frequency=4 data.train_images=160" one=fp32
    if gpu; then
        small="$small -b 64"
        large="$large data.image_size=128 data.eval_crop=128 -b 64"
        images="data.train_images=1280 data.val_images=64"
        gradual="prune.end=1.8 prune.frequency=4 data.train_images=640" one=fp16
    else
        small="$small -b 16"
        large="$large data.image_size=64 data.eval_crop=64 -b 4"
    fi
    echo "resnet8 - $CONFIGS/demo.ini $synthetic $small"
    echo "resnet20 - $cifar $synthetic $small"
    echo "resnet18 - $imagenet18 $synthetic $images $large"
    echo "resnet50 - $imagenet50 $synthetic $images $large"
    echo "resnet-d-se - $imagenet50 $synthetic $images $large model.arch=custom model.block=bottleneck" \
        "model.depths=1,1,1,1 model.widths=32,64,128,256 model.stem=deep model.shortcut=D model.excitation=yes" \
        "ema.decay=0.99 train.label_smoothing=0.1 data.mixup=0.2 data.augment=trivial"
    # Its masks still change after step 10.
    echo "resnet20-gradual - $cifar $synthetic $small $gradual prune.sparsity=0.9"
    echo "resnet20-adamw fp32 $CONFIGS/cifar10-resnet20-adamw.ini $synthetic $small train.accumulate=2" \
        "train.clip_norm=1"
    echo "resnet18-pruned fp32 $imagenet18 $synthetic $images $large PRUNED prune.sparsity=0.95"
    echo "resnet18-2:4 $one $imagenet18 $synthetic $images $large PRUNED prune.pattern=2:4 prune.scope=uniform" \
        "prune.sparsity=0.5"
    echo "resnet18-block $one $imagenet18 $synthetic $images $large PRUNED prune.pattern=block prune.block=64x64" \
        "prune.scope=uniform prune.sparsity=0.8"
    echo "resnet18-limit $one $imagenet18 $synthetic $images $large $big -b $(gpu && echo 64 || echo 16) LIMIT"
    [ -z "${IMAGES:-}" ] || echo "resnet18-jpeg fp32 $imagenet18 $folder $large data.augment=trivial data.erase=0.5" \
        "data.jitter=0.4,0.4,0.4,0.1"
}

# prepare_case NAME ARGUMENTS...: prints the arguments without the words LIMIT and PRUNED; empty: there is no such plan
prepare_case() {
    local name=$1 limit values
    shift
    local arguments="$*"
    values=${arguments#* PRUNED }
    if [ "$values" != "$arguments" ]; then
        arguments=${arguments%% PRUNED *}
        # shellcheck disable=SC2046,SC2086
        train "$name" before "$WORK/pruned/$name" 1 $arguments $values "train.precision=$precision" $(common) &&
            echo "$arguments model.weights=$WORK/pruned/$name/step-1"
    elif [[ $arguments == *LIMIT* ]]; then
        # shellcheck disable=SC2086
        limit=$(memory_limit ${arguments/LIMIT/} "train.precision=$precision") && echo "${arguments/LIMIT/$limit}"
    else
        echo "$arguments"
    fi
}

run_case() { # NAME PRECISION ARGUMENTS...
    local name=$1-$2 precision=$2 arguments
    shift 2
    arguments=$(prepare_case "$name" "$@")
    [ -n "$arguments" ] || { row SKIP results "$name" "BEFORE cannot run it: $(tail -n 1 "$logs/$name.txt")"; return; }
    # shellcheck disable=SC2086
    result_case "$name" $arguments "train.precision=$precision"
}

part_results() {
    local name precisions arguments precision number=10 running=0
    while read -r name precisions arguments; do
        [[ $name =~ ${CASES:-.} ]] || continue
        [ "$precisions" != - ] || precisions=$PRECISIONS
        for precision in $precisions; do
            number=$((number + 1))
            if ! time_left; then row SKIP results "$name-$precision" "no time left"; continue; fi
            # shellcheck disable=SC2086
            (row_file=$rows/$number && run_case "$name" "$precision" $arguments) </dev/null &
            running=$((running + 1))
            [ $running -lt "$JOBS" ] || { wait -n; running=$((running - 1)); }
        done
    done < <(result_cases)
    wait
}

# ---- gradients ----

steps_tool() { find "$1" -maxdepth 3 -name steps_tool -type f -perm -u+x | head -n 1; }

gradient_case() { # NAME ARGUMENTS...
    local name=$1 side tool
    shift
    for side in before after; do
        tool=$(steps_tool "${!side}")
        echo "\$ steps_tool ($side) $*" >>"$logs/gradients.txt"
        timeout 200 "$tool" "$@" data.root= "train.device=$DEVICE" train.measure=no train.threads=1 \
            --grads "$WORK/gradients-$side" >>"$logs/gradients.txt" 2>&1 ||
            { row FAIL gradients "$name" "$side: $(tail -n 1 "$logs/gradients.txt" | cut -c 1-160)"; return; }
    done
    compare gradients "$name" tensors "$WORK"/gradients-{before,after}-0.safetensors
    rm -f "$WORK"/gradients-*
}

part_gradients() {
    local precision
    if [ -z "$(steps_tool "$before")" ] || [ -z "$(steps_tool "$after")" ]; then
        row SKIP gradients steps_tool "not in both builds"
        return
    fi
    for precision in $PRECISIONS; do
        gradient_case "ResNet-20, $precision" "$CONFIGS/cifar10-resnet20.ini" data.kind=synthetic train.batch=16 \
            "train.precision=$precision"
        gradient_case "ResNet-50, $precision" "$CONFIGS/resnet50.ini" data.kind=synthetic train.batch=4 \
            data.image_size=64 data.eval_crop=64 model.classes=10 "train.precision=$precision"
        gradient_case "... unfused, SE, $precision" "$CONFIGS/resnet50.ini" data.kind=synthetic train.batch=4 \
            data.image_size=64 data.eval_crop=64 model.classes=10 model.excitation=yes train.fuse=no \
            "train.precision=$precision"
    done
}

# ---- speed ----

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

# ---- everything ----

for side in before after; do
    row INFO build "$side" "$("$(program $side)" --version 2>&1 | awk '/^(cresnet|compiler|CUDA|NCCL|device)/ {
        $1 = $1; printf "%s%s", n++ ? "; " : "", $0 }')"
done
for part in "$@"; do
    case $part in plan) row_file=$rows/05 ;; results) row_file=$rows/09 ;; *) row_file=$rows/90-$part ;; esac
    start=$SECONDS
    if time_left; then "part_$part"; else row SKIP "$part" "$part" "no time left"; fi
    echo "-- $part: $((SECONDS - start)) s" >&2
    table >"$OUT/table.txt"
done

echo
table
count() { table | grep -c "^$1"; }
failed=$(count FAIL)
echo "$(count PASS) passed, $failed failed, $(count SKIP) skipped"
[ "$failed" -eq 0 ]

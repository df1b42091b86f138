# compare_builds/results.sh: the part `results` of compare-builds.sh, which sources this file and explains its variables.

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

#!/usr/bin/env bash
# prune-accuracy.sh: accuracy of pruned ResNet-56 networks on CIFAR-10, one GPU. Trains dense networks, prunes each of them in several
# ways, trains every pruned network further, and prints the drop against a dense control that was trained for the same further epochs
# with the same teacher. The last epoch counts, not the best one; the means are over the seeds.
#
# The work stops LIMIT_S seconds after the start: trainings then save a checkpoint. Run the same command again to continue. Exit code:
# 0 everything is measured and within the targets, 1 a drop is too large or a stage failed, 3 stages are left for the next run.
#
#   CIFAR=DIR WORK=DIR scripts/gpu/prune-accuracy.sh
#
# Variables: CRESNET (build/cresnet), CONFIGS (configs), CIFAR (folder of CIFAR-10's six .bin files), WORK (prune-accuracy; it must
# remain between runs), LIMIT_S (540), SEEDS (1 2 3), JOBS (2: trainings at a time; more are slower in all), EPOCHS (200, dense), MORE_EPOCHS (120),
# TEACHER (yes: the dense network teaches all others, the control included), VARIANTS (names of the list below),
# SETTINGS (more keys for all trainings, such as train.precision=fp32), MORE_SETTINGS (more keys for the further epochs, such as
# "train.batch=256 optim.lr=0.1").
# shellcheck disable=SC2317 # stages are called by name
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
CRESNET=$(realpath "${CRESNET:-$here/build/cresnet}") CONFIGS=$(realpath "${CONFIGS:-$here/configs}")
WORK=$(realpath -m "${WORK:-prune-accuracy}") CIFAR=${CIFAR:-$here/datasets/cifar10}
SEEDS=${SEEDS:-1 2 3} JOBS=${JOBS:-2} LIMIT_S=${LIMIT_S:-540} EPOCHS=${EPOCHS:-200} MORE_EPOCHS=${MORE_EPOCHS:-120}
TEACHER=${TEACHER:-yes} VARIANTS=${VARIANTS:-channels-2.1 channels-2.57 weights-90 weights-95 2:4 blocks-80}
RESERVE_S=20 # to save, evaluate and print
usage() { echo "prune-accuracy.sh: $1 (see the head of the script)" >&2; exit 2; }
[ $# = 0 ] || usage "no arguments are taken"
[ -x "$CRESNET" ] || usage "no program $CRESNET: set CRESNET"
[ -f "$CIFAR/test_batch.bin" ] || usage "no $CIFAR/test_batch.bin: set CIFAR"
CIFAR=$(realpath "$CIFAR")
mkdir -p "$WORK/results" "$WORK/runs" "$WORK/logs"
rm -f "$WORK/failed"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + JOBS - 1) / JOBS))}
start=$SECONDS
left() { echo $((LIMIT_S - RESERVE_S - (SECONDS - start))); }
log() { echo "[$((SECONDS - start)) s] $*"; }

# target VARIANT: the largest drop that the project accepts, in percentage points; nothing if there is none
target() {
    case $1 in channels-2.1) echo 0.1 ;; channels-2.57) echo 0.35 ;; weights-90) echo 0.4 ;; weights-95) echo 1.1 ;; 2:4) echo 0.1 ;; esac
}

# train NAME CONFIG KEYS...: trains runs/NAME, or continues, until it is complete. Returns 124 when the time is up.
train() {
    local run=$WORK/runs/$1 log=$WORK/logs/$1.txt config=$2
    shift 2
    [ ! -f "$run.complete" ] || return 0
    [ "$(left)" -gt 5 ] || return 124
    # shellcheck disable=SC2086
    timeout -k 20 -s TERM "$(left)" "$CRESNET" train "$config" data.root="$CIFAR" train.eval_every=0 train.keep=1 ${SETTINGS:-} "$@" \
        -o "$run" --resume auto -q >>"$log" 2>&1 || return
    touch "$run.complete"
}

# further NAME SEED BASE CONFIG KEYS...: the further epochs of a variant
further() {
    local name=$1 seed=$2 base=$3 config=$4 teacher=""
    shift 4
    [ "$TEACHER" = no ] || teacher="distill.teacher=$base distill.weight=0.7"
    # shellcheck disable=SC2086
    train "$name" "$config" --epochs "$MORE_EPOCHS" train.seed="$seed" optim.lr=0.05 $teacher "$@" ${MORE_SETTINGS:-}
}

# variant NAME VARIANT SEED BASE: prunes and trains, or only trains (control)
variant() {
    local name=$1 kind=$2 seed=$3 base=$4 small=$WORK/runs/$1-small sparse="prune.start=0 prune.end=$((MORE_EPOCHS / 3)) prune.frequency=100"
    local config=$CONFIGS/cifar10-resnet56.ini
    case $kind in
        control) further "$name" "$seed" "$base" "$config" model.weights="$base" ;;
        channels-*)
            if [ ! -f "$small/last/config.ini" ]; then
                rm -rf "$small"
                # shellcheck disable=SC2086
                "$CRESNET" prune "$base" --pattern channels --flops "${kind#*-}" --recalibrate 16 ${PRUNE:-} -o "$small" \
                    >>"$WORK/logs/$name.txt" 2>&1 || return
            fi
            further "$name" "$seed" "$base" "$small/last/config.ini" model.weights="$small" ;;
        weights-*) further "$name" "$seed" "$base" "$config" model.weights="$base" prune.sparsity="0.${kind#*-}" $sparse ;;
        2:4) further "$name" "$seed" "$base" "$config" model.weights="$base" prune.pattern=2:4 prune.sparsity=0.5 $sparse ;;
        blocks-*)
            further "$name" "$seed" "$base" "$config" model.weights="$base" prune.pattern=block prune.block=16x16 \
                prune.sparsity="0.${kind#*-}" $sparse ;;
        *) usage "VARIANTS: unknown name $kind" ;;
    esac
}

# evaluate NAME: correct answers of the last checkpoint, to results/NAME
evaluate() {
    local file=$WORK/results/$1
    timeout $(($(left) + RESERVE_S)) "$CRESNET" eval "$WORK/runs/$1" --last data.root="$CIFAR" --json -q 2>>"$WORK/logs/$1.txt" |
        sed -n 's/.*"correct": *\([0-9]*\).*/\1/p' >"$file.part"
    [ -s "$file.part" ] && mv "$file.part" "$file"
}

# stage NAME FUNCTION ARGUMENTS...: one training and its evaluation, unless there is a result. Returns 1 when it is not complete.
stage() {
    local name=$1 code begin=$SECONDS
    shift
    [ ! -s "$WORK/results/$name" ] || return 0
    "$@" && evaluate "$name"
    code=$?
    if [ $code = 124 ] || [ "$(left)" -le 5 ]; then
        log "$name: continues in the next run"
        return 1
    elif [ $code -ne 0 ]; then
        log "$name: FAILED, exit code $code: $(tail -n 1 "$WORK/logs/$name.txt" 2>/dev/null | cut -c 1-300)"
        touch "$WORK/failed"
        return 1
    fi
    log "$name: $(cat "$WORK/results/$name") correct, $((SECONDS - begin)) s"
}

dense() { # SEED
    stage "dense-s$1" train "dense-s$1" "$CONFIGS/cifar10-resnet56.ini" --epochs "$EPOCHS" train.seed="$1"
}
pruned() { # VARIANT SEED
    local name
    name=$(echo "$1-s$2" | tr : -)
    stage "$name" variant "$name" "$1" "$2" "$WORK/runs/dense-s$2/last"
}

# run_all FUNCTION "LINES OF ARGUMENTS": JOBS at a time
run_all() {
    local running=0 arguments
    while read -r arguments; do
        [ $running -lt "$JOBS" ] || { wait -n; running=$((running - 1)); }
        # shellcheck disable=SC2086
        "$1" $arguments &
        running=$((running + 1))
    done <<<"$2"
    wait
}

run_all dense "$(printf '%s\n' $SEEDS)"
work=""
for seed in $SEEDS; do
    [ -f "$WORK/runs/dense-s$seed.complete" ] || continue
    for kind in control $VARIANTS; do work+="$kind $seed"$'\n'; done
done
[ -z "$work" ] || run_all pruned "${work%$'\n'}"

# mean VARIANT: of the seeds, in percent; nothing if one is missing
mean() {
    local seed
    for seed in $SEEDS; do cat "$WORK/results/$(echo "$1" | tr : -)-s$seed" 2>/dev/null || return; done |
        awk -v n="$(echo "$SEEDS" | wc -w)" '{ s += $1 } END { if (NR == n) printf "%.2f", s / NR / 100 }'
}
each() { for seed in $SEEDS; do cat "$WORK/results/$(echo "$1" | tr : -)-s$seed" 2>/dev/null || echo -; done | paste -sd' '; }

echo "| network | correct of 10,000 | mean, % | drop | target |"
echo "|---|---|---:|---:|---:|"
code=0 control=$(mean control)
for kind in dense control $VARIANTS; do
    value=$(mean "$kind") bar=$(target "$kind") drop=""
    [ -n "$value" ] || [ $code = 1 ] || code=3
    if [ -n "$value" ] && [ -n "$control" ] && [ "$kind" != dense ] && [ "$kind" != control ]; then
        drop=$(awk -v a="$control" -v b="$value" 'BEGIN { printf "%.2f", a - b }')
        [ -z "$bar" ] || awk -v d="$drop" -v t="$bar" 'BEGIN { exit !(d <= t) }' || code=1
    fi
    echo "| $kind | $(each "$kind") | $value | $drop | $bar |"
done
[ ! -f "$WORK/failed" ] || code=1
exit $code

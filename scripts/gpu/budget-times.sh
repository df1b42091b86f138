#!/usr/bin/env bash
# budget-times.sh [BUILD [NUMBER...]]: predicted against measured time of networks that `cresnet prune --speedup` makes, for ten targets on one GPU:
# ResNet-50 and ResNet-18 on 224 px images and ResNet-56 on 32 px images, in fp16, int8 and fp32, with all patterns and with channels
# alone. Weights are random, because times do not depend on their values. Prints one line per target, with the time of bench infer; exit
# code 1 when a prediction is off by more than 5 percent or a target is missed. NUMBER: only these of the ten targets. KEEP=FILE appends the chosen channels to a file.
set -u
[ "${1:-}" != --help ] || { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/../.." && pwd)
cresnet=${1:-$root/build}/cresnet
only=" ${*:2} " number=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

run_of() { # NET: a run folder with weights after one step
    local config=$root/configs/$1.ini
    [ "$1" != resnet56 ] || config=$root/configs/cifar10-resnet56.ini
    [ -d "$work/$1" ] || "$cresnet" train "$config" data.kind=synthetic train.precision=fp16 --steps 1 -b 32 data.val_images=256 \
        train.eval_every=0 -o "$work/$1" -q >"$work/train.log" 2>&1 || { tail -1 "$work/train.log"; return 1; }
}
value() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" "$work/out.json"; }

# target NET BATCH SPEEDUP PATTERN KEYS...
target() {
    local net=$1 batch=$2 speedup=$3 pattern=$4 begin=$SECONDS after=0
    shift 4
    number=$((number + 1))
    [[ $only == "  " || $only == *" $number "* ]] || return
    run_of "$net" || { failed=1; return; }
    rm -rf "$work/small"
    if ! timeout 150 "$cresnet" prune "$work/$net" --speedup "$speedup" --pattern "$pattern" --batch "$batch" train.device=cuda "$@" --json \
        -o "$work/small" >"$work/out.json" 2>"$work/error"; then
        echo "FAIL $net batch $batch ${speedup}x $pattern $*: $(tail -1 "$work/error" | cut -c 1-300), $((SECONDS - begin)) s"
        failed=1
        return
    fi
    local seconds=$((SECONDS - begin))
    cp "$work/out.json" "$work/pruned.json"
    local weights="$work/small" # an independent time; the weights are in floating point, those of a network in 8 bits are random
    case "$*" in *int8*) weights="" ;; esac
    "$cresnet" bench infer "$work/small/last/config.ini" model.weights="$weights" data.kind=synthetic train.eval_batch="$batch" train.device=cuda \
        "$@" --steps 60 --json >"$work/out.json" 2>"$work/error" && after=$(value ms) || tail -1 "$work/error"
    cp "$work/pruned.json" "$work/out.json"
    awk -v p="$(value predicted_ms)" -v m="$(value measured_ms)" -v b="$(value measured_before_ms)" -v t="$(value target_ms)" \
        -v n="$(value measured_networks)" -v first="$(value first_prediction)" -v after="$after" -v s=$seconds \
        -v what="$net batch $batch ${speedup}x $pattern $*" 'BEGIN {
        off = 100 * (p / m - 1)
        good = off * off <= 25 && m <= t
        printf "%-4s %-58s before %.4f, target %.4f, predicted %.4f, measured %.4f ms (%+.1f %%), %.2fx; %d networks, first %+.1f %%; bench infer %.4f; %d s\n",
            good ? "ok" : "FAIL", what, b, t, p, m, off, b / m, n, 100 * (first - 1), after, s
        exit !good
    }' || failed=1
    if [ -n "${KEEP:-}" ]; then sed -n 's/.*"channels": "\([^"]*\)".*/\1/p' "$work/pruned.json" >>"$KEEP"; fi
}

target resnet50 256 1.3 channels train.precision=fp16
target resnet50 256 1.6 channels train.precision=fp16
target resnet50 256 2.0 auto train.precision=fp16
target resnet50 1 1.2 channels train.precision=fp16
target resnet50 256 1.4 channels quant.type=int8
target resnet50 32 2.0 auto train.precision=fp32
target resnet18 256 1.5 channels train.precision=fp16
target resnet18 64 1.5 auto train.precision=bf16
target resnet56 1000 1.5 channels train.precision=fp16
target resnet56 128 1.3 auto train.precision=fp16
exit $failed

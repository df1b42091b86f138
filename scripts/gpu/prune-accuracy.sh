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
# Networks with fewer channels keep the channels that residual blocks add (--exempt residual).
#
# Variables: CRESNET (build/cresnet), CONFIGS (configs), CIFAR (folder of CIFAR-10's six .bin files), WORK (prune-accuracy; it must remain between
# runs), LIMIT_S (540), SEEDS (1 2 3), JOBS (2: trainings at a time; more are slower in all), EPOCHS (200, dense), MORE_EPOCHS (120),
# TEACHER (yes: the dense network teaches all others, the control included), SCHEDULE (gradual; acdc: for single weights), VARIANTS (names of the list below; channels-XmN: with multiples of N
# channels), PRUNE (more options of prune for channels; --multiple 1 --exempt residual), SETTINGS (more keys for all trainings, such as train.precision=fp32),
# MORE_SETTINGS (more keys for the further epochs, such as "train.batch=256 optim.lr=0.1").
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
CRESNET=$(realpath "${CRESNET:-$here/build/cresnet}") CONFIGS=$(realpath "${CONFIGS:-$here/configs}")
WORK=$(realpath -m "${WORK:-prune-accuracy}") CIFAR=${CIFAR:-$here/datasets/cifar10}
SEEDS=${SEEDS:-1 2 3} JOBS=${JOBS:-2} LIMIT_S=${LIMIT_S:-540} EPOCHS=${EPOCHS:-200} MORE_EPOCHS=${MORE_EPOCHS:-120}
TEACHER=${TEACHER:-yes} SCHEDULE=${SCHEDULE:-gradual} PRUNE=${PRUNE:---multiple 1 --exempt residual}
VARIANTS=${VARIANTS:-channels-2.1 channels-2.57 weights-90 weights-95 2:4 blocks-16x16}
usage() { echo "prune-accuracy.sh: $1 (see the head of the script)" >&2; exit 2; }
[ $# = 0 ] || usage "no arguments are taken"
[ -x "$CRESNET" ] || usage "no program $CRESNET: set CRESNET"
[ -f "$CIFAR/test_batch.bin" ] || usage "no $CIFAR/test_batch.bin: set CIFAR"
CIFAR=$(realpath "$CIFAR")
mkdir -p "$WORK/results" "$WORK/runs" "$WORK/logs"
rm -f "$WORK/failed"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + JOBS - 1) / JOBS))}
# shellcheck source=scripts/gpu/prune-stages.sh
. "$here/scripts/gpu/prune-stages.sh"

# target VARIANT: the largest drop that the project accepts, in percentage points; nothing if there is none
target() {
    case $1 in channels-2.1) echo 0.1 ;; channels-2.57) echo 0.35 ;; weights-90) echo 0.4 ;; weights-95) echo 1.1 ;; 2:4) echo 0.1 ;; esac
}

run_all dense "$(printf '%s\n' $SEEDS)"
work=$(pruned_lines)
[ -z "$work" ] || run_all pruned "$work"

# mean VARIANT: of the seeds, in percent; nothing if one is missing
mean() {
    local seed
    for seed in $SEEDS; do cat "$WORK/results/$(result_name "$1" "$seed")" 2>/dev/null || return; done |
        awk -v n="$(echo "$SEEDS" | wc -w)" '{ s += $1 } END { if (NR == n) printf "%.2f", s / NR / 100 }'
}
each() { for seed in $SEEDS; do cat "$WORK/results/$(result_name "$1" "$seed")" 2>/dev/null || echo -; done | paste -sd' '; }

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

#!/usr/bin/env bash
# prune-stepwise.sh RUN FACTOR ROUNDS OUT [TRAIN OPTIONS...]: removes channels step by step. Each round removes some with `prune --pattern channels`
# and trains the smaller network, until it has FACTOR times fewer multiply-adds than RUN. OUT/round-K and OUT/round-K-tuned are the runs,
# OUT/result is a link to the last one. Finished rounds are not repeated and interrupted ones are resumed: the script can be called again.
#   CRESNET  program (build/cresnet)        PRUNE  options of prune (--recalibrate 16)
set -eu
cresnet=${CRESNET:-$(dirname "$0")/../build/cresnet}
fail() { echo "prune-stepwise.sh: $*" >&2; exit 2; }
[ $# -ge 4 ] || fail "usage: prune-stepwise.sh RUN FACTOR ROUNDS OUT [TRAIN OPTIONS...]"
run=$1 factor=$2 rounds=$3 out=$4
shift 4
[ -x "$cresnet" ] || fail "$cresnet does not exist: build it (README.md), or set CRESNET"
[ -d "$run" ] || fail "$run is not a run folder"
case $rounds in '' | *[!0-9]* | 0*) fail "ROUNDS is $rounds: must be a whole number, at least 1" ;; esac
awk -v f="$factor" 'BEGIN { exit !(f ~ /^[0-9]+(\.[0-9]+)?$/ && f > 1) }' || fail "FACTOR is $factor: must be a number above 1, e.g. 2"
mkdir -p "$out"
{ [ ! -e "$out/arguments" ] || [ "$(cat "$out/arguments")" = "$run $factor $rounds" ]; } ||
    fail "$out was made with other arguments ($(cat "$out/arguments")): choose another folder"
echo "$run $factor $rounds" >"$out/arguments"

left=$factor # factor that is still to reach
for round in $(seq "$rounds"); do
    small=$out/round-$round tuned=$out/round-$round-tuned
    awk -v l="$left" 'BEGIN { exit !(l > 1.0001) }' || break
    if [ ! -s "$out/round-$round.json" ]; then
        rm -rf "$small" # of an interrupted call
        step=$(awk -v l="$left" -v n="$((rounds - round + 1))" 'BEGIN { printf "%.6f", exp(log(l) / n) }')
        # shellcheck disable=SC2086
        "$cresnet" prune "$run" --pattern channels --flops "$step" ${PRUNE---recalibrate 16} --json -o "$small" >"$out/new.json"
        mv "$out/new.json" "$out/round-$round.json"
    fi
    if [ "$(readlink "$out/round-$round.done" || true)" != finished ]; then
        "$cresnet" train "$small/last/config.ini" model.weights="$small" --resume auto -o "$tuned" "$@"
        ln -s finished "$out/round-$round.done"
    fi
    left=$(sed 's/.*"multiply_adds_before": *\([0-9]*\).*"multiply_adds": *\([0-9]*\).*/\1 \2/' "$out/round-$round.json" |
        awk -v l="$left" '{ printf "%.6f", l * $2 / $1 }')
    run=$tuned
    echo "round $round of $rounds: $(awk -v f="$factor" -v l="$left" 'BEGIN { printf "%.2f", f / l }') times fewer multiply-adds, in $run"
done
ln -sfn "$(basename "$run")" "$out/result"

#!/usr/bin/env bash
# reproduce.sh [--dry-run] ROW [KEY=VALUE ...]: runs a row of docs/results.md again, with the same configuration and seeds, and compares the mean
# accuracy. Fails (exit code 1) when the difference is larger than the spread of the row: the highest minus the lowest of its seeds, or, for a row
# of one seed, three standard errors of a difference between two accuracies on that number of images. Times are printed, not compared.
#
# KEY=VALUE: more values of the configuration that do not change the result, such as data.root=DIR or data.workers=16.
# --dry-run: prints the commands only. Without ROW: lists the rows. Finished trainings in RUNS are not repeated, so a call that was stopped continues.
#   CRESNET   the program (build/cresnet, or cresnet of PATH)
#   RUNS      folder of the trainings (checkpoints/reproduce)
#   RESULTS   page with the rows (docs/results.md)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
results=${RESULTS:-$root/docs/results.md} runs=${RUNS:-checkpoints/reproduce}
die() { echo "reproduce.sh: $*" >&2; exit 2; }
cresnet=${CRESNET:-$root/build/cresnet}
[ -x "$cresnet" ] || cresnet=$(command -v cresnet) || die "needs the program cresnet: build it, or set CRESNET"

# Cells of the rows, separated by |: row, configuration, values, seeds, mean, lowest and highest top-1 in %
rows() { awk -F' *[|] *' '/^[|] `/ && NF >= 9 { gsub(/`/, ""); print $2 "|" $3 "|" $4 "|" $5 "|" $6 "|" $7 "|" $8 }' "$results"; }

dry= given=()
for argument; do if [ "$argument" = --dry-run ]; then dry=1; else given+=("$argument"); fi; done
set -- "${given[@]}"
[ $# -gt 0 ] || { echo "rows of $results:"; rows | cut -d'|' -f1 | sed 's/^/  /'; exit 2; }
name=$1
shift
line=$(rows | awk -F'|' -v name="$name" '$1 == name { print; found = 1 } END { exit !found }') || die "no row $name in $results; without arguments, reproduce.sh lists the rows"
IFS='|' read -r _ config values seeds mean lowest highest <<<"$line"

# train SEED: prints the accuracy in %, the number of images and the seconds of the process
train() {
    local run=$runs/$name-$1 begin
    # shellcheck disable=SC2086
    set -- "$cresnet" train "$root/configs/$config.ini" $values "train.seed=$1" "${@:2}" --resume auto -q -o "$run"
    [ -z "$dry" ] || { echo "$*"; return; }
    if ! grep -qs '"event":"done"' "$run/log.jsonl"; then
        mkdir -p "$runs"
        begin=$(date +%s.%N)
        "$@" >&2 || die "seed ${run##*-} failed: $*"
        echo "$begin $(date +%s.%N)" | awk '{ printf "%.1f\n", $2 - $1 }' >"$run/seconds.txt"
    fi
    awk -v seconds="$(cat "$run/seconds.txt")" '
        /"event":"(eval|final_tta)"/ { line = $0; if (match($0, /"images":[0-9]+/)) images = substr($0, RSTART + 9, RLENGTH - 9) }
        END { match(line, /"top1":[0-9.]+/); print 100 * substr(line, RSTART + 7, RLENGTH - 7), images, seconds }' "$run/log.jsonl"
}

for seed in $(seq 1 "$seeds"); do
    said=$(train "$seed" "$@")
    [ -z "$dry" ] || { echo "$said"; continue; }
    echo "seed $seed: $said" | awk '{ printf "%s %s %.2f %% of %d images, %s s\n", $1, $2, $3, $4, $5 }' >&2
    echo "$said"
done | if [ -n "$dry" ]; then cat; else
    awk -v name="$name" -v seeds="$seeds" -v mean="$mean" -v lowest="$lowest" -v highest="$highest" '
        { sum += $1; images = $2; time += $3; count++ }
        END {
            if (count != seeds) exit 2
            now = sum / count
            allowed = highest - lowest
            p = mean / 100
            if (count == 1) allowed = 300 * sqrt(2 * p * (1 - p) / images)
            difference = now > mean ? now - mean : mean - now
            good = difference <= allowed + 1e-9
            printf "%s %s: %.2f %%, published %.2f %%, difference %.2f, allowed %.2f, %.1f s a training\n", good ? "PASS" : "FAIL", name, now, mean, difference, allowed, time / count
            exit !good
        }'
fi

#!/usr/bin/env bash
# memory-table.sh [--markdown]: compares the memory plan with its lower bound for training programs of several ResNets and batch sizes,
# fused and unfused, in fp32 (CPU) and fp16 (for the GPU that TARGET names; no GPU is needed). A row passes if peak / bound <= 1.01 and,
# for ResNet-152, if planning takes at most 50 ms. Exit code 0: no row failed. --markdown: a table with one line per network and type.
#
#   CRESNET_BIN   the program (build/cresnet)
#   TARGET        the GPU of the fp16 programs (h200); "": skip fp16
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${CRESNET_BIN:-$root/build/cresnet}
target=${TARGET-h200}
markdown=${1:-}
[ -x "$bin" ] || { echo "memory-table.sh: $bin does not exist: build it, or set CRESNET_BIN" >&2; exit 2; }
[ -z "$markdown" ] || [ "$markdown" = --markdown ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

plan() { # NAME TYPE BATCH CONFIG VALUE ...
    local name=$1 type=$2 batch=$3 fuse where json
    shift 3
    where="train.device=cpu"
    [ "$type" = fp32 ] || where="--target $target"
    for fuse in yes no; do
        # shellcheck disable=SC2086
        json=$("$bin" plan "$@" -b "$batch" data.kind=synthetic train.precision="$type" train.fuse=$fuse $where --json -q)
        echo "$name $type $batch $fuse ${json:-none}" >>"$lines"
    done
}

types=fp32
[ -z "$target" ] || types="fp32 fp16"
for type in $types; do
    for depth in 18 50 101 152; do
        for batch in 32 128 256; do plan "ResNet-$depth" "$type" $batch "$root/configs/resnet50.ini" model.arch=resnet$depth; done
    done
    for depth in 20 56 110; do
        for batch in 128 1024; do plan "ResNet-$depth (CIFAR)" "$type" $batch "$root/configs/cifar10-resnet20.ini" model.arch=resnet$depth; done
    done
done

awk -v markdown="$markdown" '
function value(key,    s) {
    s = $0
    if (!sub(".*\"" key "\": ", "", s)) return ""
    sub(/[,}].*/, "", s)
    return s
}
function mib(bytes) { return sprintf("%.1f", bytes / 1048576) }
{
    n = split($0, word, " ")
    name = word[1]; at = 2
    if (word[2] == "(CIFAR)") { name = name " (CIFAR)"; at = 3 }
    type = word[at]; batch = word[at + 1]; fuse = word[at + 2] == "yes" ? "fused" : "unfused"
    peak = value("peak_bytes") + 0; bound = value("bound_bytes") + 0; ms = value("plan_ms") + 0; ratio = peak && bound ? peak / bound : 0
    good = ratio >= 1 && ratio <= 1.01 && !(name ~ /152/ && ms > 50)
    rows++; failed += !good
    if (ratio > worst) worst = ratio
    if (name ~ /152/ && ms > slowest) slowest = ms
    if (markdown == "") {
        printf "%-4s %-20s %s batch %4d %s  peak %9s MiB, bound %9s, ratio %.6f, planned in %6.2f ms\n", good ? "PASS" : "FAIL", name, type, batch, fuse,
            mib(peak), mib(bound), ratio, ms
    } else {
        key = name " | " type
        if (!(key in cells)) order[++keys] = key
        cells[key] = cells[key] (cells[key] ? ", " : "") batch " " fuse " " mib(peak)
        if (ratio > ratios[key]) ratios[key] = ratio
        if (ms > times[key]) times[key] = ms
    }
}
END {
    if (markdown != "") {
        print "| network | type | batch, MiB of the pool | peak / bound, worst | longest planning, ms |\n|---|---|---|---:|---:|"
        for (i = 1; i <= keys; i++) printf "| %s | %s | %.4f | %.1f |\n", order[i], cells[order[i]], ratios[order[i]], times[order[i]]
    }
    printf "%d rows, %d failed: worst peak / bound %.6f (target 1.01), ResNet-152 planned in at most %.1f ms (target 50)\n", rows, failed, worst, slowest
    exit failed > 0
}' "$lines"

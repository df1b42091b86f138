#!/usr/bin/env bash
# start-up.sh BEFORE AFTER: size of two programs and of their GPU code, and how long they take to start: `--version`, and the first training step of
# ResNet-20 and ResNet-50 (from the start of the program), with known kernel times and, of ResNet-50 with batch 256, in a first start that measures
# them. The programs take turns; medians of REPEATS (20). BEFORE and AFTER are two builds of the program.
set -eu
repeats=${REPEATS:-20}
[ $# = 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CRESNET_CACHE=$work/cache
root=$(cd "$(dirname "$0")/../.." && pwd)
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
first_step() { # PROGRAM CONFIG BATCH: seconds
    "$1" bench step "$root/configs/$2.ini" data.kind=synthetic train.precision=fp16 --device cuda -b "$3" --steps 1 --json -q |
        sed -n 's/.*"time_to_first_step_s": \([0-9.]*\).*/\1/p'
}
version() { # PROGRAM: seconds
    local start=${EPOCHREALTIME/./}
    "$1" --version >/dev/null
    echo "$((${EPOCHREALTIME/./} - start))" | awk '{ print $1 / 1e6 }'
}
for program in "$1" "$2"; do
    echo "$program: $(stat -c %s "$program") bytes, GPU code $(size -A "$program" | awk '/^.nv_fatbin/ { print $2 }')"
    for load in "cifar10-resnet20 128" "resnet50 64"; do first_step "$program" $load >/dev/null; done # measures kernels once
done
for _ in $(seq "$repeats"); do
    for i in 1 2; do
        version "${!i}" >>"$work/version-$i"
        first_step "${!i}" cifar10-resnet20 128 >>"$work/cifar10-resnet20-$i"
        first_step "${!i}" resnet50 64 >>"$work/resnet50-$i"
        CRESNET_CACHE=$work/empty first_step "${!i}" resnet50 256 >>"$work/resnet50-first-start-$i"
        rm -r "$work/empty"
    done
done
for what in version cifar10-resnet20 resnet50 resnet50-first-start; do
    echo "$what: before $(median "$work/$what-1") s, after $(median "$work/$what-2") s"
done

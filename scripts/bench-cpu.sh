#!/usr/bin/env bash
# bench-cpu.sh: compares the training step of ResNet-20 on images of CIFAR-10's size, cresnet against PyTorch on the same cores. Both are
# measured alternately, ROUNDS times, so that a slow period of the machine affects both. Prints each round and the ratio of the medians.
#   scripts/bench-cpu.sh [ROUNDS]     (5)
#   BATCH (128), STEPS (20), THREADS (all cores), CRESNET_BIN (build/cresnet), PYTHON (a python3 that has torch)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
rounds=${1:-5}
batch=${BATCH:-128} steps=${STEPS:-20} threads=${THREADS:-$(nproc)}
bin=${CRESNET_BIN:-$root/build/cresnet}
python=${PYTHON:-}
for candidate in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! $candidate -c 'import torch' 2>/dev/null || python=$candidate
done
[ -n "$python" ] || { echo "bench-cpu.sh: no python3 with torch was found: install it (Debian: python3-torch), or set PYTHON" >&2; exit 1; }
[ -x "$bin" ] || { echo "bench-cpu.sh: $bin does not exist: run scripts/demo.sh, or set CRESNET_BIN" >&2; exit 1; }

field() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

ours="" theirs=""
echo "ResNet-20, batch $batch, $threads threads, $steps steps per round, images/s"
for i in $(seq "$rounds"); do
    a=$("$bin" bench step "$root/configs/cifar10-resnet20.ini" --device cpu --batch "$batch" --threads "$threads" --steps "$steps" \
        --json --quiet | field images_per_s)
    b=$("$python" "$root/scripts/bench_cpu_peer.py" --batch "$batch" --steps "$steps" --threads "$threads" | field images_per_s)
    echo "round $i: cresnet $a, PyTorch $b"
    ours="$ours $a" theirs="$theirs $b"
done
# shellcheck disable=SC2086
a=$(printf '%s\n' $ours | median) b=$(printf '%s\n' $theirs | median)
echo "medians: cresnet $a, PyTorch $b: ratio $(awk "BEGIN { printf \"%.3f\", $a / $b }")"

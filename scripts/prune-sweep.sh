#!/usr/bin/env bash
# prune-sweep.sh [DATA]: accuracy against sparsity on CIFAR-10. Trains ResNet-56; prunes it to 80, 90 and 95 % and to 2:4 while training
# continues; evaluates each network with sparse kernels and with dense kernels. DATA is the folder of CIFAR-10's binary files
# (datasets/cifar10). Finished runs are not repeated and interrupted runs are resumed: the script can be interrupted and called again.
#   CRESNET   program (build/cresnet)        RUNS    folder of the runs (checkpoints)
#   TARGETS   of 80 90 95 24 (all)           DEVICE  auto, cuda, cpu
set -eu
cd "$(dirname "$0")/.."
cresnet=${CRESNET:-build/cresnet}
runs=${RUNS:-checkpoints}
data=${1:-datasets/cifar10}
device=${DEVICE:-auto}
[ -x "$cresnet" ] || { echo "prune-sweep.sh: $cresnet does not exist: build it (README.md), or set CRESNET" >&2; exit 1; }
[ -f "$data/data_batch_1.bin" ] || { echo "prune-sweep.sh: $data/data_batch_1.bin does not exist: name the folder of CIFAR-10's binary files" >&2; exit 1; }

# train_run RUN CONFIG VALUES...
train_run() {
    local run=$1
    shift
    grep -q '"done"' "$run/log.jsonl" 2>/dev/null && return
    "$cresnet" train "$@" data.root="$data" train.device="$device" train.keep=1 --resume auto -o "$run" -q
}
# correct RUN OPTIONS...: number of correct test images, of 10,000
correct() { "$cresnet" eval "$1" data.root="$data" train.device="$device" --json -q "${@:2}" | sed -n 's/.*"correct": *\([0-9]*\).*/\1/p'; }
# bytes of the weights of a run
bytes() { wc -c <"$1/last/model.safetensors" | tr -d ' '; }

# Runs of earlier versions are named walk-*.
prefix=$runs/prune
[ ! -d "$runs/walk-dense" ] || [ -d "$runs/prune-dense" ] || prefix=$runs/walk
dense=$prefix-dense
echo "== dense"
train_run "$dense" configs/cifar10-resnet56.ini
dense_correct=$(correct "$dense/last")
echo "dense: $dense_correct of 10000 correct, $(bytes "$dense") bytes"
for target in ${TARGETS:-80 90 95 24}; do
    run=$prefix-$target
    if [ "$target" = 24 ]; then set -- prune.pattern=2:4 prune.sparsity=0.5; else set -- prune.sparsity=0.$target; fi
    echo "== $target"
    train_run "$run" configs/cifar10-resnet56-sparse.ini model.weights="$dense/last" "$@"
    sparse=$(correct "$run/last" --ema)
    plain=$(correct "$run/last" --ema train.sparse=no)
    echo "$target: $sparse of 10000 correct with sparse kernels, $plain with dense kernels, $(awk "BEGIN { printf \"%.2f\", ($dense_correct - $sparse) / 100 }") percentage points below the dense network, $(bytes "$run") bytes"
done

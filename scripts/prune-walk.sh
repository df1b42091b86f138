#!/usr/bin/env bash
# prune-walk.sh [DATA]: the whole walk on CIFAR-10: trains ResNet-56, prunes it to 80, 90, 95 % and to 2:4 while it is trained on, and evaluates
# each with the kernels that suit what is left. DATA is the folder of CIFAR-10's binary files (datasets/cifar10). Runs that are done are kept,
# others go on where they stopped: it can be interrupted and called again.
#   CRESNET   program (build/cresnet)        RUNS  folder of the runs (checkpoints)
#   TARGETS   of 80 90 95 24 (all)           DEVICE  auto, cuda, cpu
set -eu
cd "$(dirname "$0")/.."
cresnet=${CRESNET:-build/cresnet}
runs=${RUNS:-checkpoints}
data=${1:-datasets/cifar10}
device=${DEVICE:-auto}
[ -x "$cresnet" ] || { echo "prune-walk.sh: $cresnet: not there; build first (README.md), or set CRESNET" >&2; exit 1; }
[ -f "$data/data_batch_1.bin" ] || { echo "prune-walk.sh: $data/data_batch_1.bin: not there; give the folder of CIFAR-10's binary files" >&2; exit 1; }

# train_run RUN CONFIG VALUES...
train_run() {
    local run=$1
    shift
    grep -q '"done"' "$run/log.jsonl" 2>/dev/null && return
    "$cresnet" train "$@" data.root="$data" train.device="$device" train.keep=1 --resume auto -o "$run" -q
}
# right of the test pictures, of 10,000
right() { "$cresnet" eval "$1" data.root="$data" train.device="$device" --json -q "${@:2}" | sed -n 's/.*"right": *\([0-9]*\).*/\1/p'; }
# bytes of the weights of a run
bytes() { wc -c <"$1/last/model.safetensors" | tr -d ' '; }

dense=$runs/walk-dense
echo "== dense"
train_run "$dense" configs/cifar10-resnet56.ini
whole=$(right "$dense/last")
echo "dense: $whole of 10000 right, $(bytes "$dense") bytes"
for target in ${TARGETS:-80 90 95 24}; do
    run=$runs/walk-$target
    if [ "$target" = 24 ]; then set -- prune.pattern=2:4 prune.sparsity=0.5; else set -- prune.sparsity=0.$target; fi
    echo "== $target"
    train_run "$run" configs/cifar10-resnet56-sparse.ini model.weights="$dense/last" "$@"
    kept=$(right "$run/last" --ema)
    plain=$(right "$run/last" --ema train.sparse=no)
    echo "$target: $kept of 10000 right with sparse kernels, $plain with dense ones, drop $(awk "BEGIN { printf \"%.2f\", ($whole - $kept) / 100 }") points, $(bytes "$run") bytes"
done

#!/usr/bin/env bash
# gpu-check.sh [PART ...]: builds cresnet on a machine with a GPU and verifies its results and its speed there.
# The table at the end has one row per result: PASS, FAIL, INFO (a number without a target) or SKIP. When a part fails or reaches
# its time limit, the table says so and the next part runs; what the limit of the call cuts is SKIP. Exit code 0: no row is FAIL.
# Parts in default order; each part has a time limit, and LIMIT_S limits the whole call:
#   build ops tests check resume eval init startup speed depths small infer memory offload spdnn sparse profile parity grads
#   imagenette photos sanitize cifar seeds; with several GPUs also: the parts of scripts/gpu/ranks.sh and scripts/gpu/imagenet-size.sh
# On request: packs (accuracy on CRESNET_PHOTOS as files and as smaller ones, PACKS; PACK_EPOCHS, SEEDS); loading and decode (speed and
#   equality of training on the JPEG files of CRESNET_JPEGS: scripts/gpu/loading.sh)
#
#   OUT               folder for results (build/gpu-check): table.txt, logs.txt, files.tar.gz (profiles, all losses and distances),
#                     cifar-run.tar.gz
#   LIMIT_S           seconds for the whole call (560)
#   BUILD             build folder (build/gpu); an existing build is used
#   CRESNET_DEPS      headers and libraries of iniparser, libpng, libjpeg and zlib, from scripts/gpu/pack-deps.sh (.gpu/deps)
#   CRESNET_CIFAR     list of folders that together hold CIFAR-10's binary files, .bin or .bin.xz (.gpu/c*)
#   CRESNET_WEIGHTS   folder of resnet20-cifar10.safetensors and resnet32-cifar10.safetensors (.gpu/weights)
#   CRESNET_MNIST     spdnn: train-images-idx3-ubyte, or its .gz (.gpu/mnist/); without it, synthetic digits are used
#   CRESNET_PHOTOS    folder with train/ and val/ of photos in class folders (.gpu/imagenette)
#   CRESNET_PEER      PyTorch program for comparison (.gpu/torch_resnet.py): PEER train 50 256 224 fp16-compile,bf16-compile
#   GPUS              numbers of GPUs ("1 2 4 8"); larger numbers than the machine has are ignored
#   PEER_DEPTHS       depths: network depths for which PyTorch is measured too ("18 101 152" takes about four minutes)
#   OFFLOAD_NETS      offload: networks ("ResNet-50 Wide-ResNet-50-2", batch 256; other networks, e.g. ResNet-101, use batch 128)
#   OFFLOAD_FRACTIONS offload: points of the curve, as fractions of the memory without a limit
#   OFFLOAD_PROBES    offload: steps of a bisection for the smallest memory within 1 % of full speed (0: no bisection)
#   CRESNET_RUN       cifar: cifar-run.tar.gz of an earlier call, to continue from (.gpu/cifar-run.tar.gz)
#   CUDA_ARCHS        architectures that the GPU code is compiled for (90-real; one architecture compiles fastest)
#   DEVICE=cpu        tests the scripts themselves on a machine without a GPU: small sizes, no targets
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
export OUT=${OUT:-$root/build/gpu-check} BUILD=${BUILD:-build/gpu} DEVICE=${DEVICE:-cuda}
export CRESNET_DEPS=${CRESNET_DEPS:-.gpu/deps} CRESNET_CIFAR=${CRESNET_CIFAR:-$(echo .gpu/c[0-9a-z]*/)} CRESNET_WEIGHTS=${CRESNET_WEIGHTS:-.gpu/weights}
export CRESNET_PHOTOS=${CRESNET_PHOTOS:-.gpu/imagenette} CRESNET_PEER=${CRESNET_PEER:-.gpu/torch_resnet.py}
export CRESNET_RUN=${CRESNET_RUN:-.gpu/cifar-run.tar.gz} CUDA_ARCHS=${CUDA_ARCHS:-90-real}
export GOMP_SPINCOUNT=10000 PYTHONUNBUFFERED=1
export WORK=${WORK:-$root/build/gpu-work} # logs and rows of this call; datasets and runs that later calls use
export FILES=$WORK/files
limit_s=${LIMIT_S:-560}

# Runs one part in its own shell, so that `timeout` can end it.
if [ "${1:-}" = --part ]; then
    . scripts/gpu/parts.sh
    "part_$2"
    exit $?
fi

# Time limit of each part, seconds
declare -A part_limit=([build]=400 [ops]=400 [tests]=240 [check]=300 [resume]=120 [eval]=90 [init]=150 [startup]=60 [speed]=260 [depths]=420
    [small]=120 [infer]=150 [memory]=400 [offload]=540 [spdnn]=400 [sparse]=540
    [profile]=90 [parity]=300 [grads]=420 [imagenette]=90 [photos]=240 [sanitize]=300
    [cifar]=530 [seeds]=550 [packs]=550 [loading]=580 [decode]=240 [ranktune]=400 [ranktests]=400 [launch]=200 [rankcifar]=540
    [ranks]=240 [ddp]=180 [packed]=180 [imagenet]=${IMAGENET_LIMIT:-270} [hosts]=180 [starts]=80 [batches]=180)
all="build ops tests check resume eval init startup speed depths small infer memory offload spdnn sparse profile parity grads imagenette photos sanitize cifar seeds"

[ $# -gt 0 ] || set -- $all
for part in "$@"; do
    [ -n "${part_limit[$part]:-}" ] || { echo "gpu-check.sh: unknown part $part; parts: ${!part_limit[*]}" >&2; exit 2; }
done
[ "$1" = build ] || [ -x "$BUILD/cresnet" ] || set -- build "$@"

mkdir -p "$OUT" "$FILES"
rm -f "$WORK"/*.log "$WORK"/*.rows "$FILES"/*
(. scripts/gpu/parts.sh && find_cifar "") # unpack data files now: a later call may have none

# Runs after every part, so that an interrupted call still leaves its results.
write_results() {
    cat "$WORK"/*.rows >"$OUT/table.txt" 2>/dev/null
    for log in "$WORK"/*.log; do
        echo "==== $(basename "$log" .log)"
        head -c 300000 "$log"
        [ "$(stat -c %s "$log")" -le 300000 ] || { echo; echo "[...]"; tail -c 700000 "$log"; }
    done >"$OUT/logs.txt" 2>/dev/null
    [ -z "$(ls "$FILES")" ] || tar -czf "$OUT/files.tar.gz" -C "$FILES" .
}

number=10
for part in "$@"; do
    export ROWS="$WORK/$number-$part.rows" log="$WORK/$number-$part.log"
    number=$((number + 1))
    left=$((limit_s - SECONDS - 5))
    now=$((part_limit[$part] < left ? part_limit[$part] : left))
    start=$SECONDS
    if [ $now -lt 10 ]; then
        printf '%-4s %-10s %-34s %s\n' SKIP "$part" "-" "time limit of this call reached" >>"$ROWS"
        write_results
        continue
    fi
    PART=$part PART_LIMIT=$now timeout -k 5 $now bash "$0" --part "$part" >>"$log" 2>&1 </dev/null
    code=$?
    if [ $code -eq 124 ] || [ $code -eq 137 ]; then
        result=FAIL why="stopped at its time limit, $now s"
        [ $now -ge "${part_limit[$part]}" ] || result=SKIP why="stopped after $now s: time limit of this call reached"
        printf '%-4s %-10s %-34s %s\n' $result "$part" "-" "$why" >>"$ROWS"
    fi
    if [ ! -s "$ROWS" ]; then
        printf '%-4s %-10s %-34s %s\n' FAIL "$part" "-" "exit code $code: $(tail -n 1 "$log" | cut -c 1-160)" >>"$ROWS"
    fi
    echo "-- $part: $((SECONDS - start)) s"
    if grep -q '^FAIL' "$ROWS"; then
        grep -nE 'error|FAIL|Error|warning:' "$log" | cut -c 1-220 | head -12
        tail -n 4 "$log" | cut -c 1-220
    fi
    write_results
    [ "$part" != build ] || [ -x "$BUILD/cresnet" ] || break
done

echo
cat "$OUT/table.txt"
echo "$(grep -c '^PASS' "$OUT/table.txt") passed, $(grep -c '^FAIL' "$OUT/table.txt") failed, $(grep -c '^SKIP' "$OUT/table.txt") skipped in $SECONDS s"
! grep -q '^FAIL' "$OUT/table.txt"

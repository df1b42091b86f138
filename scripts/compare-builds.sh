#!/usr/bin/env bash
# compare-builds.sh BEFORE AFTER [PART ...]: shows that two builds of cresnet compute the same results equally fast.
# Run it before a release and after every refactoring. BEFORE and AFTER are build folders; each holds the program
# `cresnet`, and may hold `steps_tool` in tests/. Both builds may be the same folder: this tests the script.
#
# It prints one table with PASS, FAIL, INFO and SKIP lines. The last line is "N passed, N failed, N skipped".
# Exit code: 0 nothing failed, 1 something failed, 2 wrong usage.
#
# Parts; without PART all except pytorch:
#   plan       number of ops, peak memory and host memory of planned programs are equal (offline H200, and the CPU)
#   results    networks and pruned networks trained for 20 steps by both programs: losses, checkpoints and
#              evaluation are bitwise identical; AFTER resumes a checkpoint of BEFORE
#   gradients  gradients of one step are bitwise identical (needs steps_tool in both builds)
#   speed      training and inference, both builds in turn (needs a GPU): at most SPEED_LOSS percent slower
#   pytorch    speed of PyTorch on the same GPU, for information
#
# Variables and their defaults:
#   DEVICE=cpu        cpu or cuda
#   CONFIGS           folder of configurations (BEFORE/configs if it exists, else configs/ of this tree). They should be
#                     the configurations of the older program: the newer program must still read them.
#   OUT=build/compare folder for table.txt and the logs of all commands
#   WORK=OUT/work     folder for checkpoints; it needs up to 15 GB with DEVICE=cuda and is removed at the end
#   CASES             regular expression: only these cases of `results`, e.g. '^resnet50'
#   PRECISIONS        fp32 on the CPU; "fp16 fp32 bf16" on a GPU
#   JOBS              cases of `results` that run at the same time (1 on the CPU, 5 on a GPU)
#   IMAGES            folder with train/ and val/ of JPEG files: adds a case that decodes and augments them
#   STR_BUDGET        STR_Budgets_ResNet50.csv; without it `speed` prunes every layer by 90 %
#   ROUNDS=3          timed runs of each build in `speed`; repeated once if the limit is missed
#   SPEED_LOSS=1      largest accepted loss of speed, in percent
#   PYTORCH_PEER      PyTorch program for the part pytorch (.gpu/torch_resnet.py)
#   LIMIT_S=560       seconds for everything; parts that would start later are skipped
#
# How two builds get the same kernels on a GPU
#   On a GPU cresnet times the candidate kernels once and then takes the fastest. Times vary, so two runs may choose
#   different kernels, and different kernels round differently. Two comparisons exclude this:
#   - With train.measure=no kernels are chosen by their order and by the roofline model. Both programs train 20 steps
#     from scratch this way.
#   - With measured times, BEFORE trains one step. Its checkpoint carries the kernel times (kernel_times.txt; costs.txt
#     in version 0.1). Both programs resume this checkpoint, so both choose by the same times. The cache file
#     of BEFORE cannot be handed over: its first line names the version and a hash of all kernel names, and a program
#     with other kernels drops the file. A checkpoint is read through the table of old and new kernel names.
#   `speed` uses the same route: AFTER resumes a checkpoint of BEFORE and saves it again. The kernel times in the new
#   checkpoint have the spelling of AFTER and become its cache file. A difference in speed then comes from the programs
#   and not from another choice of kernels.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; }

case ${1:-} in -h | --help) usage && exit 0 ;; esac
[ $# -ge 2 ] || { usage >&2; exit 2; }
before=$(realpath "$1") after=$(realpath "$2")
shift 2
for build in "$before" "$after"; do
    [ -x "$build/cresnet" ] || { echo "compare-builds.sh: $build/cresnet does not exist" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- plan results gradients speed
for part in "$@"; do
    case $part in plan | results | gradients | speed | pytorch) ;;
    *) echo "compare-builds.sh: unknown part $part" >&2; exit 2 ;;
    esac
done

DEVICE=${DEVICE:-cpu}
gpu() { [ "$DEVICE" = cuda ]; }
if [ -z "${CONFIGS:-}" ]; then
    if [ -d "$before/configs" ]; then CONFIGS=$before/configs; else CONFIGS=$root/configs; fi
fi
OUT=$(realpath -m "${OUT:-$root/build/compare}")
WORK=$(realpath -m "${WORK:-$OUT/work}")/compare-$$
JOBS=${JOBS:-$(gpu && echo 5 || echo 1)}
PRECISIONS=${PRECISIONS:-$(gpu && echo fp16 fp32 bf16 || echo fp32)}
ROUNDS=${ROUNDS:-3} SPEED_LOSS=${SPEED_LOSS:-1} LIMIT_S=${LIMIT_S:-560}
PYTORCH_PEER=${PYTORCH_PEER:-$root/.gpu/torch_resnet.py}
logs=$OUT/logs rows=$OUT/rows
export GOMP_SPINCOUNT=10000 PYTHONUNBUFFERED=1

rm -rf "$logs" "$rows"
mkdir -p "$WORK" "$logs" "$rows"
trap 'rm -rf "$WORK"' EXIT

# cuDNN and cuBLAS may exist only as Python wheels that PyTorch depends on. The programs search LD_LIBRARY_PATH.
if gpu; then
    wheels=$(python3 -c 'import nvidia; print(next(iter(nvidia.__path__)))' 2>/dev/null)
    for folder in "$wheels"/*/lib; do
        [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
fi

# ---- the table ----

# row RESULT PART WHAT NUMBERS: adds a line to the table. Parallel cases set row_file to a file of their own.
row_file=$rows/00
row() { printf '%-4s %-9s %-42s %s\n' "$@" | tee -a "$row_file" >&2; }
table() { cat "$rows"/* 2>/dev/null; }
time_left() { [ "$SECONDS" -lt "$LIMIT_S" ]; }

# compare PART WHAT MODE ARGUMENTS...: a PASS or FAIL line from compare_checkpoints.py
compare() {
    local part=$1 what=$2 text result=PASS
    shift 2
    text=$(python3 "$root/scripts/compare_checkpoints.py" "$@" 2>&1) || result=FAIL
    row $result "$part" "$what" "$text"
}

program() { if [ "$1" = before ]; then echo "$before/cresnet"; else echo "$after/cresnet"; fi; }
calculate() { awk "BEGIN { printf \"$1\", $2 }" </dev/null; }

# call LOG SIDE ARGUMENTS...: runs one of the two programs; everything it prints on standard error goes to the log.
call() {
    local log=$logs/$1.txt side=$2
    shift 2
    { echo "\$ cresnet ($side) $*"; } >>"$log"
    timeout -k 5 200 "$(program "$side")" "$@" 2>>"$log"
}

. "$root/scripts/compare_builds/results.sh" # part_results
. "$root/scripts/compare_builds/speed.sh" # part_speed, part_pytorch

# ---- plan ----

# Fields of `plan --json`. They do not depend on measured times, because the device is offline or is the CPU.
plan_case() { # NAME ARGUMENTS...
    local name=$1 side
    shift
    for side in before after; do
        call "plan-$name" $side plan "$@" data.kind=synthetic data.root= --json -q >"$WORK/plan-$side.json" || {
            row FAIL plan "$name" "$side: $(tail -n 1 "$logs/plan-$name.txt" | cut -c 1-160)"
            return
        }
    done
    compare plan "$name" json "$WORK/plan-before.json" "$WORK/plan-after.json" ops peak_bytes bound_bytes store_bytes \
        host_bytes flops
}

part_plan() {
    local net=$CONFIGS/resnet50.ini
    plan_case "ResNet-50 fp16 b256, H200" "$net" -b 256 train.precision=fp16 --target h200
    plan_case "... evaluation" "$net" -b 256 train.precision=fp16 --target h200 --which eval
    plan_case "... memory.limit 6 GiB" "$net" -b 256 train.precision=fp16 --target h200 memory.limit=6GiB
    plan_case "... fp32, offload only" "$net" -b 256 train.precision=fp32 --target h200 memory.limit=16GiB \
        memory.recompute=no
    plan_case "ResNet-20 fp16 b128, H200" "$CONFIGS/cifar10-resnet20.ini" -b 128 train.precision=fp16 --target h200
    plan_case "ResNet-50 fp32 b32, CPU" "$net" -b 32 train.precision=fp32 --device cpu
    plan_case "ResNet-50 2:4 fp16 eval, H200" "$net" -b 256 train.precision=fp16 --target h200 --which eval \
        prune.pattern=2:4 prune.scope=uniform prune.sparsity=0.5
}

# ---- gradients ----

steps_tool() { find "$1" -maxdepth 3 -name steps_tool -type f -perm -u+x | head -n 1; }

gradient_case() { # NAME ARGUMENTS...
    local name=$1 side tool
    shift
    for side in before after; do
        tool=$(steps_tool "${!side}")
        echo "\$ steps_tool ($side) $*" >>"$logs/gradients.txt"
        timeout 200 "$tool" "$@" data.root= "train.device=$DEVICE" train.measure=no train.threads=1 \
            --grads "$WORK/gradients-$side" >>"$logs/gradients.txt" 2>&1 ||
            { row FAIL gradients "$name" "$side: $(tail -n 1 "$logs/gradients.txt" | cut -c 1-160)"; return; }
    done
    compare gradients "$name" tensors "$WORK"/gradients-{before,after}-0.safetensors
    rm -f "$WORK"/gradients-*
}

part_gradients() {
    local precision
    if [ -z "$(steps_tool "$before")" ] || [ -z "$(steps_tool "$after")" ]; then
        row SKIP gradients steps_tool "not in both builds"
        return
    fi
    for precision in $PRECISIONS; do
        gradient_case "ResNet-20, $precision" "$CONFIGS/cifar10-resnet20.ini" data.kind=synthetic train.batch=16 \
            "train.precision=$precision"
        gradient_case "ResNet-50, $precision" "$CONFIGS/resnet50.ini" data.kind=synthetic train.batch=4 \
            data.image_size=64 data.eval_crop=64 model.classes=10 "train.precision=$precision"
        gradient_case "... unfused, SE, $precision" "$CONFIGS/resnet50.ini" data.kind=synthetic train.batch=4 \
            data.image_size=64 data.eval_crop=64 model.classes=10 model.excitation=yes train.fuse=no \
            "train.precision=$precision"
    done
}

# ---- everything ----

for side in before after; do
    row INFO build "$side" "$("$(program $side)" --version 2>&1 | awk '/^(cresnet|compiler|CUDA|NCCL|device)/ {
        $1 = $1; printf "%s%s", n++ ? "; " : "", $0 }')"
done
for part in "$@"; do
    case $part in plan) row_file=$rows/05 ;; results) row_file=$rows/09 ;; *) row_file=$rows/90-$part ;; esac
    start=$SECONDS
    if time_left; then "part_$part"; else row SKIP "$part" "$part" "no time left"; fi
    echo "-- $part: $((SECONDS - start)) s" >&2
    table >"$OUT/table.txt"
done

echo
table
count() { table | grep -c "^$1"; }
failed=$(count FAIL)
echo "$(count PASS) passed, $failed failed, $(count SKIP) skipped"
[ "$failed" -eq 0 ]

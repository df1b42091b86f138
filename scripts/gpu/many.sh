#!/usr/bin/env bash
# many.sh [PART ...]: measures cresnet on all GPUs of a machine, in one call of at most LIMIT_S seconds (530). Each part has a time limit; what no longer
# fits is a SKIP row and counted. Rows are PASS or FAIL against a bar, INFO without one; exit code 0: no row is FAIL. Without PyTorch, photos or root
# the rows that need them are SKIP; without a second GPU nothing is built or measured.
#
# Parts in the order of their weight (about this many seconds on eight GPUs); BUILD is built first if it does not exist:
#   ranks      120   batch 256 a GPU, peer copies and NCCL: on four GPUs at least 96.5 % of four times the slowest GPU alone, on eight 96 % of eight times
#   ddp        100   PyTorch's DistributedDataParallel, compiled, in the same call: at least 1.6 times its speed
#   packed      80   ResNet-50 from packed JPEGs, --jpeg=256 and unchanged: on eight H200 at least 70,000 img/s, on eight H100 62,000
#   imagenet   170   a dataset of ImageNet's size from files: speed, host memory, evaluation, checkpoints; a rank is killed and the run resumed, and the
#                    result is bitwise that of a run that was stopped there. IMAGENET_S=180: a longer run
#   hosts       60   the commands of docs/tutorial/two-machines.md on two network namespaces; NCCL through sockets
#   starts      40   time from process start to the first step
#   batches    100   SyncBN; batches of 128, 64 and 32
# All of it takes longer than one call of nine minutes: `many.sh starts batches` measures the rest, or LIMIT_S=900 all of it.
#
#   CRESNET_JPEGS   folder of JPEG photos for packed and imagenet (.gpu/jpegs)
#   OUT, BUILD, CRESNET_DEPS, CUDA_ARCHS, DEVICE=cpu   as in scripts/gpu-check.sh, which runs the parts (scripts/gpu/ranks.sh, imagenet-size.sh)
set -u
cd "$(dirname "$0")/../.." || exit 1
count=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c .)
[ "${DEVICE:-cuda}" = cuda ] || count=${CPU_RANKS:-4}
[ "$count" -ge 2 ] || { echo "many.sh: SKIP: needs 2 GPUs, found $count"; exit 0; }
case $count in 8) default="1 4 8" ;; *) default="1 $count" ;; esac
export GPUS=${GPUS:-$default} LIMIT_S=${LIMIT_S:-530} IMAGENET_LIMIT=$((${IMAGENET_S:-60} + 210))
[ $# -gt 0 ] || set -- ranks ddp packed imagenet hosts starts batches
exec scripts/gpu-check.sh "$@"

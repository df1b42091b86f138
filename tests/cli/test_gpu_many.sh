#!/usr/bin/env bash
# test_gpu_many.sh: scripts/gpu/many.sh on machines of one, four and eight GPUs that programs imitate: which numbers of GPUs are measured, the bars,
# what is skipped, and a call with too little time. No GPU is needed.
. "$(dirname "$0")/../harness/support.sh"

mkdir -p fake path
# A GPU alone reaches 12000 img/s, GPU 1 only 10000; several reach PERCENT of 10000 each, NCCL 90 %
cat >fake/cresnet <<'SH2'
#!/bin/sh
n=1 percent=$PERCENT
while [ $# -gt 0 ]; do
    case $1 in --gpus) n=$2 ;; ranks.transport=nccl) percent=90 ;; esac
    shift
done
echo "$n" >>"$ASKED"
[ "$n" -gt 1 ] || { percent=120; [ "${CUDA_VISIBLE_DEVICES:-}" != 1 ] || percent=100; }
echo "{\"images_per_s\": $((n * 100 * percent)), \"time_to_first_step_s\": 4.5, \"start\": \"device 1.00 s\"}"
SH2
printf '#!/bin/sh\nfor i in $(seq %s); do echo NVIDIA H200; done\n' '"$COUNT"' >path/nvidia-smi
chmod +x fake/cresnet path/nvidia-smi
export ASKED=$work/asked.txt
many() { # many COUNT PERCENT PART...: sets code, said
    rm -f "$ASKED"
    said=$(COUNT=$1 PERCENT=$2 PATH=$work/path:$PATH OUT=$work/out WORK=$work/parts BUILD=$work/fake CRESNET_CIFAR='' CRESNET_JPEGS=$work/none "$source_dir/scripts/gpu/many.sh" "${@:3}" 2>&1)
    code=$?
}
totals() { echo "$said" | tail -n 1 | sed 's/ in [0-9]* s$//'; }

many 8 97 ranks batches starts
is "eight GPUs: exit code" $code 0
is "eight GPUs: totals" "$(totals)" "3 passed, 0 failed, 0 skipped"
is "eight GPUs: numbers of GPUs" "$(sort -nu asked.txt | paste -sd' ')" "1 4 8"
has "each GPU alone" "$said" "12000 10000 12000 12000 12000 12000 12000 12000 img/s"
has "the bar" "$said" "77600 img/s, 97.0 % of 8 times GPU 1 (10000), bar 96 %, goal 98 %"
has "NCCL has no bar" "$said" "INFO ranks      batch 256, 4 GPUs, nccl            36000 img/s, 90.0 % of 4 times GPU 1"
has "SyncBN" "$said" "batch 256, 8 GPUs, sync_bn-nccl"
has "batch 32" "$said" "batch 32, 8 GPUs, peer"
has "start" "$said" "4.5 s; device 1.00 s"
many 4 96 ranks
is "four GPUs below the bar: exit code" $code 1
has "four GPUs below the bar" "$said" "FAIL ranks      batch 256, 4 GPUs, peer            38400 img/s, 96.0 % of 4 times GPU 1 (10000), bar 96.5 %"
many 4 97 packed imagenet
is "no photos" "$(totals)" "0 passed, 0 failed, 2 skipped"
for count in 0 1; do
    many $count 97
    is "$count GPUs" "$code $said" "0 many.sh: SKIP: needs 2 GPUs, found $count"
done
LIMIT_S=20 many 8 97 ranks batches
is "too little time: exit code" $code 0
is "too little time: totals" "$(totals)" "0 passed, 0 failed, 2 skipped"
is "nothing ran" "$(cat asked.txt 2>/dev/null)" ""
sum_up

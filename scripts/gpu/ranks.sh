# ranks.sh: the parts of gpu-check.sh that need several GPUs of one host. parts.sh sources this file.
#   GPUS         numbers of GPUs to measure, in increasing order ("1 2 4 8"); larger numbers than the machine has are ignored
#   CRESNET_DDP  PyTorch program for comparison (.gpu/torch_ddp.py): torchrun --nproc-per-node N DDP BATCH...

gpu_count() { if gpu; then nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c .; else echo 4; fi; }
gpu_numbers() {
    local n
    for n in ${GPUS:-1 2 4 8}; do [ "$n" -gt "$(gpu_count)" ] || echo "$n"; done
}
# ranks_option N: the option of cresnet that starts N ranks
ranks_option() { if gpu; then echo "--gpus $1"; else echo "--ranks $1"; fi; }
need_gpus() { # N WHAT
    [ "$(gpu_count)" -ge "$1" ] && return
    row SKIP "$2" "needs $1 GPUs, found $(gpu_count)"
    return 1
}

# Total images/s of all GPUs.
many_rate() { # N BATCH VALUES...
    local n=$1 batch=$2 net=configs/resnet50.ini steps=60
    shift 2
    gpu || { net=configs/cifar10-resnet20.ini; steps=3; batch=8; }
    # shellcheck disable=SC2046
    "$bin" bench step $net -b "$batch" data.kind=synthetic "train.precision=$(gpu && echo fp16 || echo fp32)" --steps $steps "$(device_option)" \
        --json -q $(ranks_option "$n") "$@" | tee -a /dev/stderr | field images_per_s
}

# The rate from PyTorch's line: "b256: one GPU 6679 img/s, 4 GPUs 25394 img/s, efficiency 0.950"
ddp_of() { # N BATCH
    sed -n "s/^b$2: .*, $1 GPUs \([0-9]*\) img.*/\1/p" "$WORK/ddp.txt" 2>/dev/null | tail -n 1
}

# cresnet is measured twice with each number of GPUs, the second time in decreasing order; the higher rate counts. PyTorch is measured once.
part_ranks() {
    local numbers n batch rate base target best ddp_program=${CRESNET_DDP:-.gpu/torch_ddp.py}
    numbers=$(gpu_numbers)
    need_gpus 2 "several GPUs" || return
    declare -A best
    for batch in 256 64; do
        for n in $numbers $(echo "$numbers" | tac); do
            rate=$(many_rate "$n" $batch ${RANKS_VALUES:-})
            is_number "$rate" || { row FAIL "batch $batch, $n GPUs" "no result"; continue; }
            holds "${best[$batch-$n]:-0} > $rate" || best[$batch-$n]=$rate
        done
    done
    rm -f "$WORK/ddp.txt"
    for n in $(echo "$numbers" | tac); do
        [ "$n" -gt 1 ] && gpu && [ -f "$ddp_program" ] && command -v torchrun >/dev/null || continue
        timeout 240 torchrun --nproc-per-node "$n" "$ddp_program" $([ "$n" -lt 4 ] || echo 64) 256 | tee -a "$WORK/ddp.txt"
    done
    for batch in 256 64; do
        base=${best[$batch-1]:-}
        for n in $numbers; do
            rate=${best[$batch-$n]:-}
            [ -n "$rate" ] && [ -n "$base" ] || continue
            [ "$n" -gt 1 ] || { row INFO "ResNet-50 fp16, batch $batch, one GPU" "$rate img/s"; continue; }
            target=$([ $batch = 256 ] && echo 0.98 || echo 0.93)
            ddp=$(ddp_of "$n" $batch)
            ok=0
            holds "$rate >= $target * $n * $base" || ok=1
            [ -z "$ddp" ] || [ $batch != 256 ] || holds "$rate >= 1.4 * $ddp" || ok=1
            verdict $ok "ResNet-50 fp16, batch $batch, $n GPUs" "$rate img/s, efficiency $(calc %.4f "$rate / ($n * $base)") (target $target); PyTorch DDP ${ddp:-not measured}$([ -z "$ddp" ] || calc ", ratio %.3f" "$rate / $ddp")"
        done
    done
    [ ! -f "$WORK/ddp.txt" ] || cp "$WORK/ddp.txt" "$FILES/"
}

# Effect of the bucket size, the transport, the type of the all-reduce and the thread blocks of NCCL; no targets.
part_ranktune() {
    local n values rate
    n=$(gpu_numbers | tail -n 1)
    need_gpus 2 "settings of several GPUs" || return
    for values in "" "ranks.transport=nccl" "ranks.transport=peer ranks.bucket_mib=4" "ranks.transport=peer ranks.bucket_mib=12" ranks.transport=peer "ranks.transport=peer ranks.bucket_mib=50" \
        ranks.bucket_mib=1000 ranks.reduce=fp16 ranks.reduce=bf16 ranks.blocks=2 ranks.blocks=4 ranks.blocks=8 ranks.blocks=16 \
        model.sync_bn=yes; do
        for batch in 256 64; do
            # shellcheck disable=SC2086
            rate=$(many_rate "$n" $batch $values)
            row INFO "batch $batch, $n GPUs ${values:-default}" "$rate img/s"
        done
    done
    for values in NCCL_GRAPH_MIXING_SUPPORT=0 NCCL_LEGACY_CUDA_REGISTER=1; do
        for batch in 256 64; do
            rate=$(export "$values" && many_rate "$n" $batch)
            row INFO "batch $batch, $n GPUs $values" "$rate img/s"
        done
    done
}

# Tests of two GPUs: results against one GPU, ranks that die; then test_checkops of the all-reduce op.
part_ranktests() {
    local sums code
    need_gpus 2 "tests of two GPUs" || return
    timeout $((PART_LIMIT - 30)) "$BUILD/tests/test_cuda_ranks" 2>&1 | tee "$WORK/ranktests.txt"
    code=${PIPESTATUS[0]}
    sums=$(grep -E '^[0-9]+ passed' "$WORK/ranktests.txt" | tail -n 1)
    test_verdict "$code" "test_cuda_ranks" "${sums:-exit code $code}; $(grep -E '^ {4}(two GPUs|rank 0)' "$WORK/ranktests.txt" | sed 's/^ *//' | tr '\n' ';')"
    "$BUILD/tests/test_checkops" --device "$DEVICE" all_reduce
    verdict $? "checkops all_reduce" "one rank"
}

# ---- the same run by every launcher ----

# A run of 30 steps, for comparing losses.
launched() { # NAME COMMAND... -- the launcher and its options
    local name=$1 run=$WORK/launch/$1
    shift
    rm -rf "$run"
    timeout 100 "$@" "$bin" train configs/cifar10-resnet20.ini data.kind=synthetic data.train_images=4096 data.val_images=1000 -b 32 --steps 30 train.log_every=1 \
        train.measure=no train.threads=1 "train.precision=$(gpu && echo fp16 || echo fp32)" "$(device_option)" -o "$run" ${launch_values:-} 2>&1 | tee "$WORK/launch/$name.txt"
    sed -n 's/.*"event":"train".*"loss":\([^,]*\),.*/\1/p' "$run/log.jsonl" >"$WORK/launch/$name.losses"
}
same_run() { # WHAT NAME
    cmp -s "$WORK/launch/gpus.losses" "$WORK/launch/$2.losses" && [ "$(wc -l <"$WORK/launch/$2.losses")" = 30 ]
    verdict $? "$1" "$(wc -l <"$WORK/launch/$2.losses") steps, last loss $(tail -n 1 "$WORK/launch/$2.losses") ($(tail -n 1 "$WORK/launch/gpus.losses") by --gpus)"
}

part_launch() {
    local port=29611 i
    need_gpus 2 "launchers" || return
    mkdir -p "$WORK/launch"
    launch_values=$(ranks_option 2) launched gpus env
    grep -q . "$WORK/launch/gpus.losses"
    verdict $? "--gpus 2" "$(wc -l <"$WORK/launch/gpus.losses") steps, evaluation of $(sed -n 's/.*"event":"eval".*"images":\([0-9]*\),.*/\1/p' "$WORK/launch/gpus/log.jsonl") images"
    if command -v torchrun >/dev/null; then
        launched torchrun torchrun --no_python --nproc_per_node 2 --master_port 29631
        same_run "torchrun --no-python" torchrun
    else
        row SKIP "torchrun" "not installed"
    fi
    if command -v mpirun >/dev/null; then
        launched mpirun mpirun --allow-run-as-root --oversubscribe -n 2
        same_run "mpirun" mpirun
    else
        row SKIP "mpirun" "not installed"
    fi
    # Two launch groups on one machine imitate two hosts: the rendezvous uses the external address, and NCCL must use the network.
    mkdir -p "$WORK/launch/pair"
    for i in 1 0; do
        (
            export RANK=$i WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=$i MASTER_PORT=$port
            export CUDA_VISIBLE_DEVICES=$i NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
            MASTER_ADDR=$(hostname -I 2>/dev/null | cut -d' ' -f1)
            export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
            if [ $i = 0 ]; then launched pair env; else launched pair1 env; fi
        ) &
    done
    wait
    same_run "two launch groups" pair
}

# ---- CIFAR-10 on two GPUs ----

part_rankcifar() {
    local seed run tops
    need_gpus 2 "CIFAR-10 on two GPUs" || return
    find_cifar data_batch_5.bin && find_cifar test_batch.bin && [ "$(ls "$WORK"/cifar10/data_batch_?.bin | wc -l)" = 5 ] ||
        { row SKIP "CIFAR-10 on two GPUs" "files of CIFAR-10 are missing in CRESNET_CIFAR ($CRESNET_CIFAR)"; return; }
    mkdir -p "$WORK/rank-seeds"
    for seed in ${SEEDS:-1 2 3}; do
        run=$WORK/rank-seeds/$seed
        grep -q '"done"' "$run/log.jsonl" 2>/dev/null && continue
        # shellcheck disable=SC2046
        "$bin" train configs/cifar10-resnet20.ini data.root="$WORK/cifar10" "$(device_option)" -b 64 data.workers=8 "train.precision=$(gpu && echo fp16 || echo fp32)" train.keep=1 \
            "train.seed=$seed" --resume auto -q -o "$run" $(ranks_option 2) $(gpu || echo --steps 2)
    done
    tops=$(for run in "$WORK"/rank-seeds/*; do grep '"event":"eval"' "$run/log.jsonl" | tail -n 1 | field top1; done)
    grep -h '"event":"eval"' "$WORK"/rank-seeds/*/log.jsonl | grep -vq '"images":10000' &&
        row FAIL "evaluation on two GPUs" "not 10,000 images each time" || row PASS "evaluation on two GPUs" "10,000 images each time"
    # 92.42 % is the mean of seeds on one GPU (README.md). The target is three standard deviations of the mean of three seeds below it.
    holds "$(echo "$tops" | awk '{ s += $1 } END { print NR ? s / NR : 0 }') >= 0.921"
    verdict $? "CIFAR-10, ResNet-20, two GPUs" "top-1 $(echo $tops)"
}

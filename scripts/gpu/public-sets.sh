#!/usr/bin/env bash
# public-sets.sh STEP...: trains the rows and the variants of Imagewoof2, Tiny-ImageNet and CIFAR-10 on a machine with GPUs, in several short calls.
# Data arrive in pieces; trainings run in sessions of their own and go on between calls.
#   pieces DIR DATA       on any machine: makes the pieces (at most 50 MB) and SUMS in DIR from DATA/imagewoof2-320 and DATA/tiny-imagenet-200, which
#                         datasets/fetch-imagewoof.sh and fetch-tiny-imagenet.sh write; CIFAR-10's pieces are its .bin files as .xz (xz needs ten minutes)
#   in                    takes the pieces in PIECES (.gpu/pieces; sums in .gpu/SUMS); unpacks a set when it is complete
#                         (W1 to W8: Imagewoof2; T1 to T3: Tiny-ImageNet; *_batch*.bin.xz: CIFAR-10)
#   prime QUEUE           alone, two steps of each network of a queue: measures kernels, so that no training does it beside others
#   start QUEUE GPU N     works a queue off in the background, N trainings at once on that GPU; more starts of one queue share it
#   rate QUEUE            seconds of the first training of a queue: alone, two at once, three at once
#   wait S                waits until all queues are done, at most S seconds
#   stop                  ends all trainings after their step; they save, and the next start resumes them
#   torch QUEUE           the first seed of each configuration of a queue by PyTorch (tests/tools/torch_recipe.py), alone
#   out                   results so far; $OUT/results.txt, $OUT/logs.tar.xz (log.jsonl of all trainings)
#   list QUEUE            the trainings of a queue: NAME|CONFIG|SEED|VALUES
# Queues: v80 (variants of Imagewoof2 at 128 px), w128 w192 w128-5 w192-80 ... (the six rows, five seeds), tiny18 tiny50 (plain), tinybest18
# tinybest50, cifar94 cifar96 cifarv, prune0 (a dense ResNet-56), prune. Work off one queue per GPU with one training at a time: two
# trainings at once on a GPU take three times as long each.
#   CRESNET   the program (build/gpu/cresnet)           WORK    data and trainings (build/public-sets)
#   WOPT_80 TOPT_18 COPT_94 COPT_96   values that the variants chose, for the rows of Imagewoof2, the best ones of Tiny-ImageNet, and CIFAR-10
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
E=$(realpath -m "${WORK:-build/public-sets}") P=${PIECES:-.gpu/pieces} sums=.gpu/SUMS
cores=$(nproc) gpus=$(nvidia-smi -L 2>/dev/null | wc -l); [ "$gpus" -gt 0 ] || gpus=1
mkdir -p "$E/pieces" "$E/runs" "$E/claim" "$E/cache" "${OUT:=$E/out}"
site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
export LD_LIBRARY_PATH=$site/nvidia/cudnn/lib:$site/nvidia/cu13/lib:$site/nvidia/nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CRESNET_CACHE=$E/cache
export GOMP_SPINCOUNT=10000 PYTHONUNBUFFERED=1
bin=${CRESNET:-build/gpu/cresnet}
say() { echo "[$SECONDS s] $*"; }

# ---- data ----
step_pieces() { # DIR DATA
    local raw
    mkdir -p "$1"
    raw=$(mktemp -d "$1/raw.XXXX")
    "$bin" data pack "$2/tiny-imagenet-200" "$raw/tiny-packed" -q data.kind=csv >/dev/null
    tar --owner=0 --group=0 --mtime=@0 -C "$raw" -cf "$raw/tiny.tar" tiny-packed
    tar --sort=name --owner=0 --group=0 --mtime=@0 -C "$2" -cf "$raw/woof320.tar" imagewoof2-320
    split -n 8 -d -a 1 --numeric-suffixes=1 "$raw/woof320.tar" "$1/W"
    split -n 3 -d -a 1 --numeric-suffixes=1 "$raw/tiny.tar" "$1/T"
    for f in 1 2 3; do xz -2 "$1/T$f"; done
    "$bin" data pack "$2/imagewoof2-320" "$raw/woof160" --jpeg=160,90 -q >/dev/null
    (cd "$raw" && sha256sum ./*.tar woof160/* | sed 's|\./||') >"$1/SUMS"
    (cd "$1" && sha256sum [WT][0-9]*) >>"$1/SUMS"
    rm -rf "$raw"
}
complete() { local f; for f; do [ -f "$E/pieces/$f" ] || return 1; done; }
sum_of() { sha256sum <"$1" | cut -d' ' -f1; }
# has_sum FILE NAME: the sum is the one in SUMS; a name that SUMS lacks passes (CIFAR-10: xz has checks of its own)
has_sum() {
    local want
    want=$(awk -v f="$2" '$2 == f { print $1 }' $sums)
    [ -z "$want" ] || [ "$(sum_of "$1")" = "$want" ] || { say "wrong sum: $2"; return 1; }
}
unxz() { python3 -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))" "$1" "$2"; }
step_in() {
    local f new=$E/new
    for f in "$P"/*; do [ ! -f "$f" ] || { has_sum "$f" "$(basename "$f")" && cp "$f" "$E/pieces/"; }; done
    rm -rf "$new"; mkdir -p "$new"
    if [ ! -d "$E/woof320" ] && complete W1 W2 W3 W4 W5 W6 W7 W8; then
        cat "$E"/pieces/W[1-8] >"$new/w.tar"
        has_sum "$new/w.tar" woof320.tar && tar -xf "$new/w.tar" -C "$new" &&
            "$bin" data pack "$new/imagewoof2-320" "$new/woof160" --jpeg=160,90 -j "$cores" -q >/dev/null &&
            "$bin" data pack "$new/imagewoof2-320" "$new/woof320p" -j "$cores" -q >/dev/null || return
        # The same JPEG library makes the same files; with another one the photos differ by rounding.
        for f in train val; do has_sum "$new/woof160/$f.crpk" "woof160/$f.crpk"; done
        mv "$new/woof160" "$new/woof320p" "$E"; mv "$new/imagewoof2-320" "$E/woof320"
    fi
    if [ ! -d "$E/tiny" ] && complete T1.xz T2.xz T3.xz; then
        for f in 1 2 3; do unxz "$E/pieces/T$f.xz" "$new/T$f" & done; wait
        cat "$new"/T[123] >"$new/t.tar"
        has_sum "$new/t.tar" tiny.tar && tar -xf "$new/t.tar" -C "$new" && mv "$new/tiny-packed" "$E/tiny"
    fi
    if [ ! -d "$E/cifar" ] && complete data_batch_{1,2,3,4,5}.bin.xz test_batch.bin.xz; then
        mkdir "$new/cifar"
        for f in "$E"/pieces/*_batch*.bin.xz; do unxz "$f" "$new/cifar/$(basename "$f" .xz)" & done; wait
        mv "$new/cifar" "$E/cifar"
    fi
    rm -rf "$new"
    say "sets: $(cd "$E" && ls -d woof160 woof320 tiny cifar 2>/dev/null | tr '\n' ' ')pieces: $(cd "$E/pieces" && echo *)"
}
data_of() { # CONFIG: the values that name its data; fails when it is not here
    case $1 in
        imagewoof-128*) [ -d "$E/woof160" ] && echo "data.root=$E/woof160" ;;
        imagewoof-192*) [ -d "$E/woof320" ] && echo "data.root=$E/woof320" ;;
        tiny*) [ -d "$E/tiny" ] && echo "data.kind=packed data.root=$E/tiny" ;;
        cifar*) [ -d "$E/cifar" ] && echo "data.root=$E/cifar" ;;
    esac
}

# ---- queues: NAME|CONFIG|SEED|VALUES ----
seeds() { local name=$1 config=$2 s; shift 2; for s in $S; do echo "$name|$config|$s|$*"; done; }
muon="optim.kind=muon optim.momentum=0.95 optim.beta2=0.99 optim.weight_decay=0.05 optim.bn_bias_factor=1"
acdc="prune.schedule=acdc prune.end=120"
queue() {
    local S="1 2"
    case $1 in
        v80)
            S=1
            seeds v80-0base imagewoof-128-80
            seeds v80-1blur imagewoof-128-80 model.blur_pool=yes ;;
        w128* | w192*) # w128: all three; w128-20: only that of 20 epochs
            local e size=${1:1:3} epochs="5 20 80"; [ "$1" = "w$size" ] || epochs=${1#*-}
            S="1 2 3 4 5"; for e in $epochs; do o=WOPT_$e; seeds w$size-$e imagewoof-$size-$e ${!o:-}; done ;;
        tiny18) S="1 2 3"; seeds tiny18 tiny-imagenet-resnet18 ;;
        tiny50) S=1; seeds tiny50 tiny-imagenet-resnet50 ;;
        tinybest18) S="1 2 3"; seeds tinybest18 tiny-imagenet-resnet18-modern ${TOPT_18:-} ;;
        tinybest50) S=1; seeds tinybest50 tiny-imagenet-resnet50-modern ${TOPT_50:-} ;;
        cifar94) S="1 2 3 4 5"; seeds cifar94 cifar10-94 ${COPT_94:-} ;;
        cifar96) S="1 2 3 4 5"; seeds cifar96 cifar10-96 ${COPT_96:-} ;;
        cifarv)
            S="1 2 3 4 5"
            seeds cifarv-96x70 cifar10-96 $muon optim.lr=0.012 train.epochs=70 data.image_sizes=24@0,32@23 ;;
        prune0) S=1; seeds dense56 cifar10-resnet56 ;;
        prune) S="1 2 3 4 5"; [ -d "$E/runs/dense56-1/best" ] || { echo "prune0 first" >&2; return; }
            dense=model.weights=$E/runs/dense56-1/best
            for S in $S; do for p in 0.9 0.95; do # 10 and 10 epochs: as in docs/experiments/sparse.md; 9 and 1: all weights briefly active again
                seeds acdc-$p cifar10-resnet56-sparse $dense prune.sparsity=$p $acdc prune.sparse_epochs=10 prune.dense_epochs=10
                seeds brief-$p cifar10-resnet56-sparse $dense prune.sparsity=$p $acdc prune.sparse_epochs=9 prune.dense_epochs=1
            done; done ;;
        *) echo "no queue $1" >&2 ;;
    esac
}
# train NAME CONFIG SEED WORKERS VALUES...: into runs/NAME-SEED
train() {
    local run=$E/runs/$1-$3 config=$2 seed=$3 w=$4 where; shift 4
    where=$(data_of "$config") || return 3
    # EXTRA: a network and images that a test can train on a CPU
    "$bin" train "configs/$config.ini" $where train.precision="${PRECISION:-fp16}" data.workers="$w" train.seed="$seed" train.tensorboard=no \
        train.keep=1 "$@" ${EXTRA:-} --resume auto -q -o "$run"
}
step_prime() {
    queue "$1" | awk -F'|' '!seen[$2 $4]++' | while IFS='|' read -r name config seed values; do
        train "prime$$" "$config" "$seed" "$cores" $values --steps 2 </dev/null >>"$E/prime.log" 2>&1 || say "prime $name: $(tail -1 "$E/prime.log")"
        rm -rf "$E/runs/prime$$-$seed"
    done
    say "primed $1"
}
top() {
    awk '/"event":"(eval|final_tta)"/ { line = $0 }
        END { match(line, /"top1":[0-9.]+/); print 100 * substr(line, RSTART + 7, RLENGTH - 7) }' "$1/log.jsonl"
}
work() { # QUEUE GPU WORKERS: one slot
    local name config seed values begin run sizes said e
    export CUDA_VISIBLE_DEVICES=$2
    while IFS='|' read -r name config seed values; do
        run=$E/runs/$name-$seed
        [ ! -f "$E/stop" ] || return
        data_of "$config" >/dev/null || continue
        mkdir "$E/claim/$name-$seed" 2>/dev/null || continue
        begin=$(date +%s.%N)
        if train "$name" "$config" "$seed" "$3" $values </dev/null >>"$E/runs/$name-$seed.out" 2>&1 && grep -qs '"event":"done"' "$run/log.jsonl"; then
            echo "$name $seed $(top "$run") $(date +%s.%N) $begin $2" |
                awk '{ printf "%s seed %s: %.2f %% in %.1f s, gpu %s\n", $1, $2, $3, $4 - $5, $6 }' >>"$E/results.txt"
            case $config in imagewoof-128*) sizes="128 144" ;; imagewoof-192*) sizes="192 216" ;; *) sizes= ;; esac
            said= # how much of the photo the evaluation shows: costs a second each, decides data.eval_resize
            for e in $sizes; do
                said="$said $e: $("$bin" eval "$run" data.eval_resize="$e" --json -q 2>/dev/null </dev/null | sed 's/.*"top1": *\([0-9.]*\).*/\1/')"
            done
            [ -z "$said" ] || echo "$name seed $seed eval_resize$said" >>"$E/results.txt"
            case $name in dense56*) ;; *) rm -rf "$run"/step-* "$run"/best "$run"/last ;; esac
        else
            [ -f "$E/stop" ] || echo "$name seed $seed FAILED: $(tail -1 "$run.out")" >>"$E/results.txt"
            [ ! -f "$E/stop" ] || rmdir "$E/claim/$name-$seed" # the next start resumes it
        fi
    done < <(queue "$1")
}
step_start() { # QUEUE GPU SLOTS
    local i w=$((cores / gpus / $3)); rm -f "$E/stop"
    for i in $(seq "$3"); do SLOT_OF="$1 $2 $w" setsid nohup bash "$0" slot >/dev/null 2>&1 & sleep 0.2; done
    say "started $1 on GPU $2, $3 at once, $w loading threads each"
}
step_rate() { # QUEUE
    local line name config seed values n i begin
    line=$(queue "$1" | head -1); IFS='|' read -r name config seed values <<<"$line"
    for n in 1 2 3; do
        begin=$(date +%s.%N)
        for i in $(seq $n); do train "rate$n-$i" "$config" "$seed" $((cores / n)) $values </dev/null >"$E/rate.log" 2>&1 & done; wait
        echo "$name $(date +%s.%N) $begin $n" |
            awk '{ printf "rate %s: %d at once: %.1f s, %.1f s a training\n", $1, $4, $2 - $3, ($2 - $3) / $4 }' | tee -a "$E/results.txt"
        rm -rf "$E"/runs/rate*
    done
}
step_torch() { # QUEUE
    queue "$1" | awk -F'|' '!seen[$2]++' | while IFS='|' read -r name config seed values; do
        case $config in imagewoof-128*) d=$E/woof160 ;; imagewoof-192*) d=$E/woof320p ;; *) d=$E/tiny ;; esac
        set -- "configs/$config.ini" data.kind=packed data.root="$d" data.workers="$cores"
        said=$(timeout "${TORCH_LIMIT:-540}" python3 tests/tools/torch_recipe.py "$@" $values 2>"$E/torch.log" </dev/null || tail -2 "$E/torch.log")
        echo "torch $name: $said" | tee -a "$E/results.txt"
    done
}
step_wait() {
    local end=$((SECONDS + $1))
    while [ $SECONDS -lt $end ] && pgrep -f "public-sets.sh slot" >/dev/null; do sleep 1; done
    say "still running: $(pgrep -fa -- "-o $E/runs/" | sed 's/.*-o //' | xargs -n1 basename 2>/dev/null | tr '\n' ' ')"
}
step_stop() { touch "$E/stop"; pgrep -f -- "-o $E/runs/" | xargs -r kill -INT; sleep 5; step_wait 20; }
step_out() {
    grep -v eval_resize "$E/results.txt" 2>/dev/null
    awk '/ seed .* % in / { n[$1]++; t[$1] += $4; s[$1] += $7 }
        / eval_resize / { for (i = 5; i < NF; i += 2) { k = $1 " eval_resize " $i; n[k]++; t[k] += 100 * $(i + 1) } }
        END { for (k in n) printf "mean %s %.2f of %d%s\n", k, t[k] / n[k], n[k], s[k] ? sprintf(", %.1f s", s[k] / n[k]) : "" }' \
        "$E/results.txt" 2>/dev/null | sort
    cp "$E/results.txt" "$OUT/" 2>/dev/null
    (cd "$E/runs" && tar -cJf "$OUT/logs.tar.xz" $(find . -name log.jsonl -o -name '*.out') 2>/dev/null)
    cp "$E"/cache/kernel-times* "$OUT/" 2>/dev/null
    for f in "$E"/runs/*/log.jsonl; do
        [ ! -f "$f" ] || grep -q '"done"' "$f" || echo "$(basename "$(dirname "$f")"): $(tail -1 "$f" | cut -c1-150)"
    done
    nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
}
[ "${1:-}" != slot ] || { work $SLOT_OF; exit; }
[ "${1:-}" != list ] || { queue "$2"; exit; }
while [ $# -gt 0 ]; do
    case $1 in
        in | stop | out) step_"$1"; shift ;;
        prime | rate | torch | wait) step_"$1" "$2"; shift 2 ;;
        pieces) step_pieces "$2" "$3"; shift 3 ;;
        start) step_start "$2" "$3" "$4"; shift 4 ;;
        *) echo "unknown step $1"; exit 2 ;;
    esac
done

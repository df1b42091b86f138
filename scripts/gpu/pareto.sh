#!/usr/bin/env bash
# pareto.sh: accuracy against inference speed of dense and pruned networks in fp32, fp16 and int8, one GPU: ResNet-20, 32, 44 and 56 on CIFAR-10, and
# ResNet-56 with fewer channels, 2:4, blocks and single weights.
#
#   WORK=DIR scripts/gpu/pareto.sh speed                  images/s of batches of 1000 and of 1
#   CIFAR=DIR WORK=DIR scripts/gpu/pareto.sh accuracy     trains, prunes and evaluates
#   WORK=DIR scripts/gpu/pareto.sh table                  writes WORK/pareto.jsonl from all results, prints the table and the Pareto fronts
#
# Both parts end with the table. They stop LIMIT_S seconds after the start; the same command continues the work. Exit code: 0 everything is measured, 1 a stage
# failed, 3 stages are left. WORK may be the folder of prune-accuracy.sh: what it has trained is used. Times do not depend on the values of weights, so
# `speed` needs no training: it takes networks with random weights, and trained ones where they are. The number of channels follows from the weights,
# so speeds of networks with fewer channels are measured again after their training.
#
# int8 is post-training quantisation of the same networks. No kernel for 8-bit values skips pruned weights, so masks have the speed of the dense network.
#
# Variables: CRESNET (build/cresnet), CONFIGS (configs), CIFAR, WORK (prune-accuracy), LIMIT_S (540), SEEDS (1), JOBS (2: trainings at a time), EPOCHS
# (200, dense), MORE_EPOCHS (120), TEACHER (yes), SCHEDULE (gradual; acdc: for single weights), PRUNE, SETTINGS and MORE_SETTINGS (as in
# prune-accuracy.sh), FAMILY (dense networks), VARIANTS (pruned networks; channels-X: X times fewer multiply-adds, channels-XmN: with multiples of N
# channels; speedup-X: channels chosen by measured times, X times as fast in fp16), PRECISIONS (fp16 int8 fp32), DEVICE (cuda), BATCHES (1000 1), STEPS
# (60), EVAL (more keys of evaluations).
# PHOTOS=DIR (train/ and val/): also ResNet-50 on photos of 224 px, dense, with half of the multiply-adds and with blocks of 64x64. PHOTO_EPOCHS (20),
# PHOTO_MORE_EPOCHS (12), PHOTO_SETTINGS.
# shellcheck disable=SC2317 # stages are called by name
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
CRESNET=$(realpath "${CRESNET:-$here/build/cresnet}") CONFIGS=$(realpath "${CONFIGS:-$here/configs}")
WORK=$(realpath -m "${WORK:-prune-accuracy}") CIFAR=${CIFAR:-$here/datasets/cifar10}
SEEDS=${SEEDS:-1} JOBS=${JOBS:-2} LIMIT_S=${LIMIT_S:-540} EPOCHS=${EPOCHS:-200} MORE_EPOCHS=${MORE_EPOCHS:-120} TEACHER=${TEACHER:-yes}
SCHEDULE=${SCHEDULE:-gradual} PRUNE=${PRUNE:---multiple 1 --exempt residual}
FAMILY=${FAMILY:-resnet56 resnet20 resnet44 resnet32}
VARIANTS=${VARIANTS:-channels-2.1 2:4 channels-2.57 weights-90 blocks-16x16 channels-2.57m8 weights-95 blocks-64x64 blocks-32x32 channels-4}
PRECISIONS=${PRECISIONS:-fp16 int8 fp32} DEVICE=${DEVICE:-cuda} BATCHES=${BATCHES:-1000 1} STEPS=${STEPS:-60}
PHOTO_EPOCHS=${PHOTO_EPOCHS:-20} PHOTO_MORE_EPOCHS=${PHOTO_MORE_EPOCHS:-12}
usage() { echo "pareto.sh: $1 (see the head of the script)" >&2; exit 2; }
[ $# = 1 ] || usage "one of speed, accuracy and table"
[ -x "$CRESNET" ] || usage "no program $CRESNET: set CRESNET"
mkdir -p "$WORK/results" "$WORK/runs" "$WORK/logs" "$WORK/speed"
rm -f "$WORK/failed"
# shellcheck source=scripts/gpu/prune-stages.sh
. "$(dirname "$0")/prune-stages.sh"
first=${SEEDS%% *}
code=0
missing() { [ $code = 1 ] || code=3; }

# ---- speed ----

# keys_of_precision PRECISION: the values of a network in 8 bits are random
keys_of_precision() { case $1 in int8) echo "train.precision=$([ "$DEVICE" = cpu ] && echo fp32 || echo fp16) quant.type=int8 model.weights=" ;; *) echo "train.precision=$1" ;; esac; }

# untrained CONFIG: a run of one step with random weights; prints its folder
untrained() {
    local run=$WORK/runs/untrained-$1
    [ -f "$run/last/config.ini" ] || "$CRESNET" train "$CONFIGS/$1.ini" data.kind=synthetic --steps 1 -b 32 data.train_images=256 data.val_images=64 \
        train.eval_every=0 train.device="$DEVICE" -o "$run" -q >"$WORK/logs/untrained.txt" 2>&1 || return
    echo "$run/last"
}

# network NET: sets `config` and `keys` for bench infer
network() {
    local net=$1 name run small
    name=$(result_name "$net" "$first")
    run=$WORK/runs/$name/last small=$WORK/runs/untrained-$(echo "$net" | tr : -)
    trained=no config=$CONFIGS/cifar10-resnet56.ini keys=""
    case $net in
        photos-dense | photos-block) config=$CONFIGS/resnet50.ini ;;
        photos-*) ;;
        resnet*) keys="model.arch=$net" ;;
    esac
    case $net in
        resnet* | dense | photos-dense) return ;;
    esac
    if [ -f "$WORK/runs/$name.complete" ]; then
        trained=yes config=$run/config.ini keys="model.weights=$run"
        return
    fi
    case $net in
        photos-block) keys="prune.pattern=block prune.block=64x64 prune.sparsity=0.8" ;;
        photos-channels)
            [ -f "$small/last/config.ini" ] || "$CRESNET" prune "$(untrained resnet50)" --pattern channels --flops 2 --multiple 64 train.device="$DEVICE" \
                train.precision=auto -o "$small" >"$WORK/logs/$name.txt" 2>&1 || return
            config=$small/last/config.ini keys="model.weights=$small" ;;
        channels-* | speedup-*)
            prune_channels "$net" "$(untrained cifar10-resnet56)" "$small" train.device="$DEVICE" >"$WORK/logs/$name.txt" 2>&1 || return
            config=$small/last/config.ini keys="model.weights=$small" ;;
        *) keys=$(keys_of "$net") ;;
    esac
}

has_masks() { case $1 in weights-* | 2:4 | blocks-* | photos-block) return 0 ;; esac; return 1; }

# measure NET PRECISION BATCH: to speed/NET-PRECISION-BATCH
measure() {
    local net=$1 precision=$2 batch=$3 file dense=dense config keys trained
    file=$WORK/speed/$(echo "$net" | tr : -)-$precision-$batch
    case $net in photos-*) dense=photos-dense ;; esac
    network "$net" || { log "$net: FAILED: $(tail -n 1 "$WORK/logs/$(result_name "$net" "$first").txt" | cut -c 1-200)"; return 1; }
    [ ! -s "$file" ] || [ "$(cat "$file.trained")" = $trained ] || rm -f "$file" # other weights, other channels
    [ ! -s "$file" ] || return 0
    [ "$(left)" -gt 0 ] || return 124
    if has_masks "$net" && [ "$precision" = int8 ]; then
        if [ -s "$WORK/speed/$dense-int8-$batch" ]; then cp "$WORK/speed/$dense-int8-$batch" "$file"; else
            echo "its speed is that of $dense in int8, which is not measured" >"$WORK/logs/speed.txt"
            false
        fi
    else
        case $net in photos-*) keys+=" data.image_size=224" ;; esac # trainings may use smaller photos
        # shellcheck disable=SC2046,SC2086
        timeout $(($(left) + RESERVE_S)) "$CRESNET" bench infer "$config" data.kind=synthetic train.device="$DEVICE" $keys $(keys_of_precision "$precision") \
            train.eval_batch="$batch" --steps "$STEPS" --json -q >"$file.part" 2>"$WORK/logs/speed.txt" && mv "$file.part" "$file"
    fi || { log "$net $precision $batch: FAILED: $(tail -n 1 "$WORK/logs/speed.txt" | cut -c 1-200)"; return 1; }
    echo $trained >"$file.trained"
    log "$net $precision $batch: $(field images_per_s <"$file") images/s"
}

speed() {
    local precision net batch photos="" batches=$BATCHES
    [ -z "${PHOTOS:-}" ] || photos="photos-dense photos-channels photos-block"
    for precision in $PRECISIONS; do
        for net in dense ${FAMILY/resnet56/} $VARIANTS $photos; do
            case $net in photos-*) batches=${BATCHES/1000/256} ;; *) batches=$BATCHES ;; esac
            for batch in $batches; do
                measure "$net" "$precision" "$batch"
                case $? in 0) ;; 124) missing ;; *) code=1 ;; esac
            done
        done
    done
}

# ---- accuracy ----

# score NAME: correct answers of a trained network in each precision, to results/NAME-PRECISION
score() {
    local name=$1 run=$WORK/runs/$1 data=${2:-data.root=$CIFAR} precision
    [ -f "$run.complete" ] || return
    for precision in $PRECISIONS; do
        [ ! -s "$WORK/results/$name-$precision" ] || continue
        [ "$(left)" -gt 0 ] || return
        # shellcheck disable=SC2086
        if [ "$precision" = int8 ]; then
            rm -rf "$run-int8"
            "$CRESNET" quantize "$run" --last "$data" ${EVAL:-} -o "$run-int8" && "$CRESNET" eval "$run-int8" "$data" ${EVAL:-} --json -q
        else
            "$CRESNET" eval "$run" --last "$data" train.precision="$precision" ${EVAL:-} --json -q
        fi >"$WORK/logs/$name-$precision.txt" 2>&1
        field correct <"$WORK/logs/$name-$precision.txt" >"$WORK/results/$name-$precision"
        field images <"$WORK/logs/$name-$precision.txt" >"$WORK/results/$name-images"
        [ -s "$WORK/results/$name-$precision" ] && continue
        log "$name $precision: FAILED: $(tail -n 1 "$WORK/logs/$name-$precision.txt" | cut -c 1-200)"
        touch "$WORK/failed"
    done
}

# A training and its evaluation in each precision
dense_scored() { # SEED NET
    dense "$@" && score "$(result_name "${2/resnet56/dense}" "$1")"
}
pruned_scored() { # VARIANT SEED
    pruned "$@" && score "$(result_name "$1" "$2")"
}

accuracy() {
    local work="" more seed net precision
    [ -f "$CIFAR/test_batch.bin" ] || usage "no $CIFAR/test_batch.bin: set CIFAR"
    CIFAR=$(realpath "$CIFAR")
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + JOBS - 1) / JOBS))}
    for seed in $SEEDS; do
        for net in $FAMILY; do work+="$seed $net"$'\n'; done
    done
    run_all dense_scored "${work%$'\n'}"
    more=$(pruned_lines)
    [ -z "$more" ] || run_all pruned_scored "$more"
    [ -z "${PHOTOS:-}" ] || photos
    for seed in $SEEDS; do
        for net in ${FAMILY/resnet56/dense} control $VARIANTS; do
            for precision in $PRECISIONS; do [ -s "$WORK/results/$(result_name "$net" "$seed")-$precision" ] || missing; done
        done
    done
}

# ResNet-50 on photos: the dense network, half of the multiply-adds, blocks of 64x64. The dense network teaches both.
photos() {
    local base=$WORK/runs/photos-dense-s$first small=$WORK/runs/photos-channels-s$first-small more further sparse
    CIFAR=$WORK/photos # the folder that train and evaluate read
    [ -f "$CIFAR.complete" ] || { "$CRESNET" data pack "$PHOTOS" "$CIFAR" --raw 224 --force -j "$(nproc)" -q && touch "$CIFAR.complete"; } || { code=1; return; }
    further="distill.teacher=$base/last distill.weight=0.7 optim.lr=0.05 --epochs $PHOTO_MORE_EPOCHS"
    sparse="prune.start=0 prune.end=$((PHOTO_MORE_EPOCHS / 3)) prune.frequency=20"
    # shellcheck disable=SC2086
    stage "photos-dense-s$first" train "photos-dense-s$first" "$CONFIGS/finetune-folder.ini" model.arch=resnet50 model.weights= data.kind=packed \
        data.image_size=224 data.jitter=0,0,0,0 data.workers="$(nproc)" ema.decay=0 optim.weight_decay=0.0005 optim.lr=0.2 train.batch=64 \
        train.seed="$first" --epochs "$PHOTO_EPOCHS" ${PHOTO_SETTINGS:-} || { missing; return; }
    [ -f "$small/last/config.ini" ] || "$CRESNET" prune "$base/last" --pattern channels --flops 2 --multiple 64 --recalibrate 16 -o "$small" \
        >"$WORK/logs/photos-channels-s$first.txt" 2>&1 || { code=1; return; }
    # shellcheck disable=SC2086
    stage "photos-control-s$first" train "photos-control-s$first" "$base/last/config.ini" model.weights="$base/last" $further
    # shellcheck disable=SC2086
    stage "photos-channels-s$first" train "photos-channels-s$first" "$small/last/config.ini" model.weights="$small" $further
    # shellcheck disable=SC2086
    stage "photos-block-s$first" train "photos-block-s$first" "$base/last/config.ini" model.weights="$base/last" $further prune.pattern=block \
        prune.block=64x64 prune.sparsity=0.8 $sparse
    for more in dense control channels block; do score "photos-$more-s$first" "data.root=$CIFAR"; done
}

# ---- the table ----

case $1 in
    speed) speed ;;
    accuracy) accuracy ;;
    table) ;;
    *) usage "unknown part $1" ;;
esac
[ ! -f "$WORK/failed" ] || code=1
python3 "$(dirname "$0")/pareto_table.py" "$WORK" "$SEEDS" || code=1
exit $code

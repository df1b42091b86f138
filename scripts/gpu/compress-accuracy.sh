#!/usr/bin/env bash
# compress-accuracy.sh: what `cresnet compress --int8` costs in accuracy, on one GPU: a ResNet-50 is trained on a folder of photos from random weights and
# compressed. The control is the dense network with the same further epochs and the same teacher, quantised too. Prints for each seed the table of
# compress, then one table: accuracy of both in 8 bits, the drop (bar: 1.0 point) and the speedup over the dense network in 8 bits (bar: 1.4).
#
#   PHOTOS=DIR WORK=DIR scripts/gpu/compress-accuracy.sh
#
# PHOTOS has train/CLASS and val/CLASS. Variables: CRESNET (build/cresnet), CONFIGS (configs), WORK (compress-accuracy; trained networks and finished
# steps in it are used again), SEEDS (1), NET (resnet50), SPEEDUP (1.4), BATCH (256: of the time), SIZE (224 px), EPOCHS (20), MORE_EPOCHS (12),
# LR (0.2), MORE_LR (0.05), SETTINGS (more keys of the first training, which all later steps inherit). Exit code: 0 both bars are kept, 1 otherwise.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
CRESNET=$(realpath "${CRESNET:-$here/build/cresnet}") CONFIGS=$(realpath "${CONFIGS:-$here/configs}") WORK=$(realpath -m "${WORK:-compress-accuracy}")
SEEDS=${SEEDS:-1} NET=${NET:-resnet50} SPEEDUP=${SPEEDUP:-1.4} BATCH=${BATCH:-256} SIZE=${SIZE:-224} EPOCHS=${EPOCHS:-20}
MORE_EPOCHS=${MORE_EPOCHS:-12} LR=${LR:-0.2} MORE_LR=${MORE_LR:-0.05}
start=$SECONDS
fail() { echo "compress-accuracy.sh: $*" >&2; exit 1; }
log() { echo "[$((SECONDS - start)) s] $*"; }
[ -x "$CRESNET" ] || fail "no program $CRESNET: set CRESNET"
[ -d "${PHOTOS:-}/val" ] || fail "set PHOTOS: a folder with train/ and val/"
mkdir -p "$WORK/logs"

# run NAME COMMAND...: once; its output is in logs/NAME.txt
run() {
    local name=$1
    shift
    [ ! -f "$WORK/logs/$name.done" ] || return 0
    "$CRESNET" "$@" >"$WORK/logs/$name.txt" 2>&1 || fail "$name: $(tail -n 1 "$WORK/logs/$name.txt" | cut -c 1-300); see $WORK/logs/$name.txt"
    touch "$WORK/logs/$name.done"
    log "$name"
}
# top1 NAME: top-1 in percent of a checkpoint's evaluation
top1() { sed -n 's/.*"top1": *\([0-9.]*\).*/\1/p' "$WORK/logs/$1.txt" | tail -n 1 | awk '{ print 100 * $1 }'; }

# Pixels with the short side SIZE: no photo is decoded while networks are trained.
run pack data pack "$PHOTOS" "$WORK/photos" --raw "$SIZE" --force -j "$(nproc)" -q
for seed in $SEEDS; do
    base=$WORK/base-$seed
    # shellcheck disable=SC2086
    run "base-$seed" train "$CONFIGS/finetune-folder.ini" "model.arch=$NET" model.weights= data.kind=packed "data.root=$WORK/photos" \
        data.image_size="$SIZE" data.jitter=0,0,0,0 data.workers="$(nproc)" ema.decay=0 optim.weight_decay=0.0005 optim.lr="$LR" \
        schedule.warmup_epochs=2 train.batch=64 train.eval_batch="$BATCH" train.eval_every=0 train.keep=1 train.seed="$seed" \
        --epochs "$EPOCHS" ${SETTINGS:-} -o "$base" -q
    run "compress-$seed" compress "$base" --speedup "$SPEEDUP" --int8 --batch "$BATCH" --epochs "$MORE_EPOCHS" --lr "$MORE_LR" -o "$WORK/small-$seed"
    sed -n '/^patterns/,$p' "$WORK/logs/compress-$seed.txt"
    run "control-$seed" train "$base/last/config.ini" "model.weights=$base" "distill.teacher=$base" optim.lr="$MORE_LR" --epochs "$MORE_EPOCHS" \
        -o "$WORK/control-$seed" -q
    [ -f "$WORK/logs/control-quantize-$seed.done" ] || rm -rf "$WORK/control-int8-$seed"
    run "control-quantize-$seed" quantize "$WORK/control-$seed" --last -o "$WORK/control-int8-$seed"
    run "control-int8-$seed" eval "$WORK/control-int8-$seed" --json -q
    run "small-int8-$seed" eval "$WORK/small-$seed/network" --json -q
done

for seed in $SEEDS; do
    echo "$seed $(top1 "control-int8-$seed") $(top1 "small-int8-$seed") $(sed -n 's/.*-channels .*int8.* \([0-9.]*\)x .*/\1/p' "$WORK/logs/compress-$seed.txt" | tail -n 1)"
done | awk -v bar=1.0 -v speedup="$SPEEDUP" '
    BEGIN { print "| seed | control, 8 bits, % | compressed, 8 bits, % | drop | speedup |"; print "|---|---:|---:|---:|---:|" }
    { printf "| %s | %.2f | %.2f | %+.2f | %s |\n", $1, $2, $3, $2 - $3, $4; drop += $2 - $3; n++; if ($4 < speedup) slow = 1 }
    END { printf "| mean | | | %+.2f%s | |\n", drop / n, drop / n > bar ? " !" : ""; exit drop / n > bar || slow }'

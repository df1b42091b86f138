#!/usr/bin/env bash
# quantize-accuracy.sh: accuracy of 8-bit networks on one GPU, in percent of the validation images, against the bar: a drop of at
# most 0.3 points after calibration (PTQ). Prints a line after each stage and one table at the end.
#
#   ResNet-20, ResNet-32   published weights for CIFAR-10 (WEIGHTS, CIFAR)
#   ResNet-56              CIFAR-10, 100 epochs by its shipped configuration (CIFAR)
#   ResNet-18, ResNet-50   a folder of photos with train/ and val/ (PHOTOS)
#
# Stages of a network and a seed: base (training), ptq (cresnet quantize) and choice (the same with --max-drop 0.3). The newest checkpoint
# counts, not the best one, and all networks are evaluated with train.precision=fp32. Trainings compute in PRECISION. The means are over the seeds.
#
# The work stops LIMIT_S seconds after the start: a training then saves a checkpoint. Run the same command again to continue. Exit code:
# 0 everything is measured and within the bar, 1 a drop is too large or a stage failed, 3 stages are left for the next run.
#
#   CIFAR=DIR WEIGHTS=DIR PHOTOS=DIR WORK=DIR scripts/gpu/quantize-accuracy.sh
#
# The networks of the photos begin with random weights. With all of Imagenette (9,469 and 3,925 photos), at 128 px, the six trainings
# at the same time:
#
#   PHOTOS=DIR WORK=DIR NETS="resnet50 resnet18" JOBS=6 PHOTO_RAW=160 PHOTO_EPOCHS=20 PHOTO_LR=0.3 \
#       PHOTO_SETTINGS="data.image_size=128 data.eval_resize=160 data.workers=3 data.jitter=0,0,0,0 train.batch=64" \
#       scripts/gpu/quantize-accuracy.sh
#
# Variables: CRESNET (build/cresnet), CONFIGS (configs), CIFAR (folder of the six .bin or .bin.xz files), WEIGHTS (folder of
# resnet20-cifar10.safetensors and resnet32-cifar10.safetensors), PHOTOS, WORK (quantize-accuracy; it must remain between runs; the
# results are $WORK/results/*), LIMIT_S (540), NETS, SEEDS (1 2 3), JOBS (3: stages at a time), EPOCHS56 (100), PHOTO_EPOCHS (100),
# PHOTO_LR (0.05: learning rate of base), PHOTO_RAW (empty; SIZE: the photos are packed once as
# pixels with the short side SIZE, which saves the time of decoding), METHOD (entropy), PRECISION (auto), SETTINGS, CIFAR_SETTINGS, PHOTO_SETTINGS (more keys for all commands, for
# those of CIFAR-10 and for those of the photos).
# shellcheck disable=SC2317 # stages are called by name
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
CRESNET=$(realpath "${CRESNET:-$here/build/cresnet}") CONFIGS=$(realpath "${CONFIGS:-$here/configs}")
WORK=$(realpath -m "${WORK:-quantize-accuracy}")
SEEDS=${SEEDS:-1 2 3} JOBS=${JOBS:-3} LIMIT_S=${LIMIT_S:-540} PRECISION=${PRECISION:-auto}
NETS=${NETS:-resnet56 resnet50 resnet18 resnet32 resnet20} # the longest first
EPOCHS56=${EPOCHS56:-100} PHOTO_EPOCHS=${PHOTO_EPOCHS:-100}
PHOTO_LR=${PHOTO_LR:-0.05} PHOTO_RAW=${PHOTO_RAW:-} METHOD=${METHOD:-entropy}
RESERVE_S=25 # to save, evaluate and print
start=$SECONDS
usage() { echo "quantize-accuracy.sh: $1 (see the head of the script)" >&2; exit 2; }
[ -x "$CRESNET" ] || usage "no program $CRESNET: set CRESNET"
[ $# = 0 ] || usage "no arguments are taken"
mkdir -p "$WORK/results" "$WORK/runs" "$WORK/logs"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + JOBS - 1) / JOBS))}

left() { echo $((LIMIT_S - RESERVE_S - (SECONDS - start))); }
log() { echo "[$((SECONDS - start)) s] $*"; }
is_photo() { [ "$1" = resnet18 ] || [ "$1" = resnet50 ]; }
is_published() { [ "$1" = resnet20 ] || [ "$1" = resnet32 ]; }

# ---- inputs ----

unpack_cifar() {
    local f name
    [ -n "${CIFAR:-}" ] || usage "set CIFAR, or NETS to networks that do not need it"
    mkdir -p "$WORK/cifar10"
    for f in "$CIFAR"/*.bin "$CIFAR"/*.bin.xz "$CIFAR"/batches.meta.txt; do
        name=$WORK/cifar10/$(basename "${f%.xz}")
        if [ ! -f "$f" ] || [ -s "$name" ]; then continue; fi
        case $f in
            *.xz)
                { xz -dc "$f" 2>/dev/null || python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$f"; } \
                    >"$name.part" && mv "$name.part" "$name" ;;
            *) ln -sf "$(realpath "$f")" "$name" ;;
        esac
    done
    for f in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
        [ -s "$WORK/cifar10/$f.bin" ] || usage "$CIFAR has no $f.bin"
    done
}

pack_photos() {
    local out=$WORK/photos-$PHOTO_RAW
    [ -f "$out/complete" ] ||
        { "$CRESNET" data pack "$PHOTOS" "$out" --raw "$PHOTO_RAW" --force -j "$(nproc)" -q >"$WORK/logs/pack.txt" 2>&1 && touch "$out/complete"; } ||
        usage "$PHOTOS cannot be packed: $(tail -n 1 "$WORK/logs/pack.txt")"
    log "packed $PHOTOS"
    PHOTOS=$out
}

# Absolute paths of the inputs that the networks of NETS need.
check_inputs() {
    local net cifar=0
    for net in $NETS; do
        case $net in
            resnet18 | resnet50) [ -d "${PHOTOS:-}/val" ] || usage "set PHOTOS: a folder with train/ and val/" ;;
            resnet20 | resnet32)
                [ -f "${WEIGHTS:-}/$net-cifar10.safetensors" ] || usage "no $net-cifar10.safetensors in WEIGHTS"
                cifar=1 ;;
            resnet56) cifar=1 ;;
            *) usage "NETS: unknown network $net" ;;
        esac
    done
    [ $cifar = 0 ] || unpack_cifar
    [ -z "${PHOTOS:-}" ] || PHOTOS=$(realpath "$PHOTOS")
    case $NETS in *resnet18* | *resnet50*) [ -z "$PHOTO_RAW" ] || pack_photos ;; esac
    [ -z "${WEIGHTS:-}" ] || WEIGHTS=$(realpath "$WEIGHTS")
}

# ---- commands ----

# keys NET: the configuration and the keys of a network
keys() {
    if is_photo "$1"; then
        # shellcheck disable=SC2086
        printf '%s\n' "$CONFIGS/finetune-folder.ini" "model.arch=$1" "model.weights=" "data.root=$PHOTOS" data.val_fraction=0 ema.decay=0 \
            ${PHOTO_RAW:+data.kind=packed} optim.weight_decay=0.0005 train.batch=64 ${SETTINGS:-} ${PHOTO_SETTINGS:-}
    else
        # shellcheck disable=SC2086
        printf '%s\n' "$CONFIGS/cifar10-$([ "$1" = resnet56 ] && echo resnet56 || echo resnet20).ini" "model.arch=$1" \
            "data.root=$WORK/cifar10" ${SETTINGS:-} ${CIFAR_SETTINGS:-}
    fi
}

# train NET NAME KEYS...: trains runs/NAME, or continues, until it is complete. Returns 124 when the time is up.
train() {
    local net=$1 run=$WORK/runs/$2 log=$WORK/logs/$2.txt seconds fixed
    shift 2
    [ ! -f "$run.complete" ] || return 0
    seconds=$(left)
    [ "$seconds" -gt 5 ] || return 124
    mapfile -t fixed < <(keys "$net")
    timeout -k 20 -s TERM "$seconds" "$CRESNET" train "${fixed[@]}" "$@" train.precision="$PRECISION" train.eval_every=0 train.keep=1 \
        -o "$run" --resume auto -q >>"$log" 2>&1 || return
    touch "$run.complete"
}

# evaluate NAME LOG ARGUMENTS...: a command of cresnet that prints scores as JSON, to results/NAME.json
evaluate() {
    local file=$WORK/results/$1.json log=$2
    shift 2
    [ "$(left)" -gt 0 ] || return 124
    timeout $(($(left) + RESERVE_S - 5)) "$CRESNET" "$@" train.precision=fp32 --json -q >"$file.part" 2>>"$log" && mv "$file.part" "$file"
}
# scores FILE TEXT: "CORRECT IMAGES" behind this text of the JSON; nothing without the file
scores() { sed -n "s/.*$2\"images\": \([0-9]*\), \"correct\": \([0-9]*\).*/\2 \1/p" "$WORK/results/$1.json" 2>/dev/null; }
float_score='"float": {' int8_score='"int8": {' eval_score='"split": "val", '

# ---- stages ----

base() { # NET NAME SEED
    local epochs=$EPOCHS56 more=""
    if is_photo "$1"; then epochs=$PHOTO_EPOCHS more=optim.lr=$PHOTO_LR; fi
    # shellcheck disable=SC2086
    train "$1" "$2" --epochs "$epochs" train.seed="$3" $more
}

ptq() { # NET NAME BASE ARGUMENTS...: also choice
    local net=$1 name=$2 from=$3 out=$WORK/runs/$2-int8 code fixed
    shift 3
    rm -rf "$out"
    if is_published "$net"; then
        mapfile -t fixed < <(keys "$net")
        evaluate "$name" "$WORK/logs/$name.txt" quantize "${fixed[@]}" --weights "$from" -o "$out" --method "$METHOD" "$@"
    else
        evaluate "$name" "$WORK/logs/$name.txt" quantize "$from" -o "$out" --method "$METHOD" "$@"
    fi
    code=$?
    rm -rf "$out"
    return "$code"
}
choice() { # NET NAME BASE: a drop that cannot be kept is a result, too
    ptq "$@" --max-drop 0.3
    local code=$?
    [ $code != 1 ] || [ ! -s "$WORK/results/$2.json.part" ] || mv "$WORK/results/$2.json.part" "$WORK/results/$2.json"
    [ -f "$WORK/results/$2.json" ] && return 0
    return "$code"
}

percent() { # CORRECT IMAGES
    awk -v c="${1:-0}" -v n="${2:-1}" 'BEGIN { printf "%.2f %% (%d of %d)", 100 * c / n, c, n }' </dev/null
}

# stage NAME FUNCTION ARGUMENTS...: runs a stage unless it is done, and prints its result. Returns 1 when it is not done.
stage() {
    local name=$1 code begin=$SECONDS text=""
    shift
    if [ -f "$WORK/results/$name.json" ] || { [ "$1" = base ] && [ -f "$WORK/runs/$name.complete" ]; }; then return 0; fi
    "$@"
    code=$?
    if [ $code = 124 ]; then
        log "$name: continues in the next run"
        return 1
    elif [ $code -ne 0 ]; then
        log "$name: FAILED, exit code $code: $(tail -n 1 "$WORK/logs/$name.txt" 2>/dev/null | cut -c 1-300)"
        touch "$WORK/failed"
        return 1
    fi
    # shellcheck disable=SC2046
    case $1 in
        base) text=trained ;;
        ptq | choice) text="fp32 $(percent $(scores "$name" "$float_score")), int8 $(percent $(scores "$name" "$int8_score"))" ;;
    esac
    log "$name: $text, $((SECONDS - begin)) s"
}

all_done() { # NAME...: these stages have results
    local name
    for name in "$@"; do [ -f "$WORK/results/$name.json" ] || return 1; done
}

# The stages of one network and one seed, in their order. Published weights are calibrated once.
chain() { # NET SEED
    local net=$1 seed=$2 name=$1-s$2 from
    if is_published "$net"; then
        from=$WEIGHTS/$net-cifar10.safetensors
        if [ "$seed" = "${SEEDS%% *}" ]; then
            stage "$net-ptq" ptq "$net" "$net-ptq" "$from"
            stage "$net-choice" choice "$net" "$net-choice" "$from"
        fi
    else
        from=$WORK/runs/$name-base/last
        all_done "$name-ptq" "$name-choice" && return
        stage "$name-base" base "$net" "$name-base" "$seed" || return
        stage "$name-ptq" ptq "$net" "$name-ptq" "$from"
        stage "$name-choice" choice "$net" "$name-choice" "$from"
    fi
}

run_chains() {
    local net seed running=0
    for net in $NETS; do
        for seed in $SEEDS; do
            [ $running -lt "$JOBS" ] || { wait -n; running=$((running - 1)); }
            chain "$net" "$seed" &
            running=$((running + 1))
        done
    done
    wait
}

# ---- the table ----

# One line for each network and seed: NET, then correct answers and images of base, ptq, choice; "- -" for what is missing.
collect() {
    local net seed calibrated chosen
    for net in $NETS; do
        for seed in $SEEDS; do
            calibrated=$net-s$seed-ptq chosen=$net-s$seed-choice
            ! is_published "$net" || calibrated=$net-ptq chosen=$net-choice
            set -- "$(scores "$calibrated" "$float_score")" "$(scores "$calibrated" "$int8_score")" "$(scores "$chosen" "$int8_score")"
            echo "$net ${1:-- -} ${2:-- -} ${3:-- -}"
        done
    done
}

# Prints the table. Exit code 0: all is there and within the bar, 1: a drop is too large, 3: results are missing.
table() {
    collect | awk -v ptq_bar=0.3 '
        function mean(net, what) { return count[net, what] ? sprintf("%.2f", sum[net, what] / count[net, what]) : "-" }
        function drop(net, a, b, bar,   n, d) {
            n = count[net, b]
            if (!n || count[net, a] != n) return "-"
            d = sum[net, a] / count[net, a] - sum[net, b] / n
            if (d > bar + 1e-9) bad = 1
            return sprintf("%+.2f%s", d, d > bar + 1e-9 ? " !" : "")
        }
        BEGIN { split("base ptq choice", name, " ") }
        {
            if (!($1 in seeds)) order[++nets] = $1
            seeds[$1]++
            for (i = 1; i <= 3; i++)
                if ($(2 * i) == "-") missing = 1
                else { sum[$1, name[i]] += 100 * $(2 * i) / $(2 * i + 1); count[$1, name[i]]++; images[$1] = $(2 * i + 1) }
        }
        END {
            printf "| network | images | seeds | fp32 | PTQ | drop | --max-drop | drop |\n"
            printf "|---|---:|---:|---:|---:|---:|---:|---:|\n"
            for (k = 1; k <= nets; k++) {
                n = order[k]
                printf "| %s | %s | %d | %s | %s | %s | %s | %s |\n", n, n in images ? images[n] : "-", seeds[n],
                    mean(n, "base"), mean(n, "ptq"), drop(n, "base", "ptq", ptq_bar),
                    mean(n, "choice"), drop(n, "base", "choice", ptq_bar)
            }
            exit bad ? 1 : missing ? 3 : 0
        }'
}

check_inputs
rm -f "$WORK/failed"
run_chains
table
code=$?
[ ! -f "$WORK/failed" ] || code=1
case $code in
    0) log "done: every drop is within the bar (0.3 points)" ;;
    3) log "stages are left: run the same command again" ;;
    *) log "a drop is above the bar (0.3 points; marked !), or a stage failed: $WORK/logs" ;;
esac
exit $code

# loading.sh: parts of scripts/gpu-check.sh about JPEG photos (docs/experiments/loading.md). Sourced by parts.sh.
#   loading   the speed of training on photos, as a fraction of the speed on synthetic images, by number of cores and by who decodes
#   decode    trainings whose images the GPU decodes equal those of the CPU bit by bit, and are reproducible; rates of the loader
#
#   CRESNET_JPEGS   folder of JPEG photos (.gpu/jpegs); they are linked to 25,600 names in 1,000 classes
#   LOADING_CORES   numbers of cores ("16 8 4")
#   LOADING_TORCH   no: without PyTorch (tests/tools/torch_loading.py)

export CRESNET_JPEGS=${CRESNET_JPEGS:-.gpu/jpegs}

# link_photos OUT TRAIN VAL [CLASSES]: names in OUT/train and OUT/val that are links to the photos (link_photos.py)
link_photos() { python3 scripts/gpu/link_photos.py "$CRESNET_JPEGS" "$@"; }

# rate_on_photos NAME CORES KEY=VALUE...: the median of the logged rates after the first 60 steps of a short training that is bound to the first CORES
# processors; 0 if it failed. LOADING_NET: the configuration and its options. The last loss goes to $WORK/loss-NAME.txt.
rate_on_photos() {
    local name=$1 cores=$2 run=$WORK/loading steps=${LOADING_STEPS:-210}
    shift 2
    rm -rf "$run"
    # shellcheck disable=SC2086
    timeout -k 5 150 taskset -c "0-$((cores - 1))" "$bin" train ${LOADING_NET:-configs/resnet50.ini train.precision=fp16} "$(device_option)" \
        train.log_every=$((steps > 60 ? 30 : (steps + 1) / 2)) train.steps="$steps" train.eval_every=0 data.workers="$cores" -q -o "$run" "$@" >&2 || { echo 0; return; }
    python3 - "$run/log.jsonl" "$WORK/loss-$name.txt" <<'PY'
import json, statistics, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
train = [l for l in lines if l["event"] == "train"]
open(sys.argv[2], "w").write("%s %s\n" % (train[-1]["step"], train[-1]["loss"]))
print("%.0f" % statistics.median(l["images_per_s"] for l in train if l["step"] > 60 or len(train) < 4))
PY
}

# loading_row NAME CORES SYNTHETIC KEY=VALUE...
loading_row() {
    local name=$1 cores=$2 whole=$3 rate
    shift 3
    rate=$(rate_on_photos "$name" "$cores" "$@")
    row INFO "$name" "$rate img/s, $((100 * rate / (whole > 0 ? whole : 1))) % of synthetic"
}

# two_gpus FOLDER: two ranks of one host, each with half of 32 cores
two_gpus() {
    local whole decode
    whole=$(rate_on_photos "two synthetic" 32 data.kind=synthetic data.train_images=25600 data.val_images=512 data.workers=16 --gpus 2)
    row INFO "two GPUs, synthetic images" "$whole img/s"
    for decode in auto cpu; do
        loading_row "two GPUs, folder, 16 cores each, $decode" 32 "$whole" data.root="$1" data.decode=$decode data.workers=16 --gpus 2
    done
}

part_loading() {
    local cores whole python files=$WORK/jpegs packed=$WORK/jpegs-256
    ls "$CRESNET_JPEGS"/*.[jJ]*[gG] >/dev/null 2>&1 || { row SKIP "training on photos" "no photos in $CRESNET_JPEGS"; return; }
    gpu || { row SKIP "training on photos" "no GPU"; return; }
    link_photos "$WORK/jpegs" 25600 1000 || { row FAIL "links to photos" "see the log"; return; }
    whole=$(rate_on_photos synthetic 16 data.kind=synthetic data.train_images=25600 data.val_images=256)
    row INFO "synthetic images" "$whole img/s"
    for cores in ${LOADING_CORES:-16 8 4}; do
        loading_row "folder, $cores cores, cpu" "$cores" "$whole" data.root="$files" data.decode=cpu
        loading_row "folder, $cores cores, auto" "$cores" "$whole" data.root="$files" data.decode=auto
        loading_row "folder, $cores cores, gpu" "$cores" "$whole" data.root="$files" data.decode=gpu
    done
    verdict "$([ "$(sort -u "$WORK"/loss-folder*.txt | wc -l)" = 1 ]; echo $?)" "the same losses whoever decodes" "$(sort -u "$WORK"/loss-folder*.txt | paste -sd' ')"
    "$bin" data pack configs/resnet50.ini "$packed" data.root="$files" --jpeg=256 --force -j "$(nproc)" >&2
    loading_row "packed --jpeg=256, 8 cores, cpu" 8 "$whole" data.kind=packed data.root="$packed" data.decode=cpu
    loading_row "packed --jpeg=256, 8 cores, auto" 8 "$whole" data.kind=packed data.root="$packed" data.decode=auto
    loading_row "packed --jpeg=256, 4 cores, auto" 4 "$whole" data.kind=packed data.root="$packed" data.decode=auto
    whole=$(LOADING_STEPS=400 rate_on_photos synthetic 16 model.arch=resnet18 data.kind=synthetic data.train_images=25600 data.val_images=256)
    LOADING_STEPS=400 loading_row "ResNet-18, packed --jpeg=256, 16 cores, auto" 16 "$whole" model.arch=resnet18 data.kind=packed data.root="$packed" data.decode=auto
    LOADING_STEPS=400 loading_row "ResNet-18, folder, 16 cores, gpu" 16 "$whole" model.arch=resnet18 data.root="$files" data.decode=gpu
    [ "$(gpu_count)" -lt 2 ] || two_gpus "$files"
    [ "${LOADING_TORCH:-yes}" = no ] || ! python=$(python_with_torch) ||
        "$python" tests/tools/torch_loading.py "$files" | tee -a /dev/stderr | while read -r name rate rest; do row INFO "PyTorch, $name" "$rate $rest"; done
}

# decode_run NAME KEY=VALUE...: trains ResNet-18 on the photos, 150 steps in 1.5 epochs; the run is in $WORK/decode/NAME.
decode_run() {
    local name=$1
    shift
    "$bin" train configs/resnet18.ini "$(device_option)" train.precision=fp16 train.steps=150 train.eval_every=0 train.log_every=50 data.root="$WORK/jpegs" \
        data.workers="$(nproc)" data.decode=gpu -q -o "$WORK/decode/$name" "$@" >&2
}
# same_runs WHAT A B: the last checkpoints of two runs are equal
same_runs() {
    local text code
    text=$(scripts/compare_checkpoints.py checkpoints "$WORK/decode/$2/last" "$WORK/decode/$3/last")
    code=$?
    verdict $code "$1" "weights and state of 150 steps: $text"
}

part_decode() {
    local fit code
    ls "$CRESNET_JPEGS"/*.[jJ]*[gG] >/dev/null 2>&1 || { row SKIP "decoding of photos" "no photos in $CRESNET_JPEGS"; return; }
    gpu || { row SKIP "decoding of photos" "no GPU"; return; }
    link_photos "$WORK/jpegs" 25600 1000 || { row FAIL "links to photos" "see the log"; return; }
    rm -rf "$WORK/decode"
    for fit in crop squash letterbox; do
        decode_run $fit-cpu data.fit=$fit data.decode=cpu
        decode_run $fit data.fit=$fit
        same_runs "data.fit=$fit, cpu and gpu" $fit-cpu $fit
    done
    decode_run again
    same_runs "two runs" crop again
    decode_run workers data.workers=3
    same_runs "3 workers" crop workers
    decode_run auto data.workers=2 data.decode=auto
    same_runs "auto, 2 workers" crop auto
    decode_run resumed train.steps=70
    decode_run resumed --resume auto
    same_runs "70 steps and a resumed run" crop resumed
    for code in gpu auto; do
        taskset -c 0-3 "$bin" bench data configs/resnet50.ini "$(device_option)" data.root="$WORK/jpegs" -j 4 data.decode=$code --trainer-speed=12400 >"$WORK/bench-data.txt"
        verdict $? "bench data, 4 cores, $code" "$(grep -E 'images/s with|GPU' "$WORK/bench-data.txt" | paste -sd' ')"
        cat "$WORK/bench-data.txt"
    done
}

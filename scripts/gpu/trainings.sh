# trainings.sh: the parts of gpu-check.sh that compare steps with PyTorch or train whole networks. parts.sh sources this file.

# ---- comparison with PyTorch ----

part_parity() {
    local python net code
    python=$(python_with_torch) || { row SKIP parity "no python3 with torch"; return; }
    find_cifar data_batch_1.bin || find_cifar test_batch.bin
    for net in resnet20 resnet18; do
        set -- --tool "$tool" --net $net --device "$DEVICE" --out "$FILES/parity-$net.json"
        [ $net = resnet20 ] && ls "$WORK"/cifar10/*.bin >/dev/null 2>&1 && set -- "$@" --cifar "$WORK/cifar10"
        [ $net = resnet18 ] && [ -d "$CRESNET_PHOTOS" ] && set -- "$@" --photos "$CRESNET_PHOTOS"
        if gpu; then set -- "$@" --seeds 6 --variants 3; else set -- "$@" --steps 6 --batch 16 --batches 3 --variants 2; fi
        gpu || [ $net = resnet20 ] || set -- "$@" --size 64
        timeout $((PART_LIMIT / 2)) "$python" tests/tools/torch_parity.py "$@" | tee "$WORK/parity.txt"
        code=${PIPESTATUS[0]}
        pass_or_fail "$net, first 5 losses" "$(sed -n 's/^first 5 losses, //p' "$WORK/parity.txt" | tail -n 1)"
        pass_or_fail "$net, 50 steps" "$(sed -n 's/^all [0-9]* steps: //p' "$WORK/parity.txt")"
        [ "$code" -le 1 ] || row FAIL "$net" "exit code $code"
    done
}

part_grads() {
    local python code part who
    python=$(python_with_torch) || { row SKIP grads "no python3 with torch"; return; }
    set -- --tool "$tool" --device "$DEVICE" --out "$FILES/grads.json"
    if gpu; then set -- "$@" --batches 64; else set -- "$@" --config configs/cifar10-resnet20.ini --set model.classes=10 --size 32 --batch 8 --batches 2; fi
    # temporary files of 100 MB each: in memory, if 20 GB are free there
    [ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -lt 20000000 ] 2>/dev/null || export TMPDIR=/dev/shm
    "$python" tests/tools/torch_grads.py "$@" | tee "$WORK/grads.txt"
    code=${PIPESTATUS[0]}
    for part in cosine norm; do
        for who in ours PyTorch; do
            row INFO "$part, $who" "$(sed -n "/^half/,\$p" "$WORK/grads.txt" | grep -m 1 "^$part *$who" | sed 's/  */ /g; s/^[a-z]* [A-Za-z, _]*//')"
        done
    done
    row INFO "the same gradient in fp32" "$(sed -n 's/^the same gradient in fp32: //p' "$WORK/grads.txt"); $(sed -n 's/^ours fp32 plain . PyTorch fp32  *//p' "$WORK/grads.txt")"
    verdict "$code" "ResNet-50 gradients, fp16" "$(sed -n 's/^half: every/every/p' "$WORK/grads.txt")"
}

# ---- training on photos ----

part_imagenette() {
    local d=$WORK/imagenette code=0 config="configs/resnet18.ini model.classes=10 -b 64 optim.lr=0.05"
    [ -d "$CRESNET_PHOTOS/train" ] || { row SKIP "ResNet-18 on photos" "no $CRESNET_PHOTOS/train"; return; }
    gpu || config="configs/resnet18.ini model.classes=10 -b 16 data.image_size=64 data.eval_crop=64 --steps 12"
    rm -rf "$d"
    # shellcheck disable=SC2086
    "$bin" train $config data.root="$CRESNET_PHOTOS" "$(device_option)" data.workers="$(nproc)" --epochs 4 train.log_every=5 -o "$d" || code=1
    cat "$d/log.jsonl"
    verdict $code "ResNet-18 on photos, data wait" "$(python3 - "$d/log.jsonl" <<'PY'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
t, e = [l for l in lines if l["event"] == "train"], [l for l in lines if l["event"] == "eval"]
print("fraction %s; img/s %s; loss %.3f to %.3f; top-1 %.3f" % (" ".join("%.2f" % l["data_wait"] for l in t), " ".join("%.0f" % l["images_per_s"] for l in t),
      t[0]["loss"], t[-1]["loss"], e[-1]["top1"]))
PY
)"
}

# ResNet-50 with fused kernels against PyTorch: one recipe, three seeds each.
part_photos() {
    local python code
    [ -d "$CRESNET_PHOTOS/train" ] || { row SKIP "ResNet-50 on photos, PyTorch" "no $CRESNET_PHOTOS/train"; return; }
    gpu && python=$(python_with_torch) || { row SKIP "ResNet-50 on photos, PyTorch" "no GPU, or no python3 with torch"; return; }
    "$python" tests/tools/torch_photos.py --cresnet "$bin" --photos "$CRESNET_PHOTOS" --out "$FILES/photos.json" | tee "$WORK/photos.txt"
    code=${PIPESTATUS[0]}
    pass_or_fail "photos, loss of the last epoch" "$(sed -n 's/^loss of the last epoch: //p' "$WORK/photos.txt")"
    pass_or_fail "photos, validation top-1" "$(sed -n 's/^validation top-1: //p' "$WORK/photos.txt")"
    return "$code"
}

# train_seeds NAME CONFIG ARGUMENT...: a complete training for each of SEEDS, in $WORK/seeds/NAME-SEED; finished ones are not repeated.
# $WORK/seeds.txt is then "MEAN % over N seeds (TOP-1 ...), SECONDS ... s", of the last evaluations.
train_seeds() {
    local name=$1 seed run
    shift
    mkdir -p "$WORK/seeds"
    for seed in ${SEEDS:-1 2 3}; do
        run=$WORK/seeds/$name-$seed
        grep -q '"done"' "$run/log.jsonl" 2>/dev/null && continue
        TIMEFORMAT=%R # wall time of the process, for wall.txt
        { time "$bin" train "$@" "$(device_option)" "train.seed=$seed" train.keep=1 --resume auto -q -o "$run"; } 2>"$WORK/wall.txt"
        cat "$WORK/wall.txt" >&2
        tail -n 1 "$WORK/wall.txt" >"$run/wall.txt"
    done
    python3 - "$WORK/seeds/$name" <<'PY' >"$WORK/seeds.txt"
import glob, json, statistics, sys
tops, seconds = [], []
for path in sorted(glob.glob(f"{glob.escape(sys.argv[1])}-*/log.jsonl")):
    lines = [json.loads(l) for l in open(path)]
    if not any(l["event"] == "done" for l in lines): continue
    tops.append(100 * [l for l in lines if l["event"] == "eval"][-1]["top1"])
    seconds.append(open(path.replace("log.jsonl", "wall.txt")).read().strip())
if tops: print("%.3f" % statistics.mean(tops), "%% over %d seeds (%s), %s s" % (len(tops), " ".join("%.2f" % t for t in tops), " ".join(seconds)))
PY
}

# Complete training runs on CIFAR-10: SEEDS for each of RECIPES (NAME:CONFIG:VALUES:TARGET). Finished runs in $WORK/seeds are not repeated.
part_seeds() {
    local recipe name config values target
    find_cifar data_batch_5.bin && find_cifar test_batch.bin && [ "$(ls "$WORK"/cifar10/data_batch_?.bin | wc -l)" = 5 ] ||
        { row SKIP "CIFAR-10, seeds" "files of CIFAR-10 are missing in CRESNET_CIFAR ($CRESNET_CIFAR)"; return; }
    for recipe in ${RECIPES:-he20:cifar10-resnet20-he::91.25 cosine20:cifar10-resnet20::91.8 cosine56:cifar10-resnet56::93.4}; do
        IFS=: read -r name config values target <<<"$recipe"
        # shellcheck disable=SC2086
        train_seeds "$name" "configs/$config.ini" data.root="$WORK/cifar10" data.workers=12 train.precision=fp16 $values
        holds "$(cut -d' ' -f1 "$WORK/seeds.txt" | grep . || echo 0) >= $target"
        verdict $? "CIFAR-10, $name" "$(cat "$WORK/seeds.txt"), target $target"
    done
    tar -czf "$OUT/seeds.tar.gz" -C "$WORK/seeds" --exclude='*.safetensors' .
}

# Accuracy of ResNet-18, from random weights, on photos that are packed in each of PACKS: files (unchanged), or an option of data pack; with :gpu,
# the GPU decodes. PACK_VALUES: more values of the configuration. Training and validation images are packed alike. Finished runs in
# $WORK/seeds are not repeated.
part_packs() {
    local pack form folder option decode options="train.precision=fp16 train.batch=64 --epochs ${PACK_EPOCHS:-40}"
    [ -d "$CRESNET_PHOTOS/train" ] || { row SKIP "packed photos" "no $CRESNET_PHOTOS/train"; return; }
    gpu || options="train.batch=8 data.image_size=64 data.eval_crop=64 --steps 4"
    for pack in ${PACKS:-files files:gpu jpeg=256 raw=256}; do
        form=${pack%:gpu} decode=cpu
        folder=$WORK/packs/$form option=--$form
        [ "$form" != files ] || option=""
        [ "$form" = "$pack" ] || decode=gpu
        [ -f "$folder/complete" ] ||
            { "$bin" data pack "$CRESNET_PHOTOS" "$folder" ${option:+"$option"} --force -j "$(nproc)" && touch "$folder/complete"; } ||
            { row FAIL "packed, $pack" "see logs.txt"; continue; }
        # shellcheck disable=SC2086
        train_seeds "packed-$pack" configs/resnet18.ini model.classes=0 data.kind=packed data.root="$folder" data.workers="$(nproc)" data.decode=$decode \
            optim.lr=0.05 schedule.kind=cosine schedule.warmup_epochs=2 $options ${PACK_VALUES:-}
        verdict "$([ -s "$WORK/seeds.txt" ]; echo $?)" "packed, $pack" "$(cat "$WORK/seeds.txt"); $(du -ck --apparent-size "$folder"/* | awk 'END { print $1 }') KiB"
    done
    tar -czf "$OUT/seeds.tar.gz" -C "$WORK/seeds" --exclude='*.safetensors' .
}

part_cifar() {
    local run=$WORK/cifar-run code more=""
    find_cifar data_batch_5.bin && find_cifar test_batch.bin && [ "$(ls "$WORK"/cifar10/data_batch_?.bin | wc -l)" = 5 ] ||
        { row SKIP "CIFAR-10, He's recipe" "files of CIFAR-10 are missing in CRESNET_CIFAR ($CRESNET_CIFAR)"; return; }
    [ -d "$run" ] || [ ! -f "$CRESNET_RUN" ] || { mkdir -p "$run" && tar -xzf "$CRESNET_RUN" -C "$run"; }
    gpu || more="--steps 3"
    # After the first interrupt, cresnet finishes the step, saves and ends. Calling this part again continues the run.
    # shellcheck disable=SC2086
    timeout -s INT $((PART_LIMIT - 15)) "$bin" train configs/cifar10-resnet20-he.ini data.root="$WORK/cifar10" "$(device_option)" data.workers=12 \
        train.keep=1 train.log_every=390 --resume auto -o "$run" ${CIFAR_VALUES:-} $more
    code=$?
    tar -czf "$OUT/cifar-run.tar.gz" -C "$run" .
    tail -n 5 "$run/log.jsonl"
    python3 - "$run/log.jsonl" >"$WORK/cifar.txt" <<'PY'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
t, e = [l for l in lines if l["event"] == "train"], [l for l in lines if l["event"] == "eval"]
done = any(l["event"] == "done" for l in lines)
print("done" if done else "not done", "step %d, %.0f img/s, data wait %.2f, last %.2f %% of %d at step %d" % (t[-1]["step"], t[-1]["images_per_s"],
      t[-1]["data_wait"], 100 * e[-1]["top1"] if e else 0, e[-1]["images"] if e else 0, e[-1]["step"] if e else 0))
PY
    if ! grep -q '^done' "$WORK/cifar.txt"; then
        row INFO "CIFAR-10, He's recipe" "$(cat "$WORK/cifar.txt") (exit $code); call this part again to continue, or continue elsewhere with cifar-run.tar.gz"
    else
        holds "$(sed -n 's/.*last \([0-9.]*\) %.*/\1/p' "$WORK/cifar.txt") >= 91.2"
        verdict $? "CIFAR-10, He's recipe" "$(cat "$WORK/cifar.txt"); target 91.2"
    fi
}

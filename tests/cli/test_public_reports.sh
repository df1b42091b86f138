#!/usr/bin/env bash
# test_public_reports.sh: what users of other trainers reported, tried here. docs/robustness.md lists the threads.
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }
# log RUN EVENT MEMBER...: a line for each event of a run's log, with these members
log() {
    python3 - "$@" <<'PY'
import json, sys
for line in open(sys.argv[1] + "/log.jsonl"):
    e = json.loads(line)
    if e["event"] == sys.argv[2]: print(*[e.get(m) for m in sys.argv[3:]])
PY
}
# images FOLDER CLASS COUNT [WIDTH HEIGHT]: PNG images, each of one colour
images() {
    python_tools - "$@" <<'PY'
import os, sys
import png
folder, name, count, *size = sys.argv[1:]
w, h = map(int, size) if size else (16, 16)
os.makedirs(f"{folder}/{name}", exist_ok=True)
for i in range(int(count)): png.write(f"{folder}/{name}/{i}.png", w, h, lambda x, y: (37 * i % 256, 200 * (name == "a"), 80))
PY
}
{ tiny_model; cat; } >folder.ini <<'INI'
[data]
kind = folder
image_size = 16
workers = 2
[train]
batch = 4
epochs = 1
device = cpu
threads = 1
INI

# ---- resuming: learning rate of a cosine, averages, best checkpoint, patience (pytorch 60265, Lightning 5455, yolov5 292; lightly-train 892,
# YOLOX 1318; ConvNeXt 94, rf-detr 969; Lightning 18727) ----
keys="schedule.kind=cosine schedule.warmup_epochs=1 ema.decay=0.9 train.save_every=8 train.eval_every=1 train.log_every=1 train.patience=100"
run train tiny.ini -o whole $keys -q; expect "a run without interruption" 0
run train tiny.ini -o parts $keys -q --steps 32; run train tiny.ini -o parts $keys -q --resume auto --steps 64; expect "a run in two parts" 0
is "learning rates are those of the whole run" "$(log parts train step lr)" "$(log whole train step lr)"
is "evaluations, of averages too" "$(log parts eval step top1 loss ema_top1 ema_loss | uniq)" "$(log whole eval step top1 loss ema_top1 ema_loss)"
holds "weights are bitwise identical" cmp whole/last/model.safetensors parts/last/model.safetensors
is "the same best checkpoint" "$(readlink parts/best) $(cat parts/best.json)" "$(readlink whole/best) $(cat whole/best.json)"

run train tiny.ini -o waits -q optim.lr=0 train.eval_every=1 train.save_every=8 train.epochs=10 train.patience=3; expect "patience" 0
run train tiny.ini -o waited -q optim.lr=0 train.eval_every=1 train.save_every=8 train.epochs=10 train.patience=3 --steps 32
run train tiny.ini -o waited -q optim.lr=0 train.eval_every=1 train.save_every=8 train.epochs=10 train.patience=3 --resume auto --steps 160
is "patience counts on after resuming" "$(readlink waited/last)" "$(readlink waits/last)"
is "patience has ended the run" "$([ "$(readlink waits/last)" != step-160 ] && echo yes)" yes

# ---- a metric that is not finite takes no best checkpoint, and says so (Lightning 1008, 2636) ----
run train tiny.ini -o nan optim.lr=1000 train.eval_every=1 -q; expect "a training that diverges" 1 "optim.lr"
holds "no best checkpoint with a NaN" sh -c '! grep -qi nan nan/best.json 2>/dev/null'

# ---- a validation set without images of a class: numbers of classes do not move in silence (timm 211, 957; ultralytics 13936) ----
for c in a b c; do images V/train $c 8; images V/val $c 4; done
run train folder.ini data.root=V -o V1 -q; expect "three classes" 0
cp -r V L && rm -r L/val/b; run train folder.ini data.root=L -o L1; expect "no folder of class b" 1 "L/train has the class b and L/val does not"
mkdir L/val/b; run train folder.ini data.root=L -o L2; expect "an empty folder of class b" 1 "L/val/b: no image"
mkdir -p M; cp -r V/train M; mkdir M/test; run train folder.ini data.root=M -o M1; expect "test images without classes" 1 "a folder named test is a split"

# ---- names of the validation folder (ultralytics 4310, huggingface datasets 4839) ----
for name in validation valid test; do
    rm -rf N && mkdir N && cp -r V/train N/train && cp -r V/val N/$name
    run train folder.ini data.root=N -o N-$name -q; expect "the folder $name" 0
    is "the folder $name: the same scores" "$(log N-$name eval top1 loss)" "$(log V1 eval top1 loss)"
done

# ---- hidden folders are no classes (tensorflow 46595) ----
cp -r V H && mkdir H/train/.ipynb_checkpoints && cp H/train/a/0.png H/train/.ipynb_checkpoints && touch H/.DS_Store H/train/.DS_Store H/train/a/.DS_Store
run train folder.ini data.root=H -o H1 -q; expect "hidden folders and files" 0
is "hidden folders: three classes" "$(wc -l <H1/last/classes.txt)" 3

# ---- a truncated image is named, and the training goes on (fastai 2249, vision 138, detectron2 143) ----
cp -r V T && head -c 60 T/train/a/3.png >t && mv t T/train/a/3.png
run train folder.ini data.root=T -o T1; expect "a truncated image" 0 "T/train/a/3.png"
run train folder.ini data.root=T data.corrupt=fatal -o T2; expect "a truncated image, fatal" 1 "T/train/a/3.png"

# ---- other contents than the suffix says; a format that is not read is named (DALI 785, 842, 5151) ----
cp -r V S && mv S/train/a/0.png S/train/a/0.jpg && printf 'GIF89a\1\0\1\0\200\0\0\0\0\0\377\377\377,\0\0\0\0\1\0\1\0\0\2\2D\1\0;' >S/train/a/1.png
run train folder.ini data.root=S -o S1; expect "a GIF named .png" 0 "S/train/a/1.png"
is "a PNG named .jpg is read" "$(grep -c 'S/train/a/0.jpg' stderr)" 0

# ---- images of several sizes in one batch (ultralytics 5985) ----
images W/train a 4 40 20; images W/train b 4 20 40; images W/val a 2 31 17; images W/val b 2 9 60
run train folder.ini data.root=W -o W1 -q; expect "several sizes" 0
run eval W1 train.eval_batch=4; expect "several sizes: eval" 0

# ---- the last, smaller batch counts by its images (Lightning 2924, netspresso-trainer 360) ----
for batch in 1 5 16; do run eval whole train.eval_batch=$batch --json; field loss | cut -c 1-7; done >losses
is "one loss for all batch sizes" "$(sort -u losses | wc -l)" 1

# ---- 16-bit greyscale PNGs are not white (vision 2218, pytorch 20524) ----
python_tools - <<'PY'
import os
import png
for split in ("train", "val"):
    for name, value in (("a", 0x2000), ("b", 0xc000)):
        os.makedirs(f"G/{split}/{name}", exist_ok=True)
        for i in range(8): png.write(f"G/{split}/{name}/{i}.png", 16, 16, lambda x, y: (value + 257 * i,), bits=16)
PY
run data stat G --json; cp stdout stat.json
holds "16-bit greyscale: a mean between the values" python3 - <<'PY'
import json, re
text = open("stat.json").read()
means = [float(m) for m in re.findall(r'"mean": ?\[([0-9.]+)', text)]
want = (0x2000 / 65535 + 0xc000 / 65535) / 2 + 3.5 * 257 / 65535
assert means and all(abs(m - want) < 0.01 for m in means), (means, want)
PY

# ---- a set with fewer images than workers or than a batch (ffcv 1, 287; PaddleRec 701) ----
images F/train a 2; images F/train b 1; images F/val a 1; images F/val b 1
run data pack folder.ini data.root=F FP -j 16 -q; expect "pack: more workers than images" 0
run data verify FP; expect "verify" 0
run train folder.ini data.root=F -b 1 data.workers=16 -o F1 -q; expect "batches of one image" 0
is "batches of one image: three steps" "$(readlink F1/last)" step-3
run train folder.ini data.root=F -b 64 -o F2; expect "a batch larger than the set" 2 "64"

# ---- a packed file does not depend on the number of workers (ffcv 142) ----
for workers in 1 7; do run data pack folder.ini data.root=V P$workers -j $workers -q; expect "pack with $workers workers" 0; done
holds "the same bytes" cmp P1/train.crpk P7/train.crpk

# ---- a validation split by fraction takes images of all classes, not the last names (keras 15047, keras-preprocessing 254) ----
images K a 10; images K b 10
run train folder.ini data.root=K data.val_fraction=0.2 -o K1 -q; expect "a split by fraction" 0
run eval K1 data.root=K data.val_fraction=0.2 --per-class --json
holds "both classes are in the validation set" python3 - <<'PY'
import json
assert [c["images"] for c in json.loads(open("stdout").readline())["per_class"]] == [2, 2]
PY

# ---- a learning rate search of a few steps (fastai 3458, 3658, Lightning 13845, 3241) ----
for steps in 1 2 5; do
    run lr-find tiny.ini --steps $steps
    case $rc in 0) pass ;; 1 | 2) is "lr-find with $steps steps: one error" "$(grep -c '^cresnet lr-find: ' stderr)" 1 ;; *) fail "lr-find with $steps steps: exit $rc" ;; esac
done
sum_up

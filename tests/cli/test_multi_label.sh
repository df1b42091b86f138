#!/usr/bin/env bash
# test_multi_label.sh: data.multi_label: lists with several labels per image: training on drawn figures to a mean average precision of 0.95,
# the scores against an independent computation, thresholds, predict, resume, ranks, ONNX, libcresnet, what is said about mistakes.
. "$(dirname "$0")/../harness/cli_support.sh"

holds "the figures" python3 "$source_dir/scripts/multi-label-shapes.py" shapes 480 120
is "first lines" "$(head -3 shapes/train.csv | cut -d, -f1 | tr '\n' ' ')" "file train/0000.png train/0001.png "
cat >net.ini <<'INI'
[model]
arch = custom
block = basic
stem = cifar
depths = 1,1,1
widths = 8,12,16
[data]
kind = csv
root = shapes
multi_label = yes
image_size = 24
crop = none
workers = 1
[train]
batch = 16
epochs = 6
device = cpu
threads = 1
[optim]
kind = adamw
lr = 0.01
[schedule]
kind = one_cycle
INI

# ---- training ----
run train net.ini -o run; expect "train" 0 "csv: 480 images, 4 classes" "mAP " "all labels correct"
last=$(grep '"event":"eval"' run/log.jsonl | tail -1)
holds "mean average precision of at least 0.95: $last" python3 -c 'import json, sys; assert json.loads(sys.argv[1])["map"] >= 0.95' "$last"
is "best.json" "$(python3 -c 'import json; print(sorted(json.load(open("run/best.json"))))')" "['crc32c', 'map', 'step']"
is "a threshold for each class" "$(wc -l <run/best/thresholds.txt)" 4
is "the classes" "$(tr '\n' ' ' <run/best/classes.txt)" "bars cross disc frame "

# ---- evaluation: JSON and table, against a computation from the table's probabilities and the list ----
run eval run --per-class --json; expect "eval --json" 0; cp stdout eval.json
run eval run --csv predictions.csv; expect "eval --csv" 0 "mAP " "macro F1"
cat >check.py <<'PY'
import csv, json, math, os
scores = json.load(open("eval.json"))
names = ["bars", "cross", "disc", "frame"]
truth = {os.path.abspath("shapes/" + r["file"]): set(filter(None, r["labels"].split(";"))) for r in csv.DictReader(open("shapes/val.csv"))}
rows = list(csv.DictReader(open("predictions.csv")))
thresholds = [float(line) for line in open("run/best/thresholds.txt")]
assert len(rows) == scores["images"] == 120
assert all(set(filter(None, r["class"].split(";"))) == truth[r["file"]] for r in rows), "labels"
assert all(set(filter(None, r["predicted_class"].split(";"))) == {n for n, t in zip(names, thresholds) if float(r["p:" + n]) > t} for r in rows)
means = []
for k, name in enumerate(names):
    ranked = sorted(((float(r["p:" + name]), name in truth[r["file"]]) for r in rows), reverse=True)
    positives = sum(has for _, has in ranked)
    found, ap = 0, 0.0
    for i, (_, has) in enumerate(ranked, 1):  # equal probabilities would need a group; there are none
        found += has
        ap += has * found / i / positives
    assert len({p for p, _ in ranked}) == len(ranked), "ties"
    one = scores["per_class"][k]
    assert one["class"] == name and one["images"] == positives and abs(one["average_precision"] - ap) < 1e-6, (one, ap)
    predicted = sum(p > thresholds[k] for p, _ in ranked)
    correct = sum(has and p > thresholds[k] for p, has in ranked)
    assert (one["predicted"], one["correct"]) == (predicted, correct) and abs(one["f1"] - 2 * correct / (predicted + positives)) < 1e-6
    means.append(ap)
assert abs(scores["map"] - sum(means) / 4) < 1e-6
evaluations = [json.loads(line) for line in open("run/log.jsonl") if '"event":"eval"' in line]
best = next(e for e in evaluations if e["step"] == json.load(open("run/best.json"))["step"])
assert len(best["average_precision"]) == 4 and max(abs(a - b) for a, b in zip(best["average_precision"], means)) < 1e-5, (best, means)
exact = sum({n for n in names if float(r["p:" + n]) > 0.5} == truth[r["file"]] for r in rows)
assert abs(scores["exact_match"] - exact / 120) < 1e-6
loss = sum(-math.log(p if n in truth[r["file"]] else 1 - p) for r in rows for n in names for p in [float(r["p:" + n])]) / 480
assert abs(scores["loss"] - loss) < 1e-4 * loss, (scores["loss"], loss)
PY
holds "average precision, F1, loss as computed here" python3 check.py
run eval run --per-class; expect "the table" 0 "threshold" "frame"
run eval run --tta flip --json; expect "test-time augmentation" 0; holds "its mAP" awk -v m="$(field map)" 'BEGIN { exit !(m > 0.9) }'
for option in "--confusion -" --temperature; do
    # shellcheck disable=SC2086
    run eval run $option; expect "eval $option" 2 "${option% *} needs one label per image"
done

# ---- predict ----
run predict run shapes/val --json -q; expect "predict" 0; holds "JSON" json_lines
cat >predicted.py <<'PY'
import csv, json, os
names = {os.path.relpath(r["file"]): r["predicted_class"] for r in csv.DictReader(open("predictions.csv"))}
for line in open("stdout"):
    one = json.loads(line)
    assert ";".join(sorted(l["class"] for l in one["labels"])) == names[one["image"]], one
    assert all(l["probability"] > l["threshold"] for l in one["labels"])
assert "" in names.values()
PY
holds "predict names the labels above their thresholds" python3 predicted.py
none=$(python3 -c 'import csv; print(next(r["file"] for r in csv.DictReader(open("predictions.csv")) if not r["predicted_class"]))')
run predict run "$none" -q; expect "an image without labels" 0 "no label"
run predict run "$none" --top 2 --json -q; is "--top" "$(python3 -c 'import json; print(len(json.load(open("stdout"))["top"]))')" 2
cp -rL run/best copy; printf '0\n0\n0\n0\n' >copy/thresholds.txt
run predict copy "$none" -q; is "thresholds of 0 give all labels" "$(grep -c % stdout)" 4
rm copy/thresholds.txt; run eval copy --per-class --json; is "without a file" "$(python3 -c 'import json; print({c["threshold"] for c in json.load(open("stdout"))["per_class"]})')" "{0.5}"
echo x >copy/thresholds.txt; run predict copy "$none" -q; expect "a wrong file" 1 "thresholds.txt:1: is no number from 0 to 1"

# ---- resume, ranks, moving averages, other losses ----
run train net.ini -o whole train.epochs=2 --steps 8 ema.decay=0.9 data.mixup=0.2 loss.class_weights=balanced train.label_smoothing=0.1 loss.focal_gamma=1 -q; expect "many options" 0 "moving averages: mAP"
run train net.ini -o half train.epochs=2 --steps 4 ema.decay=0.9 data.mixup=0.2 loss.class_weights=balanced train.label_smoothing=0.1 loss.focal_gamma=1 -q
run train net.ini -o half --resume auto train.steps=8 -q; expect "resumed" 0
holds "the same weights" cmp whole/last/model.safetensors half/last/model.safetensors
holds "the same thresholds" cmp whole/last/thresholds.txt half/last/thresholds.txt
run train net.ini -o half --resume auto train.steps=9 data.multi_label=no -q; expect "one label per image after several" 2 "data.multi_label"
run train net.ini -o two train.batch=8 --steps 3 --ranks 2 -q; expect "two ranks" 0; two=$(grep -o '"map":[0-9.]*' two/log.jsonl)
run eval two --json -q; is "the mAP of two ranks is that of all images" "\"map\":$(field map)" "$two"

# ---- export, other commands ----
run sweep net.ini optim.lr=0.01,0.02 --steps 30 -o sweep -q; expect "sweep" 0 "best mAP"; is "sweep: each run has a score" "$(grep -c '^done *[0-9.]* % ' stdout)" 2
run export run --onnx net.onnx; expect "ONNX" 0
holds "an output of sigmoids, and the thresholds" python3 -c 'b = open("net.onnx", "rb").read(); assert b"Sigmoid" in b and b"probabilities" in b and b"thresholds" in b'
run report run -o report.html; expect "report" 0; holds "mAP and classes" grep -q "average precision</th>" report.html; holds "the curve" grep -q "validation mAP" report.html
run data stat net.ini; expect "data stat" 0 "480 images, 4 classes"; is "images of a class" "$(awk '$2 == "disc" { print $4 }' stdout)" "$(grep -c disc shapes/val.csv)"
run data pack net.ini packed; expect "data pack" 2 "packed datasets have one label per image"; holds "data pack makes nothing" [ ! -e packed ]
library=$(dirname "$bin")/libcresnet.so
if [ -f "$library" ] && [ -z "${CRESNET_SANITIZE:-}" ] && numpy_python=$(python_with numpy); then
    cat >library.py <<'PY'
import csv, sys
import cresnet
rows = list(csv.DictReader(open("predictions.csv")))[:3]
with cresnet.Model("run", device="cpu") as model:
    assert model.info.multi_label
    assert [model.threshold(k) for k in range(5)] == [float(line) for line in open("run/best/thresholds.txt")] + [-1]
    result = model.classify_files([r["file"] for r in rows], top=4)
    for labels, probabilities, row in zip(result.labels, result.probabilities, rows):
        for label, p in zip(labels, probabilities):
            assert abs(p - float(row["p:" + model.class_name(label)])) < 1e-5
PY
    holds "libcresnet: sigmoids and thresholds" env CRESNET_LIBRARY="$library" PYTHONPATH="$source_dir/python" "$numpy_python" library.py
else skip "no libcresnet, or no python3 with numpy"; fi

# ---- mistakes ----
key() { run train net.ini -o bad "$1"; expect "$1" 2 "${@:2}"; }
key data.sampling=balanced "balanced needs one label per image"
key train.best=top5 "top5 needs one label per image"
run train tiny.ini -o bad train.best=map; expect "map with one label" 2 "map is for data.multi_label = yes"
mkdir wrong; cp -r shapes/train wrong
printf 'train/0000.png,a;b\n' >wrong/train.csv
run train net.ini -o bad data.root=wrong data.val_fraction=0.5 data.multi_label=no; expect "one label per image" 1 "each image must have one, unless data.multi_label = yes"
sum_up

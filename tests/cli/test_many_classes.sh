#!/usr/bin/env bash
# test_many_classes.sh: eval and report with 20,000 classes in memory that grows with the classes, not with their square; scores and confusion
# matrix, also of few classes, are those that Python computes from the table of predictions. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

there python3 || { skip "no python3"; sum_up 77; }
run data shapes drawn data.train_images=400 data.val_images=80
# list CLASSES: train.csv has an image of each class, val.csv 80 images
list() {
    python3 - "$1" <<'PY'
import glob, os, random, sys
classes = int(sys.argv[1])
random.seed(1)
train, val = (sorted(p[6:] for p in glob.glob(f"drawn/{s}/*/*.png")) for s in ("train", "val"))
os.makedirs("drawn/links", exist_ok=True)
for k in range(len(train), classes):
    path = f"links/{k}.png"
    if not os.path.exists("drawn/" + path): os.link("drawn/" + train[k % len(train)], "drawn/" + path)
    train.append(path)
name = [f"class {k:05d}" for k in range(classes)]
open("drawn/train.csv", "w").writelines(f"{p},{name[i % classes]}\n" for i, p in enumerate(train))
open("drawn/val.csv", "w").writelines(f"{p},{name[random.randrange(min(classes, 40)) * 7 % classes]}\n" for p in val)
PY
}
# truth: compares scores.json and matrix.csv with rows.csv
truth() {
    python3 - <<'PY'
import collections, csv, json, math
rows = [(r["class"], r["predicted_class"]) for r in csv.DictReader(open("rows.csv"))]
assert len(rows) == 80
cells, labels, predicted = collections.Counter(rows), collections.Counter(r[0] for r in rows), collections.Counter(r[1] for r in rows)
scores = json.load(open("scores.json"))
recall = precision = f1 = 0
order = {c["class"]: c["label"] for c in scores["per_class"]}
for c in scores["per_class"]:
    k = c["class"]
    right = cells[k, k]
    assert (c["images"], c["correct"], c["predicted"]) == (labels[k], right, predicted[k]), c
    wrong = [(-n, order[p], p) for (l, p), n in cells.items() if l == k and p != k]
    assert (c["confused_with"]["class"] if c["confused_with"] else None) == (min(wrong)[2] if wrong else None), (c, wrong)
    if labels[k]:
        recall += right / labels[k] / len(labels)
        precision += (right / predicted[k] if predicted[k] else 0) / len(labels)
        f1 += 2 * right / (labels[k] + predicted[k]) / len(labels)
assert math.isclose(scores["balanced_accuracy"], recall, abs_tol=1e-6) and math.isclose(scores["macro_f1"], f1, abs_tol=1e-6)
table = list(csv.reader(open("matrix.csv")))
if table[0][0] == "label":
    assert table[0] == ["label", "predicted", "images"] and len(scores["per_class"]) > 5000
    found = [(r[0], r[1], int(r[2])) for r in table[1:]]
    assert found == sorted(found)
else:
    assert table[0][0] == "label\\predicted" and len(table) == len(table[0]) == len(scores["per_class"]) + 1
    found = [(r[0], table[0][i + 1], int(n)) for r in table[1:] for i, n in enumerate(r[1:]) if n != "0"]
assert collections.Counter({f[:2]: f[2] for f in found}) == cells and len(found) == len(cells)
PY
}
{ tiny_model 4,8; cat; } >csv.ini <<'INI'
[data]
kind = csv
root = drawn
workers = 0
[train]
batch = 20
eval_batch = 8
steps = 1
device = cpu
threads = 1
INI
for classes in 3 80 20000; do
    list $classes
    rm -rf R && run train csv.ini -o R; expect "$classes classes: train" 0
    run eval R --per-class --json; expect "$classes classes: eval --per-class" 0 && cp stdout scores.json
    ( [ -n "${CRESNET_SANITIZE:-}" ] || ulimit -v 2000000 # 20,000 x 20,000 numbers of 8 bytes: 3,200,000 kB
      "$bin" eval R --confusion matrix.csv --force && "$bin" eval R --per-class && "$bin" report R -o page.html --force ) >limited 2>&1
    rc=$?
    is "$classes classes: within 2 GB: $(tail -c 300 limited)" $rc 0
    run eval R --csv rows.csv --force; expect "$classes classes: eval --csv" 0
    holds "$classes classes: scores and matrix" truth
done
has "the list is announced" "$(cat limited)" "the confusion matrix of 20000 classes is a list: a line label,predicted,images"
has "the page says that there is no matrix" "$(tr '\n' ' ' <page.html)" "A matrix of 20000 classes is too large for a page"
run eval R --confusion matrix.csv; expect "a list of ours is replaced" 0
echo "label,predicted" >other.csv
run eval R --confusion other.csv; expect "another list is not" 2 "other.csv"
sum_up

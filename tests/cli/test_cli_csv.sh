#!/usr/bin/env bash
# test_cli_csv.sh: the tables of eval --csv and predict --csv: their numbers against the scores and the other forms of output, quoting, names that
# a spreadsheet would take for formulas, unreadable images, standard output. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }

cat >images.py <<'PY'
import os
import png
def image(path, seed):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    png.write(path, 16, 16, lambda x, y: [(seed * 37 + 11 * x * (seed % 5) + 9 * y + c) % 256 for c in range(3)])
for k, name in enumerate(['=HYPERLINK("x")', "+a, b", "-c", "@d", "\uff1dwide", "plain"]):
    for i in range(5): image("set/train/%s/%d.png" % (name, i), 7 * k + i); image("set/val/%s/%d.png" % (name, i), 7 * k + i + 1)
image("more/=1+1.png", 3); image('more/a "b", c\nd.png', 4)
PY
python_tools images.py
printf 'not an image' >more/broken.png
{ tiny_model; printf '[data]\nkind = folder\nroot = set\nimage_size = 16\nworkers = 1\n[train]\nbatch = 6\nepochs = 1\neval_every = 0\ndevice = cpu\n'; } >csv.ini
run train csv.ini -o run -q; expect "train" 0
printf 'no image either' >"set/val/-c/1.png"
run eval run --csv eval.csv --confusion matrix.csv --json; expect "eval --csv" 0 '"corrupt": 1'; cp stdout eval.json
(cd more && CRESNET_BIN=$bin "$bin" predict ../run "=1+1.png" "a \"b\", c
d.png" broken.png --csv ../predict.csv >../list.txt 2>/dev/null); is "predict --csv with an unreadable image: exit code" $? 1
(cd more && "$bin" predict ../run "=1+1.png" "a \"b\", c
d.png" --json -k 6 >../predict.json 2>/dev/null)
cat >check.py <<'PY'
import csv, json, math
names = ["'+a, b", "'-c", '\'=HYPERLINK("x")', "'@d", "plain", "'\uff1dwide"]
def table(path): return list(csv.reader(open(path, newline="", encoding="utf-8"), strict=True))
def softmax_ok(p): return abs(sum(p) - 1) < 1e-5
rows, scores = table("eval.csv"), json.load(open("eval.json"))
assert rows[0] == ["file", "predicted_label", "predicted_class", "probability", "label", "class"] + ["p:" + n.lstrip("'") for n in names], rows[0]
assert len(rows) == 31 and all(len(r) == 12 for r in rows)
bad = [r for r in rows if not r[1]]
assert len(bad) == 1 and bad[0][0].endswith("/val/-c/1.png") and not any(bad[0][1:]), bad
loss = correct = 0
for r in rows[1:]:
    if r in bad: continue
    p = [float(x) for x in r[6:]]
    best = p.index(max(p))
    assert softmax_ok(p) and int(r[1]) == best and r[2] == names[best] and float(r[3]) == p[best], r
    assert r[5] == names[int(r[4])] and r[0].split("/")[-2] == r[5].lstrip("'"), r
    loss -= math.log(p[int(r[4])]) / 29
    correct += r[1] == r[4]
assert scores["images"] == 29 and correct == scores["correct"] and abs(loss - scores["loss"]) < 1e-5, (loss, correct, scores)
matrix = table("matrix.csv")
assert matrix[0][1:] == names and [r[0] for r in matrix[1:]] == names, matrix
for i in range(6):
    for k in range(6): assert int(matrix[i + 1][k + 1]) == sum(r[4] == str(i) and r[1] == str(k) for r in rows[1:])

rows = table("predict.csv")
assert rows[0] == ["file", "predicted_label", "predicted_class", "probability"] + ["p:" + n.lstrip("'") for n in names], rows[0]
assert [r[0] for r in rows[1:]] == ["./=1+1.png", 'a "b", c\nd.png', "broken.png"] and not any(rows[3][1:]), rows
for r, line in zip(rows[1:], open("predict.json")):
    top = json.loads(line)["top"]
    assert int(r[1]) == top[0]["label"]
    for t in top: assert abs(float(r[4 + t["label"]]) - t["probability"]) < 1e-6
PY
holds "the tables" python3 check.py
is "predict --csv FILE also prints the classes" "$(grep -c ' %  ' list.txt)" 10

# standard output carries the table alone
run eval run --csv -; holds "eval --csv -" cmp stdout eval.csv; holds "eval --csv -: the scores are on standard error" grep -q '^val: ' stderr
(cd more && "$bin" predict ../run "=1+1.png" "a \"b\", c
d.png" broken.png --csv - >../stdout 2>/dev/null); holds "predict --csv -" cmp stdout predict.csv
if [ -e /dev/full ]; then "$bin" eval run --csv - >/dev/full 2>stderr; rc=$? out='' err=$(cat stderr); expect "eval --csv - to a full disk" 1 "standard output"; fi
"$bin" eval run --csv - 2>stderr | head -c 1 >/dev/null; holds "eval --csv - to a closed pipe is no error" [ ! "$(grep error stderr)" ]

# mistakes; nothing is written
run eval run --csv - --confusion -; expect "--csv - --confusion -" 2 "name the same output"
run eval run --csv x.csv --confusion x.csv; expect "--csv and --confusion with one name" 2 "name the same output"
run predict run more --json --csv -; expect "predict --json --csv -" 2 "both print to standard output"
run eval run --csv none/x.csv; expect "--csv in a folder that does not exist" 1 "none/x.csv"
run predict run more/none.png --csv x.csv; expect "predict of no image" 1
run eval run --csv y.csv data.root=elsewhere; expect "an evaluation that fails" 2 "elsewhere"; holds "it leaves no file" [ ! -e y.csv ]
holds "no temporary files are left" [ -z "$(find . -name '*.tmp.*')" ]
sum_up

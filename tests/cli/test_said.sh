#!/usr/bin/env bash
# test_said.sh: what commands print about their results, their processes and long paths. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }

# ---- top-5 says nothing about five classes: not printed, but in JSON and logs ----
for classes in 5 6; do
    run train tiny.ini model.classes=$classes -o $classes --steps 3; expect "$classes classes: train" 0 "evaluation at step"
    is "$classes classes: train prints top-5" "$(grep -c 'evaluation at step.*top-5' stdout stderr | awk -F: '{ n += $2 } END { print (n > 0) }')" $((classes > 5))
    holds "$classes classes: the log has it" grep -q '"top5"' $classes/log.jsonl
    run eval $classes; expect "$classes classes: eval" 0 "top-1"
    is "$classes classes: eval prints top-5" "$(grep -c 'top-5' stdout)" $((classes > 5))
    run eval $classes --json; expect "$classes classes: eval --json" 0 '"top5": '
    run report $classes -o $classes.html; expect "$classes classes: report" 0
    is "$classes classes: the page has top-5" "$(grep -c 'top-5' $classes.html | awk '{ print ($1 > 0) }')" $((classes > 5))
    holds "$classes classes: as many cells as heads in the table of evaluations" python3 - $classes.html <<'PY'
import re, sys
table = re.search(r"Table of evaluations.*?</table>", open(sys.argv[1]).read(), re.S)[0]
rows = [len(re.findall("<t[hd]", r)) for r in re.findall(r"<tr>.*?</tr>", table, re.S)]
assert len(rows) > 1 and len(set(rows)) == 1, rows
PY
done

# ---- a fraction of a bound below 1 is not printed as 1 ----
run check tiny.ini; expect "check" 0 "the largest error is 0.9"
run check tiny.ini --json
holds "check --json" python3 -c 'import json; w = json.loads(open("stdout").readline())["worst"]; assert 0.9 < w < 1, w'

# ---- the name of the process, also of those that sweep starts ----
name_of() { cat /proc/"$1"/comm 2>/dev/null; }
if [ ! -e /proc/self/comm ]; then skip "no /proc"; else
    "$bin" train tiny.ini -o endless train.epochs=100000 -q >/dev/null 2>&1 & pid=$!
    await $pid grep -s '"event":"train"' endless/log.jsonl
    is "train: its name" "$(name_of $pid)" "$(basename "$bin" | cut -c 1-15)"
    kill -INT $pid; wait $pid
    "$bin" sweep tiny.ini -o S train.seed=1,2 --jobs 1 train.epochs=100000 >/dev/null 2>&1 & pid=$!
    await $pid grep -s '"event":"train"' S/train.seed=1/log.jsonl
    is "a run of sweep: its name" "$(name_of "$(cat /proc/$pid/task/*/children | awk '{ print $1 }')")" cresnet
    kill -INT $pid; wait $pid
fi

# ---- compress names a key once ----
run compress 6 --speedup 1.3 --epochs 1 train.measure=no train.threads=1 --multiple 2 train.eval_batch=8 -o C
is "compress: no command has a key twice" "$(grep '^\$ cresnet' stdout stderr | awk '{ n = 0; for (i = 1; i <= NF; i++) n += $i ~ /^train.eval_batch=/; if (n > 1) print }')" ""
holds "compress: the batch size is in the commands" grep -q '^\$ cresnet.*train.eval_batch=8' stdout stderr

# ---- a network that prune saved has no training to continue: not "the dataset has changed" ----
run prune 6 --sparsity 0.5 -o pruned; expect "prune" 0
run train pruned/last/config.ini --resume pruned; expect "resume of a pruned network" 2 "a network without a training that could continue" "model.weights=" "/pruned/step-0"
run train pruned/last/config.ini model.weights=pruned -o tuned --steps 2; expect "as it says" 0

# ---- a drawing has its colours also in viewers that know no variables of CSS ----
run plan tiny.ini --svg pool.svg -q; expect "plan --svg" 0
holds "each colour that is a variable is there without one before it" python3 - <<'PY'
import re
light = open("pool.svg").read().split("@media")[0]
found = re.findall(r"([a-z]+):var\(--[a-z0-9]+,(#[0-9a-f]+)\)", light)
assert len(found) == 10 and all(light.index(f"{p}:{c};{p}:var(") for p, c in found), found
PY

# ---- a path beyond the longest message does not hide the reason ----
mkdir -p list
{ echo "image,label"; python3 -c 'print("d/" * 3000 + "x.png,a")'; echo "y.png,b"; } >list/train.csv
run train files.ini data.kind=csv data.root=list data.val_fraction=0.5 -o L
expect "a path of 6 KB in a list" 1 "cresnet train: list/d/d/" ": is not there, but list/train.csv lists it"
sum_up

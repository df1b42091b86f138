#!/usr/bin/env bash
# test_cli_compress.sh: `cresnet compress`: tries, fine-tuning, int8; continues where it was stopped; what is refused writes nothing.
# Pruning uses estimates (train.measure=no), so that the choices do not depend on this machine. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
keys="train.measure=no train.threads=1 --multiple 4"

run train tiny.ini model.widths=8,16 model.shortcut=B -o R --steps 12 -q data.image_sizes=8@0,16@2 optim.head_lr=0.2 schedule.min_lr=0.05; expect "train" 0
checksums R >before

# ---- from pruning to the table ----
run compress R --speedup 1.4 --epochs 1 $keys --dry-run; expect "--dry-run" 0 "prune to 1.4 times as fast: channels" "fine-tune the best"; holds "writes nothing" [ ! -e R-compressed ]
run compress R --speedup 1.4 --epochs 1 $keys; expect "compress" 0 "not compressed" "BN re-estimated" "fine-tuned" "R-compressed/network is" "pruning 1.4x-channels" "fine-tuning 1.4x-"; cp stdout first
run eval R-compressed/network -q; expect "the result is a run folder" 0 "top-1"
holds "the fine-tuning has the run as teacher" grep -q "^teacher = .*/R$" R-compressed/compress.ini
is "a fifth of its learning rates, images of one size" "$(grep -E '^(lr|head_lr|min_lr|image_sizes) ' R-compressed/compress.ini | tr -d '\n')" "image_sizes =lr = 0.02head_lr = 0.04min_lr = 0"
holds "new BN statistics, the same weights" python_tools - <<'PY'
import glob
from weights_file import read
for bn in glob.glob("R-compressed/*/bn/last/model.safetensors"):
    a, b = read(bn.replace("/bn/", "/pruned/"))[0], read(bn)[0]
    assert a.keys() == b.keys()
    for k in a: assert (a[k] != b[k]) == ("running" in k), (bn, k)
PY
checksums R-compressed/*/*.json R-compressed/*/tuned/last/ >results
run compress R --speedup 1.4 --epochs 1 $keys; expect "again: nothing is left to do" 0 "R-compressed/network is"
holds "the same table" cmp stdout first; holds "nothing ran" sh -c '! grep -q "^\\$ cresnet" stderr'
time=R-compressed/$(dirname "$(readlink R-compressed/network)")/tuned.time.json; cp "$time" time.json; sed -i 's/\("ms[a-z_]*"\): [0-9.]*/\1: 1e4/g' "$time"
run compress R --speedup 1.4 --epochs 1 $keys; expect "measured slower than the target" 0 "warning: measured 0.00 times as fast, less than the target 1.4"; cp time.json "$time"

# ---- stopped, and continued ----
best=$(readlink R-compressed/network); name=${best%%/*}; rm -r R-compressed/"$name"/tuned* R-compressed/network
sed -i 's/^epochs = 1$/epochs = 200/' R-compressed/compress.ini
"$bin" compress R --speedup 1.4 --epochs 1 $keys >stdout 2>stderr & pid=$!
await $pid grep -s '"event":"train"' R-compressed/"$name"/tuned/log.jsonl
kill -INT $pid; wait $pid; is "Ctrl-C in the fine-tuning" "$?" 130; holds "it has saved" [ -e R-compressed/"$name"/tuned/last/model.safetensors ]
step=$(readlink R-compressed/"$name"/tuned/last); holds "a part of it" [ "${step#step-}" -gt 0 ]
sed -i 's/^epochs = 200$/epochs = 1/' R-compressed/compress.ini
rm -r R-compressed/"$name"/tuned; : >R-compressed/"$name"/tuned.json.partial
run compress R --speedup 1.4 --epochs 1 $keys; expect "the same command continues" 0 "R-compressed/network is $best"
checksums R-compressed/*/tuned/last/ >again; is "with the same weights" "$(grep model.safetensors again)" "$(grep model.safetensors results)"
"$bin" compress R --speedup 1.4 --epochs 1 $keys -o P >stdout 2>stderr & pid=$!
await $pid grep "pruning 1.4x" stderr
kill -INT $pid; wait $pid; is "Ctrl-C while it prunes" "$?" 130; holds "it says how to go on" grep -q "stopped: the same command continues" stderr
rm R-compressed/"$name"/bn.json; run compress R --speedup 1.4 --epochs 1 $keys; expect "a step that was killed at its end is done again" 0

# ---- int8, a limit for the drop ----
run compress R --speedup 1.2 --int8 --epochs 1 $keys quant.images=8 -o Q/; expect "--int8" 0 "int8 " "Q/network is 1.2x-channels/int8"
run eval Q/network -q; expect "evaluating it" 0 "top-1"; sed 's/"top1": [0-9.]*/"top1": 1.0/' Q/dense.eval.json >d; mv d Q/dense.eval.json
run compress R --speedup 1.2 --int8 --epochs 1 --max-drop 0.1 $keys quant.images=8 -o Q; expect "a drop that cannot be kept" 1 "more than --max-drop 0.1, and by more than that for all smaller speedups that were tried"

# ---- what is refused ----
refused "no target" 2 "--speedup X" compress R -o X
for x in 1 0 nan 2x ''; do refused "--speedup '$x'" 2 "above 1" compress R --speedup "$x" -o X; done
refused "a quantised run" 2 "a quantised network cannot be compressed" compress Q/network --speedup 2 -o X
run compress R --speedup 1.3 -o R-compressed; expect "another target in this folder" 2 "was made for" "choose another folder"
refused "a key that the fine-tuning cannot have" 2 "excludes distill.teacher" compress R --speedup 1.3 -o Y data.image_sizes=8@0,16@1; is "its file is not kept" "$(ls Y)" compress.json
run compress R --speedup 1.3 -o R; expect "a folder in use" 2 "not empty"
run compress R --speedup 90 --epochs 1 $keys -o Z; expect "a speedup that no pattern reaches" 2 "no pattern is fast enough: --speedup 90 cannot be reached on this device; the reason of each pattern is printed above" "cannot be reached: the minimum is"
is "all patterns were tried: none is advised" "$(grep -c 'auto for all' stderr)" 0
checksums R >after; holds "the run is as it was" cmp before after
sum_up

#!/usr/bin/env bash
# test_cli_weights.sh: which weights of a run the commands use: the best checkpoint and its moving averages, --last, --step, --ema, --no-ema; and
# where exported files go. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# ---- a run whose best checkpoint is step-6 and whose newest is step-9, both with moving averages ----
run train tiny.ini -o R --steps 9 ema.decay=0.5 train.keep=9 -q; expect "train" 0
ln -sfn step-6 R/best
echo '{"step":6,"top1":0.921,"raw_top1":0.875,"ema_top1":0.921}' >R/best.json
loss() { run eval "$@" --json; field loss; } # loss ARGS...: the loss of `eval ARGS`
says() { holds "$1" grep -qF "$2" stderr; }   # says NAME TEXT: the last run printed TEXT on standard error
best_raw=$(loss R/step-6/model.safetensors) best_ema=$(loss R/step-6/ema.safetensors)
last_raw=$(loss R/step-9/model.safetensors) last_ema=$(loss R/step-9/ema.safetensors) first_ema=$(loss R/step-3/ema.safetensors)
is "five checkpoints differ" "$(printf '%s\n' "$best_raw" "$best_ema" "$last_raw" "$last_ema" "$first_ema" | sort -u | wc -l)" 5
is "eval of a run: the averages of best" "$(loss R)" "$best_ema"
says "eval names its weights: the line" "weights: R/step-6 (best, top-1 92.10 %), moving averages"
is "eval names its weights once" "$(grep -c '^weights' stderr)" 1
is "eval --json names the file" "$(field weights)" R/step-6/ema.safetensors
is "eval --last" "$(loss R --last)" "$last_ema"; says "eval --last: the line" "weights: R/step-9 (last), moving averages"
is "eval --step 3" "$(loss R --step 3)" "$first_ema"; says "eval --step: the line" "weights: R/step-3, moving averages"
is "eval --no-ema" "$(loss R --no-ema)" "$best_raw"; says "eval --no-ema: the line" "weights: R/step-6 (best, top-1 87.50 %); the moving averages have top-1 92.10 %"
is "eval --last --no-ema" "$(loss R --last --no-ema)" "$last_raw"
is "eval of the link best" "$(loss R/best)" "$best_ema"
is "eval of the link last, with a slash" "$(loss R/last/)" "$last_ema"
is "eval within the run folder" "$(cd R && "$bin" eval step-3 --json -q | sed 's/.*"loss": \([0-9.]*\).*/\1/')" "$first_ema"
is "eval CONFIG --weights RUN" "$(loss tiny.ini --weights R)" "$best_ema"
is "eval CONFIG --weights RUN --last" "$(loss tiny.ini --weights R --last)" "$last_ema"

# ---- the other commands take the same ----
run export R -o best.safetensors; expect "export names its weights" 0 "weights: R/step-6 (best, top-1 92.10 %), moving averages"
holds "export of a run: the averages of best" same_tensors best.safetensors R/step-6/ema.safetensors
run export R --last --no-ema -o last.safetensors; holds "export --last --no-ema" same_tensors last.safetensors R/step-9/model.safetensors
run export R --step 3 -o first.safetensors; holds "export --step" same_tensors first.safetensors R/step-3/ema.safetensors
run export R --onnx run.onnx -q; is "export -q says nothing" "$err" ""; run export R/step-6/ema.safetensors --onnx best.onnx; holds "export --onnx of a run" cmp run.onnx best.onnx
run data shapes images data.train_images=10 data.val_images=10; image=$(find images/val -name '*.png' | sort | head -1)
run predict R "$image" --json; cp stdout run.json; expect "predict names its weights" 0 "weights: R/step-6 (best"
run predict R/step-6/ema.safetensors "$image" --json; holds "predict of a run" cmp run.json stdout
run predict R "$image" --json --last; cp stdout run.json
run predict R/step-9/ema.safetensors "$image" --json; holds "predict --last" cmp run.json stdout
run prune R --sparsity 0.5 -o P; expect "prune names its weights" 0 "weights: R/step-6 (best"
run prune R/step-6/ema.safetensors --sparsity 0.5 -o P2; holds "prune of a run" cmp P/last/model.safetensors P2/last/model.safetensors
run report R -o r.html; expect "report names its weights" 0 "weights: R/step-6 (best, top-1 92.10 %), moving averages"
holds "the page is about the averages of best" grep -q "is about the moving averages of step-6" r.html
run report R --last --no-ema -o r.html; expect "report --last --no-ema" 0 "weights: R/step-9 (last)"
holds "the page is about last" grep -q "of step-9" r.html
run plan R --json; expect "plan of a run" 0 '"batch": 4'

# ---- where exported files go: the name says the format, - is standard output ----
run export R -o named.onnx; expect "export -o x.onnx" 0 "exported to named.onnx"; holds "export -o x.onnx writes ONNX" cmp named.onnx run.onnx
run export R -o folded.onnx --fold train.batch=2; expect "export -o x.onnx takes --fold and keys" 0
for name in x.pth x.pt x.pth.tar; do
    run export R -o $name; expect "export -o $name" 2 "PyTorch" "-o FILE.safetensors" "cresnet export FILE.pth"
done
run export R --onnx x.pt; expect "export --onnx x.pt" 2 "PyTorch"
run export R --onnx x.safetensors; expect "export --onnx x.safetensors" 2 "give -o x.safetensors"
holds "what was refused writes nothing" sh -c '! ls x.* 2>/dev/null | grep -q .'
mkdir tmp; export TMPDIR=$work/tmp
run export R -o -; says "export -o -: messages are on standard error" "weights: R/step-6"; holds "export -o -" cmp stdout best.safetensors
run export R --onnx -; holds "export --onnx -" cmp stdout run.onnx
"$bin" export R -o - 2>stderr | head -c 10 >/dev/null; holds "export -o - to a closed pipe is no error" [ ! "$(grep error stderr)" ]
if [ -e /dev/full ]; then "$bin" export R -o - >/dev/full 2>stderr; rc=$?; out=; err=$(cat stderr); expect "export -o - to a full disk" 1 "standard output"; fi
holds "no temporary files are left" [ ! "$(ls tmp)" ]; unset TMPDIR
run report R --no-eval -o -; holds "report -o -" grep -q "</html>" stdout; says "report -o -: the message" "standard output: "
run eval R --confusion matrix.csv; run eval R --confusion -; holds "eval --confusion -" cmp stdout matrix.csv; says "eval --confusion -: the scores" "val: "
run eval R --confusion - --json; holds "eval --confusion - --json" cmp stdout matrix.csv; says "eval --confusion - --json: the scores" '"loss": '
run prune R --sparsity 0.5 -o -; expect "prune -o -" 2 "-o -" "name a folder"
run train tiny.ini -o -; expect "train -o -" 2 "-o -"
run plan tiny.ini --svg -; expect "plan --svg -" 2 "--svg -"
holds "no file is named -" [ ! -e ./- ]

# ---- mistakes ----
run eval R --step 7; expect "no such step" 2 "R: has no checkpoint of step 7; it has the steps: 3, 6, 9"
run eval R --step x; expect "--step x" 2 "--step x: must be an integer"
run eval R --last --step 3; expect "--last and --step" 2 "exclude each other"
run eval R --ema --no-ema; expect "--ema and --no-ema" 2 "exclude each other"
run eval R/best --last; expect "--last of one checkpoint" 2 "--last needs a run folder"
run eval R/best/model.safetensors --last; expect "--last of a file" 2 "--last and a file of weights"
run eval tiny.ini --last; expect "--last of a configuration" 2 "--last needs a run" "--weights FILE"
run export R/last/model.safetensors --ema -o x.safetensors; expect "export --ema of a file" 2 "--ema and a file of weights"
run plan R --last; expect "--last of another command" 2 "option --last belongs to cresnet lr-find, eval"
rm R/best; run eval R; expect "without best: the newest" 0 "weights: R/step-9 (last), moving averages"
ln -s nowhere R/best; run eval R; expect "best is another link: the newest" 0 "warning: checkpoint skipped: R/best" "weights: R/step-9 (last)"; rm R/best
ln -s step-7 R/best; run eval R; expect "best names nothing: the newest" 0 "warning: checkpoint skipped" "weights: R/step-9 (last)"
echo 'no JSON' >R/best.json; ln -sfn step-6 R/best; run eval R; expect "best.json that cannot be read" 0 "weights: R/step-6 (best), moving averages"
cp -rL R copy; run eval copy; expect "a copy of a run without links" 0 "weights: copy/best (best), moving averages"

# ---- best of a run that prunes: earlier checkpoints are not pruned, so they do not count ----
gradual='--seed 2 prune.sparsity=0.95 prune.start=0.5 prune.end=2 prune.frequency=8 -q' # prunes at steps 16, 24 and 32
top1() { sed -n "s/.*\"event\":\"eval\",\"step\":$1,.*\"top1\":\([0-9.]*\).*/\1/p" G/log.jsonl | head -1; }
# shellcheck disable=SC2086 # words on purpose
{
    run train tiny.ini -o G $gradual --steps 48; expect "train that prunes" 0
    run train tiny.ini -o GR $gradual --steps 28; expect "train that prunes, the first half" 0
    run train tiny.ini -o GR $gradual --resume auto --steps 48; expect "train that prunes, the second half" 0
}
holds "the accuracy was higher before the last pruning" python3 -c "assert $(top1 16) > $(top1 32)"
is "best is fully pruned" "$(readlink G/best) $(readlink GR/best)" "step-32 step-32"
sum_up

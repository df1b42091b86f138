#!/usr/bin/env bash
# test_reproduce.sh: scripts/reproduce.sh: a row within its spread passes, a row beyond it fails; one seed; finished trainings are not repeated;
# a training that fails is no result. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"
export CRESNET=$bin RUNS=$work/runs RESULTS=$work/results.md
values="train.epochs=1 data.train_images=320 data.val_images=100 data.workers=1 train.eval_every=1"

# page MEAN LOWEST HIGHEST: the row `two` of two seeds and the row `one` of one
page() {
    { echo "| row | CONFIG | VALUES | seeds | top-1, % | lowest, % | highest, % |"; echo "|---|---|---|---:|---:|---:|---:|"
      echo "| \`two\` | \`demo\` | \`$values\` | 2 | $1 | $2 | $3 |"; echo "| \`one\` | \`demo\` | \`$values\` | 1 | $1 | $1 | $1 |"; } >"$RESULTS"
}
reproduce() { "$source_dir/scripts/reproduce.sh" "$@"; }

page 50 40 60
ends "without a row" 2 reproduce
has "it lists the rows" "$said" "  two"
ends "an unknown row" 2 reproduce three
ends "--dry-run" 0 reproduce --dry-run two optim.lr=0.2
has "... prints the commands" "$said" "configs/demo.ini $values train.seed=2 optim.lr=0.2"
holds "... and trains nothing" [ ! -e "$RUNS" ]

reproduce two >said.txt 2>errors.txt # the true figures of this machine
mean=$(sed -n 's/.* two: \([0-9.]*\) %.*/\1/p' said.txt)
holds "a mean of $(cat said.txt errors.txt)" [ -n "$mean" ]
is "... of both seeds" "$(grep -c '^seed [12]: .* of 100 images' errors.txt)" 2
top() { awk -F'"top1":' '/"event":"eval"/ { split($2, a, ","); print 100 * a[1] }' "$RUNS/two-$1/log.jsonl"; }
is "... of the last evaluations" "$mean" "$(echo "$(top 1) $(top 2)" | awk '{ printf "%.2f", ($1 + $2) / 2 }')"
cp "$RUNS/two-1/log.jsonl" before.jsonl

# with MEAN+X and a spread of 2
shifted() { page "$(echo "$mean $1" | awk '{ print $1 + $2 }')" 0 2; }
shifted 1.9; ends "1.9 below" 0 reproduce two; has "... passes" "$said" "PASS two"
shifted -1.9; ends "1.9 above" 0 reproduce two; has "... passes" "$said" "PASS two"
shifted 2.1; ends "2.1 below" 1 reproduce two; has "... fails" "$said" "FAIL two"
shifted -2.1; ends "2.1 above" 1 reproduce two; has "... fails" "$said" "FAIL two"
holds "finished trainings are not repeated" cmp "$RUNS/two-1/log.jsonl" before.jsonl

# One seed: three standard errors of a difference, 300 * sqrt(2 * 0.25 / 100) = 21.2 at 50 %.
mv "$RUNS/two-1" "$RUNS/one-1"
one() { printf '{"event":"eval","step":5,"images":100,"correct":1,"top1":%s,"top5":1}\n{"event":"done","time":1}\n' "$1" >"$RUNS/one-1/log.jsonl"; }
page 50 50 50
one 0.71; ends "one seed, 21 points" 0 reproduce one; has "... passes" "$said" "allowed 21.21"
one 0.72; ends "one seed, 22 points" 1 reproduce one; has "... fails" "$said" "FAIL one"
echo '{"event":"final_tta","step":5,"tta":"flip","correct":50,"top1":0.5}' >>"$RUNS/one-1/log.jsonl"
ends "the last evaluation counts, with mirror images too" 0 reproduce one; has "... is it" "$said" "PASS one: 50.00 %"

ends "a training that fails" 2 reproduce two optim.lr=x
holds "... is no result" [ "$said" = "${said/PASS/}" ]
sum_up

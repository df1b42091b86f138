#!/usr/bin/env bash
# test_quant_train.sh: training with quantised values (quant.train): it starts from weights in floating point, resumes bitwise identically,
# becomes an int8 checkpoint with the same score, and keeps the masks of pruned weights. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

cat >shapes.ini <<'INI'
[model]
arch = custom
depths = 1,1
widths = 8,16
[data]
kind = shapes
root = shapes
train_images = 640
val_images = 320
workers = 0
[train]
batch = 32
epochs = 4
device = cpu
threads = 1
eval_every = 1
log_every = 10
[optim]
lr = 0.1
INI
correct() { sed -n 's/.*"correct":\([0-9]*\).*/\1/p' "$1/log.jsonl" | tail -1; }
run train shapes.ini -o float -q; expect "in floating point" 0
quant="quant.type=int8 quant.train=yes optim.lr=0.01"
run train shapes.ini -o plain -q quant.type=int8; expect "int8 without quant.train" 2 "quant.train=yes"

# 1. from weights without scales
run train shapes.ini model.weights=float/last -o tuned -q --epochs 2 $quant; expect "training with quantised values" 0
before=$(correct float) after=$(correct tuned)
if [ "$after" -ge $((before - 16)) ]; then pass; else fail "accuracy: $after of 320 correct, $before before"; fi

# 2. resumed: the same bytes, scales included
run train shapes.ini model.weights=float/last -o halves -q --epochs 2 $quant --steps 20; expect "the first half" 0
run train shapes.ini --resume halves -q --epochs 2 --steps 0 $quant model.weights=float/last; expect "the second half" 0
holds "the same weights and scales" cmp tuned/last/model.safetensors halves/last/model.safetensors
holds "scales are in the file" grep -q -a 'relu.scale' tuned/last/model.safetensors

# 3. as integers: the score of the last evaluation of the training, which ran on the same integers
run quantize tuned --last -o int8 --device cpu --json -q; expect "quantize" 0 "\"correct\": $after"
run eval int8 --device cpu --json -q; expect "eval of the integers" 0 "\"correct\": $after"
holds "8-bit weights" grep -q -a '"I8"' int8/last/model.safetensors

# 4. pruned weights stay 0
run prune float --sparsity 0.75 -o pruned -q; expect "prune" 0
run train shapes.ini model.weights=pruned -o pruned-tuned -q --epochs 1 $quant; expect "pruned and quantised" 0
run export pruned-tuned/last -o dense.safetensors -q; expect "export" 0
zeros=$(sed -n 's/.*"event":"sparsity".*"pruned":\([0-9]*\).*/\1/p' pruned-tuned/log.jsonl | tail -1)
if [ "${zeros:-0}" -gt 0 ]; then pass; else fail "the masks are not in the log"; fi
sum_up

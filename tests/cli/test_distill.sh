#!/usr/bin/env bash
# test_distill.sh: knowledge distillation ([distill]): training with a teacher, resuming it bitwise, a teacher that has changed, several
# ranks, and teachers that do not fit. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

{ tiny_model; synthetic_data; cat; } >net.ini <<'INI'
mixup = 0.2

[train]
batch = 8
epochs = 1
steps = 6
label_smoothing = 0.1
device = cpu
threads = 1
INI
train() { timeout 600 "$bin" train net.ini -q "$@" 2>&1; }
same() { cmp -s "$1" "$2" && echo same || echo different; }
last() { echo "$1/last/$2"; }
ends "the teacher" 0 train -o teacher model.widths=6,12 model.freeze=stem model.unfreeze=1
before=$(find teacher -type f -exec cksum {} + | sort)

# ---- training ----

ends "a student" 0 train -o student distill.teacher=teacher
is "checkpoints have no weights of the teacher" "$(grep -c teacher "$(last student model.safetensors)")" 0
has "the checkpoint has the hash" "$(head -c 4096 "$(last student state.safetensors)" | tr -d '\0')" '"teacher":"'
is "and the path" "$(grep '^teacher' "$(last student config.ini)" | tr -d ' ')" "teacher=$PWD/teacher"
is "the teacher is as it was" "$(find teacher -type f -exec cksum {} + | sort)" "$before"
train -o plain >/dev/null
is "the teacher changes the student" "$(same "$(last student model.safetensors)" "$(last plain model.safetensors)")" different
train -o zero distill.teacher=teacher distill.weight=0 >/dev/null
is "with weight 0 it does not" "$(same "$(last zero model.safetensors)" "$(last plain model.safetensors)")" same
train -o file distill.teacher="$(last teacher model.safetensors)" >/dev/null
is "a file of weights" "$(same "$(last file model.safetensors)" "$(last student model.safetensors)")" same
train -o unfused distill.teacher=teacher train.fuse=no memory.reuse=no >/dev/null
is "the plain program" "$(same "$(last unfused model.safetensors)" "$(last student model.safetensors)")" same

holds "pruning, with weights that have a sparse pattern" train -o pruned distill.teacher=teacher prune.sparsity=0.5
holds "a pruned network that is trained on" train -o pruned2 distill.teacher=teacher model.weights=pruned
holds "a pruned teacher" train -o of_pruned distill.teacher=pruned
holds "moving averages and micro-batches" train -o parts distill.teacher=teacher train.accumulate=2 ema.decay=0.9
holds "a teacher of averages" train -o of_averages distill.teacher=parts
holds "the plan has the teacher" grep -q 'teacher.fc' <("$bin" plan net.ini distill.teacher=teacher --after=plan 2>/dev/null)

# Two ranks compute what one does, apart from the rounding of sums.
loss() { sed -n 's/.*"event":"eval".*"loss":\([0-9.]*\).*/\1/p' "$1/log.jsonl" | tail -1; }
train -o one distill.teacher=teacher model.sync_bn=yes data.mixup=0 train.steps=8 >/dev/null
ends "two ranks" 0 train -o two distill.teacher=teacher model.sync_bn=yes data.mixup=0 train.steps=8 train.batch=4 --ranks 2
is "two ranks: loss $(loss one), $(loss two)" "$(awk -v a="$(loss one)" -v b="$(loss two)" 'BEGIN { print (a > 0 && (a - b) ^ 2 < 1e-8) }')" 1

# ---- resuming ----

train -o half distill.teacher=teacher train.steps=3 >/dev/null
ends "resuming" 0 train --resume half train.steps=6
is "a resumed run is bitwise identical" "$(same "$(last half model.safetensors)" "$(last student model.safetensors)")" same

cp -r teacher copy
train -o moved distill.teacher=copy train.steps=3 >/dev/null
resume() { train --resume moved train.steps=6 "$@"; }
train -o teacher2 model.widths=6,12 train.seed=9 >/dev/null
mv copy gone
ends "the teacher is missing" 2 resume
has "the teacher is missing" "$said" "no such file or folder"
mv teacher2 copy
ends "another teacher" 2 resume
has "another teacher" "$said" "is not the network that"
ends "no teacher" 2 resume distill.teacher=
has "no teacher" "$said" "this run had a teacher until now"
ends "the teacher in another place" 0 resume distill.teacher=gone
is "the teacher in another place" "$(same "$(last moved model.safetensors)" "$(last student model.safetensors)")" same
ends "another teacher, forced" 0 train --resume moved train.steps=7 --force

# ---- teachers that do not fit ----

refused "no such teacher" 2 "[distill] teacher = nowhere: no such file or folder" train net.ini -q -o X distill.teacher=nowhere
mkdir empty
refused "a folder without a checkpoint" 2 "is no run folder" train net.ini -q -o X distill.teacher=empty
refused "another image size" 2 "the teacher's images are 16 pixels high (16 in evaluation), those of this training 20" train net.ini -q -o X distill.teacher=teacher data.image_size=20
refused "other classes" 2 "the teacher has 10 classes, the dataset has 7" train net.ini -q -o X distill.teacher=teacher model.classes=7
cp -r teacher eight; rm eight/*/checksums.txt
sed -i 's/^type *= *none/type = int8/' eight/*/config.ini
refused "a quantised teacher" 2 "the teacher is quantised" train net.ini -q -o X distill.teacher=eight
refused "binary cross-entropy" 2 "have no softmax" train net.ini -q -o X distill.teacher=teacher loss.kind=bce

refused "features" 2 "[distill] features = 1: this version no longer has this key" train net.ini -q -o X distill.teacher=teacher distill.features=1
cp -r teacher short
truncate -s 500 short/step-*/model.safetensors
refused "a file that is cut off" 1 "[distill] teacher = short/last: short/last/model.safetensors: is damaged" train net.ini -q -o X distill.teacher=short/last

refused "a weight without a teacher" 2 "[distill] weight = 0.7: needs teacher" train net.ini -q -o X distill.weight=0.7
sum_up

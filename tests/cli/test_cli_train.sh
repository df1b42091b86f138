#!/usr/bin/env bash
# test_cli_train.sh: training runs as a user starts them: resumed, interrupted, killed, refused, out of disk, evaluated, pruned, exported.
#   CRESNET_SANITIZE  when set, the slow cases are skipped
. "$(dirname "$0")/../harness/cli_support.sh"
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; chmod -R u+w "$work"; rm -rf "$work"' EXIT

# ---- train; a resumed run is bitwise identical ----
run train tiny.ini train.output=A train.steps=20; expect "train" 0 "step 20"
is "train: stdout stays empty" "$out" ""
for file in last/model.safetensors last/state.safetensors last/config.ini last/classes.txt log.jsonl best; do
    holds "train wrote $file" [ -e "A/$file" ]
done
holds "log.jsonl is JSON" python3 -c 'import json; [json.loads(l) for l in open("A/log.jsonl")]'
run train tiny.ini train.output=B train.steps=10; expect "the first half" 0
run train tiny.ini train.output=B --resume auto train.steps=20; expect "the second half" 0 "step 10"
holds "the resumed model is bitwise identical" cmp A/last/model.safetensors B/last/model.safetensors
holds "the resumed state is bitwise identical" cmp A/last/state.safetensors B/last/state.safetensors
run train tiny.ini train.output=C train.steps=20 data.workers=3; expect "with other workers" 0
holds "workers change nothing" cmp A/last/model.safetensors C/last/model.safetensors
run train tiny.ini train.output=D train.steps=20 --seed 2; expect "another seed" 0
holds "the seed matters" sh -c '! cmp -s A/last/model.safetensors D/last/model.safetensors'
before=$(cd A && find . -type f -exec cksum {} + | sort)
run train tiny.ini train.output=A; expect "a folder in use" 2 "--resume"
is "a refused run changes nothing" "$(cd A && find . -type f -exec cksum {} + | sort)" "$before"
run train tiny.ini -o other --resume A --steps 24; expect "--resume PATH and another folder" 2 "--resume A continues in the run folder $work/A, not in other: leave -o"
run train tiny.ini -o other --resume A/last --steps 24; expect "--resume PATH/last and another folder" 2 "continues in the run folder $work/A, not in other"
is "--resume PATH and another folder: nothing changes" "$(cd A && find . -type f -exec cksum {} + | sort)$(ls -d other 2>/dev/null)" "$before"
run train tiny.ini -o ./A/ --resume A/last --steps 20 -q; expect "--resume PATH and its own folder" 0 "already at step 20"
run train tiny.ini train.output=A --resume auto train.steps=20 -q; expect "nothing left to do" 0 "already at step 20 of 20: nothing to do; train.steps=0 continues to step 64"
run train tiny.ini train.output=A --resume auto train.steps=24 model.widths=4,16; expect "another model on resume" 2 "widths"
run train tiny.ini train.output=fresh --resume auto train.steps=3; expect "--resume auto in an empty folder begins" 0 "step 3"
# ---- --resume RUN needs no configuration, and works from any folder: paths are absolute in a run ----
run data shapes resumed-images data.train_images=20 data.val_images=10; expect "images" 0
run train files.ini -o whole --steps 9 data.kind=folder data.root=resumed-images -q; expect "nine steps" 0
for path in resumed resumed/last resumed/step-4; do
    rm -rf resumed; run train files.ini -o resumed --steps 4 data.kind=folder data.root=resumed-images -q; expect "four steps" 0
    (cd / && "$bin" train --resume "$work/$path" --steps 9 -q >"$work/stdout" 2>"$work/stderr"); is "--resume $path alone: $(cat stderr)" $? 0
    holds "--resume $path: the model is bitwise identical" cmp whole/last/model.safetensors resumed/last/model.safetensors
    holds "--resume $path: the state is bitwise identical" cmp whole/last/state.safetensors resumed/last/state.safetensors
done
(cd / && "$bin" eval "$work/resumed" --json >"$work/stdout" 2>"$work/stderr"); is "eval from another folder" $? 0
is "eval counts the images" "$(python3 -c 'import json; print(json.loads(open("stdout").readline())["images"])')" 10
run train files.ini -o resumed --resume auto data.kind=folder data.root=./resumed-images --steps 10 -q; expect "the same folder by another path is no change" 0 "done: step 10"
is "the same folder by another path: no line about it" "$(grep -c 'data.root' stderr)" 0
sed -i 's|^root = .*|root = resumed-images|' resumed/last/config.ini; rm resumed/last/checksums.txt # as version 0.3 wrote it
run train --resume resumed --steps 11 -q; expect "a run with a relative path" 0 "done: step 11"
is "it is absolute now" "$(sed -n 's/^root = //p' resumed/last/config.ini)" "$work/resumed-images"
run train --resume nothing; expect "--resume without a run" 2 "--resume nothing: no such run folder or checkpoint"
run train --resume resumed-images; expect "--resume of a folder of images" 2 "no checkpoint there"
run train --resume auto; expect "--resume auto alone" 2 "no configuration file given" "CONFIG|--resume RUN"

# ---- train.keep counts `last`; a warm-up that never ends; a run folder that is renamed away ----
run train tiny.ini -o kept train.keep=1 train.save_every=1 train.eval_every=1 --steps 12 -q; expect "train.keep=1" 0
is "train.keep=1: last and best" "$(ls -d kept/step-* | sort)" "$(for link in last best; do echo "kept/$(readlink kept/$link)"; done | sort -u)"
run train tiny.ini -o warm schedule.warmup_epochs=20 --steps 3 -q; expect "a warm-up of 20 of 4 epochs" 0 "schedule.warmup_epochs = 20 is longer than the training of 4 epochs: the learning rate never reaches optim.lr = 0.1"
is "one line" "$(grep -c warmup stderr)" 1
run train tiny.ini -o warm4 schedule.warmup_epochs=4 --steps 3 -q; is "a warm-up of all epochs" "$rc $(grep -c warmup stderr)" "0 0"
"$bin" train tiny.ini -o moved train.epochs=100000 train.save_every=50 train.eval_every=0 -q >stdout 2>stderr & pid=$!
await $pid test -e moved/last
mv moved away; mkdir moved
wait $pid; is "the folder is replaced: exit 1" $? 1
is "the folder is replaced: one error" "$(grep -c '^cresnet train: ' stderr) $(grep -c 'moved: the run folder was renamed, removed or replaced' stderr)" "1 1"
is "nothing is written into the new folder" "$(ls -A moved)" ""
rmdir moved; mv away moved
run train --resume moved --steps 3 -q; expect "with its name back it continues" 0 "already at step"
if command -v strace >/dev/null && strace -o trace true 2>/dev/null; then
    strace -f -o trace -e trace=openat,fsync "$bin" train tiny.ini -o new/run --steps 1 -q >stdout 2>stderr
    for parent in . new; do
        holds "a new run folder: $parent is synced" python3 - "$parent" <<'PY'
import re, sys
opened = None
for line in open("trace"):
    m = re.search(r'openat\(AT_FDCWD, "([^"]*)", .*O_DIRECTORY.*\) = (\d+)', line)
    if m: opened = m[2] if m[1] == sys.argv[1] else None
    if opened and "fsync(%s)" % opened in line: sys.exit(0)
sys.exit(1)
PY
    done
else
    skip "fsync of the parent: no strace"
fi

truncate -s 100 fresh/step-3/model.safetensors
run train tiny.ini train.output=fresh --resume auto train.steps=6; expect "--resume auto with damaged checkpoints only" 1 "fresh/step-3/model.safetensors" "no checkpoint in this folder can be read"
is "--resume auto with damaged checkpoints only: nothing is written" "$(ls -d fresh/step-*)" fresh/step-3

run train tiny.ini train.output=diverged optim.lr=1000 -q; expect "a training that diverges" 1 "is not finite" "try a smaller optim.lr"

# ---- kernel times: the CPU measures none, a checkpoint may hold some ----
for measure in yes no; do
    CRESNET_CACHE=$work/costs run train tiny.ini -o M-$measure train.measure=$measure --steps 3; expect "train.measure=$measure" 0 "step 3"
    holds "train.measure=$measure: the CPU leaves no costs" [ ! -e costs -a ! -e M-$measure/last/kernel_times.txt ]
done
holds "train.measure changes nothing on the CPU" cmp M-yes/last/model.safetensors M-no/last/model.safetensors
printf 'cresnet kernel times 6\tsome GPU\n' >M-yes/last/kernel_times.txt
run train tiny.ini -o M-yes --resume auto --steps 4; expect "a checkpoint whose kernels were measured elsewhere" 2 "kernel_times.txt" "--force" "train.deterministic=no"
is "a checkpoint whose kernels were measured elsewhere: one error" "$(grep -c kernel_times.txt stderr)" 1
holds "a refused resume writes nothing" [ ! -e M-yes/step-4 ]
if plans_for_gpus; then
    run plan tiny.ini --target h200 memory.limit=200MiB; expect "a GPU's limit counts its libraries" 0 "limit 200.0 MiB, of which 112.0 MiB for libraries"
    run plan tiny.ini --target h200 memory.limit=100MiB; expect "a limit below the libraries" 2 "112 of them for libraries" "more than the limit"
    run plan tiny.ini --target h200 --ranks 2 memory.limit=200MiB; expect "a limit below NCCL's buffers" 2 "libraries and NCCL"
    run plan tiny.ini --target h200 --ranks 2 memory.limit=1100MiB; expect "a limit above them" 0 "for libraries and NCCL"
else
    skip "plan --target with a limit: no CUDA in this build, or one of its libraries is missing"
fi
run plan tiny.ini memory.limit=1MiB; holds "on the CPU a limit counts the network alone" sh -c '! grep -q libraries stdout'
run plan tiny.ini memory.limit=1KiB; expect "plan with a limit that cannot be met" 2 "exceeded by" "[memory] limit" "train.batch"
run plan M-no --choices; expect "plan of a run" 0 "program step"

# ---- values without effect ----
run train tiny.ini -o idle --steps 1 train.gpu=1 train.loss_scale=8; expect "train.gpu and train.loss_scale on the CPU" 0 "without effect here: train.gpu" "train.loss_scale"
is "values without effect: one line" "$(grep -c 'without effect' stderr)" 1
run train tiny.ini -o idle2 --steps 1; is "nothing set, nothing said" "$(grep -c 'without effect' stderr)" 0
run train tiny.ini train.output=E --resume nowhere train.steps=3; expect "--resume of nothing" 2 "--resume nowhere: No such file" "--resume auto"

# ---- eval, predict ----
run data shapes images data.train_images=200 data.val_images=40; expect "data shapes" 0 "200 training"
run train tiny.ini $shapes -o S --steps 6 -q; expect "train on shapes" 0
run eval S --json; expect "eval of a run" 0 '"correct"' '"top5"' '"loss"'
holds "eval --json" json_lines
is "eval: every image once" "$(field images)" 40
correct=$(field correct)
run eval tiny.ini $shapes --weights S/last/model.safetensors --json; is "eval of a file" "$(field correct)" "$correct"
run eval S/last --json train.eval_batch=7; is "eval with another batch" "$(field correct)" "$correct"
run eval S --split train --json; is "eval --split train" "$(field images)" 200
images=$(find images/val -name '*.png' | sort | head -3)
run predict S $images; expect "predict" 0 "%" $images
run predict S $images --json -k 10; holds "predict -k 10: all classes, in descending order" python3 -c 'import json
for l in open("stdout"):
    top = json.loads(l)["top"]
    p = [t["probability"] for t in top]
    assert len(top) == 10 == len({t["label"] for t in top}) and p == sorted(p, reverse=True) and abs(sum(p) - 1) < 1e-6, top'
cp stdout all.json; run predict S $images --json -k 3; holds "predict -k 3: the first three" python3 -c 'import json
for a, b in zip(open("all.json"), open("stdout")): assert json.loads(a)["top"][:3] == json.loads(b)["top"]'
run predict S $images -k 11; expect "predict -k 11 of ten classes" 2 "--top 11: the network has 10 classes"
run predict S $images; is "predict: five lines per image" "$(grep -c " %  " stdout)" 15
run eval S --per-class --confusion matrix.csv --csv table.csv --temperature --json; expect "eval --per-class --json" 0 '"per_class"' '"confused_with"'
cp stdout classes.json
run predict S images/val --json -k 1; expect "predict a folder" 0 '"top"'
is "predict a folder: one line per image" "$(wc -l <stdout)" 40
holds "the calibration error agrees with the table" python3 -c 'import csv, json, math
rows = [(r["class"], r["predicted_class"], float(r["probability"])) for r in csv.DictReader(open("table.csv"))]
bins = {}
for a, b, p in rows:
    bins.setdefault(min(14, math.ceil(p * 15) - 1), []).append((a == b, p))
error = sum(abs(sum(c for c, _ in b) / len(b) - sum(p for _, p in b) / len(b)) * len(b) for b in bins.values()) / len(rows)
assert abs(json.load(open("classes.json"))["calibration_error"] - error) < 1e-5
assert 0 < error < 1'
holds "the temperature has the least loss of the table's probabilities" python3 -c 'import csv, json, math
rows = list(csv.DictReader(open("table.csv")))
names = [k[2:] for k in rows[0] if k.startswith("p:")]
logits = [[math.log(max(float(r["p:" + n]), 1e-38)) for n in names] for r in rows]
labels = [names.index(r["class"]) for r in rows]
def loss(t): # mean cross-entropy of the logits divided by t
    return sum(math.log(sum(math.exp(z / t) for z in row)) - row[y] / t for row, y in zip(logits, labels)) / len(labels)
low, high = 0.01, 100
for _ in range(80):
    a, b = low * (high / low) ** 0.382, low * (high / low) ** 0.618
    low, high = (low, b) if loss(a) < loss(b) else (a, high)
got = json.load(open("classes.json"))["temperature_scaling"]
assert abs(got["temperature"] / low - 1) < 1e-3, (got, low)
assert abs(got["loss"] - loss(low)) < 1e-5 and abs(got["loss_before"] - loss(1)) < 1e-5 and got["loss"] <= got["loss_before"], got'
run eval S --per-class --temperature; expect "eval --per-class" 0 "temperature " "balanced accuracy" "macro F1" "most confused with" "circle" "val: $correct of 40 correct"
mkdir -p mixed/deep mixed/empty && cp "${images%%$'\n'*}" mixed/deep/good.png && echo no >mixed/bad.jpg && ln -s .. mixed/deep/loop
run predict S mixed --json; expect "predict what cannot be read, and go on" 1 "mixed/bad.jpg" "1 of 2 images could not be read" '"error"'
is "predict: the others are answered" "$(grep -c '"top"' stdout)" 1
run predict "${images%%$'\n'*}"; expect "predict without a run" 2 "is an image, not a configuration or a run; usage: cresnet predict"
is "predict without a run: one line" "$(wc -l <stderr)" 1
run predict S mixed/empty; expect "predict an empty folder" 1 "no images"
run predict tiny.ini --weights S/last $images; expect "predict with a config and weights" 0 "%"
run plan S --json; expect "plan of a run" 0 '"batch": 4'
echo "not an image" >text.png
run predict S text.png; expect "predict a file that is no image" 1 "text.png"

# ---- moving averages; a file of weights in a checkpoint stands for it ----
run train tiny.ini $shapes -o M --steps 6 -q ema.decay=0.5; expect "train with averages" 0
want=$(sed -n 's/.*"ema_correct":\([0-9]*\).*/\1/p' M/log.jsonl | tail -1)
run eval M --ema --json; is "eval --ema" "$(field correct) $(field weights)" "$want M/step-6/ema.safetensors"
loss=$(field loss)
run export M --ema -o averages.safetensors; expect "export --ema" 0
run eval tiny.ini $shapes --weights averages.safetensors --json; is "exported averages" "$(field loss)" "$loss"
run prune M --ema --sparsity 0.5 -o half; expect "prune --ema" 0
run eval S --ema; expect "--ema without averages" 2 "ema.safetensors" "ema.decay"

# ---- bad weights, bad images ----
run eval tiny.ini $shapes model.widths=4,16 --weights S/last/model.safetensors; expect "weights of another shape" 1 "model.safetensors"
head -c 1000 S/last/model.safetensors >short.safetensors
run eval tiny.ini $shapes --weights short.safetensors; expect "cut weights" 1 "short.safetensors"
cp -r images broken
victim=$(find broken/val -name '*.png' | sort | head -1)
head -c 60 "$victim" >cut && cat cut >"$victim"
bad="data.kind=folder data.root=broken"
run eval files.ini $bad --weights S/last --json; expect "a corrupt image is skipped" 0 '"corrupt": 1' "$victim"
is "a corrupt image counts nowhere" "$(field images)" 39
# A class without a readable image ends a training before it starts; one readable image is enough.
cp -r images broken2
class=$(ls broken2/train | tail -1); count=$(ls "broken2/train/$class" | wc -l); kept=$(ls "broken2/train/$class" | tail -1)
for file in broken2/train/$class/*; do
    [ "${file##*/}" = "$kept" ] || echo '<html>404</html>' >"$file"
done
bad="data.kind=folder data.root=broken2"
run train files.ini $bad --epochs 1 -o B1; expect "one readable image" 0 "skipped an image: broken2/train/$class/"
cp "broken2/train/$class/$kept" kept.png; : >"broken2/train/$class/$kept"
none="the class $class has no image that can be read ($count tried): "
run train files.ini $bad --epochs 1 -o B2; expect "a class without a readable image" 1 "$none" "broken2/train/$class/" "replace its images, or remove the class"
is "it is the only message" "$(grep -c 'skipped an image' <<<"$err")" 0
# finetune times a step of ResNet-18 first, which takes minutes under the thread sanitizer.
[ "${CRESNET_SANITIZE:-}" = thread ] || { run finetune broken2 --weights none --epochs 1 --device cpu -o B3; expect "finetune of such a class" 1 "$none"; }
rm -r "broken2/train/$class" "broken2/val/$class"
run train files.ini $bad --epochs 1 -o B6; expect "without the class" 0
run train tiny.ini data.train_images=3 -o small; holds "a set smaller than a batch" [ "$rc" -eq 2 -o "$rc" -eq 1 ]

# ---- signals ----
# start ARGS...: a long run in the background; waits for its first checkpoint
start() {
    "$bin" train tiny.ini "$@" >stdout 2>stderr &
    child=$!
    await $child [ -e "$folder/last/state.safetensors" ] ||
        fail "no checkpoint in $folder: $(tail -3 stderr)"
}
finish() { wait $child; rc=$?; out=$(cat stdout) err=$(cat stderr); }
step_of() { basename "$(readlink "$1/last")" | tr -dc 0-9; }
for signal in INT TERM; do
    folder=SIG$signal
    start -o $folder --epochs 100000 train.eval_every=1000
    kill -$signal $child; finish
    expect "SIG$signal" $([ $signal = INT ] && echo 130 || echo 143) "step"
    run train tiny.ini -o $folder --resume auto --steps $(($(step_of $folder) + 2)) --epochs 100000 train.eval_every=1000
    expect "resume after SIG$signal" 0
done
"$bin" train tiny.ini -o USR1 --epochs 100000 train.eval_every=100000 train.save_every=1000000000 >stdout 2>stderr &
child=$!
await $child grep '"event":"train"' USR1/log.jsonl; kill -USR1 $child
await $child [ -e USR1/last/state.safetensors ]
holds "SIGUSR1 saves" [ -e USR1/last/state.safetensors ]
holds "SIGUSR1 goes on" kill -0 $child
kill -INT $child; finish
expect "SIGINT after SIGUSR1" 130

# ---- kill -9 at any moment ----
if [ -n "${CRESNET_SANITIZE:-}" ]; then skip "kill -9 (sanitizer)"; else
    if CRESNET_BIN=$bin bash "$source_dir/scripts/kill-test.sh" 5 >kill.log 2>&1; then pass; else fail "kill -9: $(tail -5 kill.log)"; fi
fi

# ---- prune, fine-tune, export ----
same_run() { cmp "$1/last/model.safetensors" "$2/last/model.safetensors" && cmp "$1/last/state.safetensors" "$2/last/state.safetensors"; }
smaller() { [ "$(stat -c %s "$1")" -lt "$(stat -c %s "$2")" ]; }
zeros() { weights_file zeros "$@" 2>&1; } # FILE TENSOR: elements that are 0, of how many
gradual='prune.sparsity=0.9 prune.start=0.5 prune.end=1 prune.frequency=3'
# shellcheck disable=SC2086 # words on purpose
{
    run train tiny.ini -o G $gradual --steps 24; expect "gradual pruning" 0 "pruned at step 11: " "pruned at step 14: " "pruned at step 16: 90.03 % (1066 of 1184 weights)" "step 24"
    holds "gradual pruning is in the log" grep -q '"event":"prune".*"step":16,"sparsity":0.900338' G/log.jsonl
}
run train tiny.ini -o E --steps 24; expect "the same without pruning" 0
holds "a run without pruning does not mention masks" sh -c '! grep -q masks stderr'
holds "a sparse checkpoint is smaller" smaller G/last/model.safetensors E/last/model.safetensors
holds "so is its state" smaller G/last/state.safetensors E/last/state.safetensors
run export G -o g.safetensors; expect "export" 0
is "export: pruned weights are 0" "$(zeros g.safetensors layer2.0.conv2.weight | cut -d' ' -f2-)" "576 [8, 8, 3, 3]"
is "export: what is exempt is dense" "$(zeros g.safetensors conv1.weight)" "0 108 [4, 3, 3, 3]"
run eval G --json; right=$(field loss)
run eval tiny.ini --weights g.safetensors --json; is "exported weights score as the run" "$(field loss)" "$right"
run export E -o e.safetensors; holds "export of a dense run has the tensors of its model file" same_tensors e.safetensors E/last/model.safetensors
is "export has the bytes of a dense export" "$(stat -c %s g.safetensors)" "$(stat -c %s e.safetensors)"
run export G -o g.safetensors; expect "export over its earlier output" 0
run export G -o E/last/model.safetensors; expect "export over a checkpoint" 2 "E/last/model.safetensors" "exists" "--force"
run export G --onnx g.onnx; expect "export --onnx" 0 "g.onnx"
run export tiny.ini --weights e.safetensors --onnx e.onnx --fold data.image_size=24; expect "export --onnx of a config" 0 "e.onnx"
run export e.onnx -o x.safetensors; expect "weights from an ONNX file" 1 "e.onnx: is an ONNX file, which cresnet writes and does not read"
run export tiny.ini --onnx x.onnx; expect "export --onnx without weights" 2 "--weights FILE"
run export G --onnx g.onnx -o g2.safetensors; expect "export twice at once" 2 "one of them"
run export G -o g2.safetensors train.batch=3; expect "export with a key that does nothing" 2 "train.batch=3"
run export nowhere -o x.safetensors; expect "export of nothing" 1 "nowhere"

run prune E --sparsity 0.9 -o P; expect "prune" 0 "layer2.0.conv2" "prunable layers" "saved in P" "90.03 %" "stays dense by prune.exempt"
run eval P; expect "eval of a pruned folder" 0 "top-1"
run train tiny.ini model.weights=P -o PT --steps 5; expect "fine-tuning" 0 "step 5" "pruned  90.03 % of the weights of 5 layers (1066 of 1184): the masks are kept, pruned weights stay 0"
is "fine-tuning: the sparsity is in the log" "$(grep -o '{"event":"sparsity".*' PT/log.jsonl)" '{"event":"sparsity","step":0,"sparsity":0.900338,"pruned":1066,"of":1184}'
run export P -o p.safetensors; run export PT -o pt.safetensors
is "fine-tuning keeps what is pruned" "$(zeros pt.safetensors layer2.0.conv1.weight)" "$(zeros p.safetensors layer2.0.conv1.weight)"
holds "fine-tuning moves the rest" sh -c '! cmp -s p.safetensors pt.safetensors'
run train tiny.ini -o PT --resume auto --steps 8; expect "fine-tuning goes on" 0 "step 8" "(1066 of 1184): the masks are kept"
run train tiny.ini model.weights=P -o PU --steps 8; holds "... bitwise identical" same_run PT PU
run prune P --sparsity 0.5 -o PP; expect "prune to less than was pruned" 0 "warning: 90.03 % were already pruned, more than sparsity = 0.5" "90.03 %"
run prune P --sparsity 0.95 --scope uniform -o PM; holds "prune to more: no warning" sh -c '! grep -q warning stderr'
run prune E --sparsity 0.5 --scope uniform --json -o PJ; holds "prune --json" json_lines
is "prune --json counts" "$(field pruned)" 592
run prune E --pattern 2:4 -o P24; expect "2:4" 0 "layer2.0.conv2                        576          288    50.00 %"
run export P24 -o p24.safetensors; is "2:4: half of it" "$(zeros p24.safetensors layer2.0.conv2.weight)" "288 576 [8, 8, 3, 3]"
printf 'layer,sparsity\nlayer1.0.conv1,0.25\nfc,50%%\n' >budget.csv
run prune E --budget budget.csv -o PB; expect "a budget" 0 "layer1.0.conv1                        144          108    25.00 %" "fc                                     80           40    50.00 %"
run train tiny.ini model.weights=PB model.head=new -o PBH --steps 2; expect "a pruned classifier that starts fresh" 0 "new one of 10"
printf 'layer,sparsity\nlayer7.conv,0.25\n' >budget.csv
run prune E --budget budget.csv -o PX; expect "a wrong budget" 1 "budget.csv:2: this network has no layer \"layer7.conv\""
run prune E -o PX; expect "prune without a sparsity" 2 "--sparsity"
run prune E --sparsity 0.9 -o P; expect "prune into a run" 2 "not empty"
run prune E --sparsity 0.9 --exempt conv1,layer9 -o PX; expect "exempt" 2 "\"layer9\" is not a layer"
run prune E --exempt conv1,layer1,layer2,fc --sparsity 0.5 -o PX; expect "all exempt" 2 "[prune] exempt = conv1,layer1,layer2,fc: no layer can be pruned"
holds "what was refused leaves nothing" [ ! -e PX ]
run train tiny.ini -o GW prune.start=1 prune.end=2 --steps 2; expect "when, but not how much" 0 "warning: [prune] has a schedule but no target"
run train tiny.ini -o GL prune.sparsity=0.9 prune.start=1 prune.end=9 --steps 2; expect "a pruning that comes too late" 0 "warning: [prune] starts too late: none of the 64 steps prunes"
run train tiny.ini -o GF $gradual --steps 2; holds "a pruning that ends is not warned of" sh -c '! grep -q "warning: .prune" stderr'

# ---- folders that cannot be written, disks that are full ----
echo x >file
run train tiny.ini -o file/run; expect "output below a file" 1 "file/run"
run train tiny.ini -o file; holds "output is a file" [ "$rc" -ne 0 ]
if [ "$(id -u)" = 0 ]; then
    if [ -d /proc/self ]; then run train tiny.ini -o /proc/nowhere; expect "output where nothing can be made" 1 "/proc/nowhere"; fi
    mkdir disk
    if mount -t tmpfs -o size=64k none disk 2>/dev/null; then
        mounted=$work/disk
        run train tiny.ini -o disk/run train.save_every=1 train.keep=1000 --steps 60
        expect "a full disk" 1 "disk/run" "checkpoint disk/run/$(readlink disk/run/last) is complete: --resume auto continues there"
        holds "a full disk loses no checkpoint" [ -e disk/run/last/state.safetensors ]
        holds "a full disk leaves no half" sh -c '! ls -d disk/run/.tmp-step* 2>/dev/null | grep -q .'
        run eval tiny.ini --weights disk/run/last; expect "the last checkpoint reads" 0
        run data shapes disk/shapes; expect "images on a full disk" 1 "cannot write: No space left on device: disk full, free some space or choose another place"
    else
        skip "full disk (no mount here)"
    fi
else
    mkdir locked && chmod a-w locked
    run train tiny.ini -o locked/run; expect "unwritable output" 1 "locked"
    skip "full disk (needs root)"
fi

small() { (ulimit -f 5; "$bin" "$@" >stdout 2>stderr); rc=$?; out=$(cat stdout) err=$(cat stderr); } # no file of more than 5 KiB
small prune E --sparsity 0.5 -o PL -q; expect "prune where files stay small" 1 "file size limit reached" "ulimit -f"
holds "... leaves no half" sh -c '! ls -d PL/* PL/.tmp-step* 2>/dev/null | grep -q .'
run prune E --sparsity 0.5 -o PL; expect "... and can be done again" 0 "prunable layers"

sum_up

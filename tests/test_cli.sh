#!/usr/bin/env bash
# test_cli.sh: the built program as a user meets it: exit codes, messages, overrides, results as JSON, a training run that
# is resumed, interrupted, killed, refused, out of disk. Ends with "N passed, N failed, N skipped".
#   CRESNET_SANITIZE  when set, the slow cases are skipped
. "$(dirname "$0")/support.sh"
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; chmod -R u+w "$work"; rm -rf "$work"' EXIT
# run ARGS...: the program; leaves rc, out, err
run() {
    timeout 300 "$bin" "$@" >stdout 2>stderr
    rc=$?
    out=$(cat stdout) err=$(cat stderr)
}
# expect NAME RC [TEXT...]: the last run ended with RC and its outputs hold every TEXT
expect() {
    local name=$1 want=$2 text
    shift 2
    if [ "$rc" != "$want" ]; then
        fail "$name: exit $rc, want $want; stderr: $(head -c 600 stderr)"
        return
    fi
    for text in "$@"; do
        case $out$'\n'$err in
        *"$text"*) ;;
        *) fail "$name: lacks \"$text\"; got: $(head -c 600 stdout stderr)"; return ;;
        esac
    done
    pass
}
holds() { local name=$1; shift; if "$@"; then pass; else fail "$name: $*"; fi; }
json_lines() { # every line of stdout is a JSON object
    python3 -c 'import json, sys
lines = sys.stdin.read().splitlines()
assert lines and all(isinstance(json.loads(l), dict) for l in lines)' <stdout 2>/dev/null
}
field() { python3 -c 'import json, sys; print(json.loads(open("stdout").readline())[sys.argv[1]])' "$1" 2>/dev/null; }

cat >tiny.ini <<'INI'
[model]
arch = custom
block = basic
stem = cifar
depths = 1,1
widths = 4,8

[data]
kind = synthetic
image_size = 16
train_images = 64
val_images = 16
workers = 1

[train]
batch = 4
epochs = 4
save_every = 3
log_every = 5
device = cpu
threads = 1
INI

grep -v '_images' tiny.ini >files.ini # for sets that have their own size

# ---- help, version, mistakes on the command line ----
run; expect "no command" 2 "usage: cresnet COMMAND" "no command given"
is "no command: stdout stays empty" "$out" ""
run --help; expect "--help" 0 "usage: cresnet COMMAND"
is "--help: stderr stays empty" "$err" ""
run help; expect "help" 0 "predict"
run -h; expect "-h" 0 "Exit codes"
run --version; expect "--version" 0 "cresnet        " "libpng" "device cpu" "oneDNN" "OpenMP" "iniparser" "compiler"
run train --version; expect "train --version" 0 "libpng"
for command in train eval predict report plan check bench profile prune export data; do
    run $command --help; expect "$command --help" 0 "usage: cresnet $command" "--help"
    is "$command --help: stderr stays empty" "$err" ""
    run help $command; expect "help $command" 0 "usage: cresnet $command"
    run $command; expect "$command without a configuration" 2 "cresnet $command: " "--help"
    is "$command without a configuration: stdout" "$out" ""
    ln -sf "$bin" "cresnet-$command"
    ./cresnet-$command --help >stdout 2>stderr; rc=$?; out=$(cat stdout) err=$(cat stderr)
    expect "cresnet-$command by its own name" 0 "usage: cresnet $command"
done
run help keys; expect "help keys" 0 "[model]" "weight_decay" "image_size" "drop_last"
run help keys ema; expect "help keys SECTION" 0 "[ema]" "decay = 0"
holds "help keys SECTION: no other" [ "$(grep -c '^\[' stdout)" = 1 ]
run help optim.lr; expect "help SECTION.KEY" 0 "lr = 0.1"
run help keys workers; expect "help keys KEY" 0 "[data]" "workers = 2"
run help keys optmi; expect "help keys, misspelt section" 2 "did you mean [optim]?"
run help optim.lrr; expect "help keys, misspelt key" 2 "did you mean lr?"
run trian tiny.ini; expect "unknown command" 2 "unknown command trian (did you mean train?)"
run help trian; expect "help on an unknown command" 2 "did you mean train?"
run tiny.ini; expect "a config instead of a command" 2 "cresnet train tiny.ini"
run train tiny.ini --foo; expect "unknown option" 2 "cresnet train: unknown option --foo" "see cresnet train --help"
run train --resme auto tiny.ini; expect "hint" 2 "unknown option --resme (did you mean --resume?)"
run train tiny.ini -x; expect "unknown short option" 2 "unknown option -x"
run train tiny.ini -output A; expect "one dash for two" 2 "did you mean --output?"
run plan tiny.ini --resume auto; expect "another command's option" 2 "--resume belongs to cresnet train"
run train tiny.ini --output; expect "option without its value" 2 "--output needs a value"
run train tiny.ini --force=yes; expect "a flag with a value" 2 "--force takes no value"
run train tiny.ini extra.ini; expect "an operand too many" 2 "unexpected operand extra.ini"
run plan tiny.ini batch=3; expect "an override without its section" 2 "section.key=value"
run plan tiny.ini --set batch=3; expect "--set without a section" 2 "section.key=value"
run plan tiny.ini --which stp; expect "--which" 2 "must be one of"
run plan tiny.ini --after foo; expect "--after" 2 "must be one of"
run predict tiny.ini a.png -k 9; expect "-k" 2 "1 to 5"
# Where there is a GPU, test_cuda_* and gpu-check.sh have the say.
if "$bin" --version 2>/dev/null | grep '^device cuda ' | grep -qv 'not available'; then skip "device cuda without a GPU: there is one"; else
    run train tiny.ini --device cuda -o nogpu; expect "--device cuda without a GPU" 1 "device cuda" "--device cpu"
    run check tiny.ini --devices cpu,cuda; expect "check on a GPU that is not there" 1 "device cuda"
    is "check on a GPU that is not there: nothing is judged before" "$(grep -c program stderr)" 0
    run train tiny.ini --device cuda -o nogpu
    [ "$(wc -l <stderr)" -le 2 ] && [ ! -d nogpu/step-1 ] && pass || fail "--device cuda without a GPU says more than it must: $(cat stderr)"
fi
run train tiny.ini --device cpu train.precision=bf16 -o half; expect "bf16 on the CPU" 2 "precision" "needs a GPU"
run train tiny.ini train.precision=fp8 -o half; expect "unknown precision" 2 "fp16" "bf16"
run train tiny.ini train.loss_scale=-1 -o half; expect "loss scale out of range" 2 "loss_scale"
run --version; expect "--version, CUDA" 0 "CUDA  "
run train tiny.ini train.gpu=-1 -o half; expect "train.gpu out of range" 2 "[train] gpu" "from 0 to 1023"
run help keys; expect "help keys, GPU" 0 "loss_scale" "gpu" "precision"
run bench init tiny.ini --device cpu; expect "bench init" 0 "one thread"
run check tiny.ini --devices tpu; expect "--devices" 2 "unknown device tpu"
run check tiny.ini --devices cpu,tpu; expect "--devices, the second unknown" 2 "unknown device tpu"
is "--devices, the second unknown: the first is not judged" "$(grep -c program stderr)" 0
run check tiny.ini --devices ''; expect "--devices without a name" 2 "unknown device"
run plan tiny.ini --device gpu; expect "--device gpu" 2 "did you mean cuda?"
run bench tiny.ini; expect "bench what?" 2 "bench step CONFIG"
run eval tiny.ini; expect "eval without weights" 2 "--weights FILE"
run predict tiny.ini a.png; expect "predict without weights" 2 "--weights FILE"
run train "$source_dir"/configs/finetune-folder.ini data.root=.; expect "fine-tuning without its weights" 2 "finetune-folder.ini:" "resnet18.safetensors" "model.weights=FILE" "from scratch"
is "... leaves no run behind" "$(ls -d checkpoints 2>/dev/null)" ""
run train .; expect "train on a folder" 2 "is a folder" "--resume"
run plan .; expect "plan on a folder without a run" 2 "neither a configuration file nor a run folder"

# ---- configuration and overrides ----
run plan nowhere.ini; expect "missing config" 2 "nowhere.ini"
printf '[model]\narch = resnet21\n[train]\nbacth = 3\nepochs = many\n' >bad.ini
run plan bad.ini
expect "all mistakes of a file at once" 2 "bad.ini:2: [model] arch" "bad.ini:4: [train]" "batch" "bad.ini:5: [train] epochs"
run plan tiny.ini train.batch=0; expect "override out of range" 2 "batch"
run plan tiny.ini train.bacth=8; expect "override of an unknown key" 2 "batch"
for how in "train.batch=6" "--train.batch=6" "--train.batch 6" "--batch 6" "--batch=6" "-b 6" "-b6" "--set train.batch=6" \
    "train.batch=2 -b 6" "-b 2 train.batch=6"; do
    run plan tiny.ini $how --json; is "plan $how" "$(field batch)" 6
done
run plan --json -b 6 -- tiny.ini; is "options before operands, --" "$(field batch)" 6
run plan tiny.ini -b 6 -- train.batch=5; expect "-- ends options and overrides" 2 "unexpected operand train.batch=5"

# ---- plan ----
for config in "$source_dir"/configs/*.ini; do
    name=$(basename "$config")
    if [ -n "${CRESNET_SANITIZE:-}" ] && [ "$name" != demo.ini ]; then skip "plan $name (sanitizer)"; continue; fi
    run plan "$config" --json; expect "plan $name" 0 '"peak_bytes"' '"bound_bytes"'
    holds "plan $name: one JSON line" json_lines
    holds "plan $name: peak within 1 % of the bound" python3 -c 'import json
p = json.loads(open("stdout").readline()); assert p["peak_bytes"] <= 1.01 * p["bound_bytes"] and p["bound_bytes"] > 0, p'
done
run plan tiny.ini; expect "plan" 0 "layer1.0.conv1" "total" "lower bound" "pool"
run plan tiny.ini --program; expect "plan --program" 0 "conv " "layer1.0.conv1.y" "sgd"
for pass in grad fuse select order plan; do run plan tiny.ini --after=$pass; expect "plan --after=$pass" 0 "layer2.0.conv2.y"; done
run plan tiny.ini --after grad; plain=$(wc -l <stdout)
run plan tiny.ini --after fuse; holds "fusing makes fewer ops" [ "$(wc -l <stdout)" -lt "$plain" ]
run plan tiny.ini --which eval --program; expect "plan --which eval" 0 "bn_coef"
for precision in fp16 fp32; do
    run plan tiny.ini --target h200 train.precision=$precision; expect "plan --target, $precision" 0 "target NVIDIA H200" "of the GPU's 143771 MiB" "roofline"
done
run plan tiny.ini --target a100 --json -q; expect "plan --target --json" 0 '"device": "NVIDIA A100' '"plan_ms"'
holds "plan --target --json" json_lines
run plan tiny.ini --costs tiny.ini; expect "plan --costs without --target" 2 "--costs is of --target"
run plan tiny.ini --target h200 --costs tiny.ini; expect "plan --costs of no such file" 1 "tiny.ini: its first line is not"
run plan tiny.ini --target h300; expect "plan --target of none" 2 "h200, h100, a100, rtx4090"
run plan tiny.ini --choices; expect "plan --choices" 0 "program step, batch 4, on CPU" "costs are those of the roofline" "take anything over"
run plan tiny.ini --choices --which eval -b 3; expect "plan --choices --which eval" 0 "program eval, batch 3"
run plan tiny.ini --choices train.fuse=no; expect "plan --choices without fusing" 2 "[train] fuse = no" "--choices"
run plan tiny.ini --choices --json; expect "plan --choices --json" 2 "leave --after, --json and --csv out"
run plan tiny.ini --choices --after=fuse; expect "plan --choices --after" 2 "leave --after"
run plan tiny.ini train.accumulate=4 --which micro --json; expect "plan of a micro-step" 0 '"program": "micro"'
run plan tiny.ini train.accumulate=4; expect "plan with accumulation" 0 "program micro_last"
run plan tiny.ini --csv; is "plan --csv" "$(head -1 stdout)" "id,lower,upper,size,offset"
# ---- plan --trace ----
{ echo time,event,id,size; echo 0,malloc,p,100
  for i in 10 20 30 40; do
      printf '%s\n' $i,malloc,a,640 $i,write,a, $((i + 1)),malloc,b,1280 $((i + 1)),read,a, $((i + 1)),write,b, $((i + 1)),free,a, \
          $((i + 2)),malloc,c,64 $((i + 2)),read,b, $((i + 2)),write,c, $((i + 3)),read,c, $((i + 3)),read,p, $((i + 3)),free,b, $((i + 3)),free,c,
  done; } >log.csv
run plan --trace log.csv; expect "plan --trace" 0 "53 events, 13 blocks, of which 1 live on" "whole ones of 13 events" "load peak" "best fit, online" "an allocation each"
run plan --trace log.csv --json; holds "plan --trace --json: one line" json_lines
holds "plan --trace --json: the numbers" python3 -c 'import json
p = json.loads(open("stdout").readline())
assert p["period"] == 13 and p["iterations"] == 3 and p["across_bytes"] == 100 and p["lives"] == 3 and p["wrapping"] == 0, p
assert p["free"]["bound_bytes"] == p["free"]["peak_bytes"] == 1920 and p["free"]["sum_bytes"] == 1984, p
assert p["use"]["bound_bytes"] == p["use"]["peak_bytes"] == 1920 and p["online_bytes"] >= 1920, p'
run plan --trace log.csv --csv; is "plan --trace --csv" "$(wc -l <stdout) $(head -1 stdout)" "4 id,lower,upper,size,offset"
run plan --trace log.csv --alignment 1024 --json; expect "plan --trace --alignment" 0 '"bound_bytes": 3072'
run plan --trace nowhere.csv; expect "a log that is not there" 1 "nowhere.csv: cannot open"
{ head -3 log.csv; echo 11,free,a,; echo 12,read,a,; } >bad.csv
run plan --trace bad.csv; expect "a log that cannot be" 1 "bad.csv:5: a is read after its free (it was freed in line 4)"
head -15 log.csv >once.csv; run plan --trace once.csv; expect "a log of one iteration" 1 "no iteration is there twice"
run plan --trace log.csv tiny.ini; expect "plan --trace with a configuration" 2 "unexpected operand tiny.ini"
run plan --trace log.csv --program; expect "plan --trace --program" 2 "not a configuration"
run plan --trace; expect "plan --trace without a file" 2 "--trace needs a value"
for how in "" train.accumulate=3 train.fuse=no; do # the run's own log plans as its program does
    rm -f own.csv; run train tiny.ini train.steps=1 memory.trace=own.csv -o own$how $how; expect "train $how memory.trace" 0 "trace   own.csv"
    run plan --trace own.csv --json; planned=$(python3 -c 'import json
p = json.loads(open("stdout").readline()); assert p["iterations"] == 2 and p["rest"] == 0
print(p["use"]["peak_bytes"], p["free"]["peak_bytes"])')
    run plan tiny.ini $how --json; is "plan $how of the run's own log" "$planned" "$(field peak_bytes) $(field peak_bytes)"
done
run train tiny.ini train.steps=1 memory.trace=no-folder/own.csv -o owned; expect "memory.trace in no folder" 1 "no-folder/own.csv"

run plan tiny.ini --png pool.png; expect "plan --png" 0 "lower bound"
is "plan --png: a PNG" "$(head -c 4 pool.png | tail -c 3)" PNG
run plan tiny.ini --png nowhere/pool.png; expect "plan --png into a missing folder" 1 "nowhere/pool.png"
run plan tiny.ini --png pool.png --after fuse; expect "plan --png --after" 2 "leave --after"
printf 'id,lower,upper,size\na,0,4,30\nb,0,2,50\nc,2,6,40\nd,4,6,10\n' >lives.csv
run plan --csv lives.csv; expect "plan of a file of lives" 0 "id,lower,upper,size,offset" "peak 80, lower bound 80"
is "plan of a file of lives: rows" "$(wc -l <stdout)" 5
cp stdout planned.csv
run plan --csv planned.csv --capacity 80 --time-limit 0; expect "a plan is planned again" 0 "greedy 80"
run plan --csv lives.csv --capacity 79; expect "a capacity below the bound" 1 "79" "every plan needs at least 80"
is "a capacity below the bound: no rows" "$out" ""
printf 'id,lower,upper,size\na,0,4,x\n' >bad.csv
run plan --csv bad.csv; expect "a bad file of lives" 1 "bad.csv:2: size must be a whole number"
run plan --csv gone.csv; expect "a missing file of lives" 1 "gone.csv"
run plan tiny.ini --capacity 0 --csv; expect "--capacity 0" 2 "must be a whole number"
run plan --csv lives.csv --json; expect "lives and --json" 2 "by itself"
run plan --csv lives.csv train.batch=3; expect "lives and a key" 2 "has no keys"
run plan files.ini data.kind=folder data.root=nowhere; expect "plan without its data" 0 "1000 classes are assumed"
"$bin" plan tiny.ini --program 2>stderr | head -1 >/dev/null; rc=${PIPESTATUS[0]}
holds "a closed pipe is no crash" [ "$rc" -eq 0 -o "$rc" -eq 141 ]
is "a closed pipe: no message" "$(cat stderr)" ""
if [ -e /dev/full ]; then
    "$bin" plan tiny.ini >/dev/full 2>stderr; rc=$?; out= err=$(cat stderr)
    expect "full standard output" 1 "standard output"
fi

# ---- data ----
run data shapes pictures data.train_images=200 data.val_images=40; expect "data shapes" 0 "200 training and 40 validation"
shapes="data.kind=shapes data.root=pictures data.train_images=200 data.val_images=40"
run data tiny.ini $shapes; expect "data" 0 "200 images" "40 images" "10 classes" "circle"
run data tiny.ini $shapes --json; holds "data --json" json_lines
run data files.ini data.kind=folder data.root=nowhere; expect "data of a missing folder" 2 "[data] root" "nowhere"
run data files.ini data.kind=cifar10 data.root=nowhere; expect "data of a missing CIFAR-10" 2 "[data] root" "nowhere"

run data pack tiny.ini $shapes packed; expect "data pack" 0 "train.crpk: 200 pictures" "val.crpk: 40 pictures" "data.kind=packed"
run data files.ini data.kind=packed data.root=packed; expect "data of a packed set" 0 "200 images" "40 images" "10 classes" "circle"
run data verify packed -j 3; expect "data verify" 0 "train.crpk: 200 pictures" "val.crpk: 40 pictures"
run data verify packed --json; expect "data verify --json" 0 '"ok": true, "pictures": 200, "classes": 10'
holds "data verify --json" json_lines
run data pack pictures packed --raw=20 --json; expect "data pack --json" 0 '"pictures": 200' '"left_out": 0'
holds "data pack --json" json_lines
run data pack pictures packed --raw=20; expect "data pack of a folder, raw" 0 "200 pictures, 0.2 MB"
run data verify packed/train.crpk; expect "data verify of one file" 0 "200 pictures"
dd if=/dev/zero of=packed/val.crpk bs=1 seek=1000 count=4 conv=notrunc 2>/dev/null
run data verify packed; expect "data verify of an altered file" 1 "packed/val.crpk" "altered" "cresnet data pack" "1 of 2 files"
head -c 5000 packed/train.crpk >cut.crpk
run data verify cut.crpk packed/train.crpk --json; expect "data verify goes on" 1 '"ok": false' "cut off" '"pictures": 200'
holds "data verify of a cut file, --json" json_lines
mkdir stopped; echo kept >stopped/train.crpk
"$bin" data pack tiny.ini data.kind=synthetic data.train_images=50000000 stopped >/dev/null 2>&1 &
packer=$!
for i in $(seq 200); do ls stopped/*.tmp.* >/dev/null 2>&1 && break; sleep 0.05; done
kill -TERM $packer; wait $packer; is "data pack that is stopped" $? 143
is "data pack that is stopped leaves nothing" "$(ls stopped) $(cat stopped/train.crpk)" "train.crpk kept"
run data verify cut.crpk; expect "data verify of a cut file" 1 "cut.crpk" "cut off"
run data verify; expect "data verify without a file" 2 "FILE|DIR"
run data verify nowhere.crpk; expect "data verify of a missing file" 1 "nowhere.crpk"
mkdir -p unsplit/a unsplit/b; cp "$(find pictures -name '*.png' | head -1)" unsplit/a; cp unsplit/a/* unsplit/b
run data pack unsplit unsplit-packed; expect "data pack without validation pictures" 2 "val_fraction"
holds "data pack without validation pictures packs nothing" [ ! -e unsplit-packed ]
run data pack pictures; expect "data pack without a place" 2 "CONFIG|DIR OUT"
run data tiny.ini --raw=20; expect "--raw without pack" 2 "data pack"
run data files.ini data.kind=packed data.root=nowhere; expect "data of a missing pack" 2 "[data] root" "nowhere/train.crpk"

# ---- check, bench ----
run bench data tiny.ini $shapes -b 20 --steps 4; expect "bench data" 0 "images/s" "a core" "decode"
run bench data files.ini data.kind=packed data.root=packed -b 20 --steps 4 --json --against=100; expect "bench data --json" 0 '"wait_share"' '"proven": 1.0000'
holds "bench data --json" json_lines
run check tiny.ini --devices cpu; expect "check" 0 "ops compared"
run check tiny.ini --json -b 3; holds "check --json" json_lines
run bench step tiny.ini --steps 3 --json; expect "bench step" 0 '"images_per_s"'
holds "bench step --json" json_lines
run bench step tiny.ini train.accumulate=3 --steps 2 -q; expect "bench with accumulation" 0 "images/s"
run bench spdnn --neurons 1024 --layers 3,12 --inputs 64 --steps 1 --device cpu --verbose -q; expect "bench spdnn" 0 "SYNTHETIC" "TE/s" "survivors: 0:64"
run bench spdnn --neurons 1024 --layers 4 --inputs 40 --steps 1 --device cpu --no-drop --json -q; expect "bench spdnn --json" 0 '"teraedges_per_s"' '"edges": 131072' '"dropping": false'
holds "bench spdnn --json" json_lines
run bench spdnn --neurons 2048; expect "bench spdnn of another width" 2 "1024, 4096, 16384 and 65536"
run bench spdnn --layers 3,; expect "bench spdnn: half a list" 2 "--layers"
run bench spdnn --mnist tiny.ini; expect "bench spdnn: not MNIST" 1 "idx format"
run bench pools tiny.ini --steps 2; expect "bench pools" 0 "planned" "best_fit" "calloc"
run bench pools tiny.ini --steps 2 --json; holds "bench pools --json" json_lines
holds "bench pools: the plan is the load, a pool needs no less" python3 -c 'import json
p = {q["pool"]: q for q in json.loads(open("stdout").readline())["pools"]}
assert p["load"]["bytes"] <= p["planned"]["bytes"] <= 1.01 * p["load"]["bytes"] <= 1.01 * p["best_fit"]["bytes"], p'
run bench infer tiny.ini --steps 3 --json train.eval_batch=2; expect "bench infer" 0 '"images_per_s"' '"latency_ms"' '"exec_to_first_step_s"'
holds "bench infer --json" json_lines
is "bench infer: the batch is train.eval_batch" "$(field batch)" 2
holds "bench infer: images/s follow from ms and batch" python3 -c 'import json
b = json.loads(open("stdout").readline())
assert b["steps"] == 3 and b["accumulate"] == 1 and b["ms_min"] <= b["ms"] <= b["ms_max"], b
assert abs(b["images_per_s"] * b["ms"] / 1e3 / b["batch"] - 1) < 0.01, b'
run bench infer tiny.ini --steps 2 --json -b 6; is "bench infer: else it is train.batch" "$(field batch)" 6
run bench infer tiny.ini --steps 2; expect "bench infer in words" 0 "batch: " "images/s" "start: "
run bench infer; expect "bench infer of nothing" 2 "--help"
run bench ops tiny.ini --steps 2; expect "bench ops" 0 "layer2.0.conv2" "sum of"
run bench ops tiny.ini --steps 2 --json; holds "bench ops --json" json_lines
run profile tiny.ini --steps 2; expect "profile" 0 "layer2.0.conv2" "kind" "sum of" "run whole"
run profile tiny.ini --steps 2 --order program --json; holds "profile --json" json_lines
is "profile --order program: numbered as they run" "$(printf '%s\n' "$out" | sed -n 's/^{"op": \([0-9]*\),.*/\1/p' | head -3 | tr '\n' ' ')" "0 1 2 "
run profile tiny.ini --order size; expect "--order" 2 "must be one of time, program"

# ---- train, resume to the bit ----
run train tiny.ini train.output=A train.steps=20; expect "train" 0 "step 20"
is "train: stdout stays empty" "$out" ""
for file in last/model.safetensors last/state.safetensors last/config.ini last/classes.txt log.jsonl best; do
    holds "train wrote $file" [ -e "A/$file" ]
done
holds "log.jsonl is JSON" python3 -c 'import json; [json.loads(l) for l in open("A/log.jsonl")]'
run train tiny.ini train.output=B train.steps=10; expect "the first half" 0
run train tiny.ini train.output=B --resume auto train.steps=20; expect "the second half" 0 "step 10"
holds "resumed model is equal to the bit" cmp A/last/model.safetensors B/last/model.safetensors
holds "resumed state is equal to the bit" cmp A/last/state.safetensors B/last/state.safetensors
run train tiny.ini train.output=C train.steps=20 data.workers=3; expect "with other workers" 0
holds "workers change nothing" cmp A/last/model.safetensors C/last/model.safetensors
run train tiny.ini train.output=D train.steps=20 --seed 2; expect "another seed" 0
holds "the seed matters" sh -c '! cmp -s A/last/model.safetensors D/last/model.safetensors'
before=$(cd A && find . -type f -exec cksum {} + | sort)
run train tiny.ini train.output=A; expect "a folder in use" 2 "--resume"
is "a refused run changes nothing" "$(cd A && find . -type f -exec cksum {} + | sort)" "$before"
run train tiny.ini train.output=A --resume auto train.steps=20; expect "nothing left to do" 0 "step 20"
run train tiny.ini train.output=A --resume auto train.steps=24 model.widths=4,16; expect "another model on resume" 2 "widths"
run train tiny.ini train.output=fresh --resume auto train.steps=3; expect "--resume auto in an empty folder begins" 0 "step 3"

# ---- the table of costs: the CPU has none, a checkpoint may hold one ----
run help keys; expect "help keys, costs" 0 "measure"
run plan tiny.ini train.measure=maybe; expect "train.measure" 2 "[train] measure" "must be yes or no"
for measure in yes no; do
    CRESNET_CACHE=$work/costs run train tiny.ini -o M-$measure train.measure=$measure --steps 3; expect "train.measure=$measure" 0 "step 3"
    holds "train.measure=$measure: the CPU leaves no costs" [ ! -e costs -a ! -e M-$measure/last/costs.txt ]
done
holds "train.measure changes nothing on the CPU" cmp M-yes/last/model.safetensors M-no/last/model.safetensors
printf 'cresnet costs 3\tsome GPU\n' >M-yes/last/costs.txt
run train tiny.ini -o M-yes --resume auto --steps 4; expect "a checkpoint whose kernels were measured elsewhere" 2 "costs.txt" "--force" "train.deterministic=no"
is "a checkpoint whose kernels were measured elsewhere: one error" "$(grep -c costs.txt stderr)" 1
holds "a refused resume writes nothing" [ ! -e M-yes/step-4 ]
run train tiny.ini -o M-yes --resume auto --steps 4 train.deterministic=no; expect "the same, not deterministic" 0 "costs.txt" "chosen anew" "step 4"
holds "the new checkpoint has no costs" [ ! -e M-yes/last/costs.txt ]
printf 'cresnet costs 3\tsome GPU\n' >M-no/last/costs.txt
run train tiny.ini -o M-no --resume auto --steps 4 --force; expect "the same, forced" 0 "costs.txt" "chosen anew" "step 4"
run plan tiny.ini --target h200 memory.limit=200MiB; expect "a GPU's limit counts its libraries" 0 "limit 200.0 MiB, 112.0 of them for libraries"
run plan tiny.ini --target h200 memory.limit=100MiB; expect "a limit below the libraries" 2 "112 of them libraries" "more than that"
run plan tiny.ini --target h200 --ranks 2 memory.limit=200MiB; expect "a limit below NCCL's buffers" 2 "libraries and NCCL"
run plan tiny.ini --target h200 --ranks 2 memory.limit=1100MiB; expect "a limit above them" 0 "for libraries and NCCL"
run plan tiny.ini memory.limit=1MiB; holds "on the CPU a limit counts the network alone" sh -c '! grep -q libraries stdout'
run plan tiny.ini memory.limit=1KiB; expect "plan with a limit that cannot be kept" 2 "too much" "[memory] limit" "train.batch"
run plan M-no --choices; expect "plan of a run" 0 "program step"

# ---- values without effect ----
run train tiny.ini -o idle --steps 1 train.gpu=1 train.loss_scale=8; expect "train.gpu and train.loss_scale on the CPU" 0 "without effect here: train.gpu" "train.loss_scale"
is "values without effect: one line" "$(grep -c 'without effect' stderr)" 1
run train tiny.ini -o idle2 --steps 1; is "nothing set, nothing said" "$(grep -c 'without effect' stderr)" 0
run train tiny.ini train.output=E --resume nowhere train.steps=3; holds "--resume of nothing fails" [ "$rc" -ne 0 ]

# ---- eval, predict ----
run train tiny.ini $shapes -o S --steps 6 -q; expect "train on shapes" 0
run eval S --json; expect "eval of a run" 0 '"right"' '"top5"' '"loss"'
holds "eval --json" json_lines
is "eval: every picture once" "$(field images)" 40
right=$(field right)
run eval tiny.ini $shapes --weights S/last/model.safetensors --json; is "eval of a file" "$(field right)" "$right"
run eval S/last --json train.eval_batch=7; is "eval with another batch" "$(field right)" "$right"
run eval S --split train --json; is "eval --split train" "$(field images)" 200
pictures=$(find pictures/val -name '*.png' | sort | head -3)
run predict S $pictures; expect "predict" 0 "%" $pictures
run predict S $pictures --json -k 2; holds "predict --json" json_lines
is "predict: a line a picture" "$(wc -l <stdout)" 3
holds "predict: sane numbers" python3 -c 'import json
for l in open("stdout"):
    top = json.loads(l)["top"]
    assert len(top) == 2 and 1 >= top[0]["probability"] >= top[1]["probability"] >= 0 and top[0]["class"].isalpha()'
run eval S --per-class --confusion matrix.csv --json; expect "eval --per-class --json" 0 '"per_class"' '"confused_with"'
cp stdout classes.json
run predict S pictures/val --json -k 1; expect "predict a folder" 0 '"top"'
is "predict a folder: a line a picture" "$(wc -l <stdout)" 40
holds "matrix, table and scores say what predict says of each picture" python3 -c 'import csv, json
rows = list(csv.reader(open("matrix.csv")))
names = rows[0][1:]
assert [r[0] for r in rows[1:]] == names and len(names) == 10
want = {a: {b: 0 for b in names} for a in names}
for line in open("stdout"):
    picture = json.loads(line)
    want[picture["image"].split("/")[-2]][picture["top"][0]["class"]] += 1
assert {r[0]: dict(zip(names, map(int, r[1:]))) for r in rows[1:]} == want
report = json.load(open("classes.json"))
assert sum(want[a][a] for a in names) == report["right"] and report["images"] == 40
for c in report["per_class"]:
    row, name = want[c["class"]], c["class"]
    assert (c["images"], c["right"], c["predicted"]) == (sum(row.values()), row[name], sum(want[a][name] for a in names)), c
    assert abs(c["top1"] - row[name] / sum(row.values())) < 1e-6
    wrong = max((row[b], -names.index(b), b) for b in names if b != name)
    assert c["confused_with"] is None if wrong[0] == 0 else (c["confused_with"]["class"], c["confused_with"]["images"]) == (wrong[2], wrong[0]), c'
run eval S --per-class; expect "eval --per-class" 0 "most confused with" "circle" "val: $right of 40"
run predict S pictures/val; expect "predict a folder as a table" 0 "pictures/val/circle"
is "predict a folder as a table: a line a picture" "$(wc -l <stdout)" 40
mkdir -p mixed/deep mixed/empty && cp "${pictures%%$'\n'*}" mixed/deep/good.png && echo no >mixed/bad.jpg && ln -s .. mixed/deep/loop
run predict S mixed --json; expect "predict what cannot be read, and go on" 1 "mixed/bad.jpg" "1 of 2 pictures could not be read" '"error"'
is "predict: the others are answered" "$(grep -c '"top"' stdout)" 1
run predict S mixed/empty; expect "predict an empty folder" 1 "no pictures"
run predict tiny.ini --weights S/last $pictures; expect "predict with a config and weights" 0 "%"
run plan S --json; expect "plan of a run" 0 '"batch": 4'
echo "not a picture" >text.png
run predict S text.png; expect "predict what is no picture" 1 "text.png"
run predict S nowhere.png; expect "predict a missing picture" 1 "nowhere.png"
run predict S; expect "predict nothing" 2 "no picture given"

# ---- moving averages; a file of weights in a checkpoint stands for it ----
run train tiny.ini $shapes -o M --steps 6 -q ema.decay=0.5; expect "train with averages" 0
want=$(sed -n 's/.*"ema_right":\([0-9]*\).*/\1/p' M/log.jsonl | tail -1)
run eval M --ema --json; is "eval --ema" "$(field right) $(field weights)" "$want M/step-6/ema.safetensors"
loss=$(field loss)
run eval M/last/ema.safetensors --json; is "eval of ema.safetensors" "$(field loss)" "$loss"
run eval M --json; expect "eval of a run with averages names them" 0 "--ema"
is "eval takes the weights" "$(field weights)" M/step-6
holds "which score otherwise" [ "$(field loss)" != "$loss" ]
run export M --ema -o averages.safetensors; expect "export --ema" 0
run eval tiny.ini $shapes --weights averages.safetensors --json; is "exported averages" "$(field loss)" "$loss"
run export M --ema --onnx averages.onnx; expect "export --ema --onnx" 0
run export M --onnx weights.onnx; holds "averages are another network" eval '! cmp -s averages.onnx weights.onnx'
run predict M/last/ema.safetensors $pictures; expect "predict with averages" 0 "circle"
run prune M --ema --sparsity 0.5 -o half; expect "prune --ema" 0
run eval S --ema; expect "--ema without averages" 2 "ema.safetensors" "ema.decay"
run eval tiny.ini --ema; expect "--ema of a configuration" 2 "--weights FILE"
run eval averages.safetensors; expect "weights alone" 2 "CONFIG --weights averages.safetensors"

# ---- bad weights, bad pictures ----
run eval tiny.ini $shapes model.widths=4,16 --weights S/last/model.safetensors; expect "weights of another shape" 1 "model.safetensors"
head -c 1000 S/last/model.safetensors >short.safetensors
run eval tiny.ini $shapes --weights short.safetensors; expect "cut weights" 1 "short.safetensors"
run eval tiny.ini $shapes --weights text.png; expect "weights that are none" 1 "text.png"
run eval tiny.ini $shapes --weights nowhere.safetensors; expect "missing weights" 1 "nowhere.safetensors"
cp -r pictures broken
victim=$(find broken/val -name '*.png' | sort | head -1)
head -c 60 "$victim" >cut && cat cut >"$victim"
bad="data.kind=folder data.root=broken"
run eval files.ini $bad --weights S/last --json; expect "a corrupt picture is skipped" 0 '"corrupt": 1' "$victim"
is "a corrupt picture counts nowhere" "$(field images)" 39
run eval files.ini $bad data.corrupt=fatal --weights S/last; expect "a corrupt picture is fatal" 1 "$victim"
run train tiny.ini data.train_images=3 -o small; holds "a set smaller than a batch" [ "$rc" -eq 2 -o "$rc" -eq 1 ]

# ---- signals ----
# start ARGS...: a long run in the background; waits for its first checkpoint
start() {
    "$bin" train tiny.ini "$@" >stdout 2>stderr &
    child=$!
    for _ in $(seq 600); do [ -e "$folder/last/state.safetensors" ] && return; sleep 0.05; done
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
for _ in $(seq 200); do [ -e USR1/log.jsonl ] && break; sleep 0.05; done
sleep 0.3; kill -USR1 $child
for _ in $(seq 200); do [ -e USR1/last/state.safetensors ] && break; sleep 0.05; done
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
zeros() { # FILE TENSOR: elements that are 0, of how many
    python3 -c 'import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
e = json.loads(data[8:8 + n])[sys.argv[2]]
assert e["dtype"] == "F32"
a, b = e["data_offsets"]
v = struct.unpack("<%df" % ((b - a) // 4), data[8 + n + a:8 + n + b])
print(sum(x == 0 for x in v), len(v), e["shape"])' "$1" "$2" 2>&1
}
gradual='prune.sparsity=0.9 prune.start=0.5 prune.end=1 prune.frequency=3'
# shellcheck disable=SC2086 # words on purpose
{
    run train tiny.ini -o G $gradual --steps 24; expect "gradual pruning" 0 "pruned at step 11: " "pruned at step 14: " "pruned at step 16: 90.03 % (1066 of 1184 weights)" "step 24"
    holds "gradual pruning is in the log" grep -q '"event":"prune".*"step":16,"sparsity":0.900338' G/log.jsonl
    for at in 10 11 12 14 20; do # before, at and between prunings, and after the last
        run train tiny.ini -o "G$at" $gradual --steps $at; expect "pruning to step $at" 0
        run train tiny.ini -o "G$at" --resume auto --steps 24; expect "pruning from step $at" 0
        holds "resumed at step $at of a pruning, equal to the bit" same_run G "G$at"
    done
}
run train tiny.ini -o E --steps 24; expect "the same without pruning" 0
holds "a sparse checkpoint is smaller" smaller G/last/model.safetensors E/last/model.safetensors
holds "so is its state" smaller G/last/state.safetensors E/last/state.safetensors
run export G -o g.safetensors --dense; expect "export" 0
is "export: pruned weights are 0" "$(zeros g.safetensors layer2.0.conv2.weight | cut -d' ' -f2-)" "576 [8, 8, 3, 3]"
is "export: what is exempt is dense" "$(zeros g.safetensors conv1.weight)" "0 108 [4, 3, 3, 3]"
is "export has the bytes of a dense checkpoint" "$(stat -c %s g.safetensors)" "$(stat -c %s E/last/model.safetensors)"
run eval G --json; right=$(field loss)
run eval tiny.ini --weights g.safetensors --json; is "exported weights score as the run" "$(field loss)" "$right"
python3 -c '
import json, struct
data = open("g.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + size])
text = json.dumps({k if k == "__metadata__" else "module._orig_mod." + k: v for k, v in header.items()}).encode()
open("wrapped.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size:])
header["module.x"] = header.pop("conv1.weight")
text = json.dumps(header).encode()
open("renamed.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size:])'
run eval tiny.ini --weights wrapped.safetensors --json; is "names in a wrapper are the names" "$(field loss)" "$right"
run eval tiny.ini --weights renamed.safetensors; expect "a prefix of one name is no wrapper" 1 "module.x" "conv1.weight"
run export E -o e.safetensors; holds "export of a dense run is its model file" cmp e.safetensors E/last/model.safetensors
run export E -o timm.safetensors --names timm; holds "timm's names are torchvision's" cmp timm.safetensors e.safetensors
run export E -o x.safetensors --names keras; expect "export --names of somebody else" 2 "torchvision, timm"
run export G -o g.safetensors; expect "export over a file" 1 "g.safetensors" "exists"
run export G --onnx g.onnx; expect "export --onnx" 0 "g.onnx"
run export tiny.ini --weights e.safetensors --onnx e.onnx --fold data.image_size=24; expect "export --onnx of a config" 0 "e.onnx"
holds "ONNX: it says who made it, its opset, its input" python3 -c '
data = open("g.onnx", "rb").read()
assert data.startswith(bytes([8, 8, 18, 7]) + b"cresnet") and bytes([66, 2, 16, 17]) in data and b"input" in data and b"BatchNormalization" in data
data = open("e.onnx", "rb").read()
assert b"BatchNormalization" not in data and b"conv1.bias" in data'
run export tiny.ini --onnx x.onnx; expect "export --onnx without weights" 2 "--weights FILE"
run export G --onnx g.onnx -o g2.safetensors; expect "export twice at once" 2 "one of them"
run export G --fold -o g2.safetensors; expect "export --fold without --onnx" 2 "--onnx"
run export G -o g2.safetensors train.batch=3; expect "export with a key that does nothing" 2 "train.batch=3"
run export G --onnx nowhere/g.onnx; expect "export --onnx to nowhere" 1 "nowhere/g.onnx"
run export G; expect "export to nowhere" 2 "-o FILE"
run export nowhere -o x.safetensors; expect "export of nothing" 1 "nowhere"

run prune E --sparsity 0.9 -o P; expect "prune" 0 "layer2.0.conv2" "of what may be pruned" "90.03 %" "stays dense by prune.exempt"
run eval P; expect "eval of a pruned folder" 0 "top-1"
run train tiny.ini model.weights=P -o PT --steps 5; expect "fine-tuning" 0 "step 5"
run export P -o p.safetensors; run export PT -o pt.safetensors
is "fine-tuning keeps what is pruned" "$(zeros pt.safetensors layer2.0.conv1.weight)" "$(zeros p.safetensors layer2.0.conv1.weight)"
holds "fine-tuning moves the rest" sh -c '! cmp -s p.safetensors pt.safetensors'
run train tiny.ini -o PT --resume auto --steps 8; expect "fine-tuning goes on" 0 "step 8"
run train tiny.ini model.weights=P -o PU --steps 8; holds "... equal to the bit" same_run PT PU
run prune E --sparsity 0.5 --scope uniform --json -o PJ; holds "prune --json" json_lines
is "prune --json counts" "$(field pruned)" 592
run prune E --pattern 2:4 -o P24; expect "2:4" 0 "layer2.0.conv2                        576          288    50.00 %"
run export P24 -o p24.safetensors; is "2:4: half of it" "$(zeros p24.safetensors layer2.0.conv2.weight)" "288 576 [8, 8, 3, 3]"
printf 'layer,sparsity\nlayer1.0.conv1,0.25\nfc,50%%\n' >budget.csv
run prune E --budget budget.csv -o PB; expect "a budget" 0 "layer1.0.conv1                        144          108    25.00 %" "fc                                     80           40    50.00 %"
run train tiny.ini model.weights=PB model.head=new -o PBH --steps 2; expect "a pruned classifier that starts fresh" 0 "fresh one of 10"
printf 'layer,sparsity\nlayer7.conv,0.25\n' >budget.csv
run prune E --budget budget.csv -o PX; expect "a wrong budget" 1 "budget.csv:2: this network has no layer \"layer7.conv\""
run prune E -o PX; expect "prune without a share" 2 "--sparsity"
run prune E --sparsity 0.9; expect "prune to nowhere" 2 "-o DIR"
run prune tiny.ini --sparsity 0.9 -o PX; expect "prune without weights" 2 "--weights FILE"
run prune E --sparsity 0.9 -o P; expect "prune into a run" 2 "not empty"
run prune E --sparsity 0.9 --pattern 2:4 -o PX; expect "too much for 2:4" 2 "must not exceed 0.5"
run prune E --sparsity 0.9 --exempt conv1,layer9 -o PX; expect "exempt" 2 "\"layer9\" is no layer"
run prune E --sparsity 2 -o PX; expect "sparsity" 2 "must be from 0 to 0.9999"
run train tiny.ini prune.sparsity=0.5 prune.start=2 prune.end=1 -o PX; expect "prune.end" 2 "must not come before start"
run prune E --target-ms 0.000001 -o PX; expect "a time that cannot be had" 2 "--target-ms 1e-06 cannot be had: " " is the least" "ask for more time"
least=$(sed -n 's/.*cannot be had: \([0-9.e-]*\) is the least.*/\1/p' stderr) dense=$(sed -n 's/.*(dense \([0-9.e-]*\) ms.*/\1/p' stderr)
middle=$(python3 -c "print(($least + $dense) / 2)")
run prune E --target-ms "$least" -o PT1; expect "the least time that was named can be had" 0 "97.92 %" "times are not measured on CPU"
run prune E --target-ms "$middle" --json -o PT2; expect "prune --target-ms" 0
holds "--target-ms: predicted times keep it, what is slow goes and what gains nothing stays" python3 -c '
import json, sys
r = json.load(open("stdout"))
target, least, dense = map(float, sys.argv[1:])
assert abs(r["target_ms"] - target) < 1e-8 and least - 1e-6 <= r["predicted_ms"] <= target and abs(r["dense_ms"] - dense) < 1e-5 and not r["measured"] and r["batch"] == 4
saved = sum(t["dense_us"] - t["us"] for t in r["times"])
assert abs(r["dense_ms"] - r["predicted_ms"] - saved / 1e3) < 1e-6 * dense, saved
count = {l["layer"]: l["pruned"] for l in r["layers"]}
weights = {l["layer"]: l["weights"] for l in r["layers"]}
for t in r["times"]:
    assert t["sparse"] == (t["sparsity"] > 0) == (count[t["layer"]] > 0) == (t["us"] < t["dense_us"]) == (t["lost"] > 0), t
    assert count[t["layer"]] == int(weights[t["layer"]] * t["sparsity"] + 0.5), t
assert count["layer2.0.downsample.0"] == count["conv1"] == count["fc"] == 0 and r["pruned"] == sum(count.values()) > 0' "$middle" "$least" "$dense"
run plan PT2 --which eval --choices; expect "what was chosen runs sparse" 0 "  sparse  layout 0"
run eval PT2; expect "eval of it" 0 "top-1"
run prune E --target-ms 1000 -o PX; expect "a time that is had anyway" 2 "nothing need be pruned"
run prune E --target-ms "$middle" -b 1 -o PX; expect "--target-ms is of --batch" 2 "nothing need be pruned" "batch 1,"
run prune E --target-ms 0 -o PX; expect "--target-ms 0" 2 "must be milliseconds above 0"
run prune E --target-ms 1 --sparsity 0.5 -o PX; expect "--target-ms and --sparsity" 2 "chooses the sparsities itself"
run prune E --target-ms 1 --pattern 2:4 -o PX; expect "--target-ms and 2:4" 2 "pattern = 2:4" "single weights"
run prune E --target-ms 1 train.sparse=no -o PX; expect "--target-ms without sparse kernels" 2 "sparse = no"
run prune E --target-ms 1 train.batch=auto -o PX; expect "--target-ms of an unknown batch" 2 "give --batch N"
holds "what was refused leaves nothing" [ ! -e PX ]

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
        expect "a full disk" 1 "disk/run"
        holds "a full disk loses no checkpoint" [ -e disk/run/last/state.safetensors ]
        holds "a full disk leaves no half" sh -c '! ls -d disk/run/.tmp-step* 2>/dev/null | grep -q .'
        run eval tiny.ini --weights disk/run/last; expect "the last checkpoint reads" 0
    else
        skip "full disk (no mount here)"
    fi
else
    mkdir locked && chmod a-w locked
    run train tiny.ini -o locked/run; expect "unwritable output" 1 "locked"
    skip "full disk (needs root)"
fi

# ---- the trail ----
CRESNET_TRACE=1 run plan nowhere.ini; expect "CRESNET_TRACE" 2 "trail: src/"

sum_up

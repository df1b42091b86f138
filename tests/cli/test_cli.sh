#!/usr/bin/env bash
# test_cli.sh: runs the built program as a user does and checks exit codes, messages, overrides and JSON results. Training runs are in
# test_cli_train.sh. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# ---- help, version, mistakes on the command line ----
run; expect "no command" 2 "usage: cresnet COMMAND" "no command given"
run --help; expect "--help" 0 "usage: cresnet COMMAND"
run -h; expect "-h" 0 "Exit codes"
run --version; expect "--version" 0 "cresnet        " "libpng" "device cpu" "oneDNN" "OpenMP" "iniparser" "compiler"
tiny_model >plain.ini
run plan plain.ini $'train.epochs=3\ncresnet: warning: forged'; expect "a newline in a value" 2 '[train] epochs = 3\x0acresnet: warning: forged: must be an integer'
is "a newline in a value: one line" "$(printf '%s\n' "$err" | wc -l)" 1
run train ""; expect "an empty name" 2 "cresnet train: the name of the configuration file is empty"
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
run config; expect "config of a program in a build folder" 2 "no configurations are installed with this program" "folder configs"
run help keys; expect "help keys" 0 "[model]" "weight_decay" "image_size" "drop_last"
run help keys ema; expect "help keys SECTION" 0 "[ema]" "decay = 0"
holds "help keys SECTION: no other" [ "$(grep -c '^\[' stdout)" = 1 ]
run help optim.lrr; expect "help keys, misspelt key" 2 "did you mean lr?"
run trian tiny.ini; expect "unknown command" 2 "unknown command trian (did you mean train?)"
run help optm; expect "help on an unknown section" 2 "did you mean [optim]?"
run tiny.ini; expect "a config instead of a command" 2 "cresnet train tiny.ini"
run train tiny.ini --foo; expect "unknown option" 2 "cresnet train: unknown option --foo" "see cresnet train --help"
run train --resme auto tiny.ini; expect "hint" 2 "unknown option --resme (did you mean --resume?)"
run train tiny.ini --output; expect "option without its value" 2 "--output needs a value"
run train tiny.ini --lr --epochs 2; expect "a long option instead of a value" 2 "option --lr needs a value (X), but the next word is --epochs"
run train tiny.ini --lr -1; expect "a negative value is a value" 2 "[optim] lr = -1: must be from 0"
run train tiny.in; expect "a typing error in the name of a file" 2 "tiny.in: no such file; did you mean tiny.ini?"
mkdir -p holder/.hidden; cp tiny.ini holder/net.ini
run train hodler/net.ini; expect "a typing error in the name of a folder" 2 "hodler/net.ini: no such file; did you mean holder/net.ini?"
run finetune holdre; expect "a typing error in the folder of images" 2 "holdre: no such folder of images; did you mean holder?"
run train --resume holder; expect "--resume of a folder without a run" 2 "--resume holder: no checkpoint there"
run train tiny.ini --force=yes; expect "a flag with a value" 2 "--force takes no value"
run train tiny.ini extra.ini; expect "an operand too many" 2 "unexpected operand extra.ini"
run plan tiny.ini batch=3; expect "an override without its section" 2 "did you mean train.batch=3?"
run plan tiny.ini --which stp; expect "--which" 2 "must be one of step, micro_first"
# On machines with a GPU, test_cuda_* and gpu-check.sh test these cases.
if "$bin" --version 2>/dev/null | grep '^device cuda ' | grep -qv 'not available'; then skip "device cuda without a GPU: there is one"; else
    run train tiny.ini --device cuda -o nogpu; expect "--device cuda without a GPU" 1 "device cuda" "--device cpu"
    run check tiny.ini --devices cpu,cuda; expect "check on a GPU that is not there" 1 "device cuda"
    is "check on a GPU that is not there: no device is checked before" "$(grep -c program stderr)" 0
    run train tiny.ini --device cuda -o nogpu
    [ "$(wc -l <stderr)" -le 2 ] && [ ! -d nogpu/step-1 ] && pass || fail "--device cuda without a GPU says more than it must: $(cat stderr)"
fi
run train tiny.ini --device cpu train.precision=fp16 -o half; expect "fp16 on the CPU" 2 "precision" "needs a GPU"
run check tiny.ini --devices cpu,tpu; expect "--devices, the second unknown" 2 "unknown device tpu"
is "--devices, the second unknown: the first is not checked" "$(grep -c program stderr)" 0
run plan tiny.ini --device gpu; expect "--device gpu" 2 "did you mean cuda?"
run bench stpe; expect "an unknown benchmark" 2 "unknown benchmark stpe (did you mean step?)" "bench step CONFIG"
run data pak; expect "an unknown part of data" 2 "pak is neither a configuration nor one of" "(did you mean pack?)"
run train tiny.ini Batch-Size=4; expect "a value without its section" 2 "Batch-Size=4 (did you mean train.batch=4?)"
run eval tiny.ini; expect "eval without weights" 2 "--weights FILE"
run train "$source_dir"/configs/finetune-folder.ini data.root=.; expect "fine-tuning without its weights" 2 "finetune-folder.ini:" "resnet18.safetensors" "model.weights=FILE" "from scratch; model.weights=resnet18 downloads the published weights"
is "... without the list of all names" "$(grep -c wide_resnet101_2 <<<"$err")" 0
is "... leaves no run behind" "$(ls -d checkpoints 2>/dev/null)" ""
run train .; expect "train on a folder" 2 "is a folder" "cresnet finetune ." "--resume"
run train files.ini data.kind=folder data.root=nowhere -o nowhere-run; expect "a missing folder of images" 2 "[data] root = nowhere: there is no such folder" "set data.root"

# ---- configuration and overrides ----
printf '[model]\narch = resnet21\n[train]\nbacth = 3\nepochs = many\n' >bad.ini
run plan bad.ini
expect "all mistakes of a file at once" 2 "bad.ini:2: [model] arch" "bad.ini:4: [train]" "batch" "bad.ini:5: [train] epochs"
for how in "train.batch=6" "--train.batch=6" "--train.batch 6" "--batch 6" "--batch=6" "-b 6" "-b6" "--set train.batch=6" \
    "train.batch=2 -b 6" "-b 2 train.batch=6"; do
    run plan tiny.ini $how --json; is "plan $how" "$(field batch)" 6
done
run plan --json -b 6 -- tiny.ini; is "options before operands, --" "$(field batch)" 6
run plan tiny.ini -b 6 -- train.batch=5; expect "-- ends options and overrides" 2 "unexpected operand train.batch=5"

# ---- plan ----
for name in demo resnet50; do # test_programs plans every configuration
    if [ -n "${CRESNET_SANITIZE:-}" ] && [ "$name" != demo ]; then skip "plan $name (sanitizer)"; continue; fi
    run plan "$source_dir/configs/$name.ini" --json; expect "plan $name" 0 '"peak_bytes"' '"bound_bytes"'
    holds "plan $name: one JSON line" json_lines
    holds "plan $name: peak within 1 % of the bound" python3 -c 'import json
p = json.loads(open("stdout").readline()); assert p["peak_bytes"] <= 1.01 * p["bound_bytes"] and p["bound_bytes"] > 0, p'
done
run plan tiny.ini; expect "plan" 0 "layer1.0.conv1" "total" "lower bound" "pool"
run plan tiny.ini --program; expect "plan --program" 0 "conv " "layer1.0.conv1.y" "sgd"
run plan tiny.ini --after grad; plain=$(wc -l <stdout)
run plan tiny.ini --after fuse; holds "fusing makes fewer ops" [ "$(wc -l <stdout)" -lt "$plain" ]
run plan tiny.ini --which eval --program; expect "plan --which eval" 0 "fold_bn" "bias:layer1.0.conv1.y.bias"
if plans_for_gpus; then
    for precision in fp16 fp32; do
        run plan tiny.ini --target h200 train.precision=$precision; expect "plan --target, $precision" 0 "target NVIDIA H200" "of the GPU's 143771 MiB" "roofline"
    done
    photos="data.kind=folder data.root=none data.train_images=0 data.val_images=0 data.crop=random_resized -b 64 memory.limit=2GiB" # 9.6 MiB of data, 96 of work area
    run plan tiny.ini --target h200 $photos data.decode=auto; expect "plan of photos" 0 "of which 112.0 MiB for libraries:"
    run plan tiny.ini --target h200 $photos data.decode=gpu; expect "plan with a decoder" 0 "MiB for libraries and decoding:"
    mib=$(sed -n 's/.*of which \([0-9]*\)\.[0-9]* MiB.*/\1/p' stdout); holds "its memory counts ($mib MiB)" [ "$((mib - 112))" -ge 105 -a "$((mib - 112))" -le 110 ]
    run plan tiny.ini --target a100 --json -q; expect "plan --target --json" 0 '"device": "NVIDIA A100' '"plan_ms"'
    holds "plan --target --json" json_lines
    run plan tiny.ini --target h200 --kernel-times tiny.ini; expect "plan --kernel-times of another file" 1 "tiny.ini: its first line is not"
    wide="model.depths=1 model.widths=512 train.precision=fp32"; xz -dc "$source_dir/tests/guard/kernel-times-9.0.txt.xz" >times.txt
    run train tiny.ini $wide prune.sparsity=0.95 prune.end=0.5 prune.frequency=1 train.device=cpu -o wide; expect "a pruned network" 0 "saved"
    run plan tiny.ini $wide --weights wide/last --target h200 --kernel-times times.txt; expect "plan --kernel-times of a pruned network" 0 "cudnn.conv"
    run plan tiny.ini --target h200 train.precision=fp16 -b 512 --choices; expect "plan --target --choices" 0 "plain us" "PWD"
    run plan tiny.ini --target h100 memory.limit=1MiB; expect "a limit below what libraries need" 2 "MiB (112 of them for libraries), "
    is "what is missing is the need less the limit" "$(sed -n 's/.*needs \([0-9.]*\) MiB.*, \([0-9.]*\) more.*/\1 \2/p' stderr | awk '{printf "%.1f", $1 - $2}')" 1.0
else
    skip "plan --target: no CUDA in this build, or one of its libraries is missing"
fi
if "$bin" --version | grep -q '^CUDA  *no'; then
    run plan tiny.ini --target h200; expect "plan --target without CUDA" 1 "a plan for the NVIDIA H200 asks the kernels for that GPU, and this build has none: build cresnet with CUDA"
fi
run plan tiny.ini --kernel-times tiny.ini; expect "plan --kernel-times without --target" 2 "--kernel-times needs --target"
run plan tiny.ini --target h300; expect "plan --target of none" 2 "h200, h100, a100, l40s, l4, rtx5090, rtx4090, rtx3090, rtx3060"
run plan tiny.ini --choices; expect "plan --choices" 0 "program step, batch 4, on CPU" "kernel times are roofline estimates"
run plan tiny.ini --choices --json; expect "plan --choices --json" 2 "--choices prints its own table" "cresnet profile --json"
run plan tiny.ini --choices --which eval -b 3; expect "plan --choices of eval: all BN is folded" 0 "program eval, batch 3" "no convolution has a fusion option"
run plan tiny.ini --choices train.fuse=no; expect "plan --choices without fusing" 2 "[train] fuse = no" "--choices"
run plan tiny.ini train.accumulate=4 --which micro --json; expect "plan of a micro-step" 0 '"program": "micro"'
for size in 12 16; do run plan tiny.ini data.image_size=$size --json -q; cp stdout size$size.json; done
run plan tiny.ini model.stem=imagenet data.image_sizes=5@0; expect "a size that is too small has its own key" 2 "[data] image_sizes = 5@0: 5 pixels: this network needs at least 7"
run plan tiny.ini data.image_sizes=12@0,16@2,12@3 --json -q; expect "plan --json with several sizes" 0
holds "plan --json: each size as planned alone, the largest as the program" python3 -c 'import json
p, one = (json.load(open("stdout")), {s: json.load(open("size%d.json" % s)) for s in (12, 16)})
assert [(s["image_size"], s["from_epoch"]) for s in p["sizes"]] == [(12, 0), (16, 2), (12, 3)], p
assert all(s[k] == one[s["image_size"]][k] for s in p["sizes"] for k in ("ops", "peak_bytes", "bound_bytes")), p
assert p["peak_bytes"] == one[16]["peak_bytes"] > one[12]["peak_bytes"] and "sizes" not in one[16], p'
run plan tiny.ini --csv; is "plan --csv" "$(head -1 stdout)" "id,lower,upper,size,offset"
# What is a program of its own now: one error names it. tools/NAME/tests/ test the programs.
moved() { run "$@"; expect "$*" 2 "is now the program cresnet-$to: tools/"; is "$*: one line" "$(wc -l <stderr)" 1; }
to="memory-trace plan LOG"; moved plan --trace log.csv; moved plan --alignment=64 --trace=log.csv
to="memory-trace offsets FILE.csv"; moved plan --csv lifetimes.csv; moved plan --csv lifetimes.csv --capacity 80; moved plan --time-limit 1
to=spdnn; moved bench spdnn --neurons 1024

run plan tiny.ini --svg pool.svg; expect "plan --svg" 0 "lower bound"
holds "plan --svg: names the tensors" grep -q "^<rect class=\"a\".*<title>conv1.y" pool.svg
run plan tiny.ini --png pool.png; expect "plan --png is an error that names --svg" 2 "--png is now: cresnet plan --svg FILE"
run plan tiny.ini --costs x; expect "an option of 0.1" 2 "--costs is now: cresnet plan --kernel-times FILE"
run report run --profile x; expect "report --profile" 2 "--profile is now: cresnet profile RUN"
run export run --dense; expect "an option that is not needed" 2 "--dense is now: the default, so leave it out"
run plan files.ini data.kind=folder data.root=nowhere; expect "plan without its data" 0 "assuming 1000 classes"
"$bin" plan tiny.ini --program 2>stderr | head -1 >/dev/null; rc=${PIPESTATUS[0]}
holds "a closed pipe is no crash" [ "$rc" -eq 0 -o "$rc" -eq 141 ]
is "a closed pipe: no message" "$(cat stderr)" ""
if [ -e /dev/full ]; then
    "$bin" plan tiny.ini >/dev/full 2>stderr; rc=$?; out= err=$(cat stderr)
    expect "full standard output" 1 "standard output"
fi

# ---- data ----
run data shapes images data.train_images=200 data.val_images=40; expect "data shapes" 0 "200 training and 40 validation"
run data shapes few data.train_images=9; expect "data shapes with too few images" 2 "must be at least 10"
run data shapes tiny.ini/shapes; expect "data shapes below a file" 1 "tiny.ini/shapes: cannot look for the shapes dataset here (data.root): Not a directory"
run data tiny.ini $shapes; expect "data" 0 "200 images" "40 images" "10 classes" "circle"
run data tiny.ini $shapes --json; holds "data --json" json_lines
run data files.ini data.kind=folder data.root=nowhere; expect "data of a missing folder" 2 "[data] root" "nowhere"

run data pack tiny.ini $shapes packed; expect "data pack" 0 "train.crpk: 200 images" "val.crpk: 40 images" "data.kind=packed"
run data files.ini data.kind=packed data.root=packed; expect "data of a packed set" 0 "200 images" "40 images" "10 classes" "circle"
run data verify packed -j 3; expect "data verify" 0 "train.crpk: 200 images" "val.crpk: 40 images"
run data verify packed --json; expect "data verify --json" 0 '"ok": true, "images": 200, "classes": 10'
holds "data verify --json" json_lines
run data pack images packed --raw=20 --json; expect "data pack --json" 0 '"images": 200' '"skipped": 0'
holds "data pack --json" json_lines
run data pack images jpegs --jpeg=20 -j 1; expect "data pack --jpeg" 0 "train.crpk: 200 images"
run data verify jpegs; expect "data verify of JPEGs" 0 "train.crpk: 200 images" "val.crpk: 40 images"
run data stat jpegs; expect "data stat of JPEGs" 0 "width 20 to 20" "height 20 to 20"
CRESNET_CPU=baseline JSIMD_FORCENONE=1 "$bin" data pack images jpegs2 --jpeg=20,90 -j 3 -q >/dev/null
holds "any processor and any number of workers write the same file" cmp jpegs/train.crpk jpegs2/train.crpk
run data pack images jpegs --jpeg=20,30 --json; expect "data pack --jpeg with a quality" 0 '"images": 200'
holds "a lower quality takes less" [ "$(stat -c %s jpegs/train.crpk)" -lt "$(stat -c %s jpegs2/train.crpk)" ]
run data pack images jpegs3 --jpeg=20 --raw=20; expect "data pack --jpeg --raw" 2 "--jpeg and --raw exclude each other"
for value in 0 8193 20,0 20,101 20, ,90 20,90,1 " 20" 20x; do
    run data pack images jpegs3 --jpeg "$value"; expect "data pack --jpeg '$value'" 2 "must be SIZE or SIZE,QUALITY"
done
run data pack images jpegs3 --jpeg=20 data.bits=16; expect "data pack --jpeg of 16 bits" 2 "data.bits = 16" "--raw=20"
holds "data pack that is refused makes nothing" [ ! -e jpegs3 ]
run data stat images --jpeg=20; expect "data stat --jpeg" 2 "--raw and --jpeg are for cresnet data pack"
dd if=/dev/zero of=packed/val.crpk bs=1 seek=1000 count=4 conv=notrunc 2>/dev/null
run data verify packed; expect "data verify of an altered file" 1 "packed/val.crpk" "damaged" "cresnet data pack" "1 of 2 datasets"
head -c 5000 packed/train.crpk >cut.crpk
run data verify cut.crpk packed/train.crpk --json; expect "data verify goes on" 1 '"ok": false' "cut off" '"images": 200'
holds "data verify of a cut file, --json" json_lines
mkdir stopped; echo kept >stopped/train.crpk
"$bin" data pack tiny.ini --force data.kind=synthetic data.train_images=50000000 stopped >/dev/null 2>&1 &
packer=$!
await $packer compgen -G 'stopped/*.tmp.*'
kill -TERM $packer; wait $packer; is "data pack that is stopped" $? 143
is "data pack that is stopped leaves nothing" "$(ls stopped) $(cat stopped/train.crpk)" "train.crpk kept"
run data verifi packed; expect "no such data command" 2 "verifi is neither a configuration nor one of stat, show, verify, pack and shapes"
mkdir -p unsplit/a unsplit/b; cp "$(find images -name '*.png' | head -1)" unsplit/a; cp unsplit/a/* unsplit/b
run data pack unsplit unsplit-packed; expect "data pack without validation images" 2 "val_fraction"
holds "data pack without validation images packs nothing" [ ! -e unsplit-packed ]

# ---- check, bench ----
run bench data tiny.ini $shapes -b 20 --steps 4; expect "bench data" 0 "images/s" "per core" "decode"
run bench data files.ini data.kind=packed data.root=packed -b 20 --steps 4 --json --trainer-speed=100; expect "bench data --json" 0 '"wait_fraction"' '"verified_fraction": 1.0000'
holds "bench data --json" json_lines
run check tiny.ini --devices cpu; expect "check" 0 "ops compared"
run check tiny.ini --json -b 3; holds "check --json" json_lines
run bench step tiny.ini --steps 3 --json; expect "bench step" 0 '"images_per_s"'
holds "bench step --json" json_lines
run bench step tiny.ini train.accumulate=3 --steps 2 -q; expect "bench with accumulation" 0 "images/s"
run bench infer tiny.ini --steps 3 --json train.eval_batch=2; expect "bench infer" 0 '"images_per_s"' '"latency_ms"' '"latency_p95_ms"' '"latency_p99_ms"' '"time_to_first_step_s"'
holds "bench infer --json" json_lines
is "bench infer: the batch is train.eval_batch" "$(field batch)" 2
holds "bench infer: images/s follow from ms and batch" python3 -c 'import json
b = json.loads(open("stdout").readline())
assert b["steps"] == 3 and b["accumulate"] == 1 and b["ms_min"] <= b["ms"] <= b["ms_max"], b
assert abs(b["images_per_s"] * b["ms"] / 1e3 / b["batch"] - 1) < 0.01, b'
run bench infer; expect "bench infer of nothing" 2 "--help"
run bench ops tiny.ini; expect "bench ops" 2 "ops is now: cresnet profile CONFIG"
run profile tiny.ini --steps 2; expect "profile" 0 "layer2.0.conv2" "kind" "sum of" "the whole program"
run profile tiny.ini --steps 2 --order program --json; holds "profile --json" json_lines
is "profile --order program: numbered as they run" "$(printf '%s\n' "$out" | sed -n 's/^{"op": \([0-9]*\),.*/\1/p' | head -3 | tr '\n' ' ')" "0 1 2 "
run profile tiny.ini --which eval --steps 2; expect "profile --which eval" 0 "program eval" "conv" "the whole program"
run profile tiny.ini --which micro; expect "profile --which" 2 "must be one of step, eval"
run profile tiny.ini --order size; expect "--order" 2 "must be one of time, program"

# ---- the trail ----
CRESNET_TRACE=1 run plan nowhere.ini; expect "CRESNET_TRACE" 2 "trail: src/"

sum_up

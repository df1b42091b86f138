#!/usr/bin/env bash
# test_cli_options.sh: --help of a command lists the options that it uses; other options, and names of other trainers, are errors that say what to
# do; --quiet prints results, warnings and errors only. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# ---- options that a command would ignore ----
# refused OPTION COMMAND...: each command refuses the option with advice, and its --help does not list it
refused() {
    local option=$1 command
    for command in "${@:2}"; do
        run $command tiny.ini $option 1; expect "$command $option" 2 "option $option belongs to cresnet " ", not to $command: "
        holds "$command --help lacks $option" eval "! '$bin' $command --help | grep -q -- ' $option[ ,]'"
    done
}
refused --output eval predict plan check bench profile
refused --epochs eval predict report plan check bench profile prune data
refused --lr eval predict report plan bench profile prune data
refused --seed predict plan prune
refused --batch predict data
refused --workers predict plan check profile prune
refused --steps eval predict report plan check prune export data
refused --last plan check bench profile train data
run eval tiny.ini -o scores.json; expect "eval -o" 2 "option -o belongs to cresnet train, finetune, sweep, features, explain, report, prune, compress, quantize, export, data, not to eval: results are on standard output, which > FILE redirects"
run predict tiny.ini -b 3; expect "predict -b" 2 "option -b belongs to cresnet" "not to predict"
run eval tiny.ini --gpus 2; expect "eval --gpus" 2 "train.gpu=N chooses the GPU"
run train tiny.ini --force -o F; expect "train --force" 2 "--force needs --resume"
run train tiny.ini --steps 1 -o F -q; expect "train" 0
run prune F --sparsity 0.5 -b 3 -o P; expect "prune -b without --target-ms" 2 "--batch needs --target-ms"
run data pack tiny.ini -o packed; expect "data pack -o" 2 "pack and shapes name their folder without an option: pack CONFIG|DIR OUT"
run train tiny.ini optim.lr = 0.1; expect "blanks around =" 2 "unexpected operand optim.lr (a value is set by optim.lr=VALUE, without blanks)"
run data shapes images --json; expect "data shapes --json" 2 "leave --json out"
holds "what was refused writes nothing" [ ! -e images -a ! -e P ]

# ---- names that other trainers use ----
for pair in --batch-size=--batch --batch_size=--batch --learning-rate=--lr --num-workers=--workers --num_epochs=--epochs --wd=optim.weight_decay=VALUE \
    --weight-decay=optim.weight_decay=VALUE --momentum=optim.momentum=VALUE --opt=optim.kind=VALUE --pretrained=--weights --data-dir=data.root=VALUE \
    --amp=train.precision=VALUE --label-smoothing=train.label_smoothing=VALUE --output-dir=--output; do
    run train tiny.ini "${pair%%=*}" 1; expect "train ${pair%%=*}" 2 "unknown option ${pair%%=*} (did you mean ${pair#*=}?)"
done
run train tiny.ini --model resnet18; expect "train --model" 2 "option --model belongs to cresnet finetune, not to train: model.arch=NAME chooses the network"
{ grep -v '^batch' tiny.ini; printf 'batchsize = 3\nlearning_rate = 0.1\nwd = 0\nnum_workers = 3\nBatch-Size = 3\nscheduler = step\nmodel_ema = yes\nepoch = 3\n'; } >torch.ini
run plan torch.ini; expect "other names in a configuration" 2 "[train] batchsize = 3: unknown key; did you mean batch?" "learning_rate = 0.1: unknown key; did you mean [optim] lr?" \
    "wd = 0: unknown key; did you mean [optim] weight_decay?" "num_workers = 3: unknown key; did you mean [data] workers?" "did you mean [schedule] kind?" \
    "did you mean [ema] decay?" "epoch = 3: unknown key; did you mean epochs?"
run plan tiny.ini train.batch_size=3; expect "train.batch_size" 2 "did you mean batch?"

# ---- data DIR is data stat DIR ----
run data shapes images data.train_images=20 data.val_images=10; expect "data shapes" 0
run data stat images; cp stdout stat.txt
run data images; holds "data DIR" cmp stdout stat.txt
run data images -j 2 --json; expect "data DIR -j --json" 0 '"duplicates"'
run data pack images packed -q; run data packed; expect "data of a folder of packed files" 0 "packed in packed" "duplicates"
run data F; expect "data RUN" 0 "synthetic" "64 images"

# ---- profile on the CPU: no percentages of a roofline that is not known ----
run profile tiny.ini --steps 1; expect "profile on the CPU" 0 "roofline: none on this device"
holds "profile on the CPU: no percentage above 100" python3 -c 'import re
values = [float(v) for v in re.findall(r"([0-9.]+)%", open("stdout").read())]
assert values and max(values) <= 100, max(values)'
run profile tiny.ini --steps 1 --json -q; expect "profile --json on the CPU" 0 '"roofline": null' '"roofline_ms": null'

# ---- JSON: docs/reference/json.md names every member ----
documented() { # SECTION ARGS...: the members that the command prints are in this section
    local section=$1
    shift
    run "$@" --json -q
    is "$* --json" "$rc" 0
    holds "$*: documented members" python3 - "$source_dir/docs/reference/json.md" "$section" <<'PY'
import json, re, sys
text = re.search(r"^## %s\n(.*?)(?=^## |\Z)" % sys.argv[2], open(sys.argv[1]).read(), re.M | re.S).group(1)
known = set(re.findall(r"`(\w+)`", text))
known |= {name + "_before" for name in known} if "_before" in known else set()
def check(value):
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else []: check(item)
    if isinstance(value, dict): assert set(value) <= known, set(value) - known
lines = open("stdout").read().splitlines()
assert lines
for line in lines: check(json.loads(line))
PY
}
documented eval eval F --per-class --temperature --tta flip
documented predict predict F "$(find images -name '*.png' | head -1)" --tta flip
documented explain explain F "$(find images -name '*.png' | head -1)" -o json.png
documented data data stat images
documented data data verify images
documented data data verify packed
documented data data F
documented data data pack images packed2
documented plan plan tiny.ini data.image_sizes=12@0,16@2
documented profile profile tiny.ini --steps 1
documented check check tiny.ini
documented bench bench step tiny.ini --steps 1 memory.limit=1GiB
documented bench bench data tiny.ini --steps 1 --trainer-speed 10
documented prune prune F --sparsity 0.5 -o PJ --recalibrate 1
documented prune prune F --pattern channels --flops 1.3 --multiple 1 -o PK --recalibrate 1
documented prune prune F --pattern channels --speedup 1.1 --multiple 1 --batch 4 -o PL train.measure=no
documented quantize quantize F -o PM --images 8

# ---- train --quiet: results, warnings and errors only ----
run train tiny.ini --steps 16 -o Q -q
is "train -q: results only" "$err" "evaluation at step 16: $(sed -n 's/^evaluation at step 16: //p' stderr)
done: step 16, saved in Q"
run train tiny.ini --steps 16 -o QW -q prune.start=1; expect "train -q: warnings" 0 "warning: [prune] has a schedule" "done: step 16"
run train tiny.ini -o Q -q; expect "train -q: errors" 2 "Q is not empty"
if there script; then # with a terminal nothing is drawn
    script -qec "$bin train tiny.ini --steps 16 -o QT -q" typescript >terminal.txt; holds "train -q on a terminal: no progress line" eval '! grep -q "img/s" terminal.txt'
    script -qec "$bin train tiny.ini --steps 16 -o QU" typescript >terminal.txt; holds "train on a terminal: a progress line" grep -q "img/s" terminal.txt
else skip "a terminal: no program script"; fi
sum_up

#!/usr/bin/env bash
# test_sweep.sh: cresnet sweep: the runs that lists and ranges give, equality with a training alone, Ctrl-C and the same command again, a run that
# fails, and mistakes. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }

# ---- the runs ----
runs() { run sweep tiny.ini --dry-run "$@"; }
runs optim.lr=0.05,0.1 train.seed=1..3; expect "a list and a range" 0
is "the first key varies slowest" "$out" "$(for lr in 0.05 0.1; do for s in 1 2 3; do echo "checkpoints/tiny-sweep/optim.lr=$lr,train.seed=$s"; done; done)"
holds "--dry-run makes nothing" [ ! -e checkpoints ]
runs 'model.widths="4,8","8,16"' -o S; is "quoted values keep their commas" "$out" "$(printf 'S/model.widths=4,8\nS/model.widths=8,16')"
runs --lr 0.1,0.2 --epochs 2 train.seed=-0..0; is "options vary too; a key with one value is not in the name, a range is" "$out" \
    "$(printf 'checkpoints/tiny-sweep/optim.lr=0.1,train.seed=0\ncheckpoints/tiny-sweep/optim.lr=0.2,train.seed=0')"

# ---- mistakes: nothing starts ----
runs; expect "no list" 2 "no key has a list of values"
runs optim.lr=0.1,,0.2; expect "an empty value" 2 "optim.lr=0.1,,0.2: a value of the list is empty"
runs train.seed=1..x; expect "no range" 2 "train.seed=1..x: a range has two integers, such as 1..8"
runs train.seed=3..1; expect "an empty range" 2 "train.seed=3..1: the range is empty"
runs optim.lr=0.1,0.2 optim.lr=0.3; expect "a key twice" 2 "optim.lr is given twice"
run sweep tiny.ini optim.lr=0.1,fast -o Z; expect "the last value is wrong" 2 "fast"; holds "nothing started" [ ! -e Z ]
runs train.seed=1..100 optim.lr=1,2,3,4,5,6,7,8,9,10,11; expect "too many runs" 2 "more than 1000 runs"
runs train.output=a,b; expect "train.output" 2 "train.output: cannot vary"
run sweep . optim.lr=1,2; expect "a folder" 2 "a sweep needs a configuration file"

# ---- every run equals the same training alone ----
run sweep tiny.ini -o S optim.lr=0.02,0.05 train.seed=1..2 --steps 6 --jobs 2; expect "sweep" 0 "done" "4 of 4 ended" "optim.lr=0.05,train.seed=2"
is "four runs are done" "$(grep -c '^done' stdout)" 4
run train tiny.ini -o alone optim.lr=0.05 train.seed=2 --steps 6 -q; expect "the run alone" 0
holds "bitwise identical weights" cmp alone/last/model.safetensors "S/optim.lr=0.05,train.seed=2/last/model.safetensors"
holds "another seed is another result" sh -c '! cmp -s alone/last/model.safetensors "S/optim.lr=0.05,train.seed=1/last/model.safetensors"'
holds "the page shows the four runs" python3 -c '
page = open("S/compare.html").read()
assert all("optim.lr=%s,train.seed=%d" % (lr, s) in page for lr in ("0.02", "0.05") for s in (1, 2))'

sed '/^threads/d' tiny.ini >auto.ini
run sweep auto.ini -o T train.seed=1,2 --steps 2; expect "no number of threads" 0
is "one thread on the CPU" "$(sed -n 's/^threads *= *//p' T/*/last/config.ini | tr '\n' ' ')" "1 1 "
run sweep auto.ini -o U train.threads=0,2 --steps 2; expect "numbers of threads" 0 "1 at once"
is "a run keeps its threads" "$(sed -n 's/^threads *= *//p' U/*/last/config.ini | tr '\n' ' ')" "0 2 "

# ---- runs that exist keep their values ----
run sweep auto.ini -o T train.seed=1,2 --steps 2; expect "the same command" 0 "2 of 2 ended"
is "... has nothing to warn of" "$(grep -c 'not applied' stderr)" 0
{ cat auto.ini; printf '[optim]\nlr = 0.013\n'; } >edited.ini
run sweep edited.ini -o T train.seed=1..3; expect "other values in the file, and no --steps" 0 \
    "sweep: 2 of the runs in T exist and keep the values they were started with; not applied to train.seed=1: train.steps: 2 -> 0; optim.lr: " "-> 0.013"

# ---- a run that fails does not stop the others; the same command tries it again ----
mkdir -p F/train.seed=1 && echo x >F/train.seed=1/last
run sweep tiny.ini -o F train.seed=1..3 --steps 3 --jobs 1; expect "a failed run" 1 "1 of 3 runs failed: train.seed=1 (exit code 1) says why in F/train.seed=1.txt; the same command tries it again" \
    "sweep: train.seed=1 failed with exit code 1 (all messages: F/train.seed=1.txt): cresnet train: F/train.seed=1"
is "the others are done" "$(grep -c '^done' stdout)" 2
rm -r F/train.seed=1
run sweep tiny.ini -o F train.seed=1..3 --steps 3 --jobs 1; expect "the same command again" 0
is "all are done" "$(grep -c '^done' stdout)" 3

mkdir -p G/train.seed=1.txt
run sweep tiny.ini -o G train.seed=1,2 --steps 2 --jobs 1; expect "messages that cannot be written" 1 "G/train.seed=1.txt: cannot be opened: Is a directory"

# ---- two sweeps in one folder ----
mkdir L
run_locked() { flock L/.lock timeout 600 "$bin" sweep tiny.ini -o L train.seed=1,2 --steps 2 >stdout 2>stderr; rc=$? out=$(cat stdout) err=$(cat stderr); }
run_locked; expect "a folder of another sweep" 2 "L: another run is writing there; wait for it, or choose another folder"
holds "the second sweep starts nothing" [ ! -e L/train.seed=1.txt ]
run sweep tiny.ini -o L train.seed=1,2 --steps 2; expect "after the first sweep" 0 "2 of 2 ended"

# ---- Ctrl-C saves and stops all; the same command continues. The runs have no end before it, however slow or fast the machine is ----
long="train.seed=1..3 --epochs 100000 train.save_every=1000000 train.eval_every=0"
# shellcheck disable=SC2086
python3 - "$bin" tiny.ini -o C $long --jobs 2 <<'PY' >stdout 2>stderr
import glob, os, signal, subprocess, sys, time
sweep = subprocess.Popen([sys.argv[1], "sweep", *sys.argv[2:]])
while sum('"train"' in open(f).read() for f in glob.glob("C/*/log.jsonl")) < 2 and sweep.poll() is None: time.sleep(0.01)
sweep.send_signal(signal.SIGINT)
sys.exit(sweep.wait())
PY
rc=$? out=$(cat stdout) err=$(cat stderr)
expect "Ctrl-C" 130 "stopped after a checkpoint" "waiting"
is "two runs stopped" "$(grep -c '^stopped' stdout)" 2
holds "the third did not start" [ ! -e C/train.seed=3 ]
reached=$(cat C/*/log.jsonl | sed -n 's/.*"save","step":\([0-9]*\).*/\1/p' | sort -n | tail -1)
long="$long --steps $((reached + 20))"
# shellcheck disable=SC2086
run sweep tiny.ini -o C $long; expect "continue" 0 "continues train.seed=2 from its last checkpoint" "started train.seed=3"; is "all are done after Ctrl-C" "$(grep -c '^done' stdout)" 3
# shellcheck disable=SC2086
run train tiny.ini -o alone2 ${long/1..3/2} -q; holds "an interrupted run equals one alone" cmp alone2/last/model.safetensors C/train.seed=2/last/model.safetensors
holds "it was resumed" grep -q 'resume  C/train.seed=2/step-' C/train.seed=2.txt
sum_up

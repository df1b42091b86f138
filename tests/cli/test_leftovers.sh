#!/usr/bin/env bash
# test_leftovers.sh: what a killed process leaves behind is removed by the next run, and a log that was cut is continued on a new
# line. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# ---- data pack ----
mkdir P
big="data.kind=synthetic data.train_images=50000000 data.val_images=16"
# shellcheck disable=SC2086
"$bin" data pack tiny.ini $big P >/dev/null 2>&1 & pid=$!
await $pid compgen -G 'P/train.crpk.tmp.*'
kill -KILL $pid; wait $pid 2>/dev/null
holds "kill -9 of data pack leaves a file" compgen -G 'P/train.crpk.tmp.*'
mkdir P/train.crpk.tmp.4; echo mine >P/train.crpk.tmp.x; echo mine >P/other.crpk.tmp.5
run data pack tiny.ini P -q; expect "data pack after a kill" 0
is "the next data pack removes it, and nothing else" "$(cd P && echo *)" "other.crpk.tmp.5 train.crpk train.crpk.tmp.4 train.crpk.tmp.x val.crpk"
rm -rf P/*tmp*

# a process that still writes keeps its file: the lock says so
# shellcheck disable=SC2086
"$bin" data pack tiny.ini $big P >/dev/null 2>&1 & pid=$!
await $pid [ -s P/train.crpk.tmp.$pid ] # it is locked before it has contents
kill -STOP $pid
run data pack tiny.ini P -q; expect "data pack while another one writes" 0
holds "the file of a process that writes stays" [ -e P/train.crpk.tmp.$pid ]
mv P/train.crpk.tmp.$pid kept; kill -KILL $pid; kill -CONT $pid 2>/dev/null; wait $pid 2>/dev/null; rm kept

# a process that ended and whose number a living process has now: the lock says so as well
echo cut >P/train.crpk.tmp.1; run data pack tiny.ini P -q; holds "a number that is in use again" [ ! -e P/train.crpk.tmp.1 ]

# ---- other outputs ----
run train tiny.ini -o R --steps 3 -q; expect "train" 0
for name in x.onnx x.safetensors; do
    echo cut >$name.tmp.77; run export R -o $name; expect "export -o $name" 0; holds "the leftover of $name is removed" [ ! -e $name.tmp.77 ]
done
mkdir -p images.tmp.77/train; run data shapes images data.train_images=10 data.val_images=10; expect "data shapes" 0
holds "the leftover of data shapes is removed" [ ! -e images.tmp.77 ]

mkdir -p tmp "tmp/cresnet-output-$(id -u).tmp.77" tmp/mine; echo cut >"tmp/cresnet-output-$(id -u).tmp.77/output"
TMPDIR=$work/tmp run export R -o - ; expect "export to standard output" 0
is "what a killed export to standard output has left is removed" "$(ls tmp)" mine

# ---- prune ----
mkdir -p N/.tmp-step-0.1 N/.tmp-step-0.999; : >N/.lock; echo cut >N/.tmp-step-0.1/model.safetensors; ln -s step-0 N/.tmp-last.77
run prune R --sparsity 0.5 -o N; expect "prune -o of a folder that a killed prune left" 0
is "its leftovers are removed" "$(cd N && ls -A)" ".lock
last
step-0"
for delay in 0.02 0.05 0.08 0.1 0.12 0.14 0.16 0.2; do
    rm -rf K; "$bin" prune R --sparsity 0.5 -o K >/dev/null 2>&1 & pid=$!
    sleep $delay; kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
    if [ -e K/step-0 ]; then run eval K -q; expect "kill after $delay s: a complete checkpoint" 0
    else run prune R --sparsity 0.5 -o K; expect "kill after $delay s: prune again" 0; fi
done
mkdir -p W; echo mine >W/notes.txt; run prune R --sparsity 0.5 -o W; expect "prune -o of another folder" 2 "W is not empty"
holds "another folder is untouched" [ "$(cd W && ls -A)" = notes.txt ]

# ---- log.jsonl ----
lines() { python3 - "$1" <<'PY'
import json, sys
events, broken = [], []
for line in open(sys.argv[1]):
    try: events.append(json.loads(line)["event"])
    except ValueError: broken.append(line.strip())
print(len(broken), *broken, " ".join(events), sep="|")
PY
}
cp R/log.jsonl whole; printf '{"event":"train","step":9,"lo' >>R/log.jsonl
run train tiny.ini --resume R --steps 6 -q; expect "resume after a cut log" 0
has "the cut line is ended first" "$(lines R/log.jsonl)" '1|{"event":"train","step":9,"lo|start'
has "the next event is complete" "$(lines R/log.jsonl)" "done resume"
holds "earlier lines stay" cmp -n "$(stat -c %s whole)" whole R/log.jsonl
run train tiny.ini --resume R --steps 8 -q; is "a whole log gets no empty line" "$(grep -c '^$' R/log.jsonl)" 0

# a full disk within a line: the next line that fits begins a new one
# the root of a file system cannot be replaced by the finished folder: that is said before any image is drawn
if [ "$(id -u)" = 0 ] && mkdir disk && mount -t tmpfs -o size=400k tmpfs disk 2>/dev/null; then
    run data shapes disk; expect "data shapes into the root of a file system" 2 "disk: is the root of a file system: name a folder inside it, for example disk/shapes"
    case $err in *drawing*) fail "data shapes into the root of a file system: draws first: $err" ;; *) pass ;; esac
    run data shapes disk/shapes data.train_images=10 data.val_images=10; expect "data shapes inside it" 0
    umount disk
fi
if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=400k tmpfs small 2>/dev/null; then
    run train tiny.ini -o small/run --steps 4 -q train.save_every=100 train.tensorboard=no train.log_every=1
    dd if=/dev/zero of=small/fill bs=1k 2>/dev/null; printf '{"event":"train","step":9,"lo' >>small/run/log.jsonl 2>/dev/null; rm small/fill
    run train tiny.ini --resume small/run --steps 5 -q; has "a log on a disk that was full" "$(lines small/run/log.jsonl)" "done resume"
    umount small
fi
sum_up

#!/usr/bin/env bash
# test_inherited_signals.sh: commands that start processes, from a parent that ignores SIGCHLD and blocks all signals: they end, know how their
# processes ended, and Ctrl-C ends them. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }
cat >parent.py <<'PY'
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
PY
LIMIT=600 # seconds
# run_from ARGS...: like `run`, from that parent. A program that is deaf to SIGTERM is killed.
run_from() {
    timeout -k 1 $LIMIT python3 parent.py "$bin" "$@" >stdout 2>stderr
    rc=$?
    out=$(cat stdout) err=$(cat stderr)
}
said() { grep -s "$1" $2; } # TEXT FILE; FILE may be a pattern whose files appear later
# stopped NAME FILE TEXT ARGS...: the command gets SIGINT when FILE has TEXT, and ends with 130
stopped() {
    local name=$1 file=$2 text=$3 pid i
    shift 3
    python3 parent.py "$bin" "$@" >stdout 2>stderr & pid=$!
    await $pid said "$text" "$file"
    kill -INT $pid
    for i in $(seq 12000); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    kill -KILL $pid 2>/dev/null
    wait $pid; is "$name: Ctrl-C" $? 130
}
keys="train.measure=no train.threads=1 --multiple 4"

run_from train tiny.ini model.widths=8,16 model.shortcut=B -o R --steps 12 -q; expect "train" 0
run_from train tiny.ini -o two --steps 4 --ranks 2 -q; expect "two ranks" 0
run_from sweep tiny.ini train.seed=1,2 -o S --steps 4; expect "sweep" 0 "2 of 2 ended, 0 running"
run_from compress R --speedup 1.4 --epochs 1 $keys; expect "compress" 0 "R-compressed/network is"

stopped "train" train/log.jsonl '"train"' train tiny.ini -o train --epochs 100000 train.log_every=1 -q
stopped "ranks" ranks/log.jsonl '"train"' train tiny.ini -o ranks --epochs 100000 train.log_every=1 --ranks 2 -q
sum_up

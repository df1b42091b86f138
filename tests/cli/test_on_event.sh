#!/usr/bin/env bash
# test_on_event.sh: train.on_event: which events a command gets, and with which figures; it changes no result, neither when it fails nor when it
# hangs; and a command in a stored configuration is never executed. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }
export HOOK=$work/hook.sh LOG=$work/events CRESNET_TOP1=old
cat >"$HOOK" <<'SH'
line=$(cat)
printf '%s\n' "$line" >>"$LOG"
env | grep '^CRESNET_' | grep -v '^CRESNET_\(BIN=\|CPU=\|SOURCE=\|SANITIZE=\|TEST_\)' | sort | tr '\n' '\t' >>"$LOG.env"
echo >>"$LOG.env"
echo said by the command
SH

# ---- the events of a run ----
{ cat tiny.ini; echo "on_event = sh \$HOOK"; } >hook.ini # [train] is its last section
run train tiny.ini -o plain --epochs 2 train.save_every=0 -q; expect "no command" 0
folder='a "b" c'
run train hook.ini -o "$folder" --epochs 2 train.save_every=0 -q; expect "a command" 0 "said by the command"
holds "standard output is free of it" test -z "$(grep said stdout)"
holds "the weights are those without a command" same_tensors plain/last/model.safetensors "$folder/last/model.safetensors"
cat >check.py <<'PY'
import json, os, sys
def read(log):
    events = [json.loads(l) for l in open(log)]
    for e, line in zip(events, open(log + ".env")):
        said = dict(v.split("=", 1) for v in line.rstrip("\n").rstrip("\t").split("\t"))
        want = {"CRESNET_" + k.upper(): {True: "1", False: "0"}.get(v, v) if isinstance(v, bool) else v for k, v in e.items()}
        if "top1" not in e: want["CRESNET_TOP1"] = "old"
        assert set(said) == set(want), (said, want)
        for k, v in want.items(): assert said[k] == v if isinstance(v, str) else float(said[k]) == v, (k, said[k], v)
    return events
PY
holds "the events" python3 - "$LOG" "$folder" <<'PY'
import json, os, sys; sys.path.insert(0, ".")
from check import read
events, run = read(sys.argv[1]), os.path.realpath(sys.argv[2])
assert [e["event"] for e in events] == ["start", "checkpoint", "evaluation", "checkpoint", "evaluation", "finished"], events
assert all(e["run"] == run and e["steps"] == 32 and e["epochs"] == 2 for e in events)
assert [e["step"] for e in events] == [0, 16, 16, 32, 32, 32] and [e["epoch"] for e in events] == [0, 1, 1, 2, 2, 2]
assert events[0]["resumed"] is False and events[1]["checkpoint"] == run + "/step-16"
logged = [e for e in map(json.loads, open(run + "/log.jsonl")) if e["event"] == "eval"]
for a, b in zip(logged, (events[2], events[4])):
    assert all(a[k] == b[k] for k in ("top1", "top5", "loss", "best", "step")), (a, b)
PY

# ---- resumed, moving averages, two ranks, early end ----
rm -f "$LOG"*
run train tiny.ini -o "$folder" --resume auto --epochs 3 train.save_every=0 'train.on_event=sh $HOOK' -q; expect "resumed" 0
holds "its start says so" grep -q '"event": "start".*"step": 32, .*"resumed": true}' "$LOG"
rm -f "$LOG"*
run train hook.ini --ranks 2 -o two --epochs 1 train.batch=2 train.save_every=0 ema.decay=0.9 -q; expect "two ranks" 0
holds "one command an event" test "$(wc -l <"$LOG")" = 4
holds "moving averages" grep -q '"ema_top1": ' "$LOG"
rm -f "$LOG"*
run train hook.ini -o broken --epochs 4 optim.lr=1000 optim.weight_decay=1 schedule.warmup_epochs=0 -q; expect "not finite" 1 "is not finite"
holds "failed, with the error" python3 - "$LOG" stderr <<'PY'
import sys; sys.path.insert(0, ".")
from check import read
last = read(sys.argv[1])[-1]
assert last["event"] == "failed" and "is not finite" in last["error"] and last["error"] in open(sys.argv[2]).read(), last
PY
rm -f "$LOG"*
"$bin" train hook.ini -o stopped --epochs 100000 train.save_every=0 train.eval_every=1000 -q >stdout 2>stderr &
process=$!
await $process [ -s "$LOG" ]
kill -INT $process
wait $process
holds "interrupted, with the signal" grep -q '"event": "interrupted".*"signal": 2}' "$LOG"

# ---- commands that fail or hang ----
run train tiny.ini -o failing --epochs 2 train.save_every=0 'train.on_event=exit 3' -q; expect "exit 3" 0 "warning: train.on_event: the command of the event evaluation failed with exit code 3"
holds "one line an event" test "$(grep -c warning stderr)" = 6
begin=$(date +%s)
run train tiny.ini -o hanging --epochs 2 train.save_every=0 train.event_timeout=0.05 'train.on_event=trap "" TERM; sleep 1000.25' -q; expect "hanging" 0 "the command of the event finished was killed: it was still running after 0.05 seconds"
holds "training did not wait" test $(($(date +%s) - begin)) -lt 20
holds "no process is left" test -z "$(pgrep -f 'sleep 1000[.]25')"
for name in failing hanging; do holds "$name: the same weights" same_tensors plain/last/model.safetensors $name/last/model.safetensors; done

# ---- the command is never stored, and a stored one never executed ----
holds "not stored" test -z "$(grep -rl HOOK --include='*.ini' "$folder" two)"
add_command() { sed -i "s|^on_event *=.*|on_event = touch $work/evil|" plain/*/config.ini && rm -f plain/*/checksums.txt; }
add_command
holds "a stranger's folder" grep -q "^on_event = touch" plain/last/config.ini
run data shapes images data.train_images=40 data.val_images=20 -q; expect "images" 0
run train tiny.ini -o plain --resume auto --epochs 3 -q; expect "resume auto" 0
add_command
run train tiny.ini --resume plain --epochs 4 -q; expect "resume PATH" 0
add_command
run eval plain; expect "eval" 0
run predict plain images/val/star/00000.png; expect "predict" 0
run prune plain --sparsity 0.5 -o P; expect "prune" 0
run train plain/last/config.ini -o named --epochs 1 -q; expect "its configuration as CONFIG" 0 "train.on_event: ignored, because plain/last/config.ini belongs to a checkpoint"
echo 'include = plain/last/config.ini' >includes.ini
run train includes.ini -o included --epochs 1 -q; expect "its configuration, included" 0 "belongs to a checkpoint"
run train tiny.ini model.weights=plain -o again --epochs 1 -q; expect "weights" 0
run finetune images --weights plain --device cpu -o F train.epochs=1 data.image_size=32 'train.on_event=sh $HOOK' -q; expect "finetune" 0 "said by the command"
holds "not in the file of finetune" test -z "$(grep HOOK F.ini)"
sed -i "s|^\[train\]|&\non_event = touch $work/evil|" F.ini
run finetune images -o F --epochs 2 -q; expect "finetune again" 0
holds "no stored command was executed" test ! -e evil
holds "nor passed on" test -z "$(grep -l evil P/*/config.ini again/*/config.ini F/*/config.ini)"
sum_up

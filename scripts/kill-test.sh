#!/usr/bin/env bash
# kill-test.sh [N]: kills a training run that saves every second step with SIGKILL, at N random moments (50). After each kill the run
# must resume with --resume auto from a step that is not older than the last saved step, and every checkpoint that is chosen must be
# readable. At the end the run is finished, and its files must be bitwise identical to those of an uninterrupted run.
#   CRESNET_BIN   the program (default: build/cresnet)     SEED   of the random moments
count=${1:-50}
. "$(dirname "$0")/../tests/harness/support.sh"
RANDOM=${SEED:-1}
{ tiny_model 8,16; cat; } >net.ini <<'INI'
[data]
kind = synthetic
image_size = 16
train_images = 400
val_images = 16
workers = 1

[train]
batch = 4
epochs = 100000
eval_every = 1000
save_every = 2
keep = 3
log_every = 1000
device = cpu
threads = 1
INI
die() { echo "kill-test: FAIL: $*" >&2; tail -5 stderr >&2; ls -la run >&2; exit 1; }
last_step() { basename "$(readlink run/last 2>/dev/null)" | tr -dc 0-9; }

for i in $(seq "$count"); do
    before=$(last_step)
    "$bin" train net.ini -o run --resume auto >/dev/null 2>stderr &
    child=$!
    sleep "0.$(printf %03d $((RANDOM % 500 + 20)))"
    kill -9 $child 2>/dev/null || die "round $i: the run ended by itself"
    wait $child 2>/dev/null
    after=$(last_step)
    [ "${after:-0}" -ge "${before:-0}" ] || die "round $i: step $before was saved, but now the last step is ${after:-missing}"
    grep -q "checkpoint skipped" stderr && die "round $i: a checkpoint was unreadable"
    if [ -n "$after" ]; then
        "$bin" eval net.ini --weights run -q >/dev/null 2>stderr || die "round $i: step $after does not load"
    fi
done
end=$(($(last_step) + 3))
"$bin" train net.ini -o run --resume auto --steps $end -q 2>stderr || die "the run cannot be finished"
"$bin" train net.ini -o whole --steps $end -q 2>stderr || die "the uninterrupted run fails"
cmp run/last/model.safetensors whole/last/model.safetensors || die "the killed run's weights differ"
cmp run/last/state.safetensors whole/last/state.safetensors || die "the killed run's state differs"
[ -z "$(find run -maxdepth 1 -name '.*-step-*')" ] || die "leftovers: $(ls -A run)"
echo "kill-test: $count kills up to step $end; the result is bitwise identical to an uninterrupted run"

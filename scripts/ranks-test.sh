#!/usr/bin/env bash
# ranks-test.sh [N]: tests of several ranks that take too long for the test suite. Runs a tiny job on four ranks N times (100) over shared
# memory; every fifth run uses TCP, as on two hosts; in every tenth run a random rank is killed at a random moment. No run may hang. All
# runs must have the same losses. A run that loses a rank must end with one message and leave no process. Then runs the launcher tests
# of tests/cli/test_ranks.sh with the launchers that are installed.
#   CRESNET_BIN   the program (default: build/cresnet)     SEED   of the random moments
count=${1:-100}
. "$(dirname "$0")/../tests/harness/support.sh"
export CRESNET_BIN=$bin
RANDOM=${SEED:-1}
trap 'kill -9 $(pgrep -f -- "-o $work/") 2>/dev/null; rm -rf "$work"' EXIT
{ tiny_model 8,16; cat; } >net.ini <<'INI'
sync_bn = yes

[data]
kind = synthetic
image_size = 16
train_images = 400
val_images = 41
workers = 1

[train]
batch = 4
epochs = 2
log_every = 1
device = cpu
threads = 1

[ranks]
timeout = 5
INI
die() { echo "ranks-test: FAIL: round $i: $*" >&2; cat err* >&2; exit 1; }
losses() { grep '"event":"\(train\|eval\)"' run/log.jsonl | sed 's/.*"step":\([0-9]*\).*"loss":\([^,]*\),.*/\1 \2/'; }
job() { timeout 100 "$bin" train net.ini -q -o "$work/run" "$@"; }

over_tcp() {
    local r port pids=()
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    for r in 0 1 2 3; do
        env RANK=$r WORLD_SIZE=4 GROUP_RANK=$((r / 2)) LOCAL_RANK=$((r % 2)) MASTER_ADDR=localhost MASTER_PORT="$port" \
            timeout 100 "$bin" train net.ini -q -o "$work/run" 2>"err$r" &
        pids+=($!)
    done
    for r in "${pids[@]}"; do wait "$r" || die "over TCP: exit $?"; done
}
killed() {
    local parent child
    "$bin" train net.ini -q -o "$work/run" --ranks 4 --epochs 100000 2>err &
    parent=$!
    sleep "0.$(printf %03d $((RANDOM % 900 + 50)))"
    child=($(pgrep -P $parent))
    kill -9 "${child[$((RANDOM % 4))]}" || die "no rank to kill"
    for _ in $(seq 100); do kill -0 $parent 2>/dev/null || break; sleep 0.1; done
    kill -0 $parent 2>/dev/null && die "still running 10 s after a rank was killed"
    wait $parent && die "exit 0 although a rank was killed"
    [ "$(grep -c "was killed by signal 9" err)" = 1 ] && # rank 0 may also say that the checkpoint of an epoch is complete
        [ "$(problems err | grep -vc "warning: rank 0: the run failed; its checkpoint ")" = 1 ] || die "not exactly one message"
}

for i in $(seq "$count"); do
    rm -rf run err*
    if [ $((i % 10)) = 0 ]; then killed
    else
        if [ $((i % 5)) = 0 ]; then over_tcp; else job --ranks 4 2>err || die "exit $?"; fi
        if [ -f want ]; then losses | cmp -s - want || die "the losses differ from the first run"; else losses >want; fi
    fi
    [ -z "$(pgrep -f -- "-o $work/")" ] || { sleep 1; [ -z "$(pgrep -f -- "-o $work/")" ] || die "processes remain"; }
done
[ "$(wc -l <want)" -gt 20 ] || die "no losses were compared"
echo "ranks-test: $count runs: no hang, $(wc -l <want) identical losses in each"
cd "$source_dir" && RANKS_LAUNCHERS=yes bash tests/cli/test_ranks.sh

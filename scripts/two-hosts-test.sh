#!/usr/bin/env bash
# two-hosts-test.sh [N]: random faults between two hosts, which take too long for the test suite. Trains on two network namespaces N times (40).
# Every round draws a delay of 0 to 100 ms and a loss of 0 to 2 %, and one of: no fault; the cable is cut at a random moment; a rank is
# killed; Ctrl-C on one host; the cable is interrupted for less than the deadline. A round without a fatal fault must have the losses of
# one host. After a fault both ranks must end within 8 s with one message each, and the run must resume to the same losses.
#   CRESNET_BIN   the program (default: build/cresnet)     SEED   of the random numbers
count=${1:-40}
. "$(dirname "$0")/../tests/harness/support.sh"
. "$source_dir/tests/harness/two_hosts.sh"
hosts_open || { echo "two-hosts-test: needs root, ip, python3, unshare and /dev/net/tun" >&2; exit 1; }
RANDOM=${SEED:-1}
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
steps=40 i=0 fault=none
{ tiny_model; cat; } >net.ini <<'INI'
[data]
kind = synthetic
image_size = 16
train_images = 160
val_images = 40
workers = 1

[train]
batch = 4
epochs = 100000
eval_every = 0
save_every = 5
log_every = 1
device = cpu
threads = 1

[ranks]
timeout = 3
meet = 5
INI
die() { echo "two-hosts-test: FAIL: round $i ($fault): $*" >&2; tail -n 5 err-* >&2; exit 1; }
# The last line of a step counts: a resumed run repeats the steps since its checkpoint.
losses() { grep '"event":"train"' "$1/log.jsonl" | sed 's/.*"step":\([0-9]*\).*"loss":\([^,]*\),.*/\1 \2/' | awk '{ l[$1] = $2 } END { for (s in l) print s, l[s] }' | sort -n; }
both() {
    start b 1 --steps $steps "$@"; pid1=$pid
    start a 0 --steps $steps "$@"; pid0=$pid
}
finish() { # SECONDS: waits for both ranks; their exit codes are in codes
    local n
    for n in $(seq $(($1 * 10))); do
        [ -n "$(ip netns pids ${host_tag}a; ip netns pids ${host_tag}b)" ] || break
        sleep 0.1
    done
    [ -z "$(ip netns pids ${host_tag}a; ip netns pids ${host_tag}b)" ] || die "still running after $1 s"
    wait $pid0 2>/dev/null; codes=$?
    wait $pid1 2>/dev/null; codes="$codes $?"
}
"$bin" train net.ini -q --ranks 2 --steps $steps -o "$work/one" 2>err-one || die "one host: $(cat err-one)"
losses one >want
kinds=(none none cut kill interrupt pause)
declare -A seen
for i in $(seq "$count"); do
    fault=${kinds[$((RANDOM % ${#kinds[@]}))]}
    rm -rf run-* err-*
    cable up && cable "delay 0.$(printf %03d $((RANDOM % 100)))" && cable "loss 0.0$((RANDOM % 3))" || die "the cable"
    both
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    case $fault in
    cut) cable down ;;
    kill) ip netns pids $host_tag"$([ $((RANDOM % 2)) = 0 ] && echo a || echo b)" | xargs -r kill -9 2>/dev/null ;;
    interrupt) ip netns pids $host_tag"$([ $((RANDOM % 2)) = 0 ] && echo a || echo b)" | xargs -r kill -INT 2>/dev/null ;;
    pause) cable down && sleep 1 && cable up ;;
    esac
    case $fault in none | pause) finish 100 ;; *) finish 8 ;; esac
    for rank in 0 1; do [ "$(problems err-$rank | wc -l)" -le 1 ] || die "rank $rank: not one message"; done
    if [ "$codes" != "0 0" ]; then
        case $fault in none | pause) die "exit codes $codes" ;; esac
        cable up && cable 'delay 0' && cable 'loss 0' || die "the cable"
        both --resume auto
        finish 60
        [ "$codes" = "0 0" ] || die "resumed: exit codes $codes"
    fi
    losses run-0 | cmp - want || die "other losses than on one host"
    seen[$fault]=$((${seen[$fault]:-0} + 1))
done
echo "two-hosts-test: $count rounds with the losses of one host: $(for f in "${!seen[@]}"; do echo -n "$f ${seen[$f]} "; done)"

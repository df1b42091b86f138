#!/usr/bin/env bash
# test_two_hosts.sh: ranks on two hosts with addresses of their own (network namespaces): the losses are those of one host, also on a slow cable
# that loses packets, and with two ranks on each host; a run resumes there; every fault ends both ranks within the deadlines, with one message
# each.
#   CRESNET_SANITIZE  when set, times are not checked
. "$(dirname "$0")/../harness/support.sh"
. "$source_dir/tests/harness/two_hosts.sh"
. "$source_dir/tests/harness/ranks_support.sh"
hosts_open || { skip "two hosts: needs root, ip, python3, unshare and /dev/net/tun"; sum_up 77; }
# both OPTIONS...: a run on both hosts; its exit codes are in code0 and code1
both() {
    start b 1 "$@"; local pid1=$pid
    start a 0 "$@"; local pid0=$pid
    wait "$pid0"; code0=$?
    wait "$pid1"; code1=$?
}
has_steps() { [ "$(grep -c '"event":"train"' run-0/log.jsonl)" -ge 3 ]; }
# begin: the same without an end, and with a short time limit; returns when the log has steps
begin() {
    rm -rf run-*
    start b 1 ranks.timeout=2; pid1=$pid
    start a 0 ranks.timeout=2; pid0=$pid
    await "$pid0" has_steps || fail "no step: $(cat err-0 err-1)"
}
# hit COMMAND...: a run on both hosts, and a fault
hit() {
    begin
    "$@"
    began=$(now)
}
kill_on() { ip netns pids "$host_tag$1" | xargs kill "$2"; } # HOST SIGNAL: of all processes there
# ended NAME CODE0 CODE1 [TEXT0 [TEXT1]]: both ranks end in time, with these exit codes, and each has printed one line that has its text
ended() {
    local since=$began
    wait "$pid0" 2>/dev/null; code0=$?
    wait "$pid1" 2>/dev/null; code1=$?
    is "$1: exit codes" "$code0 $code1" "$2 $3"
    local ms=$((($(now) - since) / 1000000))
    if [ -z "${CRESNET_SANITIZE:-}" ] && [ $ms -gt 50000 ]; then fail "$1: $ms ms"; else pass; fi # without a limit they never end
    is "$1: processes left" "$(ip netns pids ${host_tag}a; ip netns pids ${host_tag}b)" ""
    [ -z "${4:-}" ] || says "$1" 0 "$4"
    [ -z "${5:-}" ] || says "$1" 1 "$5"
}
# says NAME RANK PART: that rank has printed one line, which has this text; an empty PART: it has printed nothing
says() {
    is "$1: lines of rank $2" "$(problems "err-$2" | wc -l)" "$([ -n "$3" ] && echo 1 || echo 0)"
    has "$1: rank $2" "$(cat "err-$2")" "$3"
}

# ---- the losses of one host ----

RANK='' "$bin" train net.ini -q --ranks 2 --steps 8 -o "$work/one" 2>err-one || fail "one host: $(cat err-one)"
losses one >want
is "one host: steps" "$(wc -l <want)" 8
both --steps 8
is "two hosts: exit codes" "$code0 $code1" "0 0"
is "two hosts: messages" "$(problems err-0 err-1)" ""
losses run-0 >got && cmp want got && pass || fail "two hosts: other losses"
is "only rank 0 writes" "$(ls -d run-*)" run-0
rm -rf run-0
cable 'delay 0.02' && cable 'loss 0.02' || fail "the cable"
both --steps 8
is "a slow cable that loses packets: exit codes" "$code0 $code1" "0 0"
losses run-0 >got && cmp want got && pass || fail "a slow cable: other losses"
cable 'delay 0' && cable 'loss 0' || fail "the cable"

# ---- two ranks on each host ----

"$bin" train net.ini -q --ranks 4 --steps 4 -o "$work/one-4" 2>err-one || fail "four ranks on one host: $(cat err-one)"
losses one-4 >want-4
is "four ranks on one host: steps" "$(wc -l <want-4)" 4
rm -rf run-*
pids=()
for rank in 3 2 1 0; do
    PER_HOST=2 start "$([ $rank -lt 2 ] && echo a || echo b)" $rank --steps 4
    pids+=("$pid")
done
codes=
for pid in "${pids[@]}"; do
    wait "$pid"
    codes="$codes $?"
done
is "two ranks on each host: exit codes" "$codes" " 0 0 0 0"
is "two ranks on each host: messages" "$(problems err-0 err-1 err-2 err-3)" ""
losses run-0 >got && cmp want-4 got && pass || fail "two ranks on each host: other losses"
is "two ranks on each host: only rank 0 writes" "$(ls -d run-*)" run-0

# ---- resume: rank 0 reads the checkpoint and sends it ----

rm -rf run-0
both --steps 4
is "first half: exit codes" "$code0 $code1" "0 0"
both --steps 8 --resume auto
is "second half: exit codes" "$code0 $code1" "0 0"
losses run-0 >got && cmp want got && pass || fail "resumed: other losses"
is "only rank 0 has a run folder" "$(ls -d run-*)" run-0 # the hosts share no disk

# ---- faults ----

lost="has sent no heartbeat for 2 s"
hit cable down
ended "the cable is cut" 1 1 "rank 1 of 2 on host-b" "rank 0 of 2 on host-a"
has "the cable is cut" "$(cat err-0)" "$lost"
cable up

hit cable 'loss 1'
ended "all packets are lost" 1 1 "$lost"
cable 'loss 0'

vanish() { cable down; kill_on "$1" -9; }
hit vanish b
ended "a host vanishes" 1 137 "rank 1 of 2 on host-b"
cable up
hit vanish a
ended "the host of rank 0 vanishes" 137 1 "" "rank 0 of 2 on host-a"
cable up

hit ip -n ${host_tag}b link set cable down
ended "an interface is switched off" 1 1 "$lost" "$lost"
ip -n ${host_tag}b link set cable up

hit kill_on b -9
ended "a rank is killed" 1 137 "rank 1 of 2 on host-b"
for host in b a; do
    hit kill_on $host -INT
    ended "Ctrl-C on host $host" 130 130
    is "Ctrl-C on host $host: messages" "$(problems err-0 err-1)" ""
    holds "Ctrl-C on host $host: its checkpoint" test -f run-0/last/model.safetensors
done

rm -rf run-0; began=$(now); start a 0 ranks.meet=3; pid0=$pid pid1=$pid
ended "the other host never starts" 1 1 "these did not connect to port 29500 of 10.77.0.1 within 3 s: 1"
began=$(now); ADDRESS=10.77.0.9 start b 1 ranks.meet=3; pid0=$pid pid1=$pid
ended "a wrong address" 1 1 "" "rank 0 does not respond on port 29500 of 10.77.0.9"
began=$(now); start a 0 ranks.meet=3; pid0=$pid; PORT=29600 start b 1 ranks.meet=3; pid1=$pid
ended "a wrong port" 1 1 "" "rank 0 does not respond on port 29600 of 10.77.0.1"
sum_up

#!/usr/bin/env bash
# test_memory_trace_program.sh: the commands of cresnet-memory-trace: a log of another program with known numbers, our own log against
# `cresnet plan`, offsets of lifetimes, allocators, rules of offloading. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../../../tests/harness/cli_support.sh"
cresnet=$bin bin=$CRESNET_TOOL

# ---- plan LOG ----
{ echo time,event,id,size; echo 0,malloc,p,100
  for i in 10 20 30 40; do
      printf '%s\n' $i,malloc,a,640 $i,write,a, $((i + 1)),malloc,b,1280 $((i + 1)),read,a, $((i + 1)),write,b, $((i + 1)),free,a, \
          $((i + 2)),malloc,c,64 $((i + 2)),read,b, $((i + 2)),write,c, $((i + 3)),read,c, $((i + 3)),read,p, $((i + 3)),free,b, $((i + 3)),free,c,
  done; } >log.csv
run plan log.csv; expect "plan" 0 "53 events, 13 blocks, 1 of them still live" "complete iterations of 13 events" "peak load" "best fit, online" "no reuse"
run plan log.csv --json; holds "plan --json: one line" json_lines
holds "plan --json: the numbers" python3 -c 'import json
p = json.loads(open("stdout").readline())
assert p["period"] == 13 and p["iterations"] == 3 and p["persistent_bytes"] == 100 and p["lifetimes"] == 3 and p["wrapping"] == 0, p
assert p["free"]["bound_bytes"] == p["free"]["peak_bytes"] == 1920 and p["free"]["sum_bytes"] == 1984, p
assert p["use"]["bound_bytes"] == p["use"]["peak_bytes"] == 1920 and p["online_bytes"] >= 1920, p'
run plan log.csv --csv; is "plan --csv" "$(wc -l <stdout) $(head -1 stdout)" "4 id,lower,upper,size,offset"
run plan log.csv --alignment 1024 --json; expect "plan --alignment" 0 '"bound_bytes": 3072'
run plan nowhere.csv; expect "a log that is not there" 1 "nowhere.csv: cannot open"
{ head -3 log.csv; echo 11,free,a,; echo 12,read,a,; } >bad.csv
run plan bad.csv; expect "a log that cannot be" 1 "bad.csv:5: a is read after its free (it was freed in line 4)"
head -15 log.csv >once.csv; run plan once.csv; expect "a log of one iteration" 1 "no iteration repeats"
run plan log.csv train.batch=3; expect "a log and a key" 2 "planned without a configuration"
run plan log.csv --capacity 3; expect "an option of another command" 2 "--capacity is not an option of plan"
run plan; expect "no log" 2 "an operand is missing"
run; expect "no command" 2 "an operand is missing"
run trace log.csv; expect "an unknown command" 2 "unknown command trace: give log, plan"

# ---- log CONFIG: its lifetimes are those of the programs. The programs of an update share one pool: the largest one counts. ----
# The lower bound is the same exactly. The peak may differ by a tenth: the log has rounded sizes, so the planner orders equal ones in
# another way.
for how in "" train.accumulate=3 train.fuse=no; do
    run log tiny.ini train.measure=no $how; expect "log $how" 0 "time,event,id,size"; cp stdout own.csv
    run plan own.csv --json; planned=$(python3 -c 'import json
p = json.loads(open("stdout").readline()); assert p["iterations"] == 2 and p["tail_events"] == 0
print(p["use"]["bound_bytes"], p["free"]["bound_bytes"], p["use"]["peak_bytes"], p["free"]["peak_bytes"])')
    read -r use_bound free_bound use_peak free_peak <<<"$planned"
    peak=0 bound=0
    for program in $(case $how in *accumulate*) echo micro_first micro micro_last ;; *) echo step ;; esac); do
        text=$("$cresnet" plan tiny.ini train.measure=no $how --which $program --json -q)
        bytes=$(sed 's/.*"peak_bytes": \([0-9]*\).*/\1/' <<<"$text") least=$(sed 's/.*"bound_bytes": \([0-9]*\).*/\1/' <<<"$text")
        [ "${bytes:-0}" -gt $peak ] && peak=$bytes
        [ "${least:-0}" -gt $bound ] && bound=$least
    done
    is "log $how: lower bound of the programs" "$use_bound $free_bound" "$bound $bound"
    for bytes in $use_peak $free_peak; do
        is "log $how: planned as the programs are" "$((bytes >= bound && 10 * bytes <= 11 * peak))" 1
    done
done

# ---- offsets FILE.csv ----
printf 'id,lower,upper,size\na,0,4,30\nb,0,2,50\nc,2,6,40\nd,4,6,10\n' >lifetimes.csv
run offsets lifetimes.csv; expect "offsets" 0 "id,lower,upper,size,offset" "peak 80, lower bound 80"
is "offsets: rows" "$(wc -l <stdout)" 5
cp stdout planned.csv
run offsets planned.csv --capacity 80 --time-limit 0; expect "a plan is planned again" 0 "greedy 80"
run offsets lifetimes.csv --capacity 79; expect "a capacity below the bound" 1 "79" "every plan needs at least 80"
is "a capacity below the bound: no rows" "$out" ""
printf 'id,lower,upper,size\na,0,4,x\n' >bad.csv
run offsets bad.csv; expect "a bad file of lifetimes" 1 "bad.csv:2: size must be a whole number"
run offsets gone.csv; expect "a missing file of lifetimes" 1 "gone.csv"
run offsets lifetimes.csv --capacity 0; expect "--capacity 0" 2 "must be an integer"
run offsets lifetimes.csv train.batch=3; expect "lifetimes and a key" 2 "has no configuration keys"

# ---- allocators CONFIG, offloading CONFIG ----
run allocators tiny.ini --steps 2; expect "allocators" 0 "planned" "best_fit" "calloc"
run allocators tiny.ini --steps 2 --json; holds "allocators --json: one line" json_lines
holds "allocators: the plan is close to the lower bound, an allocator needs no less" python3 -c 'import json
p = {q["allocator"]: q for q in json.loads(open("stdout").readline())["allocators"]}
assert p["lower_bound"]["bytes"] <= p["planned"]["bytes"] <= 1.01 * p["lower_bound"]["bytes"] <= 1.01 * p["best_fit"]["bytes"], p'
run offloading tiny.ini --target h200
if [ "$rc" = 1 ]; then
    skip "offloading --target: $(tail -1 stderr)"
else
    expect "offloading" 0 "copies: 46.4 GB/s to host" "limit" "swdoa"
    is "offloading: a line for each limit" "$(grep -c '^ *[0-9]*%' stdout)" 12
fi
run offloading tiny.ini --target nothing; expect "offloading for an unknown GPU" 2 "unknown GPU"
sum_up

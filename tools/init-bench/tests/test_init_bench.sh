#!/usr/bin/env bash
# test_init_bench.sh: cresnet-init-bench: on the CPU one thread and several draw the same values. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../../../tests/harness/cli_support.sh"
bin=$CRESNET_TOOL

run tiny.ini --device cpu --steps 1; expect "one thread and several" 0 "one thread" "largest difference 0 ulp; 0 of"
printf '[model]\narch = resnet20\nclasses = 10\n[data]\nkind = synthetic\n' >r20.ini
run r20.ini model.arch=resnet32 --device cpu --steps 1; expect "the name of the network" 0 "resnet32:"
run tiny.ini r20.ini --device cpu --threads 3 --steps 1 --json; holds "--json: lines" json_lines
holds "--json: a line for each network, all values equal" python3 -c 'import json
lines = [json.loads(l) for l in open("stdout")]
assert [l["threads"] for l in lines] == [3, 3] and lines[1]["network"] == "resnet20" and lines[1]["parameters"] == 269722, lines
assert all(l["worst_ulp"] == l["differing"] == 0 and l["direct"]["runs"] == 1 for l in lines), lines'
run gone.ini; expect "a missing configuration" 2 "gone.ini"
sum_up

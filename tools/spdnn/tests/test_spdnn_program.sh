#!/usr/bin/env bash
# test_spdnn_program.sh: the command line and the output of cresnet-spdnn. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../../../tests/harness/cli_support.sh"
bin=$CRESNET_TOOL

run --neurons 1024 --layers 3,12 --inputs 64 --steps 1 --device cpu --verbose; expect "two networks" 0 "SYNTHETIC" "TE/s" "active inputs: 0:64"
run --neurons 1024 --layers=4 --inputs 40 --steps 1 train.device=cpu --no-drop --json; expect "--json" 0 '"teraedges_per_s"' '"edges": 131072' '"dropping": false'
holds "--json: lines" json_lines
run --neurons 2048; expect "another width" 2 "1024, 4096, 16384 and 65536"
run --layers 3,; expect "half a list" 2 "--layers 3,: must be"
run --layers 0; expect "a depth of 0" 2 "--layers 0: must be"
run --steps x; expect "no number" 2 "--steps x: must be an integer from 1"
run --mnist tiny.ini; expect "not MNIST" 1 "idx format"
run --ranks 2; expect "an unknown option" 2 "unknown option --ranks" "cresnet-spdnn --help"
run --inputs; expect "an option without its value" 2 "--inputs needs a value"
run --json=1; expect "a flag with a value" 2 "--json takes no value"
run tiny.ini; expect "an operand" 2 "unexpected operand tiny.ini"
run train.nothing=1; expect "an unknown key" 2 "unknown key"
run --gpus 2 --device cpu; expect "--gpus on the CPU" 2 "cannot be used with device cpu"
run --help; expect "--help" 0 "--neurons LIST" "[train.device]"
sum_up

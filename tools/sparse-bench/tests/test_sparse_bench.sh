#!/usr/bin/env bash
# test_sparse_bench.sh: the command line of cresnet-sparse-bench; with a GPU a small table. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../../../tests/harness/cli_support.sh"
bin=$CRESNET_TOOL

run --device cpu; expect "without a GPU" 1 "needs a GPU"
run --types int8; expect "an unknown type" 2 "--types int8: must be fp32 or fp16"
run --batches 0; expect "a batch of 0" 2 "--batches 0: must be"
run --nets ,; expect "no network" 2 "--nets"
run --sparsity 1; expect "nothing left" 2 "--sparsity 1: must be"
if nvidia-smi >/dev/null 2>&1 && "$bin" --help >/dev/null; then
    run --nets resnet18 --batches 1 --types fp32 --sparsity 0.9 --csv; expect "resnet18" 0 "net,batch,type,sparsity,layer" "resnet18,1,fp32,0.9,conv1"
else skip "a GPU"; fi
sum_up

#!/usr/bin/env bash
# test_cli_bf16.sh: train.precision=bf16 on a CPU with AMX: what the log says, a resumed run, the ops against the reference; the message
# of a CPU without AMX. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
CRESNET_CPU=baseline run train tiny.ini --device cpu train.precision=bf16 -o none; expect "bf16 without AMX" 2 "precision" "bf16 needs a GPU or a CPU with AMX; this CPU computes in fp32"
holds "... writes nothing" [ ! -e none ]
if ! grep -qw amx_bf16 /proc/cpuinfo || { [ -n "${CRESNET_CPU:-}" ] && [ "$CRESNET_CPU" != avx512 ]; }; then
    skip "bf16: the processor has no AMX, or CRESNET_CPU hides it"
    sum_up
fi
run train tiny.ini --device cpu train.precision=fp16 -o none; expect "fp16 on a CPU with AMX" 2 "fp16 needs a GPU; this CPU computes in fp32 (auto, fp32) or bf16"
for part in "A 12" "B 6" "B 12"; do
    set -- $part
    run train tiny.ini --device cpu train.precision=bf16 -o $1 --resume auto --steps $2; expect "bf16: $1 to step $2" 0 "; bf16 convolutions; " "step $2"
done
holds "the resumed model is bitwise identical" cmp A/last/model.safetensors B/last/model.safetensors
holds "the resumed state is bitwise identical" cmp A/last/state.safetensors B/last/state.safetensors
run train tiny.ini --device cpu train.precision=fp32 -o C --steps 12 -q; expect "fp32" 0
holds "bf16 changes the weights" sh -c '! cmp -s A/last/model.safetensors C/last/model.safetensors'
run eval A; expect "eval in bf16" 0 "top"
run check tiny.ini --devices cpu train.precision=bf16; expect "check in bf16" 0 "cpu, bf16: " "all within their error bounds"
run profile tiny.ini --device cpu train.precision=bf16 --steps 1; expect "kernels of bf16" 0 cpu.conv_bf16 cpu.conv_dgrad_bf16 cpu.conv_wgrad_bf16
sum_up

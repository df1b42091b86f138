#!/usr/bin/env bash
# test_gpu_check.sh: scripts/gpu-check.sh sums up the output of test programs: rows, totals and exit code. Recorded outputs replace the
# programs, so no GPU is needed. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"

mkdir -p fake/tests
printf '#!/bin/sh\n' >fake/cresnet
chmod +x fake/cresnet
# program NAME CODE: a test program that prints standard input and exits with CODE; with --unreached it prints fake/unreached.txt
program() {
    cat >"fake/$1.txt"
    printf '#!/bin/sh\n[ "$1" != --unreached ] || { echo "$@" >>"%s"; cat "%s"; exit 1; }\ncat "%s"\nexit %s\n' "$work/asked.txt" "$work/fake/unreached.txt" \
        "$work/fake/$1.txt" "$2" >"fake/tests/$1"
    chmod +x "fake/tests/$1"
}
check() { # check PART...: sets code, said
    said=$(OUT=$work/out WORK=$work/parts BUILD=$work/fake DEVICE=cuda CRESNET_CIFAR= LIMIT_S=300 bash "$source_dir/scripts/gpu-check.sh" "$@" 2>&1)
    code=$?
}
# counts NAME PASSED FAILED SKIPPED CODE
counts() {
    is "$1: exit code" "$code" "$5"
    is "$1: totals" "$(echo "$said" | tail -n 1 | sed 's/ in [0-9]* s$//')" "$2 passed, $3 failed, $4 skipped"
}
rows() { echo "$said" | grep -E "^$1 +(ops|tests) "; }

# ---- one GPU: a kernel and a program need several ----
program test_checkops 0 <<'END'
NVIDIA H200, compute capability 9.0
ok   cuda cuda.conv                  812 runs, largest error 0.412 of the bound
ok   cuda nccl.all_reduce             12 runs, largest error 0.000 of the bound
skip cuda peer.all_reduce          needs several ranks
cuda: 824 cases, 0 of them run by reference kernels only, 3.1 s (the reference 1.0 s, kernels and copies 0.2 s)
2 passed, 0 failed, 1 skipped
END
program test_cuda_ranks 77 <<'END'
skip gradients_are_reduced
skip running_statistics
0 passed, 0 failed, 2 skipped
END
program test_cuda_init 0 <<'END'
ok   one
skip two
1 passed, 0 failed, 1 skipped
END
check ops tests
counts "one GPU" 2 0 2 0
has "the kernel is a row" "$(rows SKIP)" "peer.all_reduce: needs several ranks"
has "the program is a row" "$(rows SKIP)" "test_cuda_ranks"
has "with its cases" "$(rows SKIP)" "0 passed, 0 failed, 2 skipped"
has "kernels that passed" "$(rows PASS)" "2 kernels passed"
has "a program with some skipped cases passes" "$(rows PASS)" "1 passed, 0 failed, 1 skipped"

# ---- a kernel of one shard is skipped by no shard ----
program test_checkops 0 <<'END'
ok   cuda cuda.conv                  812 runs, largest error 0.412 of the bound
none cuda cuda.conv
ok   cuda nccl.all_reduce             12 runs, largest error 0.000 of the bound
skip cuda nccl.all_reduce          needs several ranks
cuda: 824 cases, 0 of them run by reference kernels only, 3.1 s (the reference 1.0 s, kernels and copies 0.2 s)
END
check ops; counts "kernels of other shards" 1 0 0 0

# ---- kernels that this GPU does not have, and one that it should have run ----
h200='NVIDIA H200, 139 GiB, compute capability 9.0, CUDA 13.0'
program test_checkops 0 <<END
$h200
ok   cuda cuda.conv                  812 runs, largest error 0.412 of the bound
none cuda cuda.stem_mma
none cuda cuda.gram_mma
END
cat >fake/unreached.txt <<'END'
skip cuda cuda.gram_mma              only for GPUs of other capabilities: 8.0 8.6
skip cuda cuda.stem_mma              only for GPUs of other capabilities: 8.0 8.6 8.9 12.0
END
check ops; counts "kernels of other GPUs" 1 0 1 0
has "they are named" "$(rows SKIP)" "cuda.gram_mma cuda.stem_mma: only for GPUs of other compute capabilities"
is "the question has the device and the kernels" "$(cat asked.txt)" "--unreached $h200 cuda.gram_mma cuda.stem_mma"
sed -i 's/^skip cuda cuda.gram_mma .*/FAIL cuda cuda.gram_mma no case reaches this kernel, but this GPU has cases that it accepts/' fake/unreached.txt
check ops; counts "a kernel of this GPU" 0 1 1 1
has "it is named" "$(rows FAIL)" "not reached: cuda.gram_mma ; failed"
echo "FAIL cannot say which kernels this GPU has" >fake/unreached.txt
check ops; counts "no answer" 0 1 0 1
has "all are named" "$(rows FAIL)" "not reached: cuda.gram_mma cuda.stem_mma ; failed"

# ---- failures stay failures ----
# fails PART NAME PASSED PROGRAM CODE: a program that prints standard input and ends with CODE is a failure, and the exit code says so
fails() {
    program "$4" "$5"
    check "$1"
    counts "$2" "$3" 1 0 1
}
conv='ok   cuda cuda.conv                  812 runs, largest error 0.412 of the bound'
fails ops "a kernel that no case reaches" 0 test_checkops 0 <<<"$conv"$'\n'"none cuda cuda.pool"
has "its name" "$(rows FAIL)" "not reached: cuda.pool"
fails ops "a kernel that fails" 0 test_checkops 1 <<END
$conv
FAIL cuda cuda.pool                   10 runs, largest error 7.100 of the bound
     3 runs failed, the first: maxpool
END
fails ops "no kernel at all" 0 test_checkops 77 <<<"skip cuda: no GPU"$'\n'"0 passed, 0 failed, 1 skipped"
fails ops "not all cases" 0 test_checkops 0 <<<"$conv"$'\n'"cuda: time limit reached, the remaining cases were not run"
fails tests "a program that fails" 1 test_cuda_ranks 1 <<<$'skip one\nFAIL two\n0 passed, 1 failed, 1 skipped'
fails tests "a program that ends with a signal" 1 test_cuda_ranks 134 </dev/null

# ---- what offline devices say: no GPU is needed, but a program with CUDA and its libraries ----
checkops=$(dirname "$bin")/tests/test_checkops
verdict() { "$checkops" --unreached "$@" 2>&1; } # DEVICE KERNEL...
if [ ! -x "$checkops" ] || verdict "$h200" cuda.conv | grep -q "^FAIL cannot say"; then skip "no CUDA in this build, or one of its libraries is missing"
else
    is "a kernel of mma.sync on 9.0" "$(verdict "$h200" cuda.int8_stem_mma)" "skip cuda cuda.int8_stem_mma       only for GPUs of other capabilities: 8.0 8.6 8.9 12.0"
    has "the same kernel on 8.9" "$(verdict "NVIDIA L4, 22 GiB, compute capability 8.9" cuda.int8_stem_mma)" "FAIL cuda cuda.int8_stem_mma       no case reaches this kernel, but this GPU"
    has "a GPU that plays another one" "$(verdict "NVIDIA H200 as 8.6, 139 GiB, compute capability 9.0" cuda.int8_stem_mma)" "but this GPU has cases that it accepts"
    has "a kernel that no GPU has" "$(verdict "$h200" cuda.int8_stem_mma cuda.pool)" "FAIL cuda cuda.pool                no case reaches this kernel, and no other GPU has one for it"
    has "no capability" "$(verdict "a GPU" cuda.conv)" "FAIL cannot say"
fi
sum_up

#!/usr/bin/env bash
# capability-tests.sh [CAPABILITY ...]: the GPU's test programs with the kernels of other compute capabilities (CRESNET_CAPABILITY; default 8.0 8.6 8.9 12.0).
# The last line is `N passed, N failed, N skipped`, in cases. Exit code: 0 nothing failed, 1 otherwise, 3 programs are left for the next run.
#
#   cmake --preset emulate && ninja -C build-emulate && scripts/gpu/capability-tests.sh 8.6
#
# Programs run one after the other, because some of them watch the GPU's free memory and others measure times. No other program may use the GPU.
# The work stops LIMIT_S seconds after the start. The same command continues: results are in WORK, one file for each program and capability.
#
# Variables: BUILD (build-emulate: PTX of 8.0), WORK (capability-tests), LIMIT_S (540), TEST_LIMIT_S (200: of one program), TESTS (names; all test_cuda_*,
# test_cudnn_* and test_golden_train of the build).
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=$(realpath "${BUILD:-$here/build-emulate}") WORK=$(realpath -m "${WORK:-capability-tests}") LIMIT_S=${LIMIT_S:-540} TEST_LIMIT_S=${TEST_LIMIT_S:-200}
[ -d "$BUILD/tests" ] || { echo "capability-tests.sh: no folder $BUILD/tests: set BUILD (see the head of the script)" >&2; exit 2; }
[ $# -gt 0 ] || set -- 8.0 8.6 8.9 12.0
TESTS=${TESTS:-$(cd "$BUILD/tests" && ls -d test_cuda_* test_cudnn_* test_golden_train 2>/dev/null | grep -v '\.')}
[ -n "$TESTS" ] || { echo "capability-tests.sh: $BUILD/tests has no test program of the GPU: build them" >&2; exit 2; }
mkdir -p "$WORK"
start=$SECONDS left=0

# one CAPABILITY NAME: runs a program unless it has a result; a program that could not end because of LIMIT_S has none
one() {
    local file=$WORK/$1-$2.txt rest=$((LIMIT_S - (SECONDS - start))) code
    [ ! -s "$file" ] || return 0
    [ $rest -gt 5 ] || { left=1; return 0; }
    [ $rest -lt "$TEST_LIMIT_S" ] || rest=$TEST_LIMIT_S
    CRESNET_CAPABILITY=$1 timeout -k 5 "$rest" "$BUILD/tests/$2" >"$file.part" 2>&1
    code=$?
    if [ $code = 124 ] && [ $rest -lt "$TEST_LIMIT_S" ]; then
        left=1
        return 0
    fi
    grep -qE '^[0-9]+ passed' "$file.part" || echo "0 passed, 1 failed, 0 skipped (exit code $code)" >>"$file.part"
    mv "$file.part" "$file"
}

for capability in "$@"; do
    for name in $TESTS; do
        one "$capability" "$name"
        [ ! -s "$WORK/$capability-$name.txt" ] || echo "$capability $name: $(grep -E '^[0-9]+ passed' "$WORK/$capability-$name.txt" | tail -n 1)"
    done
done
grep -h -E '^FAIL' "$WORK"/*.txt /dev/null | sort | uniq -c
for capability in "$@"; do cat "$WORK/$capability"-*.txt 2>/dev/null; done | awk '/^[0-9]+ passed, / { p += $1; f += $3; s += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' || exit 1
[ $left = 0 ] || exit 3

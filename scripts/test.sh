#!/usr/bin/env bash
# test.sh: installs missing packages, builds, and runs the whole test suite: a build for the CPU under the address and undefined-behaviour
# sanitizers; an optimised build with the GPU device; the tests of threads under the thread sanitizer. Warnings are errors.
# Where there is no CUDA toolkit, NVIDIA's wheels are downloaded into build/ (1 GB); if that fails too, the build has no GPU device and
# one skipped test is counted. Tests that need a GPU are skipped where there is none.
# The last line is the sum of all runs, "N passed, N failed, N skipped"; the exit code is 0 when nothing failed.
#
#   CRESNET_TEST_DATA   folder with real data (CIFAR-10, ImageNet images, weights); tests that need it are skipped without it.
#                       Default: ../shared/data next to the tree, if it exists
#   CRESNET_TEST_CIFAR  folder with CIFAR-10's binary files; unpacked from CRESNET_TEST_DATA if that has them compressed
#   CRESNET_TEST_ONLY   plain, address or thread: only that one of the three runs
#   CRESNET_TEST_ARCHS  CUDA architectures of the test build, such as "80-real;90-real;90-virtual" (default: those of a release build;
#                       on machines without a GPU, each file for one architecture that has its kernels)
#   CRESNET_TEST_CUDA   no: builds without CUDA, downloads nothing
#   JOBS                number of parallel tests (2)
#   The page of cresnet report is opened in chromium where that is installed.
#   Comparisons with TensorBoard's reader and onnxruntime download these as pip wheels into build/peers-venv, or are skipped.
#   Comparisons with PyTorch itself (weights and logits in both directions, .pth files, losses on the same draws) run where python3-torch
#   and python3-torchvision are installed; other comparisons with PyTorch use stored values.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
# Tests run in parallel: a thread that waits must not keep the core.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-0}
. scripts/deps.sh
jobs=${JOBS:-2}
# Tests run in parallel, and small ops spend their time in waiting for threads that have no core: test_golden_train takes a tenth of the
# time with one thread. Tests of threads set their number themselves.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
passed=0 failed=0 skipped=0

find_data() {
    if [ -z "${CRESNET_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
        CRESNET_TEST_DATA=$(cd ../shared/data && pwd)
        export CRESNET_TEST_DATA
    fi
    [ -z "${CRESNET_TEST_CIFAR:-}" ] && [ -n "${CRESNET_TEST_DATA:-}" ] && [ -f "$CRESNET_TEST_DATA/unpack.sh" ] || return 0
    if sh "$CRESNET_TEST_DATA/unpack.sh" "$root/build/data" cifar10; then
        export CRESNET_TEST_CIFAR=$root/build/data/cifar10
    fi
}

# Adds up the lines "N passed, N failed, N skipped" in CTest's log; a test without such a line counts as one.
sum_log() {
    awk '
        function add() {
            if (name == "") return
            if (p + f + s == 0) { if (verdict == "pass") p = 1; else if (verdict == "skip") s = 1; else f = 1 }
            else if (verdict == "fail" && f == 0) f = 1
            P += p; F += f; S += s
        }
        /^[0-9]+\/[0-9]+ Testing: / { add(); name = $3; p = f = s = 0; verdict = "fail" }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped/ { p = $1; f = $3; s = $5 }
        /^Test Passed\./ { verdict = "pass" }
        /^Test Skipped\./ { verdict = "skip" }
        END { add(); print P + 0, F + 0, S + 0 }' "$1"
}

# suite NAME "CMAKE OPTIONS" CTEST ARGUMENTS...
suite() {
    local name=$1 options=$2 dir=build/$1 log code sums start=$SECONDS
    shift 2
    [ -z "${CRESNET_TEST_ONLY:-}" ] || [ "$CRESNET_TEST_ONLY" = "$name" ] || return 0
    echo "== $name"
    # shellcheck disable=SC2086
    if ! build "$dir" -DCRESNET_WERROR=ON $options; then
        echo "$name: the build failed"
        failed=$((failed + 1))
        return 0
    fi
    echo "built in $((SECONDS - start)) s"
    wait_for_downloads
    ctest --test-dir "$dir" --output-on-failure -j "$jobs" --no-tests=error "$@"
    code=$?
    log=$dir/Testing/Temporary/LastTest.log
    sums=$(sum_log "$log")
    # shellcheck disable=SC2086
    set -- $sums
    [ $code -eq 0 ] || [ "$2" -gt 0 ] || set -- "$1" 1 "$3"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    echo "$name: $1 passed, $2 failed, $3 skipped in $((SECONDS - start)) s"
}

# Downloads, which take minutes on a fresh machine: what tests compare with, and what the optimised build needs. Runs while the first build
# compiles. Leaves the options of CMake for the optimised build in build/plain-options, or no file where CUDA is missing.
download() {
    rm -f build/plain-options
    need_peers # the tests count what they skip
    need_cuda || return 0
    [ -z "${CRESNET_TEST_ARCHS:-}" ] || cuda_options="$cuda_options -DCMAKE_CUDA_ARCHITECTURES=$CRESNET_TEST_ARCHS"
    # Without a GPU the CUDA code is only compiled: most of nvcc's optimisations would take minutes and be of no use.
    [ -e /dev/nvidia0 ] || cuda_options="$cuda_options -DCRESNET_CUDA_UNOPTIMISED=ON"
    echo "$cuda_options" >build/plain-options
}

downloading="" # process
wait_for_downloads() {
    [ -n "$downloading" ] || return 0
    wait "$downloading"
    downloading=""
    cat build/download.log
}

plain_suite() {
    local options=-DCRESNET_WITH_CUDA=OFF
    wait_for_downloads
    if [ -f build/plain-options ]; then options=$(cat build/plain-options); else skipped=$((skipped + 1)); fi
    suite plain "$options"
}

need_packages || exit 1
# The tests that need them count what they skip; two installations at once would block each other.
# shellcheck disable=SC2086
need_packages $test_packages g++ python3-venv
find_data
mkdir -p build
if [ "${CRESNET_TEST_ONLY:-plain}" = plain ]; then
    download >build/download.log 2>&1 &
    downloading=$!
fi
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
suite address -DCRESNET_SANITIZE=address
[ "${CRESNET_TEST_ONLY:-plain}" != plain ] || plain_suite
export TSAN_OPTIONS=halt_on_error=1
build_target=thread_tests suite thread -DCRESNET_SANITIZE=thread -L threads

echo "all runs: $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/usr/bin/env bash
# test.sh: installs missing packages, builds, and runs the tests that every change must pass, in ten minutes on two cores: what reads the
# memory and files of strangers under the address and undefined-behaviour sanitizers, everything else in an optimised build with the GPU
# device. Warnings are errors. Where there is no CUDA toolkit, NVIDIA's wheels are downloaded into build/ (1 GB); if that fails too, the
# build has no GPU device and one skipped test is counted. Tests that need a GPU are skipped where there is none.
# The last line is the sum of all runs, "N passed, N failed, N skipped"; the exit code is 0 when nothing failed.
#
#   scripts/test.sh         as above; CRESNET_TESTS in tests/CMakeLists.txt says which tests these are
#   scripts/test.sh --all   every test in both builds: also hostile input (scripts/attack-test.py), the commands of every document, two hosts, the
#                           limits of the GPU code, all levels of the processor; the tests of threads under the thread sanitizer; packages to
#                           compare with, from pip
#
#   CRESNET_TEST_DATA   folder with real data (CIFAR-10, ImageNet images, weights); tests that need it are skipped without it.
#                       Default: ../shared/data next to the tree, if it exists
#   CRESNET_TEST_CIFAR  folder with CIFAR-10's binary files; unpacked from CRESNET_TEST_DATA if that has them compressed
#   CRESNET_TEST_ONLY   plain, address or thread: only that run
#   CRESNET_TEST_ARCHS  CUDA architectures of the test build, such as "80-real;90-real;90-virtual". Default: those of this machine's GPUs, with
#                       --all those of a release build; on machines without a GPU, each file for one architecture that has its kernels,
#                       and without --all only as far as PTX of 9.0, which ptxas checks
#   CRESNET_TEST_CUDA   no: builds without CUDA, downloads nothing
#   JOBS                number of parallel tests (3)
#   The page of cresnet report is opened in chromium where that is installed.
#   Comparisons with TensorBoard's reader and onnxruntime use pip wheels in build/peers-venv, which --all downloads, or are skipped.
#   Comparisons with PyTorch itself (weights and logits in both directions, .pth files, losses on the same draws) run where python3-torch
#   and python3-torchvision are installed; other comparisons with PyTorch use stored values.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
# Tests run in parallel: a thread that waits must not keep the core.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-0}
. scripts/deps.sh
jobs=${JOBS:-3} # for two cores: tests also wait, for the disk and for other processes
# Tests run in parallel, and small ops spend their time in waiting for threads that have no core: test_golden_train takes a tenth of the
# time with one thread. Tests of threads set their number themselves.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
passed=0 failed=0 skipped=0
all=no
case "$*" in
    "") ;;
    --all) all=yes ;;
    *) echo "usage: scripts/test.sh [--all]" >&2; exit 2 ;;
esac

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

selected() { [ "${CRESNET_TEST_ONLY:-$1}" = "$1" ]; }

# start_build NAME: begins to build build/NAME. The first build has all cores. Tests often wait, for the disk, for each other or for a time;
# the later builds run during the tests of the run before, with the lowest priority: they take only what these leave of the cores.
start_build() {
    local name=$1 options tests start
    {
        [ "$name" = "${runs[0]}" ] || renice -n 19 -p "$BASHPID" >/dev/null
        case $name in
            address) options=-DCRESNET_SANITIZE=address tests=foreign ;;
            plain) plain_options; tests=quick ;;
            thread) options=-DCRESNET_SANITIZE=thread tests=threads ;;
        esac
        [ $all = no ] || [ "$name" = thread ] || tests=all
        start=$SECONDS
        # shellcheck disable=SC2086
        build "build/$name" -DCRESNET_WERROR=ON "-DCRESNET_TESTS=$tests" $options
        code=$?
        echo "built in $((SECONDS - start)) s"
        exit $code
    } >"build/$name-build.txt" 2>&1 &
    building=$!
}

# finish_build NAME: waits for its end and prints what it said.
finish_build() {
    local code
    wait "$building"
    code=$?
    echo "== $1"
    if [ "$1" = plain ]; then
        cat build/cuda.log
        [ -f build/plain-options ] || skipped=$((skipped + 1))
    fi
    cat "build/$1-build.txt"
    [ $code -eq 0 ] && return 0
    echo "$1: the build failed"
    failed=$((failed + 1))
    return 1
}

run_tests() {
    local name=$1 dir=build/$1 code sums start=$SECONDS
    ctest --test-dir "$dir" --output-on-failure -j "$jobs" --no-tests=error
    code=$?
    sums=$(sum_log "$dir/Testing/Temporary/LastTest.log")
    # shellcheck disable=SC2086
    set -- $sums
    [ $code -eq 0 ] || [ "$2" -gt 0 ] || set -- "$1" 1 "$3"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    echo "$name: $1 passed, $2 failed, $3 skipped in $((SECONDS - start)) s"
}

# Downloads, which take minutes on a fresh machine, run while the first build compiles: what tests compare with, for which all tests wait,
# and what the optimised build needs, for which only that build waits. need_peers of deps.sh is the first; its tests count what they skip.
# Leaves the options of CMake for the optimised build in build/plain-options, or no file where CUDA is missing.
download_cuda() {
    rm -f build/plain-options
    need_cuda || return 0
    # A build folder may remember the architectures of another run.
    if [ -n "${CRESNET_TEST_ARCHS:-}" ]; then
        cuda_options="$cuda_options -DCRESNET_CUDA_TARGETS=DEFAULT -DCMAKE_CUDA_ARCHITECTURES=$CRESNET_TEST_ARCHS"
    elif [ $all = no ] && nvidia-smi >/dev/null 2>&1; then
        cuda_options="$cuda_options -DCRESNET_CUDA_TARGETS=NATIVE"
    else
        cuda_options="$cuda_options -DCRESNET_CUDA_TARGETS=DEFAULT -UCMAKE_CUDA_ARCHITECTURES"
    fi
    # Without a GPU the CUDA code is only compiled: most of nvcc's optimisations would take minutes and be of no use.
    # test_fatbin_limits, which reads machine code, is in --all.
    local kind=PTX
    [ $all = no ] || kind=ON
    [ -e /dev/nvidia0 ] || cuda_options="$cuda_options -DCRESNET_CUDA_UNOPTIMISED=$kind"
    echo "$cuda_options" >build/plain-options
}

# Sets start_build's options when the download has ended. It is no child of the build, which cannot wait for it otherwise.
plain_options() {
    while kill -0 "$cuda_download" 2>/dev/null; do sleep 1; done
    options=-DCRESNET_WITH_CUDA=OFF
    [ ! -f build/plain-options ] || options=$(cat build/plain-options)
}

need_packages || exit 1
# The tests that need them count what they skip; two installations at once would block each other.
# shellcheck disable=SC2086
need_packages $test_packages g++ python3-venv
find_data
mkdir -p build
peers_download="" cuda_download=""
if selected plain; then
    if [ $all = yes ]; then
        need_peers >build/peers.log 2>&1 &
        peers_download=$!
    fi
    download_cuda >build/cuda.log 2>&1 &
    cuda_download=$!
fi
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
runs=()
names="address plain"
if [ $all = yes ] || [ "${CRESNET_TEST_ONLY:-}" = thread ]; then names="$names thread"; fi
for name in $names; do
    if selected "$name"; then runs+=("$name"); fi
done
[ ${#runs[@]} -eq 0 ] || start_build "${runs[0]}"
for i in "${!runs[@]}"; do
    finish_build "${runs[i]}" && built=yes || built=no
    [ "$i" -gt 0 ] || [ -z "$peers_download" ] || { wait "$peers_download"; cat build/peers.log; }
    [ $((i + 1)) -eq ${#runs[@]} ] || start_build "${runs[i + 1]}"
    [ $built = no ] || run_tests "${runs[i]}"
done

echo "all runs: $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET ...]]: runs the libFuzzer targets of tests/fuzz, each for SECONDS (60) of wall time, under the address and
# undefined-behaviour sanitizers. The inputs are the corpus in the tree and inputs that earlier runs added. Prints one line per target:
# CPU seconds, inputs tried, edges reached, findings, and the CPU seconds of all runs. Inputs that crash, leak or hang a target are left
# in build/fuzz/found/TARGET.
#   CORES=n    number of processes (1). If there are more processes than targets, the targets with the least CPU time so far get several
#   MERGE=1    afterwards adds inputs that reached new edges to the corpus in the tree: at most 8 inputs of at most 2 KiB per run
#   BUILD=DIR  folder of the programs and of added inputs (build/fuzz)
#   BUILT=1    the programs exist: build nothing (for a machine without a compiler)
#   STATIC=1   links libraries statically, without OpenMP: the programs need only the C library where they run
# Needs clang. Exit code 1 when something was found. The test suite runs the same functions over the corpus alone.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-60}
[ $# -eq 0 ] || shift
build=${BUILD:-build/fuzz}
cores=${CORES:-1}
[ $# -gt 0 ] || set -- $(cd tests/fuzz/corpus && ls)
mkdir -p "$build/total" "$build/log"
TIMEFORMAT='%U %S'

build_programs() {
    command -v clang >/dev/null || { echo "fuzz.sh: clang was not found: apt-get install clang" >&2; return 2; }
    local options=()
    if [ "${STATIC:-}" = 1 ]; then
        local folder=/usr/lib/$(uname -m)-linux-gnu
        options=(-DCRESNET_WITH_OPENMP=OFF -DCRESNET_WITH_CURL=OFF -DPNG_LIBRARY_RELEASE="$folder/libpng.a" -DJPEG_LIBRARY_RELEASE="$folder/libjpeg.a"
                 -DZLIB_LIBRARY_RELEASE="$folder/libz.a" -DINIPARSER_LIBRARY="$folder/libiniparser.a"
                 -DCMAKE_EXE_LINKER_FLAGS="-static-libgcc -static-libstdc++")
    fi
    CC=clang cmake -S . -B "$build" -G Ninja -DCRESNET_FUZZ=ON -DCRESNET_SANITIZE=address -DCRESNET_WITH_CUDA=OFF -DCRESNET_WITH_ONEDNN=OFF \
        "${options[@]}" >"$build/log/build" 2>&1 || { tail -5 "$build/log/build"; return 2; }
    cmake --build "$build" --target "$@" >>"$build/log/build" 2>&1 || { grep -A5 error "$build/log/build" | head -20; return 2; }
}

# The address sanitizer of older compilers cannot start with some address layouts of newer kernels: use a fixed layout, or try again
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

# run_process TARGET NUMBER: writes log/TARGET.NUMBER and its CPU seconds, log/TARGET.NUMBER.cpu
run_process() {
    local log=$build/log/$1.$2 try
    for try in 1 2 3 4 5 6 7 8; do
        { time $fixed timeout -k 5 $((seconds + 60)) "$build/tests/$1" -max_total_time="$seconds" -timeout=20 -report_slow_units=20 -rss_limit_mb=2048 \
            -print_final_stats=1 -artifact_prefix="$build/found/$1/" "$build/grown/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1; } 2>"$log.cpu"
        ! grep -q 'INITED' "$log" || break
    done
    grep -q 'INITED' "$log" || cp "$log" "$build/found/$1/did-not-start-$2"
}

# shrink TARGET: keeps only the added inputs that reach edges that no other input reaches
shrink() {
    rm -rf "$build/small/$1" && mkdir -p "$build/small/$1"
    if $fixed timeout -k 5 60 "$build/tests/$1" -merge=1 -rss_limit_mb=2048 "$build/small/$1" "$build/grown/$1" >"$build/log/$1.shrink" 2>&1; then
        rm -rf "$build/grown/$1" && mv "$build/small/$1" "$build/grown/$1"
    fi
}

merge_into_tree() {
    local corpus=tests/fuzz/corpus/$1 fresh=$build/fresh/$1 file
    rm -rf "$fresh" && mkdir -p "$build/fresh" && cp -r "$corpus" "$fresh"
    $fixed "$build/tests/$1" -merge=1 "$fresh" "$build/grown/$1" >/dev/null 2>&1
    for file in $(cd "$fresh" && find . -type f -size -2049c | sort | head -400); do
        [ -e "$corpus/$file" ] && continue
        [ "$(ls "$corpus" | grep -c '^grown-')" -lt 8 ] || break
        cp "$fresh/$file" "$corpus/grown-$(basename "$file" | cut -c1-10)"
    done
}

# run_target TARGET PROCESSES: the processes use one folder; each also reads the inputs that the others add
run_target() {
    local target=$1 found=$build/found/$1 number
    rm -rf "$found" "$build/log/$target".* && mkdir -p "$build/grown/$target" "$found"
    for number in $(seq "$2"); do run_process "$target" "$number" & done
    wait
    local cpu=$(cat "$build/log/$target".*.cpu | awk '{ s += $1 + $2 } END { printf "%.0f", s }')
    local runs=$(cat "$build/log/$target".* | awk '/^stat::number_of_executed_units:/ { s += $2 } END { printf "%d", s }')
    local edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$build/log/$target".* | sort -n | tail -1)
    rm -f "$found"/slow-unit-* # a slow input is no finding on a busy machine; a hang (timeout-*) is one
    local finds=$(ls "$found" | wc -l)
    shrink "$target"
    local before=$(cat "$build/total/$target" 2>/dev/null || echo 0)
    echo $((before + cpu)) >"$build/total/$target"
    printf '%-18s %6s CPU s %12s inputs %6s edges %3s found %8s CPU s total\n' "$target" "$cpu" "$runs" "${edges:--}" "$finds" "$((before + cpu))"
    [ "$finds" -eq 0 ] || { grep -h -m1 -A12 -E 'ERROR|SUMMARY|assert' "$build/log/$target".*[0-9]; head -qn 5 "$found"/did-not-start-1; ls "$found"; } 2>/dev/null
    [ "${MERGE:-}" != 1 ] || merge_into_tree "$target"
}

# assign_processes TARGET ...: prints "TARGET PROCESSES" for each target; a free core goes to the target with the least CPU time
assign_processes() {
    local target
    for target in "$@"; do echo "$target $(cat "$build/total/$target" 2>/dev/null || echo 0)"; done |
        awk -v cores="$cores" -v seconds="$seconds" '
            { name[NR] = $1; ran[NR] = $2 + seconds; jobs[NR] = 1 }
            END {
                for (i = NR; i < cores; i++) {
                    least = 1
                    for (k = 2; k <= NR; k++) if (ran[k] < ran[least]) least = k
                    jobs[least]++
                    ran[least] += seconds
                }
                for (k = 1; k <= NR; k++) print name[k], jobs[k]
            }'
}

[ "${BUILT:-}" = 1 ] || build_programs "$@" || exit 2
for target in "$@"; do [ -x "$build/tests/$target" ] || { echo "fuzz.sh: $build/tests/$target does not exist" >&2; exit 2; }; done
plan=$(assign_processes "$@")
running=0
while read -r target processes; do
    [ "$running" -lt "$cores" ] || { wait -n; running=$((running - 1)); }
    run_target "$target" "$processes" &
    running=$((running + 1))
done <<<"$plan"
wait
bad=0
for target in "$@"; do [ -z "$(ls "$build/found/$target")" ] || bad=1; done
exit $bad

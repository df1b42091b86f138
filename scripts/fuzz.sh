#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET ...]]: runs the libFuzzer targets of tests/fuzz, each for SECONDS (60) of wall time, under the address and
# undefined-behaviour sanitizers, from the corpus in the tree and what earlier runs added to it. Prints a line for each: CPU seconds, inputs
# tried, edges reached, finds, and the CPU seconds of all runs. What makes one crash, leak or hang is left in build/fuzz/found/TARGET.
#   CORES=n    n processes at once (1). More than there are targets: several for a target, first for those that ran least so far
#   MERGE=1    afterwards adds to the corpus in the tree what reached new edges, at most 8 inputs of at most 2 KiB a run
#   BUILD=DIR  where the programs and what grew lie (build/fuzz)
#   BUILT=1    they are there: build nothing (for a machine without a compiler)
#   STATIC=1   build them with static libraries, without OpenMP: only the C library is needed where they run
# Needs clang. Exit 1 when something was found. The suite runs the same functions over the corpus alone.
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
    command -v clang >/dev/null || { echo "fuzz.sh: clang is not here: apt-get install clang" >&2; return 2; }
    local options=()
    if [ "${STATIC:-}" = 1 ]; then
        local folder=/usr/lib/$(uname -m)-linux-gnu
        options=(-DCRESNET_WITH_OPENMP=OFF -DPNG_LIBRARY_RELEASE="$folder/libpng.a" -DJPEG_LIBRARY_RELEASE="$folder/libjpeg.a"
                 -DZLIB_LIBRARY_RELEASE="$folder/libz.a" -DINIPARSER_LIBRARY="$folder/libiniparser.a"
                 -DCMAKE_EXE_LINKER_FLAGS="-static-libgcc -static-libstdc++")
    fi
    CC=clang cmake -S . -B "$build" -G Ninja -DCRESNET_FUZZ=ON -DCRESNET_SANITIZE=address -DCRESNET_WITH_CUDA=OFF -DCRESNET_WITH_ONEDNN=OFF \
        "${options[@]}" >"$build/log/build" 2>&1 || { tail -5 "$build/log/build"; return 2; }
    cmake --build "$build" --target "$@" >>"$build/log/build" 2>&1 || { grep -A5 error "$build/log/build" | head -20; return 2; }
}

# The address sanitizer of older compilers cannot start under some layouts of a newer kernel: a fixed layout, or another try
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

# run_process TARGET NUMBER: the log, and the CPU seconds, in files of that number
run_process() {
    local log=$build/log/$1.$2 try
    for try in 1 2 3 4 5 6 7 8; do
        { time $fixed timeout -k 5 $((seconds + 60)) "$build/tests/$1" -max_total_time="$seconds" -timeout=20 -report_slow_units=20 -rss_limit_mb=2048 \
            -print_final_stats=1 -artifact_prefix="$build/found/$1/" "$build/grown/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1; } 2>"$log.cpu"
        ! grep -q 'INITED' "$log" || break
    done
    grep -q 'INITED' "$log" || cp "$log" "$build/found/$1/did-not-start-$2"
}

# Only what reaches edges that nothing else reaches stays for the next run
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

# run_target TARGET PROCESSES: they share one folder, each takes in what another adds to it
run_target() {
    local target=$1 found=$build/found/$1 number
    rm -rf "$found" "$build/log/$target".* && mkdir -p "$build/grown/$target" "$found"
    for number in $(seq "$2"); do run_process "$target" "$number" & done
    wait
    local cpu=$(cat "$build/log/$target".*.cpu | awk '{ s += $1 + $2 } END { printf "%.0f", s }')
    local runs=$(cat "$build/log/$target".* | awk '/^stat::number_of_executed_units:/ { s += $2 } END { printf "%d", s }')
    local edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$build/log/$target".* | sort -n | tail -1)
    rm -f "$found"/slow-unit-* # slow on a busy machine is no find; a hang is one (timeout-)
    local finds=$(ls "$found" | wc -l)
    shrink "$target"
    local before=$(cat "$build/total/$target" 2>/dev/null || echo 0)
    echo $((before + cpu)) >"$build/total/$target"
    printf '%-18s %6s CPU s %12s inputs %6s edges %3s found %8s CPU s in all\n' "$target" "$cpu" "$runs" "${edges:--}" "$finds" "$((before + cpu))"
    [ "$finds" -eq 0 ] || { grep -h -m1 -A12 -E 'ERROR|SUMMARY|assert' "$build/log/$target".*[0-9]; head -qn 5 "$found"/did-not-start-1; ls "$found"; } 2>/dev/null
    [ "${MERGE:-}" != 1 ] || merge_into_tree "$target"
}

# share TARGET ...: "TARGET PROCESSES" for each; a free core goes to the target that would else have run least
share() {
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
for target in "$@"; do [ -x "$build/tests/$target" ] || { echo "fuzz.sh: $build/tests/$target is not there" >&2; exit 2; }; done
plan=$(share "$@")
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

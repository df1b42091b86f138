#!/usr/bin/env bash
# test_cli_level.sh: CRESNET_CPU lowers the instructions of the program and of oneDNN, which says itself what it uses; where the level is
# printed; wrong words and levels. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
unset CRESNET_CPU DNNL_MAX_CPU_ISA ONEDNN_MAX_CPU_ISA
run --version
has=$(sed -n 's/^device cpu .*CPU, [0-9]* threads*, \([a-z0-9]*\).*/\1/p' stdout)
case $has in
baseline) levels=baseline missing="avx2 avx512" ;;
avx2) levels="baseline avx2" missing=avx512 ;;
avx512) levels="baseline avx2 avx512" missing="" ;;
*) fail "--version: level \"$has\""; sum_up ;;
esac
run train tiny.ini train.epochs=1 -o R -q; expect "train" 0

# isa [VARIABLE=VALUE...]: what oneDNN says that it uses
isa() { env "$@" DNNL_VERBOSE=1 "$bin" check tiny.ini 2>&1 | sed -n 's/^.*info,cpu,isa:\(.*\)$/\1/p' | head -1; }
declare -A names=([baseline]="Intel SSE4.1" [avx2]="Intel AVX2")
free=$(isa) # empty in a build without oneDNN

for word in $levels; do
    export CRESNET_CPU=$word
    text=", $word"
    [ "$word" = "$has" ] || text=", $word (CRESNET_CPU; the processor has $has)"
    run --version; expect "--version at $word" 0 "$text"
    run profile tiny.ini --steps 1; expect "profile at $word" 0 "$text"
    run bench step tiny.ini --steps 1; expect "bench step at $word" 0 "$text"
    run bench data tiny.ini --steps 1; expect "bench data at $word" 0 "CPU level ${text#, }"
    run report R -o report.html; expect "report at $word" 0
    has "report at $word" "$(cat report.html)" "$text"
    if [ "$word" != "$has" ] && [ -n "$free" ]; then
        is "oneDNN at $word" "$(isa)" "${names[$word]}"
        is "oneDNN at $word with a lower limit" "$(isa DNNL_MAX_CPU_ISA=SSE41)" "Intel SSE4.1"
        is "oneDNN at $word with a higher limit" "$(isa DNNL_MAX_CPU_ISA=ALL)" "${names[$word]}"
    fi
done
export CRESNET_CPU=$has
is "oneDNN at the processor's level" "$(isa)" "$free"
export CRESNET_CPU=""
run --version; expect "an empty variable" 0 ", $has"

export CRESNET_CPU=sse2
run --version; expect "an unknown word" 2 "cresnet: CRESNET_CPU=sse2: give baseline, avx2, avx2_vnni or avx512; this processor has $has"
run train tiny.ini -o S; expect "an unknown word, train" 2 "CRESNET_CPU=sse2"
holds "nothing is written" test ! -e S
for word in $missing; do
    export CRESNET_CPU=$word
    run --version; expect "the level $word" 1 "CRESNET_CPU=$word: this processor has only $has"
done
sum_up

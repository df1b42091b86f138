#!/usr/bin/env bash
# test_faults.sh: scripts/fault-test.sh, the long loop over every failing call, with large strides: that it still runs, and a sample of
# what it finds. Skipped without the library that makes calls fail (sanitizers bring their own malloc; not on Linux).
. "$(dirname "$0")/../harness/support.sh"
shim=$(dirname "$bin")/tests/fault_shim.so
[ -f "$shim" ] || { skip "no $shim"; sum_up 77; }
sample() { # STRIDE SCENES KIND...
    local stride=$1 scenes=$2
    shift 2
    if STRIDE=$stride SCENES=$scenes CRESNET_BIN=$bin "$source_dir/scripts/fault-test.sh" "$@"; then pass; else fail "stride $stride, $scenes: $*"; fi
}
if "$bin" --version | grep -q '^CUDA  *[0-9]'; then
    skip "malloc: CUDA's runtime is part of the program and does not survive its own allocations failing"
else
    sample 97 "train resume" malloc
    sample 61 "eval predict pack prune" malloc
fi
sample 23 "train resume pack" read write open close full
sample 5 "train resume" fsync rename thread
sample 41 "eval predict prune export" read write open close
sample 60 "train resume pack" short signal clock
# A shim that does nothing would pass all of this: a call that fails must be seen to end the program.
said=$(LD_PRELOAD=$shim FAULT_CALL=open FAULT_AT=1 "$bin" plan demo.ini 2>&1)
is "a fault is felt: exit code of $said" $? 1
sum_up

#!/usr/bin/env bash
# test_cli_aliases.sh: old spellings of options and option values work, print one line that names the new spelling,
# and do not appear in help and completion. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

run plan tiny.ini --lives; expect "plan --lives" 0 "--lives is now --lifetimes; the old name works until 0.4"
old=$out; run plan tiny.ini --lifetimes; is "plan --lives prints what --lifetimes prints" "$old" "$out"
run plan tiny.ini --costs tiny.ini; expect "plan --costs" 2 "--costs is now --kernel-times; the old name works until 0.4" "--kernel-times needs --target"
run plan tiny.ini --after order; expect "plan --after order" 0 "--after order is now --after insert_waits" "layer2.0.conv2.y"
run bench data tiny.ini -b 8 --steps 1 --against 100; expect "bench data --against" 0 "--against is now --trainer-speed" "a trainer of 100 images/s"
run train tiny.ini --lives; expect "an old spelling of another command" 2 "unknown option --lives"
holds "help shows new spellings only" sh -c '! "$0" plan --help | grep -e "--lives" -e "--costs"' "$bin"
holds "completion offers new spellings only" sh -c '! "$0" help completion bash | grep -e "--lives" -e "--costs" -e "--against"' "$bin"
is "an old spelling prints one line" "$("$bin" plan tiny.ini --lives -q 2>&1 >/dev/null | grep -c "is now --lifetimes")" 1

sum_up

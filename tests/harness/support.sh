# support.sh: helpers for the scripts that drive the built program (tests/cli/*.sh and scripts/*-test.sh), which source this file. It changes to a
# new empty folder, $work, which is removed at exit, and keeps the script away from the files of the user. A test ends with `sum_up`, which prints
# "N passed, N failed, N skipped".
#   CRESNET_BIN     the program (default: build/cresnet)
#   CRESNET_SOURCE  the source tree (default: the tree of this file)
set -u
source_dir=${CRESNET_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
bin=${CRESNET_BIN:-$source_dir/build/cresnet}
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export HOME=$work XDG_CACHE_HOME=$work/cache GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}
unset CRESNET_TRACE

passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $*"; }
skip() { skipped=$((skipped + 1)); echo "skip $*"; }
# is NAME GOT WANT
is() { if [ "$2" = "$3" ]; then pass; else fail "$1: \"$2\", want \"$3\""; fi; }
# has NAME TEXT PART
has() { case $2 in *"$3"*) pass ;; *) fail "$1: lacks \"$3\": $2" ;; esac; }
# holds NAME COMMAND...
holds() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then pass; else fail "$name: $*: ${said:0:500}"; fi
}
# ends NAME CODE COMMAND...: checks the exit code; $said is what the command prints
ends() {
    local name=$1 want=$2 code
    shift 2
    said=$("$@" 2>&1)
    code=$?
    is "$name: exit code of $said" $code "$want"
}
# await PID COMMAND...: waits until COMMAND succeeds or the process PID has ended, however slow the machine is
await() {
    local pid=$1
    shift
    until "$@" >/dev/null 2>&1; do kill -0 "$pid" 2>/dev/null || return 1; sleep 0.02; done
}
# problems FILE...: the lines that `cresnet train -q` printed and that are not results. An emulator (scripts/cross-arm.sh) prints a line of its
# own when a program crashes.
problems() { grep -hvE '^((evaluation at step|done: step|stopped by signal) |qemu: uncaught target signal )' "$@"; }
there() { command -v "$1" >/dev/null 2>&1; }
# python_tools ARGS...: python3 that can import the modules of tests/tools
python_tools() { PYTHONPATH=$source_dir/tests/tools PYTHONDONTWRITEBYTECODE=1 python3 "$@"; }
# weights_file COMMAND ARGS...: changes or compares safetensors files
weights_file() { python_tools "$source_dir/tests/tools/weights_file.py" "$@"; }
# python_with MODULE...: prints a python3 that can import them, from build/peers-venv if need be; fails without one
python_with() { python3 -B "$source_dir/tests/tools/peers.py" "$@"; }
# sum_up [CODE]: ends the test; exit code CODE when nothing failed (default 0; 77: everything was skipped)
sum_up() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && exit "${1:-0}"
    exit 1
}

# synthetic_data: the INI section of a small dataset that needs no files
synthetic_data() { printf '[data]\nkind = synthetic\nimage_size = 16\ntrain_images = 64\nval_images = 16\nworkers = 1\n'; }
# tiny_model [WIDTHS]: the INI section of a model with very fast steps
tiny_model() { printf '[model]\narch = custom\nblock = basic\nstem = cifar\ndepths = 1,1\nwidths = %s\n' "${1:-4,8}"; }

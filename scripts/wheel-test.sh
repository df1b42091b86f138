#!/usr/bin/env bash
# wheel-test.sh WHEEL [SUITE...]: installs a wheel of scripts/build-wheel.sh into fresh roots of Debian releases (bookworm trixie) that have nothing
# but python3-venv, neither compiler nor headers, and trains demo.ini there. Prints sizes and times. Needs root, debootstrap and a network; the
# roots are kept in build/wheel/roots.
set -u
[ $# -ge 1 ] && [ -f "$1" ] || { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bookworm trixie
cd "$(dirname "$0")/.." || exit 1
roots=${CRESNET_ROOTS:-$PWD/build/wheel/roots}
passed=0 failed=0
check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $name"; fi
}
inside() { chroot "$root" /usr/bin/env -i PATH=/env/bin:/usr/bin:/bin HOME=/root "$@"; }
seconds() { # NAME COMMAND...
    local name=$1 start=${EPOCHREALTIME/./}
    shift
    check "$name" "$@"
    echo "  $name: $(((${EPOCHREALTIME/./} - start) / 100000))" | sed 's/\([0-9]\)$/.\1 s/; s/: \./: 0./'
}
no_compiler() { ! inside sh -c 'command -v cc gcc make cmake || test -e /usr/include/stdio.h'; }
accuracy() {
    local top1
    top1=$(inside sh -c 'cd /work && cresnet eval checkpoints/demo --json -q' | sed -n 's/.*"top1": \([0-9.]*\).*/\1/p')
    echo "  top-1 of demo.ini: $top1"
    awk -v x="${top1:-0}" 'BEGIN { exit x < 0.95 }'
}

echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
python3 -m zipfile -l "$wheel" | awk 'NR > 1 { sum += $NF } END { print "  unpacked: " sum " bytes" }'
for suite in "$@"; do
    root=$roots/$suite
    if [ ! -e "$root/complete" ]; then
        rm -rf "$root"
        mkdir -p "$roots"
        debootstrap --variant=minbase --include=python3-venv "$suite" "$root" >"$roots/$suite.log" 2>&1 || { tail -3 "$roots/$suite.log" >&2; exit 1; }
        touch "$root/complete"
    fi
    echo "$suite: $(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"), $(inside python3 --version), $(inside ldd --version | head -1)"
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc" || exit 1
    trap 'umount "$root/proc"' EXIT
    rm -rf "$root/env" "$root/work" "$root/wheels"
    mkdir "$root/work" "$root/wheels"
    cp "$wheel" "$root/wheels/"
    version=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$version" -d "$root/wheels" numpy || exit 1
    check "no compiler and no headers" no_compiler
    seconds "python3 -m venv" inside python3 -m venv /env
    name=$(basename "$wheel" | sed 's/-.*//; s/_/-/')
    seconds "pip install, with NumPy" inside pip install --quiet --no-index --find-links /wheels "$name"
    inside du -sh /env/lib/python"$version"/site-packages/cresnet
    check "--version" inside cresnet --version
    seconds "cresnet train demo.ini" inside sh -c 'cd /work && cresnet train demo.ini -q'
    check "top-1 of at least 95 %" accuracy
    check "cresnet config" inside sh -c 'cd /work && cresnet config demo.ini && test -s demo.ini'
    check "python -m cresnet" inside sh -c 'python -m cresnet help >/dev/null'
    check "from Python" inside python -c 'import os, cresnet; os.chdir("/work"); run = cresnet.Run("checkpoints/demo"); print("  " + str(run.best)); print("  classes: " + " ".join(run.model().class_names))'
    umount "$root/proc"
    trap - EXIT
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]

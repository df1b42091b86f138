# deps.sh: installs what the build and the tests need. To be sourced; sets functions, and how threads wait.

# Tests run side by side: threads that wait must not spin for long (see wait_politely in src/cresnet.c, which the test programs
# lack).
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

debian_packages="gcc libc6-dev cmake ninja-build libiniparser-dev libpng-dev libjpeg62-turbo-dev libdnnl-dev python3"

# Installs the Debian packages that are missing, by name. Says what to do where that cannot be done.
need_packages() {
    local missing="" package
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "This is no Debian: please see to it that these packages, or their like, are there: $debian_packages"
        return 0
    fi
    for package in $debian_packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    local as_root=""
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null; then as_root=sudo
        else
            echo "Missing packages. Please run as root: apt-get install --no-install-recommends$missing" >&2
            return 1
        fi
    fi
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get -qq update || echo "apt-get update failed; trying with the lists that are there" >&2
    # shellcheck disable=SC2086
    if ! $as_root apt-get -qq -y install --no-install-recommends $missing >/dev/null; then
        echo "These packages could not be installed:$missing" >&2
        return 1
    fi
}

# build DIR OPTIONS...: configures and builds the tree; prints warnings and errors only.
build() {
    local dir=$1 log
    shift
    log=$dir/build.log
    mkdir -p "$dir"
    if ! cmake -G Ninja -S "$root" -B "$dir" "$@" >"$log" 2>&1; then
        tail -30 "$log" >&2
        return 1
    fi
    grep -- '-- cresnet' "$log"
    if ! cmake --build "$dir" >>"$log" 2>&1; then
        grep -E -A8 'error|FAILED' "$log" | head -80 >&2
        return 1
    fi
}

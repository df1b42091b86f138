# fetch-lib.sh: what the fetch scripts share; they source it. Needs curl or wget, tar, and coreutils.

say() { echo "$(basename "$0"): $*"; }
die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# md5_is FILE SUM
md5_is() { [ "$(md5sum "$1" | cut -d' ' -f1)" = "$2" ]; }

# fetch URL FILE MD5: leaves FILE in place only when its sum is right; goes on where an earlier try was cut off.
fetch() {
    if [ -f "$2" ] && md5_is "$2" "$3"; then
        say "$2 is here already"
        return
    fi
    say "fetching $1"
    if command -v curl >/dev/null; then
        curl -fL --retry 3 -C - -o "$2.part" "$1" || curl -fL --retry 3 -o "$2.part" "$1" || die "cannot fetch $1"
    elif command -v wget >/dev/null; then
        wget -c -O "$2.part" "$1" || die "cannot fetch $1"
    else
        die "needs curl or wget: apt install curl"
    fi
    if ! md5_is "$2.part" "$3"; then
        rm -f "$2.part"
        die "$1 is not what was published (md5 differs from $3); the file was removed, try again"
    fi
    mv "$2.part" "$2"
}

# unpack ARCHIVE FOLDER MADE: unpacks beside FOLDER/MADE first and renames, so that a half-unpacked set is never met.
unpack() {
    [ -d "$2/$3" ] && { say "$2/$3 is here already"; return; }
    rm -rf "$2/$3.part"
    mkdir -p "$2/$3.part"
    tar -xzf "$1" -C "$2/$3.part" || die "cannot unpack $1"
    mv "$2/$3.part/$3" "$2/$3"
    rm -rf "$2/$3.part"
}

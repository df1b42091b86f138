# fetch-lib.sh: functions of the fetch scripts, which source this file. Needs curl or wget, tar, and coreutils; `clone` needs git.

say() { echo "$(basename "$0"): $*"; }
die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# md5_is FILE MD5
md5_is() { [ "$(md5sum "$1" | cut -d' ' -f1)" = "$2" ]; }

# fetch URL FILE MD5: downloads FILE and checks it; a wrong checksum removes it. Resumes an interrupted download.
fetch() {
    if [ -f "$2" ] && md5_is "$2" "$3"; then
        say "$2 exists already"
        return
    fi
    say "downloading $1"
    if command -v curl >/dev/null; then
        curl -fL --retry 3 -C - -o "$2.part" "$1" || curl -fL --retry 3 -o "$2.part" "$1" || die "cannot download $1"
    elif command -v wget >/dev/null; then
        wget -c -O "$2.part" "$1" || die "cannot download $1"
    else
        die "needs curl or wget: apt install curl"
    fi
    if ! md5_is "$2.part" "$3"; then
        rm -f "$2.part"
        die "the MD5 checksum of $1 is not the published $3; the file was removed, try again"
    fi
    mv "$2.part" "$2"
}

# unpack ARCHIVE FOLDER NAME: unpacks into FOLDER/NAME.part and renames it to FOLDER/NAME, which is therefore always complete.
unpack() {
    [ -d "$2/$3" ] && { say "$2/$3 exists already"; return; }
    rm -rf "$2/$3.part"
    mkdir -p "$2/$3.part"
    tar -xzf "$1" -C "$2/$3.part" || die "cannot unpack $1"
    mv "$2/$3.part/$3" "$2/$3"
    rm -rf "$2/$3.part"
}

# clone NAME COMMIT FOLDER PATH...: downloads these paths of one commit of the GitHub repository NAME into FOLDER, without its history. Needs git.
# A commit is the checksum of all its files: git refuses files that differ from it. FOLDER is complete when it exists.
clone() {
    name=$1 commit=$2 folder=$3
    shift 3
    [ -d "$folder" ] && { say "$folder exists already"; return; }
    command -v git >/dev/null || die "needs git: apt install git"
    say "downloading commit $commit of https://github.com/$name"
    rm -rf "$folder.part" "$folder.git"
    git init -q --bare "$folder.git"
    git -C "$folder.git" fetch -q --depth 1 "https://github.com/$name" "$commit" || die "cannot download https://github.com/$name"
    mkdir -p "$folder.part"
    git --git-dir="$folder.git" --work-tree="$folder.part" checkout -q -f "$commit" -- "$@" || die "cannot write $folder.part"
    mv "$folder.part" "$folder"
    rm -rf "$folder.git"
}

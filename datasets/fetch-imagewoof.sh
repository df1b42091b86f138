#!/bin/sh
# fetch-imagewoof.sh [DIR [SIZE]]: downloads Imagewoof2 (ten breeds of dogs of ImageNet, 12,954 JPEG photos; fast.ai) into DIR (default: the
# folder of this script): a copy of the archive with a short side of 320 px on GitHub, 334 MB, at a commit that is the checksum of its files.
# SIZE: 320 (default): the photos as they are; 160: also DIR/imagewoof2-160, packed files with JPEGs whose short side `cresnet data pack` has
# reduced to 160 px, at quality 90 (149 MB). CRESNET names the program (build/cresnet, or cresnet of PATH).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/fetch-lib.sh"
dir=${1:-$here} size=${2:-320}
case $size in
    160 | 320) ;;
    *) die "size $size: must be 160 or 320" ;;
esac
mkdir -p "$dir"
clone q878787/imagewoof2-320 874e58f0c1acebb0d90e40f48460d65322f09f85 "$dir/imagewoof2-320" train val
if [ "$size" = 160 ] && [ ! -d "$dir/imagewoof2-160" ]; then
    cresnet=${CRESNET:-$here/../build/cresnet}
    [ -x "$cresnet" ] || cresnet=$(command -v cresnet) || die "needs the program cresnet to reduce the photos: build it, or set CRESNET"
    rm -rf "$dir/imagewoof2-160.part"
    "$cresnet" data pack "$dir/imagewoof2-320" "$dir/imagewoof2-160.part" --jpeg=160,90 -q >/dev/null || die "cannot pack $dir/imagewoof2-320"
    mv "$dir/imagewoof2-160.part" "$dir/imagewoof2-160"
fi
say "ready: data.root=$dir/imagewoof2-$size$([ "$size" = 320 ] || echo " data.kind=packed")"

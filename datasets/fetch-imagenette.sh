#!/bin/sh
# fetch-imagenette.sh [DIR [SIZE]]: downloads Imagenette (ten classes of ImageNet, JPEG photos; fast.ai) into DIR (default: the folder of
# this script). Checks the published checksum of the archive. SIZE: 160 (99 MB), 320 (341 MB, default), full (1.6 GB)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/fetch-lib.sh"
dir=${1:-$here}
case ${2:-320} in
    160) name=imagenette2-160 sum=e793b78cc4c9e9a4ccc0c1155377a412 ;;
    320) name=imagenette2-320 sum=3df6f0d01a2c9592104656642f5e78a3 ;;
    full) name=imagenette2 sum=fe2fc210e6bb7c5664d602c3cd71e612 ;;
    *) die "size $2: must be 160, 320 or full" ;;
esac
mkdir -p "$dir"
if [ ! -d "$dir/$name" ]; then
    fetch "https://s3.amazonaws.com/fast-ai-imageclas/$name.tgz" "$dir/$name.tgz" "$sum"
    unpack "$dir/$name.tgz" "$dir" "$name"
    rm -f "$dir/$name.tgz"
fi
say "ready: data.root=$dir/$name"

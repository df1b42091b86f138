#!/bin/sh
# fetch-tiny-imagenet.sh [DIR]: downloads Tiny-ImageNet-200 (200 classes of ImageNet, 100,000 + 10,000 labelled JPEG images of 64 px) into DIR
# (default: the folder of this script): a copy on GitHub, 240 MB, at a commit that is the checksum of its files. Writes train.csv and val.csv
# beside the images, from the folders and from val_annotations.txt. The images of test/ have no labels and are left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/fetch-lib.sh"
dir=${1:-$here}
mkdir -p "$dir"
clone seshuad/IMagenet 153dbc161ab7942a12c99515e80ef6454dd06693 "$dir/tiny-imagenet-200" tiny-imagenet-200/train tiny-imagenet-200/val
root=$dir/tiny-imagenet-200
[ ! -d "$root/tiny-imagenet-200" ] || { mv "$root/tiny-imagenet-200/train" "$root/tiny-imagenet-200/val" "$root" && rmdir "$root/tiny-imagenet-200"; }
cd "$root"
if [ ! -f val.csv ]; then
    find train -name '*.JPEG' | LC_ALL=C sort | awk -F/ 'BEGIN { print "file,label" } { print $0 "," $2 }' >train.csv
    LC_ALL=C sort val/val_annotations.txt | awk -F'\t' 'BEGIN { print "file,label" } { print "val/images/" $1 "," $2 }' >val.csv.part
    mv val.csv.part val.csv
fi
[ "$(wc -l <train.csv) $(wc -l <val.csv)" = "100001 10001" ] || die "$root is not complete: remove it and try again"
say "ready: data.kind=csv data.root=$root"

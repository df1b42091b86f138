#!/bin/sh
# fetch-cifar100.sh [DIR]: downloads CIFAR-100 (binary form, 161 MB) from the University of Toronto into DIR (default: the folder of
# this script). Checks the published checksum of the archive.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/fetch-lib.sh"
dir=${1:-$here}
mkdir -p "$dir"
if [ ! -d "$dir/cifar-100-binary" ]; then
    fetch https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz "$dir/cifar-100-binary.tar.gz" 03b5dce01913d631647c71ecec9e9cb8
    unpack "$dir/cifar-100-binary.tar.gz" "$dir" cifar-100-binary
    rm -f "$dir/cifar-100-binary.tar.gz"
fi
say "ready: data.root=$dir/cifar-100-binary"

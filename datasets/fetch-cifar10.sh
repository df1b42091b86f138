#!/bin/sh
# fetch-cifar10.sh [DIR]: downloads CIFAR-10 (binary form, 162 MB) from the University of Toronto into DIR (default: the folder of
# this script). Checks the published checksum of the archive and the checksums of the files.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/fetch-lib.sh"
dir=${1:-$here}
mkdir -p "$dir"
if [ ! -d "$dir/cifar-10-batches-bin" ]; then
    fetch https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz "$dir/cifar-10-binary.tar.gz" c32a1d4ab5d03f1284b67883e8d87530
    unpack "$dir/cifar-10-binary.tar.gz" "$dir" cifar-10-batches-bin
    rm -f "$dir/cifar-10-binary.tar.gz"
fi
cd "$dir/cifar-10-batches-bin"
sha256sum -c --quiet <<'SUMS' || die "$dir/cifar-10-batches-bin is damaged: remove it and try again"
cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5  data_batch_1.bin
a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed  data_batch_2.bin
bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67  data_batch_3.bin
014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48  data_batch_4.bin
755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add  data_batch_5.bin
8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b  test_batch.bin
SUMS
say "ready: data.root=$dir/cifar-10-batches-bin"

#!/usr/bin/env bash
# pack-build.sh BUILD FILE.tar.xz: packs a build for a GPU machine without compiler time or network: the stripped programs
# cresnet and tests/steps_tool, and the configurations of its source tree. About 8 MB. scripts/compare-builds.sh compares
# two of them. To unpack: mkdir DIR && python3 -m tarfile -e FILE.tar.xz DIR
#
# Libraries that the GPU machine may lack are linked statically by a build with
#   -DCMAKE_PREFIX_PATH=.gpu/deps/usr -DCRESNET_WITH_ONEDNN=OFF -DCRESNET_WITH_CURL=OFF -DCRESNET_WITH_WEBP=OFF -DCRESNET_WITH_TIFF=OFF -DCMAKE_CUDA_ARCHITECTURES=90-real
# (scripts/gpu/pack-deps.sh --static makes .gpu/deps). cuDNN, cuBLAS, cuSPARSE and NCCL are opened at run time.
set -eu
[ $# = 2 ] || { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
build=$(realpath "$1") out=$(realpath -m "$2")
source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tests" "$(dirname "$out")"
strip -o "$work/cresnet" "$build/cresnet"
tool=$(find "$build" -maxdepth 3 -name steps_tool -type f -perm -u+x | head -n 1)
[ -z "$tool" ] || strip -o "$work/tests/steps_tool" "$tool"
cp -r "$source/configs" "$work/"
# The two programs share most of their bytes: a dictionary larger than one program stores them once.
tar -C "$work" -cf - . | xz --lzma2=preset=6,dict=128MiB >"$out"
echo "$out: $(stat -c %s "$out") bytes"
ldd "$work/cresnet" | awk '{ print $1 }' | paste -sd' '

#!/usr/bin/env bash
# pack-deps.sh [DIR]: for a GPU machine without network: copies headers and static libraries of iniparser, libpng, libjpeg and zlib
# from Debian's packages into DIR (.gpu/deps; 1.6 MB), where scripts/gpu-check.sh looks for them. oneDNN is not included: it is large
# and the GPU device does not use it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(realpath -m "${1:-$root/.gpu/deps}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download libiniparser-dev libpng-dev libjpeg62-turbo-dev zlib1g-dev >/dev/null 2>&1 ||
    { echo "pack-deps.sh: apt-get download failed; this script needs Debian and a network" >&2; exit 1; }
for deb in *.deb; do dpkg-deb -x "$deb" all; done
rm -rf "$out"
mkdir -p "$out/usr/include/iniparser" "$out/usr/lib/x86_64-linux-gnu"
cd all/usr
cp -L include/*.h "$out/usr/include/"
cp include/*/jconfig.h "$out/usr/include/"
cp -L include/iniparser/*.h "$out/usr/include/iniparser/"
cp -L lib/x86_64-linux-gnu/lib{iniparser,jpeg,png,z}.a "$out/usr/lib/x86_64-linux-gnu/"
du -sh "$out"

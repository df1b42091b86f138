#!/usr/bin/env bash
# pack-deps.sh [--static] [DIR]: for a GPU machine without network: copies headers and shared libraries of iniparser, libpng, libjpeg
# and zlib from Debian's packages into DIR (.gpu/deps; 1.4 MB), where scripts/gpu-check.sh looks for them. oneDNN is not included: it
# is large and the GPU device does not use it. Programs of a build folder find them in DIR;
# only zlib, which libpng needs, must be on the machine, as it is on every Debian.
# --static: static, position-independent libraries instead (scripts/static-deps.sh), for programs and libcresnet.so that are built here and run
# elsewhere (scripts/gpu/pack-build.sh).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ "${1:-}" = --static ]; then
    out=$(realpath -m "${2:-$root/.gpu/deps}")
    "$root/scripts/static-deps.sh" "$out/usr" zlib libpng libjpeg-turbo iniparser
    du -sh "$out/usr/lib"
    exit
fi
out=$(realpath -m "${1:-$root/.gpu/deps}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download libiniparser-dev libpng-dev libjpeg62-turbo-dev zlib1g-dev libiniparser1 libpng16-16 libjpeg62-turbo zlib1g >/dev/null 2>&1 ||
    { echo "pack-deps.sh: apt-get download failed; this script needs Debian and a network" >&2; exit 1; }
for deb in *.deb; do dpkg-deb -x "$deb" all; done
rm -rf "$out"
mkdir -p "$out/usr/include/iniparser" "$out/usr/lib/x86_64-linux-gnu"
cd all/usr
cp -L include/*.h "$out/usr/include/"
cp include/*/jconfig.h "$out/usr/include/"
cp -L include/iniparser/*.h "$out/usr/include/iniparser/"
to=$out/usr/lib/x86_64-linux-gnu
cp -a ../lib/x86_64-linux-gnu/. lib/x86_64-linux-gnu/ 2>/dev/null || true # zlib's library is in /lib
cp -a lib/x86_64-linux-gnu/lib{iniparser,jpeg,png,png16,z}.so* "$to/"
ln -sf "$(basename "$to"/libz.so.1.*)" "$to/libz.so" # the package's link is absolute
du -sh "$out"

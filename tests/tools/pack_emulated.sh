#!/usr/bin/env bash
# pack_emulated.sh: packs what the tests of scripts/cross-arm.sh need into one archive of 11 MB, for an x86 machine with more cores that has
# python3, but no emulator and no CTest. There the archive must be unpacked into a folder with the name of this tree:
#   xz -dc FILE | tar -x -C TREE && TREE/build/arm/packed/run.sh LOGS [OPTIONS OF tests/tools/run_suite.py]
#
#   pack_emulated.sh BUILD-FOLDER FILE     called by PACK=FILE scripts/cross-arm.sh [BUILD-FOLDER]
set -eu
dir=$(cd "$1" && pwd)
file=$(realpath "$2")
root=$(cd "$(dirname "$0")/../.." && pwd)
case $dir in "$root"/*) ;; *) echo "pack_emulated.sh: $dir is not in $root" >&2; exit 2 ;; esac
to=$dir/packed stage=$dir/stage
command -v qemu-aarch64-static >/dev/null || { echo "pack_emulated.sh: install qemu-user-static" >&2; exit 1; }
rm -rf "$to" "$stage"
mkdir -p "$to/bin" "$stage"

# Every program has the library in it. Linked as a whole, before all else and at fixed addresses, with strings that are not merged with the
# program's, it has the same bytes in all of them: 330 MB of programs take 6 MB.
cd "$dir/build"
aarch64-linux-gnu-ld -r -o "$to/core.o" --whole-archive libcresnet_core.a
aarch64-linux-gnu-strip -g "$to/core.o"
python3 - "$to/core.o" <<'EOF'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
headers, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
for i in range(count):
    flags, = struct.unpack_from("<Q", data, headers + 64 * i + 8)
    struct.pack_into("<Q", data, headers + 64 * i + 8, flags & ~0x30)  # SHF_MERGE, SHF_STRINGS
open(sys.argv[1], "wb").write(data)
EOF
at=-Wl,--section-start=
options="-s -Wl,-z,norelro -Wl,--build-id=none $at.text=0x40000 $at.rodata=0xa00000 $at.eh_frame=0x1000000 $at.data.rel.ro=0x1400000
    $at.got=0x1800000 $at.data=0x2010000 $to/core.o"
for program in cresnet tests/emulated_cresnet tests/*_tool tests/test_* tests/fuzz_*; do
    if ! [ -f "$program" ] || ! [ -x "$program" ]; then continue; fi
    mkdir -p "$stage/${dir#"$root"/}/build/tests"
    command=$(ninja -t commands "$program" | tail -1 | sed "s#^: && ##; s# && :\$##; s# -o $program # -o $stage/${dir#"$root"/}/build/$program #
        s#aarch64-linux-gnu-g[c+][c+] #&$(echo $options) #")
    bash -c "$command"
done
rm "$to/core.o"

cp "$(command -v qemu-aarch64-static)" "$to/bin/qemu-aarch64"
ctest --test-dir "$dir/build" --show-only=json-v1 | sed 's#"[^"]*/qemu-aarch64"#"qemu-aarch64"#; s#"[^"]*/python3[0-9.]*"#"python3"#' >"$to/tests.json"
cat >"$to/run.sh" <<EOF
#!/bin/sh
export PATH=$to/bin:\$PATH OMP_NUM_THREADS=1
printf '%s\\n' $to/bin/qemu-aarch64 $dir/root/emulated >$dir/root/emulated/etc/emulator
exec python3 $root/tests/tools/run_suite.py $to/tests.json "\$@"
EOF
chmod +x "$to/run.sh"
cd "$root"
{ git ls-files; find "${to#"$root"/}" "${dir#"$root"/}/root/emulated" "${dir#"$root"/}/build/tests/emulated" -type f; } | tar -c -T - | tar -x -C "$stage"
tar -c --sort=name -C "$stage" . | xz --lzma2=preset=6,dict=256MiB,nice=128 -T1 >"$file"
rm -rf "$stage"

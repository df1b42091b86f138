#!/usr/bin/env bash
# cross-arm.sh: compiles the CPU build for 64-bit ARM on a Debian machine and runs the test programs in an emulator (qemu-user).
# Downloads Debian's arm64 packages of the libraries into the build folder; nothing of them is installed. The last line is the sum,
# "N passed, N failed, N skipped"; the exit code is 0 when nothing failed. It takes some hours on two cores.
#
#   scripts/cross-arm.sh [BUILD-FOLDER]     default: build/arm
#
# Variables: JOBS (number of parallel tests, default 2), CTEST_ARGS (more arguments of ctest, such as "-R kernel"), PACK (a file: the tests
# are not run, but packed for another x86 machine, tests/tools/pack_emulated.sh).
# Not run in the emulator: checks of the source tree, the trainings of SLOW, and test_limits (limits of processes count qemu's thread).
set -eu
SLOW='test_golden_train|test_ranks_train|test_ranks_resume|test_offload_networks|test_train$|test_api_threads'
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/arm}
packages='libpng-dev libpng16-16 zlib1g zlib1g-dev libiniparser-dev libiniparser1 libjpeg62-turbo libjpeg62-turbo-dev libdnnl-dev libdnnl2
    ocl-icd-libopencl1'

need=
for tool in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64:qemu-user cmake:cmake \
    ninja:ninja-build; do
    command -v "${tool%%:*}" >/dev/null || need="$need ${tool#*:}"
done
if [ -n "$need" ]; then
    # shellcheck disable=SC2086
    apt-get install -y -q $need >/dev/null || { echo "cross-arm.sh: install these packages:$need" >&2; exit 1; }
fi

mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/debs" "$dir/root/usr/lib"
dir=$(cd "$dir" && pwd)
if [ ! -e "$dir/root/complete" ]; then
    options="-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists=$dir/apt/lists -oDir::Cache=$dir/apt/cache"
    ln -sfn usr/lib "$dir/root/lib" # some packages have their libraries in /lib
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get -q $options update >/dev/null && apt-get -q $options download $packages >/dev/null 2>&1)
    for package in "$dir"/debs/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$dir/root"; done
    touch "$dir/root/complete"
fi

# The root of the emulated system: the loader and libraries. The build runs the program, too.
system=$dir/root/emulated
mkdir -p "$system/lib" "$system/etc"
for library in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libgcc_s.so.1 libgomp.so.1 libstdc++.so.6; do
    cp -L "/usr/aarch64-linux-gnu/lib/$library" "$system/lib/"
done
cp -L "$dir"/root/usr/lib/aarch64-linux-gnu/*.so.[0-9]* "$system/lib/"
printf '%s\n' "$(command -v qemu-aarch64)" "$system" >"$system/etc/emulator"

export PKG_CONFIG_LIBDIR=$dir/root/usr/lib/aarch64-linux-gnu/pkgconfig
cmake -G Ninja -S "$root" -B "$dir/build" -DCMAKE_TOOLCHAIN_FILE="$root/cmake/aarch64-linux-gnu.cmake" -DCRESNET_ARM_ROOT="$dir/root" \
    -DCRESNET_WITH_CUDA=OFF -DCRESNET_WITH_CURL=OFF -DCRESNET_WERROR=ON >"$dir/cmake.log" || { tail -n 20 "$dir/cmake.log"; exit 1; }
ninja -C "$dir/build" >"$dir/build.log" || { tail -n 30 "$dir/build.log"; exit 1; }

if [ -n "${PACK:-}" ]; then
    "$root/tests/tools/pack_emulated.sh" "$dir" "$PACK"
    exit
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # as in scripts/test.sh
code=0
# shellcheck disable=SC2086
ctest --test-dir "$dir/build" -j"${JOBS:-2}" --timeout 3600 -E "^(check_.*|test_limits|$SLOW)" ${CTEST_ARGS:-} >"$dir/ctest.log" || code=1
grep -E '\*\*\*|tests passed' "$dir/ctest.log" || true
awk '/ passed, .* failed, .* skipped/ && $1 ~ /^[0-9]+$/ { p += $1; f += $3; s += $5 }
    END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped" }' "$dir/build/Testing/Temporary/LastTest.log"
exit $code

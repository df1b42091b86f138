#!/usr/bin/env bash
# oldest-cuda.sh: builds the program and the library with the oldest supported CUDA toolkit, 12.4, runs them on the CPU, and runs the tests
# of the GPU device that need no GPU.
# The toolkit is put together in the build folder, and nothing is installed: nvcc, the device compiler and the static runtime come from
# Debian 13's packages nvidia-cuda-toolkit and nvidia-cuda-dev, because NVIDIA's wheels of CUDA 12 lack them; headers and libraries from
# NVIDIA's wheels, in the versions of 12.4 and with the oldest supported cuDNN. Downloads 2.3 GB once. The last line is the sum,
# "N passed, N failed, N skipped"; the exit code is 0 when nothing failed.
#
#   scripts/oldest-cuda.sh [BUILD-FOLDER]     default: build/oldest-cuda
#
# Variables: JOBS (number of parallel compilers, default 2), ARCHS (default "80-real;90-real", which includes the code of 9.0a).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/oldest-cuda}
wheels="nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cccl-cu12==12.4.127 nvidia-nvtx-cu12==12.4.127
nvidia-curand-cu12==10.3.5.147 nvidia-cublas-cu12==12.4.5.8 nvidia-cudnn-cu12==9.8.0.87 nvidia-nccl-cu12==2.21.5"

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# Debian's mirror that this machine uses, and a package list of its own: the machine's lists stay as they are.
fetch_nvcc() {
    local mirror options
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | sort -u | head -1)
    [ -n "$mirror" ] || { echo "oldest-cuda.sh: this is not Debian: put nvcc 12.4 into $dir/toolkit" >&2; return 1; }
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/debs"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" >"$dir/apt/sources.list"
    options="-oDir::State::Lists=$dir/apt/lists -oDir::Cache=$dir/apt/cache -oDir::Etc::SourceList=$dir/apt/sources.list
        -oDir::Etc::SourceParts=/dev/null"
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get -qq $options update && apt-get -qq $options download nvidia-cuda-toolkit nvidia-cuda-dev 2>/dev/null)
    dpkg-deb -x "$dir"/debs/nvidia-cuda-toolkit_12.4.*.deb "$dir/deb"
    dpkg-deb --fsys-tarfile "$dir"/debs/nvidia-cuda-dev_12.4.*.deb | tar -x -C "$dir/deb" ./usr/lib/x86_64-linux-gnu/libcudart_static.a
    rm -rf "$dir/debs"
}

# The layout of NVIDIA's archives, which nvcc and CMake expect.
assemble() {
    local to=$dir/toolkit from=$dir/unpacked/nvidia
    rm -rf "$to"
    mkdir -p "$to/bin" "$to/nvvm/bin" "$to/nvvm/libdevice" "$to/include" "$to/lib64"
    cp "$dir/deb/usr/lib/nvidia-cuda-toolkit/bin/nvcc" "$to/bin"
    cp -r "$dir/deb/usr/lib/nvidia-cuda-toolkit/bin/crt" "$to/bin"
    for tool in cudafe++ ptxas fatbinary nvlink bin2c cuobjdump __nvcc_device_query; do cp "$dir/deb/usr/bin/$tool" "$to/bin"; done
    cp "$dir/deb/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$to/nvvm/bin"
    cp "$dir"/deb/usr/lib/nvidia-cuda-toolkit/libdevice/*.bc "$to/nvvm/libdevice"
    for part in cuda_nvcc cuda_runtime cuda_cccl nvtx curand cublas; do
        cp -r "$from/$part"/include/. "$to/include"
        if [ -d "$from/$part/lib" ]; then cp -rsf "$from/$part"/lib/. "$to/lib64"; fi
    done
    cp "$dir/deb/usr/lib/x86_64-linux-gnu/libcudart_static.a" "$to/lib64"
    cat >"$to/bin/nvcc.profile" <<'EOF'
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/$(_NVVM_BRANCH_)/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(TOP)/$(_NVVM_BRANCH_)/bin:$(_HERE_):
INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
EOF
}

if [ ! -e "$dir/toolkit/complete" ]; then
    python3 -m venv "$dir/venv"
    # shellcheck disable=SC2086
    "$dir/venv/bin/pip" download -q --no-deps --no-cache-dir -d "$dir/wheels" $wheels
    for wheel in "$dir"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$dir/unpacked"; done
    rm -rf "$dir/wheels"
    fetch_nvcc
    assemble
    touch "$dir/toolkit/complete"
fi

cmake -G Ninja -S "$root" -B "$dir/build" -DCRESNET_WITH_CUDA=ON -DCRESNET_WITH_NCCL=ON -DCRESNET_WERROR=ON \
    -DCUDAToolkit_ROOT="$dir/toolkit" -DcuDNN_ROOT="$dir/unpacked/nvidia/cudnn" -DNCCL_ROOT="$dir/unpacked/nvidia/nccl" \
    -DCMAKE_CUDA_ARCHITECTURES="${ARCHS:-80-real;90-real}" >"$dir/cmake.log" 2>&1 || { tail -n 20 "$dir/cmake.log"; exit 1; }
grep -- '-- cresnet' "$dir/cmake.log"

# The program, the library, and the tests of the GPU device that need no GPU: all test programs together would take 20 GB.
tests='^test_(fatbin|cudnn|nccl|offline)_'
# shellcheck disable=SC2046
targets="cresnet libcresnet $(cd "$root/tests" && ls unit/*/test_*.c gpu/test_*.c | sed 's#.*/##; s#\.c$##' | grep -E "$tests" | paste -sd' ')"
start=$SECONDS
# shellcheck disable=SC2086
ninja -j "${JOBS:-2}" -C "$dir/build" $targets >"$dir/build.log" || { grep -E -A8 'error|FAILED' "$dir/build.log" | head -80; exit 1; }
echo "built in $((SECONDS - start)) s"

# The linked program and the library, with the CPU: they must start on machines that have no driver and none of NVIDIA's libraries.
"$dir/build/cresnet" --version | grep -E '^(CUDA|NCCL|device)'
rm -rf "$dir/run"
"$dir/build/cresnet" train "$root/configs/demo.ini" --device cpu --steps 100 -q train.eval_every=0 "data.root=$dir/shapes" -o "$dir/run"
cc -std=c17 -I"$root/include" "$root/examples/classify.c" "$dir/build/libcresnet.so" -Wl,-rpath,"$dir/build" -o "$dir/classify"
"$dir/classify" "$dir/run" "$(find "$dir/shapes" -name '*.png' | sort | head -1)"

code=0
ctest --test-dir "$dir/build" -R "$tests" --output-on-failure >"$dir/ctest.log" || code=1
grep -E '\*\*\*|tests passed' "$dir/ctest.log" || true
awk '/ passed, .* failed, .* skipped/ && $1 ~ /^[0-9]+$/ { p += $1; f += $3; s += $5 }
    END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped" }' "$dir/build/Testing/Temporary/LastTest.log"
exit $code

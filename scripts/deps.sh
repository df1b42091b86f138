# deps.sh: functions that install the dependencies of the build and of the tests. To be sourced by other scripts. Also sets
# GOMP_SPINCOUNT.

# Tests run in parallel: waiting threads must not spin for long. (The program sets this itself; the test programs do not.)
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

debian_packages="gcc libc6-dev cmake ninja-build libiniparser-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libtiff-dev libdnnl-dev libcurl4-openssl-dev python3"
# clang-format: version 14, Debian 12: scripts/check-format.py is skipped without it. libsimde-dev: AVX-512 code on every processor.
# python3-numpy: the tests of the Python package.
test_packages="clang-format libsimde-dev python3-numpy"

# need_packages [NAME...]: installs those Debian packages that are missing; without arguments, all packages that the build needs. Where
# it cannot install packages, it prints what to do.
need_packages() {
    local missing="" package
    [ $# -gt 0 ] || set -- $debian_packages
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "This system is not Debian. Please install these packages or their equivalents: $*"
        return 0
    fi
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    local as_root=""
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null; then as_root=sudo
        else
            echo "Missing packages. Please run as root: apt-get install --no-install-recommends$missing" >&2
            return 1
        fi
    fi
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    if [ -z "${packages_updated:-}" ]; then
        $as_root apt-get -qq update || echo "apt-get update failed; using the existing package lists" >&2
        packages_updated=yes # once in a script
    fi
    # shellcheck disable=SC2086
    if ! $as_root apt-get -qq -y install --no-install-recommends $missing >/dev/null; then
        echo "These packages could not be installed:$missing" >&2
        return 1
    fi
}

# Installs Python packages that tests compare with, where tests/tools/peers.py finds them. Without them these comparisons are skipped.
peers_venv=build/peers-venv
peers="tensorboard onnxruntime openvino pillow scikit-learn faiss-cpu ipykernel mypy pytest tqdm pyarrow"
need_peers() {
    [ "$(cat $peers_venv/complete 2>/dev/null)" != "$peers" ] || return 0
    need_packages python3 python3-venv || return 1
    rm -rf $peers_venv
    mkdir -p build
    # shellcheck disable=SC2086
    if ! { python3 -m venv $peers_venv && timeout 600 $peers_venv/bin/pip install --disable-pip-version-check --no-cache-dir --no-compile --retries 2 \
        --timeout 30 $peers; } >build/peers-fetch.log 2>&1; then
        echo "peers: $peers are not installed and could not be downloaded: $(tail -1 build/peers-fetch.log)"
        return 1
    fi
    echo "$peers" >$peers_venv/complete
}

# The CUDA toolkit and cuDNN as pip wheels, in the versions that cresnet is developed with: compiler and headers, the runtime, and
# the libraries that the program opens when it uses a GPU.
cuda_wheels="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
nvidia-cuda-cccl==13.0.* nvidia-cuda-nvrtc==13.0.* nvidia-nvtx==13.0.* nvidia-curand==10.4.0.* nvidia-cublas==13.1.0.*
nvidia-cudnn-cu13==9.19.*"
cuda_venv=build/cuda-venv

# cuda_configures OPTIONS...: returns 0 if CMake finds everything that the GPU device needs; otherwise the reason is in cuda_why.
cuda_configures() {
    local log=build/cuda-probe.log
    mkdir -p build
    rm -rf build/cuda-probe
    cmake -G Ninja -S "$root" -B build/cuda-probe -DBUILD_TESTING=OFF "$@" >"$log" 2>&1 && return 0
    cuda_why=$(tr '\n' ' ' <"$log" | tr -s ' ' | sed -n 's/.*CRESNET_WITH_CUDA=ON, but \(.*\) Call Stack.*/\1/p')
    [ -n "$cuda_why" ] || cuda_why="CMake fails, see $log"
    return 1
}

cuda_fetch() {
    if [ -f $cuda_venv/complete ] && [ "$(cat $cuda_venv/complete)" = "$cuda_wheels" ]; then return 0; fi
    echo "downloading NVIDIA's wheels into $cuda_venv: compiler, cuDNN, cuBLAS (1 GB download, 1.5 GB on disk)"
    local start=$SECONDS
    rm -rf $cuda_venv
    need_packages python3 python3-venv || return 1
    # shellcheck disable=SC2086
    if ! { python3 -m venv $cuda_venv && timeout 1200 $cuda_venv/bin/pip install --disable-pip-version-check --no-cache-dir --no-compile \
        --no-deps --retries 2 --timeout 30 $cuda_wheels; } >build/cuda-fetch.log 2>&1; then
        tail -1 build/cuda-fetch.log
        return 1
    fi
    printf '%s' "$cuda_wheels" >$cuda_venv/complete
    echo "downloaded in $((SECONDS - start)) s"
}

# Finds a CUDA toolkit with cuDNN on the machine, or downloads NVIDIA's wheels. Sets cuda_options for CMake. If there is no toolkit, prints
# the reason, sets cuda_options to a build without CUDA and returns 1.
#   CRESNET_TEST_CUDA=no   builds without CUDA and downloads nothing
need_cuda() {
    cuda_options=-DCRESNET_WITH_CUDA=OFF
    cuda_why=""
    if [ "${CRESNET_TEST_CUDA:-}" = no ]; then
        echo "CUDA: not built, CRESNET_TEST_CUDA=no"
        return 1
    fi
    if ! need_packages g++; then
        echo "CUDA: not built, nvcc needs g++"
        return 1
    fi
    if cuda_configures -DCRESNET_WITH_CUDA=ON; then
        cuda_options=-DCRESNET_WITH_CUDA=ON
        return 0
    fi
    echo "CUDA: $cuda_why"
    if [ "$(uname -m)" != x86_64 ] || ! cuda_fetch; then
        echo "CUDA: not built, the toolkit is not installed and could not be downloaded"
        return 1
    fi
    local toolkit
    toolkit=$(echo "$root/$cuda_venv"/lib/python3*/site-packages/nvidia/cu13)
    if ! cuda_configures -DCRESNET_WITH_CUDA=ON -DCUDAToolkit_ROOT="$toolkit"; then
        echo "CUDA: not built, the downloaded toolkit does not work: $cuda_why"
        return 1
    fi
    cuda_options="-DCRESNET_WITH_CUDA=ON -DCUDAToolkit_ROOT=$toolkit"
}

# build DIR OPTIONS...: configures and builds the tree (only the targets in build_target, if set). Prints errors only.
build() {
    local dir=$1 log
    shift
    log=$dir/build.log
    mkdir -p "$dir"
    if ! cmake -G Ninja -S "$root" -B "$dir" "$@" >"$log" 2>&1; then
        tail -30 "$log" >&2
        return 1
    fi
    grep -- '-- cresnet' "$log"
    # shellcheck disable=SC2086
    if ! cmake --build "$dir" ${build_target:+--target $build_target} >>"$log" 2>&1; then
        grep -E -A8 'error|FAILED' "$log" | head -80 >&2
        return 1
    fi
}

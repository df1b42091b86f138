# deps.sh: installs what the build and the tests need. To be sourced; sets functions, and how threads wait.

# Tests run side by side: threads that wait must not spin for long (see wait_politely in src/cresnet.c, which the test programs
# lack).
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

debian_packages="gcc libc6-dev cmake ninja-build libiniparser-dev libpng-dev libjpeg62-turbo-dev libdnnl-dev python3"
test_packages="clang-format" # version 14, Debian 12: scripts/check-format.py is skipped without it

# Installs the Debian packages that are missing, by name; without arguments, all that the build needs. Says what to do where
# that cannot be done.
need_packages() {
    local missing="" package
    [ $# -gt 0 ] || set -- $debian_packages
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "This is no Debian: please see to it that these packages, or their like, are there: $*"
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
    $as_root apt-get -qq update || echo "apt-get update failed; trying with the lists that are there" >&2
    # shellcheck disable=SC2086
    if ! $as_root apt-get -qq -y install --no-install-recommends $missing >/dev/null; then
        echo "These packages could not be installed:$missing" >&2
        return 1
    fi
}

# Python packages that tests compare with, as tests/tools/peers.py finds them. Without them those comparisons are skipped.
peers_venv=build/peers-venv
need_peers() {
    [ ! -f $peers_venv/complete ] || return 0
    need_packages python3 python3-venv || return 1
    rm -rf $peers_venv
    mkdir -p build
    if ! { python3 -m venv $peers_venv && timeout 600 $peers_venv/bin/pip install --disable-pip-version-check --no-cache-dir --retries 2 \
        --timeout 30 tensorboard onnxruntime; } >build/peers-fetch.log 2>&1; then
        echo "peers: tensorboard and onnxruntime are not here and could not be fetched: $(tail -1 build/peers-fetch.log)"
        return 1
    fi
    touch $peers_venv/complete
}

# The CUDA toolkit and cuDNN as pip wheels, in the versions that cresnet is made with: compiler and headers, the runtime, and
# the libraries that the program opens when it uses a GPU.
cuda_wheels="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
nvidia-cuda-cccl==13.0.* nvidia-cuda-nvrtc==13.0.* nvidia-nvtx==13.0.* nvidia-curand==10.4.0.* nvidia-cublas==13.1.0.*
nvidia-cudnn-cu13==9.19.*"
cuda_venv=build/cuda-venv

# Does CMake find all that the GPU device needs? The reason why not goes to cuda_why.
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
    echo "fetching NVIDIA's wheels into $cuda_venv: compiler, cuDNN, cuBLAS (1 GB to fetch, 1.5 GB on disk)"
    local start=$SECONDS
    rm -rf $cuda_venv
    need_packages python3 python3-venv || return 1
    # shellcheck disable=SC2086
    if ! { python3 -m venv $cuda_venv && timeout 1200 $cuda_venv/bin/pip install --disable-pip-version-check --no-cache-dir \
        --no-deps --retries 2 --timeout 30 $cuda_wheels; } >build/cuda-fetch.log 2>&1; then
        tail -1 build/cuda-fetch.log
        return 1
    fi
    printf '%s' "$cuda_wheels" >$cuda_venv/complete
    echo "fetched in $((SECONDS - start)) s"
}

# Sees to a CUDA toolkit with cuDNN: the machine's own, else NVIDIA's wheels. Sets cuda_options, for CMake. Returns 1 where none
# can be had, after a line that says why; cuda_options then build without.
#   CRESNET_TEST_CUDA=no   does not even try
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
        echo "CUDA: not built, the toolkit is not here and could not be fetched"
        return 1
    fi
    local toolkit
    toolkit=$(echo "$root/$cuda_venv"/lib/python3*/site-packages/nvidia/cu13)
    if ! cuda_configures -DCRESNET_WITH_CUDA=ON -DCUDAToolkit_ROOT="$toolkit"; then
        echo "CUDA: not built, the fetched toolkit does not do: $cuda_why"
        return 1
    fi
    cuda_options="-DCRESNET_WITH_CUDA=ON -DCUDAToolkit_ROOT=$toolkit"
}

# build DIR OPTIONS...: configures and builds the tree, or of it only the targets that build_target names; prints errors only.
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

#!/usr/bin/env bash
# mlperf.sh SCENARIO [OPTIONS]: measures serving with MLPerf's load generator and prints its official summary.
# SCENARIO is Offline, Server or SingleStream. `mlperf.sh build` only downloads and builds, for a machine without network.
#   --run RUN          run folder, checkpoint or .safetensors file (default: a ResNet-50 with random weights, made here)
#   --data DIR         images: DIR/val/CLASS/*, or DIR/CLASS/* (default: 1,024 random images)
#   --accuracy         accuracy mode: every image of DIR once; prints the accuracy
#   --device D         cpu, cuda or cuda:N (default: cuda when the build and the machine have it)
#   --precision P      fp32, tf32, fp16 or bf16 (default: fp16 on a GPU, fp32 on a CPU)
#   --batch N          images of a batch (default: 256 on a GPU, 8 on a CPU; SingleStream: 1)
#   --streams N        models, each with a CUDA stream (default on a GPU: Offline 2, Server 4; else 1)
#   --calls N          batches that a model has at the same time; the next one is ready when one ends (default: Offline on a GPU 2, else 1)
#   --issue-threads N  Server: threads of LoadGen that issue queries (default: 8 if the machine has 16 processors or more, else 1)
#   --deadline-ms X    Server: the longest time that a request waits for its batch to be full (default: 8)
#   --seconds N        least duration of the measurement (default: 120; MLPerf's rules: 600)
#   --qps N            Server: requests a second; Offline: expected images a second (default: from a short measurement)
#   --out DIR          folder for the logs (default: build/loadgen/SCENARIO)
# Environment:
#   BUILD              build folder of cresnet with libcresnet.so (default: build/gpu for --device cuda if it exists, else build)
#   LOADGEN            folder of LoadGen and of the adapter (default: build/loadgen). Its file mlcommons_loadgen-*.tar.gz is used
#                      when it exists; without it, pip downloads the version in tools/loadgen/requirements.txt.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }
fail() { echo "mlperf.sh: error: $*" >&2; exit 1; }

scenario=${1:-}
case $scenario in
    Offline | Server | SingleStream | build) shift ;;
    -h | --help) usage; exit 0 ;;
    "") usage >&2; exit 2 ;;
    *) echo "mlperf.sh: error: unknown scenario \"$scenario\": give Offline, Server or SingleStream" >&2; exit 2 ;;
esac

run="" data="" device="" out="" accuracy="" pass=""
while [ $# -gt 0 ]; do
    name=$1 value=""
    shift
    case $name in
        --accuracy) accuracy=yes; continue ;;
        -h | --help) usage; exit 0 ;;
        --*=*) value=${name#*=} name=${name%%=*} ;;
        --*) [ $# -gt 0 ] || { echo "mlperf.sh: error: $name: the value is missing" >&2; exit 2; }; value=$1; shift ;;
    esac
    case $name in
        --run) run=$value ;;
        --data) data=$value ;;
        --device) device=$value ;;
        --out) out=$value ;;
        --precision | --batch | --streams | --calls | --issue-threads | --deadline-ms | --seconds | --qps)
            case $value in "" | *[!a-z0-9.]*) echo "mlperf.sh: error: $name \"$value\": give a value" >&2; exit 2 ;; esac
            pass="$pass $name $value" ;;
        *) echo "mlperf.sh: error: unknown option $name; scripts/mlperf.sh --help lists the options" >&2; exit 2 ;;
    esac
done
[ -z "$accuracy" ] || [ -n "$data" ] || { echo "mlperf.sh: error: --accuracy needs images with labels: give --data DIR" >&2; exit 2; }
[ -z "$run" ] || [ -e "$run" ] || fail "--run $run: no such file or folder"
[ -z "$data" ] || [ -d "$data" ] || fail "--data $data: no such folder"
for path in run data out; do # relative to the caller's folder
    case ${!path} in "" | /*) ;; *) printf -v "$path" '%s/%s' "$PWD" "${!path}" ;; esac
done
loadgen=${LOADGEN:-$root/build/loadgen}

# ---- cresnet ----

if [ -z "${BUILD:-}" ]; then
    BUILD=$root/build
    case $device in cuda*) [ ! -x "$root/build/gpu/cresnet" ] || BUILD=$root/build/gpu ;; esac
fi
BUILD=$(cd "$BUILD" 2>/dev/null && pwd) || fail "no build of cresnet: cmake -G Ninja -B build && ninja -C build, or set BUILD to its folder"
[ -f "$BUILD/libcresnet.so" ] || fail "$BUILD has no libcresnet.so: run ninja -C $BUILD libcresnet.so, or set BUILD to another build folder"
if [ -z "$device" ]; then
    case $("$BUILD/cresnet" --version 2>/dev/null | grep '^device cuda ') in
        "" | *"not available"* | *"cannot be opened"*) device=cpu ;;
        *) device=cuda ;;
    esac
fi

# ---- LoadGen and the adapter ----

mkdir -p "$loadgen"
if ! ls "$loadgen"/mlcommons_loadgen-*.tar.gz >/dev/null 2>&1; then
    command -v python3 >/dev/null || fail "python3 is not installed: pip downloads LoadGen"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip (Debian: python3-pip); pip downloads LoadGen"
    echo "downloading LoadGen with pip into $loadgen"
    python3 -m pip download --no-binary mlcommons-loadgen --no-deps --require-hashes -r "$root/tools/loadgen/requirements.txt" \
        --retries 2 --timeout 30 -d "$loadgen" >"$loadgen/fetch.log" 2>&1 ||
        fail "pip cannot download LoadGen ($(grep -i error "$loadgen/fetch.log" | tail -n 1)): on a machine without network, copy" \
            "mlcommons_loadgen-*.tar.gz from $loadgen of another machine to $loadgen"
fi
if [ ! -f "$loadgen/source/loadgen.h" ]; then
    rm -rf "$loadgen/source" "$loadgen/source.tmp"
    mkdir "$loadgen/source.tmp"
    tar -xzf "$(ls "$loadgen"/mlcommons_loadgen-*.tar.gz | tail -n 1)" -C "$loadgen/source.tmp" --strip-components=1 --no-same-owner ||
        fail "$loadgen/mlcommons_loadgen-*.tar.gz is damaged: remove it, and call the script again"
    mv "$loadgen/source.tmp" "$loadgen/source"
fi
command -v cmake >/dev/null || fail "cmake is not installed"
command -v "${CXX:-c++}" >/dev/null || fail "no C++ compiler: install g++, or set CXX"
{
    cmake -S "$root/tools/loadgen" -B "$loadgen/build" -DLOADGEN_SOURCE="$loadgen/source" -DCRESNET_BUILD="$BUILD" &&
        cmake --build "$loadgen/build" -j "$(nproc)"
} >"$loadgen/build.log" 2>&1 || fail "the adapter cannot be built: $(grep -i -m 1 error "$loadgen/build.log"); see $loadgen/build.log"
[ "$scenario" != build ] || { echo "built $loadgen/build/cresnet-loadgen"; exit 0; }

# ---- the network ----

# Two steps with learning rate 0: random weights, with the running statistics of random images.
if [ -z "$run" ]; then
    run=$loadgen/random-resnet50
    if [ ! -e "$run/last" ]; then
        rm -rf "$run"
        "$BUILD/cresnet" train "$root/configs/resnet50.ini" data.kind=synthetic data.train_images=8 data.val_images=4 data.workers=1 \
            train.eval_batch=4 -b 4 --steps 2 --lr 0 --device cpu -o "$run" -q >"$loadgen/random.log" 2>&1 ||
            fail "the network with random weights cannot be made: $(tail -n 1 "$loadgen/random.log")"
    fi
    echo "no --run: a ResNet-50 with random weights. The speed does not depend on their values, the answers mean nothing."
fi

# ---- the measurement ----

out=${out:-$loadgen/$scenario}
mkdir -p "$out" || fail "--out $out: cannot be made"
rm -f "$out"/mlperf_log_*.txt "$out"/mlperf_log_*.json
# shellcheck disable=SC2086
"$loadgen/build/cresnet-loadgen" --scenario "$scenario" --run "$run" ${data:+--data "$data"} --device "$device" --out "$out" \
    ${accuracy:+--accuracy} $pass
if [ -n "$accuracy" ]; then
    python3 "$root/tools/loadgen/accuracy.py" "$out"
else
    [ -s "$out/mlperf_log_summary.txt" ] || fail "LoadGen wrote no summary; see $out/mlperf_log_detail.txt"
    cat "$out/mlperf_log_summary.txt"
fi
echo "logs: $out"

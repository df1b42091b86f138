#!/usr/bin/env bash
# bench-cpu.sh: training steps and inference on this CPU, cresnet against PyTorch, onnxruntime and OpenVINO, in turn. Prints the processor,
# its peak in multiply-adds, and for each row the medians and the ratio to the fastest peer: see scripts/bench_cpu.py.
#   scripts/bench-cpu.sh [ROUNDS] [TEXT]     rounds (3); only the rows whose title has TEXT: training, "resnet50 int8", "batch 1"
#   CRESNET_CPU    avx2: as a processor without AVX-512 would run them (onnxruntime cannot be lowered)
#   CRESNET_BIN (build/cresnet), STEPS (10), THREADS (all cores), PYTHON (a python3 with torch, onnxruntime, onnx and openvino; default:
#   a venv in build/peers-cpu, which the first call fills by pip)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${CRESNET_BIN:-$root/build/cresnet}
threads=${THREADS:-$(nproc)}
[ -x "$bin" ] || { echo "bench-cpu.sh: $bin does not exist: run scripts/demo.sh, or set CRESNET_BIN" >&2; exit 1; }
python=${PYTHON:-$root/build/peers-cpu/bin/python}
if [ ! -x "$python" ]; then
    python3 -m venv "$root/build/peers-cpu"
    "$python" -m pip install -q torch numpy onnx onnxruntime openvino
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Multiply-adds on one core and on all, GFLOP/s: with the widest vectors of the level.
cat >"$work/peak.c" <<'C'
#include <stdio.h>
#include <time.h>
typedef float vector __attribute__((vector_size(BYTES)));
int main(void) {
    double best = 1e9;
    for (int r = 0; r < 20; r++) {
        struct timespec a, b;
        vector          sum[12] = {{0}}, x = sum[0] + 1, y = sum[0] + 0.5f;
        clock_gettime(CLOCK_MONOTONIC, &a);
#pragma omp parallel firstprivate(sum)
        {
            for (int i = 0; i < 2000000; i++)
#pragma GCC unroll 12
                for (int j = 0; j < 12; j++) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum[j]) : "x"(x), "x"(y));
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (seconds < best) best = seconds;
    }
    printf("%.0f\n", 2e6 * 12 * 2 * sizeof(vector) / sizeof(float) * THREADS / best * 1e-9);
}
C
flags="-mavx2 -mfma" bytes=32
if grep -qw avx512f /proc/cpuinfo && [ "${CRESNET_CPU:-avx512}" = avx512 ]; then flags="-mavx512f" bytes=64; fi
for n in 1 "$threads"; do
    # shellcheck disable=SC2086
    cc -O2 -fopenmp $flags -DBYTES=$bytes -DTHREADS="$n" -o "$work/peak" "$work/peak.c"
    echo "peak of $n thread(s): $(OMP_NUM_THREADS=$n "$work/peak") GFLOP/s"
done
"$bin" --version | grep -m1 '^device cpu' || true
"$python" "$root/scripts/bench_cpu.py" --program "$bin" --rounds "${1:-3}" --only "${2:-}" --steps "${STEPS:-10}" --threads "$threads" \
    --level "${CRESNET_CPU:-}"

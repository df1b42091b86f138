#!/usr/bin/env bash
# bench-cpu.sh: training steps and inference on this CPU, cresnet against PyTorch, onnxruntime and OpenVINO, in turn. Prints the processor,
# its peak in multiply-adds, and for each row the medians and the ratio to the fastest peer: see scripts/bench_cpu.py.
#   scripts/bench-cpu.sh [ROUNDS] [TEXT]     rounds (3); only the rows whose title has TEXT: training, bf16, "resnet50 int8", "batch 1"
#   CRESNET_CPU    avx2, avx2_vnni: as a processor without AVX-512 would run them. A library hides the other instructions from the peers,
#                  where the system lets CPUID fault (Intel; cpuid_fault in /proc/cpuinfo); elsewhere onnxruntime cannot be lowered. PyTorch has
#                  variables for it
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

# A library whose process sees a processor without AVX-512, AMX and, unless the level is avx2_vnni, AVX-VNNI: CPUID faults, and the
# handler of the signal answers.
cat >"$work/hide.c" <<'C'
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
static int vnni;
static void hide(uint32_t leaf, uint32_t subleaf, uint32_t r[4]) {
    if (leaf == 7 && subleaf == 0) {
        r[1] &= ~0xdc230000u;                                         /* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
        r[2] &= ~0x00005842u;                                         /* VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
        r[3] &= ~0x03c0010cu;                                         /* 4VNNIW, 4FMAPS, VP2INTERSECT, FP16, AMX */
    }
    if (leaf == 7 && subleaf == 1) r[0] &= vnni ? ~0x00200020u : ~0x00a00030u; /* AVX512-BF16, AMX-FP16; AVX-VNNI, AVX-IFMA */
    if (leaf == 7 && subleaf == 1 && !vnni) r[3] = 0;
    if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) memset(r, 0, 16);
}
static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t        *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)g[REG_RIP];
    uint32_t       r[4], leaf = (uint32_t)g[REG_RAX], subleaf = (uint32_t)g[REG_RCX];
    (void)signal_number, (void)info;
    if (at[0] != 0x0f || at[1] != 0xa2) {
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(subleaf));
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    hide(leaf, subleaf, r);
    g[REG_RAX] = r[0], g[REG_RBX] = r[1], g[REG_RCX] = r[2], g[REG_RDX] = r[3];
    g[REG_RIP] += 2;
}
__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    const char      *level  = getenv("CRESNET_CPU");
    vnni                    = level && strcmp(level, "avx2_vnni") == 0;
    sigaction(SIGSEGV, &action, NULL);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}
C
hide=
case ${CRESNET_CPU:-} in avx2 | avx2_vnni)
    if grep -qw cpuid_fault /proc/cpuinfo; then
        cc -O2 -shared -fPIC -o "$work/hide.so" "$work/hide.c"
        hide=$work/hide.so
    else
        echo "the instructions beyond $CRESNET_CPU cannot be hidden from onnxruntime here"
    fi ;;
esac
"$bin" --version | grep -m1 '^device cpu' || true
"$python" "$root/scripts/bench_cpu.py" --program "$bin" --rounds "${1:-3}" --only "${2:-}" --steps "${STEPS:-10}" --threads "$threads" \
    --level "${CRESNET_CPU:-}" --hide "$hide"

/* core/cpu.h: what this process may use of its machine: vector instructions, cores, memory. The only place that
 * queries the processor or the system for these; every other file calls these functions.
 *
 * Levels
 *   - baseline: x86-64 with SSE2; on other architectures the only level
 *   - avx2: AVX2, FMA, F16C and BMI2 (Intel since Haswell, AMD since Excavator and Zen)
 *   - avx512: AVX-512 F, BW, DQ and VL (Skylake-X, Zen 4)
 * CRESNET_CPU=baseline|avx2|avx2_vnni|avx512 lowers the level of the whole process: for tests, and to compare machines.
 * Kernels that need more than a level call cr_cpu_has. A feature belongs to a level: at a lower level it is absent.
 * avx2_vnni is the level avx2 with AVX-VNNI (Intel since Alder Lake), which the word avx2 leaves out.
 *
 * All functions may be called by any thread. */
#ifndef CR_CPU_INFO_H
#define CR_CPU_INFO_H

#include "core/base.h"

#include <stdatomic.h>

enum cr_cpu_level { CR_CPU_BASELINE, CR_CPU_AVX2, CR_CPU_AVX512 };
enum cr_cpu_feature {
    CR_CPU_SSE42,       /* CRC-32C instruction; level avx2 */
    CR_CPU_AVX_VNNI,    /* 8-bit dot products of 256 bits; level avx2 */
    CR_CPU_AVX512_VBMI, /* byte permutation; level avx512 */
    CR_CPU_AVX512_VNNI, /* 8-bit and 16-bit dot products; level avx512 */
    CR_CPU_AMX_BF16,    /* products of bf16 matrices (AMX), and AVX512-BF16; level avx512 */
};

/* ---- instructions ---- */

/* Reads CRESNET_CPU and fixes the level. CR_ERR_CONFIG: the variable has an unknown word. CR_ERR_DEVICE: it names a
 * level that this processor lacks. Until the variable is corrected, the level is then the processor's. The program
 * calls this at its start, the library at each open. Otherwise the first call of another function reads it. */
cr_status cr_cpu_check(void) CR_MUST;
bool      cr_cpu_has(enum cr_cpu_feature feature);
/* What the processor has, without regard to CRESNET_CPU. */
enum cr_cpu_level cr_cpu_processor_level(void);
const char       *cr_cpu_level_name(enum cr_cpu_level level);
const char       *cr_cpu_text(void); /* "avx512", or "avx2 (CRESNET_CPU; the processor has avx512)" */
/* For tests: changes the level while no kernel runs. Returns false, and changes nothing, if the processor lacks it.
 * oneDNN keeps the level that it was first used with. */
bool cr_cpu_set_level(enum cr_cpu_level level);
/* For tests: cr_cpu_has returns false for this feature, as on a processor without it, until it is called again. */
void cr_cpu_hide(enum cr_cpu_feature feature, bool hidden);

/* Private to cr_cpu_level, which runs in inner loops: the level plus 1; 0 before it is fixed. */
extern atomic_int cr_cpu_fixed_level_plus_1;
enum cr_cpu_level cr_cpu_fix_level(void);

/* The level in use. */
static inline enum cr_cpu_level cr_cpu_level(void) {
    const int fixed = atomic_load_explicit(&cr_cpu_fixed_level_plus_1, memory_order_relaxed);
    return fixed ? (enum cr_cpu_level)(fixed - 1) : cr_cpu_fix_level();
}

/* Defines a static function whose body follows the macro, compiled once for each level. Each call runs the version of
 * the level in use. `parameters` and `arguments` are the parameters in parentheses, with and without their types:
 *
 *     CR_BY_LEVEL(void, negate, (const float *x, float *y, int64_t count), (x, y, count)) {
 *         for (int64_t i = 0; i < count; i++) y[i] = -x[i];
 *     }
 *
 * Functions that the body calls must be inline, too; otherwise they are those of the baseline. CR_BY_LEVEL_AVX2 has no
 * version of its own for avx512: for bytes, whose 512-bit instructions belong to AVX-512 BW. */
#if defined(__x86_64__)
#define CR_VERSION_OF_(result, name, level, parameters, arguments)                                                     \
    __attribute__((target(#level))) static result name##_##level parameters {                                          \
        return name##_body arguments;                                                                                  \
    }
#define CR_BY_LEVEL_AVX2(result, name, parameters, arguments)                                                          \
    static inline __attribute__((always_inline)) result name##_body parameters;                                        \
    CR_VERSION_OF_(result, name, avx2, parameters, arguments)                                                          \
    static result name parameters {                                                                                    \
        if (cr_cpu_level() >= CR_CPU_AVX2) return name##_avx2 arguments;                                               \
        return name##_body arguments;                                                                                  \
    }                                                                                                                  \
    static inline __attribute__((always_inline)) result name##_body parameters
#define CR_BY_LEVEL(result, name, parameters, arguments)                                                               \
    static inline __attribute__((always_inline)) result name##_body parameters;                                        \
    CR_VERSION_OF_(result, name, avx512f, parameters, arguments)                                                       \
    CR_VERSION_OF_(result, name, avx2, parameters, arguments)                                                          \
    static result name parameters {                                                                                    \
        const enum cr_cpu_level level_ = cr_cpu_level();                                                               \
        if (level_ == CR_CPU_AVX512) return name##_avx512f arguments;                                                  \
        if (level_ == CR_CPU_AVX2) return name##_avx2 arguments;                                                       \
        return name##_body arguments;                                                                                  \
    }                                                                                                                  \
    static inline __attribute__((always_inline)) result name##_body parameters
#else
#define CR_BY_LEVEL_AVX2(result, name, parameters, arguments) static result name parameters
#define CR_BY_LEVEL(result, name, parameters, arguments) static result name parameters
#endif

/* ---- cores and memory ---- */

/* Cores that this process may use: its affinity mask, bounded by the CPU quota of its control groups (v1 and v2; 2.5
 * cores count as 3). At least 1. */
int cr_cpu_cores(void);
/* Bytes that this process can allocate before the system runs out of memory or kills it: MemAvailable, bounded by what
 * the memory limits of its control groups leave (v1 and v2, all ancestors; file caches count as free). 0: unknown. */
size_t cr_cpu_memory_free(void);

#endif

/* core/cpu.h: what this process may use of its machine: vector instructions, cores, memory. The only place that asks
 * the processor or the system for these; every other file calls these functions.
 *
 * Levels
 *   - baseline: x86-64 with SSE2; on other architectures the only level
 *   - avx2: AVX2, FMA, F16C and BMI2 (Intel since Haswell, AMD since Excavator and Zen)
 *   - avx512: AVX-512 F, BW, DQ and VL (Skylake-X, Zen 4)
 * CRESNET_CPU=baseline|avx2|avx512 lowers the level of the whole process: for tests, and to compare machines. Kernels
 * that need more than a level ask for a feature. A feature belongs to a level: at a lower level it is absent.
 *
 * All functions may be called by any thread. */
#ifndef CR_CPU_INFO_H
#define CR_CPU_INFO_H

#include "core/base.h"

enum cr_cpu_level { CR_CPU_BASELINE, CR_CPU_AVX2, CR_CPU_AVX512 };
enum cr_cpu_feature {
    CR_CPU_SSE42,       /* CRC-32C instruction; level avx2 */
    CR_CPU_AVX512_VBMI, /* byte permutation; level avx512 */
    CR_CPU_AVX512_VNNI, /* 8-bit and 16-bit dot products; level avx512 */
};

/* ---- instructions ---- */

/* Reads CRESNET_CPU. CR_ERR_CONFIG: the variable has an unknown word, or a level that this processor lacks; the level
 * is then the processor's. Without this call, the first call of another function does the same and ignores the error:
 * a program calls this at its start, the library at each open. */
cr_status         cr_cpu_check(void) CR_MUST;
enum cr_cpu_level cr_cpu_level(void); /* the level in use */
bool              cr_cpu_has(enum cr_cpu_feature feature);
const char       *cr_cpu_level_name(enum cr_cpu_level level);
const char       *cr_cpu_text(void); /* "avx512", or "avx2 (CRESNET_CPU; the processor has avx512)" */
/* For tests: changes the level while no kernel runs. Returns false, and changes nothing, if the processor lacks it. */
bool cr_cpu_set_level(enum cr_cpu_level level);

/* ---- cores and memory ---- */

/* Cores that this process may use: its affinity mask, bounded by the CPU quota of its control groups (v1 and v2; 2.5
 * cores count as 3). At least 1. */
int cr_cpu_cores(void);
/* Bytes that this process can allocate before the system runs out of memory or kills it: MemAvailable, bounded by what
 * the memory limits of its control groups leave (v1 and v2, all ancestors; file caches count as free). 0: unknown. */
size_t cr_cpu_memory_free(void);

#endif

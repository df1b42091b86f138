/* core/cpu.c: the vector instructions that this process may use. See core/cpu.h. */
#include "core/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { LEVELS = CR_CPU_AVX512 + 1 };

static const char *const level_names[LEVELS] = {"baseline", "avx2", "avx512"};

/* [level in use][level of the processor] */
static const char *const texts[LEVELS][LEVELS] = {
    {"baseline", "baseline (CRESNET_CPU; the processor has avx2)", "baseline (CRESNET_CPU; the processor has avx512)"},
    {"", "avx2", "avx2 (CRESNET_CPU; the processor has avx512)"},
    {"", "", "avx512"}};

atomic_int cr_cpu_fixed_level_plus_1;

#if defined(__x86_64__)
/* __builtin_cpu_supports knows this feature from GCC 11 on only, and not in clang 14. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

enum cr_cpu_level cr_cpu_processor_level(void) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2") ||
        !has_f16c())
        return CR_CPU_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return CR_CPU_AVX2;
    return CR_CPU_AVX512;
}

bool cr_cpu_has(enum cr_cpu_feature feature) {
    const enum cr_cpu_level level = cr_cpu_level();
    switch (feature) {
    case CR_CPU_SSE42: return level >= CR_CPU_AVX2 && __builtin_cpu_supports("sse4.2");
    case CR_CPU_AVX512_VBMI: return level >= CR_CPU_AVX512 && __builtin_cpu_supports("avx512vbmi");
    case CR_CPU_AVX512_VNNI: return level >= CR_CPU_AVX512 && __builtin_cpu_supports("avx512vnni");
    case CR_CPU_AVX512_VPCLMUL: return level >= CR_CPU_AVX512 && __builtin_cpu_supports("vpclmulqdq");
    }
    return false;
}
#else
enum cr_cpu_level cr_cpu_processor_level(void) {
    return CR_CPU_BASELINE;
}
bool cr_cpu_has(enum cr_cpu_feature feature) {
    (void)feature;
    return false;
}
#endif

/* The value of CRESNET_CPU; NULL without one. *level: the level that it names, the processor's without a value; LEVELS
 * if it names none. */
static const char *read_variable(int *level) {
    const char *word = getenv("CRESNET_CPU");
    *level           = (int)cr_cpu_processor_level();
    if (!word || !*word) return NULL;
    *level = 0;
    while (*level < LEVELS && strcmp(word, level_names[*level]) != 0) ++*level;
    return word;
}

static void fix(int level) {
    int unknown = 0;
    atomic_compare_exchange_strong(&cr_cpu_fixed_level_plus_1, &unknown, level + 1);
}

cr_status cr_cpu_check(void) {
    int         level, has = (int)cr_cpu_processor_level();
    const char *word = read_variable(&level);
    if (level == LEVELS)
        return CR_FAIL(CR_ERR_CONFIG, "CRESNET_CPU=%.40s: give baseline, avx2 or avx512; this processor has %s", word,
                       level_names[has]);
    if (level > has)
        return CR_FAIL(CR_ERR_DEVICE, "CRESNET_CPU=%s: this processor has only %s; give that, or unset the variable",
                       word, level_names[has]);
    fix(level);
    return CR_OK;
}

enum cr_cpu_level cr_cpu_fix_level(void) {
    int level, has = (int)cr_cpu_processor_level();
    (void)read_variable(&level);
    if (level > has) return (enum cr_cpu_level)has;
    fix(level);
    return cr_cpu_level();
}

bool cr_cpu_set_level(enum cr_cpu_level level) {
    if (level > cr_cpu_processor_level()) return false;
    atomic_store(&cr_cpu_fixed_level_plus_1, (int)level + 1);
    return true;
}

const char *cr_cpu_level_name(enum cr_cpu_level level) {
    return level_names[level];
}

const char *cr_cpu_text(void) {
    return texts[cr_cpu_level()][cr_cpu_processor_level()];
}

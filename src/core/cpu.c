/* core/cpu.c: the vector instructions (AVX2, AVX-512, AMX) that this process may use (CRESNET_CPU); see core/cpu.h. */
#include "core/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* The words of CRESNET_CPU: a level, with AVX-VNNI or without. */
enum { BASELINE, AVX2, AVX2_VNNI, AVX512, WORDS };
static const struct {
    const char       *name;
    enum cr_cpu_level level;
} words[WORDS] = {
    {"baseline", CR_CPU_BASELINE}, {"avx2", CR_CPU_AVX2}, {"avx2_vnni", CR_CPU_AVX2}, {"avx512", CR_CPU_AVX512}};

#define OF_(word, processor) #word " (CRESNET_CPU; the processor has " #processor ")"
/* [word that describes what is in use][word that describes the processor] */
static const char *const texts[WORDS][WORDS] = {
    {"baseline", OF_(baseline, avx2), OF_(baseline, avx2_vnni), OF_(baseline, avx512)},
    {"", "avx2", OF_(avx2, avx2_vnni), OF_(avx2, avx512)},
    {"", "", "avx2_vnni", OF_(avx2_vnni, avx512)},
    {"", "", "", "avx512"}};

static atomic_uint hidden; /* a bit for each feature */

atomic_int cr_cpu_fixed_level_plus_1;

#if defined(__x86_64__)
/* __builtin_cpu_supports knows these two from GCC 11 and 12 on only, and not in clang 14. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Asked once: in a virtual machine the instruction takes microseconds. */
static bool has_avx_vnni(void) {
    static atomic_int known; /* 1: no, 2: yes */
    unsigned          a = 0, b, c, d;
    if (!atomic_load_explicit(&known, memory_order_relaxed))
        atomic_store(&known, __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) ? 2 : 1);
    return atomic_load_explicit(&known, memory_order_relaxed) == 2;
}

/* Linux saves tiles, 8 KiB of each thread, only for processes that have asked for that (since 5.16). */
static bool may_use_tiles(void) {
#ifdef __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Asked once. A processor with AMX has AVX512-BF16. */
static bool has_amx_bf16(void) {
    static atomic_int known; /* 1: no, 2: yes */
    unsigned          a, b, c, d = 0, bf16 = 0;
    if (!atomic_load_explicit(&known, memory_order_relaxed)) {
        const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) && (d & 1u << 24);
        const bool has   = tiles && __get_cpuid_count(7, 1, &bf16, &b, &c, &d) && (bf16 & 1u << 5) && may_use_tiles();
        atomic_store(&known, has ? 2 : 1);
    }
    return atomic_load_explicit(&known, memory_order_relaxed) == 2;
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
    if (atomic_load_explicit(&hidden, memory_order_relaxed) & 1u << feature) return false;
    switch (feature) {
    case CR_CPU_SSE42: return level >= CR_CPU_AVX2 && __builtin_cpu_supports("sse4.2");
    case CR_CPU_AVX_VNNI: return level >= CR_CPU_AVX2 && has_avx_vnni();
    case CR_CPU_AVX512_VBMI: return level >= CR_CPU_AVX512 && __builtin_cpu_supports("avx512vbmi");
    case CR_CPU_AVX512_VNNI: return level >= CR_CPU_AVX512 && __builtin_cpu_supports("avx512vnni");
    case CR_CPU_AMX_BF16: return level >= CR_CPU_AVX512 && has_amx_bf16();
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
static bool has_avx_vnni(void) {
    return false;
}
#endif

/* The word that describes a level of this processor. */
static int word_of(enum cr_cpu_level level, bool vnni) {
    return level == CR_CPU_AVX512 ? AVX512 : level == CR_CPU_BASELINE ? BASELINE : vnni ? AVX2_VNNI : AVX2;
}

static int processor_word(void) {
    return word_of(cr_cpu_processor_level(), has_avx_vnni());
}

/* The value of CRESNET_CPU; NULL without one. *found: its word, without a value the processor's; WORDS: unknown. */
static const char *read_variable(int *found) {
    const char *word = getenv("CRESNET_CPU");
    *found           = processor_word();
    if (!word || !*word) return NULL;
    *found = 0;
    while (*found < WORDS && strcmp(word, words[*found].name) != 0) ++*found;
    return word;
}

static bool has_word(int word) {
    return word <= processor_word() && (word != AVX2_VNNI || has_avx_vnni());
}

static void fix(int word) {
    int unknown = 0;
    if (word == AVX2) cr_cpu_hide(CR_CPU_AVX_VNNI, true);
    atomic_compare_exchange_strong(&cr_cpu_fixed_level_plus_1, &unknown, (int)words[word].level + 1);
}

cr_status cr_cpu_check(void) {
    int         found;
    const char *word = read_variable(&found), *has = words[processor_word()].name;
    if (found == WORDS)
        return CR_FAIL(CR_ERR_CONFIG,
                       "CRESNET_CPU=%.40s: give baseline, avx2, avx2_vnni or avx512; this processor has %s", word, has);
    if (!has_word(found))
        return CR_FAIL(CR_ERR_DEVICE, "CRESNET_CPU=%s: this processor has only %s; give that, or unset the variable",
                       word, has);
    fix(found);
    return CR_OK;
}

enum cr_cpu_level cr_cpu_fix_level(void) {
    int found;
    (void)read_variable(&found);
    if (found == WORDS || !has_word(found)) return cr_cpu_processor_level();
    fix(found);
    return cr_cpu_level();
}

bool cr_cpu_set_level(enum cr_cpu_level level) {
    if (level > cr_cpu_processor_level()) return false;
    atomic_store(&cr_cpu_fixed_level_plus_1, (int)level + 1);
    return true;
}

void cr_cpu_hide(enum cr_cpu_feature feature, bool hide) {
    if (hide)
        atomic_fetch_or(&hidden, 1u << feature);
    else
        atomic_fetch_and(&hidden, ~(1u << feature));
}

const char *cr_cpu_level_name(enum cr_cpu_level level) {
    return words[word_of(level, false)].name;
}

const char *cr_cpu_text(void) {
    return texts[word_of(cr_cpu_level(), cr_cpu_has(CR_CPU_AVX_VNNI))][processor_word()];
}

/* tests/unit/core/test_cpu_level.c: the level of this process against the flags of /proc/cpuinfo; functions that are
 * compiled for each level run the version of the level in use. */
#include "tests/harness/test.h"

/* Reads the flags that the system reports; NULL where it reports none. cr_free. Not x86: an emulator may show those of
 * the machine that it runs on. */
static char *system_flags(void) {
#if defined(__x86_64__)
    OWNED(file) file = fopen("/proc/cpuinfo", "r");
#else
    FILE *file = NULL;
#endif
    char *line = cr_alloc(1 << 16, 1), *found = NULL;
    while (file && line && !found && fgets(line, 1 << 16, file))
        if (strncmp(line, "flags", 5) == 0) found = line;
    if (!found) cr_free(line);
    return found;
}

static bool has_all(const char *flags, const char *const *wanted) {
    for (; *wanted; wanted++) {
        const char *at = strstr(flags, formatted(" %s ", *wanted));
        if (!at) return false;
    }
    return true;
}

static bool word_is(const char *name) {
    const char *word = getenv("CRESNET_CPU");
    return word && strcmp(word, name) == 0;
}

TEST(the_level_is_what_the_system_reports) {
    static const char *const avx2[]   = {"avx2", "fma", "f16c", "bmi2", NULL};
    static const char *const avx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", NULL};
    OWNED(string)            flags    = system_flags();
    if (!flags) SKIP("the system reports no flags of the processor");
    const enum cr_cpu_level want = !has_all(flags, avx2)     ? CR_CPU_BASELINE
                                   : !has_all(flags, avx512) ? CR_CPU_AVX2
                                                             : CR_CPU_AVX512;
    CHECK_INT(cr_cpu_processor_level(), want);
    const bool              hidden = word_is("avx2") && strstr(flags, " avx_vnni ");
    const enum cr_cpu_level used   = cr_cpu_level();
    for (int level = CR_CPU_BASELINE; level <= CR_CPU_AVX512; level++) {
        const bool can = cr_cpu_set_level((enum cr_cpu_level)level);
        CHECK_INT(can, level <= (int)want);
        if (!can) continue;
        CHECK_INT(cr_cpu_level(), level);
        CHECK_INT(cr_cpu_has(CR_CPU_SSE42), level >= CR_CPU_AVX2);
        cr_cpu_hide(CR_CPU_AVX_VNNI, false);
        CHECK_INT(cr_cpu_has(CR_CPU_AVX_VNNI), level >= CR_CPU_AVX2 && strstr(flags, " avx_vnni ") != NULL);
        cr_cpu_hide(CR_CPU_AVX_VNNI, true);
        CHECK(!cr_cpu_has(CR_CPU_AVX_VNNI));
        CHECK_INT(cr_cpu_has(CR_CPU_AVX512_VBMI), level == CR_CPU_AVX512 && strstr(flags, " avx512vbmi ") != NULL);
        CHECK_INT(cr_cpu_has(CR_CPU_AVX512_VNNI), level == CR_CPU_AVX512 && strstr(flags, " avx512_vnni ") != NULL);
        CHECK_INT(cr_cpu_has(CR_CPU_AMX_BF16), level == CR_CPU_AVX512 && strstr(flags, " amx_bf16 ") != NULL);
        cr_cpu_hide(CR_CPU_AVX_VNNI, hidden);
        CHECK_INT(strstr(cr_cpu_text(), "CRESNET_CPU") != NULL, level < (int)want || (hidden && level == CR_CPU_AVX2));
        CHECK(strncmp(cr_cpu_text(), cr_cpu_level_name((enum cr_cpu_level)level), 4) == 0);
    }
    CHECK(cr_cpu_set_level(used));
}

TEST(the_variable_decides) {
    const char *word = getenv("CRESNET_CPU");
    if (!word || !*word)
        CHECK_INT(cr_cpu_level(), cr_cpu_processor_level());
    else
        CHECK_STR(cr_cpu_level_name(cr_cpu_level()), strcmp(word, "avx2_vnni") == 0 ? "avx2" : word);
}

#if defined(__x86_64__)
/* The place in the machine code where the caller continues. */
static __attribute__((noinline)) uintptr_t place(void) {
    return (uintptr_t)__builtin_return_address(0);
}
CR_BY_LEVEL(uintptr_t, three_versions, (uintptr_t x), (x)) {
    return place() + x; /* not the last call of the function, which the compiler could make a jump */
}
CR_BY_LEVEL_AVX2(uintptr_t, two_versions, (uintptr_t x), (x)) {
    return place() + x;
}

/* Returns whether the function that begins last before `at` is the one at `index`. */
static bool is_in(uintptr_t at, const uintptr_t begin[4], int index) {
    int last = 0;
    for (int i = 1; i < 4; i++)
        if (begin[i] <= at && (begin[last] > at || begin[i] > begin[last])) last = i;
    return last == index;
}

TEST(versions_follow_the_level) {
    const enum cr_cpu_level used     = cr_cpu_level();
    const uintptr_t         three[4] = {(uintptr_t)three_versions, (uintptr_t)three_versions_avx2,
                                        (uintptr_t)three_versions_avx512f, (uintptr_t)place};
    const uintptr_t         two[4]   = {(uintptr_t)two_versions, (uintptr_t)two_versions_avx2, 0, (uintptr_t)place};
    uintptr_t (*volatile call_three)(uintptr_t) = three_versions; /* compilers cannot inline what these call */
    uintptr_t (*volatile call_two)(uintptr_t)   = two_versions;
    for (int level = CR_CPU_BASELINE; level <= (int)used; level++) {
        CHECK(cr_cpu_set_level((enum cr_cpu_level)level));
        CHECK(is_in(call_three(0), three, level));
        CHECK(is_in(call_two(0), two, CR_MIN(level, CR_CPU_AVX2)));
    }
}
#else
static void versions_follow_the_level(void) {
    SKIP("there is one level");
}
#endif

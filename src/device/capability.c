/* device/capability.c: limits by compute capability (shared memory, threads), from NVIDIA's guide and white papers. */
#include "device/capability.h"

#include <string.h>

/* Of the capabilities with the least: shared memory, threads and blocks of a multiprocessor. */
enum { KIB = 1024, SMALL = 100 * KIB, FEW_THREADS = 1536, FEW_BLOCKS = 16 };

static const struct {
    int    cc;
    size_t multiprocessor_bytes;
    int    threads, blocks;
} known[] = {{80, 164 * KIB, 2048, 32},  {86, SMALL, 1536, 16},      {87, 164 * KIB, 1536, 16},
             {89, SMALL, 1536, 24},      {90, 228 * KIB, 2048, 32},  {100, 228 * KIB, 2048, 32},
             {103, 228 * KIB, 2048, 32}, {110, 228 * KIB, 1536, 24}, {120, SMALL, 1536, 24},
             {121, SMALL, 1536, 24}};

/* A block can have all shared memory of a multiprocessor but 1 KiB, which the driver takes. */
struct cr_capability cr_capability_of(int cc) {
    struct cr_capability c = {.cc = cc, .multiprocessor_bytes = SMALL, .threads = FEW_THREADS, .blocks = FEW_BLOCKS};
    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (known[i].cc == cc) {
            c.multiprocessor_bytes = known[i].multiprocessor_bytes;
            c.threads              = known[i].threads;
            c.blocks               = known[i].blocks;
        }
    c.block_bytes = c.multiprocessor_bytes - KIB;
    return c;
}

cr_status cr_capability_read(const char *text, struct cr_capability *out) {
    static const struct {
        const char *text;
        int         cc;
    } values[] = {{"8.0", 80}, {"8.6", 86}, {"8.9", 89}, {"12.0", 120}};
    for (size_t i = 0; i < CR_COUNT(values); i++)
        if (strcmp(text, values[i].text) == 0) {
            *out = cr_capability_of(values[i].cc);
            return CR_OK;
        }
    return CR_FAIL(CR_ERR_CONFIG,
                   "CRESNET_CAPABILITY=%.40s: must be 8.0, 8.6, 8.9 or 12.0; without it the GPU is used as it is",
                   text);
}

double cr_capability_matrix_rate(int cc, const char *name) {
    if (cc == 100 || cc == 103) return 8192;
    if (cc == 90) return 4096;
    if (cc == 80) return 2048;
    return strstr(name, "GeForce") ? 512 : 1024;
}

double cr_capability_f32_rate(int cc) {
    return cc == 80 ? 128 : 256;
}

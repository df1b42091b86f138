/* session/labels/outputs.c: see session/scores/outputs.h. */
#include "session/labels/outputs.h"

#include "core/cpu.h"

enum { RESERVED_FRACTION = 16 }; /* 1/16 of the free memory stays free */

cr_status cr_outputs_check(int64_t images, int classes, size_t bytes, const char *advice) {
    const size_t left = cr_cpu_memory_free();
    if (!left || bytes <= left - left / RESERVED_FRACTION) return CR_OK;
    return CR_FAIL(CR_ERR_MEMORY,
                   "out of memory: the outputs of %lld images for %d classes take %.0f MiB, and %.0f MiB are free: %s",
                   (long long)images, classes, cr_mib(bytes), cr_mib(left), advice);
}

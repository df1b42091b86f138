/* data/loader/loader_counts.c: counts and times of the workers of a loader. */
#include "data/loader/loader_internal.h"

#include <time.h>

int64_t cr_thread_cpu_ns(void) {
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void cr_load_counts_add(struct cr_load_counts *sum, struct cr_load_counts *part) {
    sum->images += part->images;
    sum->verified += part->verified;
    sum->device += part->device;
    sum->file_bytes += part->file_bytes;
    sum->fetch_ns += part->fetch_ns;
    sum->decode_ns += part->decode_ns;
    sum->resize_ns += part->resize_ns;
    sum->other_ns += part->other_ns - part->fetch_ns - part->decode_ns - part->resize_ns;
    sum->cpu_ns += part->cpu_ns;
    *part = (struct cr_load_counts){0};
}

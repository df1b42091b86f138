/* data/loader/loader_counts.c: counts and times of the loader's workers: images, bytes, reading, decoding. */
#include "data/loader/loader_internal.h"

#include <time.h>

int64_t cr_thread_cpu_ns(void) {
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct cr_load_counts cr_load_counts_since(const struct cr_load_counts *now, const struct cr_load_counts *before) {
    return (struct cr_load_counts){.images     = now->images - before->images,
                                   .jpegs      = now->jpegs - before->jpegs,
                                   .device     = now->device - before->device,
                                   .verified   = now->verified - before->verified,
                                   .file_bytes = now->file_bytes - before->file_bytes,
                                   .fetch_ns   = now->fetch_ns - before->fetch_ns,
                                   .decode_ns  = now->decode_ns - before->decode_ns,
                                   .resize_ns  = now->resize_ns - before->resize_ns,
                                   .other_ns   = now->other_ns - before->other_ns,
                                   .cpu_ns     = now->cpu_ns - before->cpu_ns};
}

void cr_load_counts_add(struct cr_load_counts *sum, struct cr_load_counts *part) {
    sum->images += part->images;
    sum->verified += part->verified;
    sum->jpegs += part->jpegs;
    sum->device += part->device;
    sum->file_bytes += part->file_bytes;
    sum->fetch_ns += part->fetch_ns;
    sum->decode_ns += part->decode_ns;
    sum->resize_ns += part->resize_ns;
    sum->other_ns += part->other_ns - part->fetch_ns - part->decode_ns - part->resize_ns;
    sum->cpu_ns += part->cpu_ns;
    *part = (struct cr_load_counts){0};
}

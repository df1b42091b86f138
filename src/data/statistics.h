/* data/statistics.h: every image of a split, read once: what can be decoded, how large, its mean and spread, and
 * which are the same image.
 *
 * Knows nothing of how it is shown. */
#ifndef CR_DATA_STAT_H
#define CR_DATA_STAT_H

#include "data/data.h"

struct cr_sample_stat {
    uint64_t hash; /* of its pixels and shape */
    int32_t  label, width, height;
    float    mean[3], square[3]; /* of its pixels/255, and of their squares: red, green, blue */
    bool     bad;
};
struct cr_bad_sample {
    int64_t     sample;
    const char *why;
};
struct cr_data_stat {
    int64_t                count;
    int                    classes;
    struct cr_sample_stat *sample; /* [count] */
    struct cr_bad_sample  *bad;    /* [bads], by sample: cannot be read */
    int64_t                bads, bad_capacity;
    double          mean[3], std[3]; /* over all images that can be read, each with the same weight whatever its size */
    struct cr_arena arena;
};
/* Reads with `workers` threads; their number changes nothing. */
CR_MUST cr_status cr_data_stat_open(const struct cr_dataset *dataset, int workers, struct cr_data_stat *out);
void              cr_data_stat_close(struct cr_data_stat *stat);

#endif

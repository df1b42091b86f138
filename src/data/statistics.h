/* data/statistics.h: statistics of a split whose every image is read once: decodability, size, mean, standard
 * deviation, and a hash that finds duplicates. Printing is left to the caller. */
#ifndef CR_STATISTICS_H
#define CR_STATISTICS_H

#include "data/data.h"

struct cr_sample_stat {
    uint64_t hash; /* of pixels and shape: equal for identical images */
    int32_t  label, width, height;
    int32_t  pages; /* of its file: 1, or those of a TIFF, whose first page is the image */
    float    mean[4],
        square[4]; /* of each channel: mean of its samples, as fractions of the largest, and of their squares */
    bool bad;
};
struct cr_bad_sample {
    int64_t     sample;
    const char *why;
};
struct cr_data_stat {
    int64_t                count;
    int                    classes;
    struct cr_sample_stat *sample; /* [count] */
    struct cr_bad_sample  *bad;    /* [bads], sorted by sample: images that cannot be read */
    int64_t                bads, bad_capacity;
    int                    channels;
    double                 mean[4], std[4]; /* over all readable images, each with the same weight whatever its size */
    struct cr_arena        arena;
};
/* Reads all images with `workers` threads; their number does not change the result. The caller closes `out`, also on
 * failure. CR_ERR_MEMORY. */
CR_MUST cr_status cr_data_stat_open(const struct cr_dataset *dataset, int workers, struct cr_data_stat *out);
void              cr_data_stat_close(struct cr_data_stat *stat);

#endif

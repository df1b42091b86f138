/* data/load_need.h: the bottleneck of data loading: what the loader needs; a hint when training waits for images. */
#ifndef CR_LOAD_NEED_H
#define CR_LOAD_NEED_H

#include "data/data.h"

/* A training that waits for a smaller fraction of the time gets no message. */
#define CR_LOAD_WAIT_MAX 0.05

/* How many threads each stage of loading keeps busy at a rate. The numbers are cores, except for `read`, which also
 * waits for the disk. `copy` also draws boxes, augments, and prepares JPEG data for a GPU. Only the work of the CPU
 * counts. */
struct cr_load_need {
    double rate; /* images/s */
    double read, decode, resize, copy;
    double threads;         /* sum of the stages */
    double cores;           /* CPU time of all stages, reading included */
    double bytes_per_image; /* as stored */
    double jpegs;           /* fraction of the images that are JPEG files */
};
/* The need at `rate` images/s of images like those of the counts; all 0 when no image was counted. Where several
 * threads run on one core, their times are reduced to their CPU time. */
struct cr_load_need cr_load_need(const struct cr_load_counts *counts, double rate);

/* What this process has. */
struct cr_load_supply {
    int  cores;     /* those of the machine, divided by the processes that train on it */
    int  workers;   /* data.workers */
    int  pack_size; /* short side that images for this training are packed with */
    bool gpu;       /* a GPU could decode JPEG files, and does not */
};
struct cr_load_supply cr_load_supply_of(const struct cr_prepare *prepare, int workers, int processes);
/* Appends what is short and what to do about it, in one line: "decoding needs 9.3 of 14.1 cores at 12400 images/s,
 * there are 8: data pack --jpeg=256". For a training that waits. */
void cr_load_hint(const struct cr_load_need *need, const struct cr_load_supply *supply, struct cr_text *out);

#endif

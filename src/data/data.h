/* data/data.h: batches of images. A dataset knows its samples, a loader turns them into batches with worker threads.
 *
 * Laws
 *   - A batch is uint8 NHWC, three channels, RGB; normalisation is an op of the program, which also shifts and mirrors
 *     training images as their boxes say.
 *   - Every random choice (order, crop, flip) is a function of (seed, epoch, sample): worker count, prefetch depth and
 *     where a run was resumed do not change a byte.
 *   - A training batch is always full. An evaluation batch is padded with black images of label -1, which no metric
 *     counts; every sample is delivered exactly once.
 *   - Magic bytes, not names, decide how a file is decoded; grey, palette, alpha, 16-bit and CMYK become RGB8.
 * Knows nothing of programs or devices. */
#ifndef CR_DATA_H
#define CR_DATA_H

#include "config/config.h"

enum cr_split { CR_SPLIT_TRAIN, CR_SPLIT_VAL };

/* ---- images ---- */

struct cr_image {
    int      width, height;
    uint8_t *rgb; /* [height][width][3], owned; cr_image_free */
};
void cr_image_free(struct cr_image *image);

enum { CR_IMAGE_SIDE_MAX = 32768, CR_IMAGE_PIXELS_MAX = 1 << 28 };

/* Decodes a PNG or JPEG held in memory. CR_ERR_FORMAT: not an image, broken, or beyond the limits above.
 * `name` is used in messages. */
CR_MUST cr_status cr_image_decode(const void *bytes, size_t count, const char *name, struct cr_image *out);
CR_MUST cr_status cr_image_read(const char *path, struct cr_image *out);
CR_MUST cr_status cr_image_write_png(const char *path, const uint8_t *rgb, int width, int height);

/* Resizes the box (x, y, w, h; real numbers, inside the image) of src to out_w x out_h with PIL's antialiased bilinear
 * filter (support scales with the reduction, 8-bit fixed-point passes, horizontal first): within 1 level of PIL.
 * dst is [out_h][out_w][3]. flip mirrors left-right. CR_ERR_MEMORY only. */
CR_MUST cr_status cr_image_resize(const struct cr_image *src, double x, double y, double w, double h, uint8_t *dst,
                                  int out_w, int out_h, bool flip);

/* All images in a folder and below it, by the endings of their names (jpg, jpeg, png and kin; nothing hidden), sorted
 * by bytes; links are followed, loops entered once. Names and list are in the arena. CR_ERR_IO. */
CR_MUST cr_status cr_folder_images(const char *folder, struct cr_arena *arena, const char ***out, int64_t *count);

/* ---- preparation of one sample ---- */

struct cr_prepare {           /* resolved from [data]; see cr_prepare_from_config */
    int          size;        /* pixels a side of the result */
    int          eval_resize; /* short side before the centre crop; 0: no resize when the image is `size` already */
    enum cr_crop crop;        /* training; never AUTO */
    int          pad;
    double       scale[2], ratio[2], hflip;
    bool         trivial;   /* training: TrivialAugment */
    double       jitter[4]; /* training: reach of brightness, contrast, saturation, hue; 0: none */
    bool         mixes;     /* training: erases or mixes, by the next six */
    double       erase, erase_scale[2], mixup, cutmix, mix_prob, cutmix_prob;
};
/* Sizes and crop for this config and split, with all `auto`s and zeros resolved. */
CR_MUST cr_status cr_prepare_from_config(const struct cr_config *config, enum cr_split split, struct cr_prepare *out);
/* Training image, drawn from (seed, epoch, sample): out [size][size][3] and what is still to be done to it, box =
 * (dy, dx, flip, 0): the network sees pixel (y + dy, x + dx) at (y, x), with flip (y + dy, size-1-x + dx), black
 * outside the image. */
CR_MUST cr_status cr_prepare_train(const struct cr_prepare *prep, const struct cr_image *image, uint64_t seed,
                                   int64_t epoch, int64_t sample, uint8_t *out, int32_t box[4]);
/* What is to be done to the image at place `at` of a batch on the device, drawn from (seed, epoch, sample): an entry
 * of cr_batch.mixes. Partners are neighbours, at ^ 1 (timm counts from the other end; the order is random either way):
 * a batch that ranks share is then mixed as one rank mixes it, where each has an even number. The last of an odd batch
 * takes the one before it. */
void cr_prepare_mix(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample, int64_t at,
                    int64_t batch, int32_t *mix);
/* Evaluation image: short side to eval_resize, centre crop (torchvision's rounding). */
CR_MUST cr_status cr_prepare_eval(const struct cr_prepare *prep, const struct cr_image *image, uint8_t *out);

/* ---- data sets ---- */

struct cr_dataset; /* read-only once open: any number of threads may call cr_dataset_get */

/* Opens the split that [data] describes; for shapes it draws the images into data.root first when they are not there
 * (root empty: a folder in the user's cache). Messages name file, folder and key. */
CR_MUST cr_status cr_dataset_open(const struct cr_config *config, enum cr_split split, struct cr_dataset **out);
void              cr_dataset_close(struct cr_dataset *dataset); /* NULL is fine */
int64_t           cr_dataset_count(const struct cr_dataset *dataset);
int               cr_dataset_classes(const struct cr_dataset *dataset);
const char       *cr_dataset_class_name(const struct cr_dataset *dataset, int label);
/* Name of a sample for messages: a path, or "data_batch_2.bin[117]". Written into buf. */
void cr_dataset_sample_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size);
/* Reads sample i: pixels (the caller frees) and label. CR_ERR_FORMAT/IO for a corrupt one. */
CR_MUST cr_status cr_dataset_get(const struct cr_dataset *dataset, int64_t sample, struct cr_image *out,
                                 int32_t *label);
/* One line for the start of a run: "5000 images, 10 classes, 480-520 a class". */
void cr_dataset_describe(const struct cr_dataset *dataset, struct cr_text *out);
/* 64-bit fingerprint of names, labels and sizes: a resumed run refuses another data set. */
uint64_t cr_dataset_fingerprint(const struct cr_dataset *dataset);

/* Draws the shapes data set (ten classes of drawn figures as PNG files, 32x32, train/ and val/ by class) into `root`;
 * a function of nothing but the counts: the same files everywhere. Does nothing when complete. Files are written to a
 * temporary folder beside and renamed. */
CR_MUST cr_status cr_shapes_make(const char *root, int64_t train_images, int64_t val_images);

/* ---- loader ---- */

struct cr_loader_options {
    enum cr_split     split;
    struct cr_prepare prepare;
    int64_t           batch;
    uint64_t          seed;
    int               workers;  /* 0: cr_loader_next does the work itself */
    int               prefetch; /* batches ahead */
    bool              drop_last;
    bool              corrupt_fatal;
    int               rank, ranks; /* of several processes that share each batch: see below; ranks 0: one */
    int64_t           epoch;       /* where to start: epoch and batch within it (train); eval starts at 0, 0 */
    int64_t           first_batch;
};

struct cr_batch {
    const uint8_t *images; /* [batch][size][size][3] */
    const int32_t *labels; /* [batch]; -1 = padding or a corrupt image in evaluation */
    const int32_t *boxes;  /* [batch][4] as cr_prepare_train's; NULL in evaluation */
    const int32_t *mixes;  /* [batch][CR_MIX_NUMBERS] of enum cr_mix; NULL when nothing is erased or mixed */
    int64_t        count;  /* samples of the data set in this batch, corrupt ones included; padding follows them */
    int64_t        epoch, index;
    int            slot; /* private */
};

/* Ranks: batches of all ranks are cut from one order. Global batch g has ranks * batch places, [g*ranks*batch,
 * (g+1)*ranks*batch) of the epoch's order, and rank r fills the r-th `batch` of them: as many images in a global
 * batch give the same batches for any number of ranks. In evaluation each image is delivered by exactly one rank, and
 * a rank whose places lie behind the last image has fewer batches. */
struct cr_loader;
/* Batches an epoch, of each rank: floor(count/(batch*ranks)) when training with drop_last, else ceil. */
int64_t           cr_loader_batches(const struct cr_dataset *dataset, const struct cr_loader_options *options);
CR_MUST cr_status cr_loader_open(const struct cr_dataset *dataset, const struct cr_loader_options *options,
                                 struct cr_loader **out);
/* Stops the workers (also in mid-batch) and frees everything. NULL is fine. */
void cr_loader_close(struct cr_loader *loader);
/* The next batch; training runs on into the next epoch without end, evaluation returns batch.count = 0 after the last.
 * A corrupt image: with corrupt_fatal an error that names it; else in training the next readable sample of the
 * epoch's order takes its place (as well as its own), in evaluation its label is -1. Batches before an error are
 * delivered; after it every call fails. Valid until cr_loader_release, and so are up to `prefetch` batches at a time (1
 * without workers). No allocation after the first, but for larger images than were met before. */
CR_MUST cr_status cr_loader_next(struct cr_loader *loader, struct cr_batch *batch);
void              cr_loader_release(struct cr_loader *loader, struct cr_batch *batch);
int64_t           cr_loader_wait_ns(const struct cr_loader *loader); /* spent inside cr_loader_next so far */
int64_t           cr_loader_corrupt(const struct cr_loader *loader); /* different corrupt images met so far */

struct cr_load_counts {       /* of all workers, since the loader was opened */
    int64_t images, verified; /* proven: known to be sound, so that a JPEG was decoded only as far as its crop needs */
    int64_t file_bytes;       /* encoded bytes, or pixels where a set has those */
    int64_t fetch_ns, decode_ns, resize_ns, other_ns; /* other: drawing of boxes, copies */
    int64_t cpu_ns;                                   /* what the workers had of a core for all that */
};
void cr_loader_counts(const struct cr_loader *loader, struct cr_load_counts *out);

#endif

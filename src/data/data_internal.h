/* data/data_internal.h: declarations that the files of data/ share; all other folders include data/data.h.
 *
 * Invariants
 *   - The memory that a sample needs is part of the scratch of the thread that works on it. A loader therefore stops
 *     allocating once its largest image has been read.
 *   - Stored samples, images and views are borrowed from the dataset or from the scratch. They are valid until the
 *     next call with the same dataset or scratch. */
#ifndef CR_DATA_INTERNAL_H
#define CR_DATA_INTERNAL_H

#include "core/rng.h"
#include "data/data.h"
#include "graph/graph.h" /* enum cr_mix */

#include <limits.h>

/* ---- scratch: one per thread; a zeroed struct is empty ---- */

struct cr_buffer {
    uint8_t *bytes;
    size_t   capacity;
};
struct cr_jpeg;        /* data/image/jpeg.c: a decoder and the image whose header it has read */
struct cr_jpeg_tables; /* data/image/jpeg_baseline.c: tables of its entropy decoder */
struct cr_scratch {
    struct cr_buffer file, pixels, oriented, tables, entropy, planes, copy;
    struct cr_jpeg  *jpeg; /* allocated at first use */
    struct cr_jpeg_tables
        *jpeg_tables; /* allocated at first use; of the last image, reused if the next image has the same tables */
    struct cr_load_counts counts;
};
/* data/image/buffer.c: grows the buffer to at least `count` bytes; its content is lost. CR_ERR_MEMORY. */
CR_MUST cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count);
void              cr_scratch_free(struct cr_scratch *scratch);

/* ---- images ---- */

/* data/image/buffer.c: checks width and height against the limits of data/data.h: CR_ERR_FORMAT. */
CR_MUST cr_status cr_image_check_size(int64_t width, int64_t height, const char *name);
/* Decodes a whole image into scratch->pixels, to which view->rgb then points. */
CR_MUST cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                                       struct cr_image *view);
CR_MUST cr_status cr_png_decode(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                                struct cr_image *view);
/* Reads a regular file into scratch->file. CR_ERR_IO, CR_ERR_FORMAT (too large), CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_file_read(const char *path, struct cr_scratch *scratch, size_t *count);

/* A sample as its dataset stores it: a PNG or JPEG in memory, or pixels. */
struct cr_stored {
    const uint8_t  *bytes; /* encoded bytes; NULL: `pixels` has the image */
    size_t          count;
    bool            verified; /* was decoded to its end before: the part outside a crop may stay undecoded */
    bool            exif;     /* apply the EXIF orientation of an encoded image */
    struct cr_image pixels;
};
/* An image whose size is known. image.rgb is NULL for a JPEG that scratch->jpeg has opened and not decoded yet; width
 * and height are those of the upright image. */
struct cr_lazy_image {
    struct cr_image image;
    bool            verified;
    int             orientation; /* of a JPEG, still to be applied: 2 to 8; 0 or 1: none */
};
/* A decoded region of an image, at full size, a half, a quarter or an eighth. rgb is [height] rows of `stride`
 * bytes; (x, y, w, h) is the requested box, in pixels of the region. */
struct cr_window {
    const uint8_t *rgb;
    int            width, height;
    size_t         stride;
    double         x, y, w, h;
};
/* Opens a stored sample: decodes a PNG, or reads the header of a JPEG. `name` must live as long as `out`.
 * CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_lazy_image_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                     struct cr_lazy_image *out);
/* Decodes the whole image; the pixels are borrowed from the dataset or the scratch. */
CR_MUST cr_status cr_lazy_image_whole(const struct cr_lazy_image *lazy, struct cr_scratch *scratch,
                                      struct cr_image *view);
/* Decodes the box (x, y, width, height) of the image and as little else as possible. With min_side > 0 a JPEG is
 * decoded at the smallest scale that leaves the box at least `min_side` pixels per side. With min_side = 0 the
 * pixels are bitwise identical to those of the whole image. */
CR_MUST cr_status cr_lazy_image_window(const struct cr_lazy_image *lazy, const int box[4], int min_side,
                                       struct cr_scratch *scratch, struct cr_window *out);

/* data/image/exif.c: the orientation of a JPEG or PNG, 1 to 8 as EXIF defines it: how it becomes upright.
 * 1 when there is none, or when the EXIF block is damaged. */
int cr_exif_orientation(const void *bytes, size_t count);
/* data/image/orient.c. cr_orient_transposes: is the width of the upright image the stored height? cr_orient_box: the
 * box (x, y, width, height) of an upright image of width x height, as a box of the stored image. cr_orient_window:
 * makes a window of the stored image upright; its pixels are then in scratch->pixels, without gaps. CR_ERR_MEMORY. */
bool              cr_orient_transposes(int orientation);
void              cr_orient_box(int orientation, int width, int height, const int box[4], int stored[4]);
CR_MUST cr_status cr_orient_window(int orientation, struct cr_scratch *scratch, struct cr_window *window);

/* JPEG: cr_jpeg_open reads the header, cr_jpeg_read decodes a part. At most one read follows each open. */
CR_MUST cr_status cr_jpeg_open(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                               int *width, int *height);
struct cr_jpeg_part { /* the part of a JPEG to decode */
    int  box[4];      /* x, y, width, height in pixels of the unscaled image */
    int  min_side;    /* as in cr_lazy_image_window */
    bool whole;       /* decode the entropy-coded data to the end, so that damage is found everywhere */
};
CR_MUST cr_status cr_jpeg_read(const struct cr_jpeg_part *part, struct cr_scratch *scratch, struct cr_window *out);
void              cr_jpeg_close(struct cr_jpeg *jpeg); /* NULL is allowed */

/* data/image/jpeg_baseline.c: decodes a part of a JPEG whose header libjpeg has read. *done is false if the file
 * must be left to libjpeg, whose state is then unchanged. The only error is CR_ERR_MEMORY. */
struct jpeg_decompress_struct;
CR_MUST cr_status cr_jpeg_decode_baseline(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                                          struct cr_scratch *scratch, struct cr_window *out, bool *done);
void              cr_jpeg_only_libjpeg(bool only); /* for tests: never use cr_jpeg_decode_baseline */
/* data/image/jpeg_pixels_avx2.c, for CPUs with AVX2. cr_jpeg_block: the inverse transform of the coefficients times
 * the quantiser's steps, to 8 x 8 samples. cr_jpeg_dc_block: the same for a block whose only nonzero coefficient is
 * the first. Both return false if a value is too large; libjpeg then decodes the image. cr_jpeg_upsample: one row of
 * samples to full width. cr_jpeg_colours: rows of samples to RGB, 16 pixels at a time. */
bool cr_jpeg_block(const int16_t coefficient[64], const int32_t step[64], uint8_t *dst, size_t stride);
bool cr_jpeg_dc_block(int32_t dc, uint8_t *dst, size_t stride);
void cr_jpeg_upsample(const uint8_t *near, const uint8_t *far, int count, bool across, bool down, bool second,
                      uint8_t *out);
void cr_jpeg_colours(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *dst);

/* A resize that may compute only a part of its result. The rectangle of part_w x part_h pixels at (part_x,
 * part_y) of the result of full_w x full_h pixels is written to dst; `flip` mirrors that rectangle. */
struct cr_resize {
    const uint8_t *src; /* [src_h] rows of src_stride bytes */
    int            src_w, src_h;
    size_t         src_stride;
    double         x, y, w, h; /* box within the source */
    int            full_w, full_h, part_x, part_y, part_w, part_h;
    uint8_t       *dst; /* [part_h] rows of dst_stride bytes */
    size_t         dst_stride;
    bool           flip;
};
/* `tables` is working memory that grows when necessary. CR_ERR_MEMORY. */
CR_MUST cr_status cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables);

/* For tests: the newest instructions that data/image/resize.c may use. The results of all levels are bitwise
 * identical. */
enum cr_resize_level { CR_RESIZE_PLAIN, CR_RESIZE_AVX2, CR_RESIZE_AVX512 };
void cr_resize_limit(enum cr_resize_level limit);

/* The filter taps of a range of output pixels along one axis. */
enum { CR_RESIZE_WEIGHT_BITS = 22 };
struct cr_axis {
    int      count, stride; /* number of output pixels; weights reserved per pixel */
    int     *first, *taps;  /* [count]: first source pixel, number of taps */
    int32_t *weight;        /* [count][stride] */
};
/* data/image/resize_avx512.c. Only cr_resize_has_avx512 may be called on CPUs without these instructions.
 * cr_resize_across512_make fills `tables`, which has cr_resize_across512_bytes bytes and is aligned to 64; it
 * returns false if the reduction is too strong for the permutation. source_bytes: bytes of a source row. */
bool   cr_resize_has_avx512(void);
size_t cr_resize_across512_bytes(const struct cr_axis *axis);
bool   cr_resize_across512_make(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables);
void   cr_resize_across512(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride,
                           int rows, uint8_t *dst, size_t dst_stride);
void cr_resize_down512(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count);

/* Prepares a training image, which may not be decoded yet, with the random numbers of (seed, epoch, sample). out is
 * [size][size][3]. The device applies box = (dy, dx, flip, 0) later: the network sees pixel (y + dy, x + dx) at (y, x),
 * with flip pixel (y + dy, size-1-x + dx), and black outside the image. */
CR_MUST cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                        int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                        int32_t box[4]);
/* cr_prepare_eval for an image that may not be decoded yet, with the scratch of the caller. */
CR_MUST cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                       struct cr_scratch *scratch, uint8_t *out);

/* Chooses the box (x, y, width, height) of a random_resized crop as torchvision's RandomResizedCrop does. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]);

/* ---- augmentation after the crop: data/augment/pixel_ops.c, data/augment/colour.c ---- */

/* The operations of TrivialAugment in torchvision's order, then the hue of ColorJitter. */
enum cr_pixel_op {
    CR_PIXELS_IDENTITY,
    CR_PIXELS_SHEAR_X,
    CR_PIXELS_SHEAR_Y,
    CR_PIXELS_TRANSLATE_X,
    CR_PIXELS_TRANSLATE_Y,
    CR_PIXELS_ROTATE,
    CR_PIXELS_BRIGHTNESS,
    CR_PIXELS_COLOUR,
    CR_PIXELS_CONTRAST,
    CR_PIXELS_SHARPNESS,
    CR_PIXELS_POSTERIZE,
    CR_PIXELS_SOLARIZE,
    CR_PIXELS_AUTO_CONTRAST,
    CR_PIXELS_EQUALIZE,
    CR_PIXELS_HUE
};
/* Applies an operation in place to [size][size][3]; `copy` is working memory of the same size. Unit of `amount`:
 * shears a fraction of the side, translations pixels, rotation degrees, blends a factor (1 leaves the image
 * unchanged), posterize the number of bits, solarize a threshold, hue a fraction of the colour circle. */
void cr_pixels_apply(enum cr_pixel_op op, double amount, uint8_t *rgb, int size, uint8_t *copy);
/* Draws the operation and the amount of TrivialAugmentWide for one image. */
void cr_trivial_draw(struct cr_rng *rng, enum cr_pixel_op *op, double *amount);
bool cr_prepare_colours(const struct cr_prepare *prep); /* does prep->trivial or prep->jitter request an operation? */
/* Applies prep->trivial and prep->jitter. The operations come after the shift and flip of the box, so the box is
 * applied here too and set to 0. CR_ERR_MEMORY. */
CR_MUST cr_status cr_prepare_colour(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample,
                                    struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]);

/* Adds the counts of a worker to `sum` and sets them to 0. part->other_ns is the total time of the worker on input;
 * the times of the single stages are subtracted. */
void    cr_load_counts_add(struct cr_load_counts *sum, struct cr_load_counts *part);
int64_t cr_thread_cpu_ns(void); /* CPU time of the calling thread */

/* data/source/pack_read.c: runs work(argument) in this thread and in workers - 1 new threads. Threads that cannot be
 * started are left out. */
void cr_work_together(void *(*work)(void *), void *argument, int workers);

/* ---- datasets ---- */

enum { CR_SAMPLE_NAME_BYTES = PATH_MAX + 32, CR_DIGEST_BYTES = 64 << 10 };
struct cr_dataset_ops {
    /* Returns the sample as it is stored, borrowed from the dataset or the scratch. */
    cr_status (*fetch)(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                       struct cr_stored *out, int32_t *label);
    void (*name)(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size);
    void (*close)(struct cr_dataset *dataset); /* frees state, which may be incomplete or NULL */
    /* Hash of the size and the first bytes of a sample, whether or not it can be decoded; 0 if it cannot be read.
     * `head` is working memory of CR_DIGEST_BYTES. NULL: the images are a function of the configuration. */
    uint64_t (*digest)(const struct cr_dataset *dataset, int64_t sample, uint8_t *head);
};
struct cr_dataset {
    const struct cr_dataset_ops *ops; /* NULL until the function of the format has set it */
    int64_t                      count;
    int                          classes;
    const char                 **class_names;  /* in the arena */
    int64_t                     *class_counts; /* in the arena; NULL when unknown */
    uint64_t                     fingerprint;
    bool                         exif;      /* the value of cr_stored.exif */
    bool                         generated; /* cresnet draws the images; their files depend on the version of zlib */
    struct cr_arena              arena;
    void                        *state;
};
/* Allocates from the arena of the dataset, or returns CR_ERR_MEMORY from the enclosing function. */
#define CR_ARENA_ALLOC(var, dataset, n)                                                                                \
    do {                                                                                                               \
        (var) = cr_arena_alloc(&(dataset)->arena, (size_t)(n) * sizeof *(var));                                        \
        if (!(var)) return CR_NO_MEMORY((size_t)(n) * sizeof *(var));                                                  \
    } while (0)

/* Each function fills the zeroed dataset; on failure the caller closes it. */
CR_MUST cr_status cr_cifar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_folder_open(const struct cr_config *config, enum cr_split split, const char *root,
                                 struct cr_dataset *dataset);
CR_MUST cr_status cr_packed_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_shapes_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_synthetic_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);

/* Converts CIFAR records to pixels [n][32][32][3] and labels [n]. A record is `label_bytes` bytes (1: CIFAR-10; 2:
 * CIFAR-100, whose second byte is the fine label) and three planes of 1024 bytes. `first` is the number of the first
 * record in messages. CR_ERR_FORMAT: `count` is no whole number of records, or a label is out of range. */
enum { CR_CIFAR_PIXEL_BYTES = 3072 };
CR_MUST cr_status cr_cifar_parse(const uint8_t *bytes, size_t count, int label_bytes, const char *name, int64_t first,
                                 uint8_t *pixels, int32_t *labels);

/* The names of the ten shape classes, sorted. cr_shapes_draw draws image `index` of a split, of label index % 10, as
 * [32][32][3]. */
enum { CR_SHAPES_CLASSES = 10, CR_SHAPES_SIDE = 32 };
const char *cr_shapes_class(int label);
void        cr_shapes_draw(enum cr_split split, int64_t index, uint8_t rgb[CR_SHAPES_SIDE * CR_SHAPES_SIDE * 3]);

/* ---- data/source/path.c, data/source/hash.c ---- */

/* Formats a path into buf like printf. CR_ERR_IO: the path is too long. */
CR_MUST cr_status cr_path_format(char buf[PATH_MAX], const char *fmt, ...) CR_PRINTF(2, 3);

/* FNV-1a over bytes, continued from `hash` (the first call passes CR_HASH_START). cr_hash_mix finishes the hash. */
#define CR_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t cr_hash_bytes(uint64_t hash, const void *bytes, size_t count);
uint64_t cr_hash_mix(uint64_t hash);
/* Hash of the size in bytes, the label and the first bytes of a sample; never 0. */
uint64_t cr_hash_sample(uint64_t size, int32_t label, const void *head, size_t count);

/* data/loader/shuffle.c: fills order[count] with the samples of an epoch in their order, a function of seed and
 * epoch. */
void cr_order_shuffle(uint32_t *order, int64_t count, uint64_t seed, int64_t epoch);

#endif

/* data/data_internal.h: what the files of the data part share among themselves; everybody else includes data/data.h.
 *
 * Laws
 *   - Whatever a sample needs in memory lives in the scratch of the thread that works on it, so that a loader stops
 *     allocating once its largest image has been met.
 *   - A stored sample, an image and a view of one are borrowed: from the data set or from the scratch. It holds until
 * the next call with them. Knows what data/data.h knows. */
#ifndef CR_DATA_IMPL_H
#define CR_DATA_IMPL_H

#include "core/rng.h"
#include "data/data.h"
#include "graph/graph.h" /* enum cr_mix */

#include <limits.h>

/* ---- scratch: one per thread; a zeroed struct is empty ---- */

struct cr_buffer {
    uint8_t *bytes;
    size_t   capacity;
};
struct cr_jpeg;        /* data/image/jpeg.c: a decoder and the image that waits in it */
struct cr_jpeg_tables; /* data/image/jpeg_baseline.c: of its entropy decoder */
struct cr_scratch {
    struct cr_buffer       file, pixels, tables, entropy, planes, copy;
    struct cr_jpeg        *jpeg;        /* made when first needed */
    struct cr_jpeg_tables *jpeg_tables; /* so, too; of the last image, for the next one that has the same */
    struct cr_load_counts  counts;
};
/* Makes room for `count` bytes; what was there is lost. CR_ERR_MEMORY. */
CR_MUST cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count);
void              cr_scratch_free(struct cr_scratch *scratch);

/* ---- images ---- */

/* Checks width and height against the limits of data/data.h: CR_ERR_FORMAT. */
CR_MUST cr_status cr_image_check_size(int64_t width, int64_t height, const char *name);
/* Decodes a whole image into scratch->pixels, where view->rgb then points. */
CR_MUST cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                                       struct cr_image *view);
CR_MUST cr_status cr_png_decode(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                                struct cr_image *view);
/* A regular file into scratch->file. */
CR_MUST cr_status cr_image_file_read(const char *path, struct cr_scratch *scratch, size_t *count);

/* A sample as its data set holds it: a PNG or JPEG in memory, or pixels that are there already. */
struct cr_stored {
    const uint8_t  *bytes; /* encoded; NULL: `pixels` has the image */
    size_t          count;
    bool            verified; /* was decoded to its end before: what a crop does not need may stay undecoded */
    struct cr_image pixels;
};
/* An image whose size is known. image.rgb is NULL while a JPEG waits in the scratch for the box to decode. */
struct cr_lazy_image {
    struct cr_image image;
    bool            verified;
};
/* Pixels around a box of an image, perhaps at half, a quarter or an eighth of its size; x, y, w, h is the box in them.
 */
struct cr_window {
    const uint8_t *rgb;
    int            width, height;
    size_t         stride;
    double         x, y, w, h;
};
/* `name` must live as long as the image. */
CR_MUST cr_status cr_lazy_image_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                     struct cr_lazy_image *out);
CR_MUST cr_status cr_lazy_image_whole(const struct cr_lazy_image *lazy, struct cr_scratch *scratch,
                                      struct cr_image *view);
/* Decodes the box x, y, width, height of the image and little else. With least > 0 a JPEG is decoded at the smallest
 * scale that leaves the box at least `least` pixels a side; else the pixels are those of the whole image to the bit.
 */
CR_MUST cr_status cr_lazy_image_window(const struct cr_lazy_image *lazy, const int box[4], int least,
                                       struct cr_scratch *scratch, struct cr_window *out);

/* JPEG: the header, then the part that is wanted. Each open is followed by at most one read. */
CR_MUST cr_status cr_jpeg_open(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                               int *width, int *height);
struct cr_jpeg_part {
    int  box[4]; /* x, y, width, height in the image's own pixels */
    int  least;  /* as in cr_lazy_image_window */
    bool whole;  /* decode the entropy-coded data to the end, so that damage anywhere is found */
};
CR_MUST cr_status cr_jpeg_read(const struct cr_jpeg_part *part, struct cr_scratch *scratch, struct cr_window *out);
void              cr_jpeg_close(struct cr_jpeg *jpeg); /* NULL is fine */

/* data/image/jpeg_baseline.c: the part from a header that libjpeg has read; *done is false when it is left to libjpeg,
 * whose state is untouched. Only CR_ERR_MEMORY. cr_jpeg_only_libjpeg: for tests. */
struct jpeg_decompress_struct;
CR_MUST cr_status cr_jpeg_fast(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                               struct cr_scratch *scratch, struct cr_window *out, bool *done);
void              cr_jpeg_only_libjpeg(bool only);
/* data/image/jpeg_pixels_avx2.c, for CPUs with AVX2: a block of coefficients, times the quantiser's steps, to 8 x 8
 * samples; one of which only the first counts (false: too large, libjpeg decides); a row of samples to full width; rows
 * of samples to RGB, 16 pixels at a time. */
bool cr_jpeg_block(const int16_t coefficient[64], const int32_t step[64], uint8_t *dst, size_t stride);
bool cr_jpeg_flat_block(int32_t dc, uint8_t *dst, size_t stride);
void cr_jpeg_upsample(const uint8_t *near, const uint8_t *far, int count, bool across, bool down, bool second,
                      uint8_t *out);
void cr_jpeg_colours(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *dst);

/* A resize of which only a part may be wanted: out of the whole result of full_w x full_h pixels the rectangle at
 * (part_x, part_y), part_w x part_h, is written to dst; flip mirrors that rectangle. */
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
CR_MUST cr_status cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables);

/* Which instructions data/image/resize.c may use, for tests: all levels give the same bits. */
enum cr_resize_level { CR_RESIZE_PLAIN, CR_RESIZE_AVX2, CR_RESIZE_AVX512 };
void cr_resize_limit(enum cr_resize_level most);

/* The taps of a stretch of output pixels along one axis. */
enum { CR_RESIZE_WEIGHT_BITS = 22 };
struct cr_axis {
    int      count, stride; /* output pixels; weights reserved for each */
    int     *first, *taps;  /* [count]: first source pixel and how many */
    int32_t *weight;        /* [count][stride] */
};
/* data/image/resize_avx512.c; none but the first may be called where that is false. make says whether the axis can be
 * had so; it needs `bytes` bytes, aligned to 64. source_bytes: of a source row. */
bool   cr_resize_has_avx512(void);
size_t cr_resize_across512_bytes(const struct cr_axis *axis);
bool   cr_resize_across512_make(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables);
void   cr_resize_across512(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride,
                           int rows, uint8_t *dst, size_t dst_stride);
void cr_resize_down512(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count);

/* cr_prepare_train and cr_prepare_eval on an image that need not be decoded yet, with the caller's scratch. */
CR_MUST cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                        int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                        int32_t box[4]);
CR_MUST cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                       struct cr_scratch *scratch, uint8_t *out);

/* The box x, y, width, height of a random_resized crop, as torchvision's RandomResizedCrop chooses it. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]);

/* ---- augmentation behind the crop: data/augment/pixel_ops.c, data/augment/colour.c ---- */

/* The first fourteen are TrivialAugment's, in torchvision's order. */
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
/* In place on [size][size][3]; `copy` has room for as much. `by`: shears a share of the side, translations pixels,
 * rotation degrees, blends a factor (1 leaves the image), posterize the bits that stay, solarize a threshold, hue a
 * share of the circle. */
void cr_pixels_apply(enum cr_pixel_op op, double by, uint8_t *rgb, int size, uint8_t *copy);
/* TrivialAugmentWide's choice for one image. */
void cr_trivial_draw(struct cr_rng *rng, enum cr_pixel_op *op, double *amount);
bool cr_prepare_colours(const struct cr_prepare *prep); /* is there anything to do? */
/* What prep->trivial and prep->jitter ask for, done to the image behind what its box asks for, which is then done
 * too. */
CR_MUST cr_status cr_prepare_colour(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample,
                                    struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]);

/* Adds a worker's counts, in which other_ns is still the whole time, and empties them. */
void    cr_load_counts_take(struct cr_load_counts *sum, struct cr_load_counts *part);
int64_t cr_thread_cpu_ns(void);

/* data/source/pack_read.c: runs work(argument) in this thread and in workers - 1 others; those that cannot be started
 * are done without. */
void cr_work_together(void *(*work)(void *), void *argument, int workers);

/* ---- data sets ---- */

enum { CR_SAMPLE_NAME_BYTES = PATH_MAX + 32 };
struct cr_dataset_ops {
    /* The sample as it is stored, borrowed from the data set or the scratch. */
    cr_status (*fetch)(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                       struct cr_stored *out, int32_t *label);
    void (*name)(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size);
    void (*close)(struct cr_dataset *dataset); /* frees state, which may be half-built or NULL */
};
struct cr_dataset {
    const struct cr_dataset_ops *ops; /* NULL until the format took over */
    int64_t                      count;
    int                          classes;
    const char                 **class_names;  /* in the arena */
    int64_t                     *class_counts; /* in the arena; NULL: not known */
    uint64_t                     fingerprint;
    struct cr_arena              arena;
    void                        *state;
};
/* Arena memory of the data set or CR_ERR_MEMORY from the enclosing function. */
#define CR_ARENA_ALLOC(var, dataset, n)                                                                                \
    do {                                                                                                               \
        (var) = cr_arena_alloc(&(dataset)->arena, (size_t)(n) * sizeof *(var));                                        \
        if (!(var)) return CR_NO_MEMORY((size_t)(n) * sizeof *(var));                                                  \
    } while (0)

/* Each fills the zeroed data set; on failure the caller closes it. */
CR_MUST cr_status cr_cifar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_folder_open(const struct cr_config *config, enum cr_split split, const char *root,
                                 struct cr_dataset *dataset);
CR_MUST cr_status cr_packed_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_shapes_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_synthetic_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);

/* CIFAR records -> pixels [n][32][32][3] and labels [n]. A record is `label_bytes` (1: CIFAR-10; 2: CIFAR-100, of which
 * the second, fine label counts) and three planes of 1024 bytes. `first` numbers the records in messages.
 * CR_ERR_FORMAT: count is no whole number of records, or a label out of range. */
enum { CR_CIFAR_PIXEL_BYTES = 3072 };
CR_MUST cr_status cr_cifar_parse(const uint8_t *bytes, size_t count, int label_bytes, const char *name, int64_t first,
                                 uint8_t *pixels, int32_t *labels);

/* The names of the ten shapes, sorted; draws image `index` of a split, label index % 10, as [32][32][3]. */
enum { CR_SHAPES_CLASSES = 10, CR_SHAPES_SIDE = 32 };
const char *cr_shapes_class(int label);
void        cr_shapes_draw(enum cr_split split, int64_t index, uint8_t rgb[CR_SHAPES_SIDE * CR_SHAPES_SIDE * 3]);

/* A path into buf, as printf; CR_ERR_IO when it does not fit. */
CR_MUST cr_status cr_path_format(char buf[PATH_MAX], const char *fmt, ...) CR_PRINTF(2, 3);

/* FNV-1a over bytes, chained through `hash` (start with CR_HASH_START); finish with cr_hash_mix. */
#define CR_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t cr_hash_bytes(uint64_t hash, const void *bytes, size_t count);
uint64_t cr_hash_mix(uint64_t hash);

/* data/loader/shuffle.c: order[count] becomes the samples of an epoch in their order, a function of seed and epoch. */
void cr_order_shuffle(uint32_t *order, int64_t count, uint64_t seed, int64_t epoch);

#endif

/* data_impl.h: what the files of the data part share among themselves; everybody else includes data.h.
 *
 * Laws
 *   - Whatever a sample needs in memory lives in the scratch of the thread that works on it, so that a loader stops
 *     allocating once its largest picture has been met.
 *   - A view of a sample is borrowed: from the data set or from the scratch. It holds until the next call with them.
 * Knows what data.h knows. */
#ifndef CR_DATA_IMPL_H
#define CR_DATA_IMPL_H

#include "data.h"
#include "rng.h"

#include <limits.h>

/* ---- scratch: one per thread; a zeroed struct is empty ---------------------------------------------------------- */

struct cr_buffer {
    uint8_t *bytes;
    size_t   capacity;
};
struct cr_scratch {
    struct cr_buffer file, pixels, tables;
};
/* Makes room for `count` bytes; what was there is lost. CR_ERR_MEMORY. */
CR_MUST cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count);
void              cr_scratch_free(struct cr_scratch *scratch);

/* ---- pictures --------------------------------------------------------------------------------------------------- */

/* Checks width and height against the limits of data.h: CR_ERR_FORMAT. */
CR_MUST cr_status cr_image_check_size(int64_t width, int64_t height, const char *name);
/* Each decodes into `pixels`; view->rgb then points there. */
CR_MUST cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                                       struct cr_image *view);
CR_MUST cr_status cr_png_decode(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                                struct cr_image *view);
CR_MUST cr_status cr_jpeg_decode(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                                 struct cr_image *view);
CR_MUST cr_status cr_image_read_view(const char *path, struct cr_scratch *scratch, struct cr_image *view);

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

/* cr_prepare_train and cr_prepare_eval with the caller's scratch. */
CR_MUST cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_image *image, uint64_t seed,
                                        int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                        int32_t box[4]);
CR_MUST cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_image *image,
                                       struct cr_scratch *scratch, uint8_t *out);

/* The box x, y, width, height of a random_resized crop, as torchvision's RandomResizedCrop chooses it. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]);

/* ---- data sets -------------------------------------------------------------------------------------------------- */

struct cr_dataset_ops {
    cr_status (*view)(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                      struct cr_image *view, int32_t *label);
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
CR_MUST cr_status cr_shapes_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_synthetic_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);

/* CIFAR records -> pixels [n][32][32][3] and labels [n]. A record is `label_bytes` (1: CIFAR-10; 2: CIFAR-100, of which
 * the second, fine label counts) and three planes of 1024 bytes. `first` numbers the records in messages.
 * CR_ERR_FORMAT: count is no whole number of records, or a label out of range. */
enum { CR_CIFAR_PIXEL_BYTES = 3072 };
CR_MUST cr_status cr_cifar_parse(const uint8_t *bytes, size_t count, int label_bytes, const char *name, int64_t first,
                                 uint8_t *pixels, int32_t *labels);

/* The names of the ten shapes, sorted; draws picture `index` of a split, label index % 10, as [32][32][3]. */
enum { CR_SHAPES_CLASSES = 10, CR_SHAPES_SIDE = 32 };
const char *cr_shapes_class(int label);
void        cr_shapes_draw(enum cr_split split, int64_t index, uint8_t rgb[CR_SHAPES_SIDE * CR_SHAPES_SIDE * 3]);

/* A path into buf, as printf; CR_ERR_IO when it does not fit. */
CR_MUST cr_status cr_path_format(char buf[PATH_MAX], const char *fmt, ...) CR_PRINTF(2, 3);

/* FNV-1a over bytes, chained through `hash` (start with CR_HASH_START); finish with cr_hash_mix. */
#define CR_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t cr_hash_bytes(uint64_t hash, const void *bytes, size_t count);
uint64_t cr_hash_mix(uint64_t hash);

#endif

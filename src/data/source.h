/* data/source.h: the interface of a dataset format (data/source/), and what formats share: paths, hashes, threads. All
 * other folders include data/data.h.
 *
 * Invariant: stored samples are borrowed from the dataset or from the scratch. They are valid until the next call with
 * the same dataset or scratch. */
#ifndef CR_SOURCE_H
#define CR_SOURCE_H

#include "data/decode.h"

#include <limits.h>

enum { CR_SAMPLE_NAME_BYTES = PATH_MAX + 32, CR_DIGEST_BYTES = 64 << 10 };
struct cr_dataset_ops {
    /* Sets the bytes or the pixels of *out, borrowed from the dataset or the scratch; cr_dataset_fetch has set the
     * other members. */
    cr_status (*fetch)(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                       struct cr_stored *out);
    void (*name)(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size);
    int32_t (*label)(const struct cr_dataset *dataset, int64_t sample); /* without reading files */
    void (*close)(struct cr_dataset *dataset); /* frees state, which may be incomplete or NULL */
    /* Hash of the size and the first bytes of a sample, whether or not it can be decoded; 0 if it cannot be read.
     * `head` is working memory of CR_DIGEST_BYTES. NULL: the images are a function of the configuration. */
    uint64_t (*digest)(const struct cr_dataset *dataset, int64_t sample, uint8_t *head);
    /* After a sample was used: were its bytes there all the time? CR_ERR_IO. NULL: always. */
    cr_status (*check)(const struct cr_dataset *dataset);
};

/* Reads a sample as cr_dataset_get does; its stored bytes and its pixels are borrowed from the dataset or the scratch.
 */
CR_MUST cr_status cr_dataset_view(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                                  struct cr_stored *stored, struct cr_image *view, int32_t *label);

/* To be called with the status of fetching and using a sample: CR_ERR_IO if its file was cut off meanwhile. */
CR_MUST cr_status cr_dataset_check_used(const struct cr_dataset *dataset, cr_status status);
/* Is such a status the fault of one sample, which data.corrupt = skip leaves out? An input/output error of a file that
 * has all samples is not. */
bool cr_dataset_is_corrupt(const struct cr_dataset *dataset, cr_status status);

/* Allocates dataset->logged. CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_alloc_logged(struct cr_dataset *dataset);

/* The functions of the format, with labels as cr_dataset_renumber has set them. */
CR_MUST cr_status cr_dataset_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                                   struct cr_stored *out, int32_t *label);
int32_t           cr_dataset_label(const struct cr_dataset *dataset, int64_t sample);
/* The number of a sample in the format. */
int64_t cr_dataset_stored_as(const struct cr_dataset *dataset, int64_t sample);

/* data/source/edits.c: leaves out the images of data.exclude and replaces labels by data.labels. CR_ERR_CONFIG: a list
 * names an image that neither split has. CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_edit(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);

/* Each function fills the zeroed dataset; on failure the caller closes it. */
CR_MUST cr_status cr_cifar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_folder_open(const struct cr_config *config, enum cr_split split, const char *root,
                                 struct cr_dataset *dataset);
CR_MUST cr_status cr_csv_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_packed_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
CR_MUST cr_status cr_tar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset);
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

/* data/source/pack_jpeg.c: writes an image of the format CR_RGB8 or CR_GREY8 as a JPEG of `quality` 1 to 100: baseline,
 * one scan, no restarts, standard Huffman tables, chroma 4:2:0; one component if all pixels are grey. `out` grows.
 * CR_ERR_MEMORY. cr_jpeg_plain_components: the number of components, 1 or 3, of a baseline file of one scan without
 * restarts, grey or with chroma of at least half the width and height; 0 for other files. */
CR_MUST cr_status cr_jpeg_write(const struct cr_image *image, int quality, const char *name, struct cr_buffer *out,
                                size_t *count);
int               cr_jpeg_plain_components(const void *bytes, size_t count);

/* ---- data/source/path.c, data/source/hash.c, data/source/pack_read.c ---- */

/* Formats a path into buf like printf. CR_ERR_IO: the path is too long. */
CR_MUST cr_status cr_path_format(char buf[PATH_MAX], const char *fmt, ...) CR_PRINTF(2, 3);

/* FNV-1a over bytes, continued from `hash` (the first call passes CR_HASH_START). cr_hash_mix finishes the hash. */
#define CR_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t cr_hash_bytes(uint64_t hash, const void *bytes, size_t count);
uint64_t cr_hash_mix(uint64_t hash);
/* Hash of the size in bytes, the label and the first bytes of a sample; never 0. */
uint64_t cr_hash_sample(uint64_t size, int32_t label, const void *head, size_t count);

/* data/source/pack_read.c: runs work(argument) in this thread and in workers - 1 new threads. Threads that cannot be
 * started are left out. */
void cr_work_together(void *(*work)(void *), void *argument, int workers);

#endif

/* data/pack.h: the packed dataset: one file per split with all images and an index, made to be mapped into memory.
 *
 * Layout of a file. All numbers are little-endian. The index is last because a writer knows it last.
 *   - header: 128 bytes, see enum cr_pack_field; its last four bytes are the CRC-32C of the preceding bytes
 *   - names: class names in label order, each ended by a 0
 *   - images: one after the other without gaps: image files as they were, JPEGs of reduced size, or raw pixels
 *     [height][width] of the format in the header
 *   - index: 32 bytes per image: u64 offset in the file, u32 bytes, i32 label, u32 width, u32 height (of the stored
 *     image, before its EXIF orientation is applied), u32 CRC-32C of the bytes, u32 0
 *
 * Invariants
 *   - A file under its own name is complete: it is written under a temporary name, synced and renamed, and never
 *     changed afterwards.
 *   - A reader trusts nothing: it checks sizes, offsets, counts, labels and both checksums when it opens a file, and
 *     the checksum of an image when it reads the image. Every message names the file and says what to do.
 *   - Every image was decoded to its end when it was packed. A correct checksum therefore proves that the image can be
 *     decoded.
 *   - The index is copied when a file is opened. A file that is shortened or changed in use gives an error, no signal
 *     (data/source/pack_map.c). */
#ifndef CR_PACK_H
#define CR_PACK_H

#include "data/data.h"

#include <stdatomic.h>

#define CR_PACK_MAGIC                                                                                                  \
    "\x89"                                                                                                             \
    "CRPK\r\n\x1a"
enum { CR_PACK_VERSION = 1, CR_PACK_HEADER_BYTES = 128, CR_PACK_ENTRY_BYTES = 32 };
/* Names of the files of a packed dataset in its folder. */
#define CR_PACK_TRAIN_NAME "train.crpk"
#define CR_PACK_VAL_NAME "val.crpk"
enum cr_pack_form { CR_PACK_ENCODED, CR_PACK_RAW };

/* Offsets of the numbers in the header. All other bytes are 0. */
enum cr_pack_field {
    CR_PACK_AT_MAGIC        = 0,
    CR_PACK_AT_VERSION      = 8,  /* u32 */
    CR_PACK_AT_FORM         = 12, /* u32, enum cr_pack_form */
    CR_PACK_AT_FILE_BYTES   = 16, /* u64 */
    CR_PACK_AT_COUNT        = 24, /* u64: number of images */
    CR_PACK_AT_CLASSES      = 32, /* u32 */
    CR_PACK_AT_TABLES_CRC   = 36, /* u32: CRC-32C of names and index */
    CR_PACK_AT_NAMES_BYTES  = 40, /* u64: length of the names, which follow the header */
    CR_PACK_AT_INDEX_OFFSET = 48, /* u64 */
    CR_PACK_AT_FLAGS        = 56, /* u32: CR_PACK_EXIF or 0 */
    CR_PACK_AT_FORMAT       = 60, /* u32, enum cr_pixel_format of raw pixels; 0 (RGB, 8 bits) in encoded files. The
                                   * samples of 16 bits are little-endian */
    CR_PACK_AT_HEADER_CRC   = 124,
};
/* The EXIF orientation of encoded images is applied when they are decoded, if data.exif is on; that of raw pixels was
 * applied when they were packed. Without this flag images are used as stored: in files of cresnet 0.3.0 and older, and
 * JPEGs of reduced size, which are upright. */
enum { CR_PACK_EXIF = 1 };

/* ---- reading ---- */

/* An open file, which nobody changes. The members from `bytes` on are for data/source/pack_read.c only. */
struct cr_pack {
    char                *name; /* the path, or the name passed at opening */
    int64_t              count;
    int                  classes;
    const char         **class_names; /* [classes] */
    enum cr_pack_form    form;
    enum cr_pixel_format format; /* of raw pixels */
    uint32_t             flags;  /* CR_PACK_EXIF or 0 */

    const uint8_t      *bytes;
    struct cr_pack_map *map; /* of `bytes`; NULL: they are the caller's */
    size_t              size;
    char               *names; /* class names, as the file has them */
    uint8_t            *index; /* a copy: it is valid whatever happens to the file */
};
struct cr_pack_entry { /* index entry of one image; offset and size in bytes, width and height in pixels */
    uint64_t offset;
    uint32_t bytes, crc;
    int32_t  label, width, height;
};
/* Opens and checks a packed file; the caller closes it with cr_pack_close. CR_ERR_IO: the file cannot be read.
 * CR_ERR_FORMAT: the file is damaged or is no packed dataset. CR_ERR_MEMORY. */
CR_MUST cr_status cr_pack_open(const char *path, struct cr_pack **out);
/* The same for bytes in memory, which the caller keeps until cr_pack_close; `name` is used in messages. */
CR_MUST cr_status    cr_pack_open_bytes(const void *bytes, size_t count, const char *name, struct cr_pack **out);
void                 cr_pack_close(struct cr_pack *pack); /* NULL is allowed */
struct cr_pack_entry cr_pack_entry(const struct cr_pack *pack, int64_t image);
/* Checks the checksum of an image: CR_ERR_FORMAT; CR_ERR_IO as cr_pack_check. *bytes points into the file and is valid
 * until cr_pack_close. Any number of threads may read. */
CR_MUST cr_status cr_pack_read(const struct cr_pack *pack, int64_t image, struct cr_pack_entry *entry,
                               const uint8_t **bytes);
/* To be called after the bytes of an image were used. CR_ERR_IO: the file was shortened meanwhile, and some of the
 * bytes may have been zeros. */
CR_MUST cr_status cr_pack_check(const struct cr_pack *pack);
/* Reads and decodes every image with `workers` threads. Returns the error of the first faulty image in the file. */
CR_MUST cr_status cr_pack_verify(const struct cr_pack *pack, int workers);

/* ---- writing ---- */

struct cr_pack_writer; /* writes a file; images are added in the order of the index */
/* Creates a temporary file next to `path`. The caller ends with cr_pack_finish or cr_pack_abandon. CR_ERR_IO,
 * CR_ERR_MEMORY. format: of raw pixels. flags: CR_PACK_EXIF or 0. */
CR_MUST cr_status cr_pack_create(const char *path, enum cr_pack_form form, enum cr_pixel_format format, uint32_t flags,
                                 const char *const *class_names, int classes, struct cr_pack_writer **out);
/* Appends one image: `count` bytes, its label and its size in pixels. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_pack_add(struct cr_pack_writer *writer, const void *bytes, size_t count, int32_t label, int width,
                              int height);
/* Completes the file and renames it to its path. Frees the writer, also on failure. */
CR_MUST cr_status cr_pack_finish(struct cr_pack_writer *writer);
void              cr_pack_abandon(
                 struct cr_pack_writer *writer); /* removes the temporary file and frees the writer; NULL is allowed */

/* Options of cr_pack_dataset. At most one of raw_side and jpeg_side is above 0: the short side of every image is
 * reduced to it (smaller images keep their size), and the upright image is stored as pixels or as a JPEG. With
 * raw_side, evaluation gets the same pixels as from the files if data.eval_resize is raw_side. With neither, files are
 * stored unchanged. */
struct cr_pack_options {
    int  raw_side, jpeg_side;
    int  quality; /* of the JPEGs, 1 to 100 */
    int  workers;
    bool corrupt_fatal; /* fail at an image that cannot be read; otherwise log it and skip it */

    const atomic_int
        *stop; /* may be NULL; when it becomes nonzero, packing stops with CR_ERR_INTERRUPTED and leaves no file */
};
struct cr_pack_result { /* images written, images skipped, bytes of the images written */
    int64_t images, skipped, bytes;
};
/* Can a dataset of these labels and pixels be packed? CR_ERR_CONFIG. */
CR_MUST cr_status cr_pack_allowed(const struct cr_dataset *dataset, const struct cr_pack_options *options);
/* Packs a whole dataset into the file `path`. */
CR_MUST cr_status cr_pack_dataset(const struct cr_dataset *dataset, const char *path,
                                  const struct cr_pack_options *options, struct cr_pack_result *out);

#endif

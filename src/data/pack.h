/* data/pack.h: the packed data set: one file a split that holds every image with an index, made to be mapped into
 * memory.
 *
 *   header     128 bytes, see below; its last four are the CRC-32C of the ones before
 *   names      class names in label order, each ended by a 0
 *   images   one behind the other without gaps: PNG and JPEG files as they were, or raw pixels [height][width][3]
 *   index      32 bytes an image: u64 offset in the file, u32 bytes, i32 label, u32 width, u32 height,
 *              u32 CRC-32C of the bytes, u32 0
 * All numbers are little-endian. The index stands last, since a writer knows it last.
 *
 * Laws
 *   - A file under its own name is complete: it is written aside, synced and renamed, and never changed afterwards.
 *   - A reader believes nothing: sizes, offsets, counts, labels and both checksums are checked when a file is opened, an
 *     image's checksum when it is read. Whatever is wrong, the message names the file and says what to do.
 *   - Every image was decoded to its end when it was packed; its checksum says that it is still the same.
 * A file that is cut short while it is mapped ends the program (SIGBUS), as with every mapped file; other changes of it
 * are met as damage. */
#ifndef CR_PACK_H
#define CR_PACK_H

#include "data/data.h"

#include <stdatomic.h>

#define CR_PACK_MAGIC                                                                                                  \
    "\x89"                                                                                                             \
    "CRPK\r\n\x1a"
enum { CR_PACK_VERSION = 1, CR_PACK_HEADER_BYTES = 128, CR_PACK_ENTRY_BYTES = 32 };
/* The files of a packed data set in its folder. */
#define CR_PACK_TRAIN_NAME "train.crpk"
#define CR_PACK_VAL_NAME "val.crpk"
enum cr_pack_form { CR_PACK_ENCODED, CR_PACK_RAW };

/* Where each number stands in the header. Bytes that are not named are 0. */
enum cr_pack_field {
    CR_PACK_AT_MAGIC        = 0,
    CR_PACK_AT_VERSION      = 8,  /* u32 */
    CR_PACK_AT_FORM         = 12, /* u32, enum cr_pack_form */
    CR_PACK_AT_FILE_BYTES   = 16, /* u64 */
    CR_PACK_AT_COUNT        = 24, /* u64: images */
    CR_PACK_AT_CLASSES      = 32, /* u32 */
    CR_PACK_AT_TABLES_CRC   = 36, /* u32: of names and index */
    CR_PACK_AT_NAMES_BYTES  = 40, /* u64: names follow the header */
    CR_PACK_AT_INDEX_OFFSET = 48, /* u64 */
    CR_PACK_AT_HEADER_CRC   = 124,
};

/* CRC-32C (Castagnoli) of the bytes, chained: start with 0. */
uint32_t cr_crc32c(uint32_t crc, const void *bytes, size_t count);
uint32_t cr_crc32c_plain(uint32_t crc, const void *bytes, size_t count); /* the same without the CPU's instruction */

/* ---- reading ---- */

struct cr_pack;
struct cr_pack_entry {
    uint64_t offset;
    uint32_t bytes, crc;
    int32_t  label, width, height;
};
CR_MUST cr_status cr_pack_open(const char *path, struct cr_pack **out);
/* The same for bytes in memory, which must stay; `name` is used in messages. */
CR_MUST cr_status    cr_pack_open_bytes(const void *bytes, size_t count, const char *name, struct cr_pack **out);
void                 cr_pack_close(struct cr_pack *pack); /* NULL is fine */
int64_t              cr_pack_count(const struct cr_pack *pack);
int                  cr_pack_classes(const struct cr_pack *pack);
const char          *cr_pack_class_name(const struct cr_pack *pack, int label);
enum cr_pack_form    cr_pack_form(const struct cr_pack *pack);
const char          *cr_pack_name(const struct cr_pack *pack); /* of the file */
struct cr_pack_entry cr_pack_entry(const struct cr_pack *pack, int64_t image);
/* Checks the image's place and checksum: CR_ERR_FORMAT. *bytes points into the file and holds until cr_pack_close.
 * Any number of threads may read. */
CR_MUST cr_status cr_pack_read(const struct cr_pack *pack, int64_t image, struct cr_pack_entry *entry,
                               const uint8_t **bytes);
/* Reads and decodes every image, with `workers` threads; of the faults the first in the file comes back. */
CR_MUST cr_status cr_pack_verify(const struct cr_pack *pack, int workers);

/* ---- writing ---- */

struct cr_pack_writer;
CR_MUST cr_status cr_pack_create(const char *path, enum cr_pack_form form, const char *const *class_names, int classes,
                                 struct cr_pack_writer **out);
CR_MUST cr_status cr_pack_add(struct cr_pack_writer *writer, const void *bytes, size_t count, int32_t label, int width,
                              int height);
/* Completes the file under its name. The writer is gone afterwards, on failure too. */
CR_MUST cr_status cr_pack_finish(struct cr_pack_writer *writer);
void              cr_pack_abandon(struct cr_pack_writer *writer); /* removes what was written; NULL is fine */

/* Packs a whole data set. With raw_side > 0 every image is stored as pixels, its short side reduced to raw_side
 * (smaller ones stay as they are); evaluation then has the same pixels as from the files when data.eval_resize is
 * raw_side. */
struct cr_pack_options {
    int  raw_side, workers;
    bool corrupt_fatal; /* else an image that cannot be read is named and left out */

    const atomic_int *stop; /* not 0: give up, leaving nothing behind, with CR_ERR_INTERRUPTED; may be NULL */
};
struct cr_pack_result {
    int64_t images, skipped, bytes;
};
CR_MUST cr_status cr_pack_dataset(const struct cr_dataset *dataset, const char *path,
                                  const struct cr_pack_options *options, struct cr_pack_result *out);

#endif

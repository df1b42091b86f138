/* formats/safetensors.h: reading and writing the safetensors container. The reader trusts nothing: every length,
 * offset, shape and name is checked against the file before anybody sees it. Format: u64 little-endian header length N,
 * N bytes of JSON, then the tensors without gaps (github.com/huggingface/ safetensors). Tensors are streamed: neither
 * side ever holds the whole file.
 *
 * Laws
 *   - A file that opens is well formed to the last byte: known element types, shapes that fit their bytes, tensors that
 *     cover the data part without holes or overlaps, no name twice, nothing in the header that is not in the format.
 *   - Equal content gives equal bytes: the writer sorts tensors and metadata and adds nothing of its own.
 *   - A writer's file exists only whole: anything that fails removes it.
 * Knows nothing of stores or models. */
#ifndef CR_SAFETENSORS_H
#define CR_SAFETENSORS_H

#include "core/base.h"
#include "core/dtype.h"

enum { CR_ST_DIMS_MAX = 8, CR_ST_HEADER_MAX = 100000000 };

struct cr_st_entry {
    const char   *name;
    enum cr_dtype dtype;
    int           dims; /* 0: a scalar */
    int64_t       dim[CR_ST_DIMS_MAX];
    uint64_t      offset, bytes; /* offset from the start of the data part; the writer fills both */
};
struct cr_st_meta {
    const char *key, *value;
};

/* ---- reader ---- */
struct cr_st_file;
/* Opens and checks. CR_ERR_IO: cannot be read; CR_ERR_FORMAT: anything wrong with the content; the message names the
 * path and the reason. Names and values live as long as the file is open. Not for use by two threads at once, but for
 * cr_st_read, which keeps no position. */
CR_MUST cr_status         cr_st_open(const char *path, struct cr_st_file **out);
void                      cr_st_close(struct cr_st_file *file); /* NULL is fine */
int                       cr_st_count(const struct cr_st_file *file);
const struct cr_st_entry *cr_st_at(const struct cr_st_file *file, int i);                  /* in file order */
const struct cr_st_entry *cr_st_find(const struct cr_st_file *file, const char *name);     /* NULL: none */
const char               *cr_st_meta_find(const struct cr_st_file *file, const char *key); /* NULL: none */
/* Takes `prefix` off the names when all of them begin with it and none is nothing else: false when not so. */
bool cr_st_strip(struct cr_st_file *file, const char *prefix);
/* Reads `bytes` bytes of the tensor, starting `from` bytes into it; beyond its end is a mistake of the caller. */
CR_MUST cr_status cr_st_read(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst,
                             size_t bytes);

/* "[64, 3, 7, 7]" for messages; "[]" for a scalar. */
enum { CR_ST_SHAPE_TEXT = CR_ST_DIMS_MAX * 22 + 3 };
void cr_st_shape_text(char out[CR_ST_SHAPE_TEXT], int dims, const int64_t *dim);

/* ---- writer ---- */
struct cr_st_writer;
/* Creates `path` (which must not exist: O_EXCL) and writes the header. Entries are sorted as the reference writer does:
 * by element type, I64 F64 F32 I32 BF16 F16 U8 (so larger elements come first and all are aligned), then by name;
 * cr_st_write must then be called in the order that cr_st_writer_entry gives. Metadata is written sorted by key; with
 * meta_count = 0 there is none. Names and metadata must be UTF-8 (CR_ERR_FORMAT) and distinct. The entries' own names
 * must live until cr_st_finish or cr_st_abandon. */
CR_MUST cr_status         cr_st_create(const char *path, const struct cr_st_entry *entries, int count,
                                       const struct cr_st_meta *meta, int meta_count, struct cr_st_writer **out);
const struct cr_st_entry *cr_st_writer_entry(const struct cr_st_writer *writer, int i); /* ith in file order */
int                       cr_st_writer_index(const struct cr_st_writer *writer, int i); /* its place in `entries` */
CR_MUST cr_status         cr_st_write(struct cr_st_writer *writer, const void *src, size_t bytes);
/* Checks that exactly the announced bytes were written, fsyncs and closes; frees the writer whatever happens, and
 * removes the file on failure. */
CR_MUST cr_status cr_st_finish(struct cr_st_writer *writer);
void              cr_st_abandon(struct cr_st_writer *writer); /* closes and unlinks; NULL is fine */

#endif

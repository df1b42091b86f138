/* safetensors.h: reading and writing the safetensors container. The reader trusts nothing: every length, offset,
 * shape and name is checked against the file before anybody sees it.
 * Format: u64 little-endian header length N, N bytes of JSON, then the tensors without gaps (github.com/huggingface/
 * safetensors). Tensors are streamed: neither side ever holds the whole file.
 * Knows nothing of stores or models. */
#ifndef CR_SAFETENSORS_H
#define CR_SAFETENSORS_H

#include "base.h"
#include "dtype.h"

enum { CR_ST_DIMS_MAX = 8, CR_ST_HEADER_MAX = 100000000 };

struct cr_st_entry {
    const char   *name;
    enum cr_dtype dtype;
    int           dims;
    int64_t       dim[CR_ST_DIMS_MAX];
    uint64_t      offset, bytes; /* offset from the start of the data part; the writer fills it */
};
struct cr_st_meta {
    const char *key, *value;
};

/* ---- reader ---- */
struct cr_st_file;
/* Opens and checks. CR_ERR_IO: cannot be read; CR_ERR_FORMAT: anything wrong with the content; the message names the
 * path and the reason. */
CR_MUST cr_status         cr_st_open(const char *path, struct cr_st_file **out);
void                      cr_st_close(struct cr_st_file *file); /* NULL is fine */
int                       cr_st_count(const struct cr_st_file *file);
const struct cr_st_entry *cr_st_at(const struct cr_st_file *file, int i);                /* in file order */
const struct cr_st_entry *cr_st_find(const struct cr_st_file *file, const char *name);   /* NULL: none */
const char               *cr_st_meta_find(const struct cr_st_file *file, const char *key); /* NULL: none */
/* Reads `bytes` bytes of the tensor, starting `from` bytes into it. */
CR_MUST cr_status cr_st_read(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst,
                             size_t bytes);

/* ---- writer ---- */
struct cr_st_writer;
/* Creates `path` (which must not exist: O_EXCL) and writes the header. Entries keep their order, but for dtype size, as
 * the reference writer sorts: larger elements first, then by name; the writer sorts, and cr_st_write must then be called
 * in the order that cr_st_writer_entry gives. Metadata is written sorted by key. Equal content gives equal bytes. */
CR_MUST cr_status         cr_st_create(const char *path, const struct cr_st_entry *entries, int count,
                                       const struct cr_st_meta *meta, int meta_count, struct cr_st_writer **out);
const struct cr_st_entry *cr_st_writer_entry(const struct cr_st_writer *writer, int i); /* ith in file order */
CR_MUST cr_status         cr_st_write(struct cr_st_writer *writer, const void *src, size_t bytes);
/* Checks that exactly the announced bytes were written, fsyncs and closes; frees the writer whatever happens. */
CR_MUST cr_status cr_st_finish(struct cr_st_writer *writer);
void              cr_st_abandon(struct cr_st_writer *writer); /* closes and unlinks; NULL is fine */

#endif

/* formats/safetensors.h: reads and writes safetensors files.
 *
 * Format (github.com/huggingface/safetensors): u64 little-endian header length N, N bytes of JSON, then the tensors
 * without gaps. The reader validates every length, offset, shape and name against the file before it returns them.
 * Tensors are streamed: neither reader nor writer holds the whole file in memory.
 *
 * Invariants
 *   - An opened file is valid to its last byte: known element types, shapes that match their sizes, tensors that cover
 *     the data section without gaps or overlaps, unique names, only header fields that the format defines.
 *   - Equal content gives identical bytes: the writer sorts tensors and metadata and adds nothing.
 *   - The writer leaves no partial file: a failure removes the file.
 *
 * Checksums: files that cresnet writes have CRC-32C sums (8 hexadecimal digits) in two entries of their metadata, which
 * other programs skip. CR_ST_TENSOR_SUMS has one sum for each tensor, in file order, and CR_ST_HEADER_SUM one for the
 * header with its length, in which the digits of this very sum count as '0'. With one of the two entries alone, the
 * header is damaged; a file with neither, from another program or an older cresnet, is read without checks. Opening
 * checks the header, reading a whole tensor checks the tensor.
 * This file does not depend on parameter stores or models. */
#ifndef CR_SAFETENSORS_H
#define CR_SAFETENSORS_H

#include "core/base.h"
#include "core/dtype.h"

#define CR_ST_TENSOR_SUMS "cresnet_tensor_crc32c"
#define CR_ST_HEADER_SUM "cresnet_header_crc32c"

enum { CR_ST_DIMS_MAX = 8, CR_ST_HEADER_MAX = 100000000 };

struct cr_st_entry {
    const char   *name;
    enum cr_dtype dtype;
    int           dims; /* 0 for a scalar */
    int64_t       dim[CR_ST_DIMS_MAX];
    uint64_t      offset, bytes; /* bytes; offset is from the start of the data section; the writer sets both */
    uint32_t      crc;           /* CRC-32C of the tensor's bytes, if the file that was read has sums */
};
struct cr_st_meta {
    const char *key, *value; /* the key is first: cr_compare_texts sorts by it */
};

/* ---- reader ---- */
struct cr_st_file;
/* Opens and validates a file. CR_ERR_IO: unreadable; CR_ERR_FORMAT: invalid content. The message names the path and the
 * reason. Names and values are valid until cr_st_close. Not thread-safe, except cr_st_read, which keeps no position. */
CR_MUST cr_status cr_st_open(const char *path, struct cr_st_file **out);
/* The same for a safetensors file, an index of several (model.safetensors.index.json) or a PyTorch file
 * (formats/torch.h), or a part of one: FILE:KEY means the entry KEY of a PyTorch file ("model_ema"), or the tensors of
 * any file whose names begin with "KEY.", without this prefix. */
CR_MUST cr_status cr_st_open_any(const char *given, struct cr_st_file **out);
/* The KEY of FILE:KEY; NULL when `given` is the name of a file itself, or FILE is none. */
const char               *cr_st_key(const char *given);
void                      cr_st_close(struct cr_st_file *file); /* NULL is allowed */
int                       cr_st_count(const struct cr_st_file *file);
const struct cr_st_entry *cr_st_at(const struct cr_st_file *file, int i);                  /* in file order */
const struct cr_st_entry *cr_st_find(const struct cr_st_file *file, const char *name);     /* NULL if missing */
const char               *cr_st_meta_find(const struct cr_st_file *file, const char *key); /* NULL if missing */
/* Removes `prefix` from all names. Tensors without it can no longer be found: see cr_st_outside. Pointers to entries
 * become invalid. CR_ERR_MEMORY. */
CR_MUST cr_status         cr_st_strip(struct cr_st_file *file, const char *prefix);
const char               *cr_st_prefix(const struct cr_st_file *file);         /* what was removed; "" if nothing */
const struct cr_st_entry *cr_st_outside(const struct cr_st_file *file, int i); /* tensor i without it; NULL: no more */
/* Gives a tensor another name, which must outlive the file. Pointers to entries stay valid. CR_ERR_MEMORY. */
CR_MUST cr_status cr_st_rename(struct cr_st_file *file, const struct cr_st_entry *entry, const char *name);
/* A PyTorch file with several networks: a sentence that names the chosen one and the others; NULL otherwise. */
const char *cr_st_note(const struct cr_st_file *file);
/* Reads `bytes` bytes of the tensor from byte `from` on. The range must lie inside the tensor. */
CR_MUST cr_status cr_st_read(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst,
                             size_t bytes);
/* The same for a whole tensor, and checks its sum. CR_ERR_FORMAT names a damaged tensor. */
CR_MUST cr_status cr_st_read_whole(struct cr_st_file *file, const struct cr_st_entry *entry, void *dst);
/* Reads a whole tensor only to check its sum; without sums nothing is read. Thread-safe. */
CR_MUST cr_status cr_st_verify(struct cr_st_file *file, const struct cr_st_entry *entry);
/* For a tensor that the caller reads in parts: compares the CRC-32C of all its bytes with the sum in the file. CR_OK in
 * a file without sums. */
CR_MUST cr_status cr_st_check_sum(const struct cr_st_file *file, const struct cr_st_entry *entry, uint32_t crc);
bool              cr_st_has_sums(const struct cr_st_file *file);

/* Writes "[64, 3, 7, 7]" for messages; "[]" for a scalar. */
enum { CR_ST_SHAPE_TEXT = CR_ST_DIMS_MAX * 22 + 3 };
void cr_st_shape_text(char out[CR_ST_SHAPE_TEXT], int dims, const int64_t *dim);

/* ---- writer ---- */
struct cr_st_writer;
#define CR_ST_SUMS ((struct cr_st_meta){CR_ST_TENSOR_SUMS, NULL})
/* Creates `path` (O_EXCL: it must not exist) and writes the header. Entries are sorted like those of the reference
 * writer: by element type, I64 F64 F32 I32 BF16 F16 I8 U8 (larger elements first, so all are aligned), then by name.
 * cr_st_write must be called in the order of cr_st_writer_entry. Metadata is sorted by key; meta_count = 0 writes none.
 * The pair CR_ST_SUMS in the metadata requests checksums: space for them is left in the header and filled at the end.
 * Names and metadata must be UTF-8 and unique (CR_ERR_FORMAT). The names in `entries` must stay valid until
 * cr_st_finish or cr_st_abandon. */
CR_MUST cr_status cr_st_create(const char *path, const struct cr_st_entry *entries, int count,
                               const struct cr_st_meta *meta, int meta_count, struct cr_st_writer **out);
/* The same for a new file that is open for writing; fd < 0: creates it. The writer closes it, also on failure. */
CR_MUST cr_status cr_st_create_at(int fd, const char *path, const struct cr_st_entry *entries, int count,
                                  const struct cr_st_meta *meta, int meta_count, struct cr_st_writer **out);
/* Entry i in file order. If the file gets checksums, its crc is that of the bytes that were written. */
const struct cr_st_entry *cr_st_writer_entry(const struct cr_st_writer *writer, int i);
int                       cr_st_writer_index(const struct cr_st_writer *writer, int i); /* its index in `entries` */
/* Appends `bytes` bytes of tensor data. CR_ERR_IO. */
CR_MUST cr_status cr_st_write(struct cr_st_writer *writer, const void *src, size_t bytes);
/* Checks that exactly the declared bytes were written, syncs and closes the file. Always frees the writer, which
 * becomes NULL; removes the file on failure. */
CR_MUST cr_status cr_st_finish(struct cr_st_writer **writer);
void              cr_st_abandon(struct cr_st_writer *writer); /* closes and removes the file; NULL is allowed */

#endif

/* formats/safetensors_file.h: what an open file of tensors is: for safetensors_*.c, tensor_*.c and torch/ only. */
#ifndef CR_SAFETENSORS_FILE_H
#define CR_SAFETENSORS_FILE_H

#include "formats/safetensors.h"

#include <pthread.h>

/* Where the bytes of a tensor are, when they do not lie at its offset in this file, in order. */
struct cr_st_view {
    /* PyTorch files: a tensor that is not contiguous */
    bool           strided;
    int64_t        stride[CR_ST_DIMS_MAX]; /* elements, >= 0 */
    unsigned char *span;                   /* from its first to its last element, while it is read; NULL otherwise */
    /* an index of several files */
    struct cr_st_file        *shard; /* the file that has the tensor; NULL: this one */
    const struct cr_st_entry *entry; /* of that file */
};

struct cr_st_file {
    int                        fd;
    char                      *path;
    char                      *header; /* the JSON text, 0-terminated; NULL for PyTorch files */
    uint64_t                   header_bytes, data_bytes;
    uint64_t                   data_begin; /* offset of the data section in the file: 0 for PyTorch files */
    struct cr_st_entry        *entries;    /* in file order */
    const struct cr_st_entry **by_name;
    struct cr_st_view         *view;      /* one per entry of PyTorch files and indices; NULL for a safetensors file */
    pthread_mutex_t            span_lock; /* of the spans in `view` */
    struct cr_st_file        **shard;     /* the files of an index */
    int                        shards, shards_capacity;
    int                        count, capacity;
    int                        outside; /* entries after the first `count`: tensors without the prefix of the others */
    char                      *prefix;  /* removed from the names; NULL: none. In the arena, as is the note */
    char                      *note; /* which entry of a PyTorch file was chosen of which; NULL: there was no choice */
    struct cr_st_meta         *meta; /* sorted by key */
    int                        meta_count, meta_capacity;
    bool                       has_meta;
    bool                       header_checked; /* the header has a sum, and it is correct */
    bool                       has_sums;       /* the entries have sums */
    struct cr_arena            arena;          /* owns the names of PyTorch files, the prefix and the note */
};

/* Makes the structure of a file that is not open yet; cr_st_close frees it. CR_ERR_MEMORY. */
CR_MUST cr_status cr_st_new(const char *path, struct cr_st_file **out);
/* Fills by_name. Returns a name that two entries have, or NULL. CR_ERR_MEMORY. */
CR_MUST cr_status cr_st_sort_names(struct cr_st_file *file, const char **twice);
/* ---- safetensors_sums.c ---- */
/* The sum of a header, whose own sum is at digits_at. */
uint32_t cr_st_header_crc(const char *header, size_t bytes, size_t digits_at);
/* Checks the header before it is parsed, which changes it. */
CR_MUST cr_status cr_st_check_header(struct cr_st_file *file);
/* Fills the sums of the entries and sets file->has_sums, after the header was parsed. */
CR_MUST cr_status cr_st_find_sums(struct cr_st_file *file);

/* ---- tensor_kind.c ---- */
enum { CR_ST_HEAD_BYTES = 512 };
/* True for the first bytes of a PyTorch file: zip archive or pickle. */
bool cr_st_is_torch(const unsigned char head[CR_ST_HEAD_BYTES]);
/* True for the first bytes of an index of safetensors files, which is JSON. */
bool cr_st_is_index(const unsigned char head[CR_ST_HEAD_BYTES]);
/* CR_ERR_FORMAT with a message that says what the file is, if it is neither a safetensors file nor an index. `got`: the
 * number of bytes that the file has, at most CR_ST_HEAD_BYTES; the others of `head` are 0. */
CR_MUST cr_status cr_st_check_kind(const char *path, const unsigned char head[CR_ST_HEAD_BYTES], size_t got);
/* ---- safetensors_shards.c ---- */
/* Opens an index and the files that it names. CR_ERR_FORMAT, CR_ERR_IO. */
CR_MUST cr_status cr_st_open_index(const char *path, struct cr_st_file **out);
/* tensor_file.c: cr_st_open_any for a file that is no index. */
CR_MUST cr_status cr_st_open_one(const char *given, struct cr_st_file **out);
/* tensor_file.c: keeps only the tensors whose names begin with "KEY.", and removes this prefix. CR_ERR_FORMAT when
 * there are none. */
CR_MUST cr_status cr_st_keep_key(struct cr_st_file *file, const char *key);
/* tensor_file.c: reads a part of a strided tensor; see cr_st_read. */
CR_MUST cr_status cr_torch_read_strided(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from,
                                        void *dst, size_t bytes);

#endif

/* data/source/tar/tar.h: tar archives of images and labels ("shards"), as WebDataset defines them, and ImageNet's own
 * archives. Private to data/source/tar/.
 *
 *   tar_read.c    the members of an archive            tar_shards.c  the archives that a configuration names
 *   tar_index.c   the samples of an archive            tar_labels.c  labels and classes of samples
 *   tar_cache.c   all samples, from a stored list      tar.c         the dataset
 *
 * Invariants
 *   - The name of a member is the name of a sample and nothing else: no file of this name is opened. Links are not
 *     followed.
 *   - Nothing of an archive is trusted: checksums of headers, sizes and places are checked.
 *   - Samples are sorted by class, then by the name of the image, as in a folder of images. How they are divided into
 *     archives changes nothing. */
#ifndef CR_TAR_H
#define CR_TAR_H

#include "data/source.h"
#include "data/source/folder_list.h"

/* ---- tar_read.c ---- */

enum { CR_TAR_BLOCK = 512, CR_TAR_WINDOW = 8192 };
enum cr_tar_kind { CR_TAR_FILE, CR_TAR_FOLDER, CR_TAR_SKIPPED /* a link, a device, a sparse file */, CR_TAR_END };
struct cr_tar_member {
    enum cr_tar_kind kind;
    uint64_t         offset, bytes; /* of its data in the file; CR_TAR_FILE only */
    char             path[PATH_MAX];
};
struct cr_tar_pax { /* what an extended header says about a member */
    bool     has_path, has_bytes, sparse;
    uint64_t bytes;
    char     path[PATH_MAX];
};
struct cr_tar_reader {
    const char *name;    /* of the file, for messages */
    int         fd;      /* borrowed */
    uint64_t    at, end; /* of the next header, and of the archive, in the file */
    uint64_t    begin;
    uint32_t    crc;   /* CRC-32C of all headers so far */
    bool        ended; /* the archive has a mark at its end */

    struct cr_tar_pax global;
    uint8_t           window[CR_TAR_WINDOW]; /* a part of the file */
    uint64_t          window_at;
    size_t            window_count;
};
/* Starts to read the archive that is in the bytes [begin, end) of a file. */
void cr_tar_start(struct cr_tar_reader *reader, const char *name, int fd, uint64_t begin, uint64_t end);
/* Finds the next member; after the last one, its kind is CR_TAR_END. ustar, pax and GNU archives are read. Archives
 * that were written one after the other into a file are read as one, as by tar -i. CR_ERR_FORMAT: the message names
 * the file and the place. CR_ERR_IO: the file cannot be read, or was cut off. CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_next(struct cr_tar_reader *reader, struct cr_tar_member *member);
/* Reads bytes of the file; CR_ERR_IO also when it was cut off. */
CR_MUST cr_status cr_tar_read(int fd, const char *name, uint64_t offset, void *to, size_t count);

/* ---- tar_index.c ---- */

/* Members of an archive that are no samples: their number, and the name of the first one. */
enum cr_tar_note_kind {
    CR_TAR_NO_LABEL,  /* images without a label */
    CR_TAR_NO_IMAGE,  /* labels without an image */
    CR_TAR_BAD_LABEL, /* images with an unusable label */
    CR_TAR_PASSED,    /* links, devices and sparse files */
    CR_TAR_DOTS,      /* images whose names have several dots, so that the ending is not that of an image */
    CR_TAR_NO_END,    /* archives without a mark at their end */
    CR_TAR_NOTES
};
struct cr_tar_note {
    int64_t count;
    char    first[300];
};
struct cr_tar_shard {
    char                 *path;
    uint64_t              bytes;
    struct cr_list_stamp  stamp;
    uint32_t              crc, crc_before; /* CRC-32C of headers and labels; before: of the stored list */
    cr_status             status;          /* of listing its samples */
    char                  error[1024];
    bool                  listed; /* the members below are known */
    int64_t               samples;
    struct cr_tar_note    note[CR_TAR_NOTES];
    struct cr_list_reader list;  /* its samples, sorted by name, as cr_tar_take_sample reads them */
    struct cr_text        block; /* which `list` points into, unless they are in a stored list */
};
struct cr_tar_sample {
    char        name[PATH_MAX]; /* the path of its image in the archive */
    const char *label;          /* with data.multi_label: a line for each label */
    uint64_t    offset;         /* of the image in the file */
    uint32_t    bytes;
};
/* The labels of ImageNet's validation images, which their archive lacks: label[i] is that of image i + 1. */
struct cr_tar_val_labels {
    char        *text, *map; /* which the labels point into */
    const char **label;
    int64_t      count;
    uint64_t     hash; /* of the labels */
};
struct cr_tar_options {
    const char              *label_key; /* data.label_key */
    bool                     several;   /* data.multi_label */
    struct cr_tar_val_labels val;
};
/* Lists the samples of the archive shard->path, of shard->bytes bytes. CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_index_shard(struct cr_tar_shard *shard, const struct cr_tar_options *options);
/* Takes the next sample of a shard. `sample` holds the one before. CR_ERR_FORMAT: the stored list is damaged. */
CR_MUST cr_status cr_tar_take_sample(const struct cr_tar_shard *shard, struct cr_list_reader *list,
                                     struct cr_tar_sample *sample);

/* ---- tar_cache.c ---- */

struct cr_tar_set {
    struct cr_tar_shard  *shard;
    int64_t               count, samples;
    char                 *stored;            /* a stored list that is used, or NULL */
    bool                  fresh;             /* an archive was read now */
    char                  list[CR_PATH_MAX]; /* path of the stored list; "" when it must not be stored */
    struct cr_tar_options options;
};
/* Lists the samples of all archives path[count], and takes ownership of the paths. A stored list is used for archives
 * whose size, inode and times are unchanged. The caller closes the set, also after a failure. CR_ERR_FORMAT, CR_ERR_IO,
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_set_open(struct cr_tar_set *set, char **path, int64_t count, const struct cr_config *config);
/* Stores the lists for the next time, if it is worth it. CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_set_store(const struct cr_tar_set *set);
void              cr_tar_set_close(struct cr_tar_set *set);

/* ---- tar_shards.c ---- */

struct cr_tar_paths {
    char  **path; /* sorted by bytes */
    int64_t count, capacity;
};
/* Finds the archives of training [0] and of validation [1]. The caller frees both, also after a failure. CR_ERR_CONFIG:
 * there are none. */
CR_MUST cr_status cr_tar_find(const struct cr_config *config, struct cr_tar_paths paths[2]);
void              cr_tar_paths_free(struct cr_tar_paths *paths);

/* ---- tar_labels.c ---- */

/* Different texts, numbered in the order in which they came. */
struct cr_tar_texts {
    struct cr_text text;
    size_t        *at; /* [count]: places in `text` */
    int64_t        count, capacity;
    uint32_t      *slot; /* hash table: number + 1 */
    size_t         slots;
};
CR_MUST cr_status cr_tar_text_number(struct cr_tar_texts *texts, const char *text, int32_t *number);
const char       *cr_tar_text(const struct cr_tar_texts *texts, int64_t number);
void              cr_tar_texts_free(struct cr_tar_texts *texts);

/* The classes are the labels of `source`: sorted names or, if all are numbers, 0 to the largest; then the names are in
 * classes.txt or classnames.txt in the folder of the archive `where` or above, or the numbers. Sets classes and
 * class_names of the dataset. CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_make_classes(struct cr_dataset *dataset, const struct cr_tar_texts *source, const char *where,
                                      bool *numbers);
/* *rows [labels->count], which the caller frees with cr_free: the classes of `labels`, or with data.multi_label rows of
 * dataset->label_words words (graph/loss.h). `where` and `source` name an archive, and one that the classes are from.
 * CR_ERR_FORMAT: a label is none of the classes. */
CR_MUST cr_status cr_tar_number_labels(const struct cr_dataset *dataset, const struct cr_tar_texts *labels,
                                       bool numbers, const char *where, const char *source, int32_t **rows);
/* Reads the list of labels that lies beside an archive of ImageNet's validation images; `out` stays empty without one.
 * CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_tar_val_labels_read(const char *archive, struct cr_tar_val_labels *out);

#endif

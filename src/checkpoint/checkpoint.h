/* checkpoint/checkpoint.h: store <-> files. A checkpoint is a folder step-N/ in the run folder:
 *   model.safetensors   torchvision's state dict of the raw weights (names, shapes OIHW, num_batches_tracked I64
 *                       scalars)
 *   state.safetensors   optimizer planes ("momentum.<name>", AdamW's "second.<name>"), device-owned state, and
 * metadata: step, epoch, position in the epoch, seed, loader position, fingerprints. Of several ranks without SyncBN
 * "running.of_ranks", "ema_running.of_ranks": each rank's own running statistics No time, host or path in either: equal
 * states, equal bytes ema.safetensors     of runs with [ema]: the moving averages, as model.safetensors config.ini the
 * resolved config          classes.txt   one class name a line kernel_times.txt           of runs on a GPU: the measured costs
 * that its kernels were chosen by (autotune/cost_table.h) Of pruned networks the .safetensors files are sparse, see the
 * end of this header. `last` and `best` are relative symbolic links, replaced by rename(2).
 *
 * Laws
 *   - A folder named step-N is complete: it is written as .tmp-step-N.<pid>, every file and the folder fsynced, then
 *     renamed, then the parent fsynced. Nothing that was there before is removed until the new one is in place; a
 *     step-N that is saved again changes places with the old one in one system call.
 *   - A folder that is removed is first renamed (.gone-step-N.<pid>): no half of one ever carries the name step-N.
 *   - A save that fails leaves the older checkpoints untouched and removes its temporary folder; each link names the
 *     old complete folder or the new one.
 *   - Loading checks everything (names, shapes, types, step) before the first byte reaches the store.
 *   - One process at a time writes to a run folder.
 * Files: checkpoint/write.c (write), checkpoint/directory.c (folders, links, find), checkpoint/read.c,
 * checkpoint/stream.c, checkpoint/sparse_tensors.c. Knows stores through the small vtable below; nothing of programs or
 * devices. */
#ifndef CR_CHECKPOINT_H
#define CR_CHECKPOINT_H

#include "core/base.h"
#include "core/files.h" /* cr_file_read, cr_file_write_atomic */
#include "formats/safetensors.h"

enum { CR_CKPT_CHUNK_BYTES = 4 << 20 };

/* A named array that goes to or comes from a file. For filters the device holds K,R,S,C (`permute_krsc`); the file has
 * K,C,R,S: the stream permutes row by row of K. */
struct cr_ckpt_tensor {
    const char   *name;         /* in the file */
    enum cr_dtype dtype;        /* in the store; written files have the same */
    int           dims;         /* of the file's shape; 0 = scalar */
    int64_t       dim[4];       /* the file's shape, K,C,R,S for filters */
    bool          permute_krsc; /* needs dims = 4 */
    uint64_t      address;      /* passed through to the io functions: plane and offset, as the owner likes */
};
/* Moves bytes between the store (wherever it lives) and the host; called with chunks of at most CR_CKPT_CHUNK_BYTES, at
 * rising offsets of one tensor after the other. */
struct cr_ckpt_io {
    void *self;
    cr_status (*get)(void *self, uint64_t address, uint64_t byte_offset, void *host, size_t bytes); /* store -> host */
    cr_status (*put)(void *self, uint64_t address, uint64_t byte_offset, const void *host, size_t bytes); /* back */
};

struct cr_ckpt_save {
    const char                  *run_dir; /* must exist: cr_ckpt_prepare_dir */
    int64_t                      step;
    const struct cr_ckpt_tensor *model, *state, *ema;
    int                          model_count, state_count, ema_count; /* ema_count 0: no such file */
    const struct cr_st_meta     *model_meta, *state_meta;             /* "format" = "pt", "step": added when missing */
    int                          model_meta_count, state_meta_count;
    const char                  *config_text; /* config.ini */
    const char                  *costs_text;  /* kernel_times.txt; NULL: none */
    const char *const           *class_names; /* no line breaks in them */
    int                          classes;
    bool                         best; /* also point `best` here */
    int                          keep; /* newest step-N kept besides the targets of `best` and `last`; < 0: all */
};

/* Makes run_dir when missing (parents too) and proves that it can be written. */
CR_MUST cr_status cr_ckpt_prepare_dir(const char *run_dir);
/* True when the folder exists and holds anything but lost+found and the lock of a run that never began. */
#define CR_CKPT_LOCK ".lock"
bool cr_ckpt_dir_in_use(const char *run_dir);
/* Saves. An old checkpoint that cannot be removed (keep) is a warning, not an error. */
CR_MUST cr_status cr_ckpt_write(const struct cr_ckpt_save *save, const struct cr_ckpt_io *io);
/* Points run_dir/best at step-N. */
CR_MUST cr_status cr_ckpt_mark_best(const char *run_dir, int64_t step);
/* Removes temporary folders that a killed run left behind: their pid is gone, or is ours (a container starts again with
 * the same numbers), so call it before the first save and never during one. */
void cr_ckpt_sweep(const char *run_dir);

/* Finds the newest readable checkpoint of a run folder: `last` if it opens and checks, else the highest step-N that
 * does, with one warning line for each one passed over. *out (cr_free it) is run_dir/step-N, or NULL when there is none
 * (CR_OK). */
CR_MUST cr_status cr_ckpt_find(const char *run_dir, char **out);
/* Turns what a user may write (a run folder, a step-N folder, a .safetensors file) into the model file's path. */
CR_MUST cr_status cr_ckpt_model_path(const char *given, char **out);

/* Opens weights from elsewhere: what wrappers put in front of every name ("module.", "_orig_mod.", "model.",
 * "backbone.") is taken off. */
CR_MUST cr_status cr_ckpt_open_weights(const char *path, struct cr_st_file **out);

/* Reads the listed tensors from an open file. Every tensor must be there with this shape and type (F16/BF16/F64 files
 * are converted when the store holds F32); names in the file that no tensor asks for are an error. The message lists
 * the first few. All is checked first. `path` is for messages.
 * `ignore` (may be NULL) is a list of suffixes, "a,b,c": names that end in one of them may be in the file unasked for,
 * and a listed tensor whose name ends in one may be missing (the store keeps what it has): ".num_batches_tracked".
 * `alias` maps a wanted name to a second name to try ("fc.weight" -> "linear.weight"); it may be NULL and returns NULL
 * for none. */
CR_MUST cr_status cr_ckpt_read(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors,
                               int count, const char *ignore, const char *(*alias)(const char *name),
                               const struct cr_ckpt_io *io);

/* ---- sparse tensors (checkpoint/sparse_tensors.c) ---- */

/* Version 1. A file with metadata "cresnet_sparse" = "1" may hold, in place of an F32 tensor NAME of which weights are
 * pruned, NAME.shape   I64 [dims]   its shape NAME.values  F32 [kept]   what is not pruned, in the order of its
 * elements (filters: O,I,H,W); may be 0 NAME.gaps    U8           where they are: for each the number of pruned
 * elements since the one before (or the start), 255 standing for 255 pruned ones with more to be added by the next
 * byte; behind the last: nothing so that the file is about 5/4 of the density. In state.safetensors
 * "momentum.NAME.values" and "second.NAME.values" go by the gaps of NAME in the model file. Everything else is as ever.
 */
#define CR_CKPT_SPARSE_KEY "cresnet_sparse"
#define CR_CKPT_SPARSE_VERSION "1"
#define CR_CKPT_SPARSE_PARTS ".shape,.values,.gaps" /* for `ignore` of cr_ckpt_read */

struct cr_ckpt_sparse {
    int      dims;
    int64_t  dim[4], elems, nnz;
    uint8_t *bits;  /* one an element, bit i%8 of byte i/8: kept */
    float   *value; /* [kept] */
};
/* CR_ERR_FORMAT when the file is sparse in a version that is not known. */
CR_MUST cr_status cr_ckpt_is_sparse(struct cr_st_file *file, const char *path, bool *sparse);
/* Is NAME there in three parts? */
bool cr_ckpt_has_sparse(struct cr_st_file *file, const char *name);
/* Reads and checks them; cr_ckpt_sparse_free it. */
CR_MUST cr_status cr_ckpt_sparse_read(struct cr_st_file *file, const char *path, const char *name,
                                      struct cr_ckpt_sparse *out);
void              cr_ckpt_sparse_free(struct cr_ckpt_sparse *sparse);
/* The bytes of NAME.gaps for these bits; out may be NULL. Returns how many they are. */
size_t cr_ckpt_gaps(const uint8_t *bits, int64_t elems, uint8_t *out);
/* Writes the file `to`, which must not exist: the model file `from` with all tensors dense, as torchvision's state
 * dict. */
CR_MUST cr_status cr_ckpt_export_dense(const char *from, const char *to);

#endif

/* checkpoint.h: store <-> files. A checkpoint is a folder step-N/ in the run folder:
 *   model.safetensors   torchvision's state dict of the raw weights (names, shapes OIHW, num_batches_tracked I64 scalars)
 *   state.safetensors   optimizer planes ("momentum.<name>"), device-owned state, and metadata: step, epoch, position in
 *                       the epoch, seed, loader position, fingerprints. No time, host or path: equal states, equal bytes
 *   config.ini          the resolved config          classes.txt   one class name a line
 * `last` and `best` are relative symbolic links, replaced by rename(2).
 *
 * Laws
 *   - A folder named step-N is complete: it is written as .tmp-step-N.<pid>, every file and the folder fsynced, then
 *     renamed, then the parent fsynced. Nothing that was there before is removed until the new one is in place.
 *   - A save that fails leaves the older checkpoints and links untouched and removes its temporary folder.
 *   - Loading checks everything (names, shapes, types, step) before the first byte reaches the store.
 * Knows stores through the small vtable below; nothing of programs or devices. */
#ifndef CR_CHECKPOINT_H
#define CR_CHECKPOINT_H

#include "base.h"
#include "safetensors.h"

/* A named array that goes to or comes from a file. For filters the device holds K,R,S,C (`permute`); the file gets
 * K,C,R,S: the stream permutes row by row of K. */
struct cr_ckpt_tensor {
    const char   *name;  /* in the file */
    enum cr_dtype dtype;
    int           dims;   /* of the file's shape; 0 = scalar */
    int64_t       dim[4]; /* the file's shape, K,C,R,S for filters */
    bool          permute_krsc;
    uint64_t      address; /* passed through to the io functions: plane and offset, as the owner likes */
};
/* Moves bytes between the store (wherever it lives) and the host; called with chunks of at most 4 MiB. */
struct cr_ckpt_io {
    void *self;
    cr_status (*get)(void *self, uint64_t address, uint64_t byte_offset, void *host, size_t bytes);       /* store -> host */
    cr_status (*put)(void *self, uint64_t address, uint64_t byte_offset, const void *host, size_t bytes); /* host -> store */
};

struct cr_ckpt_save {
    const char                  *run_dir;
    int64_t                      step;
    const struct cr_ckpt_tensor *model, *state;
    int                          model_count, state_count;
    const struct cr_st_meta     *model_meta, *state_meta;
    int                          model_meta_count, state_meta_count;
    const char                  *config_text; /* config.ini */
    const char *const           *class_names;
    int                          classes;
    bool                         best; /* also point `best` here */
    int                          keep; /* newest step-N kept besides the targets of `best` and `last` */
};

/* Makes run_dir when missing (parents too) and proves that it can be written. */
CR_MUST cr_status cr_ckpt_prepare_dir(const char *run_dir);
/* True when the folder exists and holds anything but lost+found. */
bool              cr_ckpt_dir_in_use(const char *run_dir);
CR_MUST cr_status cr_ckpt_write(const struct cr_ckpt_save *save, const struct cr_ckpt_io *io);
/* Points run_dir/best at step-N. */
CR_MUST cr_status cr_ckpt_mark_best(const char *run_dir, int64_t step);
/* Removes temporary folders that a killed run left behind (their pid is gone). */
void cr_ckpt_sweep(const char *run_dir);

/* Finds the newest readable checkpoint of a run folder: `last` if it opens and checks, else the highest step-N that does,
 * with one warning line for each one passed over. *out (cr_free it) is NULL when there is none (CR_OK). */
CR_MUST cr_status cr_ckpt_find(const char *run_dir, char **out);
/* Turns what a user may write (a run folder, a step-N folder, a .safetensors file) into the model file's path. */
CR_MUST cr_status cr_ckpt_model_path(const char *given, char **out);

/* Reads the listed tensors from an open file. Every tensor must be there with this shape and type (F16/BF16/F64 files are
 * converted to F32); names in the file that no tensor asks for are an error that lists the first few, unless they match
 * `ignore` (a suffix, e.g. ".num_batches_tracked"; may be NULL). All is checked first. `path` is for messages.
 * `alias` maps a wanted name to a second name to try ("fc.weight" -> "linear.weight"); it may be NULL and returns NULL
 * for none. */
CR_MUST cr_status cr_ckpt_read(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors, int count,
                               const char *ignore, const char *(*alias)(const char *name), const struct cr_ckpt_io *io);
/* Reads a small text file (config.ini, classes.txt) whole; cr_free it. */
CR_MUST cr_status cr_file_read(const char *path, size_t limit, char **out, size_t *length);
/* Writes a file through temporary + fsync + rename. */
CR_MUST cr_status cr_file_write_atomic(const char *path, const void *bytes, size_t count);

#endif

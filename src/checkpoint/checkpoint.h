/* checkpoint/checkpoint.h: writes the parameter store to checkpoint files and reads it back.
 *
 * A checkpoint is a folder step-N/ in the run folder:
 *   model.safetensors   torchvision's state dict of the weights (names, shapes O,I,H,W, num_batches_tracked as I64
 *                       scalars)
 *   state.safetensors   optimizer state ("momentum.<name>", "second.<name>" of AdamW, LAMB and Muon), the scalars of
 *                       enum cr_state, and metadata: step, epoch, position in the epoch, seed, loader position,
 *                       fingerprints. Runs of several ranks without SyncBN add "running.of_ranks" and
 *                       "ema_running.of_ranks": each rank's own running statistics
 *   ema.safetensors     the moving averages, in the form of model.safetensors; only for runs with [ema]
 *   config.ini          the resolved configuration
 *   classes.txt         one class name on each line
 *   kernel_times.txt    the measured kernel times by which the run chose its kernels (autotune/cost_table.h); only for
 *                       runs on a GPU
 *   checksums.txt       lines "SUM  NAME": the CRC-32C of each file above. The sum of a .safetensors covers its
 *                       header only, because the header has the sums of the tensors. The last line, named
 *                       checksums.txt, is the sum of the preceding lines. Checkpoints of 0.3.0 and older lack this
 *                       file and are not checked
 * The .safetensors files contain no time, host name or path: equal states give identical files. The files of pruned
 * networks store sparse tensors; the end of this header describes the format. `last` and `best` are relative symbolic
 * links, replaced by rename(2).
 *
 * Invariants
 *   - A folder named step-N is complete. It is written as .tmp-step-N.<pid>; every file and the folder are fsynced; the
 *     folder is renamed; the parent folder is fsynced. Nothing older is removed before the new folder is in place. A
 *     step-N that is saved again is exchanged with the old one in one system call.
 *   - A folder to be removed is first renamed to .gone-step-N.<pid>: no incomplete folder is ever named step-N.
 *   - A save that fails leaves older checkpoints unchanged and removes its temporary folder. Each link names either the
 *     old complete folder or the new one.
 *   - Loading checks everything (names, shapes, types, step) before the first byte is written to the parameter store.
 *   - One process at a time writes to a run folder.
 *
 * Files: write.c (writing), directory.c (folders, links, search), run_folder.c (lock, checks, best.json), checksums.c,
 * read.c, prefix.c, stream.c, sparse_tensors.c. The parameter store is accessed through struct cr_ckpt_io; these files
 * depend on neither programs nor devices. */
#ifndef CR_CHECKPOINT_H
#define CR_CHECKPOINT_H

#include "core/base.h"
#include "core/files.h" /* cr_file_read, cr_file_write_atomic */
#include "formats/safetensors.h"

enum { CR_CKPT_CHUNK_BYTES = 4 << 20 };

/* Where the values of a tensor are. It is passed on to the functions of cr_ckpt_io, which define the kinds. */
struct cr_ckpt_address {
    int      kind;
    uint64_t value;
};

/* A named array that is written to or read from a file. Filters are K,R,S,C in the parameter store and K,C,R,S in the
 * file; reading and writing permute one output channel k at a time (`permute_krsc`). */
struct cr_ckpt_tensor {
    const char            *name;         /* in the file */
    enum cr_dtype          dtype;        /* in the parameter store; files are written with the same type */
    int                    dims;         /* number of dimensions in the file; 0 = scalar */
    int64_t                dim[4];       /* the file's shape, K,C,R,S for filters */
    bool                   permute_krsc; /* requires dims = 4 */
    struct cr_ckpt_address address;
};
/* Copies bytes between the parameter store (in host or device memory) and a host buffer. The functions are called with
 * increasing offsets of a tensor and chunks of at most CR_CKPT_CHUNK_BYTES, for one tensor after the other; with
 * parallel_put, several threads call put for different tensors at the same time. */
struct cr_ckpt_io {
    void *self;
    /* store -> host */
    cr_status (*get)(void *self, struct cr_ckpt_address address, uint64_t byte_offset, void *host, size_t bytes);
    /* host -> store */
    cr_status (*put)(void *self, struct cr_ckpt_address address, uint64_t byte_offset, const void *host, size_t bytes);
    bool parallel_put;
    bool host_get; /* `get` copies from host memory, where small chunks are fast because they stay in a cache */
};

struct cr_ckpt_save {
    const char                  *run_dir; /* must exist: see cr_ckpt_prepare_dir */
    int64_t                      step;
    const struct cr_ckpt_tensor *model, *state, *ema;
    int                          model_count, state_count, ema_count; /* ema_count 0: no ema.safetensors */
    bool                         sparse;                              /* the model and ema may have sparse tensors */
    const struct cr_st_meta     *state_meta;                          /* with "step" and CR_ST_SUMS */
    int                          state_meta_count;
    const char                  *config_text;       /* content of config.ini */
    const char                  *kernel_times_text; /* content of kernel_times.txt; NULL when the run has none */
    const char *const           *class_names;       /* names without line breaks */
    int                          classes;
    bool                         best; /* also point the link `best` here */
    int keep; /* number of newest checkpoints to keep, and the targets of `best` and `last`; < 0: all */
};

/* Creates run_dir and its parents when missing and tests that it is writable. CR_ERR_IO; a new run_dir is then removed.
 */
CR_MUST cr_status cr_ckpt_prepare_dir(const char *run_dir);
/* True when the folder exists and contains anything other than lost+found, the lock file of a run that never started,
 * and temporary files of a process that was killed before its first checkpoint. */
#define CR_CKPT_LOCK ".lock"
bool cr_ckpt_dir_in_use(const char *run_dir);
/* Locks the run folder for this process: CR_ERR_CONFIG when another process writes there. *lock is a descriptor, and
 * closing it releases the lock. A `.lock` that is a link or no regular file is CR_ERR_IO. */
CR_MUST cr_status cr_ckpt_lock(const char *run_dir, int *lock);
/* CR_ERR_IO when the folder is not the one that was locked any more: somebody has renamed, removed or replaced it. */
CR_MUST cr_status cr_ckpt_check_lock(const char *run_dir, int lock);
/* Checks before the first step that `last`, `best` and best.json can be replaced: CR_ERR_IO when `last` or `best` is
 * not a link, or best.json is not a file. */
CR_MUST cr_status cr_ckpt_check_dir(const char *run_dir);

#define CR_CKPT_BEST_SUM "crc32c" /* the last member of best.json: CRC-32C of the text before its comma */
struct cr_ckpt_best {             /* best.json: accuracies are fractions from 0 to 1; below 0 when unknown */
    int64_t step;
    double  top1, raw_top1, ema_top1;
    double  value;   /* of the metric that the caller named */
    double  average; /* of this metric, the moving averages; without averages `value` */
    bool    is_map;  /* data.multi_label: the accuracies are mean average precisions (`map` in the file) */
};
/* Reads run_dir/best.json with the value of `metric` (a word of train.best). All members are -1 when there is no such
 * file. They are -1 and *why is the reason (static) when the file cannot be used: no JSON, an accuracy outside 0 to 1,
 * a wrong checksum, no value of the metric, or no folder step-N. *why is NULL otherwise. */
struct cr_ckpt_best cr_ckpt_best_read(const char *run_dir, const char *metric, const char **why);
/* Writes a checkpoint. An old checkpoint that cannot be removed (keep) causes a warning, not an error. */
CR_MUST cr_status cr_ckpt_write(const struct cr_ckpt_save *save, const struct cr_ckpt_io *io);
/* Points the symbolic link run_dir/link (`last`, `best`) to step-N. CR_ERR_IO without this folder. */
CR_MUST cr_status cr_ckpt_point(const char *run_dir, const char *link, int64_t step);
/* Removes a run folder that has nothing but its lock file. The caller holds the lock and has made the folder; it closes
 * the lock afterwards. */
void cr_ckpt_remove_empty(const char *run_dir);
/* Removes temporary folders that a killed run left behind. The caller holds the lock of the folder and has not begun to
 * save, so nobody writes them. Their names end with a process id, which says nothing: containers reuse these numbers.
 */
void cr_ckpt_sweep(const char *run_dir);

/* Finds the newest checkpoint of a run folder: the target of `last`, otherwise the highest step-N. `out` becomes
 * run_dir/step-N, or "" with CR_OK when the folder has no step-N. CR_ERR_FORMAT
 * or CR_ERR_IO when this checkpoint is damaged; no older one takes its place, because its results would be mistaken for
 * those of the newest. Damaged tensors are found when they are read. */
CR_MUST cr_status cr_ckpt_find(const char *run_dir, char out[CR_PATH_MAX]);
/* Finds the checkpoint that the link `best` names; when there is none, the same as cr_ckpt_find. */
CR_MUST cr_status cr_ckpt_find_best(const char *run_dir, char out[CR_PATH_MAX]);
/* For a run that is resumed: like cr_ckpt_find, but reads all bytes of the checkpoint. If it is damaged, a warning
 * names the damaged file and the next older checkpoint is tried. CR_ERR_FORMAT when every checkpoint is damaged. The
 * caller frees *out with cr_free; NULL: there is none. */
CR_MUST cr_status cr_ckpt_find_intact(const char *run_dir, char **out);
/* Reads all bytes of a checkpoint folder that a run is to resume from. An error names what is damaged, and the newest
 * older checkpoint that is intact. */
CR_MUST cr_status cr_ckpt_verify(const char *folder);
/* Finds run_dir/step-N. CR_ERR_CONFIG with the steps that exist when there is none.
 */
CR_MUST cr_status cr_ckpt_find_step(const char *run_dir, int64_t step, char out[CR_PATH_MAX]);
/* Reads all bytes of the weights and moving averages of a checkpoint folder and checks their sums. For callers that
 * skip a damaged checkpoint. */
CR_MUST cr_status cr_ckpt_verify_weights(const char *folder);
/* Resolves what the user gave (run folder, step-N folder, file of weights, or a name of published weights, which are
 * downloaded when this machine does not have them) to the path of the model file. A file or folder goes
 * before a name. Files of a checkpoint are checked against its checksums.txt. */
CR_MUST cr_status cr_ckpt_model_path(const char *given, char out[CR_PATH_MAX]);

/* Opens weights that other programs may have written, FILE or FILE:KEY (cr_st_open_any), and removes the prefix after
 * which most names and shapes are those of the network (checkpoint/prefix.c). Tensors without the prefix are left out:
 * cr_st_outside. The parameters of a classifier of one layer are named fc.weight and fc.bias. CR_ERR_FORMAT when two
 * prefixes are equally good. tensors: [count] those of the network; then one line says which entry, prefix and tensors
 * were chosen if there was a choice. NULL and 0: the network is not known yet. */
CR_MUST cr_status cr_ckpt_open_weights(const char *path, const struct cr_ckpt_tensor *tensors, int count,
                                       struct cr_st_file **out);

/* True for the names of the parameters of a classifier: "fc.weight", "fc.1.bias", "linear.weight". */
bool cr_ckpt_is_head(const char *name);

/* Reads the listed tensors from an open file. Each tensor must exist in the file with this shape and type (F16, BF16
 * and F64 files are converted when the parameter store holds F32). A tensor in the file that is not listed is an error.
 * The message names the first few offenders of each kind: other shapes or types, missing tensors, unlisted tensors.
 * All checks precede the first write to the parameter store. `path` is for messages. The sums of all tensors are
 * checked, also of those that are not listed: CR_ERR_FORMAT names a damaged one, and the values in the parameter store
 * are then unusable. `ignore` is a list of suffixes "a,b,c" such as ".num_batches_tracked", or NULL: a name with such a
 * suffix may be in the file without being listed, and a listed tensor with such a name may be missing (its value in the
 * parameter store stays). */
CR_MUST cr_status cr_ckpt_read(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors,
                               int count, const char *ignore, const struct cr_ckpt_io *io);

/* ---- sparse tensors (checkpoint/sparse_tensors.c) ---- */

/* Format version 1. A file with the metadata "cresnet_sparse" = "1" may contain three tensors in place of an F32 tensor
 * NAME with pruned elements:
 *   NAME.shape   I64 [dims]   the shape of NAME
 *   NAME.values  F32 [nnz]    the elements that are not pruned, in the order of NAME (filters: O,I,H,W); a value may
 *                             be 0
 *   NAME.gaps    U8           the positions of the values: for each value the number of pruned elements since the
 *                             previous value (or the start). A byte 255 means 255 pruned elements, and the next byte
 *                             adds to it. Nothing follows the last value
 * The size of such a tensor is about 5/4 * density of the dense size. In state.safetensors, "momentum.NAME.values" and
 * "second.NAME.values" use the gaps of NAME in the model file. All other tensors are stored dense. */
#define CR_CKPT_SPARSE_KEY "cresnet_sparse"
#define CR_CKPT_SPARSE_VERSION "1"
#define CR_CKPT_SPARSE_PARTS ".shape,.values,.gaps" /* for `ignore` of cr_ckpt_read */

struct cr_ckpt_sparse {
    int      dims;
    int64_t  dim[4], elems, nnz;
    uint8_t *bits;  /* one bit for each element, bit i%8 of byte i/8; 1 = not pruned */
    float   *value; /* [nnz] */
};
/* Sets *sparse when the file has sparse tensors. CR_ERR_FORMAT when their format version is unknown. */
CR_MUST cr_status cr_ckpt_is_sparse(struct cr_st_file *file, const char *path, bool *sparse);
/* True when the tensor `name` is stored as NAME.shape, NAME.values and NAME.gaps. */
bool cr_ckpt_has_sparse(struct cr_st_file *file, const char *name);
/* Reads and checks a sparse tensor; the caller frees *out with cr_ckpt_sparse_free. */
CR_MUST cr_status cr_ckpt_sparse_read(struct cr_st_file *file, const char *path, const char *name,
                                      struct cr_ckpt_sparse *out);
void              cr_ckpt_sparse_free(struct cr_ckpt_sparse *sparse);
/* Encodes mask bits as NAME.gaps; returns the number of bytes. `out` may be NULL to get only the number. */
size_t cr_ckpt_gaps(const uint8_t *bits, int64_t elems, uint8_t *out);
/* Converts the model file `from` to a dense state dict, as torchvision's, in the file `to`, which is created or
 * replaced. Its metadata has the key CR_OUTPUT_EXPORT_KEY of core/output_file.h, and CR_CKPT_CLASS_NAMES unless
 * `class_names`, a JSON list of strings, is NULL. */
#define CR_CKPT_CLASS_NAMES "label_names" /* as timm calls them; it follows CR_OUTPUT_EXPORT_KEY, which comes first */
CR_MUST cr_status cr_ckpt_export_dense(const char *from, const char *to, const char *class_names);

#endif

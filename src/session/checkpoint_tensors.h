/* session/checkpoint_tensors.h: maps the tensors of a session's parameter store to checkpoint files: which tensor is
 * written to which file under which name, and the metadata of a run. checkpoint/checkpoint.h reads and
 * writes the files. */
#ifndef CR_CHECKPOINT_TENSORS_H
#define CR_CHECKPOINT_TENSORS_H

#include "session/session.h"

/* The position of a run: the part of its state that is not a tensor. */
struct cr_position {
    int64_t  step; /* updates completed */
    int64_t  steps_per_epoch;
    uint64_t data_fingerprint;
    int64_t  data_images;   /* of the training set; 0: unknown, in older checkpoints */
    uint64_t data_contents; /* cr_dataset_contents of the training set; 0: unknown */
    int64_t  ranks;         /* number of ranks that train together; 0 before it is set */
    uint64_t teacher;       /* cr_teacher.hash of distill.teacher; 0: none */
};
/* ---- session/position.c: the position in the metadata of state.safetensors ---- */

/* Reads the position from the checkpoint folder `path`. CR_ERR_IO, CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_state_position(const char *path, struct cr_position *out);
/* The same from the open file, whose path is used in messages. */
CR_MUST cr_status cr_state_position_of(struct cr_st_file *file, const char *path, struct cr_position *out);
enum { CR_STATE_META_MAX = 10 };
struct cr_state_meta {
    struct cr_st_meta entry[CR_STATE_META_MAX]; /* values point into `text` */
    int               count;
    char              text[CR_STATE_META_MAX][32];
};
/* Fills `out` with the metadata of a checkpoint at this position. */
void cr_state_meta_of(const struct cr_position *position, int64_t seed, struct cr_state_meta *out);

/* The kinds of cr_ckpt_address, and their values. */
enum cr_state_place {
    CR_STATE_IN_STORE,    /* byte offset in the STORE region */
    CR_STATE_IN_COUNTER,  /* num_batches_tracked: all BNs share one counter of enum cr_state; value 0 */
    CR_STATE_NOWHERE,     /* read and discarded: a classifier that does not fit; value 0 */
    CR_STATE_OF_ALL,      /* running statistics of all ranks: index of the buffer */
    CR_STATE_IN_INTEGERS, /* saving a quantised network: element offset of a filter (quantization/quantized.c) */
    CR_STATE_IN_PART,     /* part of a sparse tensor: its index */
    CR_STATE_IN_STEM      /* loading: the first filter of RGB, adapted to other channels afterwards; value 0 */
};
/* List of the tensors of model.safetensors or state.safetensors. The arena that was passed owns the entries. */
struct cr_state_list {
    struct cr_ckpt_tensor *tensor;
    int                    count;
};
CR_MUST cr_status cr_state_model_list(const struct cr_param_store *store, struct cr_arena *arena,
                                      struct cr_state_list *out);
CR_MUST cr_status cr_state_optim_list(const struct cr_param_store *store, struct cr_arena *arena,
                                      struct cr_state_list *out);
/* The list of model.safetensors for the moving averages; empty in a parameter store without them. */
CR_MUST cr_status cr_state_ema_list(const struct cr_param_store *store, struct cr_arena *arena,
                                    struct cr_state_list *out);
/* Returns functions that copy the listed tensors between files and the session's STORE region. */
struct cr_ckpt_io cr_state_io(struct cr_session *session);

/* Writes a checkpoint step-N to run_dir, with the names of the classes. */
CR_MUST cr_status cr_state_save(struct cr_session *session, const struct cr_position *position, const char *run_dir,
                                const char *config_text, const char *const *class_names, int classes);

/* ---- session/loading/adapt_stem.c: weights of RGB networks in networks of other channels ---- */

struct cr_stem_filter {
    int               param; /* of the first convolution; CR_NONE: it needs no adapting */
    float            *rgb;   /* the filter in the file, [K,R,S,3]; owned */
    struct cr_ckpt_io below;
};
/* If the first convolution of the file has three input channels and that of the network another number, lets
 * cr_ckpt_read pass its filter to *stem: replaces *io, and the tensor in the list. The caller frees *stem with
 * cr_stem_filter_free. */
CR_MUST cr_status cr_stem_filter_take(const struct cr_session *session, struct cr_st_file *file, const char *path,
                                      struct cr_state_list *list, struct cr_ckpt_io *io, struct cr_stem_filter *stem);
/* Afterwards: adapts the filter as timm does, and copies it to the parameter store. Grey: the sum over the input
 * channels. RGBA: red, green, blue and red again, times 3/4. */
CR_MUST cr_status cr_stem_filter_put(const struct cr_session *session, struct cr_stem_filter *stem);
void              cr_stem_filter_free(struct cr_stem_filter *stem);

/* Loads the weights, state and *position from the checkpoint folder `path`. */
CR_MUST cr_status cr_state_load(struct cr_session *session, const char *path, struct cr_position *position);
/* CR_ERR_CONFIG, with the line of the configuration, when the file or folder of model.weights does not exist, or when
 * it is a folder whose configuration has another model.channels. */
CR_MUST cr_status cr_state_weights_there(const struct cr_config *config);
/* ---- moving averages (session/ema.c); the functions do nothing in stores without them ---- */

/* Initialises the averages with the current weights and running statistics. */
CR_MUST cr_status cr_state_ema_start(struct cr_session *session);
/* Exchanges parameters and running statistics with their averages, so that an evaluation can use either. */
CR_MUST cr_status cr_state_ema_exchange(struct cr_session *session);
/* Stochastic weight averaging (Izmailov et al. 2018): makes the averages of the weights the mean of the weights and of
 * `before` earlier ones that they contain. */
CR_MUST cr_status cr_state_swa_average(struct cr_session *session, int64_t before);
/* Loads the averages from ema.safetensors of the checkpoint folder; without such a file, cr_state_ema_start. */
CR_MUST cr_status cr_state_ema_load(struct cr_session *session, const char *path);

/* ---- running statistics of several ranks (session/running_stats.c); the functions do nothing with one rank or with
 * model.sync_bn ---- */

/* Each rank trains with its own running statistics. This function replaces them in the parameter store by their mean
 * over all ranks, for an evaluation or a checkpoint, and saves the statistics of this rank in the session; a
 * checkpoint that is written meanwhile contains the mean and the statistics of each rank. Collective. No program may be
 * running. */
CR_MUST cr_status cr_state_running_mean(struct cr_session *session);
/* Restores this rank's own running statistics. */
CR_MUST cr_status cr_state_running_own(struct cr_session *session);
void              cr_state_running_free(struct cr_session *session);
/* Called after cr_state_load. When the number of ranks equals that of the saving run (`ranks`), each rank loads its own
 * running statistics; otherwise the ranks continue with the mean. */
CR_MUST cr_status cr_state_running_load(struct cr_session *session, const char *path, int64_t ranks);
/* For session/checkpoint_lists.c: suffix of the tensor names. cr_state_running_list appends at most CR_RUNNING_BUFFERS
 * entries to a list that has room for them. cr_state_running_get copies bytes of one of them, by the value of its
 * address. */
#define CR_STATE_OF_RANKS ".of_ranks"
void cr_state_running_list(const struct cr_session *session, struct cr_state_list *list);
void cr_state_running_get(const struct cr_session *session, uint64_t index, uint64_t offset, void *host, size_t bytes);

/* ---- pruned networks (session/sparse_state.c): tensors with pruned elements are stored as sparse tensors ---- */

/* Sets *pruned when the model file of `given` (a run folder, step folder or file) belongs to a pruned network. */
CR_MUST cr_status cr_state_is_pruned(const char *given, bool *pruned);
/* Sets all mask bits to 1 (nothing is pruned). Does nothing in a parameter store without masks. */
CR_MUST cr_status cr_state_mask_full(struct cr_session *session);

/* ---- buffers of the parameter store (session/checkpoint_lists.c) ---- */

/* Host copies of the buffers of a parameter store with masks. */
struct cr_state_buffers {
    float   *value, *momentum, *second, *ema; /* second and ema are NULL in stores without them */
    uint8_t *mask;
};
/* Copy the buffers from the device (the caller frees them with cr_state_buffers_free, also after a failure) and
 * back. */
CR_MUST cr_status cr_state_buffers_get(struct cr_session *session, struct cr_state_buffers *buffers);
CR_MUST cr_status cr_state_buffers_put(struct cr_session *session, const struct cr_state_buffers *buffers);
void              cr_state_buffers_free(struct cr_state_buffers *buffers);
/* Address of a buffer of the parameter store in the memory of the device. */
char *cr_state_buffer_at(const struct cr_session *session, enum cr_param_buffer buffer);
/* Copy a whole buffer from the device and to it. */
CR_MUST cr_status cr_state_buffer_get(const struct cr_session *session, enum cr_param_buffer buffer, void *to);
CR_MUST cr_status cr_state_buffer_put(const struct cr_session *session, enum cr_param_buffer buffer, const void *from);
/* Copies an f32 buffer (value, running) to the host; the caller frees *out with cr_free. */
CR_MUST cr_status cr_state_buffer_copy(const struct cr_session *session, enum cr_param_buffer buffer, float **out);

/* ---- quantised networks (session/quantization/quantized.c) ---- */

/* Before weights are read: fails when the file has integers for a layer that is not quantised here. */
CR_MUST cr_status cr_quantized_check(const struct cr_session *session, struct cr_st_file *file, const char *path);
/* After integer weights were read into the parameter store: multiplies them by their scales. `file` says which tensors
 * are integers. Does nothing in networks that are not quantised. */
CR_MUST cr_status cr_quantized_scale_weights(struct cr_session *session, struct cr_st_file *file);

/* ---- shared by session/checkpoint_tensors.c, session/ema.c, session/static_masks.c and session/sparse_state.c ---- */

struct cr_state_sparse {
    const struct cr_param_store *store;
    uint8_t                     *mask;      /* host copy of the mask buffer */
    bool                        *sparse;    /* [params]: the parameter is stored as a sparse tensor */
    bool                         has_parts; /* loading: the files have parts of sparse tensors */
    struct cr_state_list         split;     /* tensors that the file stores as sparse tensors */
    struct cr_state_part {
        void  *data;
        size_t bytes;
    } * part; /* saving: the encoded tensors, written instead of the parameter store's bytes */
    int               parts;
    struct cr_ckpt_io below;
    struct cr_arena   arena;
};
/* Saving: encodes the pruned tensors and replaces them in the lists by their parts; replaces *io by functions that also
 * serve these parts. Does nothing in a parameter store without masks. cr_state_sparse_close *out. */
CR_MUST cr_status cr_state_sparse_save(struct cr_session *session, struct cr_state_list *model,
                                       struct cr_state_list *optim, struct cr_state_list *ema, struct cr_ckpt_io *io,
                                       struct cr_state_sparse *out);
/* Loading, first: reads the masks of the model file; with `fresh_head` the classifier's mask is ignored. Close *out. */
CR_MUST cr_status cr_state_sparse_open(const struct cr_param_store *store, struct cr_st_file *file, const char *path,
                                       bool fresh_head, struct cr_state_sparse *out);
/* Loading, second, for each file: reads the listed tensors into the parameter store, the sparse ones too. `ignore`
 * as in cr_ckpt_read; "" for none. */
CR_MUST cr_status cr_state_sparse_read(struct cr_state_sparse *sparse, struct cr_st_file *file, const char *path,
                                       struct cr_state_list *list, const char *ignore, const struct cr_ckpt_io *io);
/* Loading, last: copies the masks into the parameter store. */
CR_MUST cr_status cr_state_sparse_put_mask(const struct cr_state_sparse *sparse, struct cr_session *session);
void              cr_state_sparse_close(struct cr_state_sparse *sparse);

#endif

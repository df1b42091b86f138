/* session/state.h: which tensors of a session's store go to which file, under which name; and the numbers beside them.
 * Between session (level 5-6) and checkpoint/checkpoint.h, which knows nothing of stores. */
#ifndef CR_STATE_H
#define CR_STATE_H

#include "session/session.h"

/* Where a run stands, apart from the tensors. */
struct cr_position {
    int64_t  step; /* updates done */
    int64_t  steps_per_epoch;
    uint64_t data_fingerprint;
    int64_t  ranks; /* that trained together; 0: as 1 */
};
/* The number of ranks of the run whose checkpoint folder this is. */
CR_MUST cr_status cr_state_ranks(const char *path, int64_t *ranks);

/* The tensors of model.safetensors and of state.safetensors; entries live in the arena. */
struct cr_state_list {
    struct cr_ckpt_tensor *tensor;
    int                    count;
};
CR_MUST cr_status cr_state_model_list(const struct cr_param_store *store, struct cr_arena *arena,
                                      struct cr_state_list *out);
CR_MUST cr_status cr_state_optim_list(const struct cr_param_store *store, struct cr_arena *arena,
                                      struct cr_state_list *out);
/* As the model's, of the moving averages; empty in a store without them. */
CR_MUST cr_status cr_state_ema_list(const struct cr_param_store *store, struct cr_arena *arena,
                                    struct cr_state_list *out);
/* Moves the bytes of both lists between files and the session's store region. */
struct cr_ckpt_io cr_state_io(struct cr_session *session);

CR_MUST cr_status cr_state_save(struct cr_session *session, const struct cr_position *position, const char *run_dir,
                                const char *config_text, const struct cr_dataset *dataset);
/* Loads everything of the checkpoint folder `path`; *position is filled from it. */
CR_MUST cr_status cr_state_load(struct cr_session *session, const char *path, struct cr_position *position);
/* CR_ERR_CONFIG, with the line that names them, where model.weights names what is not there. */
CR_MUST cr_status cr_state_weights_there(const struct cr_config *config);
/* As cr_state_save, with class names in place of a data set. */
CR_MUST cr_status cr_state_save_named(struct cr_session *session, const struct cr_position *position,
                                      const char *run_dir, const char *config_text, const char *const *class_names,
                                      int classes);

/* ---- moving averages (session/ema.c); in stores without them nothing happens ---- */

/* The averages begin as what is averaged. */
CR_MUST cr_status cr_state_ema_start(struct cr_session *session);
/* Parameters and running statistics change places with their averages: evaluation works on the one, and again on the
 * other. */
CR_MUST cr_status cr_state_ema_exchange(struct cr_session *session);
/* From ema.safetensors in the checkpoint folder; where that has none they start. */
CR_MUST cr_status cr_state_ema_load(struct cr_session *session, const char *path);

/* ---- running statistics of several ranks (session/running_stats.c); with one rank, and with model.sync_bn, nothing
 * happens ---- */

/* Each rank trains with its own. For an evaluation and a checkpoint the store gets their mean, the same on all ranks,
 * and the session keeps what each has: a checkpoint saved in between has both. Collective; no run is under way. */
CR_MUST cr_status cr_state_running_mean(struct cr_session *session);
/* Back again: training goes on as if there had been no mean. */
CR_MUST cr_status cr_state_running_own(struct cr_session *session);
void              cr_state_running_free(struct cr_session *session);
/* Behind cr_state_load, where as many ranks go on as have saved (`ranks`): each takes its own. Others go on from the
 * mean. */
CR_MUST cr_status cr_state_running_load(struct cr_session *session, const char *path, int64_t ranks);
/* For session/state.c: names end in this and addresses begin here; list must have room for CR_RUNNING_BUFFERS more. */
#define CR_STATE_OF_RANKS ".of_ranks"
#define CR_STATE_RANKS_ADDRESS (UINT64_MAX - 15)
void cr_state_running_list(const struct cr_session *session, struct cr_state_list *list);
void cr_state_running_get(const struct cr_session *session, uint64_t address, uint64_t offset, void *host,
                          size_t bytes);

/* ---- pruned networks (session/sparse_state.c): tensors with pruned elements go to files as sparse ones ---- */

/* Does the model file that `given` means (a run, a step folder, a file) belong to a pruned network? */
CR_MUST cr_status cr_state_is_pruned(const char *given, bool *pruned);
/* The planes of a store with masks on the host and back. */
struct cr_state_buffers {
    float   *value, *momentum, *second, *ema; /* the last two NULL in stores without them */
    uint8_t *mask;
};
CR_MUST cr_status cr_state_buffers_get(struct cr_session *session, struct cr_state_buffers *planes);
CR_MUST cr_status cr_state_buffers_put(struct cr_session *session, const struct cr_state_buffers *planes);
void              cr_state_buffers_free(struct cr_state_buffers *planes);
/* A copy of an f32 plane (value, running) on the host; cr_free it. */
CR_MUST cr_status cr_state_buffer_copy(struct cr_session *session, enum cr_param_buffer plane, float **out);
/* Nothing is pruned: all bits 1. Without a mask plane nothing happens. */
CR_MUST cr_status cr_state_mask_full(struct cr_session *session);

/* ---- between session/state.c and session/sparse_state.c ---- */

struct cr_state_sparse {
    const struct cr_param_store *store;
    uint8_t                     *mask;   /* the plane on the host */
    bool                        *sparse; /* [params] */
    struct cr_state_list         split;  /* what stands in the file in parts, or will */
    struct cr_state_part {
        void  *data;
        size_t bytes;
    } * part; /* saving: what goes to the files in place of the store's bytes */
    int               parts;
    struct cr_ckpt_io below;
    struct cr_arena   arena;
};
/* Saving: replaces pruned tensors of the lists by their parts and *io by one that knows them. Without a mask plane
 * nothing happens. */
CR_MUST cr_status cr_state_sparse_save(struct cr_session *session, struct cr_state_list *model,
                                       struct cr_state_list *optim, struct cr_state_list *ema, struct cr_ckpt_io *io,
                                       struct cr_state_sparse *out);
/* Loading: masks of the model file. `fresh_head`: the classifier's does not count. */
CR_MUST cr_status cr_state_sparse_open(const struct cr_param_store *store, struct cr_st_file *file, const char *path,
                                       bool fresh_head, struct cr_state_sparse *out);
/* ... takes from a list what stands in the file in parts, and checks it; */
CR_MUST cr_status cr_state_sparse_take(struct cr_state_sparse *sparse, struct cr_st_file *file, const char *path,
                                       struct cr_state_list *list);
/* ... and brings what was taken into the store. */
CR_MUST cr_status cr_state_sparse_put(struct cr_state_sparse *sparse, struct cr_st_file *file,
                                      const struct cr_ckpt_io *io);
CR_MUST cr_status cr_state_sparse_put_mask(const struct cr_state_sparse *sparse, struct cr_session *session);
void              cr_state_sparse_close(struct cr_state_sparse *sparse);

#endif

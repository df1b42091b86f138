/* state.h: which tensors of a session's store go to which file, under which name; and the numbers beside them.
 * Between session (level 5-6) and checkpoint.h, which knows nothing of stores. */
#ifndef CR_STATE_H
#define CR_STATE_H

#include "session.h"

/* Where a run stands, apart from the tensors. */
struct cr_position {
    int64_t  step;            /* updates done */
    int64_t  steps_per_epoch;
    uint64_t data_fingerprint;
};

/* The tensors of model.safetensors and of state.safetensors; entries live in the arena. */
struct cr_state_list {
    struct cr_ckpt_tensor *tensor;
    int                    count;
};
CR_MUST cr_status cr_state_model_list(const struct cr_store *store, struct cr_arena *arena, struct cr_state_list *out);
CR_MUST cr_status cr_state_optim_list(const struct cr_store *store, struct cr_arena *arena, struct cr_state_list *out);
/* Moves the bytes of both lists between files and the session's store region. */
struct cr_ckpt_io cr_state_io(struct cr_session *session);

CR_MUST cr_status cr_state_save(struct cr_session *session, const struct cr_position *position, const char *run_dir,
                                const char *config_text, const struct cr_dataset *dataset);
/* Loads everything of the checkpoint folder `path`; *position is filled from it. */
CR_MUST cr_status cr_state_load(struct cr_session *session, const char *path, struct cr_position *position);

#endif

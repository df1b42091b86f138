/* session/static_masks.c: pruning masks that do not change (fixed sparsity), so that programs may use sparse kernels.
 * See session/session.h. */
#include "pruning/pruning.h"
#include "session/checkpoint_tensors.h"
#include "session/session.h"

#include <string.h>

/* Unreadable weights are not an error here: loading them reports the error. */
static cr_status read_pattern(struct cr_session *s, const char *given) {
    struct cr_state_sparse sparse = {0};
    struct cr_st_file     *file   = NULL;
    char                   path[CR_PATH_MAX];
    bool                   pruned = false;
    cr_status              status = CR_OK;
    if (!given || !*given) return CR_OK;
    status = cr_state_is_pruned(given, &pruned);
    if (status == CR_ERR_MEMORY) return cr_error_forward(status, __FILE__, __LINE__);
    if (status != CR_OK) cr_error_clear();
    if (!pruned) return CR_OK;
    CR_TRY_OUT(cr_ckpt_model_path(given, path));
    CR_TRY_OUT(cr_st_open(path, &file));
    CR_TRY_OUT(cr_state_sparse_open(&s->model.store, file, path, true, &sparse));
    s->pattern  = sparse.mask;
    sparse.mask = NULL;
out:
    cr_state_sparse_close(&sparse);
    cr_st_close(file);
    return status;
}

cr_status cr_session_sparsity_pattern(struct cr_session *s, const char *weights, bool draw) {
    if (!s->config->train.sparse || s->model.store.real != CR_F32) return CR_OK;
    CR_TRY(read_pattern(s, weights));
    if (!s->pattern && draw && cr_config_prunes(s->config))
        CR_TRY(cr_prune_draw(&s->model.store, s->config, &s->pattern));
    s->model.store.pattern = s->pattern;
    return CR_OK;
}

cr_status cr_session_copy_pattern(struct cr_session *s, const uint8_t *pattern) {
    const size_t bytes = (size_t)s->model.store.value_elems / 8;
    if (!s->config->train.sparse || s->model.store.real != CR_F32) return CR_OK;
    CR_ALLOC(s->pattern, bytes + 1);
    memcpy(s->pattern, pattern, bytes);
    s->model.store.pattern = s->pattern;
    return CR_OK;
}

bool cr_session_may_mask_gradients(const struct cr_config *c) {
    return c->train.clip_norm == 0 && c->optim.kind != CR_OPTIM_LARS;
}

/* ---- measurements ---- */

cr_status cr_session_prune(struct cr_session *s) {
    const struct cr_param_store *store     = &s->model.store;
    struct cr_state_buffers      buffers   = {0};
    uint8_t                     *generated = NULL;
    const uint8_t               *mask      = s->pattern;
    cr_status                    status    = CR_OK;
    if (!store->has_mask || (!mask && !cr_config_prunes(s->config))) return CR_OK;
    if (!mask) CR_TRY_OUT(cr_prune_draw(store, s->config, &generated));
    if (!mask) mask = generated;
    CR_TRY_OUT(cr_state_buffers_get(s, &buffers));
    memcpy(buffers.mask, mask, cr_param_store_buffer_bytes(store, CR_BUFFER_MASK));
    cr_prune_zero(store, buffers.mask, buffers.value);
    cr_prune_zero(store, buffers.mask, buffers.momentum);
    CR_TRY_OUT(cr_state_buffers_put(s, &buffers));
out:
    cr_state_buffers_free(&buffers);
    cr_free(generated);
    return status;
}

void cr_session_sparse_text(const struct cr_program *p, struct cr_text *out) {
    static const struct {
        enum cr_op_kind kind;
        const char     *name;
    } kinds[] = {
        {CR_OP_conv, "convolutions"}, {CR_OP_conv_dgrad, "data gradients"}, {CR_OP_conv_wgrad, "filter gradients"}};
    const char *between = "";
    for (size_t k = 0; k < CR_COUNT(kinds); k++) {
        int all = 0, sparse = 0;
        for (int i = 0; i < p->ops; i++) {
            if (p->op[i].kind != kinds[k].kind) continue;
            all++;
            sparse += cr_op_has_sparsity_pattern(&p->op[i]);
        }
        if (all) cr_text_add(out, "%s%d of %d %s", between, sparse, all, kinds[k].name);
        if (all) between = ", ";
    }
}

/* session/gradients.c: gradients of a network on batches of a dataset, without training it. See session/session.h. */
#include "data/data.h"
#include "session/state.h"

static cr_status one_batch(struct cr_session *s, struct cr_loader *loader, int64_t step) {
    const struct cr_step_block block = {.step = step, .seed = (uint64_t)s->config->train.seed}; /* learning rate 0 */
    struct cr_exec            *exec  = s->train_exec[0];
    struct cr_exec_result      result;
    struct cr_batch            batch;
    CR_TRY(cr_loader_next(loader, &batch));
    cr_status status = cr_exec_feed_mixed(exec, batch.images, batch.labels, batch.boxes, batch.mixes);
    cr_loader_release(loader, &batch);
    CR_TRY(status);
    CR_TRY(cr_exec_run(exec, &block));
    CR_TRY(cr_exec_result(exec, cr_exec_runs(exec), &result));
    return result.nonfinite ? CR_FAIL(CR_ERR_CONFIG,
                                      "the loss or a gradient of batch %lld is not finite: the weights "
                                      "cannot be ranked by gradients",
                                      (long long)step + 1)
                            : CR_OK;
}

cr_status cr_session_gradients(struct cr_session *s, const struct cr_dataset *train, int64_t batches,
                               cr_status (*on_gradients)(void *self, const float *grad), void *self) {
    const struct cr_config        *c       = s->config;
    const struct cr_loader_options options = {.split    = CR_SPLIT_TRAIN,
                                              .prepare  = s->prepare_train,
                                              .batch    = s->batch,
                                              .seed     = (uint64_t)c->train.seed,
                                              .workers  = (int)c->data.workers,
                                              .prefetch = (int)c->data.prefetch,
                                              .ranks    = 1};
    struct cr_loader              *loader  = NULL;
    cr_status                      status  = CR_OK;
    CR_ASSERT(s->trains == 1);
    CR_TRY(cr_loader_open(train, &options, &loader));
    for (int64_t i = 0; i < batches; i++) {
        float *grad;
        CR_TRY_OUT(one_batch(s, loader, i));
        CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_GRAD, &grad));
        status = on_gradients(self, grad);
        cr_free(grad);
        CR_TRY_OUT(status);
    }
out:
    cr_loader_close(loader);
    return status;
}

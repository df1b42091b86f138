/* api/overlap.c: C API: overlaps calls whose images are on the GPU. The work of a call is given to the device while the
 * device computes the call before, so that the device does not wait for the host. */
#include "api/model.h"

cr_status cr_api_overlap_open(struct cresnet_model *m) {
    const struct cr_async *async = m->session.device->backend->async;
    const size_t           bytes = m->session.eval.tensor[m->session.eval.logits].bytes;
    if (!async) return CR_OK;
    for (int i = 0; i < CR_API_BEGUN; i++) {
        CR_TRY(async->host_reserve(m->session.device, bytes, &m->overlap[i].logits));
        CR_TRY(async->event_create(m->session.device, &m->overlap[i].ready));
    }
    return CR_OK;
}

void cr_api_overlap_close(struct cresnet_model *m) {
    if (!m->session.device || !m->session.device->backend->async) return;
    const struct cr_async *async = m->session.device->backend->async;
    for (int i = 0; i < CR_API_BEGUN; i++) {
        async->event_destroy(m->session.device, m->overlap[i].ready);
        if (m->overlap[i].logits) async->host_release(m->session.device, m->overlap[i].logits);
    }
}

bool cr_api_can_overlap(const struct cresnet_model *m, const struct cr_api_images *call) {
    return call->tensors && call->count > 0 && call->tensors->on_device && call->count <= m->session.state.eval_batch &&
           !cr_api_wants_features(m, call->output);
}

cr_status cr_api_overlap_begin(struct cresnet_model *m, void *argument) {
    struct cr_api_images      *call = argument;
    const struct cr_step_block step = {0};
    const int                  slot = m->overlap_begun;
    CR_TRY(cr_api_feed_tensors(m, call, call->count));
    CR_TRY(cr_exec_run(m->session.eval_exec, &step));
    CR_TRY(cr_exec_get_later(m->session.eval_exec, m->session.eval.logits, m->overlap[slot].logits,
                             m->overlap[slot].ready));
    m->overlap_begun = (slot + 1) % CR_API_BEGUN;
    return CR_OK;
}

bool cr_api_overlap_ready(struct cresnet_model *m, void *argument) {
    struct cr_device *device  = m->session.device;
    bool              reached = false;
    (void)argument;
    cr_error_hold(); /* the end of the job reports the error */
    const cr_status status =
        device->backend->async->event_reached(device, m->overlap[m->overlap_ended].ready, &reached);
    cr_error_release();
    return reached || status != CR_OK;
}

cr_status cr_api_overlap_end(struct cresnet_model *m, void *argument) {
    const struct cr_api_images *call   = argument;
    const struct cr_tensor     *logits = &m->session.eval.tensor[m->session.eval.logits];
    const int                   slot   = m->overlap_ended;
    m->overlap_ended                   = (slot + 1) % CR_API_BEGUN;
    CR_TRY(m->session.device->backend->async->host_wait(m->session.device, m->overlap[slot].ready));
    cr_numbers_to_f32(logits->dtype, m->overlap[slot].logits, cr_tensor_elems(logits), m->logits);
    return cr_api_write_results(m, call->output, 0, call->count);
}

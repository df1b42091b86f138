/* cli/explain/class_map.c: Grad-CAM of one image. See cli/explain/class_map.h.
 *
 * Grad-CAM weights channel k of the last stage's output A, [H,W,C], by the mean of d logit / d A over the positions.
 * Between A and the logits of these networks lie only the mean over the positions and the classifier W, [classes,C],
 * so that the gradient is W[class][k] / (H W) at every position. It needs no backward program: the map equals the one
 * that automatic differentiation gives, on every device and for pruned weights too. */
#include "cli/explain/class_map.h"

#include <math.h>

/* Copies the classifier's weights of one class, f32 [channels]. */
static cr_status read_class_weights(struct cr_session *s, int label, int64_t channels, float *out) {
    const struct cr_param_store *store = &s->model.store;
    const int                    param = cr_param_store_find(store, "fc.weight");
    CR_ASSERT(param != CR_NONE && store->param[param].dim[3] == channels && store->real == CR_F32);
    const size_t first = (size_t)store->param[param].offset + (size_t)label * (size_t)channels;
    const char  *value =
        (const char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(store, CR_BUFFER_VALUE);
    return s->device->backend->get(s->device, out, value + first * sizeof *out, (size_t)channels * sizeof *out);
}

static cr_status find_predicted(const float *logits, int classes, int *out) {
    *out = 0;
    for (int k = 0; k < classes; k++) {
        if (!isfinite(logits[k]))
            return CR_FAIL(CR_ERR_NUMERIC, "the network's outputs for this image are not finite: its weights overflow");
        if (logits[k] > logits[*out]) *out = k;
    }
    return CR_OK;
}

/* maps: f32 [positions][channels] */
static void weigh(const float *maps, const float *weights, int64_t positions, int64_t channels, float *out) {
    for (int64_t i = 0; i < positions; i++) {
        double sum = 0;
        for (int64_t k = 0; k < channels; k++) sum += (double)weights[k] * (double)maps[i * channels + k];
        out[i] = sum > 0 ? (float)(sum / (double)positions) : 0;
    }
}

cr_status cr_class_map_compute(struct cr_session *s, const uint8_t *image, int label, struct cr_class_map *out) {
    const struct cr_step_block step = {0};
    const struct cr_tensor    *maps = &s->eval.tensor[s->eval.maps], *logits = &s->eval.tensor[s->eval.logits];
    const int64_t              channels = maps->dim[3], positions = maps->dim[1] * maps->dim[2];
    float                     *values, *weights;
    unsigned char             *raw;
    CR_ASSERT(maps->dim[0] == 1);
    *out = (struct cr_class_map){.height = (int)maps->dim[1], .width = (int)maps->dim[2]};
    CR_ARENA_ALLOC(&out->arena, values, (size_t)cr_tensor_elems(maps));
    CR_ARENA_ALLOC(&out->arena, weights, (size_t)channels);
    CR_ARENA_ALLOC(&out->arena, raw, CR_MAX(maps->bytes, logits->bytes));
    CR_ARENA_ALLOC(&out->arena, out->value, (size_t)positions);
    CR_ARENA_ALLOC(&out->arena, out->logits, (size_t)cr_tensor_elems(logits));
    CR_TRY(cr_exec_feed(s->eval_exec, image, NULL, NULL));
    CR_TRY(cr_exec_run(s->eval_exec, &step));
    CR_TRY(cr_session_read(s, s->eval.logits, raw, out->logits));
    CR_TRY(cr_session_read(s, s->eval.maps, raw, values));
    CR_TRY(find_predicted(out->logits, s->model.classes, &out->predicted));
    out->label = label < 0 ? out->predicted : label;
    CR_TRY(read_class_weights(s, out->label, channels, weights));
    weigh(values, weights, positions, channels, out->value);
    return CR_OK;
}

/* tools/spdnn/run_cpu.c: inference of a sparse deep network on the CPU; the reference for the GPU.
 *
 * A thread runs a batch of inputs through all layers. An input is dead when all its values are 0. Live inputs are
 * stored contiguously. */
#include "device/cpu/cpu.h"
#include "tools/spdnn/spdnn.h"

#include "core/dtype.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, LANES = 16, HALVES = 65536 };

struct run {
    const struct cr_spdnn_net     *net;
    const struct cr_spdnn_inputs  *inputs;
    const struct cr_spdnn_options *options;
    float                         *half;      /* [HALVES]: value of each f16 number */
    atomic_llong                  *survivors; /* [layers + 1]: live inputs after each layer */
    uint8_t                       *alive;     /* [inputs]: live after the last layer */
    float                         *values;    /* [neurons][inputs], or NULL */
};

struct batch {
    float  *x, *y;        /* [neurons][BATCH] */
    int64_t input[BATCH]; /* index of each live input */
    int     count;        /* number of live inputs */
    uint8_t alive[BATCH];
};

/* One row of the matrix for LANES inputs. Sets alive[i] if result i is above 0. */
CR_BY_LEVEL(void, one_row,
            (const float *x, const uint16_t *column, const float *weight, int64_t count, float bias, float *y,
             uint8_t *alive),
            (x, column, weight, count, bias, y, alive)) {
    float sum[LANES] = {0};
    for (int64_t k = 0; k < count; k++) {
        const float *from = x + (int64_t)column[k] * BATCH;
        const float  w    = weight[k];
        CR_SIMD
        for (int i = 0; i < LANES; i++) sum[i] += w * from[i];
    }
    for (int i = 0; i < LANES; i++) {
        const float v = sum[i] + bias;
        y[i]          = v < 0 ? 0.0f : v > CR_SPDNN_CEILING ? CR_SPDNN_CEILING : v;
        alive[i] |= y[i] > 0;
    }
}

static void one_layer(const struct run *r, const struct cr_spdnn_layer *f, struct batch *s, float *weight) {
    const uint32_t *start  = (const uint32_t *)(const void *)f->data;
    const uint16_t *row    = (const uint16_t *)(const void *)(f->data + f->row_at);
    const uint16_t *column = (const uint16_t *)(const void *)(f->data + f->column_at);
    memset(s->alive, 0, sizeof s->alive);
    for (int64_t g = 0; g < f->groups; g++) {
        const int64_t count = start[g + 1] - start[g];
        for (int j = 0; j < f->rows; j++) {
            for (int64_t k = 0; k < count; k++) {
                const size_t at = (size_t)(start[g] + k) * (size_t)f->rows + (size_t)j;
                weight[k]       = f->half ? r->half[((const uint16_t *)(const void *)(f->data + f->weight_at))[at]]
                                          : ((const float *)(const void *)(f->data + f->weight_at))[at];
            }
            for (int i = 0; i < s->count; i += LANES)
                one_row(s->x + i, column + start[g], weight, count, r->net->bias,
                        s->y + (int64_t)row[g * f->rows + j] * BATCH + i, s->alive + i);
        }
    }
    float *input = s->x;
    s->x         = s->y;
    s->y         = input;
}

/* Removes dead inputs. The columns after the live inputs hold finite values that are not used. */
static void remove_dead(struct batch *s, int64_t neurons) {
    int live[BATCH], count = 0;
    for (int i = 0; i < s->count; i++)
        if (s->alive[i]) live[count++] = i;
    if (count == s->count) return;
    for (int64_t n = 0; n < neurons; n++)
        for (int i = 0; i < count; i++) s->x[n * BATCH + i] = s->x[n * BATCH + live[i]];
    for (int i = 0; i < count; i++) s->input[i] = s->input[live[i]];
    s->count = count;
}

static void load(const struct run *r, int64_t first, struct batch *s) {
    const struct cr_spdnn_inputs *in = r->inputs;
    s->count                         = (int)CR_MIN((int64_t)BATCH, in->count - first);
    for (int i = 0; i < s->count; i++) s->input[i] = first + i;
    for (int64_t n = 0; n < in->neurons; n++)
        for (int i = 0; i < BATCH; i++)
            s->x[n * BATCH + i] =
                i < s->count && (in->bit[n * in->words + (first + i) / 32] >> (first + i) % 32 & 1) ? 1.0f : 0.0f;
}

static cr_status run_batch(void *context, int64_t index) {
    const struct run *r       = context;
    const int64_t     neurons = r->net->neurons;
    struct batch      s       = {0};
    cr_status         status  = CR_OK;
    float            *weight  = cr_alloc((size_t)neurons, sizeof *weight);
    s.x                       = cr_alloc((size_t)neurons * BATCH, sizeof *s.x);
    s.y                       = cr_alloc((size_t)neurons * BATCH, sizeof *s.y);
    if (!weight || !s.x || !s.y) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d inputs", BATCH);
    load(r, index * BATCH, &s);
    atomic_fetch_add(&r->survivors[0], s.count);
    for (int l = 0; l < r->net->layers && s.count; l++) {
        const bool last = l + 1 == r->net->layers;
        one_layer(r, &r->net->layer[l], &s, weight);
        if (!r->options->keep_dead || last) remove_dead(&s, neurons);
        atomic_fetch_add(&r->survivors[l + 1], s.count);
    }
    for (int i = 0; i < s.count; i++) {
        r->alive[s.input[i]] = 1;
        for (int64_t n = 0; r->values && n < neurons; n++)
            r->values[n * r->inputs->count + s.input[i]] = s.x[n * BATCH + i];
    }
out:
    cr_free(weight);
    cr_free(s.x);
    cr_free(s.y);
    return status;
}

static cr_status collect(const struct run *r, struct cr_spdnn_result *out) {
    for (int l = 0; l <= r->net->layers; l++) out->survivors[l] = atomic_load(&r->survivors[l]);
    for (int64_t i = 0; i < r->inputs->count; i++)
        if (r->alive[i]) out->category[out->categories++] = (int32_t)i;
    if (!r->values) return CR_OK;
    CR_ALLOC(out->values, (size_t)(r->net->neurons * CR_MAX(out->categories, (int64_t)1)));
    for (int64_t n = 0; n < r->net->neurons; n++)
        for (int64_t i = 0; i < out->categories; i++)
            out->values[n * out->categories + i] = r->values[n * r->inputs->count + out->category[i]];
    return CR_OK;
}

static cr_status run_cpu(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                         const struct cr_spdnn_options *options, struct cr_spdnn_result *out) {
    struct run r      = {.net = net, .inputs = inputs, .options = options};
    cr_status  status = CR_OK;
    CR_TRY(cr_spdnn_result_open(net, inputs->count, out));
    r.half      = cr_alloc(HALVES, sizeof *r.half);
    r.survivors = cr_alloc((size_t)net->layers + 1, sizeof *r.survivors);
    r.alive     = cr_alloc((size_t)CR_MAX(inputs->count, (int64_t)1), 1);
    if (options->values) r.values = cr_alloc((size_t)(net->neurons * inputs->count), sizeof *r.values);
    if (!r.half || !r.survivors || !r.alive || (options->values && !r.values))
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %lld inputs", (long long)inputs->count);
    for (int h = 0; h < HALVES; h++) r.half[h] = cr_f16_to_f32((uint16_t)h);
    const int64_t begin = cr_time_ns();
    CR_TRY_OUT(cr_spdnn_parallel((inputs->count + BATCH - 1) / BATCH, cr_cpu_threads(device), run_batch, &r));
    out->seconds = (double)(cr_time_ns() - begin) * 1e-9;
    CR_TRY_OUT(collect(&r, out));
out:
    cr_free(r.half);
    cr_free(r.survivors);
    cr_free(r.alive);
    cr_free(r.values);
    if (status != CR_OK) cr_spdnn_result_free(out);
    return status;
}

cr_status cr_spdnn_run(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                       const struct cr_spdnn_options *options, struct cr_spdnn_result *out) {
#ifdef CR_TOOL_WITH_CUDA
    if (!device->caps.host_memory) return cr_spdnn_run_cuda(device, net, inputs, options, out);
#endif
    return run_cpu(device, net, inputs, options, out);
}

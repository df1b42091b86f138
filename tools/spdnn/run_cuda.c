/* tools/spdnn/run_cuda.c: runs a sparse deep network on the GPU, as one captured CUDA graph.
 *
 * The weights stay on the device, or are streamed through two buffers while the layers before them compute. Small
 * networks compute several layers per launch (tools/spdnn/deep.cu). */
#include "tools/spdnn/run_cuda.h"
#include "cuda/core/device_parts.h"

#include <stdlib.h>

/* Layers per launch of spdnn_deep. Many inputs are removed in the first layers, so that the first launches are short. A
 * later launch has half as many layers as come before it: the overhead of a launch is then small. This rule was the
 * fastest of seven at 120, 480 and 1,920 layers on one H200. */
enum { DEEP_MIN_LAYERS = 2, DEEP_DIVISOR = 2 };

static bool use_deep(const struct cr_cuda_spdnn_run *r, int shared_bytes) {
    if (r->net->layers < 1) return false;
    for (int l = 0; l < r->net->layers; l++)
        if (r->net->layer[l].rows != CK_SPDNN_DEEP_ROWS || r->net->layer[l].groups > CK_SPDNN_DEEP_GROUPS) return false;
    return ck_spdnn_deep_fits(r->net->neurons, shared_bytes);
}

static struct ck_spdnn_layer layer_at(const struct cr_cuda_spdnn_run *r, int l, const uint8_t *data) {
    const struct cr_spdnn_layer *f = &r->net->layer[l];
    return (struct ck_spdnn_layer){.rows    = f->rows,
                                   .groups  = (int)f->groups,
                                   .weights = f->half ? CK_F16 : CK_F32,
                                   .start   = (const uint32_t *)(const void *)data,
                                   .row     = (const uint16_t *)(const void *)(data + f->row_at),
                                   .column  = (const uint16_t *)(const void *)(data + f->column_at),
                                   .weight  = data + f->weight_at,
                                   .bias    = r->net->bias,
                                   .ceiling = CR_SPDNN_CEILING};
}

/* ---- launches ---- */

/* Number of layers from l on, before `end`, that one launch computes. All have weights of one type. */
static int deep_layers(const struct cr_cuda_spdnn_run *r, int l, int end) {
    const int max_layers =
        CR_MIN(CR_MIN(CR_MAX(l / DEEP_DIVISOR, (int)DEEP_MIN_LAYERS), (int)CK_SPDNN_DEEP_LAYERS), end - l);
    int n = 1;
    while (n < max_layers && r->net->layer[l + n].half == r->net->layer[l].half) n++;
    return n;
}

static cr_status launch_deep_stage(struct cr_cuda_spdnn_run *r, const struct cr_cuda_spdnn_stage *s,
                                   const uint8_t *data) {
    struct ck_spdnn_layer f[CK_SPDNN_DEEP_LAYERS];
    for (int l = s->first, n; l < s->end; l += n) {
        const int from = r->launches % 2;
        n              = deep_layers(r, l, s->end);
        for (int i = 0; i < n; i++) f[i] = layer_at(r, l + i, data + r->offset[l + i]);
        const struct ck_spdnn_deep d = {.count   = n,
                                        .index   = l,
                                        .neurons = (int)r->net->neurons,
                                        .blocks  = r->chip.multiprocessors,
                                        .launch  = (uint32_t)r->launches++,
                                        .keep    = r->options->keep_dead,
                                        .last    = l + n == r->net->layers,
                                        .x       = r->x[from],
                                        .y       = r->x[from ^ 1],
                                        .bit     = l == 0 ? r->bit : NULL,
                                        .words   = (r->part + 31) / 32};
        CUDA_TRY(ck_spdnn_deep(f, &d, &r->deep_state, r->d->stream[CR_STREAM_COMPUTE]));
    }
    return CR_OK;
}

static cr_status launch_stage(struct cr_cuda_spdnn_run *r, const struct cr_cuda_spdnn_stage *s, const uint8_t *data) {
    if (r->deep) return launch_deep_stage(r, s, data);
    for (int l = s->first; l < s->end; l++, r->launches++) {
        const struct ck_spdnn_layer f     = layer_at(r, l, data + r->offset[l]);
        const bool                  keep  = r->options->keep_dead && l + 1 < r->net->layers;
        const unsigned              flags = (keep ? CK_SPDNN_KEEP : 0) | (l > s->first ? CK_SPDNN_OVERLAP : 0);
        CUDA_TRY(ck_spdnn_layer(&f, l, flags, r->x[l % 2], r->x[(l + 1) % 2], r->stride, &r->state, &r->chip,
                                r->d->stream[CR_STREAM_COMPUTE]));
    }
    return CR_OK;
}

/* The copy of a stage waits until the layers that used its buffer are complete; the layers of the stage wait for the
 * copy. */
static cr_status launch_streamed(struct cr_cuda_spdnn_run *r) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE], copy = r->d->stream[CR_STREAM_TO_DEVICE];
    CUDA_TRY(cudaEventRecord(r->started, compute));
    CUDA_TRY(cudaStreamWaitEvent(copy, r->started, 0));
    for (int s = 0; s < r->stages; s++) {
        const int b      = s % SPDNN_BUFFERS;
        uint8_t  *buffer = r->weights + (size_t)b * r->buffer_bytes;
        if (s >= SPDNN_BUFFERS) CUDA_TRY(cudaStreamWaitEvent(copy, r->used[b], 0));
        CUDA_TRY(cudaMemcpyAsync(buffer, r->host + r->stage[s].at, r->stage[s].bytes, cudaMemcpyHostToDevice, copy));
        CUDA_TRY(cudaEventRecord(r->copied[b], copy));
        CUDA_TRY(cudaStreamWaitEvent(compute, r->copied[b], 0));
        CR_TRY(launch_stage(r, &r->stage[s], buffer));
        CUDA_TRY(cudaEventRecord(r->used[b], compute));
    }
    return CR_OK;
}

static cr_status launch_all(struct cr_cuda_spdnn_run *r) {
    r->launches = 0;
    if (r->streamed) return launch_streamed(r);
    for (int s = 0; s < r->stages; s++) CR_TRY(launch_stage(r, &r->stage[s], r->weights + r->stage[s].at));
    return CR_OK;
}

static cr_status capture(struct cr_cuda_spdnn_run *r) {
    const struct cr_async *async      = &cr_cuda_async;
    void                  *graph_exec = NULL;
    CR_TRY(async->capture_begin(&r->d->base));
    const cr_status status = launch_all(r);
    if (status != CR_OK) { /* the capture must end also after an error */
        cudaGraph_t graph = NULL;
        (void)cudaStreamEndCapture(r->d->stream[CR_STREAM_COMPUTE], &graph);
        if (graph) (void)cudaGraphDestroy(graph);
        return status;
    }
    CR_TRY(async->capture_end(&r->d->base, &graph_exec));
    r->graph_exec = graph_exec;
    return CR_OK;
}

/* ---- inputs, results ---- */

/* Expands inputs [first, first + count) to activations and resets the state. `upload` copies the input bits to the
 * device first. */
static cr_status start(struct cr_cuda_spdnn_run *r, int64_t count, bool upload, int64_t first) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE];
    const int64_t      words = (count + 31) / 32, pitch = (r->part + 31) / 32;
    if (upload && pitch == r->inputs->words) /* one contiguous copy */
        CR_TRY(cr_backend_cuda.put(&r->d->base, r->bit, r->inputs->bit,
                                   (size_t)(r->net->neurons * pitch) * sizeof *r->bit));
    else if (upload)
        CUDA_TRY(cudaMemcpy2DAsync(r->bit, (size_t)pitch * 4, r->inputs->bit + first / 32, (size_t)r->inputs->words * 4,
                                   (size_t)words * 4, (size_t)r->net->neurons, cudaMemcpyHostToDevice, compute));
    if (r->deep)
        CUDA_TRY(
            ck_spdnn_deep_start(r->net->layers, count, r->stride, r->chip.multiprocessors, &r->deep_state, compute));
    else
        CUDA_TRY(ck_spdnn_start(r->bit, pitch, r->net->neurons, count, r->x[0], r->stride, &r->state, compute));
    return CR_OK;
}

static cr_status get_values(struct cr_cuda_spdnn_run *r, const float *packed, int64_t count, float *out) {
    const size_t width = (size_t)count * sizeof *out;
    if (!count) return CR_OK;
    CUDA_TRY(cudaMemcpy2DAsync(out, width, packed, (size_t)r->stride * sizeof *packed, width, (size_t)r->net->neurons,
                               cudaMemcpyDeviceToHost, r->d->stream[CR_STREAM_COMPUTE]));
    CUDA_TRY(cudaStreamSynchronize(r->d->stream[CR_STREAM_COMPUTE]));
    return CR_OK;
}

/* Computes the categories. With the option `values`, *packed gets the device address of the last layer's values, stored
 * contiguously; else NULL. */
static cr_status finish(struct cr_cuda_spdnn_run *r, int64_t count, float **packed) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE];
    const int          layers  = r->net->layers;
    const float       *y       = r->x[r->launches % 2];
    *packed                    = r->options->values ? r->x[(r->launches + 1) % 2] : NULL;
    if (r->deep)
        CUDA_TRY(ck_spdnn_deep_finish(layers, r->launches, count, y, r->net->neurons, r->stride, &r->deep_state,
                                      r->category, *packed, compute));
    else
        CUDA_TRY(ck_spdnn_finish(layers, y, r->net->neurons, r->stride, &r->state, r->category, *packed, compute));
    return CR_OK;
}

static cr_status add_results(struct cr_cuda_spdnn_run *r, int64_t first, int64_t count, struct cr_spdnn_result *out) {
    const int layers = r->net->layers;
    float    *packed;
    int32_t  *live;
    cr_status status = CR_OK;
    CR_TRY(finish(r, count, &packed));
    CR_ALLOC(live, (size_t)layers + 1);
    CR_TRY_OUT(cr_backend_cuda.get(&r->d->base, live, r->state.live, ((size_t)layers + 1) * sizeof *live));
    for (int l = 0; l <= layers; l++) out->survivors[l] += live[l];
    const int64_t more = live[layers], all = out->categories + more;
    if (more < 0 || more > count)
        CR_FAIL_OUT(CR_ERR_DEVICE, "%lld of %lld inputs survive: the GPU's counts are corrupt", (long long)more,
                    (long long)count);
    CR_TRY_OUT(cr_backend_cuda.get(&r->d->base, out->category + out->categories, r->category,
                                   (size_t)more * sizeof *out->category));
    for (int64_t i = out->categories; i < all; i++) out->category[i] += (int32_t)first;
    if (packed) { /* run_all() has checked that there is one part */
        out->values = cr_alloc((size_t)(r->net->neurons * CR_MAX(more, (int64_t)1)), sizeof *out->values);
        if (!out->values) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the values of %lld inputs", (long long)more);
        CR_TRY_OUT(get_values(r, packed, more, out->values));
    }
    out->categories = all;
out:
    cr_free(live);
    return status;
}

/* Runs and times one part of the inputs, each repetition from the start. Adds the median time. */
static cr_status run_part(struct cr_cuda_spdnn_run *r, int64_t first, int64_t count, double *seconds,
                          struct cr_spdnn_result *out) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE];
    for (int i = 0; i < r->options->repeats; i++) {
        float ms = 0;
        CR_TRY(start(r, count, i == 0, first));
        CUDA_TRY(cudaEventRecord(r->begin, compute));
        CR_TRY(cr_cuda_async.graph_launch(&r->d->base, r->graph_exec));
        CUDA_TRY(cudaEventRecord(r->end, compute));
        CUDA_TRY(cudaEventSynchronize(r->end));
        CUDA_TRY(cudaEventElapsedTime(&ms, r->begin, r->end));
        seconds[i] = (double)ms * 1e-3;
    }
    qsort(seconds, (size_t)r->options->repeats, sizeof *seconds, cr_compare_doubles);
    out->seconds += seconds[r->options->repeats / 2];
    return add_results(r, first, count, out);
}

static cr_status run_all(struct cr_cuda_spdnn_run *r, struct cr_spdnn_result *out) {
    double   *seconds;
    cr_status status = CR_OK;
    int       cache  = 0;
    CUDA_TRY(cudaSetDevice(r->d->index)); /* the current device of this thread */
    CUDA_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, r->d->index));
    r->deep = use_deep(r, r->d->block_bytes);
    /* the other half of L2 holds the layer's input */
    r->chip = (struct ck_spdnn_chip){r->d->multiprocessors, cache / 2};
    CR_TRY(cr_cuda_spdnn_place_layers(r));
    CR_TRY(cr_cuda_spdnn_choose_sizes(r));
    if (r->options->values && r->part < r->inputs->count)
        return CR_FAIL(CR_ERR_MEMORY, "the GPU has too little free memory for the values of %lld inputs",
                       (long long)r->inputs->count);
    CR_TRY(cr_cuda_spdnn_open_memory(r));
    CR_TRY(cr_cuda_spdnn_upload_weights(r));
    CR_TRY(cr_spdnn_result_open(r->net, r->inputs->count, out));
    CR_TRY(capture(r));
    CR_ALLOC(seconds, (size_t)r->options->repeats);
    for (int64_t first = 0; first < r->inputs->count; first += r->part)
        CR_TRY_OUT(run_part(r, first, CR_MIN(r->part, r->inputs->count - first), seconds, out));
    out->streamed     = r->streamed;
    out->captured     = r->graph_exec != NULL;
    out->launches     = r->launches;
    out->device_bytes = r->device_bytes;
out:
    cr_free(seconds);
    return status;
}

cr_status cr_spdnn_run_cuda(struct cr_device *device, const struct cr_spdnn_net *net,
                            const struct cr_spdnn_inputs *inputs, const struct cr_spdnn_options *options,
                            struct cr_spdnn_result *out) {
    struct cr_cuda_spdnn_run r = {.d = cuda_of(device), .net = net, .inputs = inputs, .options = options};
    *out                       = (struct cr_spdnn_result){0};
    const cr_status status     = run_all(&r, out);
    if (status != CR_OK) {
        cr_error_hold();
        cr_cuda_spdnn_close(&r);
        cr_error_release();
        cr_spdnn_result_free(out);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    cr_cuda_spdnn_close(&r);
    return CR_OK;
}

/* cuda/spdnn/spdnn_cuda.c: a sparse deep network on the GPU: memory for it, its launches as one recording, weights that
 * stay on the device or pass through two buffers while the layers before them compute. Small networks take several
 * layers a launch (cuda/spdnn/spdnn_deep.cu). */
#include "cuda/core/cuda_device.h"
#include "cuda/spdnn/spdnn_kernel.h"
#include "spdnn/spdnn.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 2 };
/* Layers of a deep launch: inputs die early, so that the first ones are short; later ones are half of the layers before
 * them, and what a launch costs on top is soon small beside them. The best of seven ways on one H200, at 120, 480 and
 * 1,920 layers. */
enum { DEEP_LEAST = 2, DEEP_SHARE = 2 };
static const size_t spare_bytes = (size_t)1 << 30; /* left to the driver and to whoever else is there */
static const size_t stage_least = (size_t)16
                                  << 20; /* weights that are copied at once: fewer pay for the copy's start */

struct stage { /* layers that are copied together */
    int    first, end;
    size_t at; /* in host memory */
    size_t bytes;
};

struct run {
    struct cuda_device            *d;
    const struct cr_spdnn_net     *net;
    const struct cr_spdnn_inputs  *inputs;
    const struct cr_spdnn_options *options;
    int64_t                        part, stride; /* inputs at a time; what a neuron's row of them takes */
    size_t                        *offset;       /* [layers]: of a layer in the weights, or in its stage */
    struct stage                  *stage;
    int                            stages;
    uint8_t                       *weights; /* device: all, or BUFFERS of the largest stage */
    uint8_t                       *host;    /* page-locked, streamed only: all */
    size_t                         weight_bytes, buffer_bytes;
    bool                           streamed;
    bool                           deep;     /* several layers a launch, with deep_state */
    int                            launches; /* of layers: each takes x[n % 2] to the other one */
    struct ck_spdnn_deep_state     deep_state;
    float                         *x[2];
    uint32_t                      *bit;
    int32_t                       *category;
    uint8_t                       *scratch; /* what state points into */
    uint8_t                       *handoff; /* deep: tiles between blocks, and marks */
    struct ck_spdnn_state          state;
    struct ck_spdnn_chip           chip;
    cudaEvent_t                    begin, end, begun;
    cudaEvent_t                    copied[BUFFERS], used[BUFFERS];
    cudaGraphExec_t                recording;
    size_t                         device_bytes;
};

static size_t align_up(size_t bytes) {
    return (bytes + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
}

static cr_status take(struct run *r, void **out, size_t bytes) {
    CUDA_TRY(cudaMalloc(out, CR_MAX(bytes, (size_t)1)));
    r->device_bytes += bytes;
    return CR_OK;
}

/* ---- what is where ---- */

/* Places of layers: one behind the other, in stages of some MiB that begin anew in a buffer. */
static cr_status place_layers(struct run *r) {
    CR_ALLOC(r->offset, (size_t)r->net->layers + 1);
    CR_ALLOC(r->stage, (size_t)r->net->layers + 1);
    struct stage now = {0};
    for (int l = 0; l < r->net->layers; l++) {
        r->offset[l] = now.bytes;
        now.bytes += align_up(r->net->layer[l].bytes);
        now.end = l + 1;
        if (now.bytes < stage_least && l + 1 < r->net->layers) continue;
        r->stage[r->stages++] = now;
        r->weight_bytes += now.bytes;
        r->buffer_bytes = CR_MAX(r->buffer_bytes, now.bytes);
        now             = (struct stage){.first = l + 1, .at = r->weight_bytes};
    }
    return CR_OK;
}

/* What an input needs of device memory. */
static size_t input_bytes(const struct run *r) {
    return (size_t)r->net->neurons * (2 * sizeof(float)) + (size_t)r->net->neurons / 8 + 4 * sizeof(int32_t) + 1;
}

/* All inputs at once beside all weights, or beside two buffers of weights, or as many inputs as then fit. */
static cr_status choose_sizes(struct run *r) {
    size_t free_bytes, total;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    const int64_t all    = (r->inputs->count + CK_SPDNN_CHUNK - 1) / CK_SPDNN_CHUNK * CK_SPDNN_CHUNK;
    const size_t  usable = free_bytes > spare_bytes ? free_bytes - spare_bytes : 0;
    r->streamed          = r->options->stream || r->weight_bytes + (size_t)all * input_bytes(r) > usable;
    const size_t weights = r->streamed ? BUFFERS * r->buffer_bytes : r->weight_bytes;
    const size_t fit     = usable > weights ? (usable - weights) / input_bytes(r) / CK_SPDNN_CHUNK * CK_SPDNN_CHUNK : 0;
    if (!fit)
        return CR_FAIL(CR_ERR_MEMORY, "the GPU has %.0f MiB free: too little for %lld neurons",
                       (double)free_bytes / (1 << 20), (long long)r->net->neurons);
    r->stride = CR_MIN((int64_t)fit, all);
    r->part   = CR_MIN(r->stride, r->inputs->count);
    return CR_OK;
}

static bool is_deep(const struct run *r, int shared_bytes) {
    if (r->net->layers < 1) return false;
    for (int l = 0; l < r->net->layers; l++)
        if (r->net->layer[l].rows != CK_SPDNN_DEEP_ROWS || r->net->layer[l].groups > CK_SPDNN_DEEP_GROUPS) return false;
    return ck_spdnn_deep_fits(r->net->neurons, shared_bytes);
}

static cr_status open_deep(struct run *r) {
    const size_t blocks = (size_t)r->chip.multiprocessors,
                 tile   = (size_t)r->net->neurons * CK_SPDNN_DEEP_TILE * sizeof(float);
    CR_TRY(take(r, (void **)&r->handoff, blocks * tile + align_up(blocks * sizeof(uint32_t))));
    r->deep_state = (struct ck_spdnn_deep_state){.live    = r->state.live,
                                                 .origin  = {r->state.origin[0], r->state.origin[1]},
                                                 .place   = r->state.list,
                                                 .alive   = r->state.alive,
                                                 .handoff = (float *)(void *)r->handoff,
                                                 .ready   = (uint32_t *)(void *)(r->handoff + blocks * tile)};
    return CR_OK;
}

static cr_status open_state(struct run *r) {
    const size_t n = (size_t)r->stride, live = align_up(((size_t)r->net->layers + 1) * 4), list = align_up(n * 4);
    CR_TRY(take(r, (void **)&r->scratch, live + 3 * list + align_up(n) + 2 * CR_CUDA_ALIGN));
    uint8_t *at          = r->scratch;
    r->state.live        = (int32_t *)(void *)at;
    r->state.list        = (int32_t *)(void *)(at += live);
    r->state.origin[0]   = (int32_t *)(void *)(at += list);
    r->state.origin[1]   = (int32_t *)(void *)(at += list);
    r->state.alive       = at += list;
    r->state.current     = (int32_t *)(void *)(at += align_up(n));
    r->state.blocks_done = (uint32_t *)(void *)(at + CR_CUDA_ALIGN);
    if (r->deep) CR_TRY(open_deep(r));
    return CR_OK;
}

static cr_status open_memory(struct run *r) {
    const size_t activations = (size_t)r->net->neurons * (size_t)r->stride * sizeof(float);
    for (int i = 0; i < 2; i++) CR_TRY(take(r, (void **)&r->x[i], activations));
    CR_TRY(take(r, (void **)&r->bit, (size_t)(r->net->neurons * (r->stride / 32)) * sizeof *r->bit));
    CR_TRY(take(r, (void **)&r->category, (size_t)r->stride * sizeof *r->category));
    CR_TRY(take(r, (void **)&r->weights, r->streamed ? BUFFERS * r->buffer_bytes : r->weight_bytes));
    CR_TRY(open_state(r));
    if (r->streamed) CUDA_TRY(cudaHostAlloc((void **)&r->host, r->weight_bytes, cudaHostAllocDefault));
    CUDA_TRY(cudaEventCreate(&r->begin));
    CUDA_TRY(cudaEventCreate(&r->end));
    CUDA_TRY(cudaEventCreateWithFlags(&r->begun, cudaEventDisableTiming));
    for (int b = 0; b < BUFFERS; b++) {
        CUDA_TRY(cudaEventCreateWithFlags(&r->copied[b], cudaEventDisableTiming));
        CUDA_TRY(cudaEventCreateWithFlags(&r->used[b], cudaEventDisableTiming));
    }
    return CR_OK;
}

static void run_close(struct run *r) {
    cudaEvent_t events[] = {r->begin, r->end, r->begun, r->copied[0], r->copied[1], r->used[0], r->used[1]};
    void       *memory[] = {r->x[0], r->x[1], r->bit, r->category, r->weights, r->scratch, r->handoff};
    (void)cudaStreamSynchronize(r->d->stream[CR_STREAM_COMPUTE]);
    if (r->recording) (void)cudaGraphExecDestroy(r->recording);
    for (size_t i = 0; i < CR_COUNT(events); i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    for (size_t i = 0; i < CR_COUNT(memory); i++) (void)cudaFree(memory[i]);
    (void)cudaFreeHost(r->host);
    (void)cudaGetLastError();
    cr_free(r->offset);
    cr_free(r->stage);
}

/* ---- weights ---- */

static cr_status bring_weights(struct run *r) {
    for (int s = 0; s < r->stages; s++)
        for (int l = r->stage[s].first; l < r->stage[s].end; l++) {
            const struct cr_spdnn_layer *f  = &r->net->layer[l];
            const size_t                 at = r->stage[s].at + r->offset[l];
            if (r->streamed)
                memcpy(r->host + at, f->data, f->bytes);
            else
                CR_TRY(cr_backend_cuda.put(&r->d->base, r->weights + at, f->data, f->bytes));
        }
    return CR_OK;
}

static struct ck_spdnn_layer layer_at(const struct run *r, int l, const uint8_t *data) {
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

/* How many of layers [l, end) go in one launch: of weights of one type. */
static int deep_layers(const struct run *r, int l, int end) {
    const int most = CR_MIN(CR_MIN(CR_MAX(l / DEEP_SHARE, (int)DEEP_LEAST), (int)CK_SPDNN_DEEP_LAYERS), end - l);
    int       n    = 1;
    while (n < most && r->net->layer[l + n].half == r->net->layer[l].half) n++;
    return n;
}

static cr_status launch_deep_stage(struct run *r, const struct stage *s, const uint8_t *data) {
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

static cr_status launch_stage(struct run *r, const struct stage *s, const uint8_t *data) {
    if (r->deep) return launch_deep_stage(r, s, data);
    for (int l = s->first; l < s->end; l++, r->launches++) {
        const struct ck_spdnn_layer f    = layer_at(r, l, data + r->offset[l]);
        const bool                  keep = r->options->keep_dead && l + 1 < r->net->layers;
        const unsigned              how  = (keep ? CK_SPDNN_KEEP : 0) | (l > s->first ? CK_SPDNN_OVERLAP : 0);
        CUDA_TRY(ck_spdnn_layer(&f, l, how, r->x[l % 2], r->x[(l + 1) % 2], r->stride, &r->state, &r->chip,
                                r->d->stream[CR_STREAM_COMPUTE]));
    }
    return CR_OK;
}

/* A stage's copy waits until the layers that used its buffer are through; its layers wait for the copy. */
static cr_status launch_streamed(struct run *r) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE], copy = r->d->stream[CR_STREAM_TO_DEVICE];
    CUDA_TRY(cudaEventRecord(r->begun, compute));
    CUDA_TRY(cudaStreamWaitEvent(copy, r->begun, 0));
    for (int s = 0; s < r->stages; s++) {
        const int b      = s % BUFFERS;
        uint8_t  *buffer = r->weights + (size_t)b * r->buffer_bytes;
        if (s >= BUFFERS) CUDA_TRY(cudaStreamWaitEvent(copy, r->used[b], 0));
        CUDA_TRY(cudaMemcpyAsync(buffer, r->host + r->stage[s].at, r->stage[s].bytes, cudaMemcpyHostToDevice, copy));
        CUDA_TRY(cudaEventRecord(r->copied[b], copy));
        CUDA_TRY(cudaStreamWaitEvent(compute, r->copied[b], 0));
        CR_TRY(launch_stage(r, &r->stage[s], buffer));
        CUDA_TRY(cudaEventRecord(r->used[b], compute));
    }
    return CR_OK;
}

static cr_status launch_all(struct run *r) {
    r->launches = 0;
    if (r->streamed) return launch_streamed(r);
    for (int s = 0; s < r->stages; s++) CR_TRY(launch_stage(r, &r->stage[s], r->weights + r->stage[s].at));
    return CR_OK;
}

static cr_status record(struct run *r) {
    const struct cr_async *async     = &cr_cuda_async;
    void                  *recording = NULL;
    CR_TRY(async->capture_begin(&r->d->base));
    const cr_status status = launch_all(r);
    if (status != CR_OK) { /* the capture must end all the same */
        cudaGraph_t graph = NULL;
        (void)cudaStreamEndCapture(r->d->stream[CR_STREAM_COMPUTE], &graph);
        if (graph) (void)cudaGraphDestroy(graph);
        return status;
    }
    CR_TRY(async->capture_end(&r->d->base, &recording));
    r->recording = recording;
    return CR_OK;
}

/* ---- inputs, results ---- */

/* Inputs [first, first + count) become activations; the state is that before the first layer. */
static cr_status start(struct run *r, int64_t count, bool bring, int64_t first) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE];
    const int64_t      words = (count + 31) / 32, pitch = (r->part + 31) / 32;
    if (bring && pitch == r->inputs->words) /* all at once */
        CR_TRY(cr_backend_cuda.put(&r->d->base, r->bit, r->inputs->bit,
                                   (size_t)(r->net->neurons * pitch) * sizeof *r->bit));
    else if (bring)
        CUDA_TRY(cudaMemcpy2DAsync(r->bit, (size_t)pitch * 4, r->inputs->bit + first / 32, (size_t)r->inputs->words * 4,
                                   (size_t)words * 4, (size_t)r->net->neurons, cudaMemcpyHostToDevice, compute));
    if (r->deep)
        CUDA_TRY(
            ck_spdnn_deep_start(r->net->layers, count, r->stride, r->chip.multiprocessors, &r->deep_state, compute));
    else
        CUDA_TRY(ck_spdnn_start(r->bit, pitch, r->net->neurons, count, r->x[0], r->stride, &r->state, compute));
    return CR_OK;
}

static cr_status get_values(struct run *r, const float *packed, int64_t count, float *out) {
    const size_t width = (size_t)count * sizeof *out;
    if (!count) return CR_OK;
    CUDA_TRY(cudaMemcpy2DAsync(out, width, packed, (size_t)r->stride * sizeof *packed, width, (size_t)r->net->neurons,
                               cudaMemcpyDeviceToHost, r->d->stream[CR_STREAM_COMPUTE]));
    CUDA_TRY(cudaStreamSynchronize(r->d->stream[CR_STREAM_COMPUTE]));
    return CR_OK;
}

/* Categories, and with `values` the last layer's values side by side, where *packed says. */
static cr_status finish(struct run *r, int64_t count, float **packed) {
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

static cr_status add_results(struct run *r, int64_t first, int64_t count, struct cr_spdnn_result *out) {
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
        CR_FAIL_OUT(CR_ERR_DEVICE, "%lld of %lld inputs survive: the GPU's counts are spoilt", (long long)more,
                    (long long)count);
    CR_TRY_OUT(cr_backend_cuda.get(&r->d->base, out->category + out->categories, r->category,
                                   (size_t)more * sizeof *out->category));
    for (int64_t i = out->categories; i < all; i++) out->category[i] += (int32_t)first;
    if (packed) { /* one part: run() sees to it */
        out->values = cr_alloc((size_t)(r->net->neurons * CR_MAX(more, (int64_t)1)), sizeof *out->values);
        if (!out->values) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the values of %lld inputs", (long long)more);
        CR_TRY_OUT(get_values(r, packed, more, out->values));
    }
    out->categories = all;
out:
    cr_free(live);
    return status;
}

static int compare_seconds(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One part of the inputs, timed; begun anew each time. */
static cr_status run_part(struct run *r, int64_t first, int64_t count, double *seconds, struct cr_spdnn_result *out) {
    const cudaStream_t compute = r->d->stream[CR_STREAM_COMPUTE];
    for (int i = 0; i < r->options->repeats; i++) {
        float ms = 0;
        CR_TRY(start(r, count, i == 0, first));
        CUDA_TRY(cudaEventRecord(r->begin, compute));
        CR_TRY(cr_cuda_async.graph_launch(&r->d->base, r->recording));
        CUDA_TRY(cudaEventRecord(r->end, compute));
        CUDA_TRY(cudaEventSynchronize(r->end));
        CUDA_TRY(cudaEventElapsedTime(&ms, r->begin, r->end));
        seconds[i] = (double)ms * 1e-3;
    }
    qsort(seconds, (size_t)r->options->repeats, sizeof *seconds, compare_seconds);
    out->seconds += seconds[r->options->repeats / 2];
    return add_results(r, first, count, out);
}

static cr_status run_all(struct run *r, struct cr_spdnn_result *out) {
    double   *seconds;
    cr_status status = CR_OK;
    int       cache = 0, shared = 0;
    CUDA_TRY(cudaSetDevice(r->d->index)); /* of this thread */
    CUDA_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, r->d->index));
    CUDA_TRY(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, r->d->index));
    r->deep = is_deep(r, shared);
    r->chip = (struct ck_spdnn_chip){r->d->multiprocessors, cache / 2}; /* the other half is what it was made of */
    CR_TRY(place_layers(r));
    CR_TRY(choose_sizes(r));
    if (r->options->values && r->part < r->inputs->count)
        return CR_FAIL(CR_ERR_MEMORY, "the GPU has no room for the values of %lld inputs", (long long)r->inputs->count);
    CR_TRY(open_memory(r));
    CR_TRY(bring_weights(r));
    CR_TRY(cr_spdnn_result_open(r->net, r->inputs->count, out));
    CR_TRY(record(r));
    CR_ALLOC(seconds, (size_t)r->options->repeats);
    for (int64_t first = 0; first < r->inputs->count; first += r->part)
        CR_TRY_OUT(run_part(r, first, CR_MIN(r->part, r->inputs->count - first), seconds, out));
    out->streamed     = r->streamed;
    out->captured     = r->recording != NULL;
    out->launches     = r->launches;
    out->device_bytes = r->device_bytes;
out:
    cr_free(seconds);
    return status;
}

cr_status cr_cuda_spdnn(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                        const struct cr_spdnn_options *options, struct cr_spdnn_result *out) {
    struct run r           = {.d = cuda_of(device), .net = net, .inputs = inputs, .options = options};
    *out                   = (struct cr_spdnn_result){0};
    const cr_status status = run_all(&r, out);
    if (status != CR_OK) {
        cr_error_hold();
        run_close(&r);
        cr_error_release();
        cr_spdnn_result_free(out);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    run_close(&r);
    return CR_OK;
}

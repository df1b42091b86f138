/* tools/spdnn/run_cuda_memory.c: memory of a sparse deep network on the GPU: where its weights, activations and state
 * are. */
#include "cuda/core/device_parts.h"
#include "tools/spdnn/run_cuda.h"

#include <string.h>

static const size_t reserved_bytes  = (size_t)1 << 30;  /* left to the driver and to other processes */
static const size_t min_stage_bytes = (size_t)16 << 20; /* smaller copies are dominated by their latency */

static size_t align_up(size_t bytes) {
    return (bytes + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
}

static cr_status alloc_device(struct cr_cuda_spdnn_run *r, void **out, size_t bytes) {
    CUDA_TRY(cudaMalloc(out, CR_MAX(bytes, (size_t)1)));
    r->device_bytes += bytes;
    return CR_OK;
}

/* Assigns offsets to the layers: contiguous within a stage. A stage has at least min_stage_bytes, except the last one.
 */
cr_status cr_cuda_spdnn_place_layers(struct cr_cuda_spdnn_run *r) {
    CR_ALLOC(r->offset, (size_t)r->net->layers + 1);
    CR_ALLOC(r->stage, (size_t)r->net->layers + 1);
    struct cr_cuda_spdnn_stage now = {0};
    for (int l = 0; l < r->net->layers; l++) {
        r->offset[l] = now.bytes;
        now.bytes += align_up(r->net->layer[l].bytes);
        now.end = l + 1;
        if (now.bytes < min_stage_bytes && l + 1 < r->net->layers) continue;
        r->stage[r->stages++] = now;
        r->weight_bytes += now.bytes;
        r->buffer_bytes = CR_MAX(r->buffer_bytes, now.bytes);
        now             = (struct cr_cuda_spdnn_stage){.first = l + 1, .at = r->weight_bytes};
    }
    return CR_OK;
}

/* Bytes of device memory per input. */
static size_t input_bytes(const struct cr_cuda_spdnn_run *r) {
    return (size_t)r->net->neurons * (2 * sizeof(float)) + (size_t)r->net->neurons / 8 + 4 * sizeof(int32_t) + 1;
}

/* Chooses how many inputs a run has: all inputs with all weights on the device, else with two buffers of weights, else
 * as many inputs as fit. */
cr_status cr_cuda_spdnn_choose_sizes(struct cr_cuda_spdnn_run *r) {
    size_t free_bytes, total;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    const int64_t all    = (r->inputs->count + CK_SPDNN_CHUNK - 1) / CK_SPDNN_CHUNK * CK_SPDNN_CHUNK;
    const size_t  usable = free_bytes > reserved_bytes ? free_bytes - reserved_bytes : 0;
    r->streamed          = r->options->stream || r->weight_bytes + (size_t)all * input_bytes(r) > usable;
    const size_t weights = r->streamed ? SPDNN_BUFFERS * r->buffer_bytes : r->weight_bytes;
    const size_t fit     = usable > weights ? (usable - weights) / input_bytes(r) / CK_SPDNN_CHUNK * CK_SPDNN_CHUNK : 0;
    if (!fit)
        return CR_FAIL(CR_ERR_MEMORY, "the GPU has %.0f MiB free: too little for %lld neurons",
                       (double)free_bytes / (1 << 20), (long long)r->net->neurons);
    r->stride = CR_MIN((int64_t)fit, all);
    r->part   = CR_MIN(r->stride, r->inputs->count);
    return CR_OK;
}

static cr_status open_deep(struct cr_cuda_spdnn_run *r) {
    const size_t blocks = (size_t)r->chip.multiprocessors,
                 tile   = (size_t)r->net->neurons * CK_SPDNN_DEEP_TILE * sizeof(float);
    CR_TRY(alloc_device(r, (void **)&r->handoff, blocks * tile + align_up(blocks * sizeof(uint32_t))));
    r->deep_state = (struct ck_spdnn_deep_state){.live    = r->state.live,
                                                 .origin  = {r->state.origin[0], r->state.origin[1]},
                                                 .place   = r->state.list,
                                                 .alive   = r->state.alive,
                                                 .handoff = (float *)(void *)r->handoff,
                                                 .ready   = (uint32_t *)(void *)(r->handoff + blocks * tile)};
    return CR_OK;
}

static cr_status open_state(struct cr_cuda_spdnn_run *r) {
    const size_t n = (size_t)r->stride, live = align_up(((size_t)r->net->layers + 1) * 4), list = align_up(n * 4);
    CR_TRY(alloc_device(r, (void **)&r->scratch, live + 3 * list + align_up(n) + 2 * CR_CUDA_ALIGN));
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

cr_status cr_cuda_spdnn_open_memory(struct cr_cuda_spdnn_run *r) {
    const size_t activations = (size_t)r->net->neurons * (size_t)r->stride * sizeof(float);
    for (int i = 0; i < 2; i++) CR_TRY(alloc_device(r, (void **)&r->x[i], activations));
    CR_TRY(alloc_device(r, (void **)&r->bit, (size_t)(r->net->neurons * (r->stride / 32)) * sizeof *r->bit));
    CR_TRY(alloc_device(r, (void **)&r->category, (size_t)r->stride * sizeof *r->category));
    CR_TRY(alloc_device(r, (void **)&r->weights, r->streamed ? SPDNN_BUFFERS * r->buffer_bytes : r->weight_bytes));
    CR_TRY(open_state(r));
    if (r->streamed) CUDA_TRY(cudaHostAlloc((void **)&r->host, r->weight_bytes, cudaHostAllocDefault));
    CUDA_TRY(cudaEventCreate(&r->begin));
    CUDA_TRY(cudaEventCreate(&r->end));
    CUDA_TRY(cudaEventCreateWithFlags(&r->started, cudaEventDisableTiming));
    for (int b = 0; b < SPDNN_BUFFERS; b++) {
        CUDA_TRY(cudaEventCreateWithFlags(&r->copied[b], cudaEventDisableTiming));
        CUDA_TRY(cudaEventCreateWithFlags(&r->used[b], cudaEventDisableTiming));
    }
    return CR_OK;
}

void cr_cuda_spdnn_close(struct cr_cuda_spdnn_run *r) {
    cudaEvent_t events[] = {r->begin, r->end, r->started, r->copied[0], r->copied[1], r->used[0], r->used[1]};
    void       *memory[] = {r->x[0], r->x[1], r->bit, r->category, r->weights, r->scratch, r->handoff};
    (void)cudaStreamSynchronize(r->d->stream[CR_STREAM_COMPUTE]);
    if (r->graph_exec) (void)cudaGraphExecDestroy(r->graph_exec);
    for (size_t i = 0; i < CR_COUNT(events); i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    for (size_t i = 0; i < CR_COUNT(memory); i++) (void)cudaFree(memory[i]);
    (void)cudaFreeHost(r->host);
    (void)cudaGetLastError();
    cr_free(r->offset);
    cr_free(r->stage);
}

/* ---- weights ---- */

cr_status cr_cuda_spdnn_upload_weights(struct cr_cuda_spdnn_run *r) {
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

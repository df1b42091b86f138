/* cuda/core/streams.c: asynchronous work of the GPU: copies on streams, events, CUDA graphs (capture, launch). */
#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"

#include <nvtx3/nvToolsExt.h>
#include <string.h>

#if CUDART_VERSION < 13000 /* there the functions of these names do not know the data of edges */
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#define cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_v2
#endif

static cr_status copy(struct cr_device *device, enum cr_stream stream, void *dst, const void *src, size_t bytes,
                      enum cudaMemcpyKind kind) {
    return CUDA_STATUS(cudaMemcpyAsync(dst, src, bytes, kind, cuda_of(device)->stream[stream]));
}
static cr_status put(struct cr_device *device, enum cr_stream stream, void *dst, const void *host, size_t bytes) {
    return copy(device, stream, dst, host, bytes, cudaMemcpyHostToDevice);
}
static cr_status get(struct cr_device *device, enum cr_stream stream, void *host, const void *src, size_t bytes) {
    return copy(device, stream, host, src, bytes, cudaMemcpyDeviceToHost);
}
static cr_status get_small(struct cr_device *device, enum cr_stream stream, void *const *host, const void *const *src,
                           const size_t *bytes, int pieces) {
    struct ck_fetch fetch = {.pieces = pieces};
    CR_ASSERT(pieces <= CK_FETCH_PIECES);
    for (int i = 0; i < pieces; i++) {
        CR_ASSERT(bytes[i] % sizeof(uint32_t) == 0);
        fetch.from[i]  = src[i];
        fetch.to[i]    = host[i];
        fetch.words[i] = (int)(bytes[i] / sizeof(uint32_t));
    }
    return CUDA_STATUS(ck_fetch(&fetch, cuda_of(device)->stream[stream]));
}
static cr_status gather(struct cr_device *device, enum cr_stream stream, void *dst, const void *const *src, int pieces,
                        size_t bytes) {
    struct ck_gather gather = {.bytes = (int64_t)bytes};
    for (int first = 0; first < pieces; first += gather.pieces) {
        gather.pieces = CR_MIN(CK_GATHER_PIECES, pieces - first);
        gather.to     = (char *)dst + (size_t)first * bytes;
        memcpy(gather.from, src + first, (size_t)gather.pieces * sizeof *src);
        CUDA_TRY(ck_gather(&gather, cuda_of(device)->stream[stream]));
    }
    return CR_OK;
}
/* A kernel copies a few KiB in less time than cudaMemcpyAsync. */
static cr_status move(struct cr_device *device, enum cr_stream stream, void *dst, const void *src, size_t bytes) {
    enum { SMALL = 64 * 1024 };
    if (bytes > 0 && bytes <= SMALL) return gather(device, stream, dst, &src, 1, bytes);
    return copy(device, stream, dst, src, bytes, cudaMemcpyDeviceToDevice);
}

static cr_status fill(struct cr_device *device, enum cr_stream stream, void *dst, int byte, size_t bytes) {
    return CUDA_STATUS(cudaMemsetAsync(dst, byte, bytes, cuda_of(device)->stream[stream]));
}
static cr_status delay(struct cr_device *device, enum cr_stream stream, int64_t ns) {
    return CUDA_STATUS(ck_delay(ns, cuda_of(device)->stream[stream]));
}

static cr_status reference_work(struct cr_device *device, enum cr_stream stream, uint64_t *ticks) {
    const struct cuda_device *d = cuda_of(device);
    return CUDA_STATUS(ck_reference_work(d->multiprocessors, CR_REFERENCE_BLOCKS, ticks, d->stream[stream]));
}

static cr_status separate(struct cr_device *device, enum cr_stream stream) {
    return CUDA_STATUS(ck_separate(cuda_of(device)->stream[stream]));
}

static cr_status event_create(struct cr_device *device, void **out) {
    (void)device;
    cudaEvent_t event;
    CUDA_TRY(cudaEventCreate(&event)); /* with timing, which profile and bench need */
    *out = event;
    return CR_OK;
}
static cr_status event_create_untimed(struct cr_device *device, void **out) {
    (void)device;
    cudaEvent_t event;
    CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *out = event;
    return CR_OK;
}
static void event_destroy(struct cr_device *device, void *event) {
    (void)device;
    if (event) (void)cudaEventDestroy(event);
}
static cr_status event_record(struct cr_device *device, enum cr_stream stream, void *event) {
    return CUDA_STATUS(cudaEventRecord(event, cuda_of(device)->stream[stream]));
}
/* In a graph no node waits for the event: the next kernel depends on the node before it and may overlap with that. */
static cr_status event_record_external(struct cr_device *device, enum cr_stream stream, void *event) {
    enum cudaStreamCaptureStatus capture;
    cudaStream_t                 cuda_stream = cuda_of(device)->stream[stream];
    const cudaGraphNode_t       *before;
    const cudaGraphEdgeData     *edges;
    cudaGraphNode_t              last  = NULL;
    cudaGraphEdgeData            edge  = {0};
    size_t                       count = 0;
    CUDA_TRY(cudaStreamGetCaptureInfo(cuda_stream, &capture, NULL, NULL, &before, &edges, &count));
    const bool is_captured = capture == cudaStreamCaptureStatusActive;
    if (is_captured && count == 1) {
        last = before[0];
        if (edges) edge = edges[0];
    }
    CUDA_TRY(
        cudaEventRecordWithFlags(event, cuda_stream, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
    if (last)
        CUDA_TRY(cudaStreamUpdateCaptureDependencies(cuda_stream, &last, &edge, 1, cudaStreamSetCaptureDependencies));
    return CR_OK;
}
static cr_status stream_wait_event(struct cr_device *device, enum cr_stream stream, void *event) {
    return CUDA_STATUS(cudaStreamWaitEvent(cuda_of(device)->stream[stream], event, 0));
}
/* Later work of `waiting` waits for the earlier work of `first`. */
static cudaError_t order(cudaStream_t first, cudaStream_t waiting) {
    cudaEvent_t event;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
    error = cudaEventRecord(event, first);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(waiting, event, 0);
    (void)cudaEventDestroy(event); /* the driver keeps what the waiting stream needs */
    return error;
}
/* A thread has its own per-thread default stream, and this is another thread than the caller's. The legacy default
 * stream is ordered with those of all threads. */
static cudaStream_t of_caller(void *foreign) {
    return foreign == cudaStreamPerThread ? cudaStreamLegacy : foreign;
}
/* A stream that is captured would give its graph work that must run now, and would not run it. */
static cr_status wait_for_foreign(struct cr_device *device, enum cr_stream stream, void *foreign) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t                  error   = cudaStreamIsCapturing(of_caller(foreign), &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
        (void)cudaGetLastError();
        return CR_FAIL(CR_ERR_CONFIG, "the stream is being captured as a CUDA graph: call outside of the capture");
    }
    if (error == cudaSuccess) error = order(of_caller(foreign), cuda_of(device)->stream[stream]);
    if (error == cudaErrorInvalidResourceHandle || error == cudaErrorInvalidValue ||
        error == cudaErrorContextIsDestroyed) {
        (void)cudaGetLastError();
        return CR_FAIL(CR_ERR_CONFIG, "%p is not a stream of GPU %d: %s", foreign, cuda_of(device)->index,
                       cudaGetErrorString(error));
    }
    return CUDA_STATUS(error);
}
static cr_status foreign_waits(struct cr_device *device, enum cr_stream stream, void *foreign) {
    return CUDA_STATUS(order(cuda_of(device)->stream[stream], of_caller(foreign)));
}
static cr_status host_wait(struct cr_device *device, void *event) {
    if (cuda_of(device)->comm) return cr_cuda_comm_wait(cuda_of(device), event);
    return CUDA_STATUS(cudaEventSynchronize(event));
}
static cr_status event_reached(struct cr_device *device, void *event, bool *reached) {
    (void)device;
    const cudaError_t error = cudaEventQuery(event);
    *reached                = error == cudaSuccess;
    if (error == cudaErrorNotReady) { /* no failure: the next launch must not find it as the last error */
        (void)cudaGetLastError();
        return CR_OK;
    }
    return CUDA_STATUS(error);
}
static cr_status elapsed(struct cr_device *device, void *from, void *to, double *seconds) {
    (void)device;
    float ms;
    CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
    *seconds = (double)ms * 1e-3;
    return CR_OK;
}

/* Relaxed mode: other threads of the process, and cuDNN when it loads kernels, may call CUDA during the capture. */
static cr_status capture_begin(struct cr_device *device) {
    return CUDA_STATUS(
        cudaStreamBeginCapture(cuda_of(device)->stream[CR_STREAM_COMPUTE], cudaStreamCaptureModeRelaxed));
}

static cr_status capture_end(struct cr_device *device, void **out) {
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec  = NULL;
    CUDA_TRY(cudaStreamEndCapture(cuda_of(device)->stream[CR_STREAM_COMPUTE], &graph));
    const cr_status status = cr_cuda_replace_memset_nodes(graph);
    cudaError_t     error  = status == CR_OK ? cudaGraphInstantiate(&exec, graph, 0) : cudaSuccess;
    (void)cudaGraphDestroy(graph);
    CUDA_TRY(error);
    CR_TRY(status);
    /* during the capture, not at the first launch */
    error = cudaGraphUpload(exec, cuda_of(device)->stream[CR_STREAM_COMPUTE]);
    if (error != cudaSuccess) {
        (void)cudaGraphExecDestroy(exec);
        CUDA_TRY(error);
    }
    *out = exec;
    return CR_OK;
}

static cr_status graph_launch(struct cr_device *device, void *graph_exec) {
    return CUDA_STATUS(cudaGraphLaunch(graph_exec, cuda_of(device)->stream[CR_STREAM_COMPUTE]));
}
static void graph_destroy(struct cr_device *device, void *graph_exec) {
    (void)device;
    if (graph_exec) (void)cudaGraphExecDestroy(graph_exec);
}

static void range_push(const char *name) {
    (void)nvtxRangePushA(name);
}
static void range_pop(void) {
    (void)nvtxRangePop();
}

const struct cr_async cr_cuda_async = {
    .host_reserve          = cr_cuda_host_reserve,
    .host_release          = cr_cuda_host_release,
    .put                   = put,
    .get                   = get,
    .get_small             = get_small,
    .move                  = move,
    .gather                = gather,
    .fill                  = fill,
    .delay                 = delay,
    .reference_work        = reference_work,
    .separate              = separate,
    .event_create          = event_create,
    .event_create_untimed  = event_create_untimed,
    .event_destroy         = event_destroy,
    .event_record          = event_record,
    .event_record_external = event_record_external,
    .stream_wait_event     = stream_wait_event,
    .wait_for_foreign      = wait_for_foreign,
    .foreign_waits         = foreign_waits,
    .host_wait             = host_wait,
    .event_reached         = event_reached,
    .elapsed               = elapsed,
    .capture_begin         = capture_begin,
    .capture_end           = capture_end,
    .graph_launch          = graph_launch,
    .graph_destroy         = graph_destroy,
    .range_push            = range_push,
    .range_pop             = range_pop,
};

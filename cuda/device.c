/* cuda/device.c: the GPU as a device: opening, errors, memory, synchronous copies, the step block.
 * Work that is asynchronous to the host is in cuda/core/streams.c. */
#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/libraries.h"
#include "device/capability.h"
#include "device/offline.h"

#include <stdio.h>
#include <string.h>

enum { CC_MIN = 80, RING_BYTES = 4 << 20 };

/* ---- errors ---- */

cr_status cr_cuda_fail(cudaError_t error, const char *what, const char *file, int line) {
    cr_status status = error == cudaErrorMemoryAllocation ? CR_ERR_MEMORY : CR_ERR_DEVICE;
    /* clears the error, or the next call would report it again; an error that poisons the context stays */
    (void)cudaGetLastError();
    return cr_error_set(status, file, line, "GPU: %s (%.*s)", cudaGetErrorString(error), (int)strcspn(what, "("), what);
}

cr_status cr_cudnn_fail(cudnnStatus_t error, const char *what, const char *file, int line) {
    char last[400] = "";
    cudnnGetLastErrorString(last, sizeof last);
    return cr_error_set(CR_ERR_DEVICE, file, line, "cuDNN %zu: %s (%.*s) %s", cudnnGetVersion(),
                        cudnnGetErrorString(error), (int)strcspn(what, "("), what, last);
}

cr_status cr_cublas_fail(cublasStatus_t error, const char *what, const char *file, int line) {
    return cr_error_set(CR_ERR_DEVICE, file, line, "cuBLAS: %s (%.*s)", cublasGetStatusString(error),
                        (int)strcspn(what, "("), what);
}

/* ---- available, open ---- */

static const char *count_error_text(cudaError_t error) {
    switch (error) {
    case cudaErrorNoDevice: return "no NVIDIA GPU was found on this machine";
    case cudaErrorInsufficientDriver: {
        int version = 0; /* stays 0 when there is no driver */
        (void)cudaDriverGetVersion(&version);
        return version == 0 ? "no NVIDIA driver was found on this machine"
                            : "the NVIDIA driver (nvidia-smi) is older than this build's CUDA (cresnet --version): "
                              "install a newer one";
    }
    default: return "the NVIDIA driver does not answer (try nvidia-smi)";
    }
}

static bool cuda_available(const char **why) {
    int count = 0, driver = 0;
    *why = NULL;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver) cr_cuda_libs_begin();
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        *why = count_error_text(error);
        return false;
    }
    *why = cr_cuda_libs_missing();
    return *why == NULL;
}

static int cuda_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* Rates that good kernels reach, as rounded fractions of the data sheet's figures. */
static void set_rates(struct cuda_device *d, const struct cudaDeviceProp *prop) {
    int clock_khz = 0, memory_khz = 0;
    (void)cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, d->index);
    (void)cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, d->index);
    const int    cc            = prop->major * 10 + prop->minor;
    const double per_cycle     = cr_capability_matrix_rate(cc, prop->name);
    d->base.caps.bytes_per_s   = 0.875 * 2e3 * memory_khz * prop->memoryBusWidth / 8;
    d->base.caps.tf32_fraction = 0.5;
    d->base.caps.f32_fraction  = cr_capability_f32_rate(cc) / per_cycle;
    d->base.caps.flops_per_s   = 0.8 * 1e3 * clock_khz * per_cycle * prop->multiProcessorCount;
    /* Somewhat more than half of the rate of PCIe 4 x16 in one direction. Where the rate matters, it is measured
     * (autotune/cost_table.h). */
    d->base.caps.to_host_bytes_per_s = d->base.caps.to_device_bytes_per_s = 18e9;
    d->base.caps.copy_latency_s                                           = 10e-6;
    if (d->base.caps.bytes_per_s <= 0) d->base.caps.bytes_per_s = 1e12;
    if (d->base.caps.flops_per_s <= 0) d->base.caps.flops_per_s = 1e14;
}

static void describe(struct cuda_device *d, const struct cudaDeviceProp *prop) {
    int runtime = 0, driver = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    const size_t dnn = cudnnGetVersion();
    if (snprintf(d->base.caps.text, sizeof d->base.caps.text,
                 "%.60s%s%.8s, %.0f GiB, compute capability %d.%d, CUDA %d.%d, driver %d.%d, cuDNN %zu.%zu.%zu",
                 prop->name, d->emulated ? " as " : "", d->emulated ? d->emulated : "",
                 (double)prop->totalGlobalMem / (1 << 30), prop->major, prop->minor, runtime / 1000,
                 runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, dnn / 10000, dnn % 10000 / 100, dnn % 100) < 0)
        d->base.caps.text[0] = 0;
}

/* Some process launchers make only the rank's own GPU visible, as number 0. */
static cr_status check_index(struct cuda_device *d) {
    int count = 0;
    CUDA_TRY(cudaGetDeviceCount(&count));
    if (count == 1 && d->base.options.comm) d->index = 0;
    if (d->index < count) return CR_OK;
    if (d->base.options.comm)
        return CR_FAIL(
            CR_ERR_DEVICE,
            "this rank's GPU would be number %d, but this machine has %d GPU%s, numbered from 0: start fewer ranks",
            d->index, count, count == 1 ? "" : "s");
    return CR_FAIL(CR_ERR_DEVICE, "train.gpu = %d: this machine has %d GPU%s, numbered from 0", d->index, count,
                   count == 1 ? "" : "s");
}

static cr_status open_streams(struct cuda_device *d) {
    int least = 0, greatest = 0;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    /* Other ranks wait for communication, so its stream has the highest priority. No op of the backward pass waits for
     * the side stream, so its thread blocks take the room that those of the compute stream leave. */
    for (int l = 0; l < CR_STREAMS; l++) {
        const int priority = l == CR_STREAM_COMM ? greatest : l == CR_STREAM_SIDE ? least : (least + greatest) / 2;
        CUDA_TRY(cudaStreamCreateWithPriority(&d->stream[l], cudaStreamNonBlocking, priority));
    }
    CUDA_TRY(cudaMalloc((void **)&d->step, sizeof *d->step));
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaHostAlloc(&d->ring[i], RING_BYTES, cudaHostAllocDefault));
        CUDA_TRY(cudaEventCreateWithFlags(&d->ring_done[i], cudaEventDisableTiming));
    }
    return CR_OK;
}

/* A smaller card (options.card_bytes) has as much memory in use as this one: the context of this process too. */
static size_t cuda_memory_free(struct cr_device *device) {
    size_t       free_bytes = 0, total = 0;
    const size_t card = device->options.card_bytes;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) (void)cudaGetLastError();
    if (!card || card >= total) return free_bytes;
    const size_t used = total - free_bytes;
    return card > used ? card - used : 1;
}

/* Memory that the driver allocates later, for kernels and captured graphs. The measurement is made too early to include
 * it. The result is at least CR_GPU_OVERHEAD_BYTES. */
enum { DEFERRED_BYTES = 32 << 20 };

static size_t used_since(size_t before, struct cr_device *device) {
    const size_t left = cuda_memory_free(device);
    return left && left < before ? before - left : 0;
}

static size_t cuda_memory_overhead(struct cr_device *base) {
    struct cuda_device *d = cuda_of(base);
    cudnnHandle_t       cudnn;
    cublasHandle_t      cublas;
    cr_error_hold();
    (void)(cr_cuda_cudnn(d, &cudnn) == CR_OK &&
           cr_cuda_cublas(d, &cublas) == CR_OK); /* a caller that needs a library gets its error */
    cr_error_release();
    const size_t all = used_since(base->free_at_start, base), libraries = all > d->comm_bytes ? all - d->comm_bytes : 0;
    return d->comm_bytes + CR_MAX(libraries + DEFERRED_BYTES, (size_t)CR_GPU_OVERHEAD_BYTES);
}

static cr_status open_device(struct cuda_device *d) {
    struct cudaDeviceProp prop;
    CR_TRY(check_index(d));
    CUDA_TRY(cudaGetDeviceProperties(&prop, d->index));
    d->multiprocessors = prop.multiProcessorCount;
    d->l2_bytes        = prop.l2CacheSize;
    if (prop.major * 10 + prop.minor < CC_MIN)
        return CR_FAIL(CR_ERR_DEVICE,
                       "%s has compute capability %d.%d; cresnet needs a GPU of 8.0 or later: use --device cpu",
                       prop.name, prop.major, prop.minor);
    CUDA_TRY(cudaSetDevice(d->index));
    CUDA_TRY(cudaFree(NULL)); /* creates the context */
    CR_TRY(cr_cuda_set_capability(d, &prop));
    d->base.free_at_start = cuda_memory_free(&d->base);
    CR_TRY(open_streams(d));
    d->base.caps.alignment          = CR_CUDA_ALIGN;
    d->base.caps.half               = true;
    d->base.caps.concurrent_kernels = true;
    set_rates(d, &prop);
    describe(d, &prop);
    d->base.caps.overhead_bytes       = CR_GPU_OVERHEAD_BYTES;
    d->base.caps.host_memory_overhead = 1.0 / CR_GPU_HOST_PAGES;
    const size_t before               = cuda_memory_free(&d->base);
    CR_TRY(cr_cuda_comm_open(d));
    d->comm_bytes = used_since(before, &d->base);
    return CR_OK;
}

static void cuda_close(struct cr_device *base) {
    struct cuda_device *d = cuda_of(base);
    (void)cudaDeviceSynchronize(); /* the call that failed has reported the error */
    cr_cuda_comm_close(d);
    cr_cudnn_cache_close(d->plans);
    cr_cuda_filter_close(d->filter);
    if (d->cudnn) (void)cudnnDestroy(d->cudnn);
    if (d->cublas) (void)cublasDestroy(d->cublas);
    (void)cudaFree(d->blas_workspace);
    (void)cudaFree(d->step);
    for (int i = 0; i < 2; i++) {
        if (d->ring[i]) (void)cudaFreeHost(d->ring[i]);
        if (d->ring_done[i]) (void)cudaEventDestroy(d->ring_done[i]);
    }
    for (int l = 0; l < CR_STREAMS; l++)
        if (d->stream[l]) (void)cudaStreamDestroy(d->stream[l]);
    (void)cudaGetLastError();
    cr_free(d);
}

static cr_status cuda_open(const struct cr_device_options *options, struct cr_device **out) {
    struct cuda_device *d;
    CR_ALLOC(d, 1);
    d->base.backend = &cr_backend_cuda;
    d->base.options = *options;
    d->index        = options->index;
    (void)cr_device_host_threads(options); /* images are decoded, copied and read from checkpoints in parallel */
    cr_cuda_collect_kernels(d);
    d->base.kernels  = d->kernels.kernel;
    cr_status status = open_device(d);
    if (status != CR_OK) {
        cuda_close(&d->base);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = &d->base;
    return CR_OK;
}

cr_status cr_cuda_cudnn(struct cuda_device *d, cudnnHandle_t *out) {
    if (!d->cudnn) CUDNN_TRY(cudnnCreate(&d->cudnn));
    *out = d->cudnn;
    return CR_OK;
}

cr_status cr_cuda_cublas(struct cuda_device *d, cublasHandle_t *out) {
    if (!d->cublas && !d->offline) {
        CUBLAS_TRY(cublasCreate(&d->cublas));
        /* without it, cuBLAS would allocate its own workspace during a run */
        CUDA_TRY(cudaMalloc(&d->blas_workspace, CR_CUDA_BLAS_BYTES));
        CUBLAS_TRY(cublasSetStream(d->cublas, d->stream[CR_STREAM_COMPUTE]));
        CUBLAS_TRY(cublasSetWorkspace(d->cublas, d->blas_workspace, CR_CUDA_BLAS_BYTES));
    }
    *out = d->cublas;
    return CR_OK;
}

/* ---- memory ---- */

static cr_status cuda_reserve(struct cr_device *base, size_t bytes, void **out) {
    struct cuda_device *d      = cuda_of(base);
    void               *region = NULL;
    cudaError_t         error  = cudaMalloc(&region, d->peers ? cr_cuda_peers_bytes(bytes) : bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return CR_FAIL(CR_ERR_MEMORY, "the GPU has no %.0f MiB of contiguous memory left", (double)bytes / (1 << 20));
    }
    CUDA_TRY(error);
    error = cudaMemsetAsync(region, 0, bytes, d->stream[CR_STREAM_COMPUTE]);
    if (error == cudaSuccess) error = cudaStreamSynchronize(d->stream[CR_STREAM_COMPUTE]);
    if (error != cudaSuccess) {
        (void)cudaFree(region);
        CUDA_TRY(error);
    }
    *out = region;
    return CR_OK;
}

static void cuda_release(struct cr_device *device, void *region) {
    if (region != cuda_of(device)->unreleased) (void)cudaFree(region);
}

/* ---- synchronous copies: through two page-locked buffers; the host fills one while the GPU copies the other ---- */

static cr_status cuda_put(struct cr_device *base, void *dst, const void *host, size_t bytes) {
    struct cuda_device *d      = cuda_of(base);
    cudaStream_t        stream = d->stream[CR_STREAM_COMPUTE];
    CUDA_TRY(cudaSetDevice(d->index)); /* for threads that read a checkpoint */
    for (size_t at = 0, turn = 0; at < bytes; at += RING_BYTES, turn++) {
        const size_t piece = CR_MIN((size_t)RING_BYTES, bytes - at), i = turn % 2;
        CUDA_TRY(cudaEventSynchronize(d->ring_done[i]));
        memcpy(d->ring[i], (const char *)host + at, piece);
        CUDA_TRY(cudaMemcpyAsync((char *)dst + at, d->ring[i], piece, cudaMemcpyHostToDevice, stream));
        CUDA_TRY(cudaEventRecord(d->ring_done[i], stream));
    }
    return CR_OK; /* the caller may reuse the host memory; later work on the stream sees the new bytes */
}

static cr_status cuda_get(struct cr_device *base, void *host, const void *src, size_t bytes) {
    struct cuda_device *d      = cuda_of(base);
    cudaStream_t        stream = d->stream[CR_STREAM_COMPUTE];
    const size_t        pieces = (bytes + RING_BYTES - 1) / RING_BYTES;
    for (size_t turn = 0; turn <= pieces; turn++) {
        if (turn < pieces) {
            const size_t at = turn * RING_BYTES, piece = CR_MIN((size_t)RING_BYTES, bytes - at);
            CUDA_TRY(cudaMemcpyAsync(d->ring[turn % 2], (const char *)src + at, piece, cudaMemcpyDeviceToHost, stream));
            CUDA_TRY(cudaEventRecord(d->ring_done[turn % 2], stream));
        }
        if (turn == 0) continue;
        const size_t at = (turn - 1) * RING_BYTES, piece = CR_MIN((size_t)RING_BYTES, bytes - at);
        CUDA_TRY(cudaEventSynchronize(d->ring_done[(turn - 1) % 2]));
        memcpy((char *)host + at, d->ring[(turn - 1) % 2], piece);
    }
    return CR_OK;
}

static cr_status cuda_sync(struct cr_device *base) {
    struct cuda_device *d = cuda_of(base);
    for (int l = 0; l < CR_STREAMS; l++) CUDA_TRY(cudaStreamSynchronize(d->stream[l]));
    return CR_OK;
}

/* ---- the step block ---- */

static cr_status cuda_set_step(struct cr_device *base, const struct cr_step_block *step) {
    struct cuda_device  *d     = cuda_of(base);
    const struct ck_step block = {.lr           = step->lr,
                                  .momentum     = step->momentum,
                                  .weight_decay = step->weight_decay,
                                  .clip_norm    = step->clip_norm,
                                  .step         = step->step,
                                  .seed         = step->seed,
                                  .first_image  = step->first_image};
    return CUDA_STATUS(ck_set_step(d->step, &block, d->stream[CR_STREAM_COMPUTE]));
}

static void cuda_for_each(struct cr_device *base, int count, void (*job)(void *context, int i), void *context) {
    (void)base;
    for (int i = 0; i < count; i++) job(context, i);
}

const struct cr_backend cr_backend_cuda = {
    .name            = "cuda",
    .available       = cuda_available,
    .count           = cuda_count,
    .open            = cuda_open,
    .close           = cuda_close,
    .reserve         = cuda_reserve,
    .release         = cuda_release,
    .share           = cr_cuda_peers_share,
    .unshare         = cr_cuda_peers_unshare,
    .put             = cuda_put,
    .get             = cuda_get,
    .sync            = cuda_sync,
    .memory_free     = cuda_memory_free,
    .memory_overhead = cuda_memory_overhead,
    .set_step        = cuda_set_step,
    .async           = &cr_cuda_async,
    .jpeg            = &cr_cuda_jpeg,
    .init_store      = cr_cuda_init_params,
    .for_each        = cuda_for_each,
    .packed_elems    = cr_cuda_packed_elems,
    .open_offline    = cr_cuda_open_offline,
};

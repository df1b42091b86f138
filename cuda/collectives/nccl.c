/* cuda/collectives/nccl.c: sums over the GPUs of a run by NCCL. The library is opened when a run has several ranks.
 *
 * Each device has one communicator. Its collectives are ops of the stream CR_STREAM_COMM, in the program's order.
 * NCCL's kernels are captured together with all other ops of the step.
 *
 * Abort: when another rank is lost, a step would wait forever. The watcher thread of comm/comm.h then requests an
 * abort. A separate thread calls ncclCommAbort, because that function waits for captured graphs that only the main
 * thread can destroy. An abort frees the communicator. It therefore starts when no NCCL call is running, and no call
 * starts after it. If an NCCL call never returns, comm/comm.h ends the process. */
#include "comm/comm.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <string.h>

#ifdef CR_WITH_NCCL

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <time.h>

/* A large all_reduce at the start makes NCCL allocate its buffers before the free memory is measured. */
enum { WARM_ELEMS = 4 << 20 };
/* A wait polls without a pause at first, because steps of small networks are short. */
enum {
    POLLS_AT_ONCE = 64,
    POLL_NS       = 50 * 1000,
    POLLS_A_LOOK  = 200,
    FAULT_LOOKS   = 40,
    FAULT_LOOK_NS = 50 * 1000 * 1000
};

/* ---- the library ---- */

/* result, name, parameters */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclResult_t, ncclGetVersion, (int *version))                                                                    \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))                                                              \
    X(ncclResult_t, ncclCommInitRankConfig,                                                                            \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))                                 \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))                                                                \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                                                  \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                                    \
    X(ncclResult_t, ncclAllReduce,                                                                                     \
      (const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,                     \
       cudaStream_t stream))                                                                                           \
    X(const char *, ncclGetErrorString, (ncclResult_t result))                                                         \
    X(const char *, ncclGetLastError, (ncclComm_t comm))

struct nccl {
#define X(result, name, params) result(*name) params;
    NCCL_FUNCTIONS(X)
#undef X
};

struct cuda_comm {
    struct nccl        nccl;
    struct cr_comm    *ranks;
    ncclComm_t         comm;
    pthread_mutex_t    lock;  /* protects the members below */
    pthread_cond_t     left;  /* signalled when `inside` becomes 0 */
    struct cuda_peers *peers; /* aborted together with comm */
    pthread_t          aborter;
    bool               aborting, aborter_runs;
    int                inside; /* number of calls with `comm` that have not returned */
};

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define NCCL_SO "libnccl.so." TEXT(NCCL_MAJOR)

static cr_status open_library(struct nccl *n) {
    /* stays open: NCCL's threads may outlive the communicator */
    void *library = dlopen(NCCL_SO, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return CR_FAIL(CR_ERR_DEVICE, "several GPUs need NCCL, and " NCCL_SO
                                      " was not found: install libnccl2 or the wheel nvidia-nccl-cu13, or name its "
                                      "folder in LD_LIBRARY_PATH");
#define X(result, name, params)                                                                                        \
    *(void **)(void *)&n->name = dlsym(library, #name);                                                                \
    if (!n->name) return CR_FAIL(CR_ERR_DEVICE, NCCL_SO " is too old: it has no " #name);
    NCCL_FUNCTIONS(X)
#undef X
    return CR_OK;
}

/* Error of an NCCL call. If another rank has failed, that failure is reported first, because NCCL's error is only its
 * consequence. Call it while `inside` counts the caller. */
static cr_status nccl_fail(struct cuda_comm *c, ncclResult_t result, const char *what) {
    CR_TRY(cr_comm_check(c->ranks));
    const char *last = c->nccl.ncclGetLastError(c->comm);
    return CR_FAIL(CR_ERR_DEVICE, "NCCL: %s (%s)%s%s", c->nccl.ncclGetErrorString(result), what,
                   last && *last ? ": " : "", last ? last : "");
}

#define NCCL_TRY(c, call, ...)                                                                                         \
    do {                                                                                                               \
        ncclResult_t nccl_result_ = (c)->nccl.call(__VA_ARGS__);                                                       \
        if (nccl_result_ != ncclSuccess) return nccl_fail((c), nccl_result_, #call);                                   \
    } while (0)

/* ---- abort ---- */

static bool enter(struct cuda_comm *c) {
    pthread_mutex_lock(&c->lock);
    const bool can = !c->aborting;
    c->inside += can;
    pthread_mutex_unlock(&c->lock);
    return can;
}

static void leave(struct cuda_comm *c) {
    pthread_mutex_lock(&c->lock);
    if (!--c->inside) pthread_cond_broadcast(&c->left);
    pthread_mutex_unlock(&c->lock);
}

static void *abort_main(void *argument) {
    struct cuda_comm *c = argument;
    pthread_mutex_lock(&c->lock);
    while (c->inside) pthread_cond_wait(&c->left, &c->lock);
    pthread_mutex_unlock(&c->lock);
    (void)c->nccl.ncclCommAbort(c->comm);
    return NULL;
}

static void start_abort(void *context) {
    struct cuda_comm *c = context;
    pthread_mutex_lock(&c->lock);
    cr_cuda_peers_abort(c->peers);
    if (!c->aborting) c->aborter_runs = pthread_create(&c->aborter, NULL, abort_main, c) == 0;
    c->aborting = true;
    pthread_mutex_unlock(&c->lock);
}

/* ---- open, close ---- */

static cr_status reduce_as(struct cuda_comm *c, const void *x, void *y, size_t elems, ncclDataType_t type,
                           cudaStream_t stream) {
    if (!enter(c)) return cr_comm_check(c->ranks);
    const ncclResult_t result = c->nccl.ncclAllReduce(x, y, elems, type, ncclSum, c->comm, stream);
    cr_status          status = result == ncclSuccess ? CR_OK : nccl_fail(c, result, "ncclAllReduce");
    leave(c);
    return status;
}

static cr_status warm_up(struct cuda_device *d) {
    struct cuda_comm *c = d->comm;
    float            *x = NULL;
    CUDA_TRY(cudaMalloc((void **)&x, WARM_ELEMS * sizeof *x));
    cudaStream_t        stream   = d->stream[CR_STREAM_COMM];
    cudaError_t         error    = cudaMemsetAsync(x, 0, WARM_ELEMS * sizeof *x, stream);
    cr_status           status   = CR_OK;
    static const size_t counts[] = {4, 4096, WARM_ELEMS}; /* one size for each of NCCL's protocols */
    for (size_t i = 0; i < CR_COUNT(counts) && error == cudaSuccess && status == CR_OK; i++)
        status = reduce_as(c, x, x, counts[i], ncclFloat32, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    (void)cudaFree(x);
    CR_TRY(status);
    CR_TRY(cr_comm_check(c->ranks));
    return CUDA_STATUS(error);
}

static cr_status join(struct cuda_device *d) {
    struct cuda_comm *c       = d->comm;
    ncclUniqueId      id      = {0};
    ncclConfig_t      config  = NCCL_CONFIG_INITIALIZER;
    const int         rank    = cr_comm_rank(c->ranks);
    int               version = 0;
    if (d->base.options.comm_blocks) config.maxCTAs = d->base.options.comm_blocks;
    NCCL_TRY(c, ncclGetVersion, &version);
    CR_TRY(cr_comm_same(c->ranks, &version, sizeof version, "the version of NCCL"));
    if (rank == 0) NCCL_TRY(c, ncclGetUniqueId, &id);
    CR_TRY(cr_comm_broadcast(c->ranks, &id, sizeof id, 0));
    NCCL_TRY(c, ncclCommInitRankConfig, &c->comm, cr_comm_size(c->ranks), id, rank, &config);
    cr_comm_on_failure(c->ranks, start_abort, c);
    CR_TRY(cr_comm_check(c->ranks));
    return warm_up(d);
}

cr_status cr_cuda_comm_open(struct cuda_device *d) {
    struct cuda_comm  *c;
    struct cuda_peers *peers = NULL;
    if (cr_comm_size(d->base.options.comm) == 1) return CR_OK;
    CR_ALLOC(c, 1);
    c->ranks = d->base.options.comm;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->left, NULL);
    d->comm = c;
    CR_TRY(open_library(&c->nccl));
    CR_TRY(join(d));
    CR_TRY(cr_cuda_peers_open(d, &peers));
    pthread_mutex_lock(&c->lock);
    c->peers = peers;
    pthread_mutex_unlock(&c->lock);
    return cr_comm_check(c->ranks); /* no peers were open before this call, so an earlier failure had none to abort */
}

/* After on_failure(NULL) the watcher thread does not call into this file. */
void cr_cuda_comm_close(struct cuda_device *d) {
    struct cuda_comm *c = d->comm;
    if (!c) return;
    d->comm = NULL;
    cr_comm_on_failure(c->ranks, NULL, NULL);
    cr_error_hold();
    bool failed = cr_comm_check(c->ranks) != CR_OK;
    c->peers    = NULL;
    cr_cuda_peers_close(d, failed);
    failed = cr_comm_check(c->ranks) != CR_OK; /* a rank may be lost at this moment, and NCCL would wait for it */
    cr_error_release();
    if (c->comm && failed)
        start_abort(c);
    else if (c->comm)
        (void)c->nccl.ncclCommDestroy(c->comm);
    if (c->aborter_runs) (void)pthread_join(c->aborter, NULL);
    pthread_cond_destroy(&c->left);
    pthread_mutex_destroy(&c->lock);
    cr_free(c);
}

/* ---- waiting ---- */

/* Checks for errors of the network or of a GPU that NCCL found asynchronously; its kernels would wait forever. */
static cr_status look_for_errors(struct cuda_comm *c) {
    ncclResult_t error = ncclSuccess;
    if (!enter(c)) return cr_comm_check(c->ranks);
    const ncclResult_t result = c->nccl.ncclCommGetAsyncError(c->comm, &error);
    if (result != ncclSuccess) error = result;
    const bool ok     = error == ncclSuccess || error == ncclInProgress;
    cr_status  status = ok ? CR_OK : nccl_fail(c, error, "asynchronous error during the run");
    leave(c);
    if (!ok) cr_comm_abort(c->ranks, cr_error_message());
    return status;
}

static void pause_ns(long ns) {
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* A GPU may fault because another rank's memory is gone. Then the failure of that rank is reported. */
static cr_status device_failed(struct cuda_comm *c, cudaError_t error) {
    for (int i = 0; i < FAULT_LOOKS; i++) {
        CR_TRY(cr_comm_check(c->ranks));
        pause_ns(FAULT_LOOK_NS);
    }
    return CUDA_STATUS(error);
}

cr_status cr_cuda_comm_wait(struct cuda_device *d, cudaEvent_t event) {
    struct cuda_comm *c = d->comm;
    for (int64_t polls = 1;; polls++) {
        cudaError_t error = cudaEventQuery(event);
        CR_TRY(cr_comm_check(c->ranks)); /* also after the event: an abort lets all waits pass */
        if (error == cudaSuccess) return CR_OK;
        if (error != cudaErrorNotReady) return device_failed(c, error);
        (void)cudaGetLastError();
        if (polls % POLLS_A_LOOK == 0) CR_TRY(look_for_errors(c));
        if (polls > POLLS_AT_ONCE) pause_ns(POLL_NS);
    }
}

/* ---- the op ---- */

/* ncclBfloat16: older headers declare it for C++ only. The value is part of NCCL's ABI. */
enum { BFLOAT16 = 9 };

static cr_status reduce(struct cuda_comm *c, const void *x, void *y, size_t elems, enum cr_dtype type,
                        cudaStream_t stream) {
    const ncclDataType_t t = type == CR_F16 ? ncclFloat16 : type == CR_BF16 ? (ncclDataType_t)BFLOAT16 : ncclFloat32;
    return reduce_as(c, x, y, elems, t, stream);
}

#else

struct cuda_comm {
    int none;
};

cr_status cr_cuda_comm_open(struct cuda_device *d) {
    if (cr_comm_size(d->base.options.comm) == 1) return CR_OK;
    return CR_FAIL(CR_ERR_DEVICE, "several GPUs need NCCL, which this build does not have: install libnccl-dev or the "
                                  "wheel nvidia-nccl-cu13 and build again");
}
void cr_cuda_comm_close(struct cuda_device *d) {
    (void)d;
}

cr_status cr_cuda_comm_wait(struct cuda_device *d, cudaEvent_t event) {
    (void)d;
    return CUDA_STATUS(cudaEventSynchronize(event));
}

static cr_status reduce(struct cuda_comm *c, const void *x, void *y, size_t elems, enum cr_dtype type,
                        cudaStream_t stream) {
    (void)c, (void)x, (void)y, (void)elems, (void)type, (void)stream;
    return CR_FAIL(CR_ERR_DEVICE, "this build has no NCCL");
}

#endif

static bool is_half(const struct cr_op *op) {
    return cr_dtype_bytes(op->attr.reduce.wire) == 2;
}

static size_t wire_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_half(op) ? (size_t)cr_tensor_elems(cuda_out(p, op, CR_OUT_all_reduce_y)) * 2 : 0;
}

static cr_status all_reduce_launch(struct cr_device *device, const struct cr_call *call) {
    struct cuda_comm       *c      = cuda_of(device)->comm;
    const struct cr_tensor *t      = cuda_out(call->program, call->op, CR_OUT_all_reduce_y);
    const void             *x      = call->in[CR_IN_all_reduce_x];
    void                   *y      = call->out[CR_OUT_all_reduce_y];
    cudaStream_t            stream = cr_cuda_stream(device, call);
    const int64_t           elems  = cr_tensor_elems(t);
    const enum cr_dtype     wire   = call->op->attr.reduce.wire;
    if (!c) {
        if (x != y) CUDA_TRY(cudaMemcpyAsync(y, x, t->bytes, cudaMemcpyDeviceToDevice, stream));
        return CR_OK;
    }
    if (!is_half(call->op)) return reduce(c, x, y, (size_t)elems, CR_F32, stream);
    const enum ck_type type = wire == CR_F16 ? CK_F16 : CK_BF16;
    CUDA_TRY(ck_cast(x, type, call->workspace, elems, stream));
    CR_TRY(reduce(c, call->workspace, call->workspace, (size_t)elems, wire, stream));
    return CUDA_STATUS(ck_widen(type, call->workspace, y, elems, stream));
}

/* Deterministic: the same ranks in the same order use one algorithm and one order of additions. */
const struct cr_kernel cr_cuda_nccl_kernels[] = {{CR_KERNEL("nccl.all_reduce", all_reduce, CR_MATH_EXACT),
                                                  .dtypes = CR_TYPES_F32, .workspace = wire_bytes,
                                                  .launch = all_reduce_launch},
                                                 {0}};

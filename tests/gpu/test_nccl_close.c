/* tests/gpu/test_nccl_close.c: a rank is lost while another rank opens, adds or closes: cuda/collectives/nccl.c and
 * cuda/collectives/peer_copy.c with a fake NCCL and a fake CUDA that detect use after free. Ranks are threads. No
 * GPU is needed. */
#include "tests/harness/comm_support.h"

#include <dlfcn.h>
static void *stand_in_open(const char *name, int flags);
static void *stand_in_symbol(void *library, const char *name);
#define dlopen stand_in_open
#define dlsym stand_in_symbol
#include "cuda/collectives/nccl.c"
#undef dlopen
#undef dlsym

#include <cuda.h>

static atomic_int used_late, freed_mapped,
    /* counts: calls with objects that an abort has freed; freed memory that other ranks have mapped; communicators */
    alive;

static void moment(long microseconds) {
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

/* ---- NCCL: communicators are marked as closed, never freed ---- */

enum { COMMS = 1024 };
struct ncclComm {
    atomic_int gone, inside;
};
static struct ncclComm comms[COMMS];
static atomic_int      comms_made;

static ncclResult_t enter_stand_in(ncclComm_t comm) {
    atomic_fetch_add(&used_late, comm && atomic_load(&comm->gone));
    return ncclSuccess;
}
static ncclResult_t version_of(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
static ncclResult_t unique_id(ncclUniqueId *id) {
    memset(id, 7, sizeof *id);
    return ncclSuccess;
}
static ncclResult_t init_rank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    const int made = atomic_fetch_add(&comms_made, 1);
    *comm          = made < COMMS ? &comms[made] : NULL;
    atomic_fetch_add(&alive, 1);
    return *comm ? ncclSuccess : ncclSystemError;
}
static ncclResult_t go(ncclComm_t comm) {
    (void)enter_stand_in(comm);
    atomic_store(&comm->gone, 1);
    atomic_fetch_add(&used_late, atomic_load(&comm->inside) != 0);
    atomic_fetch_sub(&alive, 1);
    return ncclSuccess;
}
static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *error) {
    *error = ncclSuccess;
    return enter_stand_in(comm);
}
static ncclResult_t all_reduce(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    (void)enter_stand_in(comm);
    atomic_fetch_add(&comm->inside, 1);
    moment(2000);
    atomic_fetch_sub(&comm->inside, 1);
    return enter_stand_in(comm);
}
static const char *error_string(ncclResult_t result) {
    return result == ncclSuccess ? "fine" : "bad";
}
static const char *last_error(ncclComm_t comm) {
    return enter_stand_in(comm) == ncclSuccess ? "" : "bad";
}

static void *stand_in_open(const char *name, int flags) {
    return name && flags ? &alive : NULL;
}
static void *stand_in_symbol(void *library, const char *name) {
    static const struct {
        const char *name;
        void (*function)(void);
    } known[]   = {{"ncclGetVersion", (void (*)(void))version_of},
                   {"ncclGetUniqueId", (void (*)(void))unique_id},
                   {"ncclCommInitRankConfig", (void (*)(void))init_rank},
                   {"ncclCommDestroy", (void (*)(void))go},
                   {"ncclCommAbort", (void (*)(void))go},
                   {"ncclCommGetAsyncError", (void (*)(void))async_error},
                   {"ncclAllReduce", (void (*)(void))all_reduce},
                   {"ncclGetErrorString", (void (*)(void))error_string},
                   {"ncclGetLastError", (void (*)(void))last_error}};
    void *found = NULL;
    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (!strcmp(known[i].name, name)) memcpy(&found, &known[i].function, sizeof found);
    return found;
}

/* ---- CUDA: memory is host memory; mappings by other ranks are counted ---- */

enum { BLOCKS = 4096 };
static struct {
    atomic_uintptr_t at;
    atomic_int       maps;
} block[BLOCKS];

static int find_block(const void *at) {
    for (int i = 0; i < BLOCKS; i++)
        if (atomic_load(&block[i].at) == (uintptr_t)at) return i;
    return -1;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    *out = calloc(1, bytes < 8192 ? bytes : 8192); /* no code here writes further */
    for (int i = 0; i < BLOCKS; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&block[i].at, &none, (uintptr_t)*out)) return cudaSuccess;
    }
    return cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *at) {
    const int i = at ? find_block(at) : -1;
    if (i < 0) return cudaSuccess;
    atomic_fetch_add(&freed_mapped, atomic_load(&block[i].maps) != 0);
    atomic_store(&block[i].at, 0);
    free(at);
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) {
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &at, sizeof at);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    memcpy(out, &handle, sizeof *out);
    const int i = find_block(*out);
    if (i < 0) return cudaErrorInvalidValue;
    atomic_fetch_add(&block[i].maps, 1);
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *at) {
    const int i = find_block(at);
    if (i >= 0) atomic_fetch_sub(&block[i].maps, 1);
    return i < 0 ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t bytes) {
    return at ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream) {
    return cudaMemset(at, value, bytes);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return to && from ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return cudaStreamSynchronize(stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
    return index ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "fine" : "bad";
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = NULL;
    return flags ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int index) {
    snprintf(bus, (size_t)length, "%d", index);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int *index, const char *bus) {
    *index = atoi(bus);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int index, int other) {
    *can = index == other;
    return cudaSuccess;
}
static CUresult memory_ops(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags) {
    return CUDA_SUCCESS;
}
static cudaError_t driver_entry(void **out, enum cudaDriverEntryPointQueryResult *found) {
    CUresult (*entry)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned) = memory_ops;
    memcpy(out, &entry, sizeof *out);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12050 /* as in cuda/common/driver.h */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    return driver_entry(out, found);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found) {
    return driver_entry(out, found);
}
#endif
cr_status cr_cuda_fail(cudaError_t error, const char *what, const char *file, int line) {
    return cr_error_set(CR_ERR_DEVICE, file, line, "%s: %d", what, (int)error);
}
cudaError_t ck_cast(const float *x, enum ck_type type, void *y, int64_t elems, cudaStream_t stream) {
    return x && y ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t ck_widen(enum ck_type type, const void *x, float *y, int64_t elems, cudaStream_t stream) {
    return ck_cast(y, type, (void *)(uintptr_t)x, elems, stream);
}
cudaError_t ck_sum_ranks(const struct ck_sum_ranks *sum, int multiprocessors, cudaStream_t stream) {
    return sum->to ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t ck_sum_small(const struct ck_sum_small *sum, cudaStream_t stream) {
    return sum->x ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- the lifetime of a device: as in cuda/device.c and runtime/memory_regions.c ---- */

enum { STEPS = 3, MOMENTS = 16, LONG = 10000 };

/* The ranks of which one is to be lost: the others continue until they are notified. */
static cr_status steps(struct cuda_device *d, const struct member *m, int lost_at) {
    float     *x         = NULL;
    const bool lost_here = lost_at >= 0 && lost_at < STEPS * 4;
    for (int i = 0; i < (lost_here ? LONG : STEPS); i++) {
        if (m->where.rank == 1 && lost_here && lost_at / 4 == i) {
            moment(lost_at % 4 * 100);
            cr_comm_abort(m->comm, "enough");
        }
        CR_TRY(reduce(d->comm, x, x, 16, CR_F32, NULL));
        CR_TRY(look_for_errors(d->comm));
    }
    return CR_OK;
}

static cr_status lifetime(struct member *m) {
    const int           lost_at = m->wrong;
    struct cuda_device *d       = cr_alloc(1, sizeof *d);
    void               *region  = NULL;
    m->wrong                    = 0;
    d->base.options.comm        = m->comm;
    d->base.options.transport   = CR_TRANSPORT_AUTO;
    cr_status status            = cr_cuda_comm_open(d);
    if (status == CR_OK && cudaMalloc(&region, 4096) == cudaSuccess) status = cr_cuda_peers_share(&d->base, region);
    if (status == CR_OK) status = steps(d, m, lost_at);
    if (m->where.rank == 1 && lost_at >= STEPS * 4) {
        moment((lost_at - STEPS * 4) * 50L);
        cr_comm_abort(m->comm, "enough");
    }
    cr_cuda_peers_unshare(&d->base);
    if (region != d->unreleased) (void)cudaFree(region);
    cr_cuda_comm_close(d);
    cr_free(d);
    return status;
}

static void lifetimes(int lost_at) {
    struct group g;
    group_init(&g, 3, SHARED, lifetime);
    for (int r = 0; r < g.size; r++) g.member[r].wrong = lost_at; /* becomes a time */
    group_run(&g);
    CHECK_INT(atomic_load(&used_late), 0);
    CHECK_INT(atomic_load(&freed_mapped), 0);
    CHECK_INT(atomic_load(&alive), 0);
    if (lost_at < 0) group_good(&g, "nobody is lost");
}

TEST(a_good_run_frees_everything) {
    lifetimes(-1);
    for (int i = 0; i < BLOCKS; i++) CHECK_INT(atomic_load(&block[i].at), 0);
}

TEST(a_rank_is_lost) {
    for (int at = 0; at < STEPS * 4 + MOMENTS; at++) lifetimes(at);
}

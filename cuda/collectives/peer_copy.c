/* cuda/collectives/peer_copy.c: sums over GPUs of one host without a library. Small sums, those of SyncBN, are one
 * kernel on the compute stream, which writes into the memory of the other GPUs: see ck_sum_small.
 *
 * Gradients: copy engines move the bytes between the GPUs. The backward pass loses multiprocessors only to flags and to
 * a short sum.
 *
 * Rank s owns part s of each bucket. A round for a bucket has two phases:
 *   A  Every rank copies its values of part s into the box of rank s, which has a place for each sender. It sets a flag
 *      at s and waits for the flags of the other ranks.
 *   B  Rank s adds the values in the order of the ranks and copies the sum to the same place of every other rank's
 *      gradients. It sets a flag at each of them and waits.
 * The same ranks give bitwise identical results on all ranks in every run.
 *
 * One flag for each sender and phase is enough for all rounds. Flags are only ever 1 or 0 and boxes are reused, but a
 * captured graph can be launched again, for these reasons:
 *   - All ranks run the same rounds in the same order, each on one stream.
 *   - Rank r sets flag A at s in round t+1 after it has received all flags B of round t. Rank s set its flag B at r
 *     after its sum, which came after its wait for A of round t. At that time s had reset all flags A, including r's,
 *     and had read its box. So no flag is set twice, and no box is overwritten before it is read.
 *   - Rank s sets flag B at r in round t+1 after it has received all flags A of that round. Rank r set its flag A at s
 *     after its wait for B of round t, which reset the flags B. Rank r's flag A also comes after r's copies out of its
 *     gradients, so the sum of s overwrites only values that have been read.
 * Flags are set by copies of one word. The driver's stream memory operations wait for flags and reset them. Neither
 * uses a multiprocessor. When a rank is lost, an abort sets all flags from a stream of its own, so that no stream waits
 * forever. */
#include "comm/comm.h"
#include "cuda/common/driver.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    PIECE_BYTES  = 32 << 20,
    FLAGS_BYTES  = 4096,
    PART_ALIGN   = 16,
    SHARED_ALIGN = 2 << 20,
    PHASES       = 2,
    BUS_MAX      = 32,
    WHY_MAX      = 200
};

typedef CUresult (*batch_mem_op)(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags);
/* Offsets in the first FLAGS_BYTES of a box: behind the flags a word that an abort sets, too, the rounds of small sums,
 * a word of value 1. */
enum { ABORTED_AT = PHASES * CK_PEERS * 4, ROUNDS_AT = 1024, ONE_AT = 2048, WAKE_NS = 1000 * 1000 };

struct cuda_peers {
    struct cr_comm *ranks;
    int             rank, size, index;
    /* bytes of a sender's place in a box: flags (u32[PHASES][CK_PEERS], by sender), places, lines of small sums */
    size_t       place;
    char        *box[CK_PEERS];    /* by rank; boxes of other ranks are mapped into this process */
    char        *region[CK_PEERS]; /* by rank; the shared region; NULL when none is shared */
    batch_mem_op ops;
    cudaStream_t waker; /* an abort sets the flags on this stream */
    pthread_t    wake;
    bool         wakes;
    atomic_bool  closing;
};

/* ---- access between GPUs ---- */

struct offer {
    char               why[WHY_MAX]; /* empty when this rank can access all others */
    char               bus[BUS_MAX];
    cudaIpcMemHandle_t box;
};

#define CANNOT(why, ...) ((void)(snprintf((why), WHY_MAX, __VA_ARGS__) < 0 ? (why)[0] = '?' : 0))
static bool failed(cudaError_t error, const char *what, char *why) {
    if (error == cudaSuccess) return false;
    CANNOT(why, "%s: %s", what, cudaGetErrorString(error));
    (void)cudaGetLastError();
    return true;
}

static size_t align_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

size_t cr_cuda_peers_bytes(size_t bytes) {
    return align_up(bytes, SHARED_ALIGN);
}

static size_t lines_at(const struct cuda_peers *p) {
    return FLAGS_BYTES + (size_t)(p->size - 1) * p->place;
}

static bool find_ops(struct cuda_peers *p, char *why) {
    void *entry = ck_driver_function("cuStreamBatchMemOp");
    if (entry)
        *(void **)(void *)&p->ops = entry;
    else
        CANNOT(why, "the driver has no cuStreamBatchMemOp");
    return entry && !failed(cudaStreamCreateWithFlags(&p->waker, cudaStreamNonBlocking), "a stream", why);
}

static void make_offer(struct cuda_device *d, struct cuda_peers *p, struct offer *offer) {
    const uint32_t one = 1;
    void          *box = NULL;
    if (cr_comm_hosts(p->ranks) > 1) return CANNOT(offer->why, "there are several hosts");
    if (p->size > CK_PEERS) return CANNOT(offer->why, "more than %d GPUs", CK_PEERS);
    p->place           = align_up(PIECE_BYTES / (size_t)p->size + PART_ALIGN, CR_CUDA_ALIGN);
    const size_t bytes = cr_cuda_peers_bytes(lines_at(p) + (size_t)(2 * p->size * CK_SUM_LINES) * sizeof(uint4));
    if (!find_ops(p, offer->why)) return;
    if (failed(cudaMalloc(&box, bytes), "memory for the values of other ranks", offer->why)) return;
    p->box[p->rank] = box;
    if (failed(cudaMemset(box, 0, bytes), "memory for the values of other ranks", offer->why) ||
        failed(cudaMemcpy((char *)box + ONE_AT, &one, sizeof one, cudaMemcpyHostToDevice), "a copy", offer->why) ||
        failed(cudaDeviceSynchronize(), "the GPU", offer->why))
        return;
    if (failed(cudaIpcGetMemHandle(&offer->box, box), "exporting memory", offer->why)) return;
    (void)failed(cudaDeviceGetPCIBusId(offer->bus, sizeof offer->bus, d->index), "the GPU's bus number", offer->why);
}

static void *open_handle(const cudaIpcMemHandle_t *handle, char *why) {
    void *memory = NULL;
    if (failed(cudaIpcOpenMemHandle(&memory, *handle, cudaIpcMemLazyEnablePeerAccess), "another rank's memory", why))
        return NULL;
    return memory;
}

static void take_offers(struct cuda_device *d, struct cuda_peers *p, const struct offer *all, char *why) {
    for (int r = 0; r < p->size; r++)
        if (*all[r].why) return CANNOT(why, "rank %d: %.150s", r, all[r].why);
    for (int r = 0; r < p->size; r++) {
        int index = -1, can = 0;
        if (r == p->rank) continue;
        if (cudaDeviceGetByPCIBusId(&index, all[r].bus) != cudaSuccess) {
            (void)cudaGetLastError();
            return CANNOT(why, "rank %d does not see the GPU of rank %d (CUDA_VISIBLE_DEVICES)", p->rank, r);
        }
        if (cudaDeviceCanAccessPeer(&can, d->index, index) != cudaSuccess || !can) {
            (void)cudaGetLastError();
            return CANNOT(why, "the GPU of rank %d cannot access that of rank %d", p->rank, r);
        }
        p->box[r] = open_handle(&all[r].box, why);
        if (!p->box[r]) return;
    }
}

/* *why: empty, or the reason why some rank has no access. All ranks get the same text. */
static cr_status combine_reasons(struct cuda_device *d, struct cuda_peers *p, char *why) {
    struct offer *all, mine = {0};
    char         *whys   = NULL;
    cr_status     status = CR_OK;
    make_offer(d, p, &mine);
    CR_ALLOC(all, (size_t)p->size);
    whys = cr_alloc((size_t)p->size, WHY_MAX);
    if (!whys) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d ranks", p->size);
    CR_TRY_OUT(cr_comm_all_gather(p->ranks, &mine, sizeof mine, all));
    take_offers(d, p, all, why);
    CR_TRY_OUT(cr_comm_all_gather(p->ranks, why, WHY_MAX, whys));
    for (int r = p->size - 1; r >= 0; r--)
        if (whys[(size_t)r * WHY_MAX]) memcpy(why, whys + (size_t)r * WHY_MAX, WHY_MAX);
out:
    cr_free(all);
    cr_free(whys);
    return status;
}

/* ---- open, close ---- */

/* Waits until no rank uses memory that is about to be freed. Returns false after a failure: the barrier does not wait
 * then, and memory that other ranks have mapped stays allocated until the process ends. */
static bool wait_for_all(struct cuda_peers *p) {
    cr_error_hold();
    const bool all = cr_comm_barrier(p->ranks) == CR_OK;
    cr_error_release();
    return all;
}

static void close_maps(struct cuda_peers *p, char **map) {
    for (int r = 0; r < CK_PEERS; r++) {
        if (r != p->rank && map[r]) (void)cudaIpcCloseMemHandle(map[r]);
        if (r != p->rank) map[r] = NULL;
    }
}

static void drop(struct cuda_peers *p, bool box_too) {
    if (p->waker) (void)cudaStreamDestroy(p->waker);
    if (box_too && p->rank < CK_PEERS) (void)cudaFree(p->box[p->rank]);
    (void)cudaGetLastError();
    cr_free(p);
}

cr_status cr_cuda_peers_open(struct cuda_device *d, struct cuda_peers **out) {
    struct cr_comm         *ranks        = d->base.options.comm;
    const enum cr_transport transport    = d->base.options.transport;
    char                    why[WHY_MAX] = "";
    struct cuda_peers      *p;
    CR_TRY(cr_comm_same(ranks, &transport, sizeof transport, "ranks.transport"));
    if (transport == CR_TRANSPORT_NCCL) return CR_OK;
    CR_ALLOC(p, 1);
    p->ranks         = ranks;
    p->rank          = cr_comm_rank(ranks);
    p->size          = cr_comm_size(ranks);
    p->index         = d->index;
    cr_status status = combine_reasons(d, p, why);
    if (status == CR_OK && !*why) {
        *out = d->peers = p;
        return CR_OK;
    }
    close_maps(p, p->box);
    drop(p, status == CR_OK && wait_for_all(p));
    CR_TRY(status);
    if (transport == CR_TRANSPORT_PEER)
        return CR_FAIL(CR_ERR_CONFIG, "ranks.transport = peer is not possible here: %s; set auto or nccl", why);
    if (cr_comm_rank(ranks) == 0) cr_log(CR_LOG_INFO, "ranks   gradients are summed by NCCL: %s", why);
    return CR_OK;
}

/* Sets what streams wait for, until the process ends or closes the device. */
static void *wake_main(void *argument) {
    struct cuda_peers *p = argument;
    (void)cudaSetDevice(p->index);
    while (!atomic_load(&p->closing)) {
        (void)cudaMemsetAsync(p->box[p->rank], 1, ABORTED_AT + sizeof(uint32_t), p->waker);
        nanosleep(&(struct timespec){.tv_nsec = WAKE_NS}, NULL);
    }
    return NULL;
}

void cr_cuda_peers_abort(struct cuda_peers *p) {
    if (!p) return;
    if (!p->wakes) p->wakes = pthread_create(&p->wake, NULL, wake_main, p) == 0;
}

void cr_cuda_peers_close(struct cuda_device *d, bool has_failed) {
    struct cuda_peers *p = d->peers;
    d->peers             = NULL;
    if (!p) return;
    atomic_store(&p->closing, true);
    if (p->wakes) (void)pthread_join(p->wake, NULL);
    if (!has_failed) close_maps(p, p->box);
    drop(p, !has_failed && wait_for_all(p));
}

cr_status cr_cuda_peers_share(struct cr_device *device, void *region) {
    struct cuda_peers *p = cuda_of(device)->peers;
    cudaIpcMemHandle_t mine, all[CK_PEERS];
    char               why[WHY_MAX] = "";
    if (!p) return CR_OK;
    CUDA_TRY(cudaIpcGetMemHandle(&mine, region));
    CR_TRY(cr_comm_all_gather(p->ranks, &mine, sizeof mine, all));
    for (int r = 0; r < p->size; r++) {
        p->region[r] = r == p->rank ? region : open_handle(&all[r], why);
        if (p->region[r]) continue;
        close_maps(p, p->region);
        p->region[p->rank]          = NULL;
        cuda_of(device)->unreleased = region;
        return CR_FAIL(CR_ERR_DEVICE, "the memory of rank %d cannot be shared: %s; set ranks.transport = nccl", r, why);
    }
    return CR_OK;
}

void cr_cuda_peers_unshare(struct cr_device *device) {
    struct cuda_peers *p = cuda_of(device)->peers;
    if (!p || !p->region[p->rank]) return;
    (void)cudaDeviceSynchronize();
    close_maps(p, p->region);
    void *mine         = p->region[p->rank];
    p->region[p->rank] = NULL;
    if (!wait_for_all(p)) cuda_of(device)->unreleased = mine;
}

/* ---- a round ---- */

enum phase { TO_OWNER, FROM_OWNER };

struct part {
    size_t begin, bytes;
};
static struct part part_of(const struct cuda_peers *p, int owner, size_t bytes) {
    const size_t share = align_up((bytes + (size_t)p->size - 1) / (size_t)p->size, PART_ALIGN),
                 begin = CR_MIN(bytes, (size_t)owner * share);
    return (struct part){.begin = begin, .bytes = CR_MIN(bytes - begin, share)};
}

static char *place_at(const struct cuda_peers *p, int owner, int sender) {
    return p->box[owner] + FLAGS_BYTES + (size_t)(sender < owner ? sender : sender - 1) * p->place;
}
static uint32_t *flag_at(const struct cuda_peers *p, int at, enum phase phase, int sender) {
    return (uint32_t *)(void *)p->box[at] + (size_t)phase * CK_PEERS + (size_t)sender;
}

/* Copy engines set the flags after the data; the driver waits for the flags and resets them. */
static cr_status exchange_flags(const struct cuda_peers *p, enum phase phase, cudaStream_t stream) {
    CUstreamBatchMemOpParams op[2 * CK_PEERS] = {0};
    int                      count            = 0;
    for (int k = 1; k < p->size; k++) {
        const int r = (p->rank + k) % p->size;
        CUDA_TRY(cudaMemcpyAsync(flag_at(p, r, phase, p->rank), p->box[p->rank] + ONE_AT, sizeof(uint32_t),
                                 cudaMemcpyDefault, stream));
    }
    for (int r = 0; r < p->size; r++) {
        const CUdeviceptr flag = (CUdeviceptr)(uintptr_t)flag_at(p, p->rank, phase, r);
        if (r == p->rank) continue;
        op[count].waitValue = (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                                       .address   = flag,
                                                                       .value     = 1,
                                                                       .flags     = CU_STREAM_WAIT_VALUE_GEQ};
        op[p->size - 1 + count++].writeValue =
            (struct CUstreamMemOpWriteValueParams_st){.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = flag};
    }
    const CUresult result = p->ops(stream, 2 * (unsigned)count, op, 0);
    return result == CUDA_SUCCESS ? CR_OK : CR_FAIL(CR_ERR_DEVICE, "GPU: cuStreamBatchMemOp failed (%d)", (int)result);
}

static cr_status add_up(const struct cuda_peers *p, char *mine, size_t bytes, int multiprocessors,
                        cudaStream_t stream) {
    struct ck_sum_ranks sum = {
        .to = (float *)(void *)mine, .ranks = p->size, .elems = (int64_t)(bytes / sizeof(float))};
    for (int r = 0; r < p->size; r++)
        sum.part[r] = (const float *)(const void *)(r == p->rank ? mine : place_at(p, p->rank, r));
    if (bytes) CUDA_TRY(ck_sum_ranks(&sum, multiprocessors, stream));
    return CR_OK;
}

/* `at`: offset in bytes in the shared region. */
static cr_status run_round(const struct cuda_peers *p, size_t at, size_t bytes, int multiprocessors,
                           cudaStream_t stream) {
    char             *mine = p->region[p->rank] + at;
    const struct part own  = part_of(p, p->rank, bytes);
    /* each rank starts with a different rank, so that no GPU receives all copies at once */
    for (int k = 1; k < p->size; k++) {
        const int         r    = (p->rank + k) % p->size;
        const struct part part = part_of(p, r, bytes);
        if (part.bytes)
            CUDA_TRY(
                cudaMemcpyAsync(place_at(p, r, p->rank), mine + part.begin, part.bytes, cudaMemcpyDefault, stream));
    }
    CR_TRY(exchange_flags(p, TO_OWNER, stream));
    CR_TRY(add_up(p, mine + own.begin, own.bytes, multiprocessors, stream));
    for (int k = 1; k < p->size && own.bytes; k++) {
        const int r = (p->rank + k) % p->size;
        CUDA_TRY(
            cudaMemcpyAsync(p->region[r] + at + own.begin, mine + own.begin, own.bytes, cudaMemcpyDefault, stream));
    }
    return exchange_flags(p, FROM_OWNER, stream);
}

/* ---- the op ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *y = cuda_out(p, op, CR_OUT_all_reduce_y);
    return cuda_of(device)->peers && op->in[CR_IN_all_reduce_x] == op->out[CR_OUT_all_reduce_y] &&
           y->region == CR_REGION_STORE && op->attr.reduce.wire == CR_F32;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    struct cuda_device      *d = cuda_of(device);
    const struct cuda_peers *p = d->peers;
    const struct cr_tensor  *y = cuda_out(call->program, call->op, CR_OUT_all_reduce_y);
    CR_ASSERT(p->region[p->rank] && (char *)call->out[CR_OUT_all_reduce_y] == p->region[p->rank] + y->offset);
    CR_TRY(cr_comm_check(p->ranks));
    for (size_t at = 0; at < y->bytes; at += PIECE_BYTES)
        CR_TRY(run_round(p, y->offset + at, CR_MIN((size_t)PIECE_BYTES, y->bytes - at), d->multiprocessors,
                         cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- small sums ---- */

static bool is_small(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *y = cuda_out(p, op, CR_OUT_all_reduce_y);
    return cuda_of(device)->peers && y->region != CR_REGION_STORE && cr_tensor_elems(y) <= CK_SUM_ELEMS &&
           op->attr.reduce.wire == CR_F32;
}

static cr_status launch_small(struct cr_device *device, const struct cr_call *call) {
    const struct cuda_peers *p    = cuda_of(device)->peers;
    char                    *mine = p->box[p->rank];
    struct ck_sum_small      sum  = {.x       = call->in[CR_IN_all_reduce_x],
                                     .y       = call->out[CR_OUT_all_reduce_y],
                                     .elems   = cr_tensor_elems(cuda_out(call->program, call->op, CR_OUT_all_reduce_y)),
                                     .rank    = p->rank,
                                     .ranks   = p->size,
                                     .round   = (unsigned *)(void *)(mine + ROUNDS_AT),
                                     .aborted = (unsigned *)(void *)(mine + ABORTED_AT)};
    for (int r = 0; r < p->size; r++) sum.lines[r] = (void *)(p->box[r] + lines_at(p));
    CR_TRY(cr_comm_check(p->ranks));
    return CUDA_STATUS(ck_sum_small(&sum, cr_cuda_stream(device, call)));
}

const struct cr_kernel cr_cuda_peer_copy_kernels[] = {
    {CR_KERNEL("peer.all_reduce", all_reduce, CR_MATH_EXACT), .dtypes = CR_TYPES_F32, .collective = true,
     .accepts = accepts, .launch = launch},
    {CR_KERNEL("peer.all_reduce_small", all_reduce, CR_MATH_EXACT), .dtypes = CR_TYPES_F32, .collective = true,
     .traits = {.any_stream = true}, .accepts = is_small, .launch = launch_small},
    {0}};

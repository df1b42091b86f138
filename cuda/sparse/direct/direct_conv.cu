/* cuda/sparse/direct/direct_conv.cu: direct convolution with a sparse filter, the input in shared memory.
 *
 * A block stages a chunk of the input's channels as [channel][slot][4]: 4 floats of a slot are the same place of 4
 * patches (of four pictures, or four parts of one), so that every tap is an aligned read of 16 bytes whatever the
 * stride or the batch. A warp takes some output channels, its lanes the places of a patch; a kept weight costs one read
 * of (value, offset), the same for all lanes, and for each quad an addition, a read of 16 bytes and four multiply-adds.
 * Sums of all its channels stay in registers while the chunks pass; they leave through shared memory, so that y, bias
 * and residual are touched in whole lines.
 *
 * Bytes: y once, the residual once, x once a block's output channels (from the L2 cache but for the first).
 * Limiter: reads of shared memory, 16 bytes a quad of multiply-adds: 128 bytes a cycle and multiprocessor are 32
 * multiply-adds, a quarter of what the FP32 units could do. With 2 more cycles a weight for (value, offset),
 * 4*quads/(4*quads + 2) of that: 11 to 15 TFLOP/s of kept weights at 1.98 GHz on 132 multiprocessors, below it where
 * memory is the limit. */
#include "cuda/sparse/direct/direct_tile.cuh"

#include <math.h>

namespace sparse {
namespace {

/* All kept weights of this warp's rows in one chunk. Lane i holds entry i of the next 32 while the warp works on the
 * last 32, which lie in the warp's ring. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void multiply(const uint32_t *values, const uint32_t *offsets, const uint32_t *start,
                                         int part, int split, const char *memory, const uint32_t (&base)[QUADS],
                                         uint2 *ring, float (&sum)[ROWS][4 * QUADS]) {
    const int        lane = (int)threadIdx.x % CK_WARP;
    const kept<ROWS> rows(start, part, split);
    values += rows.first + lane, offsets += rows.first + lane;
    uint2 next = lane < rows.total ? make_uint2(__ldg(values), __ldg(offsets)) : make_uint2(0, 0);
    int   i    = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int end = rows.end(r);
#pragma unroll 1
        for (; i < end; i += CK_SPARSE_PAIR) {
            if (i % CK_WARP == 0) {
                __syncwarp();
                ring[lane] = next;
                __syncwarp();
                if (i + CK_WARP + lane < rows.total)
                    next = make_uint2(__ldg(values + i + CK_WARP), __ldg(offsets + i + CK_WARP));
            }
            const uint4 pair = *reinterpret_cast<const uint4 *>(ring + i % CK_WARP);
            float4      a[QUADS], b[QUADS];
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                a[j] = *reinterpret_cast<const float4 *>(memory + (base[j] + pair.y));
                b[j] = *reinterpret_cast<const float4 *>(memory + (base[j] + pair.w));
            }
            const float wa = __uint_as_float(pair.x), wb = __uint_as_float(pair.z);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                sum[r][4 * j + 0] = fmaf(wa, a[j].x, sum[r][4 * j + 0]);
                sum[r][4 * j + 1] = fmaf(wa, a[j].y, sum[r][4 * j + 1]);
                sum[r][4 * j + 2] = fmaf(wa, a[j].z, sum[r][4 * j + 2]);
                sum[r][4 * j + 3] = fmaf(wa, a[j].w, sum[r][4 * j + 3]);
            }
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                sum[r][4 * j + 0] = fmaf(wb, b[j].x, sum[r][4 * j + 0]);
                sum[r][4 * j + 1] = fmaf(wb, b[j].y, sum[r][4 * j + 1]);
                sum[r][4 * j + 2] = fmaf(wb, b[j].z, sum[r][4 * j + 2]);
                sum[r][4 * j + 3] = fmaf(wb, b[j].w, sum[r][4 * j + 3]);
            }
        }
    }
}

/* This thread's sums to out[part][point][channels of the block + 4], from channel `first` on: the 4 keep lanes on
 * different banks. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void put(const float (&sum)[ROWS][4 * QUADS], float *out, int part, int first, int pitch) {
    const int lane = (int)threadIdx.x % CK_WARP;
    out += (int64_t)part * (QUADS * CK_WARP * 4) * pitch + first;
#pragma unroll
    for (int v = 0; v < 4 * QUADS; v++) {
        float *to = out + ((v % 4 * QUADS + v / 4) * CK_WARP + lane) * pitch;
        if constexpr (ROWS % 4 == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r += 4)
                *reinterpret_cast<float4 *>(to + r) =
                    make_float4(sum[r][v], sum[r + 1][v], sum[r + 2][v], sum[r + 3][v]);
        } else {
#pragma unroll
            for (int r = 0; r < ROWS; r++) to[r] = sum[r][v];
        }
    }
}

/* Sums of parts, bias, residual and ReLU, and to memory: 4 channels a thread. */
template <typename T>
__device__ __forceinline__ void finish(const kernel_args &k, const float *out, const int *points, int count,
                                       int64_t k0) {
    const int     channels = k.plan.channels, fours = channels / 4;
    const int64_t K     = k.a.conv.K;
    const bool    whole = K % 4 == 0;
    for (int i = (int)threadIdx.x; i < count * fours; i += (int)blockDim.x) {
        const int     point = i / fours, pixel = points[point];
        const int64_t first = k0 + i % fours * 4;
        if (pixel < 0 || first >= K) continue;
        float v[4] = {};
        for (int part = 0; part < k.plan.split; part++) {
            const float4 u = *reinterpret_cast<const float4 *>(out + (int64_t)(part * count + point) * (channels + 4) +
                                                               i % fours * 4);
            v[0] += u.x, v[1] += u.y, v[2] += u.z, v[3] += u.w;
        }
        write_four<T>(k.a, (int64_t)pixel * K + first, first, whole ? 4 : (int)(K - first < 4 ? K - first : 4), whole,
                      v);
    }
}

template <int QUADS, int ROWS, typename T>
__global__ void __launch_bounds__(512, 1) kernel(const __grid_constant__ kernel_args k) {
    extern __shared__ __align__(16) char memory[];
    constexpr int                        ITEMS = QUADS * CK_WARP;
    int *table = reinterpret_cast<int *>(memory + k.table_at), *points = reinterpret_cast<int *>(memory + k.points_at);
    const int     lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    uint2        *ring = reinterpret_cast<uint2 *>(memory + k.ring_at) + warp * CK_WARP;
    const int64_t tile = blockIdx.x / k.plan.k_blocks, block_k = blockIdx.x % k.plan.k_blocks;
    const int64_t k0 = block_k * k.plan.channels, rows_all = k.plan.k_blocks * k.plan.channels;
    const int     part = warp % k.plan.split, first = warp / k.plan.split * ROWS; /* channel of the block */

    fill_table(k, tile, table);
    fill_points(k, tile, ITEMS, points);
    uint32_t base[QUADS];
    find_bases(k, lane, base);
    float sum[ROWS][4 * QUADS] = {};
    for (int chunk = 0; chunk < k.plan.chunks; chunk++) {
        const int c0 = chunk * k.plan.chunk, left = (int)k.a.conv.C - c0;
        __syncthreads();
        stage<QUADS == 4 ? 2 : 4, T>(k, table, reinterpret_cast<float *>(memory), c0,
                                     left < k.plan.chunk ? left : k.plan.chunk);
        __syncthreads();
        multiply<QUADS, ROWS>(reinterpret_cast<const uint32_t *>(k.a.values), k.a.offsets,
                              k.a.start + chunk * rows_all + k0 + first, part, k.plan.split, memory, base, ring, sum);
    }
    __syncthreads();
    put<QUADS, ROWS>(sum, reinterpret_cast<float *>(memory), part, first, k.plan.channels + 4);
    __syncthreads();
    finish<T>(k, reinterpret_cast<const float *>(memory), points, ITEMS * 4, k0);
}

/* ---- the plan ---- */

/* Sums take quads*rows*4 registers of the 128 that 16 warps leave. A way is a pair of these numbers, and blocks that
 * share a multiprocessor or have it to themselves. */
struct cut {
    int quads, rows, least_warps, most_warps;
};
enum { MAX_WARPS = 16 };
const cut CUTS[] = {{4, 4, 9, 16}, {4, 4, 4, 8},  {2, 8, 9, 16}, {2, 8, 4, 8},  {2, 4, 9, 16},
                    {2, 4, 4, 8},  {1, 8, 9, 16}, {1, 8, 4, 8},  {1, 4, 9, 16}, {1, 4, 4, 8},
                    {1, 2, 9, 16}, {1, 2, 4, 8},  {1, 1, 9, 16}, {1, 1, 4, 8}};
const int WAYS   = (int)(sizeof CUTS / sizeof *CUTS);

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Blocks of so many warps that run on a multiprocessor together. */
int resident(int warps) {
    return MAX_WARPS / warps;
}

/* Where the tables lie, from the end of the staged input (or of the outputs, which take its place) on. */
size_t tables_bytes(const ck_sparse_plan &plan, int slots) {
    return (size_t)slots * 16 + (size_t)plan.quads * CK_WARP * 16 + (size_t)(plan.warps * plan.warp_bytes);
}
size_t outputs_bytes(const ck_sparse_plan &plan) {
    return (size_t)(plan.quads * CK_WARP * 16) * (size_t)(plan.channels + 4) * (size_t)plan.split;
}
int slots_of(const ck_sparse_plan &plan) {
    return plan.groups * plan.IH * plan.pitch;
}
int plane_of(const ck_sparse_plan &plan) {
    return slots_of(plan) | 1;
} /* odd: see stage_lines */

/* Fills in all but `order`; false: does not fit. */
bool lay_out(const ck_conv &conv, const cut &c, int warps, int split, int TP, int TQ, int64_t shared,
             ck_sparse_plan *plan) {
    ck_sparse_plan &p = *plan;
    p.quads = c.quads, p.rows = c.rows, p.warps = warps, p.split = split, p.channels = warps / split * c.rows;
    p.TP = TP, p.TQ = TQ;
    p.patches_p = (int)ceil_div(conv.P, TP), p.patches_q = (int)ceil_div(conv.Q, TQ);
    const int64_t fours = ceil_div(conv.N * p.patches_p * p.patches_q, 4), most = c.quads * CK_WARP / (TP * TQ);
    if (most < 1) return false;
    p.groups            = (int)(fours < most ? fours : most);
    p.tiles             = ceil_div(fours, p.groups);
    p.IH                = (TP - 1) * conv.stride + conv.R;
    p.columns           = (int)ceil_div((TQ - 1) * conv.stride + conv.S, conv.stride);
    p.pitch             = p.columns * (conv.S < conv.stride ? conv.S : conv.stride);
    const int     slots = slots_of(p);
    const int64_t limit = shared / resident(warps) - 1024, room = limit - (int64_t)tables_bytes(p, slots);
    const int64_t plane = (int64_t)plane_of(p) * CK_VECTOR_BYTES;
    if (room < (int64_t)outputs_bytes(p) || room < plane) return false;
    int64_t chunk = room / plane;
    if (chunk >= 8) chunk -= chunk % (chunk >= 32 ? 32 : 8);
    p.chunks = ceil_div(conv.C, chunk);
    if (chunk >= 8) {
        const int64_t unit = chunk >= 32 ? 32 : 8, even = ceil_div(ceil_div(conv.C, p.chunks), unit) * unit;
        chunk    = even < chunk ? even : chunk;
        p.chunks = ceil_div(conv.C, chunk);
    } else if (conv.C > chunk)
        return false; /* whole vectors of channels only */
    p.chunk         = (int)chunk;
    p.k_blocks      = ceil_div(conv.K, p.channels);
    const size_t xs = (size_t)chunk * (size_t)plane;
    p.shared_bytes  = (xs > outputs_bytes(p) ? xs : outputs_bytes(p)) + tables_bytes(p, slots);
    return p.tiles * p.k_blocks < ((int64_t)1 << 31);
}

/* Cycles on the busiest multiprocessor, by counting reads and writes of shared memory; latency where few warps are
 * there. */
double cycles(const ck_conv &conv, const ck_sparse_plan &p, double kept_a_row, int multiprocessors) {
    const double rows = p.channels, work = kept_a_row * rows * (4 * p.quads + 2), slots = slots_of(p);
    const double staged = (double)conv.C * slots * 4 / CK_WARP * 2.5, out = p.quads * 4.0 * rows * (2 + p.split);
    const double block =
        work + rows * (double)p.chunks * 8 + staged + out + (double)p.chunks * 1500 / resident(p.warps);
    const int64_t blocks = p.tiles * p.k_blocks;
    const double  alone =
        kept_a_row * p.rows / p.split / CK_SPARSE_PAIR * 90 + (double)p.chunks * 3000 + staged / p.warps;
    const double busy  = (double)ceil_div(blocks, multiprocessors) * block;
    const double waits = (double)ceil_div(blocks, (int64_t)multiprocessors * resident(p.warps)) * alone;
    return busy > waits ? busy : waits;
}

/* Items to lanes: 8 neighbours read 128 bytes together, so they should lie in 8 different slots modulo 8. */
void set_order(const ck_conv &conv, ck_sparse_plan *p) {
    const int size = p->TP * p->TQ, items = p->groups * size, room = p->quads * CK_WARP;
    bool      taken[CK_SPARSE_ITEMS] = {};
    unsigned  banks                  = 0;
    for (int i = 0; i < room; i++) {
        if (i % 8 == 0) banks = 0;
        int best = -1, bank = 0;
        for (int item = 0; item < items; item++) {
            if (taken[item]) continue;
            const int row = item / size * p->IH + item % size / p->TQ * conv.stride;
            const int at  = (row * p->pitch + item % size % p->TQ) % 8;
            if (best < 0 || !(banks >> at & 1u)) best = item, bank = at;
            if (!(banks >> bank & 1u)) break;
        }
        p->order[i] = best < 0 ? (uint16_t)0xffff : (uint16_t)best;
        if (best >= 0) taken[best] = true, banks |= 1u << bank;
    }
}

/* Least cycles over all patches; keeps `plan` and `least` where they are less. */
void choose_patch(const ck_conv &conv, const cut &c, int warps, int split, double kept_a_row, int multiprocessors,
                  int64_t shared, int warp_bytes, double *least, ck_sparse_plan *plan) {
    const bool point = conv.R == 1 && conv.S == 1; /* no taps to share: any pixels make a patch */
    for (int64_t np = point ? conv.P : 1; np <= conv.P; np++) {
        const int64_t TP = ceil_div(conv.P, np);
        if (np > 1 && !point && ceil_div(conv.P, np - 1) == TP) continue;
        for (int64_t nq = point ? conv.Q : 1; nq <= conv.Q; nq++) {
            ck_sparse_plan p  = {};
            const int64_t  TQ = ceil_div(conv.Q, nq);
            p.warp_bytes      = warp_bytes;
            if (TP * TQ > CK_SPARSE_ITEMS || (nq > 1 && !point && ceil_div(conv.Q, nq - 1) == TQ)) continue;
            if (!lay_out(conv, c, warps, split, (int)TP, (int)TQ, shared, &p)) continue;
            p.cycles = cycles(conv, p, kept_a_row, multiprocessors);
            if (*least < 0 || p.cycles < *least) *least = p.cycles, *plan = p;
        }
    }
}

template <int QUADS, int ROWS, typename T> cudaError_t launch(const kernel_args &k, cudaStream_t stream) {
    const cudaError_t e = cudaFuncSetAttribute(kernel<QUADS, ROWS, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)k.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    const unsigned blocks = (unsigned)(k.plan.tiles * k.plan.k_blocks), threads = (unsigned)k.plan.warps * CK_WARP;
    kernel<QUADS, ROWS, T><<<blocks, threads, k.plan.shared_bytes, stream>>>(k);
    return cudaGetLastError();
}
template <typename T> cudaError_t launch_cut(const kernel_args &k, cudaStream_t stream) {
    switch (k.plan.quads * 16 + k.plan.rows) {
#define LAUNCH(QUADS, ROWS)                                                                                            \
    case QUADS * 16 + ROWS: return launch<QUADS, ROWS, T>(k, stream);
        SPARSE_TILES(LAUNCH)
#undef LAUNCH
    }
    return cudaErrorInvalidValue;
}

} // namespace

kernel_args tile_args(const ck_sparse_args &args, const ck_sparse_plan &plan) {
    kernel_args k = {};
    k.a           = args;
    k.plan        = plan;
    k.patches     = args.conv.N * plan.patches_p * plan.patches_q;
    k.slots       = slots_of(plan);
    k.plane       = plane_of(plan);
    k.table_at    = (int)(plan.shared_bytes - tables_bytes(plan, k.slots));
    k.points_at   = k.table_at + k.slots * 16;
    k.ring_at     = k.points_at + plan.quads * CK_WARP * 16;
    return k;
}

bool plan_tiles(const ck_conv &conv, int64_t kept, int way, int multiprocessors, int shared_bytes, int warp_bytes,
                ck_sparse_plan *plan) {
    const int64_t most = (int64_t)1 << 31;
    if (way < 0 || way > WAYS || conv.N * conv.H * conv.W >= most || conv.N * conv.P * conv.Q >= most) return false;
    double least = -1;
    for (int i = 0; i < WAYS; i++)
        for (int warps = CUTS[i].least_warps; (!way || i == way - 1) && warps <= CUTS[i].most_warps; warps++)
            for (int split = 1; split <= (CUTS[i].rows == 1 ? 4 : 1); split *= 2)
                if (warps % split == 0 && warps / split * CUTS[i].rows % 4 == 0)
                    choose_patch(conv, CUTS[i], warps, split, (double)kept / (double)conv.K, multiprocessors,
                                 shared_bytes, warp_bytes, &least, plan);
    if (least < 0) return false;
    set_order(conv, plan);
    return true;
}

} // namespace sparse

int ck_sparse_conv_configs(void) {
    return sparse::WAYS;
}

void ck_sparse_conv_tile(int way, int cut[3]) {
    const sparse::cut none = {}, &c = way >= 1 && way <= sparse::WAYS ? sparse::CUTS[way - 1] : none;
    cut[0] = c.quads, cut[1] = c.rows, cut[2] = c.most_warps;
}

bool ck_sparse_conv_plan(const struct ck_conv *conv, int64_t kept, int way, int multiprocessors, int shared_bytes,
                         struct ck_sparse_plan *plan) {
    return sparse::plan_tiles(*conv, kept, way, multiprocessors, shared_bytes, CK_WARP * (int)sizeof(uint2), plan);
}

struct ck_sparse_steps ck_sparse_conv_steps(const struct ck_conv *conv, const struct ck_sparse_plan *plan) {
    (void)conv;
    struct ck_sparse_steps steps = {};
    steps.c_step                 = (int64_t)sparse::plane_of(*plan) * CK_VECTOR_BYTES;
    steps.r_step                 = (int64_t)plan->pitch * CK_VECTOR_BYTES;
    steps.s_phase                = (int64_t)plan->columns * CK_VECTOR_BYTES;
    steps.s_step                 = CK_VECTOR_BYTES;
    return steps;
}

cudaError_t ck_sparse_conv(const struct ck_sparse_args *args, const struct ck_sparse_plan *plan, cudaStream_t stream) {
    const sparse::kernel_args k = sparse::tile_args(*args, *plan);
    switch (args->conv.type) {
    case CK_F32: return sparse::launch_cut<float>(k, stream);
    case CK_F16: return sparse::launch_cut<__half>(k, stream);
    case CK_BF16: return sparse::launch_cut<__nv_bfloat16>(k, stream);
    }
    return cudaErrorInvalidValue;
}

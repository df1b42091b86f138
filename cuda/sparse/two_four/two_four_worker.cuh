/* cuda/sparse/two_four/two_four_worker.cuh: the loading threads and the multiplying warpgroups of the kernel in
 * cuda/sparse/two_four/two_four_sm90a.cu. */
#ifndef CK_TWO_FOUR_WORKER_CUH
#define CK_TWO_FOUR_WORKER_CUH

#include "cuda/common/tma.cuh"
#include "cuda/sparse/two_four/two_four.cuh"
#include "cuda/sparse/two_four/two_four_wgmma.cuh"

namespace two_four {
namespace {

enum { GROUP = 128 };
enum {
    BAR_FULL  = 0,
    BAR_EMPTY = MAX_STAGES,
    BAR_UNIT  = 2 * MAX_STAGES,
    BAR_USED  = BAR_UNIT + 2 * MAX_RING,
    BAR_LEAD  = BAR_USED + 2 * MAX_RING,
    BARS
};
static_assert(BARS * 8 <= 1024, "barriers fit");

struct params {
    CUtensorMap      x[CK_TWO_FOUR_PHASES];
    ck_two_four_args a;
    ck_two_four_plan plan;
    layout           l;
    /* start of operand B in 16 bytes, times 4; + 1: the tap is the first of its phase; + 2: it is the last */
    int taps[CK_TWO_FOUR_TAPS];
    /* groups of the workers' blocks of channels; work items: groups x tiles */
    int k_groups, items;
};

#if CK_HAS_SM90A

struct item {
    int        tile;
    int64_t    block; /* the first worker's block of output channels */
    __device__ item(const params &p, int i) : tile(i / p.k_groups), block((int64_t)(i % p.k_groups) * p.plan.workers) {}
};

/* ---- loading ---- */

__device__ __forceinline__ void load_inputs(const params &p, uint32_t shared) {
    const ck_two_four_plan &plan  = p.plan;
    const uint32_t          bytes = (uint32_t)(plan.rows * plan.pitch * plan.images * POSITION);
    ck_ring_place           at;
    for (int i = (int)blockIdx.x; i < p.items; i += (int)gridDim.x) {
        const item it(p, i);
        const int  group = it.tile / plan.strips, row = (it.tile - group * plan.strips) * plan.TP + plan.low_r,
                  image = group * plan.images;
        for (int chunk = 0; chunk < plan.chunks; chunk++)
            for (int phase = 0; phase < plan.phases; phase++) {
                const uint32_t full = shared + 8 * (uint32_t)(BAR_FULL + at.at),
                               to   = shared + p.l.stages + (uint32_t)(at.at * plan.stage_bytes);
                ck_mbar_wait(full + 8 * (BAR_EMPTY - BAR_FULL), at.parity ^ 1);
                ck_mbar_expect(full, bytes);
                ck_tma_load_box(to, &p.x[phase], full, chunk * CK_TWO_FOUR_CHUNK, image, plan.low_s, row);
                at.next(plan.stages);
            }
    }
}

__device__ __forceinline__ void load_filter(const params &p, uint32_t shared, int worker) {
    const ck_two_four_plan &plan = p.plan;
    const uint32_t          ring = shared + p.l.ring + (uint32_t)(worker * plan.ring * UNIT_BYTES),
                   bars          = shared + 8 * (uint32_t)(BAR_UNIT + worker * MAX_RING);
    const int     units          = plan.taps * plan.chunks;
    ck_ring_place at;
    if (worker == 1 && plan.lead) ck_mbar_wait(shared + 8 * BAR_LEAD, 0);
    for (int i = (int)blockIdx.x; i < p.items; i += (int)gridDim.x) {
        int64_t block = item(p, i).block + worker;
        /* the results of a block that does not exist are not stored */
        if (block >= plan.blocks) block = plan.blocks - 1;
        for (int64_t unit = block * units; unit < (block + 1) * units; unit++) {
            const uint32_t full = bars + 8 * (uint32_t)at.at, to = ring + (uint32_t)(at.at * UNIT_BYTES);
            ck_mbar_wait(full + 8 * (BAR_USED - BAR_UNIT), at.parity ^ 1);
            ck_mbar_expect(full, UNIT_BYTES);
            ck_bulk_load(to, static_cast<const char *>(p.a.values) + unit * UNIT_VALUES, full, UNIT_VALUES);
            ck_bulk_load(to + UNIT_VALUES, reinterpret_cast<const char *>(p.a.places) + unit * UNIT_PLACES, full,
                         UNIT_PLACES);
            at.next(plan.ring);
        }
    }
}

/* ---- multiplying ---- */

/* A unit whose bytes have arrived: the lower halves of its operand descriptors, its metadata, and the barriers that
 * release it. empty is 0 when its stage has more units. */
struct operands {
    uint32_t a = 0, b = 0, places = 0, used = 0, empty = 0;
};

/* Operand A: 8x8 matrices of 128 bytes, contiguous along the rows; the next 8 columns of the sum are 1024 bytes
 * further. Operand B: swizzled rows of 128 bytes. */
__device__ __forceinline__ uint64_t filter_operand(uint32_t low) {
    return (uint64_t)(128 / 16) << 32 | low;
}
__device__ __forceinline__ uint64_t input_operand(uint32_t low) {
    return (uint64_t)(1024 / 16 | 1u << 30) << 32 | low;
}

template <typename T, int N> struct worker {
    const params  &p;
    const uint32_t shared, ring, bars;
    const int      worker_index, warp, lane;
    ck_ring_place  stage, unit; /* next stage and unit */
    /* units until the second worker starts; its barrier completes only once, so that no wait can miss it */
    int      tap    = 0, lead;
    uint32_t inputs = 0; /* lower half of the descriptor of the current stage */
    float    acc[N / 2];

    __device__ worker(const params &params_, uint32_t shared_, int worker_index_)
        : p(params_), shared(shared_),
          ring(shared_ + params_.l.ring + (uint32_t)(worker_index_ * params_.plan.ring * UNIT_BYTES)),
          bars(shared_ + 8 * (uint32_t)(BAR_UNIT + worker_index_ * MAX_RING)), worker_index(worker_index_),
          warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), lead(worker_index_ ? 0 : params_.plan.lead) {}

    __device__ __forceinline__ void fetch(operands &o) {
        const int      code = p.taps[tap];
        const uint32_t full = bars + 8 * (uint32_t)unit.at, at = ring + (uint32_t)(unit.at * UNIT_BYTES);
        if (code & 1) {
            ck_mbar_wait(shared + 8 * (uint32_t)(BAR_FULL + stage.at), stage.parity);
            inputs = (shared + p.l.stages + (uint32_t)(stage.at * p.plan.stage_bytes)) / 16 | 1u << 16;
        }
        o.a     = at / 16 | 1024 / 16 << 16;
        o.b     = inputs + (uint32_t)(code >> 2);
        o.used  = full + 8 * (BAR_USED - BAR_UNIT);
        o.empty = 0;
        if (code & 2) {
            o.empty = shared + 8 * (uint32_t)(BAR_EMPTY + stage.at);
            stage.next(p.plan.stages);
        }
        ck_mbar_wait(full, unit.parity);
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(o.places)
                     : "r"(at + (uint32_t)(UNIT_VALUES + (warp * CK_WARP + lane) * 4))
                     : "memory");
        unit.next(p.plan.ring);
        if (++tap == p.plan.taps) tap = 0;
    }
    __device__ __forceinline__ void multiply(const operands &o, int keep) {
        ck_wgmma_fence();
        sparse_product<T, N, 0>::add(acc, filter_operand(o.a), input_operand(o.b), o.places, keep);
        sparse_product<T, N, 1>::add(acc, filter_operand(o.a + 2 * 1024 / 16), input_operand(o.b + 64 / 16), o.places,
                                     1);
        ck_wgmma_commit();
    }
    __device__ __forceinline__ void release(const operands &o) {
        __syncwarp();
        if (lane == 0) {
            ck_mbar_arrive(o.used);
            if (o.empty) ck_mbar_arrive(o.empty);
            if (lead && --lead == 0) ck_mbar_arrive(shared + 8 * BAR_LEAD);
        }
    }
    /* Starts the next unit. Two units are in flight before; afterwards the older one is complete and is released. */
    __device__ __forceinline__ void step(operands &o, const operands &oldest) {
        fetch(o);
        multiply(o, 1);
        ck_wgmma_wait<2>();
        release(oldest);
    }
    /* Computes all units of a tile. Up to three units are in flight, so that the tensor cores do not wait for bytes;
     * the plan has enough stages. */
    __device__ __forceinline__ void accumulate() {
        const int units = p.plan.taps * p.plan.chunks;
        operands  x, y, z;
        int       left = units - 2;
        fetch(x);
        multiply(x, 0);
        if (units > 1) {
            fetch(y);
            multiply(y, 1);
        }
#pragma unroll 1
        for (; left > 2; left -= 3) {
            step(z, x);
            step(x, y);
            step(y, z);
        }
        if (left > 0) step(z, x);
        if (left > 1) step(x, y);
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        if (left > 1) release(z);
        if (left != 1) release(x);
        if (left == 0 || left == 1) release(y);
        if (left == 1) release(z);
    }
    /* ---- results: 64 pixels at a time through shared memory, in swizzled rows of 128 bytes ---- */

    __device__ __forceinline__ void barrier() const {
        ck_barrier(1 + worker_index, GROUP);
    }
    /* Output pixel of a column of the tile; -1: none. */
    __device__ __forceinline__ int64_t pixel_of(int column, int64_t first, int images, int rows) const {
        if (column >= N) return -1;
        int pixel, corner;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(pixel)
                     : "r"(shared + p.l.pixels + (uint32_t)column * 4)
                     : "memory");
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(corner)
                     : "r"(shared + p.l.corners + (uint32_t)column * 4)
                     : "memory");
        return pixel >= 0 && corner >> 16 < images && (corner & 0xffff) < rows ? first + pixel : -1;
    }
    __device__ __forceinline__ void write(const item &it, float bias0, float bias1) const {
        const ck_conv &c     = p.a.conv;
        const int      group = it.tile / p.plan.strips, row = (it.tile - group * p.plan.strips) * p.plan.TP;
        const int64_t  image = (int64_t)group * p.plan.images, first = (image * c.P + row) * c.Q;
        const int      images = (int)(c.N - image < p.plan.images ? c.N - image : p.plan.images);
        const int      rows   = (int)(c.P - row < p.plan.TP ? c.P - row : p.plan.TP);
        const int      thread = (int)threadIdx.x % GROUP, piece = thread % 8;
        const int64_t  k   = (it.block + worker_index) * CK_TWO_FOUR_ROWS + piece * 8;
        const uint32_t out = shared + p.l.out + (uint32_t)(worker_index * OUT_BYTES);
        const uint32_t mine =
            out + (uint32_t)(thread / 8 * 128 + (piece ^ thread / 8 % 8) * 16); /* for pixels thread/8 + 16*i */
        const uint32_t matrix =
            out + (uint32_t)((lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
        const float least = p.a.relu ? 0.0f : -INFINITY;
#pragma unroll
        for (int base = 0; base < N; base += OUT_PIXELS) {
            int64_t pixel[OUT_PIXELS / 16];
#pragma unroll
            for (int i = 0; i < OUT_PIXELS / 16; i++) {
                pixel[i] = k < c.K ? pixel_of(base + i * 16 + thread / 8, first, images, rows) : -1;
            }
            barrier();
            if (p.a.add) {
#pragma unroll
                for (int i = 0; i < OUT_PIXELS / 16; i++)
                    if (pixel[i] >= 0) {
                        const uint4 v =
                            *reinterpret_cast<const uint4 *>(static_cast<const T *>(p.a.add) + pixel[i] * c.K + k);
                        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(mine + (uint32_t)(i * 2048)),
                                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                                     : "memory");
                    }
                barrier();
            }
#pragma unroll
            for (int i = 0; i < OUT_PIXELS / 16; i++) {
                if (base + i * 16 >= N) continue;
                uint32_t r[4] = {0, 0, 0, 0};
                if (p.a.add) ck_ldmatrix_trans(r, matrix + (uint32_t)(i * 2048));
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int at = (base / 8 + i * 2 + j / 2) * 4 + j % 2 * 2;
                    if (at >= N / 2) continue;
                    const float  bias = j % 2 ? bias1 : bias0;
                    const float2 add  = ck_unpack_word<T>(r[j]);
                    r[j]              = ck_pack_word<T>(ck_at_least(acc[at] + bias + add.x, least),
                                           ck_at_least(acc[at + 1] + bias + add.y, least));
                }
                ck_stmatrix_trans(matrix + (uint32_t)(i * 2048), r);
            }
            barrier();
#pragma unroll
            for (int i = 0; i < OUT_PIXELS / 16; i++)
                if (pixel[i] >= 0) {
                    uint4 v;
                    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                                 : "r"(mine + (uint32_t)(i * 2048))
                                 : "memory");
                    ck_store_whole(static_cast<T *>(p.a.y) + pixel[i] * c.K + k, v);
                }
        }
    }

    __device__ __forceinline__ void run() {
        for (int i = (int)blockIdx.x; i < p.items; i += (int)gridDim.x) {
            const item    it(p, i);
            const int64_t k     = (it.block + worker_index) * CK_TWO_FOUR_ROWS + warp * 16 + lane / 4;
            const float   bias0 = p.a.bias && k < p.a.conv.K ? p.a.bias[k] : 0.0f,
                        bias1   = p.a.bias && k + 8 < p.a.conv.K ? p.a.bias[k + 8] : 0.0f;
            accumulate();
            write(it, bias0, bias1);
        }
    }
};

/* Clears the positions after the rows of each stage, which no load writes; stores the pixel of each column; initialises
 * the barriers. */
__device__ __forceinline__ void prepare(const params &p, unsigned char *memory, uint32_t shared) {
    const int from = p.plan.rows * p.plan.pitch * p.plan.images * POSITION;
    for (int s = 0; s < p.plan.stages; s++)
        for (int i = from + (int)threadIdx.x * 16; i < p.plan.stage_bytes; i += (int)blockDim.x * 16)
            *reinterpret_cast<uint4 *>(memory + p.l.stages + s * p.plan.stage_bytes + i) = make_uint4(0, 0, 0, 0);
    for (int j = (int)threadIdx.x; j < p.plan.columns; j += (int)blockDim.x) {
        const column c                                   = column_of(p.a.conv, p.plan, j);
        reinterpret_cast<int *>(memory + p.l.pixels)[j]  = c.pixel;
        reinterpret_cast<int *>(memory + p.l.corners)[j] = c.image << 16 | c.row;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < MAX_STAGES; i++) {
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_FULL + i), 1);
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_EMPTY + i), 4 * (uint32_t)p.plan.workers);
        }
        for (int i = 0; i < 2 * MAX_RING; i++) {
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_UNIT + i), 1);
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_USED + i), 4);
        }
        ck_mbar_init(shared + 8 * BAR_LEAD, 4);
        ck_mbar_init_fence();
    }
    ck_fence_async();
}

#endif

} // namespace
} // namespace two_four

#endif

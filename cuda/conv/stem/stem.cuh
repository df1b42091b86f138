/* cuda/conv/stem/stem.cuh: code that both kernels of cuda/conv/stem/stem_sm90a.cu share: division of the work, layout
 * of x in shared memory, the threads that load x.
 *
 * A line is up to 112 neighbouring pixels of a row of y. A block has consecutive lines, top to bottom, in runs of a few
 * lines of one image. A run of n lines needs n + 3 rows of x, 115 pixels wide; these rows are a stage of a ring.
 *
 * A row of x is stored as two planes, channels 0..7 and 8..15, with 16 bytes a pixel. So 8 neighbouring pixels of a
 * plane are one of the 8x8 matrices of 128 bytes that wgmma reads without a swizzle, at any starting pixel. Each of the
 * 16 filter positions is a product that reads the same bytes from another address, and x is stored once. */
#ifndef CK_STEM_CUH
#define CK_STEM_CUH

#include "cuda/common/fused_conv.h"
#include "cuda/common/hopper.cuh"

namespace {

enum {
    SIDE         = CK_STEM_SIDE,
    DEPTH        = CK_STEM_CHANNELS,
    TAPS         = SIDE * SIDE,
    LINE         = 112,             /* pixels */
    SPAN         = LINE + SIDE - 1, /* pixels of x below a line */
    COLUMNS      = 64,              /* channels of y that a block computes */
    PLANE_BYTES  = SPAN * 16,
    ROW_BYTES    = 2 * PLANE_BYTES,
    LINE_BYTES   = LINE * COLUMNS * 2,
    GROUP        = 128, /* threads of a warpgroup */
    WORKERS      = 2,   /* warpgroups that multiply */
    LOADERS      = 96,  /* threads that load x */
    THREADS      = (1 + WORKERS) * GROUP,
    X_STAGES     = 3,
    SHARED_LIMIT = 227 * 1024
};

struct shape {
    int N, H, W, P, Q, K;
    int segments, lines; /* of a row of y; of y */
};

#if CK_HAS_SM90A

/* The block's lines, in runs of at most MOST. */
template <int MOST> struct runs {
    int        line, end; /* first line of the run; end of the block's lines */
    int        count;     /* lines of the run */
    int        n, p, q;   /* first pixel of y */
    __device__ runs(const shape &s) {
        line = (int)((int64_t)s.lines * blockIdx.x / gridDim.x);
        end  = (int)((int64_t)s.lines * (blockIdx.x + 1) / gridDim.x);
        find(s);
    }
    __device__ __forceinline__ void find(const shape &s) {
        const int strip = line / s.P;
        p               = line - strip * s.P;
        n               = strip / s.segments;
        q               = (strip - n * s.segments) * LINE;
        count           = min(MOST, min(s.P - p, end - line));
    }
    __device__ __forceinline__ bool more() const { return line < end; }
    __device__ __forceinline__ void next(const shape &s) {
        line += count;
        find(s);
    }
};

/* A line of y or dy: channels from c on, pixels from q on of row `row` of all images. */
__device__ __forceinline__ void load_line(uint32_t to, const CUtensorMap *map, uint32_t bar, int c, int q, int row) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c), "r"(q), "r"(row)
                 : "memory");
}
__device__ __forceinline__ void store_line(const CUtensorMap *map, uint32_t from, int c, int q, int row) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(c), "r"(q), "r"(row)
                 : "memory");
}

/* Loads rows of x, run by run, as thread `thread` of the LOADERS; elements outside x are 0. A stage is signalled as
 * full when the copies of the next one have been issued. full, empty: the first of X_STAGES barriers. */
template <int MOST>
__device__ __forceinline__ void load_rows(const shape &s, const void *x, int thread, uint32_t to, uint32_t full,
                                          uint32_t empty) {
    const int64_t pitch = (int64_t)s.W * (DEPTH * 2);
    runs<MOST>    run(s);
    ck_ring_place at;
    int           before = -1;
    for (; run.more(); run.next(s)) {
        const char *from =
            static_cast<const char *>(x) + ((int64_t)run.n * s.H + run.p) * pitch + (int64_t)run.q * (DEPTH * 2);
        const uint32_t stage  = to + (uint32_t)(at.at * (MOST + SIDE - 1) * ROW_BYTES);
        const int      pieces = (run.count + SIDE - 1) * (2 * SPAN);
        ck_mbar_wait(empty + 8 * (uint32_t)at.at, at.parity ^ 1);
#pragma unroll 4
        for (int i = thread; i < pieces; i += LOADERS) {
            const int  row = i / (2 * SPAN), piece = i - row * (2 * SPAN), pixel = piece / 2;
            const bool inside = run.q + pixel < s.W;
            ck_copy16(stage + (uint32_t)((row * 2 + piece % 2) * PLANE_BYTES + pixel * 16),
                      inside ? from + row * pitch + piece * 16 : from, inside);
        }
        ck_copy_commit();
        if (before >= 0) {
            ck_copy_wait<1>();
            ck_fence_async();
            ck_mbar_arrive(full + 8 * (uint32_t)before);
        }
        before = at.at;
        at.next(X_STAGES);
    }
    ck_copy_wait<0>();
    ck_fence_async();
    if (before >= 0) ck_mbar_arrive(full + 8 * (uint32_t)before);
}

/* Descriptor of 8x8 matrices in unswizzled shared memory, 128 bytes each: `along` is the distance in bytes to the next
 * matrix along the reduced dimension, `across` to the next one across it. wgmma reads the halves of this descriptor
 * from registers that a warp has once: all lanes use the value of lane 0. */
struct matrices {
    uint32_t   low;
    uint64_t   high;
    __device__ matrices(uint32_t at, int first, int second)
        : low(__shfl_sync(0xffffffffu, at / 16 | (uint32_t)(first / 16) << 16, 0)),
          high((uint64_t)(second / 16) << 32) {}
    /* `bytes` further on. */
    __device__ __forceinline__ uint64_t at(int bytes) const { return high | (low + (uint32_t)(bytes / 16)); }
};

/* The two workers process lines alternately, and use the tensor cores in the same order: one multiplies while the other
 * does its remaining work. */
struct mma_order {
    uint32_t   mine, other, parity;
    __device__ mma_order(uint32_t bars, int me)
        : mine(bars + 8 * (uint32_t)me), other(bars + 8 * (uint32_t)((me + 1) % WORKERS)), parity(me == 0 ? 1 : 0) {}
    __device__ __forceinline__ void wait() {
        ck_mbar_wait(mine, parity);
        parity ^= 1;
    }
    __device__ __forceinline__ void pass() const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ck_mbar_arrive(other);
    }
};

/* Address of this lane's row of four 8x8 matrices in a line stored in TMA's layout (128-byte swizzle): 16 pixels of the
 * warp's 16 channels, in the order 8 pixels of channels 0..7, of 8..15, then the next 8 pixels. */
__device__ __forceinline__ uint32_t lane_row(int warp, int lane) {
    return (uint32_t)((lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
}

#endif

} // namespace

#endif

/* cuda/common/split_conv.cuh: convolutions of few pixels on compute capability 9.0, in 8 bits
 * (cuda/conv/int8/int8_split_sm90a.cu) and in 16 bits (cuda/conv/fused/split_conv_sm90a.cu).
 *
 * With one image a convolution of 7x7 pixels and 512 channels has 8 tiles of 64 x 64 outputs: 8 of 132 multiprocessors
 * would read the whole filter. Here a cluster of 1 to 8 blocks computes a tile of 64 x 64 or 64 x 32. Each block has a
 * part of the steps (a filter position and the channels of a row of shared memory), all of them in shared memory at
 * once. Then it sends its sums to the blocks that store them, 8 pixels each for 8 blocks, through distributed shared
 * memory. Every block adds the parts in the same order.
 *
 * Limiter: latency. From the end of the launch before, a block loads x, multiplies, sends, adds and stores; what does
 * not need x, the filter too, is done before. The blocks that send count their bytes at a barrier of the block that
 * stores, so no block waits until its own stores have arrived: a cluster barrier with this order takes 0.5 us.
 *
 * A kernel has a kind of tile (split_kind, with the product of two operands) and an output: load_coeffs(channel) before
 * the launch before has ended, load_add(round, at) and store(round, at, sum) of four neighbouring channels. */
#ifndef CK_SPLIT_CONV_CUH
#define CK_SPLIT_CONV_CUH

#include "cuda/common/conv_family.cuh"
#include "cuda/common/hopper_int8.cuh"
#include "cuda/common/tma.cuh"

namespace {

enum {
    SPLIT_ROWS    = 64, /* of a tile */
    SPLIT_UNITS   = 8,  /* of 8 rows: what a block sends to another */
    SPLIT_GROUPED = 64, /* columns whose order a packed filter changes (ck_int8_pack) */
    SPLIT_GROUP   = 128,
    SPLIT_THREADS = SPLIT_GROUP + 32, /* one warpgroup multiplies, one warp loads */
    SPLIT_STORE   = 1,                /* barrier of the warpgroup */
    SPLIT_LIMIT   = 227 * 1024
};

/* Offsets are into shared memory: the steps' tiles of x and of the filter are first. */
struct split_plan {
    CUtensorMap x, w;
    int         columns, parts;      /* of a tile; blocks of a cluster */
    int         most, steps, chunks; /* steps of a block at most; of a tile; over the channels */
    int         blocks_k, positions, K, P, Q, S, stride, pad;
    int         sums_at, bar_at, bytes;
    bool        by_pixel; /* x is loaded pixel by pixel (padding, stride), not as a matrix */
};

/* CHUNK: bytes of a row of shared memory; SIZE: of an element; SUM: int or float; PACKED: filters are in the order of
 * ck_int8_pack. */
template <int COLUMNS_, int PARTS_, int CHUNK_, int SIZE, class SUM, bool PACKED_> struct split_kind {
    using sum_type                = SUM;
    static constexpr int  COLUMNS = COLUMNS_, PARTS = PARTS_, CHUNK = CHUNK_, ELEMS = CHUNK_ / SIZE;
    static constexpr bool PACKED  = PACKED_;
    static constexpr int  X_BYTES = SPLIT_ROWS * CHUNK_, W_BYTES = COLUMNS_ * CHUNK_, UNIT_BYTES = 8 * COLUMNS_ * 4;
    static constexpr int  EACH   = SPLIT_UNITS / PARTS_; /* units that a block stores */
    static constexpr int  PIECES = COLUMNS_ / 16;        /* of four columns that a thread has of a row of the product */
    static constexpr int  ACROSS = COLUMNS_ / 4;         /* pieces of a row */
    static constexpr int  ONCE   = SPLIT_GROUP / ACROSS; /* rows that the warpgroup stores in a round */
    static constexpr int  ROUNDS = EACH * 8 > ONCE ? EACH * 8 / ONCE : 1;
};

#if CK_HAS_SM90A

/* This block's tile and steps. */
template <class KIND> struct split_share {
    int        rank, row, column, first, count;
    __device__ split_share(const split_plan &p) {
        const int tile = (int)blockIdx.x / KIND::PARTS;
        rank           = (int)blockIdx.x % KIND::PARTS;
        row            = tile / p.blocks_k * SPLIT_ROWS;
        column         = tile % p.blocks_k * KIND::COLUMNS;
        first          = p.steps * rank / KIND::PARTS;
        count          = p.steps * (rank + 1) / KIND::PARTS - first;
    }
};

/* Barrier `i` counts the bytes of step `i`: of x and of the filter. The one behind the last step counts sums. */
template <class KIND> struct split_loader {
    static constexpr uint32_t STEP_BYTES = KIND::X_BYTES + KIND::W_BYTES;
    const split_plan         &p;
    const split_share<KIND>   mine;
    const uint32_t            shared, bars;
    int                       c, r, s, w, h, n; /* of the first step: channels, filter position; pixel */
    __device__                split_loader(const split_plan &plan, uint32_t shared_)
        : p(plan), mine(plan), shared(shared_), bars(shared_ + (uint32_t)plan.bar_at) {}

    __device__ __forceinline__ void init() const {
        for (int i = 0; i <= p.most; i++) ck_mbar_init(bars + 8 * (uint32_t)i, 1);
        ck_mbar_init_fence();
        ck_fence_async();
        ck_tma_prefetch(&p.w);
        ck_tma_prefetch(&p.x);
        if (KIND::PARTS > 1) /* all sums that this block stores, but its own */
            ck_mbar_expect(bars + 8 * (uint32_t)p.most, (KIND::PARTS - 1) * KIND::EACH * KIND::UNIT_BYTES);
    }
    __device__ __forceinline__ void load_filter() const {
        for (int i = 0; i < mine.count; i++) {
            const uint32_t bar = bars + 8 * (uint32_t)i;
            ck_mbar_expect(bar, STEP_BYTES);
            ck_tma_load(shared + (uint32_t)i * STEP_BYTES + KIND::X_BYTES, &p.w, bar, (mine.first + i) * KIND::ELEMS,
                        mine.column);
        }
    }
    __device__ __forceinline__ void find() {
        const int tap = mine.first / p.chunks, line = mine.row / p.Q;
        c = mine.first - tap * p.chunks;
        r = tap / p.S;
        s = tap - r * p.S;
        n = line / p.P;
        w = (mine.row - line * p.Q) * p.stride - p.pad;
        h = (line - n * p.P) * p.stride - p.pad;
    }
    __device__ __forceinline__ void load_x() {
        for (int i = 0; i < mine.count; i++) {
            const uint32_t bar = bars + 8 * (uint32_t)i, to = shared + (uint32_t)i * STEP_BYTES;
            if (p.by_pixel)
                ck_tma_load_pixels(to, &p.x, bar, c * KIND::ELEMS, w, h, n, s, r);
            else
                ck_tma_load(to, &p.x, bar, c * KIND::ELEMS, mine.row);
            if (++c < p.chunks) continue;
            c = 0;
            if (++s < p.S) continue;
            s = 0;
            r++;
        }
    }
};

template <class KIND> struct split_worker {
    using sum_type = typename KIND::sum_type;
    const split_plan       &p;
    const split_share<KIND> mine;
    const int               thread, warp, lane;
    const uint32_t          shared, arrived; /* arrived: the barrier of the sums */
    sum_type                acc[KIND::COLUMNS / 2];

    __device__ split_worker(const split_plan &plan, uint32_t shared_)
        : p(plan), mine(plan), thread((int)threadIdx.x), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32),
          shared(shared_), arrived(shared_ + (uint32_t)(plan.bar_at + 8 * plan.most)) {}

    /* When sums are stored: the thread's piece of a row and the lane that had it, of the four that share the row. */
    __device__ __forceinline__ int piece() const {
        const int part = thread % KIND::ACROSS;
        return KIND::PACKED ? part % KIND::PIECES : part / 4;
    }
    __device__ __forceinline__ int of_four() const {
        const int part = thread % KIND::ACROSS;
        return KIND::PACKED ? part / KIND::PIECES : part % 4;
    }
    /* The first of the thread's four channels; row and pixel of y in a round. A packed piece has neighbouring channels;
     * without, it has two and two, and threads exchange them (sum). */
    __device__ __forceinline__ int channel() const {
        const int q = of_four();
        if (!KIND::PACKED) return mine.column + piece() * 16 + q % 2 * 8 + q / 2 * 4;
        return mine.column / SPLIT_GROUPED * SPLIT_GROUPED + q * 16 + mine.column % SPLIT_GROUPED / 4 + piece() * 4;
    }
    __device__ __forceinline__ int row(int round) const { return round * KIND::ONCE + thread / KIND::ACROSS; }
    __device__ __forceinline__ int pixel(int round) const { return mine.row + mine.rank * KIND::EACH * 8 + row(round); }
    __device__ __forceinline__ bool stores(int round) const {
        return row(round) < KIND::EACH * 8 && pixel(round) < p.positions && channel() < p.K;
    }
    /* Where the four channels are in y. */
    __device__ __forceinline__ int64_t at(int round) const { return (int64_t)pixel(round) * p.K + channel(); }

    __device__ __forceinline__ void multiply() {
        const uint32_t bars = shared + (uint32_t)p.bar_at;
        for (int i = 0; i < mine.count; i++) {
            const uint32_t x = shared + (uint32_t)(i * (KIND::X_BYTES + KIND::W_BYTES)), w = x + KIND::X_BYTES;
            ck_mbar_wait(bars + 8 * (uint32_t)i, 0);
            ck_wgmma_fence();
#pragma unroll
            for (int k = 0; k < KIND::CHUNK / 32; k++)
                KIND::product(acc, ck_operand_rows<KIND::CHUNK>(x) + 2 * k, ck_operand_rows<KIND::CHUNK>(w) + 2 * k,
                              i + k);
            ck_wgmma_commit();
        }
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
    }

    /* Where piece `i` of lane `from` is, of unit `number` in part `part` of the sums: a warp writes 512 neighbouring
     * bytes, and neighbouring threads that read a row use different banks. */
    __device__ __forceinline__ uint32_t place(int part, int number, int i, int from) const {
        const int moved = KIND::PACKED ? i * (8 / KIND::PIECES) : i % 2 * 4;
        return shared +
               (uint32_t)(p.sums_at + (part * KIND::EACH + number) * KIND::UNIT_BYTES + (i * 32 + (from ^ moved)) * 16);
    }
    /* Sends the sums of each unit to the block that stores it, and waits for those of the others. */
    __device__ __forceinline__ void exchange() const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int unit = warp * 2 + half, owner = unit / KIND::EACH;
#pragma unroll
            for (int i = 0; i < KIND::PIECES; i++) {
                const uint32_t *of = reinterpret_cast<const uint32_t *>(acc) + 8 * i + 2 * half;
                const uint32_t  to = place(mine.rank, unit % KIND::EACH, i, lane);
                const uint4     v  = make_uint4(of[0], of[1], of[4], of[5]);
                if (KIND::PARTS == 1 || owner == mine.rank)
                    ck_put16(to, v);
                else
                    ck_send_counted(ck_other_block(to, owner), ck_other_block(arrived, owner), v);
            }
        }
        ck_barrier(SPLIT_STORE, SPLIT_GROUP);
        if (KIND::PARTS > 1) ck_mbar_wait_cluster(arrived, 0);
    }

    /* sum[round] = the sums of the thread's four channels, over all parts. */
    __device__ __forceinline__ void add(sum_type (&sum)[KIND::ROUNDS][4]) const {
        uint4 part[KIND::ROUNDS][KIND::PARTS];
#pragma unroll
        for (int i = 0; i < KIND::ROUNDS; i++)
#pragma unroll
            for (int k = 0; k < KIND::PARTS; k++)
                part[i][k] = ck_get16(place(k, row(i) / 8 % KIND::EACH, piece(), row(i) % 8 * 4 + of_four()));
#pragma unroll
        for (int i = 0; i < KIND::ROUNDS; i++) {
#pragma unroll
            for (int k = 0; k < KIND::PARTS; k++) {
                const uint32_t word[4] = {part[i][k].x, part[i][k].y, part[i][k].z, part[i][k].w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const sum_type v = reinterpret_cast<const sum_type &>(word[e]);
                    sum[i][e]        = k ? sum[i][e] + v : v;
                }
            }
            if (KIND::PACKED) continue;
            /* two channels of eight and the same two of the next eight: pairs of threads make four neighbours */
            const bool odd = of_four() % 2;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const sum_type other              = __shfl_xor_sync(0xffffffffu, odd ? sum[i][e] : sum[i][e + 2], 1);
                (odd ? sum[i][e] : sum[i][e + 2]) = other;
            }
        }
    }
};

/* The kernel. */
template <class KIND, class Output> __device__ __forceinline__ void split_block(const split_plan &p, Output output) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const bool                                      loads  = (int)threadIdx.x == SPLIT_GROUP;
    split_loader<KIND>                              loader(p, shared);
    if (loads) {
        loader.init();
        loader.load_filter();
    }
    if (KIND::PARTS > 1)
        ck_cluster_begin(); /* blocks send to each other only after all have started */
    else
        __syncthreads();
    if (threadIdx.x >= SPLIT_GROUP) {
        if (loads) loader.find();
        ck_begin_after_last();
        if (loads) loader.load_x();
        return;
    }
    split_worker<KIND>      worker(p, shared);
    typename KIND::sum_type sum[KIND::ROUNDS][4];
    output.load_coeffs(worker.channel());
    ck_begin_after_last();
#pragma unroll
    for (int i = 0; i < KIND::ROUNDS; i++) output.load_add(i, worker.at(i), worker.stores(i));
    worker.multiply();
    worker.exchange();
    worker.add(sum);
#pragma unroll
    for (int i = 0; i < KIND::ROUNDS; i++)
        if (worker.stores(i)) output.store(i, worker.at(i), sum[i]);
}

#endif

/* ---- host side ---- */

/* Tiles of a launch: columns, blocks of a cluster. */
const struct split_config {
    int columns, parts;
} split_configs[] = {{64, 2}, {64, 4}, {64, 8}, {64, 1}, {32, 1}, {32, 2}};

/* Sets what depends on sizes; `elems` channels are `chunk` bytes. Returns false when the sizes are not supported. */
template <class Args>
bool split_make_plan(struct split_plan *p, const Args *a, const struct split_config &config, int elems, int chunk,
                     int multiprocessors) {
    const int64_t positions = a->N * a->P * a->Q, rows = (positions + SPLIT_ROWS - 1) / SPLIT_ROWS;
    if (a->C < elems || a->C % elems || a->K < 4 || a->K % 4 || a->R > 16 || a->S > 16 || a->stride > 8 || a->pad > 15)
        return false;
    if (a->C > 8192 || a->K > 8192 || positions < 1 || positions > 1 << 20) return false;
    p->columns  = config.columns;
    p->parts    = config.parts;
    p->chunks   = (int)a->C / elems;
    p->steps    = a->R * a->S * p->chunks;
    p->most     = (p->steps + p->parts - 1) / p->parts;
    p->blocks_k = (int)(a->K + SPLIT_GROUPED - 1) / SPLIT_GROUPED * (SPLIT_GROUPED / p->columns);
    if (p->steps < p->parts || rows * p->blocks_k * p->parts > 2 * multiprocessors) return false;
    p->sums_at   = p->most * (SPLIT_ROWS + p->columns) * chunk;
    p->bar_at    = p->sums_at + SPLIT_ROWS * p->columns * 4;
    p->bytes     = p->bar_at + 8 * (p->most + 1);
    p->positions = (int)positions;
    p->K         = (int)a->K;
    p->P         = (int)a->P;
    p->Q         = (int)a->Q;
    p->S         = a->S;
    p->stride    = a->stride;
    p->pad       = a->pad;
    p->by_pixel  = a->stride > 1 || a->pad > 0 || a->R > 1 || a->S > 1;
    return p->bytes <= SPLIT_LIMIT;
}
/* Stores plan number `number` of those that fit in *p, and returns their number up to there. number < 0: all. */
template <class Args>
int split_find_plan(struct split_plan *p, const Args *a, int number, int elems, int chunk, int multiprocessors) {
    int count = 0;
    for (const struct split_config &c : split_configs) {
        if (number >= 0 && count > number) break;
        if (split_make_plan(p, a, c, elems, chunk, multiprocessors)) count++;
    }
    return count;
}

template <class Params>
cudaError_t split_start(void (*kernel)(Params), const struct split_plan *plan, const Params &p, cudaStream_t stream) {
    const cudaError_t   error         = ck_allow_shared(kernel, plan->bytes);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t  config        = {};
    if (error != cudaSuccess) return error;
    attributes[0].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id                                         = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x                           = (unsigned)plan->parts;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    const int rows                                                  = (plan->positions + SPLIT_ROWS - 1) / SPLIT_ROWS;
    config.gridDim          = dim3((unsigned)(rows * plan->blocks_k * plan->parts));
    config.blockDim         = dim3(SPLIT_THREADS);
    config.dynamicSmemBytes = (size_t)plan->bytes;
    config.stream           = stream;
    config.attrs            = attributes;
    config.numAttrs         = 2;
    return cudaLaunchKernelEx(&config, kernel, p);
}

/* Calls start with the plan's tile:  start(split_tile<64, 2>()) */
template <int COLUMNS_, int PARTS_> struct split_tile { static constexpr int COLUMNS = COLUMNS_, PARTS = PARTS_; };
template <class Start> cudaError_t split_by_tile(const struct split_plan *p, const Start &start) {
    if (p->columns == 32) return p->parts == 1 ? start(split_tile<32, 1>()) : start(split_tile<32, 2>());
    switch (p->parts) {
    case 1: return start(split_tile<64, 1>());
    case 2: return start(split_tile<64, 2>());
    case 4: return start(split_tile<64, 4>());
    default: return start(split_tile<64, 8>());
    }
}

} // namespace

#endif

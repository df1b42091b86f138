/* cuda/sparse/wgmma_sp/wgmma_sp_sm90a.cu: see cuda/sparse/wgmma_sp/wgmma_sp.h: the kernel, on wgmma's sparse form.
 *
 * A tile's inputs lie in shared memory, 32 channels of one phase of the stride at a time, once for all taps: rows of
 * 128 bytes, a position each, which TMA brings as 32 f32 and some warps turn, where they lie, into 32 high parts and 32
 * low parts of f16. A tap is the same bytes from another position on; what is beside an image is a position of zeros.
 * Rows of images may be a column longer than y's: those columns are computed and dropped.
 *
 * A unit of the filter is three instructions, sparse or plain: low parts by high parts, high by low, high by high. The
 * tensor cores cut each sum off: of terms of one sign 54 units lost up to 1.7 times what f32 may on one H200. They sum
 * 8 units at most, then those sums are added in f32 and they begin anew, for which registers hold a tile's sums twice:
 * tiles have few columns.
 *
 * One or two blocks a multiprocessor, for the whole launch: 3, 6 or 9 warps that take numbers apart, beside each three
 * one that may load by TMA and bulk copies, inputs or a worker's filter, and 1 or 2 workers, each with 64 output
 * channels of the same tile. A worker's filter comes in a ring of units of its own, so that one may be ahead of the
 * other and multiplies while the other stores, straight to y: threads of a warp exchange sums, until each has four
 * neighbouring channels of a pixel, and four threads write 64 bytes of it.
 *
 * Where one round of tiles leaves multiprocessors idle, blocks are in pairs, a cluster each: both sum all of a tile's
 * outputs over half of the channels, then exchange sums through shared memory, and each writes half of the columns.
 *
 * Bytes: y once, the residual once, x once for every two blocks of output channels (from L2 but for the first), the
 * filter's units (4.3 KB for 64 x 32 weights) once a tile. Limiter: shared memory, 128 bytes a cycle: each position of
 * a chunk is 128 bytes that TMA writes, that are read and written when they are taken apart, and of which workers read
 * 192 for a sparse unit or for two plain ones; operands A, 6 KB a unit, and their arrival come on top.
 */
#include "cuda/sparse/two_four/two_four_wgmma.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp_load.cuh"

namespace wgmma_sp {
namespace {

#if CK_HAS_SM90A

/* ---- multiplying ---- */

/* A unit whose bytes have arrived: lower halves of its operands' descriptions, and the barriers at which it is given
 * back; empty 0: its stage has more units. */
struct operands {
    uint32_t a = 0, b = 0, places = 0, used = 0, empty = 0;
};

/* Where an operand begins, in 16 bytes. Of a cluster's second block addresses have bits beyond the 18 that a
 * description has. */
__device__ __forceinline__ uint32_t operand_at(uint32_t address) {
    return (address & 0x3ffffu) / 16;
}
/* Operand A: 8x8 matrices of 128 bytes, down the rows one after the other, the next 8 columns of the sum 1024 bytes
 * further. Operand B: swizzled rows of 128 bytes. */
__device__ __forceinline__ uint64_t filter_operand(uint32_t low) {
    return (uint64_t)(128 / 16) << 32 | low;
}
__device__ __forceinline__ uint64_t input_operand(uint32_t low) {
    return (uint64_t)(1024 / 16 | 1u << 30) << 32 | low;
}

/* PAIR: two blocks of a cluster each sum a part of the chunks. */
template <int N, bool PAIR> struct worker {
    const params  &p;
    const uint32_t shared, ring, bars;
    const int      me, warp, lane;
    ck_ring_place  stage, unit;             /* next */
    uint32_t       inputs = 0;              /* of the stage at hand: lower half of a description */
    float          scale  = 1;              /* of the sums: the inputs' */
    int            lead;                    /* units until the second worker begins */
    float          acc[N / 2], sums[N / 2]; /* of the last units; of those before */

    __device__ worker(const params &params_, uint32_t shared_, int me_)
        : p(params_), shared(shared_), ring(shared_ + params_.l.ring + (uint32_t)(me_ * params_.plan.ring * UNIT_SLOT)),
          bars(shared_ + 8 * (uint32_t)(BAR_UNIT + me_ * MAX_RING)), me(me_), warp((int)threadIdx.x / 32 % 4),
          lane((int)threadIdx.x % 32), lead(me_ == 0 ? params_.plan.lead : 0) {}

    /* The next stage's inputs; with another scale the sums so far follow it. first: there are none. */
    __device__ __forceinline__ void open(bool first) {
        ck_mbar_wait(shared + 8 * (uint32_t)(BAR_READY + stage.at), stage.parity);
        inputs          = operand_at(stage_at(p, shared, stage.at)) | 1u << 16;
        const float now = __uint_as_float(load_word(shared + p.l.scales + (uint32_t)(stage.at * 4)));
        if (!first && now != scale) {
            const float by = now / scale;
            ck_wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < N / 2; i++) acc[i] *= by, sums[i] *= by;
        }
        scale = now;
    }
    /* Gives what the unit begins: how many of its kind are summed together, and HEAD_PLAIN if they are plain. */
    __device__ __forceinline__ uint32_t fetch(operands &o, bool first) {
        const uint32_t full = bars + 8 * (uint32_t)unit.at, at = ring + (uint32_t)(unit.at * UNIT_SLOT);
        ck_mbar_wait(full, unit.parity);
        const uint32_t head = __shfl_sync(0xffffffffu, load_word(at + UNIT_HEAD), 0),
                       run  = __shfl_sync(0xffffffffu, load_word(at + UNIT_HEAD + 4), 0);
        o.places            = load_word(at + (uint32_t)(UNIT_PLACES + (warp * 16 + lane / 4 * 2 + lane % 2) * 4));
        if (head & HEAD_FIRST) open(first);
        o.a     = operand_at(at) | 1024 / 16 << 16;
        o.b     = inputs + (head & (HEAD_PLAIN - 1));
        o.used  = full + 8 * (BAR_USED - BAR_UNIT);
        o.empty = 0;
        if (head & (uint32_t)HEAD_LAST) {
            o.empty = shared + 8 * (uint32_t)(BAR_EMPTY + stage.at);
            stage.next(p.plan.stages);
        }
        unit.next(p.plan.ring);
        return run | (head & HEAD_PLAIN);
    }
    template <bool PLAIN>
    __device__ __forceinline__ void add_product(uint32_t a, uint32_t b, uint32_t places, int keep) {
        if (PLAIN)
            two_four::plain_product<N>::add(acc, filter_operand(a), input_operand(b), keep);
        else
            two_four::sparse_product<__half, N, 0>::add(acc, filter_operand(a), input_operand(b), places, keep);
    }
    template <bool PLAIN> __device__ __forceinline__ void multiply(const operands &o, int keep) {
        ck_wgmma_fence();
        add_product<PLAIN>(o.a + UNIT_PART / 16, o.b, o.places, keep);
        add_product<PLAIN>(o.a, o.b + 64 / 16, o.places, 1);
        add_product<PLAIN>(o.a, o.b, o.places, 1);
        ck_wgmma_commit();
    }
    __device__ __forceinline__ void give_back(const operands &o) {
        __syncwarp();
        if (lane == 0) {
            ck_mbar_arrive(o.used);
            if (o.empty) ck_mbar_arrive(o.empty);
            if (lead > 0 && --lead == 0) ck_mbar_arrive(shared + 8 * BAR_LEAD);
        }
    }
    /* The next unit; the one before it is done afterwards. */
    template <bool PLAIN> __device__ __forceinline__ void step(operands &o, const operands &before) {
        fetch(o, false);
        multiply<PLAIN>(o, 1);
        ck_wgmma_wait<1>();
        give_back(before);
    }
    /* Some units of one kind, two under way; into `acc`. x: the first, at hand. */
    template <bool PLAIN> __device__ __forceinline__ void sum_some(operands &x, int units) {
        operands y;
        int      left = units - 1;
        multiply<PLAIN>(x, 0);
#pragma unroll 1
        for (; left > 1; left -= 2) {
            step<PLAIN>(y, x);
            step<PLAIN>(x, y);
        }
        if (left > 0) step<PLAIN>(y, x);
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        if (left > 0)
            give_back(y);
        else
            give_back(x);
    }
    /* All units of a tile. */
    __device__ __forceinline__ void sum_up(int units) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] = sums[i] = 0;
#pragma unroll 1
        for (int done = 0; done < units;) {
            operands  x;
            const int head = fetch(x, done == 0), run = head & (HEAD_PLAIN - 1);
            if (head & HEAD_PLAIN)
                sum_some<true>(x, run);
            else
                sum_some<false>(x, run);
            done += run;
#pragma unroll
            for (int i = 0; i < N / 2; i++) sums[i] += acc[i];
        }
    }

    /* ---- results ---- */

    enum {
        HALF  = (N / 8 + 1) / 2,         /* of a tile's columns, by eights */
        LEAVE = PAIR ? (int)HALF : N / 8 /* from this block */
    };
    /* Both blocks of a pair have sums of all columns: each gets the other's of the half it keeps, the first block the
     * first, and adds them. They pass through the stages, of which no block has any use left when both are here. Warps
     * that feed do not wait: they end. */
    __device__ __forceinline__ void exchange(int part) {
        const uint32_t mine   = shared + p.l.stages + (uint32_t)((me * HALF * GROUP + (int)threadIdx.x % GROUP) * 16),
                       theirs = ck_other_block(mine, part ^ 1);
        const float by        = 1 / scale;
        scale                 = 1;
        ck_cluster_sync();
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float send[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float low  = sums[j * 4 + i] * by,
                            high = j + HALF < N / 8 ? sums[(j + HALF < N / 8 ? j + HALF : 0) * 4 + i] * by : 0.0f;
                send[i] = part ? low : high, sums[j * 4 + i] = part ? high : low;
            }
            ck_send_four(theirs + (uint32_t)(j * GROUP * 16), send);
        }
        ck_cluster_sync();
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float got[4];
            ck_unpack<float>(load_four(mine + (uint32_t)(j * GROUP * 16)), got);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[j * 4 + i] += got[i];
        }
    }

    /* Two output channels of this thread: what sums are multiplied by, what is added. */
    struct ends {
        float by[2], bias[2];
    };
    __device__ __forceinline__ ends ends_of(int64_t k) const {
        ends e;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool is = k + i * 8 < p.conv.K;
            e.by[i]       = is ? __ldg(p.a.filter.scale + k + i * 8) : 0.0f;
            e.bias[i]     = is && p.a.bias ? __ldg(p.a.bias + k + i * 8) : 0.0f;
        }
        return e;
    }
    /* Output pixel of a column of the tile; -1: none. */
    __device__ __forceinline__ int pixel_of(int column, int images, int rows) const {
        const int      pixel  = (int)load_word(shared + p.l.pixels + (uint32_t)column * 4);
        const uint32_t corner = load_word(shared + p.l.corners + (uint32_t)column * 4);
        return (int)(corner >> 16) < images && (int)(corner & 0xffff) < rows ? pixel : -1;
    }
    __device__ __forceinline__ static void swap_if(bool is, float &a, float &b) {
        const float x = a;
        a = is ? b : a, b = is ? x : b;
    }
    /* Of 16 channels by 8 columns a thread has channels r and r + 8, r its lane / 4, in two columns; then it has four
     * neighbouring channels, from lane % 4 * 4 on, in column lane / 4. In turn i all send value i ^ r % 4, which is one
     * thread's each time. */
    __device__ __forceinline__ void across(float (&v)[4]) const {
        const bool low = lane & 4, high = lane & 8, up = lane & 2;
        const int  from = (lane & 1) << 4 | (lane & 2) << 2 | (lane & 4) | lane >> 3;
        swap_if(low, v[0], v[1]), swap_if(low, v[2], v[3]);
        swap_if(high, v[0], v[2]), swap_if(high, v[1], v[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __shfl_sync(0xffffffffu, v[i], from ^ i << 2);
        swap_if(low, v[0], v[1]), swap_if(low, v[2], v[3]);
        swap_if(up, v[0], v[2]), swap_if(up, v[1], v[3]);
    }
    __device__ __forceinline__ static void store_if(bool is, const void *to, const float (&v)[4]) {
        asm volatile(
            "{\n.reg .pred is;\nsetp.ne.b32 is, %5, 0;\n@is st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
            "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"((int)is)
            : "memory");
    }
    /* LEAVE times 8 columns, from the `from`-th 8 on. */
    __device__ __forceinline__ void write(const item &it, const ends &e, int from) const {
        enum { TOGETHER = 4 };
        const ck_conv &c     = p.conv;
        const int      group = it.tile / p.plan.strips, row = (it.tile - group * p.plan.strips) * p.plan.TP;
        const int64_t  image = (int64_t)group * p.plan.images,
                      k      = (it.block + me) * CK_WGMMA_SP_ROWS + warp * 16 + lane % 4 * 4;
        const int64_t first  = (image * c.P + row) * c.Q * c.K + k;
        const int     images = k < c.K ? (int)(c.N - image < p.plan.images ? c.N - image : p.plan.images) : 0;
        const int     rows   = (int)(c.P - row < p.plan.TP ? c.P - row : p.plan.TP);
        const float by[2] = {e.by[0] / scale, e.by[1] / scale}, least = p.a.relu ? 0.0f : -INFINITY; /* powers of two */
        const char *y        = reinterpret_cast<const char *>(p.a.y + first),
                   *add      = reinterpret_cast<const char *>(p.a.add + first);
        const uint32_t pitch = (uint32_t)c.K * 4; /* bytes of a pixel */
#pragma unroll
        for (int base = 0; base < LEAVE; base += TOGETHER) {
            int    pixel[TOGETHER];
            float4 more[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                pixel[j] = base + j < LEAVE && from + base + j < N / 8
                               ? pixel_of((from + base + j) * 8 + lane / 4, images, rows)
                               : -1;
                more[j]  = make_float4(0, 0, 0, 0);
                if (p.a.add && pixel[j] >= 0)
                    more[j] = *reinterpret_cast<const float4 *>(add + (uint64_t)(uint32_t)pixel[j] * pitch);
            }
#pragma unroll
            for (int j = 0; j < TOGETHER && base + j < LEAVE; j++) {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = fmaf(sums[(base + j) * 4 + i], by[i / 2], e.bias[i / 2]);
                across(v);
                v[0] += more[j].x, v[1] += more[j].y, v[2] += more[j].z, v[3] += more[j].w;
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = ck_at_least(v[i], least);
                store_if(pixel[j] >= 0, y + (uint64_t)(uint32_t)pixel[j] * pitch, v);
            }
        }
    }

    __device__ __forceinline__ int units_of(int i) const {
        if (i >= p.items) return 0;
        const uint32_t *start = p.a.filter.start + block_of(p, item(p, i), me) * p.parts + part_of(p);
        return (int)(__ldg(start + 1) - __ldg(start));
    }
    __device__ __forceinline__ void run() {
        int units = units_of(first_item(p));
        if (me == 1 && p.plan.lead > 0) ck_mbar_wait(shared + 8 * BAR_LEAD, 0);
        for (int i = first_item(p); i < p.items; i += item_step(p)) {
            const item it(p, i);
            const int  next = units_of(i + item_step(p));
            const ends e    = ends_of((it.block + me) * CK_WGMMA_SP_ROWS + warp * 16 + lane / 4);
            sum_up(units);
            if (PAIR) exchange(part_of(p));
            write(it, e, PAIR ? part_of(p) * HALF : 0);
            units = next;
        }
    }
};

/* Each thread makes some of the barriers. */
template <int THREADS> __device__ __forceinline__ void make_barriers(const params &p, uint32_t shared) {
    static_assert(BARS <= THREADS, "one each");
    const int i = (int)threadIdx.x;
    if (i < BARS) {
        const bool by_worker = i >= BAR_EMPTY && i < BAR_AGAIN, by_warp = i >= BAR_USED || i == BAR_LEAD;
        ck_mbar_init(shared + 8 * (uint32_t)i, by_worker ? 4 * (uint32_t)p.plan.workers : by_warp ? 4 : 1);
        ck_mbar_init_fence();
    }
    if (i < p.plan.phases) ck_tma_prefetch(&p.x[i]);
}
/* The workers', while the first inputs are on their way: what no load writes, the positions behind a stage's rows, are
 * zeros for all time. And where columns' pixels are. */
template <int WORKERS> __device__ __forceinline__ void prepare(const params &p, unsigned char *memory) {
    for (int s = 0; s < p.plan.stages; s++)
        for (int i = (int)inputs_bytes(p) + (int)threadIdx.x * 16; i < p.plan.stage_bytes; i += WORKERS * GROUP * 16)
            *reinterpret_cast<uint4 *>(memory + p.l.stages + s * p.plan.stage_bytes + i) = make_uint4(0, 0, 0, 0);
    for (int j = (int)threadIdx.x; j < p.plan.columns; j += WORKERS * GROUP) {
        const two_four::column c                         = two_four::column_of(p.conv, p.plan, j);
        reinterpret_cast<int *>(memory + p.l.pixels)[j]  = c.pixel;
        reinterpret_cast<int *>(memory + p.l.corners)[j] = c.image << 16 | c.row;
    }
    ck_fence_async();
    ck_barrier(BARRIER_PREPARED, WORKERS * GROUP);
}

#endif

/* With few columns there may be two blocks. Sums decide how many registers a thread has, and so how many warps there
 * may be: beside the workers' one that may load and 3 that take numbers apart, GROUPS times. */
template <int N, int WORKERS> struct shares {
    enum {
        BLOCKS = WORKERS == 1 && N <= 128 ? 2 : 1,
        GROUPS = BLOCKS == 2                ? 1
                 : WORKERS == 1 || N <= 120 ? 3
                 : N <= 160                 ? 2
                                            : 1
    };
    /* Registers of a thread: as launched, and then; together no more than the block had. */
    enum {
        BEGIN  = 512 / BLOCKS / (GROUPS + WORKERS) / 8 * 8,
        FEEDER = WORKERS == 2 ? 56 : 88,
        DEEP   = FEEDER < 88 ? 2 : 4, /* positions that a thread takes apart at once */
        LEFT   = ((GROUPS + WORKERS) * BEGIN - GROUPS * FEEDER) / WORKERS / 8 * 8,
        WORKER = LEFT < 240 ? LEFT : 240
    };
    static_assert(WORKER >= N + 32, "sums stay in registers");
    static_assert(FEEDER <= BEGIN && BEGIN <= WORKER &&
                      WORKERS * WORKER + GROUPS * FEEDER <= (WORKERS + GROUPS) * BEGIN,
                  "there are so many");
};

template <int N, int WORKERS, bool PAIR>
__global__ void __launch_bounds__((shares<N, WORKERS>::GROUPS + WORKERS) * GROUP, shares<N, WORKERS>::BLOCKS)
    conv_kernel(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    make_barriers<(shares<N, WORKERS>::GROUPS + WORKERS) * GROUP>(p, shared);
    __syncthreads();
    const int     warp   = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    constexpr int GROUPS = shares<N, WORKERS>::GROUPS;
    const int     feeder = warp - WORKERS * GROUP / CK_WARP;
    if (feeder < 0) {
        ck_registers_increase<shares<N, WORKERS>::WORKER>();
        prepare<WORKERS>(p, memory);
        ck_begin_after_last();
        worker<N, PAIR>(p, shared, warp * CK_WARP / GROUP).run();
        return;
    }
    ck_registers_decrease<shares<N, WORKERS>::FEEDER>();
    ck_begin_after_last();
    if (feeder >= GROUPS)
        converter<GROUPS, shares<N, WORKERS>::DEEP>(p, shared, (int)threadIdx.x - WORKERS * GROUP - GROUPS * CK_WARP)
            .run();
    else if (threadIdx.x % CK_WARP == 0)
        load<GROUPS, WORKERS>(p, shared, feeder);
#else
    (void)p;
    __trap();
#endif
}

/* ---- the host's side ---- */

template <int N, int WORKERS, bool PAIR> cudaError_t launch(const params &p, int multiprocessors, cudaStream_t stream) {
    const auto        kernel = conv_kernel<N, WORKERS, PAIR>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.plan.shared_bytes);
    const int           most = multiprocessors * (p.plan.shared_bytes <= SHARED_HALF ? shares<N, WORKERS>::BLOCKS : 1);
    cudaLaunchAttribute how[2] = {};
    cudaLaunchConfig_t  config = {};
    if (e != cudaSuccess) return e;
    how[0].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[0].val.programmaticStreamSerializationAllowed = 1;
    how[1].id                                         = cudaLaunchAttributeClusterDimension;
    how[1].val.clusterDim.x                           = 2;
    how[1].val.clusterDim.y = how[1].val.clusterDim.z = 1;
    config.gridDim          = dim3((unsigned)(PAIR ? p.items * 2 : p.items < most ? p.items : most));
    config.blockDim         = dim3((shares<N, WORKERS>::GROUPS + WORKERS) * GROUP);
    config.dynamicSmemBytes = (size_t)p.plan.shared_bytes;
    config.stream           = stream;
    config.attrs            = how;
    config.numAttrs         = PAIR ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, p);
}
/* What the ways of the plan may have. */
template <int WORKERS, bool PAIR> cudaError_t launch_as(const params &p, int multiprocessors, cudaStream_t stream) {
    switch (p.plan.columns) {
    case 64:
        if constexpr (!PAIR) return launch<64, WORKERS, PAIR>(p, multiprocessors, stream);
        break;
    case 96: return launch<96, WORKERS, PAIR>(p, multiprocessors, stream);
    case 104: return launch<104, WORKERS, PAIR>(p, multiprocessors, stream);
    case 112: return launch<112, WORKERS, PAIR>(p, multiprocessors, stream);
    case 120: return launch<120, WORKERS, PAIR>(p, multiprocessors, stream);
    case 160: return launch<160, WORKERS, PAIR>(p, multiprocessors, stream);
    case 192: return launch<192, WORKERS, PAIR>(p, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t conv(const ck_wgmma_sp_args &args, const ck_wgmma_sp_plan &plan, int multiprocessors, cudaStream_t stream) {
    const ck_two_four_plan &tile = plan.tile;
    params                  p    = {{}, args, plan.conv, tile, layout(tile), 0, 0, plan.parts};
    p.k_groups                   = (int)((tile.blocks + tile.workers - 1) / tile.workers);
    p.items                      = p.k_groups * (int)tile.tiles;
    if (!two_four::map_inputs(plan.conv, tile, args.x, p.x)) return cudaErrorNotSupported;
    if (plan.parts == 2) return launch_as<2, true>(p, multiprocessors, stream);
    return tile.workers == 2 ? launch_as<2, false>(p, multiprocessors, stream)
                             : launch_as<1, false>(p, multiprocessors, stream);
}

} // namespace wgmma_sp

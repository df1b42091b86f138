/* cuda/sparse/wgmma_sp/wgmma_sp_worker.cuh: a multiplying warpgroup of the kernel in
 * cuda/sparse/wgmma_sp/wgmma_sp_sm90a.cu. */
#ifndef CK_WGMMA_SP_WORKER_CUH
#define CK_WGMMA_SP_WORKER_CUH

#include "cuda/sparse/two_four/two_four_wgmma.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp_load.cuh"

namespace wgmma_sp {
namespace {

#if CK_HAS_SM90A

/* ---- multiplying ---- */

/* A unit whose bytes have arrived: the lower halves of its operand descriptors, its metadata, and the barriers that
 * release it. empty is 0 when its stage has more units. */
struct operands {
    uint32_t a = 0, b = 0, places = 0, used = 0, empty = 0;
};

/* Start of an operand in 16 bytes. In the second thread block of a cluster, addresses have bits beyond the 18 bits of a
 * descriptor. */
__device__ __forceinline__ uint32_t operand_at(uint32_t address) {
    return (address & 0x3ffffu) / 16;
}
/* Operand A: 8x8 matrices of 128 bytes, contiguous along the rows; the next 8 columns of the sum are 1024 bytes
 * further. Operand B: swizzled rows of 128 bytes. */
__device__ __forceinline__ uint64_t filter_operand(uint32_t low) {
    return (uint64_t)(128 / 16) << 32 | low;
}
__device__ __forceinline__ uint64_t input_operand(uint32_t low) {
    return (uint64_t)(1024 / 16 | 1u << 30) << 32 | low;
}

/* PAIR: each of the two thread blocks of a cluster sums a part of the chunks. */
template <int N, bool PAIR> struct worker {
    const params  &p;
    const uint32_t shared, ring, bars;
    const int      worker_index, warp, lane;
    ck_ring_place  stage, unit;             /* next stage and unit */
    uint32_t       inputs = 0;              /* lower half of the descriptor of the current stage */
    float          scale  = 1;              /* scale of the sums, which is that of the inputs */
    int            lead;                    /* units until the second worker starts */
    float          acc[N / 2], sums[N / 2]; /* sums of the last units; sums of the units before */

    __device__ worker(const params &params_, uint32_t shared_, int worker_index_)
        : p(params_), shared(shared_),
          ring(shared_ + params_.l.ring + (uint32_t)(worker_index_ * params_.plan.ring * UNIT_SLOT)),
          bars(shared_ + 8 * (uint32_t)(BAR_UNIT + worker_index_ * MAX_RING)), worker_index(worker_index_),
          warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          lead(worker_index_ == 0 ? params_.plan.lead : 0) {}

    /* Waits for the next stage. When its scale differs, the sums are rescaled. first: there are no sums yet. */
    __device__ __forceinline__ void open_stage(bool first) {
        ck_mbar_wait(shared + 8 * (uint32_t)(BAR_READY + stage.at), stage.parity);
        inputs                = operand_at(stage_at(p, shared, stage.at)) | 1u << 16;
        const float new_scale = __uint_as_float(load_word(shared + p.l.scales + (uint32_t)(stage.at * 4)));
        if (!first && new_scale != scale) {
            const float by = new_scale / scale;
            ck_wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < N / 2; i++) acc[i] *= by, sums[i] *= by;
        }
        scale = new_scale;
    }
    /* Waits for the next unit. Returns the number of units of its kind that are summed together, and HEAD_DENSE if they
     * are dense. */
    __device__ __forceinline__ uint32_t fetch(operands &o, bool first) {
        const uint32_t full = bars + 8 * (uint32_t)unit.at, at = ring + (uint32_t)(unit.at * UNIT_SLOT);
        ck_mbar_wait(full, unit.parity);
        const uint32_t head = __shfl_sync(0xffffffffu, load_word(at + UNIT_HEAD), 0),
                       run  = __shfl_sync(0xffffffffu, load_word(at + UNIT_HEAD + 4), 0);
        o.places            = load_word(at + (uint32_t)(UNIT_PLACES + (warp * 16 + lane / 4 * 2 + lane % 2) * 4));
        if (head & HEAD_FIRST) open_stage(first);
        o.a     = operand_at(at) | 1024 / 16 << 16;
        o.b     = inputs + (head & (HEAD_DENSE - 1));
        o.used  = full + 8 * (BAR_USED - BAR_UNIT);
        o.empty = 0;
        if (head & (uint32_t)HEAD_LAST) {
            o.empty = shared + 8 * (uint32_t)(BAR_EMPTY + stage.at);
            stage.next(p.plan.stages);
        }
        unit.next(p.plan.ring);
        return run | (head & HEAD_DENSE);
    }
    template <bool DENSE>
    __device__ __forceinline__ void add_product(uint32_t a, uint32_t b, uint32_t places, int keep) {
        if (DENSE)
            ck_wgmma<__half, N>::template both<0>(acc, filter_operand(a), input_operand(b), keep);
        else
            two_four::sparse_product<__half, N, 0>::add(acc, filter_operand(a), input_operand(b), places, keep);
    }
    template <bool DENSE> __device__ __forceinline__ void multiply(const operands &o, int keep) {
        ck_wgmma_fence();
        add_product<DENSE>(o.a + UNIT_PART / 16, o.b, o.places, keep);
        add_product<DENSE>(o.a, o.b + 64 / 16, o.places, 1);
        add_product<DENSE>(o.a, o.b, o.places, 1);
        ck_wgmma_commit();
    }
    __device__ __forceinline__ void release(const operands &o) {
        __syncwarp();
        if (lane == 0) {
            ck_mbar_arrive(o.used);
            if (o.empty) ck_mbar_arrive(o.empty);
            if (lead > 0 && --lead == 0) ck_mbar_arrive(shared + 8 * BAR_LEAD);
        }
    }
    /* Starts the next unit. The unit before it is complete afterwards and is released. */
    template <bool DENSE> __device__ __forceinline__ void step(operands &o, const operands &before) {
        fetch(o, false);
        multiply<DENSE>(o, 1);
        ck_wgmma_wait<1>();
        release(before);
    }
    /* Sums `units` units of one kind in `acc`, with two in flight. x is the first unit, which has been fetched. */
    template <bool DENSE> __device__ __forceinline__ void accumulate_run(operands &x, int units) {
        operands y;
        int      left = units - 1;
        multiply<DENSE>(x, 0);
#pragma unroll 1
        for (; left > 1; left -= 2) {
            step<DENSE>(y, x);
            step<DENSE>(x, y);
        }
        if (left > 0) step<DENSE>(y, x);
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        if (left > 0)
            release(y);
        else
            release(x);
    }
    /* Computes all units of a tile. */
    __device__ __forceinline__ void accumulate(int units) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] = sums[i] = 0;
#pragma unroll 1
        for (int done = 0; done < units;) {
            operands  x;
            const int head = fetch(x, done == 0), run = head & (HEAD_DENSE - 1);
            if (head & HEAD_DENSE)
                accumulate_run<true>(x, run);
            else
                accumulate_run<false>(x, run);
            done += run;
#pragma unroll
            for (int i = 0; i < N / 2; i++) sums[i] += acc[i];
        }
    }

    /* ---- results ---- */

    enum {
        HALF           = (N / 8 + 1) / 2,         /* of a tile's columns, in groups of 8 */
        STORED_COLUMNS = PAIR ? (int)HALF : N / 8 /* columns that this thread block stores, in groups of 8 */
    };
    /* The factor and the bias of this thread's two output channels. */
    struct channel_params {
        float by[2], bias[2];
    };
    __device__ __forceinline__ channel_params channel_params_of(int64_t k) const {
        channel_params e;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool is = k + i * 8 < p.conv.K;
            e.by[i]       = is ? __ldg(p.a.filter.scale + k + i * 8) : 0.0f;
            e.bias[i]     = is && p.a.bias ? __ldg(p.a.bias + k + i * 8) : 0.0f;
        }
        return e;
    }
    /* Exchanges the sums of a pair of thread blocks, which both have sums of all columns. Each block receives the
     * other's sums of the half that it stores, the first block the first half, and adds them. The sums go through the
     * stages, which neither block still uses when both have arrived. The loading and converting warps have ended and do
     * not take part. The sums are multiplied by the factors of their channels first: this order overflows only where
     * the result does. */
    __device__ __forceinline__ void exchange(int part, channel_params &e) {
        const uint32_t own_slot = shared + p.l.stages +
                                  (uint32_t)((worker_index * HALF * GROUP + (int)threadIdx.x % GROUP) * 16),
                       other_block = ck_other_block(own_slot, part ^ 1);
        const float by[2]          = {e.by[0] / scale, e.by[1] / scale};
        scale = e.by[0] = e.by[1] = 1;
        ck_cluster_sync();
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float send[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float low = sums[j * 4 + i] * by[i / 2],
                            high =
                                j + HALF < N / 8 ? sums[(j + HALF < N / 8 ? j + HALF : 0) * 4 + i] * by[i / 2] : 0.0f;
                send[i] = part ? low : high, sums[j * 4 + i] = part ? high : low;
            }
            ck_send_four(other_block + (uint32_t)(j * GROUP * 16), send);
        }
        ck_cluster_sync();
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float received[4];
            ck_unpack<float>(load_four(own_slot + (uint32_t)(j * GROUP * 16)), received);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[j * 4 + i] += received[i];
        }
    }

    /* Output pixel of a column of the tile; -1: none. */
    __device__ __forceinline__ int pixel_of(int column, int images, int rows) const {
        const int      pixel  = (int)load_word(shared + p.l.pixels + (uint32_t)column * 4);
        const uint32_t corner = load_word(shared + p.l.corners + (uint32_t)column * 4);
        return (int)(corner >> 16) < images && (int)(corner & 0xffff) < rows ? pixel : -1;
    }
    __device__ __forceinline__ static void swap_if(bool condition, float &a, float &b) {
        const float x = a;
        a = condition ? b : a, b = condition ? x : b;
    }
    /* Transposes sums between the threads of a warp. Of 16 channels x 8 columns a thread has channels r and r + 8,
     * where r is lane/4, in two columns; afterwards it has four neighbouring channels, from lane%4*4 on, in column
     * lane/4. In step i each thread sends value i ^ r%4; each value has a single receiver. */
    __device__ __forceinline__ void transpose(float (&v)[4]) const {
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
    /* Stores STORED_COLUMNS x 8 columns, from column from*8 on. */
    __device__ __forceinline__ void write(const item &it, const channel_params &e, int from) const {
        enum { COLUMNS_IN_FLIGHT = 4 };
        const ck_conv &c     = p.conv;
        const int      group = it.tile / p.plan.strips, row = (it.tile - group * p.plan.strips) * p.plan.TP;
        const int64_t  image = (int64_t)group * p.plan.images,
                      k      = (it.block + worker_index) * CK_WGMMA_SP_ROWS + warp * 16 + lane % 4 * 4;
        const int64_t first  = (image * c.P + row) * c.Q * c.K + k;
        const int     images = k < c.K ? (int)(c.N - image < p.plan.images ? c.N - image : p.plan.images) : 0;
        const int     rows   = (int)(c.P - row < p.plan.TP ? c.P - row : p.plan.TP);
        /* the factors are powers of two */
        const float by[2] = {e.by[0] / scale, e.by[1] / scale}, least = p.a.relu ? 0.0f : -INFINITY;
        const char *y        = reinterpret_cast<const char *>(p.a.y + first),
                   *add      = reinterpret_cast<const char *>(p.a.add + first);
        const uint32_t pitch = (uint32_t)c.K * 4; /* bytes per pixel */
#pragma unroll
        for (int base = 0; base < STORED_COLUMNS; base += COLUMNS_IN_FLIGHT) {
            int    pixel[COLUMNS_IN_FLIGHT];
            float4 addend[COLUMNS_IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < COLUMNS_IN_FLIGHT; j++) {
                pixel[j]  = base + j < STORED_COLUMNS && from + base + j < N / 8
                                ? pixel_of((from + base + j) * 8 + lane / 4, images, rows)
                                : -1;
                addend[j] = make_float4(0, 0, 0, 0);
                if (p.a.add && pixel[j] >= 0)
                    addend[j] = *reinterpret_cast<const float4 *>(add + (uint64_t)(uint32_t)pixel[j] * pitch);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS_IN_FLIGHT && base + j < STORED_COLUMNS; j++) {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = fmaf(sums[(base + j) * 4 + i], by[i / 2], e.bias[i / 2]);
                transpose(v);
                v[0] += addend[j].x, v[1] += addend[j].y, v[2] += addend[j].z, v[3] += addend[j].w;
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = ck_at_least(v[i], least);
                store_if(pixel[j] >= 0, y + (uint64_t)(uint32_t)pixel[j] * pitch, v);
            }
        }
    }

    __device__ __forceinline__ int units_of(int i) const {
        if (i >= p.items) return 0;
        const uint32_t *start = p.a.filter.start + block_of(p, item(p, i), worker_index) * p.parts + part_of(p);
        return (int)(__ldg(start + 1) - __ldg(start));
    }
    __device__ __forceinline__ void run() {
        int units = units_of(first_item(p));
        if (worker_index == 1 && p.plan.lead > 0) ck_mbar_wait(shared + 8 * BAR_LEAD, 0);
        for (int i = first_item(p); i < p.items; i += item_step(p)) {
            const item     it(p, i);
            const int      next = units_of(i + item_step(p));
            channel_params e = channel_params_of((it.block + worker_index) * CK_WGMMA_SP_ROWS + warp * 16 + lane / 4);
            accumulate(units);
            if (PAIR) exchange(part_of(p), e);
            write(it, e, PAIR ? part_of(p) * HALF : 0);
            units = next;
        }
    }
};

#endif

} // namespace
} // namespace wgmma_sp

#endif

/* cuda/sparse/block/block_sparse_work.cuh: a multiplying warpgroup of the kernel in
 * cuda/sparse/block/block_sparse_sm90a.cu: products and results. */
#ifndef CK_BLOCK_SPARSE_WORK_CUH
#define CK_BLOCK_SPARSE_WORK_CUH

#include "cuda/sparse/block/block_sparse.cuh"

#if CK_HAS_SM90A

namespace {

/* Pixel of y of a tile's column, relative to the part's first pixel; NO_PIXEL: the column is not a pixel of y. */
enum { NO_PIXEL = INT32_MAX };
__device__ __forceinline__ int pixel_of_column(const params &p, int q) {
    if (p.loading != AS_PATCH) return q < p.plan.columns ? q : (int)NO_PIXEL;
    const int positions = p.plan.box * p.plan.pitch, image = q / positions, rest = q - image * positions;
    const int row = rest / p.plan.pitch, column = rest - row * p.plan.pitch;
    return image < p.plan.images && row < p.plan.rows && column < p.Q ? (image * p.P + row) * p.Q + column
                                                                      : (int)NO_PIXEL;
}

/* One warpgroup computes 64 output channels x COLUMNS pixels. A thread has channels lane/4 and lane/4 + 8 of its warp's
 * 16. */
template <typename T, int COLUMNS, int TEAMS> struct worker {
    static constexpr int PANELS = (COLUMNS + PANEL - 1) / PANEL, ACC = COLUMNS / 2;

    const params &p;
    const int     worker_index, team, part, warp, lane, thread;
    /* shared-memory addresses: this part in the first stage; this team's ring; this warpgroup's two output panels */
    uint32_t x_at, w_at, out_at;
    uint32_t pixel_at;       /* address of the pixel index of the thread's first column */
    uint32_t x_full, w_full; /* addresses of barriers */
    /* byte offset of the lane's row and 16 channels in 16 pixels of a panel, for stmatrix and ldmatrix with
     * transposition */
    uint32_t      transposed_at;
    ck_ring_place x, w; /* position of the next stage and of the next filter block */
    float         acc[ACC];

    __device__ worker(const params &params_, uint32_t shared, int worker_index_)
        : p(params_), worker_index(worker_index_), team(worker_index_ % TEAMS), part(worker_index_ / TEAMS),
          warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), thread((int)threadIdx.x % GROUP) {
        const struct ck_block_sparse_plan &plan = p.plan;
        const uint32_t                     bar  = shared + (uint32_t)plan.bar_at;
        const int                          half = lane / 8 % 2; /* selects 8 channels; lane / 16 selects 8 pixels */
        x_at                                    = shared + (uint32_t)(plan.x_at + part * plan.x_bytes);
        w_at          = shared + (uint32_t)(plan.w_at + team * plan.ring * CK_BLOCK_SPARSE_BYTES);
        out_at        = shared + (uint32_t)(plan.out_at + worker_index * 2 * PANEL_BYTES);
        pixel_at      = shared + (uint32_t)(plan.pixel_at + thread / 8 * 4);
        x_full        = bar + 8 * BAR_X_FULL;
        w_full        = bar + 8 * (uint32_t)(BAR_W_FULL + team * STAGES_MAX);
        transposed_at = (uint32_t)((lane / 16 * 8 + lane % 8) * ROW_BYTES + ((2 * warp + half) ^ lane % 8) * 16);
    }
    __device__ __forceinline__ void group_barrier() const { ck_barrier(1 + worker_index, GROUP); }

    /* ---- product ---- */

    __device__ __forceinline__ void release(uint32_t empty) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(empty);
    }
    __device__ __forceinline__ void release_x(int at) const {
        release(x_full + 8 * (uint32_t)(BAR_X_EMPTY - BAR_X_FULL + at));
    }
    __device__ __forceinline__ void release_w(int at) const {
        release(w_full + 8 * (uint32_t)(BAR_W_EMPTY - BAR_W_FULL + at));
    }
    /* Skips steps in which this team has no product. A stage must be full before it is released, because each round of
     * a barrier is counted once. */
    __device__ __forceinline__ void skip(int steps) {
        for (; steps > 0; steps--) {
            ck_mbar_wait(x_full + 8 * (uint32_t)x.at, x.parity);
            release_x(x.at);
            x.next(p.plan.stages);
        }
    }

    /* acc = sum of the `count` products of `entry`. One product is in flight while the next one is prepared. `steps` is
     * the number of steps of the tile. */
    __device__ __forceinline__ void multiply(const uint32_t *entry, int count, int steps) {
        int      now = 0, before_w = 0;
        uint32_t next = count ? __ldg(entry) : 0;
        for (int i = 0; i < count; i++) {
            const uint32_t one     = next;
            const int      advance = (int)(one >> 16), before_x = now;
            /* the filter block and the stage of the product in flight are not yet released */
            bool in_flight = i > 0;
            if (i + 1 < count) next = __ldg(entry + i + 1);
            if (advance > 0) {
                /* the next stage reuses the buffer of the stage in flight, or of a later one */
                if (in_flight && advance >= p.plan.stages) {
                    ck_wgmma_wait<0>();
                    release_w(before_w);
                    release_x(before_x);
                    in_flight = false;
                }
                skip(advance - 1);
                now = x.at;
                ck_mbar_wait(x_full + 8 * (uint32_t)x.at, x.parity);
                x.next(p.plan.stages);
                steps -= advance;
            }
            const uint64_t a = ck_operand(w_at + (uint32_t)(w.at * CK_BLOCK_SPARSE_BYTES)),
                           b = ck_operand(x_at + (uint32_t)(now * p.plan.parts * p.plan.x_bytes) +
                                          (one & 0xffffu) * ROW_BYTES);
            ck_mbar_wait(w_full + 8 * (uint32_t)w.at, w.parity);
            ck_wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; j++)
                ck_wgmma<T, COLUMNS>::template both<0>(acc, a + (uint64_t)(2 * j), b + (uint64_t)(2 * j), i + j > 0);
            ck_wgmma_commit();
            ck_wgmma_wait<1>();
            if (in_flight) {
                release_w(before_w);
                if (advance > 0) release_x(before_x);
            }
            before_w = w.at;
            w.next(p.plan.ring);
        }
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        if (count) {
            release_w(before_w);
            release_x(now);
        }
        skip(steps);
    }

    /* ---- results ---- */

    /* Destination of a tile: byte offset in y and add of the part's first pixel and this thread's eighth of 64
     * channels; number of pixels of y from that pixel on. */
    struct target {
        int64_t bytes;
        int     pixels;
    };
    __device__ __forceinline__ target target_of(int run, uint32_t block) const {
        int64_t first, left;
        if (p.loading != AS_PATCH) {
            first = (int64_t)run * COLUMNS;
            left  = p.pixels - first;
        } else {
            const int images = run / p.plan.strips, n = images * p.plan.images,
                      h = (run - images * p.plan.strips) * p.plan.rows;
            first       = ((int64_t)n * p.P + h) * p.Q;
            left        = p.plan.images > 1 ? p.pixels - first : (int64_t)(p.P - h) * p.Q;
        }
        return {(first * p.K + (int64_t)block * CK_BLOCK_SPARSE_SIDE) * 2 + thread % 8 * 16,
                (int)(left < NO_PIXEL ? left : (int64_t)NO_PIXEL)};
    }
    /* Piece j of the thread in a panel: 16 bytes of column thread/8 + 16*j. */
    __device__ __forceinline__ uint32_t piece_address(int panel, int j) const {
        const int row = thread / 8 + 16 * j;
        return out_at + (uint32_t)(panel % 2 * PANEL_BYTES + row * ROW_BYTES + (thread % 8 ^ row % 8) * 16);
    }
    __device__ __forceinline__ int pixel_of(int panel, int j) const {
        int pixel; /* volatile only for the order of issue: the table does not change */
        asm volatile("ld.shared.b32 %0, [%1];"
                     : "=r"(pixel)
                     : "r"(pixel_at + (uint32_t)((panel * PANEL + 16 * j) * 4)));
        return pixel;
    }

    /* Loads the addend of panel `panel` into the panel's buffer. A thread writes only where it alone has read. */
    __device__ __forceinline__ void load_add(const target &to, int panel) const {
        if (p.add && panel < PANELS) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int  pixel  = pixel_of(panel, j);
                const bool inside = pixel < to.pixels;
                ck_copy16(piece_address(panel, j), inside ? p.add + to.bytes + pixel * (p.K * 2) : p.add, inside);
            }
        }
        ck_copy_commit();
    }

    template <bool ADD> __device__ __forceinline__ void write_panel(int panel, const float (&bias)[2], float least) {
        const uint32_t to = out_at + (uint32_t)(panel % 2 * PANEL_BYTES) + transposed_at;
#pragma unroll
        for (int q = 0; q < PANEL / 16; q++) {
            uint32_t word[4], add[4]; /* [j]: j / 2 selects 8 pixels, j % 2 selects 8 channels */
            if (ADD) ck_ldmatrix_trans(add, to + (uint32_t)(q * 16 * ROW_BYTES));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = panel * (PANEL / 2) + q * 8 + j * 2;
                float2    v  = at < ACC ? make_float2(acc[at % ACC] + bias[j % 2], acc[(at + 1) % ACC] + bias[j % 2])
                                        : make_float2(0, 0);
                if (ADD) {
                    const float2 a = ck_pair<T>(add[j]);
                    v.x += a.x;
                    v.y += a.y;
                }
                word[j] = ck_pack_word<T>(ck_at_least(v.x, least), ck_at_least(v.y, least));
            }
            ck_stmatrix_trans(to + (uint32_t)(q * 16 * ROW_BYTES), word);
        }
    }

    __device__ __forceinline__ void store_panel(const target &to, int panel) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int   pixel = pixel_of(panel, j);
            const uint4 piece = ck_get16(piece_address(panel, j));
            if (pixel < to.pixels) ck_store_whole(p.y + to.bytes + pixel * (p.K * 2), piece);
        }
    }

    template <bool ADD> __device__ __forceinline__ void finish(const target &to, const float (&bias)[2]) {
        const float least = p.relu ? 0.0f : __int_as_float((int)0xff800000); /* -infinity */
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            if (ADD) {
                ck_copy_wait<1>();
                group_barrier();
            }
            write_panel<ADD>(panel, bias, least);
            group_barrier();
            store_panel(to, panel);
            if (ADD) load_add(to, panel + 2);
        }
        if (PANELS == 1) group_barrier(); /* the next tile begins with the same panel */
    }

    __device__ __forceinline__ void run() {
        for (scheduler scheduler(p); scheduler.more(); scheduler.next(p)) {
            const uint32_t  of = (uint32_t)(scheduler.group * TEAMS + team), block = p.table[p.list.block + of];
            const uint32_t *steps = p.table + p.list.steps + scheduler.group, *entries = p.table + p.list.entries + of;
            const int       my_run   = scheduler.part + part;
            const bool      no_block = block == UINT32_MAX;
            float           bias[2]  = {0.0f, 0.0f};
            if (p.bias && !no_block) {
                const float *from = p.bias + (int64_t)block * CK_BLOCK_SPARSE_SIDE + warp * 16 + lane / 4;
                bias[0]           = from[0];
                bias[1]           = from[8];
            }
            const target to = target_of(my_run, block);
            if (p.add && !no_block) {
                load_add(to, 0);
                load_add(to, 1);
            }
            multiply(p.table + p.list.entry + entries[0], (int)(entries[1] - entries[0]), (int)(steps[1] - steps[0]));
            if (no_block || my_run >= p.plan.runs) continue;
            if (p.add)
                finish<true>(to, bias);
            else
                finish<false>(to, bias);
        }
    }
};

} // namespace

#endif

#endif

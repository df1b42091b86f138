/* sparse_nm.cu: see sparse_nm.h. Plans, packing, and the kernel on mma.sp.
 *
 * The packed filter is operand A in the order of registers, which mma.sp and wgmma's sparse form share: a unit has of each of 2 steps and
 * each of 4 warps (16 output channels) the 32 lanes' 4 registers, then the words of metadata: lanes 0 and 1 of four have those of the
 * first step, 2 and 3 those of the second.
 *
 * The kernel here: a block makes 64 channels x 128 pixels; 4 warps have 32 pixels each. Inputs come by cp.async, a unit a stage; the
 * filter is read from the first-level cache. Limiter: those reads, and that a warp's loads of it are not ahead of its products. */
#include "sparse_nm.cuh"

#include <math.h>
#include <string.h>

namespace nm {
namespace {

/* ---- mma.sp ---- */

enum { PIXELS = 128, WARPS = 4, STAGES = 3, STAGE_BYTES = PIXELS * 128, MMA_BYTES = STAGES * STAGE_BYTES };
static_assert(PIXELS * OUT_ROW * 4 <= MMA_BYTES, "results fit");

__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* d[16][8] += a[16][32 sparse] b[32][8]; the metadata is in lanes 2*HALF and 2*HALF + 1 of each four. */
#define NM_MMA(type)                                                                                                               \
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, " \
                 "{%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"                                                                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                  \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places), "n"(HALF))
template <typename T, int HALF> struct product;
template <int HALF> struct product<__half, HALF> {
    static __device__ __forceinline__ void add(float (&d)[4], uint4 a, const uint32_t (&b)[4], uint32_t places) { NM_MMA("f16"); }
};
template <int HALF> struct product<__nv_bfloat16, HALF> {
    static __device__ __forceinline__ void add(float (&d)[4], uint4 a, const uint32_t (&b)[4], uint32_t places) { NM_MMA("bf16"); }
};
#undef NM_MMA

struct origin {
    int64_t base; /* of the image, pixels; -1: none */
    int     h, w;
};

/* Stage of unit `unit` (of all chunks): row = pixel, 16-byte chunk c of a row at c ^ (row % 8). */
__device__ __forceinline__ void stage_unit(const params &p, const origin *origins, uint32_t to, int unit) {
    const ck_conv &c = p.a.conv;
    const int      piece = (int)threadIdx.x % 8, of = unit * 2 + piece / 4, chunk = of / p.plan.steps, step = of - chunk * p.plan.steps;
    const int      groups = p.plan.chunk / CK_NM_STEP, tap = step / groups;
    const int      channel = chunk * p.plan.chunk + (step - tap * groups) * CK_NM_STEP + piece % 4 * 8, r = tap / c.S, s = tap - r * c.S;
    const bool     some = chunk < p.plan.chunks && channel < c.C;
#pragma unroll
    for (int i = 0; i < PIXELS / 16; i++) {
        const int    row = i * 16 + (int)threadIdx.x / 8;
        const origin o   = origins[row];
        const int    h = o.h + r, w = o.w + s;
        const bool   in = some && o.base >= 0 && h >= 0 && h < c.H && w >= 0 && w < c.W;
        const char  *x  = static_cast<const char *>(p.a.x);
        copy_piece(to + (uint32_t)(row * 128 + (piece ^ row % 8) * 16), in ? x + ((o.base + h * c.W + w) * c.C + channel) * 2 : x,
                   in ? 16 : 0);
    }
}

template <typename T, int HALF>
__device__ __forceinline__ void multiply_step(float (&sum)[4][4][4], const uint4 *unit, const uint32_t (&places)[4], uint32_t from) {
    const int lane = (int)threadIdx.x % CK_WARP, row = (int)threadIdx.x / CK_WARP * 32 + lane % 8;
    uint32_t  b[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        load_matrices(b[j], from + (uint32_t)((row + j * 8) * 128 + ((HALF * 4 + lane / 8) ^ row % 8) * 16));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 a = __ldg(unit + (HALF * 4 + i) * CK_WARP + lane);
#pragma unroll
        for (int j = 0; j < 4; j++) product<T, HALF>::add(sum[i][j], a, b[j], places[i]);
    }
}

template <typename T> __global__ void __launch_bounds__(WARPS *CK_WARP) conv_mma(const __grid_constant__ params p) {
    extern __shared__ __align__(128) char memory[];
    __shared__ origin                     origins[PIXELS];
    const ck_conv &c     = p.a.conv;
    const int      lane  = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int64_t  block = blockIdx.x % p.plan.blocks, first = blockIdx.x / p.plan.blocks * PIXELS;
    for (int i = (int)threadIdx.x; i < PIXELS; i += WARPS * CK_WARP) {
        const int64_t pixel = first + i, n = pixel / (c.P * c.Q), rest = pixel - n * (c.P * c.Q);
        origins[i].base = n < c.N ? n * c.H * c.W : -1;
        origins[i].h    = (int)(rest / c.Q) * c.stride - c.pad;
        origins[i].w    = (int)(rest % c.Q) * c.stride - c.pad;
    }
    __syncthreads();
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const int      units  = p.plan.units;
    const char    *filter = static_cast<const char *>(p.a.filter) + block * units * CK_NM_BYTES;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < units) stage_unit(p, origins, shared + (uint32_t)(i * STAGE_BYTES), i);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float sum[4][4][4] = {};
    for (int u = 0; u < units; u++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (u + STAGES - 1 < units) stage_unit(p, origins, shared + (uint32_t)((u + STAGES - 1) % STAGES * STAGE_BYTES), u + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint4    *unit  = reinterpret_cast<const uint4 *>(filter + (int64_t)u * CK_NM_BYTES);
        const uint32_t *words = reinterpret_cast<const uint32_t *>(unit + CK_NM_UNIT / 8) + lane;
        const uint32_t  places[4] = {__ldg(words), __ldg(words + 32), __ldg(words + 64), __ldg(words + 96)};
        const uint32_t  from      = shared + (uint32_t)(u % STAGES * STAGE_BYTES);
        multiply_step<T, 0>(sum, unit, places, from);
        multiply_step<T, 1>(sum, unit, places, from); /* of an odd last step the values are 0 */
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float *out = reinterpret_cast<float *>(memory);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[(warp * 32 + j * 8 + lane % 4 * 2 + e % 2) * OUT_ROW + i * 16 + e / 2 * 8 + lane / 4] = sum[i][j][e];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < PIXELS * 8; i += WARPS * CK_WARP) {
        const int64_t pixel = first + i / 8, k = block * CK_NM_ROWS + i % 8 * 8;
        if (pixel < c.N * c.P * c.Q && k < c.K) finish<T>(p.a, out + i / 8 * OUT_ROW + i % 8 * 8, pixel, k);
    }
}

template <typename T> cudaError_t launch_mma(const params &p, cudaStream_t stream) {
    const cudaError_t e = cudaFuncSetAttribute(conv_mma<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_BYTES);
    if (e != cudaSuccess) return e;
    conv_mma<T><<<(unsigned)(p.plan.tiles * p.plan.blocks), WARPS * CK_WARP, MMA_BYTES, stream>>>(p);
    return cudaGetLastError();
}

/* ---- values anew ---- */

__global__ void refresh(const uint16_t *dense, const uint32_t *from, uint16_t *packed, int64_t values) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < values; i += (int64_t)gridDim.x * blockDim.x) {
        const uint32_t at = from[i];
        packed[i / CK_NM_UNIT * (CK_NM_BYTES / 2) + i % CK_NM_UNIT] = at == UINT32_MAX ? (uint16_t)0 : dense[at];
    }
}

/* ---- plans ---- */

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum { SHARED_MOST = 227 * 1024, LEAST_RING = 6 };
const int COLUMNS[] = {56, 64, 120, 128, 208, 216, 232, 248, 256};

/* Taps and chunks. */
bool set_steps(const ck_conv &c, int chunk, ck_nm_plan *p) {
    const int64_t taps = (int64_t)c.R * c.S, steps = taps * (chunk / CK_NM_STEP);
    if (steps > CK_NM_STEPS) return false;
    p->chunk  = chunk;
    p->chunks = (int)ceil_div(c.C, chunk);
    p->steps  = (int)steps;
    p->units  = (p->chunks * p->steps + 1) / 2;
    p->blocks = ceil_div(c.K, CK_NM_ROWS);
    return true;
}

/* Positions of a tile of `images` images, or `rows` rows of one. A column of padding serves as the end of a row and the beginning of the
 * next one, a row of padding likewise between images, where the stride is 1. */
bool set_tile(const ck_conv &c, int images, int rows, ck_nm_plan *p) {
    const int    high = (c.R - 1) / c.stride, wide = (c.S - 1) / c.stride; /* how far taps reach within a phase */
    const bool   share = c.stride == 1 && c.pad > 0;
    const int    beside = share ? (c.pad < wide ? c.pad : wide) : 0, below = share ? (c.pad < high ? c.pad : high) : 0;
    const int64_t pitch = c.Q + wide - beside;
    int          columns = 0;
    p->linear     = false;
    p->images     = images;
    p->TP         = rows;
    p->strips     = (int)ceil_div(c.P, rows);
    p->image_rows = rows + high - (images > 1 ? below : 0);
    const int64_t used = ((int64_t)(images - 1) * p->image_rows + rows) * pitch - (pitch - c.Q);
    for (const int n : COLUMNS)
        if (!columns && used <= n) columns = n;
    if (!columns) return false;
    p->pitch     = (int)pitch;
    p->columns   = columns;
    p->phase_s   = c.stride < c.S ? c.stride : c.S;
    p->positions = ((images - 1) * p->image_rows + rows + high) * p->pitch + beside;
    p->staged    = p->positions * (c.stride < c.R ? c.stride : c.R) * p->phase_s;
    p->tiles     = ceil_div(c.N, images) * p->strips;
    return true;
}
bool set_line(const ck_conv &c, int columns, ck_nm_plan *p) {
    p->linear  = true;
    p->columns = p->staged = p->positions = columns;
    p->images = p->TP = p->pitch = p->image_rows = p->strips = p->phase_s = 1;
    p->tiles = ceil_div(c.N * c.P * c.Q, columns);
    return true;
}

/* Where each step's operand begins, and the plane: 8 (4) lanes that write the same position's pieces meet different banks. */
void set_places(const ck_conv &c, ck_nm_plan *p) {
    const int groups = p->chunk / CK_NM_STEP;
    int       most   = 0;
    for (int tap = 0; tap < p->steps / groups; tap++) {
        const int r = tap / c.S, s = tap % c.S, phase = r % c.stride * p->phase_s + s % c.stride;
        p->at[tap * groups] = phase * p->positions + r / c.stride * p->pitch + s / c.stride;
        if (p->at[tap * groups] > most) most = p->at[tap * groups];
    }
    p->plane = most + p->columns > p->staged ? most + p->columns : p->staged;
    while (p->plane % 8 != (groups == 1 ? 2 : 1)) p->plane++;
    for (int step = p->steps - 1; step >= 0; step--) p->at[step] = p->at[step / groups * groups] + step % groups * 4 * p->plane;
}

/* Rings, and cycles by counting what shared memory and tensor cores do; false: does not fit. */
bool set_rings(const ck_conv &c, int down, int across, int multiprocessors, ck_nm_plan *p) {
    const int workers = down * across, stage = across * p->chunk / 8 * p->plane * 16, unit = down * CK_NM_BYTES;
    const int fixed   = workers * OUT_BYTES + across * p->staged * 4 + 1024 + 16 * (MOST_STAGES + MOST_RING);
    p->down = down, p->across = across, p->stages = 0;
    for (int stages = MOST_STAGES; stages >= 2 && !p->stages; stages--) {
        const int room = (SHARED_MOST - fixed - stages * stage) / unit;
        if (room < LEAST_RING) continue;
        p->stages = stages;
        p->ring   = room < MOST_RING ? room : MOST_RING;
    }
    if (!p->stages) return false;
    p->shared_bytes = fixed + p->stages * stage + p->ring * unit;
    const double step    = p->columns * 64.0 + CK_NM_BYTES / 2 + (CK_NM_BYTES / 2.0) / across + /* bytes of a worker's step */
                        (double)p->staged * p->chunk * 2 / p->steps / down;
    const double busy    = fmax(step / 128, p->columns / 2.0) * p->steps * p->chunks, out = p->columns * 14.0;
    const double mine    = busy * workers + (workers == 1 ? out + 1500 : out), fetch = (double)p->steps * p->chunks / 2 * unit + (double)p->chunks * stage;
    const int64_t all    = ceil_div(p->blocks, down) * ceil_div(p->tiles, across);
    p->cycles = (double)ceil_div(all, multiprocessors) * fmax(mine, fetch / 24) + 4000;
    return (int64_t)p->blocks * p->tiles < (int64_t)1 << 30;
}

/* A way: warpgroups, and whether they have blocks of channels or tiles beside each other; least columns of a tile's instruction. */
struct cut {
    int down, across, chunk, least, most;
};
const cut CUTS[] = {{1, 2, 64, 200, 256}, {2, 1, 64, 200, 256}, {1, 1, 64, 200, 256}, {1, 2, 64, 100, 128}, {2, 1, 64, 100, 128},
                    {1, 1, 64, 100, 128}, {1, 1, 64, 1, 64},    {2, 1, 32, 200, 256}, {1, 1, 32, 200, 256}, {2, 1, 32, 100, 128},
                    {1, 2, 32, 100, 128}, {1, 1, 32, 100, 128}, {1, 1, 32, 1, 64}};
const int CUT_COUNT = (int)(sizeof CUTS / sizeof *CUTS);

/* The tile of this cut with the fewest cycles. */
bool plan_wgmma(const ck_conv &c, const cut &cut, int multiprocessors, ck_nm_plan *best) {
    const bool line = c.R == 1 && c.S == 1 && c.pad == 0;
    bool       any  = false;
    for (int of = 0; of < (line ? 3 : (int)c.P + 8); of++) {
        ck_nm_plan p = {};
        p.wgmma      = true;
        if (!set_steps(c, cut.chunk, &p) || p.steps < 2) return false; /* a unit that ends two stages would wait for itself */
        const int images = of < 8 ? of + 1 : 1, rows = of < 8 ? (int)c.P : of - 7;
        if (line ? !set_line(c, 64 << of, &p) : !set_tile(c, images, rows, &p)) continue;
        if (p.columns < cut.least || p.columns > cut.most) continue;
        set_places(c, &p);
        if (p.plane > 16383 || !set_rings(c, cut.down, cut.across, multiprocessors, &p)) continue;
        if (!any || p.cycles < best->cycles) *best = p, any = true;
    }
    return any;
}

bool plan_mma(const ck_conv &c, int multiprocessors, ck_nm_plan *p) {
    *p = {};
    if (!set_steps(c, c.C > 32 ? 64 : 32, p) && !set_steps(c, 32, p)) return false;
    set_line(c, PIXELS, p);
    p->down = p->across = 1;
    p->shared_bytes     = MMA_BYTES;
    p->cycles = (double)ceil_div(p->tiles * p->blocks, multiprocessors) * ((double)p->steps * p->chunks * 160 + 4000) + 3000;
    return p->tiles * p->blocks < (int64_t)1 << 31;
}

} // namespace
} // namespace nm

int ck_nm_ways(void) { return 1 + nm::CUT_COUNT; }

bool ck_nm_make(const struct ck_conv *conv, int way, int capability, int multiprocessors, struct ck_nm_plan *plan) {
    const int64_t side = 1 << 20;
    if (way < 0 || way > ck_nm_ways() || conv->type == CK_F32 || capability < 80 || conv->C % 8 || conv->K % 8) return false;
    if (conv->H > side || conv->W > side || conv->N * conv->H * conv->W >= (int64_t)1 << 31 || conv->N * conv->P * conv->Q >= (int64_t)1 << 31)
        return false;
    if (way == 1) return nm::plan_mma(*conv, multiprocessors, plan);
    bool any = way == 0 && nm::plan_mma(*conv, multiprocessors, plan);
    for (int i = 0; i < nm::CUT_COUNT && capability == 90; i++) {
        struct ck_nm_plan p;
        if ((way && i != way - 2) || !nm::plan_wgmma(*conv, nm::CUTS[i], multiprocessors, &p)) continue;
        if (!any || p.cycles < plan->cycles) *plan = p, any = true;
    }
    return any;
}

size_t ck_nm_packed_bytes(const struct ck_nm_plan *plan) {
    return (size_t)plan->blocks * (size_t)plan->units * CK_NM_BYTES;
}
int64_t ck_nm_packed_values(const struct ck_nm_plan *plan) {
    return plan->blocks * plan->units * CK_NM_UNIT;
}

/* The two kept elements of 4 channels from c on of row k's tap: values, places, dense elements; none beyond the filter. */
struct pair_of_four {
    uint16_t value[2];
    uint32_t from[2];
    unsigned places;
};
static pair_of_four find_pair(const struct ck_conv *conv, const uint16_t *values, const uint16_t *places, int64_t k, int64_t tap, int64_t c) {
    pair_of_four  two = {{0, 0}, {UINT32_MAX, UINT32_MAX}, 4}; /* places 0 and 1 */
    const int64_t c16 = (conv->C + 15) / 16 * 16, column = tap * c16 + c, columns = (int64_t)conv->R * conv->S * c16;
    if (k >= conv->K || c >= conv->C) return two;
    two.places = (unsigned)places[(k * columns + column) / 16] >> column % 16 & 15u;
    for (int i = 0; i < 2; i++) {
        const int64_t channel = c + (two.places >> 2 * i & 3u);
        two.value[i]          = values[(k * columns + column) / 2 + i];
        if (channel < conv->C) two.from[i] = (uint32_t)((k * conv->R * conv->S + tap) * conv->C + channel);
    }
    return two;
}

/* Step `of` of all chunks: its 16 x 32 elements for each warp. */
static void pack_step(const struct ck_conv *conv, const struct ck_nm_plan *plan, const uint16_t *values, const uint16_t *places, int64_t block,
                      int of, uint16_t *packed, uint32_t *words, uint32_t *from) {
    const int     groups = plan->chunk / CK_NM_STEP, half = of % 2, chunk = of / plan->steps, step = of % plan->steps;
    const int64_t tap = step / groups, c0 = (int64_t)chunk * plan->chunk + step % groups * CK_NM_STEP;
    for (int row = 0; row < CK_NM_ROWS; row++)
        for (int four = 0; four < CK_NM_STEP / 4; four++) {
            const int64_t      k    = chunk < plan->chunks ? block * CK_NM_ROWS + row : conv->K;
            const pair_of_four two  = find_pair(conv, values, places, k, tap, c0 + four * 4);
            const int          warp = row / 16, lane = row % 8 * 4 + four % 4, reg = row % 16 / 8 + four / 4 * 2;
            const int          at = ((half * 4 + warp) * CK_WARP + lane) * 8 + reg * 2;
            for (int i = 0; i < 2; i++) {
                packed[at + i] = two.value[i];
                if (from) from[at + i] = two.from[i];
            }
            words[warp * CK_WARP + row % 8 * 4 + half * 2 + four / 4] |= two.places << (four % 4 * 4 + row % 16 / 8 * 16);
        }
}

void ck_nm_pack(const struct ck_conv *conv, const struct ck_nm_plan *plan, const uint16_t *values, const uint16_t *places, void *packed,
                uint32_t *from) {
    for (int64_t i = 0; i < plan->blocks * plan->units; i++) {
        unsigned char *unit  = static_cast<unsigned char *>(packed) + i * CK_NM_BYTES;
        uint32_t      *words = reinterpret_cast<uint32_t *>(unit + CK_NM_UNIT * 2);
        memset(words, 0, CK_NM_WORDS * 4);
        for (int half = 0; half < 2; half++)
            pack_step(conv, plan, values, places, i / plan->units, (int)(i % plan->units) * 2 + half, reinterpret_cast<uint16_t *>(unit), words,
                      from ? from + i * CK_NM_UNIT : nullptr);
    }
}

cudaError_t ck_nm_refresh(const struct ck_nm_plan *plan, const void *dense, const uint32_t *from, void *packed, cudaStream_t stream) {
    const int64_t values = ck_nm_packed_values(plan), blocks = (values + 1023) / 1024;
    nm::refresh<<<(unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, stream>>>(static_cast<const uint16_t *>(dense), from,
                                                                                static_cast<uint16_t *>(packed), values);
    return cudaGetLastError();
}

cudaError_t ck_nm_conv(const struct ck_nm_args *args, const struct ck_nm_plan *plan, int multiprocessors, cudaStream_t stream) {
    nm::params p = {};
    p.a          = *args;
    p.plan       = *plan;
    p.k_groups   = (int)nm::ceil_div(plan->blocks, plan->down);
    p.groups     = (int)nm::ceil_div(plan->tiles, plan->across);
    if (plan->wgmma) return nm::conv_wgmma(p, multiprocessors, stream);
    if (args->conv.type == CK_F16) return nm::launch_mma<__half>(p, stream);
    if (args->conv.type == CK_BF16) return nm::launch_mma<__nv_bfloat16>(p, stream);
    return cudaErrorInvalidValue;
}

/* cuda/sparse/block/block_sparse_sm90a.cu: the kernel and the plans of cuda/sparse/block/block_sparse.h.
 *
 * Bytes: x and y from memory once, 2*(C + K) per pixel, and add; x from L2 once per group of output channels and step,
 * 2*64 bytes per pixel and step, or with patches (1 + 2/rows) times as many for all nine taps; 8 KB per nonzero block
 * and tile. Floating-point operations: 2*4096 per pixel and nonzero block. Limiter: memory where few blocks are
 * nonzero, otherwise the tensor cores.
 *
 * A multiprocessor runs one thread block, or two with one multiplying warpgroup each, for the whole launch. A thread
 * block has TEAMS x PARTS warpgroups that multiply and two threads that load (TMA). The filter is wgmma's operand A, 64
 * output x 64 input channels; pixels are operand B, so that a block of 64 channels fills the tensor cores. Each team
 * has its own list of nonzero blocks and its own ring of them. All teams share the stages of x; a team skips the stages
 * that it does not need. Otherwise warpgroups do not wait for each other: while one stores, another one multiplies.
 * Results are transposed through shared memory, 64 pixels at a time; `add` is loaded there in advance. */
#include "cuda/common/tma.cuh"
#include "cuda/sparse/block/block_sparse_work.cuh"

namespace {

/* setmaxnreg works on whole warpgroups. In configurations without setmaxnreg, two warps load. */
constexpr int threads_of(int workers) {
    return workers * GROUP + (workers > 1 ? (int)GROUP : 64);
}

#if CK_HAS_SM90A
/* Clears the positions after a patch, which no load writes: the padding right of its last row and below a whole image.
 */
__device__ __forceinline__ void clear_ends(const params &p, uint32_t shared) {
    const int used = p.plan.box * p.plan.pitch * p.plan.images * ROW_BYTES, rest = (p.plan.x_bytes - used) / 16;
    for (int i = (int)threadIdx.x; i < rest * p.plan.stages * p.plan.parts; i += (int)blockDim.x) {
        const uint32_t at = shared + (uint32_t)(p.plan.x_at + i / rest * p.plan.x_bytes + used + i % rest * 16);
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
}
__device__ __forceinline__ void list_pixels(const params &p, uint32_t shared) {
    for (int q = (int)threadIdx.x; q < PIXELS_MAX; q += (int)blockDim.x) {
        const uint32_t at = shared + (uint32_t)(p.plan.pixel_at + q * 4);
        ck_put4(at, (uint32_t)pixel_of_column(p, q));
    }
}
#endif

template <typename T, int COLUMNS, int TEAMS, int PARTS>
__global__ void __launch_bounds__(threads_of(TEAMS *PARTS), TEAMS *PARTS == 1 ? 2 : 1)
    block_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bar = shared + (uint32_t)p.plan.bar_at;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES_MAX; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_X_FULL + i), 1);
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_X_EMPTY + i), 4 * TEAMS * PARTS); /* warps that read the stage */
        }
        for (int i = 0; i < TEAMS_MAX * STAGES_MAX; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_W_FULL + i), 1);
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_W_EMPTY + i), 4 * PARTS);
        }
        ck_mbar_init_fence();
    }
    if (p.loading == AS_PATCH) clear_ends(p, shared);
    list_pixels(p, shared);
    ck_fence_async();
    __syncthreads();
    constexpr int WORKERS = TEAMS * PARTS;
    const int     group = (int)threadIdx.x / GROUP, loader = (int)threadIdx.x - WORKERS * GROUP;
    if (group < WORKERS) {
        if (WORKERS > 1) ck_registers_increase<WORKERS == 4 ? 112 : 232>();
        worker<T, COLUMNS, TEAMS> worker(p, shared, group);
        worker.run();
    } else {
        if (WORKERS > 1) ck_registers_decrease<WORKERS == 4 ? 32 : 40>();
        if (loader == 0) load_x(p, shared);
        if (loader == 32) load_w(p, shared);
    }
#else
    __trap();
#endif
}

/* One thread block packs one filter block; a thread moves 16 bytes at a time. */
__global__ void __launch_bounds__(GROUP) block_pack(const uint4 *w, const uint32_t *from, uint4 *packed, int64_t row) {
    const uint32_t first = from[blockIdx.x];
    for (int i = (int)threadIdx.x; i < CK_BLOCK_SPARSE_BYTES / 16; i += GROUP) {
        const int   k = i / 8, c = i % 8;
        const uint4 zeros = make_uint4(0, 0, 0, 0);
        packed[(int64_t)blockIdx.x * (CK_BLOCK_SPARSE_BYTES / 16) + k * 8 + (c ^ k % 8)] =
            first == UINT32_MAX ? zeros : w[first / 8 + k * row + c];
    }
}

/* ---- tile configs and plans ---- */

struct tile_config {
    int  teams, parts, columns;
    bool patch; /* with patch, `columns` is the maximum */
};
const struct tile_config tile_configs[] = {
    {2, 1, 256, true},  {1, 2, 256, true},  {1, 2, 128, true},  {1, 1, 128, true},  {2, 1, 256, false},
    {4, 1, 128, false}, {1, 2, 256, false}, {2, 1, 128, false}, {1, 2, 128, false}, {2, 1, 64, false},
    {1, 2, 64, false},  {1, 1, 256, false}, {1, 1, 64, false},
};
enum { CONFIG_COUNT = sizeof tile_configs / sizeof *tile_configs, MIN_RING = 3, MIN_STAGES = 2 };

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Positions from the first pixel of y in a patch to its last. One row of zeros below a whole image is also the row
 * above the next image. */
int64_t positions(const struct ck_conv *c, int rows, int images) {
    return ((int64_t)(images - 1) * (rows + 1) + rows - 1) * (c->Q + 1) + c->Q;
}

/* Chooses the rows and images of a part. One zero between two rows is enough: it is right of one row and left of the
 * next. */
bool cut_patch(struct ck_block_sparse_plan *p, const struct ck_conv *c) {
    static const int widths[] = {64, 120, 128, 208, 216, 232, 256};
    if (c->stride != 1 || c->R != 3 || c->S != 3 || c->pad != 1) return false;
    p->pitch = (int)c->Q + 1;
    if (p->pitch > 256 || positions(c, 1, 1) > p->columns) return false;
    p->rows = p->images = 1;
    while (p->rows < c->P && positions(c, p->rows + 1, 1) <= p->columns) p->rows++;
    while (p->rows == c->P && p->images < c->N && positions(c, p->rows, p->images + 1) <= p->columns) p->images++;
    p->strips        = (int)ceil_div(c->P, p->rows);
    p->rows          = (int)ceil_div(c->P, p->strips); /* all strips have the same size */
    p->box           = p->strips == 1 ? p->rows + 1 : p->rows + 2;
    p->runs          = ceil_div(c->N, p->images) * p->strips;
    const int64_t of = positions(c, p->rows, p->images);
    for (int i = (int)(sizeof widths / sizeof *widths) - 1; i >= 0 && widths[i] >= of; i--)
        if (widths[i] <= p->columns && (p->columns > 128) == (widths[i] > 128)) p->columns = widths[i];
    return true;
}

void cut_pixels(struct ck_block_sparse_plan *p, const struct ck_conv *c) {
    p->rows = p->images = p->strips = p->box = 1;
    p->pitch                                 = (int)c->Q;
    p->runs                                  = ceil_div(c->N * c->P * c->Q, p->columns);
}

bool set_shared_layout(struct ck_block_sparse_plan *p) {
    const int behind = p->strips == 1 ? p->pitch + 1 : 1; /* positions of zeros after a patch */
    const int lines  = p->patch ? p->box * p->pitch * p->images + behind : p->columns,
              out    = p->teams * p->parts * 2 * PANEL_BYTES;
    const int slot = p->teams * CK_BLOCK_SPARSE_BYTES, limit = p->teams * p->parts == 1 ? SHARED_HALF : SHARED_LIMIT;
    const int room      = limit - out - PIXELS_MAX * 4 - 8 * BAR_COUNT;
    p->x_bytes          = (lines * ROW_BYTES + 1023) / 1024 * 1024;
    const int64_t stage = (int64_t)p->parts * p->x_bytes, left = room - MIN_RING * slot;
    if (left < MIN_STAGES * stage) return false;
    p->stages = left / stage < STAGES_MAX ? (int)(left / stage) : (int)STAGES_MAX;
    p->ring   = (int)((room - p->stages * stage) / slot);
    if (p->ring > STAGES_MAX) p->ring = STAGES_MAX;
    p->x_at     = 0;
    p->w_at     = (int)(p->stages * stage);
    p->out_at   = p->w_at + p->ring * slot;
    p->pixel_at = p->out_at + out;
    p->bar_at   = p->pixel_at + PIXELS_MAX * 4;
    p->bytes    = p->bar_at + 8 * BAR_COUNT;
    return true;
}

/* Sets the grid and the order of tiles. When x does not stay in L2, consecutive groups let x be read once for all
 * groups. */
void set_grid(struct ck_block_sparse_plan *p, const struct ck_conv *c, int multiprocessors, int64_t l2_bytes) {
    /* 24 MiB of an H200's 50 */
    const int64_t in_cache = l2_bytes * 48 / 100, tasks = p->tiles * p->groups;
    p->interleave     = p->groups > 1 && p->groups <= multiprocessors && c->N * c->H * c->W * c->C * 2 > in_cache;
    const int at_once = multiprocessors * (p->teams * p->parts == 1 ? 2 : 1);
    p->grid           = (int)(tasks < at_once ? tasks : at_once);
    if (p->interleave) p->grid -= p->grid % p->groups;
}

bool supports(const struct ck_conv *c) {
    const int64_t limit = INT32_MAX / 2;
    if (c->type == CK_F32 || c->C < CK_BLOCK_SPARSE_SIDE || c->C % CK_BLOCK_SPARSE_SIDE ||
        c->K < CK_BLOCK_SPARSE_SIDE || c->K % CK_BLOCK_SPARSE_SIDE)
        return false;
    if (c->C > 65536 * CK_BLOCK_SPARSE_SIDE / 2 || c->K > limit / CK_BLOCK_SPARSE_SIDE || c->R < 1 || c->S < 1 ||
        c->R > 15 || c->S > 15)
        return false;
    if (c->stride < 1 || c->stride > 8 || c->pad < 0 || c->pad > 7 || c->N < 1 || c->P < 1 || c->Q < 1) return false;
    if (c->K * c->R * c->S > (int64_t)UINT32_MAX / c->C) return false;
    return c->H <= limit / c->W && c->N <= limit / (c->H * c->W) && c->P <= limit / c->Q &&
           c->N <= limit / (c->P * c->Q);
}

/* ---- launches ---- */

enum loading loading_of(const struct ck_conv *c, const struct ck_block_sparse_plan *plan) {
    if (plan->patch) return AS_PATCH;
    return c->R == 1 && c->S == 1 && c->stride == 1 && c->pad == 0 ? AS_MATRIX : AS_PIXELS;
}

bool map_x(CUtensorMap *map, const struct ck_conv *c, const struct ck_block_sparse_plan *plan, const void *x) {
    const int low[2] = {-c->pad, -c->pad}, high[2] = {c->pad - (c->S - 1), c->pad - (c->R - 1)};
    if (loading_of(c, plan) == AS_PIXELS)
        return ck_tma_pixels(map, c->type, x, c->N, c->H, c->W, c->C, low, high, c->stride, plan->columns);
    if (!plan->patch) return ck_tma_matrix(map, c->type, x, c->N * c->H * c->W, c->C, plan->columns);
    const cuuint64_t C = (cuuint64_t)c->C, W = (cuuint64_t)c->W, H = (cuuint64_t)c->H, N = (cuuint64_t)c->N;
    const cuuint64_t image[4] = {C, W, H, N}, pitch[3] = {C * 2, C * W * 2, C * W * H * 2};
    const cuuint32_t box[4] = {CK_BLOCK_SPARSE_SIDE, (cuuint32_t)plan->pitch, (cuuint32_t)plan->box,
                               (cuuint32_t)plan->images};
    return ck_tma_boxes(map, c->type, 4, x, image, pitch, box);
}

template <typename T, int COLUMNS, int TEAMS, int PARTS>
cudaError_t start(const struct params *p, cudaStream_t stream) {
    const auto        kernel = block_conv<T, COLUMNS, TEAMS, PARTS>;
    const cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p->plan.bytes);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)p->plan.grid, threads_of(TEAMS * PARTS), (size_t)p->plan.bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <typename T> cudaError_t start_as(const struct params *p, cudaStream_t stream) {
    switch (p->plan.columns * 100 + p->plan.teams * 10 + p->plan.parts) {
    case 25621: return start<T, 256, 2, 1>(p, stream);
    case 23221: return start<T, 232, 2, 1>(p, stream);
    case 21621: return start<T, 216, 2, 1>(p, stream);
    case 20821: return start<T, 208, 2, 1>(p, stream);
    case 25612: return start<T, 256, 1, 2>(p, stream);
    case 23212: return start<T, 232, 1, 2>(p, stream);
    case 21612: return start<T, 216, 1, 2>(p, stream);
    case 20812: return start<T, 208, 1, 2>(p, stream);
    case 12841: return start<T, 128, 4, 1>(p, stream);
    case 12821: return start<T, 128, 2, 1>(p, stream);
    case 12812: return start<T, 128, 1, 2>(p, stream);
    case 12012: return start<T, 120, 1, 2>(p, stream);
    case 25611: return start<T, 256, 1, 1>(p, stream);
    case 12811: return start<T, 128, 1, 1>(p, stream);
    case 12011: return start<T, 120, 1, 1>(p, stream);
    case 6421: return start<T, 64, 2, 1>(p, stream);
    case 6412: return start<T, 64, 1, 2>(p, stream);
    case 6411: return start<T, 64, 1, 1>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

void ck_block_sparse_conv_tile(int config, int tile[4]) {
    const struct tile_config no_config = {},
                             &w        = config >= 0 && config < CONFIG_COUNT ? tile_configs[config] : no_config;
    tile[0] = w.teams, tile[1] = w.parts, tile[2] = w.columns, tile[3] = w.patch;
}

bool ck_block_sparse_conv_plan(const struct ck_conv *c, int config, int multiprocessors, int64_t l2_bytes,
                               struct ck_block_sparse_plan *p) {
    *p = ck_block_sparse_plan{};
    if (config < 0 || config >= CONFIG_COUNT || !supports(c)) return false;
    p->teams   = tile_configs[config].teams;
    p->parts   = tile_configs[config].parts;
    p->columns = tile_configs[config].columns;
    p->patch   = tile_configs[config].patch;
    /* some teams would be idle in every tile; a config with fewer teams computes the same */
    if (p->teams > c->K / CK_BLOCK_SPARSE_SIDE) return false;
    if (!p->patch)
        cut_pixels(p, c);
    else if (!cut_patch(p, c))
        return false;
    if (!set_shared_layout(p)) return false;
    p->groups = (int)ceil_div(c->K / CK_BLOCK_SPARSE_SIDE, p->teams);
    p->tiles  = ceil_div(p->runs, p->parts);
    if (p->tiles > INT32_MAX / 4 / p->groups) return false;
    set_grid(p, c, multiprocessors, l2_bytes);
    return true;
}

cudaError_t ck_block_sparse_pack(const struct ck_conv *c, const void *w, const uint32_t *from, int64_t blocks,
                                 void *packed, cudaStream_t stream) {
    if (blocks <= 0) return cudaSuccess;
    block_pack<<<(unsigned)blocks, GROUP, 0, stream>>>(static_cast<const uint4 *>(w), from,
                                                       static_cast<uint4 *>(packed), (int64_t)c->R * c->S * c->C / 8);
    return cudaGetLastError();
}

cudaError_t ck_block_sparse_conv(const struct ck_block_sparse_args *a, const struct ck_block_sparse_plan *plan,
                                 cudaStream_t stream) {
    const struct ck_conv *c = &a->conv;
    struct params         p = {};
    p.plan                  = *plan;
    p.list                  = a->list;
    p.loading               = loading_of(c, plan);
    p.table                 = a->table;
    p.blocks                = static_cast<const char *>(a->blocks);
    p.bias                  = a->bias;
    p.add                   = static_cast<const char *>(a->add);
    p.y                     = static_cast<char *>(a->y);
    p.pixels                = c->N * c->P * c->Q;
    p.N                     = (int)c->N;
    p.P                     = (int)c->P;
    p.Q                     = (int)c->Q;
    p.K                     = c->K;
    p.stride                = c->stride;
    p.pad                   = c->pad;
    p.relu                  = a->relu;
    if (!map_x(&p.x, c, plan, a->x)) return cudaErrorNotSupported;
    return c->type == CK_F16 ? start_as<__half>(&p, stream) : start_as<__nv_bfloat16>(&p, stream);
}

/* cuda/conv/stem/stem_sm90a.cu: the families stem, stem_grad and stem_pool on compute capability 9.0
 * (cuda/common/fused_conv.h).
 *
 * Bytes a pixel of y with K = 64: forward 32 read (x) and 128 written; gradient 160 read. Neighbouring
 * runs share rows of x through L2. 2*256*64 floating-point operations a pixel are about 200 a byte, so memory and
 * tensor cores limit the kernel about equally. Roofline: a copy of the same bytes.
 * With max-pooling 32 bytes are read and 32 written, and the tensor cores limit the kernel.
 *
 * One block for each multiprocessor, for the whole launch: a warpgroup that loads (x by ordinary asynchronous copies,
 * which separate its channels; lines of dy by TMA) and two workers that multiply (cuda/conv/stem/stem.cuh). wgmma reads
 * the operand that is reused, filters or dy, from registers and x from shared memory. The forward kernel computes y
 * transposed, 64 channels x 112 pixels. The gradient kernel holds a whole dw of 64 channels in the registers of each
 * worker. Sums and dw go to the workspace, one set for each worker or block; a second kernel adds them in a fixed
 * order. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/stem/stem_conv.cuh"
#include "cuda/conv/stem/stem_grad.cuh"
#include "cuda/conv/stem/stem_pool.cuh"

namespace {

/* ---- final sums: a block adds 32 columns of partial[rows][width] ---- */

enum { FOLD_LANES = 16 };
/* Sum of this thread's column; valid in threads with threadIdx.y == 0. */
__device__ __forceinline__ double fold(const float *partial, int rows, int64_t width, int64_t column) {
    __shared__ double part[FOLD_LANES][33];
    double            sum = 0.0;
    for (int r = (int)threadIdx.y; r < rows; r += FOLD_LANES) sum += (double)partial[r * width + column];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0)
        for (int r = 1; r < FOLD_LANES; r++) sum += part[r][threadIdx.x];
    return sum;
}
__global__ void __launch_bounds__(32 * FOLD_LANES)
    stem_sums(const float *partial, int rows, int64_t width, float *sums) {
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const double  sum    = fold(partial, rows, width, column);
    if (threadIdx.y == 0) sums[column] = (float)sum;
}
__global__ void __launch_bounds__(32 * FOLD_LANES)
    stem_dw(const float *partial, int rows, int64_t width, float *dw, bool accumulate) {
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x, one = GRAD_SUMS * GROUP, of = column / one;
    const double  sum = fold(partial, rows, width, column);
    if (threadIdx.y) return;
    const int rest = (int)(column - of * one);
    float    *to   = dw + of * one + grad_element(rest / GROUP, rest % GROUP);
    *to            = accumulate ? *to + (float)sum : (float)sum;
}

/* ---- host side ---- */

/* An image tensor [rows of all images][columns][K] in lines of `line` pixels of 64 channels. */
bool map_rows(CUtensorMap *map, enum ck_type type, const void *y, int64_t rows, int columns, int K, int line) {
    const cuuint64_t dim[3]   = {(cuuint64_t)K, (cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[2] = {dim[0] * 2, dim[0] * dim[1] * 2};
    const cuuint32_t box[3]   = {COLUMNS, (cuuint32_t)line, 1};
    return ck_tma_boxes(map, type, 3, y, dim, pitch, box);
}
/* y or dy */
bool map_lines(CUtensorMap *map, enum ck_type type, const void *y, const struct shape *s) {
    return map_rows(map, type, y, (int64_t)s->N * s->P, s->Q, s->K, LINE);
}

struct shape shape_of(int64_t N, int64_t H, int64_t W, int64_t K) {
    struct shape s;
    s.N        = (int)N;
    s.H        = (int)H;
    s.W        = (int)W;
    s.P        = (int)H - SIDE + 1;
    s.Q        = (int)W - SIDE + 1;
    s.K        = (int)K;
    s.segments = (s.Q + LINE - 1) / LINE;
    s.lines    = s.N * s.segments * s.P;
    return s;
}

/* Number of blocks that divide `lines` among them, for each 64 channels. */
int blocks_for(const struct shape *s, int lines, int multiprocessors) {
    const int columns = s->K / COLUMNS, blocks = multiprocessors > columns ? multiprocessors / columns : 1;
    return blocks < lines ? blocks : lines;
}
int blocks_of(const struct shape *s, int multiprocessors) {
    return blocks_for(s, s->lines, multiprocessors);
}

bool fits(enum ck_type type, int64_t N, int64_t H, int64_t W, int64_t K) {
    const int64_t most = INT32_MAX / 4;
    if (type == CK_F32 || N < 1 || H < SIDE || W < SIDE || K < COLUMNS || K % COLUMNS || K > 64 * COLUMNS) return false;
    return H <= most / W && N <= most / (H * W);
}

template <typename P> cudaError_t start(void (*kernel)(P), const P *p, int blocks, int bytes, cudaStream_t stream) {
    const cudaError_t error = ck_allow_shared(kernel, bytes);
    if (error != cudaSuccess) return error;
    kernel<<<dim3((unsigned)blocks, (unsigned)(p->shape.K / COLUMNS)), THREADS, (size_t)bytes, stream>>>(*p);
    return cudaGetLastError();
}

/* ---- stem ---- */

int conv_configs(const struct ck_fused_conv *a, const struct ck_gpu *) {
    return ck_is_stem(a) && fits(a->type, a->N, a->H, a->W, a->K);
}

size_t conv_workspace(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    const struct shape s = shape_of(a->N, a->H, a->W, a->K);
    return a->has_sums ? sizeof(float) * 2 * (size_t)s.K * WORKERS * (size_t)blocks_of(&s, gpu->multiprocessors) : 0;
}

template <typename T> cudaError_t start_conv(const conv_params *p, int blocks, cudaStream_t stream) {
    const auto kernel = p->partial           ? stem_conv<T, SUMS>
                        : p->bias || p->relu ? stem_conv<T, BIAS>
                                             : stem_conv<T, JUST_Y>;
    return start(kernel, p, blocks, CONV_BYTES, stream);
}

cudaError_t launch_conv(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!conv_configs(a, gpu)) return cudaErrorInvalidValue;
    conv_params p    = {};
    p.shape          = shape_of(a->N, a->H, a->W, a->K);
    p.x              = a->x;
    p.w              = a->w;
    p.bias           = a->bias;
    p.relu           = a->relu;
    p.partial        = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    const int blocks = blocks_of(&p.shape, gpu->multiprocessors);
    if (!map_lines(&p.y, a->type, a->y, &p.shape)) return cudaErrorNotSupported;
    const cudaError_t error = ck_by_half(a->type, [&](auto t) { return start_conv<decltype(t)>(&p, blocks, stream); });
    if (error != cudaSuccess || !a->has_sums) return error;
    const int width = 2 * p.shape.K;
    stem_sums<<<(unsigned)(width / 32), dim3(32, FOLD_LANES), 0, stream>>>(p.partial, blocks * WORKERS, width, a->sums);
    return cudaGetLastError();
}

/* ---- stem_pool ---- */

int pool_configs(const struct ck_stem_pool *a, const struct ck_gpu *) {
    return fits(a->type, a->N, a->H, a->W, a->K) && a->W - SIDE + 1 <= LINE;
}

cudaError_t launch_pool(const struct ck_stem_pool *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!pool_configs(a, gpu)) return cudaErrorInvalidValue;
    pool_params p  = {};
    p.shape        = shape_of(a->N, a->H, a->W, a->K);
    p.rows         = (p.shape.P - 1) / 2 + 1;
    p.x            = a->x;
    p.w            = a->w;
    p.bias         = a->bias;
    const int rows = p.shape.N * p.rows, blocks = blocks_for(&p.shape, rows, gpu->multiprocessors);
    if (!map_rows(&p.y, a->type, a->y, rows, (p.shape.Q - 1) / 2 + 1, p.shape.K, POOL_LINE))
        return cudaErrorNotSupported;
    const dim3 grid((unsigned)blocks, (unsigned)(p.shape.K / COLUMNS));
    return ck_by_half(a->type, [&](auto t) {
        return ck_launch_shared(stem_pool<decltype(t)>, grid, dim3(THREADS), POOL_BYTES, stream, p);
    });
}

/* ---- stem_grad ---- */

int grad_configs(const struct ck_stem_grad *a, const struct ck_gpu *) {
    return fits(a->type, a->N, a->H, a->W, a->K);
}

size_t grad_workspace(const struct ck_stem_grad *a, const struct ck_gpu *gpu) {
    const struct shape s = shape_of(a->N, a->H, a->W, a->K);
    return sizeof(float) * TAPS * DEPTH * (size_t)s.K * (size_t)blocks_of(&s, gpu->multiprocessors);
}

cudaError_t launch_grad(const struct ck_stem_grad *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!grad_configs(a, gpu)) return cudaErrorInvalidValue;
    grad_params p    = {};
    p.shape          = shape_of(a->N, a->H, a->W, a->K);
    p.x              = a->x;
    p.partial        = static_cast<float *>(workspace);
    const int blocks = blocks_of(&p.shape, gpu->multiprocessors);
    if (!map_lines(&p.g, a->type, a->g, &p.shape)) return cudaErrorNotSupported;
    const cudaError_t error =
        ck_by_half(a->type, [&](auto t) { return start(stem_grad<decltype(t)>, &p, blocks, GRAD_BYTES, stream); });
    if (error != cudaSuccess) return error;
    const int64_t width = (int64_t)p.shape.K * TAPS * DEPTH;
    stem_dw<<<(unsigned)(width / 32), dim3(32, FOLD_LANES), 0, stream>>>(p.partial, blocks, width, a->dw,
                                                                         a->accumulate);
    return cudaGetLastError();
}

} // namespace

const struct ck_conv_family ck_stem_wgmma      = ck_family<ck_fused_conv, conv_configs, conv_workspace, launch_conv>();
const struct ck_conv_family ck_stem_pool_wgmma = ck_family<ck_stem_pool, pool_configs, ck_no_workspace, launch_pool>();
const struct ck_conv_family ck_stem_grad_wgmma = ck_family<ck_stem_grad, grad_configs, grad_workspace, launch_grad>();

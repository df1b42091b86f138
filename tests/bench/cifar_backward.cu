/* tests/bench/cifar_backward.cu: the backward pass of the convolutions of ResNet-20 as CUDA graphs of different
 * launches: both gradients of a convolution in one launch, or input gradients alone and the filter gradients of many
 * convolutions in one launch, behind them or in a parallel branch of the graph. */
#include "cuda/conv/cifar/cifar_dgrad.cuh"
#include "cuda/conv/cifar/cifar_wgrad.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace cifar;
using T = __half;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t e_ = (call);                                                                                 \
        if (e_ != cudaSuccess) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

extern "C" int ck_shared_limit(void) { return 0; }

static int64_t N;
static int     multiprocessors, block_bytes;

__global__ void fill(T *to, int64_t n, unsigned seed, float scale, bool relu) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float s = 0;
        for (int k = 0; k < 4; k++) {
            unsigned h = (unsigned)i * 4u + (unsigned)k + seed * 0x9e3779b9u;
            h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
            s += (float)(h >> 8) * (1.0f / (1 << 24)) - 0.5f;
        }
        s *= 1.732f * scale;
        to[i] = __float2half_rn(relu && s < 0 ? 0 : s);
    }
}
static unsigned seed = 1;
static T *data(int64_t n, float scale, bool relu = false) {
    T *p;
    TRY(cudaMalloc(&p, (size_t)n * 2 + 256));
    fill<<<512, 256>>>(p, n, seed++, scale, relu);
    return p;
}
static float *floats(const std::vector<float> &v) {
    float *p;
    TRY(cudaMalloc(&p, v.size() * 4 + 256));
    TRY(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice));
    return p;
}
static float *room(int64_t n) {
    float *p;
    TRY(cudaMalloc(&p, (size_t)n * 4 + 256));
    TRY(cudaMemset(p, 0, (size_t)n * 4));
    return p;
}

struct bn { float *gamma, *mean_rstd, *scale_bias, *coeffs, *sums, *dgamma, *dbeta; T *y; int C; int64_t count; };
struct layer {
    int    C, K, H, stride, P, kind; /* kind: as dw_each */
    bool   second;                   /* of its block */
    T     *w, *z, *dx, *dx_rotating, *dy;
    float *dw, *partial, *dw_partial;
    int    rows; /* of partial */
    int    stage;
};
static std::vector<layer> layers;
static std::vector<bn>    bns;
static T                 *g_end;
static void              *workspace;
static bool               rotating;

static bn make_bn(int C, int P) {
    bn b;
    std::vector<float> gamma(C), mr(2 * C), sb(2 * C);
    for (int c = 0; c < C; c++) {
        gamma[c] = 0.8f + 0.4f * (float)(c % 7) / 7, mr[c] = 0.1f * (float)(c % 5 - 2), mr[C + c] = 1 + 0.1f * (float)(c % 3);
        sb[c] = gamma[c] * mr[C + c], sb[C + c] = 0.05f * (float)(c % 4) - sb[c] * mr[c];
    }
    b.gamma = floats(gamma), b.mean_rstd = floats(mr), b.scale_bias = floats(sb);
    b.coeffs = room(3 * C), b.sums = room(2 * C), b.dgamma = room(C), b.dbeta = room(C);
    b.y = data(N * P * P * C, 1), b.C = C, b.count = N * P * P;
    return b;
}
static void make(int blocks) {
    bns.push_back(make_bn(16, 32));
    int C = 16, H = 32;
    T *turn[3][3];
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < 3; i++) turn[s][i] = data(N * 16384 >> s, 1);
    for (int stage = 0; stage < 3; stage++)
        for (int b = 0; b < blocks; b++)
            for (int c = 0; c < 2; c++) {
                layer l = {};
                l.C = C, l.H = H, l.stride = stage && !b && !c ? 2 : 1, l.K = C * l.stride, l.P = H / l.stride;
                l.kind = l.C == 16 ? (l.K == 16 ? 0 : 1) : l.C == 32 ? (l.K == 32 ? 2 : 3) : 4;
                l.second = c, l.stage = stage;
                l.w = data((int64_t)l.K * 9 * l.C, 1 / sqrtf(9.0f * (float)l.K));
                l.z = c ? NULL : data(N * H * H * C, 1, true);
                l.dx = data(N * H * H * C, 1);
                l.dy = data(N * l.P * l.P * l.K, 1);
                l.dx_rotating = turn[C == 16 ? 0 : C == 32 ? 1 : 2][layers.size() % 3];
                l.dw = room((int64_t)l.K * 9 * l.C);
                l.partial = room(1056 * 2 * C), l.dw_partial = room((int64_t)64 * l.K * 9 * l.C);
                layers.push_back(l);
                C = l.K, H = l.P;
                bns.push_back(make_bn(C, H));
            }
    g_end = data(N * 4096, 0.1f);
    TRY(cudaMalloc(&workspace, 64 << 20));
}
static T *dx_of(int i) { return rotating ? layers[i].dx_rotating : layers[i].dx; }
static const T *g_of(int i) { return i + 1 < (int)layers.size() ? dx_of(i + 1) : g_end; }

static struct ck_bn_grad_finalize finish_of(int b) {
    return {.grad_sums = bns[b].sums, .gamma = bns[b].gamma, .mean_rstd = bns[b].mean_rstd, .dgamma = bns[b].dgamma,
            .dbeta = bns[b].dbeta, .coeffs = bns[b].coeffs, .channels = bns[b].C, .count = bns[b].count,
            .accumulate = false, .ranks = 0};
}
static grad_args args_of(int i) {
    const layer &l = layers[i];
    return {.g = g_of(i), .dy_x = bns[i + 1].y, .w = l.w, .x = l.second ? bns[i].y : l.z,
            .add = !l.second && l.stride == 1 ? g_of(i + 1) : NULL, .bn_x = l.second ? NULL : bns[i].y,
            .dy_coeffs = bns[i + 1].coeffs, .scale_bias = l.second ? bns[i].scale_bias : NULL,
            .mean_rstd = bns[i].mean_rstd, .dx = dx_of(i), .dw = l.dw, .grad_sums = bns[i].sums,
            .dw_partial = NULL, .sums_partial = l.partial, .N = N, .C = l.C, .K = l.K, .accumulate = false, .w_new = false,
            .x_new = false, .one_stage = false};
}
static void joint(int i, cudaStream_t s) {
    const layer     &l = layers[i];
    const grad_args  a = args_of(i);
    struct ck_cifar_conv_grad v = {.conv = {.type = CK_F16, .R = 3, .S = 3, .stride = l.stride, .pad = 1, .N = N, .H = l.H,
                                     .W = l.H, .C = l.C, .K = l.K, .P = l.P, .Q = l.P},
                            .g = a.g, .dy_x = a.dy_x, .dy_coeffs = a.dy_coeffs, .w = a.w, .x = a.x,
                            .scale_bias = a.scale_bias, .mean_rstd = a.mean_rstd, .add = a.add, .bn_x = a.bn_x,
                            .dx = a.dx, .dw = a.dw, .grad_sums = a.grad_sums, .accumulate = false,
                            .finish = finish_of(i), .w_new = false, .x_new = false};
    TRY(ck_cifar_conv_grad(&v, workspace, multiprocessors, block_bytes, s));
}

/* ---- dx alone ---- */

static int  variant[5];
static bool store_dy;
template <class S> void dx_run(int i, bool fused, cudaStream_t s) {
    using D = grad_tiling<S>;
    const dx_args a = {.grad = args_of(i),
                       .last = {.partial = fused ? layers[i + 1].partial : NULL, .grad_sums = bns[i + 1].sums,
                                .rows = fused ? layers[i + 1].rows : 0, .finish = finish_of(i + 1),
                                .inverse = 1 / (double)bns[i + 1].count},
                       .dy = store_dy ? layers[i].dy : NULL};
    const unsigned blocks = ck_blocks(N * D::TILES, 1, (int64_t)multiprocessors * S::BLOCKS);
    layers[i].rows = (int)blocks;
    if (fused)
        TRY(launch(dx_kernel<S, T, true>, a, blocks, D::DX_THREADS, D::BYTES, s));
    else
        TRY(launch(dx_kernel<S, T, false>, a, blocks, D::DX_THREADS, D::BYTES, s));
}
using s16    = shape<16, 16, 32, 1, 3>;
using s16_32 = shape<16, 32, 32, 2, 3>;
using s32    = shape<32, 32, 16, 1, 3>;
using s32_64 = shape<32, 64, 16, 2, 3>;
using s64    = shape<64, 64, 8, 1, 3>;
static void dx(int i, bool fused, cudaStream_t s) {
    const int v = variant[layers[i].kind];
    switch (layers[i].kind) {
    case 0:
        if (v == 0) dx_run<dx_shape<s16, 16, 8, 2>>(i, fused, s);
        if (v == 1) dx_run<dx_shape<s16, 8, 8, 4>>(i, fused, s);
        if (v == 2) dx_run<dx_shape<s16, 32, 16, 1>>(i, fused, s);
        if (v == 3) dx_run<dx_shape<s16, 8, 4, 4>>(i, fused, s);
        break;
    case 1:
        if (v == 0) dx_run<dx_shape<s16_32, 8, 8, 2>>(i, fused, s);
        if (v == 1) dx_run<dx_shape<s16_32, 16, 16, 1>>(i, fused, s);
        if (v == 2) dx_run<dx_shape<s16_32, 4, 8, 4>>(i, fused, s);
        break;
    case 2:
        if (v == 0) dx_run<dx_shape<s32, 8, 8, 2>>(i, fused, s);
        if (v == 1) dx_run<dx_shape<s32, 16, 8, 2>>(i, fused, s);
        if (v == 2) dx_run<dx_shape<s32, 16, 16, 1>>(i, fused, s);
        if (v == 3) dx_run<dx_shape<s32, 4, 4, 4>>(i, fused, s);
        break;
    case 3:
        if (v == 0) dx_run<dx_shape<s32_64, 8, 8, 2>>(i, fused, s);
        if (v == 1) dx_run<dx_shape<s32_64, 4, 8, 2>>(i, fused, s);
        if (v == 2) dx_run<dx_shape<s32_64, 8, 16, 1>>(i, fused, s);
        break;
    default:
        if (v == 0) dx_run<dx_shape<s64, 8, 8, 2>>(i, fused, s);
        if (v == 1) dx_run<dx_shape<s64, 8, 16, 1>>(i, fused, s);
        break;
    }
}
static void sums(int i, cudaStream_t s) {
    add_args a         = {.partial = NULL, .sums_partial = layers[i].partial, .dw = NULL, .grad_sums = bns[i].sums,
                          .each = 0, .sums_rows = layers[i].rows, .sums_blocks = layers[i].C / SUMS_CHANNELS, .C = layers[i].C,
                          .K = layers[i].K,
                          .accumulate = false, .finish = finish_of(i), .inverse = 1 / (double)bns[i].count};
    const int blocks = layers[i].C / SUMS_CHANNELS;
    if (layers[i].C == 16)
        TRY(launch(dx_sums_kernel<16>, a, blocks, THREADS, 0, s));
    else if (layers[i].C == 32)
        TRY(launch(dx_sums_kernel<32>, a, blocks, THREADS, 0, s));
    else
        TRY(launch(dx_sums_kernel<64>, a, blocks, THREADS, 0, s));
}

/* ---- dw of several ---- */

static int set;
template <class S> void dw_sizes(int &parts, int &add_blocks, int &bytes) {
    using D = grad_tiling<S>;
    parts = D::PARTS, add_blocks = D::DW / 4 / DW_COLUMNS * D::PARTS, bytes = std::max(bytes, (int)D::BYTES);
}
static dw_list list_of(const std::vector<int> &which, const int (&slices)[5], int &blocks, int &adds, int &bytes) {
    dw_list list = {};
    blocks = adds = bytes = 0;
    list.N = N;
    for (int i : which) {
        const layer    &l = layers[i];
        const grad_args a = args_of(i);
        int             parts = 0, add = 0;
        const auto sizes = [&](auto n) {
            constexpr int SET = decltype(n)::value;
            switch (l.kind) {
            case 0: dw_sizes<dw_16<SET>>(parts, add, bytes); break;
            case 1: dw_sizes<dw_16_32<SET>>(parts, add, bytes); break;
            case 2: dw_sizes<dw_32<SET>>(parts, add, bytes); break;
            case 3: dw_sizes<dw_32_64<SET>>(parts, add, bytes); break;
            default: dw_sizes<dw_64<SET>>(parts, add, bytes);
            }
        };
        if (set == 0) sizes(std::integral_constant<int, 0>());
        if (set == 1) sizes(std::integral_constant<int, 1>());
        if (set == 2) sizes(std::integral_constant<int, 2>());
        list.conv[list.convs++] = {.g = set ? layers[i].dy : a.g, .dy_x = set ? NULL : a.dy_x, .x = a.x, .dy_coeffs = a.dy_coeffs,
                                   .scale_bias = a.scale_bias, .partial = l.dw_partial, .dw = l.dw, .shape = l.kind,
                                   .slices = slices[l.kind], .first_block = blocks, .first_add = adds};
        blocks += parts * slices[l.kind], adds += add;
    }
    return list;
}
static bool show;
static void dw(const std::vector<int> &which, const int (&slices)[5], bool overlap, cudaStream_t s) {
    int           blocks, adds, bytes;
    const dw_list list = list_of(which, slices, blocks, adds, bytes);
    const auto kernel = set == 0 ? dw_kernel<T, 0> : set == 1 ? dw_kernel<T, 1> : dw_kernel<T, 2>;
    if (show) printf("(%d blocks, %d B) ", blocks, bytes), show = false;
    TRY(ck_allow_shared(kernel, bytes));
    TRY(ck_launch_if(overlap, kernel, blocks, THREADS, bytes, s, list));
}
static void dw_sum(const std::vector<int> &which, const int (&slices)[5], bool overlap, cudaStream_t s) {
    int           blocks, adds, bytes;
    const dw_list list = list_of(which, slices, blocks, adds, bytes);
    TRY(ck_launch_if(overlap, dw_add_kernel, adds, THREADS, 0, s, list));
}

/* ---- variants ---- */

static cudaStream_t main_stream, side;
static cudaEvent_t  begin_, end_, fork_, join_;

static double time_graph(const std::function<void()> &record) {
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    TRY(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal));
    record();
    TRY(cudaStreamEndCapture(main_stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
    for (int i = 0; i < 20; i++) TRY(cudaGraphLaunch(exec, main_stream));
    std::vector<float> t;
    for (int r = 0; r < 15; r++) {
        TRY(cudaEventRecord(begin_, main_stream));
        for (int i = 0; i < 20; i++) TRY(cudaGraphLaunch(exec, main_stream));
        TRY(cudaEventRecord(end_, main_stream));
        TRY(cudaEventSynchronize(end_));
        float ms;
        TRY(cudaEventElapsedTime(&ms, begin_, end_));
        t.push_back(ms * 1000 / 20);
    }
    std::sort(t.begin(), t.end());
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
    return t[t.size() / 2];
}

struct kept { std::vector<std::vector<float>> dx, dw, coeffs; };
static std::vector<float> half_back(const T *p, int64_t n) {
    std::vector<T>     h((size_t)n);
    std::vector<float> f((size_t)n);
    TRY(cudaMemcpy(h.data(), p, (size_t)n * 2, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < h.size(); i++) f[i] = __half2float(h[i]);
    return f;
}
static std::vector<float> back(const float *p, int64_t n) {
    std::vector<float> f((size_t)n);
    TRY(cudaMemcpy(f.data(), p, (size_t)n * 4, cudaMemcpyDeviceToHost));
    return f;
}
static kept keep() {
    kept k;
    TRY(cudaDeviceSynchronize());
    for (size_t i = 0; i < layers.size(); i++) {
        const layer &l = layers[i];
        k.dx.push_back(half_back(l.dx, std::min<int64_t>(N, 128) * l.H * l.H * l.C));
        k.dw.push_back(back(l.dw, (int64_t)l.K * 9 * l.C));
        k.coeffs.push_back(back(bns[i].coeffs, 3 * bns[i].C));
    }
    return k;
}
static void wipe(bool all) {
    for (size_t i = 0; i < layers.size(); i++) {
        const layer &l = layers[i];
        TRY(cudaMemset(l.dw, 0, (size_t)l.K * 9 * l.C * 4));
        if (!all) continue;
        TRY(cudaMemset(l.dx, 0, (size_t)(N * l.H * l.H * l.C * 2)));
        TRY(cudaMemset(bns[i].coeffs, 0, 3 * bns[i].C * 4));
    }
}
static double off(const std::vector<std::vector<float>> &a, const std::vector<std::vector<float>> &b, int *at) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) {
        double d = 0, n = 0;
        for (size_t j = 0; j < a[i].size(); j++) {
            const double e = (double)a[i][j] - (double)b[i][j];
            d += e * e, n += (double)b[i][j] * (double)b[i][j];
        }
        const double r = n > 0 ? sqrt(d / n) : 1;
        if (!(r <= worst)) worst = r, *at = (int)i;
    }
    return worst;
}
static kept truth;
static void report(const char *name, const std::function<void()> &record, bool check_dx, bool check_dw) {
    wipe(check_dx);
    TRY(cudaDeviceSynchronize());
    const double us = time_graph(record);
    printf("%-44s %8.1f us", name, us);
    if (check_dx || check_dw) {
        const kept k = keep();
        int        at = -1;
        if (check_dx) printf("  dx off %.1e", off(k.dx, truth.dx, &at)), printf(" (%d) coeffs %.1e", at, off(k.coeffs, truth.coeffs, &at));
        if (check_dw) printf("  dw off %.1e", off(k.dw, truth.dw, &at)), printf(" (%d)", at);
    }
    printf("\n");
    fflush(stdout);
}

/* Layers from - 1 down to `to`; coefficients of layer from - 1 are complete. All are afterwards, but with `open` the
 * sums of the last stay unfinished. */
static void chain(int from, int to, bool fused, bool open = false) {
    for (int i = from - 1; i >= to; i--) {
        dx(i, fused && i != from - 1, main_stream);
        if (!fused || (i == to && !open)) sums(i, main_stream);
    }
}
static std::vector<int> all_of(int from, int to) {
    std::vector<int> v;
    for (int i = to; i < from; i++) v.push_back(i); /* the largest first */
    return v;
}
int main(int argc, char **argv) {
    cudaDeviceProp p;
    int            low, high;
    N = argc > 1 ? atoi(argv[1]) : 128;
    const int blocks = argc > 2 ? atoi(argv[2]) : 3;
    TRY(cudaGetDeviceProperties(&p, 0));
    multiprocessors = p.multiProcessorCount, block_bytes = (int)p.sharedMemPerBlockOptin;
    TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    TRY(cudaStreamCreateWithPriority(&main_stream, cudaStreamNonBlocking, high));
    TRY(cudaStreamCreateWithPriority(&side, cudaStreamNonBlocking, low));
    TRY(cudaEventCreate(&begin_));
    TRY(cudaEventCreate(&end_));
    TRY(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    TRY(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
    make(blocks);
    TRY(cudaDeviceSynchronize());
    const int n = (int)layers.size(), two = 2 * blocks, three = 4 * blocks; /* first layers of stages 2 and 3 */
    /* the coefficients of the last BN */
    std::vector<float> c(192);
    for (int i = 0; i < 64; i++) c[i] = 1, c[64 + i] = 0.01f, c[128 + i] = -0.01f;
    TRY(cudaMemcpy(bns[n].coeffs, c.data(), 768, cudaMemcpyHostToDevice));
    printf("%s, %d multiprocessors, N %d, %d layers\n", p.name, multiprocessors, (int)N, n);

    const auto base = [&] { for (int i = n - 1; i >= 0; i--) joint(i, main_stream); };
    for (int i = n - 1; i >= 0; i--) joint(i, main_stream);
    truth = keep();
    report("one launch for both gradients", base, true, true);
    rotating = true;
    report("the same, gradients in 3 buffers", base, false, false);
    rotating = false;
    const int  best[5] = {2, 1, 1, 0, 0}, small[5] = {0, 0, 0, 0, 0};
    const int *use     = N > 64 ? best : small;
    for (int i = 0; i < 5; i++) variant[i] = use[i];
    static const int combos[][5] = {{16, 12, 12, 6, 3}, {14, 14, 14, 7, 4}, {17, 12, 12, 8, 3}, {18, 14, 11, 6, 3}, {20, 12, 10, 5, 3}};
    report("dx", [&] { chain(n, 0, false); }, true, false);
    report("dx, fused sums", [&] { chain(n, 0, true); }, true, false);
    store_dy = true;
    report("dx, dy stored", [&] { chain(n, 0, false); }, true, false);
    report("dx, fused sums, dy stored", [&] { chain(n, 0, true); }, true, false);
    base();
    chain(n, 0, false);
    for (set = 0; set < 3; set++) {
        for (const auto &slices : combos) {
            char name[64];
            snprintf(name, sizeof name, "dw set %d, slices %d %d %d %d %d", set, slices[0], slices[1], slices[2], slices[3], slices[4]);
            show = true;
            report(name, [&] { dw(all_of(n, 0), slices, true, main_stream); dw_sum(all_of(n, 0), slices, true, main_stream); }, false, true);
        }
        for (int stage = 0; stage < 3; stage++) {
            static const int stage_of[5] = {44, 44, 44, 12, 12};
            const int        from = stage == 0 ? two : stage == 1 ? three : n, to = stage == 0 ? 0 : stage == 1 ? two : three;
            char             name[64];
            snprintf(name, sizeof name, "dw set %d, stage %d", set, stage + 1);
            report(name, [&] { dw(all_of(from, to), stage_of, true, main_stream); dw_sum(all_of(from, to), stage_of, true, main_stream); }, false, false);
        }
    }
    for (set = 0; set < 3; set++)
        for (int fused = 0; fused < 2; fused++)
            for (const auto &slices : combos) {
                char name[64];
                store_dy = set > 0;
                snprintf(name, sizeof name, "all: set %d%s, slices %d %d %d %d %d", set, fused ? ", fused" : "", slices[0], slices[1], slices[2], slices[3], slices[4]);
                report(name, [&] {
                    chain(n, 0, fused);
                    dw(all_of(n, 0), slices, true, main_stream);
                    dw_sum(all_of(n, 0), slices, true, main_stream);
                }, true, true);
                if (&slices != &combos[0]) continue;
                static const int stage_of[5] = {44, 44, 44, 12, 12};
                snprintf(name, sizeof name, "all: set %d%s, dw of a stage", set, fused ? ", fused" : "");
                report(name, [&] {
                    chain(n, three, fused);
                    dw(all_of(n, three), stage_of, true, main_stream);
                    chain(three, two, fused);
                    dw(all_of(three, two), stage_of, true, main_stream);
                    chain(two, 0, fused);
                    dw(all_of(two, 0), stage_of, true, main_stream);
                    dw_sum(all_of(n, 0), stage_of, true, main_stream);
                }, true, true);
            }
    return 0;
}

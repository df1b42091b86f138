/* tests/bench/cifar_forward.cu: the convolutions of ResNet-20 forward as CUDA graphs: with a small launch behind each
 * that finishes its BN, or with the next convolution finishing it. */
#include "cuda/conv/cifar/cifar_conv.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t e_ = (call);                                                                                 \
        if (e_ != cudaSuccess) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

extern "C" int ck_shared_limit(void) { return 0; }

__global__ void fill(__half *to, int64_t n, unsigned seed, float scale, bool relu) {
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
static __half *data(int64_t n, float scale, bool relu = false) {
    __half *p;
    TRY(cudaMalloc(&p, (size_t)n * 2 + 256));
    fill<<<512, 256>>>(p, n, seed++, scale, relu);
    return p;
}
static float *floats(int n, float first, float step) {
    std::vector<float> v((size_t)n);
    float             *p;
    for (int i = 0; i < n; i++) v[(size_t)i] = first + step * (float)(i % 7);
    TRY(cudaMalloc(&p, (size_t)n * 4 + 256));
    TRY(cudaMemcpy(p, v.data(), (size_t)n * 4, cudaMemcpyHostToDevice));
    return p;
}
struct layer {
    struct ck_cifar_conv args;
    void                *workspace;
    __half              *z; /* instead of the y before it */
};
static std::vector<layer> layers;
static int                multiprocessors;
static cudaStream_t       stream;

static void make(int64_t N, int blocks) {
    int C = 16, H = 32;
    for (int stage = 0; stage < 3; stage++)
        for (int b = 0; b < blocks; b++)
            for (int c = 0; c < 2; c++) {
                layer     l = {};
                const int stride = stage && !b && !c ? 2 : 1, K = C * stride, P = H / stride;
                l.z = data(N * H * H * C, 1, true);
                l.args.conv = {.type = CK_F16, .R = 3, .S = 3, .stride = stride, .pad = 1, .N = N, .H = H, .W = H, .C = C, .K = K, .P = P, .Q = P};
                l.args.x = c ? layers.back().args.y : l.z;
                l.args.scale_bias = c ? layers.back().args.finish.scale_bias : NULL;
                l.args.w = data((int64_t)K * 9 * C, 1 / sqrtf(9.0f * (float)C));
                l.args.y = data(N * P * P * K, 1);
                l.args.sums = floats(2 * K, 0, 0);
                l.args.finish = {.gamma = floats(K, 0.8f, 0.05f), .beta = floats(K, -0.1f, 0.04f), .old_mean = floats(K, 0, 0), .old_var = floats(K, 1, 0),
                                 .scale_bias = floats(2 * K, 0, 0), .mean_rstd = floats(2 * K, 0, 0), .new_mean = floats(K, 0, 0), .new_var = floats(K, 0, 0),
                                 .count = N * P * P, .eps = 1e-5f, .momentum = 0.1f};
                TRY(cudaMalloc(&l.workspace, ck_cifar_conv_workspace(&l.args.conv, multiprocessors)));
                layers.push_back(l);
                C = K, H = P;
            }
}
/* which: 0 separate, 1 the second convolutions of blocks finish, 2 all with stride 1 do (wrong inputs, for the time). */
static void run(int which, int from, int to) {
    for (int i = from; i < to; i++) {
        struct ck_cifar_conv a = layers[i].args, last;
        const bool           all  = which == 2;
        const bool           mine = which && i > from && (all ? ck_cifar_conv_finishes(&layers[i - 1].args.conv, &a.conv) : i % 2);
        a.finish_later = which && i + 1 < to && (all ? ck_cifar_conv_finishes(&a.conv, &layers[i + 1].args.conv) : i % 2 == 0);
        if (all && i > from && a.conv.stride == 1) a.x = layers[i - 1].args.y, a.scale_bias = layers[i - 1].args.finish.scale_bias;
        if (mine) last = layers[i - 1].args, last.finish_later = true, a.last = &last, a.last_workspace = layers[i - 1].workspace;
        TRY(ck_cifar_conv(&a, layers[i].workspace, multiprocessors, stream));
    }
}
static double time_graph(const std::function<void()> &record) {
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    cudaEvent_t     begin, end;
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    record();
    TRY(cudaStreamEndCapture(stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 20; i++) TRY(cudaGraphLaunch(exec, stream));
    std::vector<float> t;
    for (int r = 0; r < 15; r++) {
        float ms;
        TRY(cudaEventRecord(begin, stream));
        for (int i = 0; i < 20; i++) TRY(cudaGraphLaunch(exec, stream));
        TRY(cudaEventRecord(end, stream));
        TRY(cudaEventSynchronize(end));
        TRY(cudaEventElapsedTime(&ms, begin, end));
        t.push_back(ms * 1000 / 20);
    }
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
}
static std::vector<std::vector<float>> results() {
    std::vector<std::vector<float>> all;
    TRY(cudaDeviceSynchronize());
    for (const layer &l : layers) {
        const size_t        n = (size_t)(l.args.conv.N * l.args.conv.P * l.args.conv.P * l.args.conv.K), k = (size_t)l.args.conv.K;
        std::vector<__half> y(n);
        std::vector<float>  v(n + 8 * k);
        TRY(cudaMemcpy(y.data(), l.args.y, n * 2, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < n; i++) v[i] = __half2float(y[i]);
        TRY(cudaMemcpy(&v[n], l.args.finish.scale_bias, 8 * k, cudaMemcpyDeviceToHost));
        TRY(cudaMemcpy(&v[n + 2 * k], l.args.finish.mean_rstd, 8 * k, cudaMemcpyDeviceToHost));
        TRY(cudaMemcpy(&v[n + 4 * k], l.args.finish.new_mean, 4 * k, cudaMemcpyDeviceToHost));
        TRY(cudaMemcpy(&v[n + 5 * k], l.args.finish.new_var, 4 * k, cudaMemcpyDeviceToHost));
        TRY(cudaMemcpy(&v[n + 6 * k], l.args.sums, 8 * k, cudaMemcpyDeviceToHost));
        all.push_back(v);
        TRY(cudaMemset(l.args.y, 0, n * 2));
        TRY(cudaMemset(l.args.finish.scale_bias, 0, 8 * k));
        TRY(cudaMemset(l.args.finish.new_var, 0, 4 * k));
    }
    return all;
}
int main(int argc, char **argv) {
    cudaDeviceProp p;
    const int      N = argc > 1 ? atoi(argv[1]) : 128, blocks = argc > 2 ? atoi(argv[2]) : 3;
    TRY(cudaGetDeviceProperties(&p, 0));
    multiprocessors = p.multiProcessorCount;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    make(N, blocks);
    TRY(cudaDeviceSynchronize());
    const int n = (int)layers.size();
    printf("%s, N %d, %d layers\n", p.name, N, n);
    run(0, 0, n);
    const auto want = results();
    run(1, 0, n);
    const auto got = results();
    double     worst = 0, large = 0;
    size_t     differ = 0;
    for (size_t i = 0; i < want.size(); i++)
        for (size_t j = 0; j < want[i].size(); j++) {
            const double d = fabs((double)want[i][j] - (double)got[i][j]);
            if (!(d <= worst)) worst = d;
            large = std::max(large, fabs((double)want[i][j]));
            differ += d > 1e-3 * (1 + fabs((double)want[i][j]));
        }
    printf("largest difference %.2e (values to %.1e), %zu differ by 1e-3\n", worst, large, differ);
    for (int r = 0; r < 2; r++) {
        static const char *const names[] = {"separate", "second convolutions of blocks finish", "all with stride 1 finish"};
        for (int which = 0; which < 3; which++) printf("%-40s %8.1f us\n", names[which], time_graph([&] { run(which, 0, n); }));
        for (int stage = 0; stage < 3 && !r; stage++)
            for (int which = 0; which < 3; which++)
                printf("stage %d: %-31s %8.1f us\n", stage + 1, names[which], time_graph([&] { run(which, stage * 2 * blocks, (stage + 1) * 2 * blocks); }));
    }
    return 0;
}

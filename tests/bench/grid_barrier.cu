/* tests/bench/grid_barrier.cu: measures barriers of all blocks of a cooperative launch, one block a multiprocessor, and
 * the exchange of BN sums between them. Built by name only; needs a GPU of compute capability 9.0 (clusters).
 *
 *     cmake --build build/gpu --target grid_barrier && build/gpu/tests/grid_barrier
 *
 * Prints microseconds a round: the median over 15 pairs of launches with 2,000 and 1,000 rounds, whose difference
 * contains no launch. Every round is checked: a value of another block (barrier), all totals (sums). The results are in
 * docs/experiments/. */
#include "tests/bench/grid_sums.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace cg = cooperative_groups;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t e_ = (call);                                                                                 \
        if (e_ != cudaSuccess) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { FEW = 1000, MANY = 2000, REPEATS = 15 };

/* ---- kernels ---- */

/* DATA: floats a block writes before the barrier and reads, from another block, after it. */
template <class Barrier, int DATA>
__global__ void __launch_bounds__(THREADS) barrier_kernel(grid_memory *m, int rounds) {
    const int t     = (int)threadIdx.x;
    unsigned  wrong = 0;
    for (int r = 1; r <= rounds; r++) {
        if (DATA && t * 4 < DATA)
            __stcg(reinterpret_cast<float4 *>(m->rows[r & 1][blockIdx.x]) + t,
                   make_float4((float)r, (float)blockIdx.x, (float)t, 0));
        Barrier::sync(*m, (unsigned)r);
        if (DATA && t * 4 < DATA) {
            const unsigned other = (blockIdx.x + (unsigned)r) % gridDim.x;
            const float4   v     = __ldcg(reinterpret_cast<const float4 *>(m->rows[r & 1][other]) + t);
            wrong += v.x != (float)r || v.y != (float)other || v.z != (float)t;
        }
    }
    if (wrong) atomicAdd(&m->errors, wrong);
    if (Barrier::CLUSTER > 1) cluster_arrive(), cluster_wait();
}

template <class Sums> __global__ void __launch_bounds__(THREADS) sums_kernel(grid_memory *m, int rounds) {
    __shared__ float total[2 * CHANNELS];
    const int        t = (int)threadIdx.x, n = (int)gridDim.x;
    unsigned         wrong = 0;
    for (int r = 1; r <= rounds; r++) {
        const int mine = (int)blockIdx.x + (t + r) % 7;
        Sums::run(*m, (unsigned)r, (float)mine, total);
        if (t < 2 * CHANNELS) wrong += total[t] != (float)(n * (n - 1) / 2 + n * ((t + r) % 7));
        __syncthreads();
    }
    if (wrong) atomicAdd(&m->errors, wrong);
    if (Sums::CLUSTER > 1) cluster_arrive(), cluster_wait();
}

/* Two blocks send a word to and fro: half a round is the time until another block sees a store. */
__global__ void pair_kernel(grid_memory *m, int rounds) {
    if (threadIdx.x || (blockIdx.x && blockIdx.x != gridDim.x - 1)) return;
    for (int r = 1; r <= rounds; r++) {
        const unsigned mine = 2 * (unsigned)r - (blockIdx.x == 0);
        if (blockIdx.x == 0) {
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&m->ball), "r"(mine) : "memory");
            while (load_relaxed(&m->ball) != mine + 1) {
            }
        } else {
            while (load_relaxed(&m->ball) != mine - 1) {
            }
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&m->ball), "r"(mine) : "memory");
        }
    }
}

__global__ void empty_kernel() {}

/* ---- measuring ---- */

struct machine {
    int          multiprocessors;
    grid_memory *memory;
    cudaStream_t stream;
    cudaEvent_t  begin, end;
};

using kernel_t = void (*)(grid_memory *, int);

/* Milliseconds of a cooperative launch. */
static float launch(const machine &g, kernel_t kernel, int blocks, int cluster, int rounds) {
    cudaLaunchAttribute a[2] = {};
    cudaLaunchConfig_t  c    = {};
    float               ms   = 0;
    a[0].id = cudaLaunchAttributeCooperative, a[0].val.cooperative = 1;
    a[1].id               = cudaLaunchAttributeClusterDimension;
    a[1].val.clusterDim.x = (unsigned)cluster, a[1].val.clusterDim.y = 1, a[1].val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)blocks), c.blockDim = dim3(THREADS), c.stream = g.stream, c.attrs = a;
    c.numAttrs = cluster > 1 ? 2 : 1, c.dynamicSmemBytes = 120 * 1024; /* one block a multiprocessor */
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 * 1024));
    TRY(cudaMemsetAsync(g.memory, 0, sizeof *g.memory, g.stream));
    TRY(cudaEventRecord(g.begin, g.stream));
    TRY(cudaLaunchKernelEx(&c, kernel, g.memory, rounds));
    TRY(cudaEventRecord(g.end, g.stream));
    TRY(cudaStreamSynchronize(g.stream));
    TRY(cudaEventElapsedTime(&ms, g.begin, g.end));
    return ms;
}

/* The most blocks of a cooperative launch with one block a multiprocessor in whole clusters. */
static int most_blocks(const machine &g, kernel_t kernel, int cluster) {
    cudaLaunchAttribute a = {};
    cudaLaunchConfig_t  c = {};
    int                 n = 0;
    if (cluster == 1) return g.multiprocessors;
    a.id               = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = (unsigned)cluster, a.val.clusterDim.y = 1, a.val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)(g.multiprocessors / cluster * cluster)), c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = 120 * 1024, c.attrs = &a, c.numAttrs = 1;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 * 1024));
    TRY(cudaOccupancyMaxActiveClusters(&n, kernel, &c));
    return n * cluster;
}

static float median(std::vector<float> &v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

static bool measure(const machine &g, const char *name, kernel_t kernel, int cluster, float per_round = 1) {
    std::vector<float> us;
    unsigned           errors = 0;
    const int          blocks = most_blocks(g, kernel, cluster);
    (void)launch(g, kernel, blocks, cluster, FEW);
    for (int i = 0; i < REPEATS; i++) {
        const float few = launch(g, kernel, blocks, cluster, FEW), many = launch(g, kernel, blocks, cluster, MANY);
        us.push_back((many - few) * 1000 / (MANY - FEW) * per_round);
    }
    TRY(cudaMemcpy(&errors, &g.memory->errors, sizeof errors, cudaMemcpyDeviceToHost));
    const float middle = median(us);
    printf("%-64s %4d  %6.2f  (%.2f to %.2f)%s\n", name, blocks, (double)middle, (double)us.front(), (double)us.back(),
           errors ? "  WRONG" : "");
    fflush(stdout);
    return errors == 0;
}

template <class Barrier> static bool barrier(const machine &g, const char *name) {
    char with[128];
    bool good = measure(g, name, barrier_kernel<Barrier, 0>, Barrier::CLUSTER);
    snprintf(with, sizeof with, "%s, with 4 KiB of data", name);
    good &= measure(g, with, barrier_kernel<Barrier, 1024>, Barrier::CLUSTER);
    return good;
}
template <class Sums> static bool sums(const machine &g, const char *name) {
    return measure(g, name, sums_kernel<Sums>, Sums::CLUSTER);
}

/* Empty kernels in a captured graph: microseconds each. */
static void graph(const machine &g, const char *name, bool cooperative, int threads, int bytes) {
    cudaLaunchAttribute a = {};
    cudaLaunchConfig_t  c = {};
    cudaGraph_t         graph;
    cudaGraphExec_t     exec;
    std::vector<float>  us;
    enum { NODES = 100 };
    a.id = cudaLaunchAttributeCooperative, a.val.cooperative = 1;
    c.gridDim = dim3((unsigned)g.multiprocessors), c.blockDim = dim3((unsigned)threads), c.stream = g.stream;
    c.attrs = &a, c.numAttrs = cooperative ? 1 : 0, c.dynamicSmemBytes = (size_t)bytes;
    TRY(cudaFuncSetAttribute(empty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    TRY(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NODES; i++) TRY(cudaLaunchKernelEx(&c, empty_kernel));
    TRY(cudaStreamEndCapture(g.stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < REPEATS; i++) {
        float ms = 0;
        TRY(cudaEventRecord(g.begin, g.stream));
        TRY(cudaGraphLaunch(exec, g.stream));
        TRY(cudaEventRecord(g.end, g.stream));
        TRY(cudaStreamSynchronize(g.stream));
        TRY(cudaEventElapsedTime(&ms, g.begin, g.end));
        us.push_back(ms * 1000 / NODES);
    }
    const float middle = median(us);
    printf("%-64s %4d  %6.2f  (%.2f to %.2f)\n", name, g.multiprocessors, (double)middle, (double)us.front(),
           (double)us.back());
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
}

/* A launch of more blocks than the multiprocessors hold is refused by the driver, not started. */
static bool refused(const machine &g) {
    cudaLaunchAttribute a = {};
    cudaLaunchConfig_t  c = {};
    a.id = cudaLaunchAttributeCooperative, a.val.cooperative = 1;
    c.gridDim = dim3((unsigned)g.multiprocessors + 1), c.blockDim = dim3(THREADS), c.stream = g.stream;
    c.attrs = &a, c.numAttrs = 1, c.dynamicSmemBytes = 120 * 1024;
    const cudaError_t error = cudaLaunchKernelEx(&c, barrier_kernel<counter_barrier<1>, 0>, g.memory, 1);
    (void)cudaGetLastError();
    TRY(cudaStreamSynchronize(g.stream));
    printf("one block too many: %s\n", cudaGetErrorName(error));
    return error == cudaErrorCooperativeLaunchTooLarge;
}

int main() {
    machine        g = {};
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, 0) != cudaSuccess || p.major < 9) {
        fprintf(stderr, "grid_barrier needs a GPU of compute capability 9.0\n");
        return 77;
    }
    g.multiprocessors = p.multiProcessorCount;
    TRY(cudaMalloc(&g.memory, sizeof *g.memory));
    TRY(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    TRY(cudaEventCreate(&g.begin));
    TRY(cudaEventCreate(&g.end));
    printf("%s, %d multiprocessors\n%-64s %4s  %6s\n", p.name, g.multiprocessors, "", "blk", "us");
    bool good = measure(g, "one word to another block", pair_kernel, 1, 0.5f);
    good &= barrier<library_barrier>(g, "cooperative_groups grid.sync");
    good &= barrier<counter_barrier<0>>(g, "counter: atom.acq_rel, ld.acquire");
    good &= barrier<counter_barrier<1>>(g, "counter: red.release, ld.acquire");
    good &= barrier<counter_barrier<2>>(g, "counter: fence, red.relaxed, ld.relaxed, fence");
    good &= barrier<cluster_barrier<2>>(g, "clusters of 2, then counter, then clusters");
    good &= barrier<cluster_barrier<4>>(g, "clusters of 4, then counter, then clusters");
    good &= barrier<cluster_poll_barrier<2>>(g, "clusters of 2, then counter that all blocks poll");
    good &= barrier<cluster_poll_barrier<4>>(g, "clusters of 4, then counter that all blocks poll");
    good &= barrier<gathered_flags_barrier>(g, "flags, gathered by block 0, one word back");
    good &= barrier<all_flags_barrier>(g, "flags, read by all blocks");
    good &= barrier<wide_flags_barrier>(g, "flags, read by all blocks, four a load, one fence");
    good &= sums<rows_sums<counter_barrier<1>>>(g, "BN sums: rows, counter, all rows read");
    good &= sums<rows_sums<wide_flags_barrier>>(g, "BN sums: rows, flags, all rows read");
    good &= sums<rows_sums<cluster_poll_barrier<2>>>(g, "BN sums: clusters of 2, rows, counter, all rows read");
    good &= sums<rows_sums<cluster_poll_barrier<4>>>(g, "BN sums: clusters of 4, rows, counter, all rows read");
    good &= sums<owner_sums<1>>(g, "BN sums: packets to the owner of a channel, packets back");
    good &= sums<owner_sums<2>>(g, "BN sums: clusters of 2, packets to the owner, packets back");
    good &= sums<owner_sums<4>>(g, "BN sums: clusters of 4, packets to the owner, packets back");
    good &= sums<packet_sums<1>>(g, "BN sums: packets of all blocks read by all");
    good &= sums<packet_sums<2>>(g, "BN sums: packets of all clusters of 2 read by all");
    good &= sums<packet_sums<4>>(g, "BN sums: packets of all clusters of 4 read by all");
    good &= sums<integer_sums<counter_barrier<1>>>(g, "BN sums: 64-bit integer red, counter");
    good &= sums<integer_sums<cluster_poll_barrier<2>>>(g, "BN sums: clusters of 2, 64-bit integer red, counter");
    good &= sums<integer_sums<cluster_poll_barrier<4>>>(g, "BN sums: clusters of 4, 64-bit integer red, counter");
    graph(g, "graph of empty launches, 256 threads", false, 256, 0);
    graph(g, "graph of empty cooperative launches, 256 threads", true, 256, 0);
    graph(g, "graph of empty cooperative launches, 768 threads, 200 KiB", true, 768, 200 * 1024);
    good &= refused(g);
    printf("%s\n", good ? "all rounds right" : "WRONG");
    return good ? 0 : 1;
}

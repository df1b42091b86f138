/* tests/bench/grid_sums.cuh: designs of the exchange of BN sums in a cooperative launch, for grid_barrier.cu: every
 * block has two sums of 64 channels; afterwards every block has the totals over all blocks, in shared memory, added in
 * an order that depends on the number of blocks only. */
#ifndef GRID_SUMS_CUH
#define GRID_SUMS_CUH

#include "tests/bench/grid_barrier.cuh"

/* Adds rows of 2*CHANNELS floats, `stride` floats apart: 32 threads a row, 8 rows at a time, all loads in flight. */
template <int MOST> __device__ __forceinline__ void rows_add(const float *rows, int count, int stride, float *total) {
    __shared__ float4 part[THREADS];
    constexpr int     SHARES = THREADS / WARP, EACH = (MOST + SHARES - 1) / SHARES;
    const int         four = (int)threadIdx.x % WARP, share = (int)threadIdx.x / WARP;
    float4            v[EACH], s                            = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = share + i * SHARES < count
                   ? __ldcg(reinterpret_cast<const float4 *>(rows + (share + i * SHARES) * stride) + four)
                   : s;
#pragma unroll
    for (int i = 0; i < EACH; i++) s.x += v[i].x, s.y += v[i].y, s.z += v[i].z, s.w += v[i].w;
    part[threadIdx.x] = s;
    __syncthreads();
    if (share == 0) {
        for (int i = 1; i < SHARES; i++) {
            const float4 p = part[i * WARP + four];
            s.x += p.x, s.y += p.y, s.z += p.z, s.w += p.w;
        }
        reinterpret_cast<float4 *>(total)[four] = s;
    }
    __syncthreads();
}

/* Adds the sums of the blocks of a cluster through distributed shared memory: `sum` becomes the cluster's sum of value
 * threadIdx.x in every block. A block may write `mine` again after the next cluster barrier but one. */
template <int SIZE> __device__ __forceinline__ float cluster_add(float *mine, float sum) {
    if (SIZE == 1) return sum;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < 2 * CHANNELS) mine[threadIdx.x] = sum;
    cluster_arrive();
    cluster_wait();
    sum = 0;
    if (threadIdx.x < 2 * CHANNELS)
#pragma unroll
        for (int i = 0; i < SIZE; i++) sum += cluster.map_shared_rank(mine, i)[threadIdx.x];
    return sum;
}

/* Rows of sums in the L2 cache, a barrier, and every block adds all rows (of clusters, if the barrier has them). */
template <class Barrier> struct rows_sums {
    enum { CLUSTER = Barrier::CLUSTER };
    static __device__ __forceinline__ void run(grid_memory &m, unsigned epoch, float sum, float *total) {
        __shared__ float mine[2][2 * CHANNELS];
        float(*rows)[1024] = m.rows[epoch & 1];
        sum                = cluster_add<CLUSTER>(mine[epoch & 1], sum);
        if (threadIdx.x < 2 * CHANNELS && blockIdx.x % CLUSTER == 0)
            __stcg(&rows[blockIdx.x / CLUSTER][threadIdx.x], sum);
        Barrier::sync(m, epoch);
        rows_add<(CLUSTER == 1 ? 136 : 72)>(&rows[0][0], (int)gridDim.x / CLUSTER, 1024, total);
    }
};

/* No barrier: packets with the epoch, which their reader polls. Block c adds channel c and sends the totals to all. */
template <int SIZE> struct owner_sums {
    enum { CLUSTER = SIZE };
    static __device__ __forceinline__ void run(grid_memory &m, unsigned epoch, float sum, float *total) {
        __shared__ float mine[2][2 * CHANNELS];
        const int        lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, t = (int)threadIdx.x;
        const int        senders = (int)gridDim.x / SIZE;
        sum                      = cluster_add<SIZE>(mine[epoch & 1], sum);
        __shared__ float own[2][2 * CHANNELS];
        if (t < 2 * CHANNELS) own[epoch & 1][t] = sum;
        __syncthreads();
        if (t < CHANNELS && blockIdx.x % SIZE == 0)
            store_packet(&m.gathered[t][blockIdx.x / SIZE], own[epoch & 1][t], own[epoch & 1][CHANNELS + t], epoch);
        if (warp == 4 && blockIdx.x < CHANNELS) {
            float a = 0, b = 0;
            uint4 v[5];
            for (bool wait = true; wait;) {
                wait = false;
#pragma unroll
                for (int i = 0; i < 5; i++)
                    v[i] = lane + i * WARP < senders ? load_packet(&m.gathered[blockIdx.x][lane + i * WARP])
                                                     : make_uint4(0, 0, epoch, 0);
#pragma unroll
                for (int i = 0; i < 5; i++) wait |= v[i].z != epoch;
            }
#pragma unroll
            for (int i = 0; i < 5; i++) a += __uint_as_float(v[i].x), b += __uint_as_float(v[i].y);
            __syncwarp();
#pragma unroll
            for (int o = WARP / 2; o > 0; o /= 2) a += __shfl_xor_sync(~0u, a, o), b += __shfl_xor_sync(~0u, b, o);
            if (lane == 0) store_packet(&m.result[blockIdx.x], a, b, epoch);
        }
        if (warp >= 6) {
            const int c = (warp - 6) * WARP + lane;
            uint4     v;
            do v = load_packet(&m.result[c]);
            while (v.z != epoch);
            total[c] = __uint_as_float(v.x), total[CHANNELS + c] = __uint_as_float(v.y);
        }
        __syncthreads();
    }
};

/* No barrier: every block polls the packets of all blocks (or clusters) and adds them. */
template <int SIZE> struct packet_sums {
    enum { CLUSTER = SIZE, MOST = SIZE == 1 ? 136 : SIZE == 2 ? 68 : 36 };
    static __device__ __forceinline__ void run(grid_memory &m, unsigned epoch, float sum, float *total) {
        __shared__ float  mine[2][2 * CHANNELS], own[2][2 * CHANNELS];
        __shared__ float2 part[THREADS];
        constexpr int     SHARES = THREADS / CHANNELS, EACH = (MOST + SHARES - 1) / SHARES;
        const int         t = (int)threadIdx.x, c = t % CHANNELS, share = t / CHANNELS;
        const int         senders = (int)gridDim.x / SIZE;
        uint4(*packet)[CHANNELS]  = m.packet[epoch & 1];
        sum                       = cluster_add<SIZE>(mine[epoch & 1], sum);
        if (t < 2 * CHANNELS) own[epoch & 1][t] = sum;
        __syncthreads();
        if (t < CHANNELS && blockIdx.x % SIZE == 0)
            store_packet(&packet[blockIdx.x / SIZE][t], own[epoch & 1][t], own[epoch & 1][CHANNELS + t], epoch);
        float a = 0, b = 0;
        uint4 v[EACH];
        for (bool wait = true; wait;) {
            wait = false;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                v[i] = share + i * SHARES < senders ? load_packet(&packet[share + i * SHARES][c])
                                                    : make_uint4(0, 0, epoch, 0);
#pragma unroll
            for (int i = 0; i < EACH; i++) wait |= v[i].z != epoch;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) a += __uint_as_float(v[i].x), b += __uint_as_float(v[i].y);
        part[t] = make_float2(a, b);
        __syncthreads();
        if (share == 0) {
            for (int i = 1; i < SHARES; i++) a += part[i * CHANNELS + c].x, b += part[i * CHANNELS + c].y;
            total[c] = a, total[CHANNELS + c] = b;
        }
        __syncthreads();
    }
};

/* Sums of 64-bit integers (fixed point), whose order does not matter: atomic additions, a barrier, and 1 KiB to read.
 * Three sets: one is added to, one is read, one is set to 0 for the next round. */
template <class Barrier> struct integer_sums {
    enum { CLUSTER = Barrier::CLUSTER };
    static __device__ __forceinline__ void run(grid_memory &m, unsigned epoch, float sum, float *total) {
        const int        t = (int)threadIdx.x;
        __shared__ float mine[2][2 * CHANNELS];
        sum = cluster_add<CLUSTER>(mine[epoch & 1], sum);
        if (t < 2 * CHANNELS && blockIdx.x % CLUSTER == 0) {
            const long long v = __float2ll_rn(sum * 1048576.0f);
            asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(&m.fixed[epoch % 3][t]), "l"(v) : "memory");
            if (blockIdx.x == 0) __stcg(&m.fixed[(epoch + 1) % 3][t], 0ull);
        }
        Barrier::sync(m, epoch);
        if (t < 2 * CHANNELS) total[t] = (float)(long long)__ldcg(&m.fixed[epoch % 3][t]) * (1 / 1048576.0f);
        __syncthreads();
    }
};

#endif

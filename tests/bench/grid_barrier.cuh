/* tests/bench/grid_barrier.cuh: designs of a barrier of all blocks of a cooperative launch, for grid_barrier.cu. All
 * threads of all blocks call sync(). What a block wrote before it, every block may read afterwards. */
#ifndef GRID_BARRIER_CUH
#define GRID_BARRIER_CUH

#include <cooperative_groups.h>
#include <cstdint>

enum { THREADS = 256, WARP = 32, MOST_BLOCKS = 256, CHANNELS = 64 };

/* Global memory of a launch. The host sets it to 0 before each launch. */
struct grid_memory {
    alignas(128) unsigned counter;
    alignas(128) unsigned released;
    alignas(128) unsigned flag[MOST_BLOCKS];
    alignas(128) float rows[2][MOST_BLOCKS][1024];       /* 4 KiB a block, two rounds */
    alignas(128) uint4 packet[2][MOST_BLOCKS][CHANNELS]; /* by sender, two rounds */
    alignas(128) uint4 gathered[CHANNELS][MOST_BLOCKS];  /* by channel */
    alignas(128) uint4 result[CHANNELS];
    alignas(128) unsigned long long fixed[3][2 * CHANNELS]; /* sums of integers, three rounds */
    alignas(128) unsigned errors;
    alignas(128) unsigned ball;
};

__device__ __forceinline__ void red_release(unsigned *at, unsigned v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void red_relaxed(unsigned *at, unsigned v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned *at) {
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ unsigned load_relaxed(const unsigned *at) {
    unsigned v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(unsigned *at, unsigned v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
/* 16 bytes in one access: whoever sees the epoch sees the other words. */
__device__ __forceinline__ void store_packet(uint4 *at, float a, float b, unsigned epoch) {
    const uint64_t low  = (uint64_t)__float_as_uint(a) | (uint64_t)__float_as_uint(b) << 32;
    const uint64_t high = (uint64_t)epoch;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(at), "l"(low),
                 "l"(high)
                 : "memory");
}
__device__ __forceinline__ uint4 load_packet(const uint4 *at) {
    uint64_t low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
    return make_uint4((unsigned)low, (unsigned)(low >> 32), (unsigned)high, (unsigned)(high >> 32));
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* cooperative_groups: grid.sync() */
struct library_barrier {
    enum { CLUSTER = 1 };
    static __device__ __forceinline__ void sync(grid_memory &, unsigned) { cooperative_groups::this_grid().sync(); }
};

/* One counter in the L2 cache. HOW 0: atom and acquire loads; 1: red.release and acquire loads; 2: a fence, then
 * relaxed accesses and a second fence. */
template <int HOW> struct counter_barrier {
    enum { CLUSTER = 1 };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const unsigned target = epoch * gridDim.x;
            if (HOW == 0) {
                unsigned old;
                asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(&m.counter) : "memory");
                if (old + 1 < target)
                    while (load_acquire(&m.counter) < target) {
                    }
            } else if (HOW == 1) {
                red_release(&m.counter, 1);
                while (load_acquire(&m.counter) < target) {
                }
            } else {
                __threadfence();
                red_relaxed(&m.counter, 1);
                while (load_relaxed(&m.counter) < target) {
                }
                __threadfence();
            }
        }
        __syncthreads();
    }
};

/* The blocks of a cluster synchronise; one block a cluster adds to the counter and waits for the others. */
template <int SIZE> struct cluster_barrier {
    enum { CLUSTER = SIZE };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 0 && blockIdx.x % SIZE == 0) {
            red_release(&m.counter, 1);
            while (load_acquire(&m.counter) < epoch * (gridDim.x / SIZE)) {
            }
        }
        cluster_arrive();
        cluster_wait();
    }
};
/* The same; the threads 0 of all blocks wait for the counter, so there is no second cluster barrier. */
template <int SIZE> struct cluster_poll_barrier {
    enum { CLUSTER = SIZE };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 0) {
            if (blockIdx.x % SIZE == 0) red_release(&m.counter, 1);
            while (load_acquire(&m.counter) < epoch * (gridDim.x / SIZE)) {
            }
        }
        __syncthreads();
    }
};

/* A flag a block. Block 0 reads all flags, one a thread, and then releases the others with one word. */
struct gathered_flags_barrier {
    enum { CLUSTER = 1 };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        __syncthreads();
        if (threadIdx.x == 0) store_release(&m.flag[blockIdx.x], epoch);
        if (blockIdx.x == 0) {
            if (threadIdx.x < gridDim.x)
                while (load_acquire(&m.flag[threadIdx.x]) < epoch) {
                }
            __syncthreads();
            if (threadIdx.x == 0) store_release(&m.released, epoch);
        } else if (threadIdx.x == 0)
            while (load_acquire(&m.released) < epoch) {
            }
        __syncthreads();
    }
};
/* A flag a block, and every block reads all flags, one a thread. */
struct all_flags_barrier {
    enum { CLUSTER = 1 };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        __syncthreads();
        if (threadIdx.x == 0) store_release(&m.flag[blockIdx.x], epoch);
        if (threadIdx.x < gridDim.x)
            while (load_acquire(&m.flag[threadIdx.x]) < epoch) {
            }
        __syncthreads();
    }
};
/* The same with four flags a load, by the first two warps, and one fence. */
struct wide_flags_barrier {
    enum { CLUSTER = 1 };
    static __device__ __forceinline__ void sync(grid_memory &m, unsigned epoch) {
        __syncthreads();
        if (threadIdx.x == 0) store_release(&m.flag[blockIdx.x], epoch);
        if (threadIdx.x * 4 < gridDim.x) {
            const int left = (int)gridDim.x - (int)threadIdx.x * 4;
            for (;;) {
                const uint4 v = load_packet(reinterpret_cast<const uint4 *>(m.flag) + threadIdx.x);
                if (v.x >= epoch && (left < 2 || v.y >= epoch) && (left < 3 || v.z >= epoch) &&
                    (left < 4 || v.w >= epoch))
                    break;
            }
            __threadfence();
        }
        __syncthreads();
    }
};

#endif

/* cuda/conv/cifar/cifar_finish.cuh: a convolution that finishes the BN of the convolution before it: it adds the sums
 * that the blocks of the launch before it stored, instead of a small launch between them. Each block does it for
 * itself. One of the blocks without work, or else block 0, also stores the results. The first convolution of a block of
 * the network also computes the end of the block before it, relu(bn(x) + add), of which each block stores the image, or
 * the rows, that it reads. */
#ifndef CK_CIFAR_FINISH_CUH
#define CK_CIFAR_FINISH_CUH

#include "cuda/conv/cifar/cifar_forward.cuh"

namespace cifar {
namespace {

struct forward_finish_args : forward_args {
    static constexpr bool FINISH = true, APPLIES = false;
    const float          *before_rows; /* [before_count][2][C] */
    int                   before_count;
    struct ck_bn_finalize finish;
    struct ck_bn_factors  factors;
};

/* x is the output of the convolution before, z = relu(bn(x) + add) the input of this one. */
struct forward_apply_args : forward_finish_args {
    static constexpr bool APPLIES = true;
    const void           *add; /* or NULL */
    void                 *z;
    int                   shortcut_c, shortcut_pad; /* as in ck_cifar_conv */
};

/* As ck_bn_apply. */
template <typename T>
__device__ __forceinline__ uint4 apply_act(uint4 x, uint4 add, const float (&scale)[8], const float (&bias)[8]) {
    float v[8], more[8];
    ck_unpack<T>(x, v);
    ck_unpack<T>(add, more);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = ck_relu(fmaf(v[i], scale[i], bias[i]) + more[i]);
    return ck_pack<T>(v);
}

/* The sums of the launch before, and the BN that they finish. A thread adds four neighbouring numbers of some of the
 * rows [2][C]. Its loads start before those of the image. */
template <int C> struct finish_sums {
    enum { FOURS = 2 * C / 4, SHARES = THREADS / FOURS, FLIGHT = C == 16 ? 8 : 16, ROOM = (WARPS * 2 + 2) * C * 4 };
    float4                          v[FLIGHT];
    ck_bn_channel                   bn;
    __device__ __forceinline__ void load(const forward_finish_args &a, int from) {
        const int four = (int)threadIdx.x % FOURS, b = from + (int)threadIdx.x / FOURS;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            v[i] =
                b + i * SHARES < a.before_count
                    ? __ldcg(reinterpret_cast<const float4 *>(a.before_rows + (int64_t)(b + i * SHARES) * 2 * C) + four)
                    : make_float4(0, 0, 0, 0);
    }
    /* Loads gamma, beta and running statistics. They come first, because they are in memory and not in the L2 cache. */
    __device__ __forceinline__ void parameters(const forward_finish_args &a) {
        const int c = (int)threadIdx.x;
        if (c >= C) return;
        if (stores(a))
            bn.load(a.finish, c);
        else
            bn.gamma = a.finish.gamma[c], bn.beta = a.finish.beta[c];
    }
    static __device__ __forceinline__ bool stores(const forward_finish_args &a) {
        return (int)blockIdx.x == (a.idle > 0 ? a.idle - 1 : 0);
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
    /* Writes scale_bias [2][C] to the start of `room`, ROOM bytes of shared memory. The order of the sums is the same
     * in all blocks. All threads call; afterwards they are synchronised. */
    __device__ __forceinline__ void end(const forward_finish_args &a, float *room) {
        const int c     = (int)threadIdx.x;
        float    *parts = room + 2 * C, s[4] = {};
        add_to(s);
        for (int b = SHARES * FLIGHT; b < a.before_count; b += SHARES * FLIGHT) load(a, b), add_to(s);
#pragma unroll
        for (int offset = FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
        if (c % CK_WARP < FOURS)
            *reinterpret_cast<float4 *>(parts + c / CK_WARP * 2 * C + c % FOURS * 4) =
                make_float4(s[0], s[1], s[2], s[3]);
        __syncthreads();
        if (c < C) finish_channel(a, room, parts, c);
        __syncthreads();
    }
    __device__ __forceinline__ void finish_channel(const forward_finish_args &a, float *room, const float *parts,
                                                   int c) const {
        double first, second;
        parts_add<C, WARPS>(parts, c, first, second);
        const float  sum = (float)first, squares = (float)second;
        const double mean = (double)sum * a.factors.inverse;
        double       var  = (double)squares * a.factors.inverse - mean * mean;
        if (var < 0) var = 0;
        const double scale = (double)bn.gamma * rsqrt(var + (double)a.finish.eps); /* as ck_bn_channel */
        room[c] = (float)scale, room[C + c] = (float)((double)bn.beta - mean * scale);
        if (stores(a)) bn.finish(a.finish, a.factors, c, C, sum, squares);
    }
};

/* As whole_image, for the tile of a convolution with a stride of 2, which begins with row row0 of an image. */
template <class L> struct tile_vectors {
    enum { ROUNDS = (L::ROWS * L::WIDE * L::CHUNKS + L::THREADS - 1) / L::THREADS };
    uint4                                                 v[ROUNDS];
    template <typename T> __device__ __forceinline__ void load(const T *image, int row0) {
        int n = 0;
        tile_for_each<L>(row0, 1, channels{}, [&](uint32_t, int from, int, bool real) {
            v[n++] = real ? __ldcg(reinterpret_cast<const uint4 *>(image + from)) : make_uint4(0, 0, 0, 0);
        });
    }
};

/* The same as forward_load_finish for a stride of 2. The first row of a tile belongs to the tile above it. The block
 * computes that row as well, but does not store it. */
template <class S, typename T>
__device__ __forceinline__ void forward_load_down(const forward_apply_args &a, uint32_t base, float *room) {
    using D              = forward_tiling<S>;
    using X              = typename forward_memory<S>::X;
    const uint32_t    xs = base + forward_memory<S>::X_AT;
    const int         b = block_of<false>(a), y0 = b % D::TILES * D::TH, row0 = input_row<S>(y0);
    const int64_t     at   = (int64_t)(b / D::TILES) * S::H * S::H * S::C;
    const bool        here = b >= 0 && b < a.N * D::TILES;
    const int         c0   = (int)threadIdx.x % X::CHUNKS * 8;
    finish_sums<S::C> sums;
    tile_vectors<X>   p, more = {};
    float             scale[8], bias[8];
    sums.parameters(a);
    if (a.add && here) more.load((const T *)a.add + at, row0);
    ck_begin_after_last();
    ck_copy_commit();
    sums.load(a, 0);
    if (here) p.load((const T *)a.x + at, row0);
    sums.end(a, room);
    if (!here) return;
    load_floats(scale, room + c0);
    load_floats(bias, room + S::C + c0);
    T  *z = (T *)a.z + at;
    int n = 0;
    tile_for_each<X>(row0, 1, channels{}, [&](uint32_t place, int from, int, bool real) {
        const uint4 v = real ? apply_act<T>(p.v[n], more.v[n], scale, bias) : make_uint4(0, 0, 0, 0);
        ck_put16(xs + place, v);
        if (real && from >= S::STRIDE * y0 * S::H * S::C) ck_store_whole(z + from, v);
        n++;
    });
    ck_copy_wait<0>();
}

/* Loads every second pixel of an image of twice the size with `all` channels, which become those from `pad` on. */
template <class L, typename T>
__device__ __forceinline__ void load_shortcut(whole_image<L> &to, const T *from, int all, int pad) {
    using W          = whole_image<L>;
    const int thread = (int)threadIdx.x % L::THREADS, c = W::chunk() * 8 - pad;
    const int y = thread / W::LINE, x = thread % W::LINE / L::CHUNKS;
    from += (y * 2 * L::SIDE + x) * 2 * all + c;
#pragma unroll
    for (int i = 0; i < W::ROUNDS; i++)
        to.v[i] = c >= 0 && c < all ? __ldcg(reinterpret_cast<const uint4 *>(from + i * W::STEP * 4 * L::SIDE * all))
                                    : make_uint4(0, 0, 0, 0);
}

/* The summand of image `image`. */
template <class S, typename T>
__device__ __forceinline__ void load_summand(const forward_apply_args                   &a,
                                             whole_image<typename forward_memory<S>::X> &to, int image) {
    constexpr int IMAGE = S::H * S::H;
    if (S::C == 16 || !a.shortcut_c)
        to.load((const T *)a.add + (int64_t)image * IMAGE * S::C);
    else
        load_shortcut(to, (const T *)a.add + (int64_t)image * 4 * IMAGE * a.shortcut_c, a.shortcut_c, a.shortcut_pad);
}

/* Starts a block that finishes the BN before it, and loads its first image; parameters and the summand before the wait.
 * This, and that a block without work stores the BN's results, makes steps of ResNet-56 0.9 % faster. */
template <class S, typename T, class Args>
__device__ __forceinline__ void forward_load_finish(const Args &a, uint32_t base, float *room) {
    using X                = typename forward_memory<S>::X;
    const uint32_t    xs   = base + forward_memory<S>::X_AT;
    const int64_t     at   = (int64_t)block_of<false>(a) * S::H * S::H * S::C;
    const bool        here = block_of<false>(a) >= 0 && block_of<false>(a) < a.N;
    finish_sums<S::C> sums;
    whole_image<X>    p, more = {};
    float             scale[8], bias[8];
    sums.parameters(a);
    if constexpr (Args::APPLIES)
        if (a.add && here) load_summand<S, T>(a, more, block_of<false>(a));
    ck_begin_after_last();
    ck_copy_commit();
    sums.load(a, 0);
    if (here) p.load((const T *)a.x + at);
    sums.end(a, room);
    if (!here) return;
    load_floats(scale, room + p.chunk() * 8);
    load_floats(bias, room + S::C + p.chunk() * 8);
#pragma unroll
    for (int i = 0; i < p.ROUNDS; i++)
        p.v[i] = Args::APPLIES ? apply_act<T>(p.v[i], more.v[i], scale, bias) : act<T>(p.v[i], scale, bias);
    p.store(xs);
    if constexpr (Args::APPLIES) p.put((T *)a.z + at);
    ck_copy_wait<0>();
}

} // namespace
} // namespace cifar

#endif

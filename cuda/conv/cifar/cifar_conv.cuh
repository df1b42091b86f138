/* cuda/conv/cifar/cifar_conv.cuh: code that forward and backward of the CIFAR convolutions share: shapes, tiles in
 * shared memory, tensor core instructions, launches. cuda/conv/cifar/cifar_sums.cuh has the sums over the blocks of a
 * launch.
 *
 * A tile is some rows of an image (or whole images) in shared memory, pixel by pixel, with CH channels and 16 bytes of
 * padding each. So 8 neighbouring pixels begin in 8 different groups of 4 banks, ldmatrix has no conflict, and a filter
 * position is a constant distance from the pixel. For the same reason, the columns of an image that a stride of 2 reads
 * are stored in two halves, even columns first. Pixels outside the image are 0 in the tile. */
#ifndef CK_CIFAR_CONV_CUH
#define CK_CIFAR_CONV_CUH

#include "cuda/common/shared.cuh"
#include "cuda/conv/cifar/cifar_conv.h"
#include "cuda/conv/cifar/cifar_launch.cuh"
#include "cuda/norm/bn_finish.cuh"

namespace cifar {

/* Blocks have 8 warps unless stated otherwise. */
enum { WARPS = 8, THREADS = WARPS * CK_WARP };

/* A barrier of THREADS threads of a block with number ID; 0 is that of __syncthreads(). */
template <int ID, int THREADS> __device__ __forceinline__ void barrier_sync() {
    asm volatile("bar.sync %0, %1;\n" ::"n"(ID), "n"(THREADS) : "memory");
}

/* SMALL: the backward needs less shared memory. ANY: C and K are the numbers of channels of the tiles in shared memory.
 * Tensors may have fewer channels, in multiples of 8, and kernels get their numbers as arguments. Channels that a
 * tensor does not have are 0 in tiles and filters. */
template <int C_, int K_, int H_, int STRIDE_, int R_, bool SMALL_ = false, bool ANY_ = false> struct shape {
    enum { C = C_, K = K_, H = H_, STRIDE = STRIDE_, R = R_, TAPS = R * R, PAD = R / 2, P = H / STRIDE };
    static constexpr bool SMALL = SMALL_, ANY = ANY_;
    static_assert(R == 3 || STRIDE == 2, "1x1 filters are shortcuts");
};

/* Channels of the tensors. Products read channels in groups of 16. */
template <class S, class Args> __device__ __forceinline__ int in_channels(const Args &a) {
    return S::ANY ? a.C : (int)S::C;
}
template <class S, class Args> __device__ __forceinline__ int out_channels(const Args &a) {
    return S::ANY ? a.K : (int)S::K;
}
__device__ __forceinline__ int round_up(int channels, int step) {
    return (channels + step - 1) / step * step;
}
/* Calls f(channels_of<N>()) with N = MOST, or with ANY the number of groups of 16 that `channels` have, so that loops
 * over them are unrolled without a branch. */
template <int N> struct channels_of {
    enum { N16 = N };
};
template <bool ANY, int MOST, typename F> __device__ __forceinline__ void for_groups(int channels, F f) {
    if constexpr (!ANY || MOST == 1)
        f(channels_of<MOST>());
    else if (channels > (MOST - 1) * 16)
        f(channels_of<MOST>());
    else
        for_groups<ANY, MOST - 1>(channels, f);
}

/* ---- instructions ---- */

/* d[16][8] += a[16][16] * b[16][8] */
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- tiles ---- */

/* I images of ROWS x COLS pixels with CH channels. Column j of the image (WIDE of them) is stored in column(j); the
 * remaining columns are the margin. SIDE: rows and columns of the image in memory, of which every STEP-th is read; CT:
 * its channels, unless ANY. THREADS threads of a block, starting at a multiple of that number, fill the tile. */
template <int I_, int ROWS_, int COLS_, int CH_, int CT_, int SIDE_, int STEP_, int LEFT_, bool HALVES_,
          int THREADS_ = cifar::THREADS, bool ANY_ = false>
struct tile {
    enum {
        I       = I_,
        THREADS = THREADS_,
        ROWS    = ROWS_,
        COLS    = COLS_,
        CH      = CH_,
        CT      = CT_,
        SIDE    = SIDE_,
        STEP    = STEP_,
        LEFT    = LEFT_
    };
    enum { WIDE = SIDE / STEP, PITCH = CH * 2 + 16, IMAGE = ROWS * COLS * PITCH, BYTES = I * IMAGE, CHUNKS = CH / 8 };
    enum { VECTORS = I * ROWS * WIDE * CHUNKS, MARGIN = COLS - WIDE };
    static constexpr bool                 HALVES = HALVES_, ANY = ANY_;
    static __device__ __forceinline__ int place(int col) {
        return HALVES ? (col & 1) * ((COLS + 1) / 2) + (col >> 1) : col;
    }
    static_assert(THREADS % CHUNKS == 0, "a thread always has the same chunk of channels");
};

/* For ANY. all: channels of a pixel in global memory; here: how many of them are in this tile. */
struct channels {
    int all, here;
};
/* A thread's chunk of coefficients; chunks that do not exist get the first one. */
template <class L> __device__ __forceinline__ int coefficients(channels n) {
    const int first = (int)threadIdx.x % L::CHUNKS * 8;
    return L::ANY && first >= n.here ? 0 : first;
}

/* Visits the vectors of 16 bytes that a thread moves. A thread keeps its column and its chunk of channels, so the
 * distances between its vectors are constant. f(to, from, v, real): position in the tile (bytes), position in memory
 * from the tile's first image on (elements), number of the vector, and whether it is inside the images. Channels
 * behind the last group of 16 are not visited. */
template <class L, typename F> __device__ __forceinline__ void tile_for_each(int row0, int images, channels n, F f) {
    constexpr int LINE = L::WIDE * L::CHUNKS, STEP = L::THREADS / LINE, LINES = L::I * L::ROWS,
                  ROUNDS = (LINES + STEP - 1) / STEP;
    static_assert(L::THREADS % LINE == 0, "a thread keeps its column");
    const int thread = (int)threadIdx.x % L::THREADS, chunk = thread % L::CHUNKS, col = thread / L::CHUNKS % L::WIDE;
    const int first = thread / LINE, to = L::place(col + L::LEFT) * L::PITCH + chunk * 16,
              all = L::ANY ? n.all : (int)L::CT, from = col * L::STEP * all + chunk * 8;
    if (L::ANY && chunk / 2 * 16 >= n.here) return;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int line = first + i * STEP;
        if (ROUNDS * STEP != LINES && line >= LINES) break;
        const int image = L::I == 1 ? 0 : line / L::ROWS, row = L::I == 1 ? line : line % L::ROWS,
                  h     = (row0 + row) * L::STEP;
        const bool real = h >= 0 && h < L::SIDE && (L::I == 1 || image < images) && (!L::ANY || chunk * 8 < n.here);
        f((uint32_t)(to + image * L::IMAGE + row * L::COLS * L::PITCH), from + (image * L::SIDE + h) * L::SIDE * all,
          thread + i * L::THREADS, real);
    }
}

/* Loads the thread's coefficients of a tile, `rows` rows `gap` apart, into the L1 cache, ahead of the copies. */
template <class L>
__device__ __forceinline__ void tile_warm(const float *scale_bias, int gap, int rows, channels n = {}) {
    for (int i = 0; i < rows; i++) {
        float unused;
        asm volatile("ld.global.f32 %0, [%1];\n"
                     : "=f"(unused)
                     : "l"(scale_bias + i * gap + coefficients<L>(n))
                     : "memory");
    }
}

/* Starts the copies of a tile: rows row0.. of `images` images from `from` on (which points at the first channel
 * needed). With LINE, vector v goes to to + 16*v instead of its place in the tile; CACHED: through the L1 cache. */
template <class L, bool LINE, bool CACHED, typename T>
__device__ __forceinline__ void tile_issue(uint32_t to, const T *from, int row0, int images, channels n = {}) {
    tile_for_each<L>(row0, images, n, [=](uint32_t place, int at, int v, bool real) {
        if (CACHED)
            ck_copy16_cached(to + (LINE ? (uint32_t)v * 16 : place), from + at, real);
        else
            ck_copy16(to + (LINE ? (uint32_t)v * 16 : place), from + at, real);
    });
}

/* Writes zeros to the margin's columns, once: nothing else is ever written there. */
template <class L> __device__ __forceinline__ void tile_margin(uint32_t to) {
    if constexpr (L::MARGIN > 0)
        for (int v = (int)threadIdx.x % L::THREADS; v < L::I * L::ROWS * L::MARGIN * L::CHUNKS; v += L::THREADS) {
            const int chunk = v % L::CHUNKS, m = v / L::CHUNKS % L::MARGIN, line = v / (L::CHUNKS * L::MARGIN);
            const int col = m < L::LEFT ? m : L::WIDE + m;
            ck_put16(to + (uint32_t)((line * L::COLS + L::place(col)) * L::PITCH + chunk * 16), make_uint4(0, 0, 0, 0));
        }
}

/* For a whole image with a margin of one pixel: writes zeros to the margin, once. */
template <class L> __device__ __forceinline__ void image_margin(uint32_t to) {
    static_assert(L::LEFT == 1 && L::COLS == L::WIDE + 2 && L::ROWS == L::SIDE + 2 && L::STEP == 1 && !L::HALVES,
                  "one pixel around");
    for (int v = (int)threadIdx.x % L::THREADS; v < (2 * L::COLS + 2 * L::SIDE) * L::CHUNKS; v += L::THREADS) {
        const int i = v / L::CHUNKS, side = i - 2 * L::COLS;
        const int row = side < 0 ? i / L::COLS * (L::ROWS - 1) : 1 + side / 2,
                  col = side < 0 ? i % L::COLS : side % 2 * (L::COLS - 1);
        ck_put16(to + (uint32_t)((row * L::COLS + col) * L::PITCH + v % L::CHUNKS * 16), make_uint4(0, 0, 0, 0));
    }
}
/* A thread's vectors of a whole image, in registers: all loads are in flight before the first value is used. */
template <class L> struct whole_image {
    enum { LINE = L::WIDE * L::CHUNKS, STEP = L::THREADS / LINE, ROUNDS = L::SIDE / STEP };
    static_assert(L::THREADS % LINE == 0 && L::SIDE % STEP == 0, "a thread keeps its column and its chunk of channels");
    uint4                                 v[ROUNDS];
    static __device__ __forceinline__ int chunk() { return (int)threadIdx.x % L::CHUNKS; }
    static __device__ __forceinline__ int pixel(int thread) {
        return thread / LINE * L::SIDE + thread % LINE / L::CHUNKS;
    }
    template <typename T> __device__ __forceinline__ void load(const T *from, channels n = {}) {
        const int thread = (int)threadIdx.x % L::THREADS, all = L::ANY ? n.all : (int)L::CT;
        if (L::ANY && chunk() * 8 >= n.here) {
#pragma unroll
            for (int i = 0; i < ROUNDS; i++) v[i] = make_uint4(0, 0, 0, 0);
            return;
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; i++)
            v[i] = __ldcg(reinterpret_cast<const uint4 *>(from + pixel(thread) * all + i * STEP * L::SIDE * all) +
                          chunk());
    }
    /* Stores the vectors in an image in global memory. */
    template <typename T> __device__ __forceinline__ void put(T *to) const {
        static_assert(!L::ANY, "all channels");
        to += pixel((int)threadIdx.x % L::THREADS) * L::CT + chunk() * 8;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) ck_store_whole(to + i * STEP * L::SIDE * L::CT, v[i]);
    }
    /* Stores the vectors in a tile with a margin of one pixel. */
    __device__ __forceinline__ void store(uint32_t to) const {
        const int thread = (int)threadIdx.x % L::THREADS;
        to += (uint32_t)(((thread / LINE + 1) * L::COLS + thread % LINE / L::CHUNKS + 1) * L::PITCH + chunk() * 16);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) ck_put16(to + (uint32_t)(i * STEP * L::COLS * L::PITCH), v[i]);
    }
};

/* N floats from an array in shared or global memory, aligned to 16 bytes. */
template <int N> __device__ __forceinline__ void load_floats(float (&out)[N], const float *from) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 v = *reinterpret_cast<const float4 *>(from + i);
        out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
    }
}

/* act() of a vector of T; scale and bias are those of its channels. */
template <typename T> __device__ __forceinline__ uint4 act(uint4 v, const float (&scale)[8], const float (&bias)[8]) {
    float f[8];
    ck_unpack<T>(v, f);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = ck_relu(fmaf(f[i], scale[i], bias[i]));
    return ck_pack<T>(f);
}

/* Applies act() to the data of this thread's copies. Waits for them, except for the last LATER groups. scale_bias: CH
 * scales, then CH biases at scale_bias + gap. */
template <class L, int LATER, typename T>
__device__ __forceinline__ void tile_act(uint32_t at, const float *scale_bias, int gap, int row0, int images,
                                         channels n = {}) {
    float scale[8], bias[8];
    load_floats(scale, scale_bias + coefficients<L>(n));
    load_floats(bias, scale_bias + gap + coefficients<L>(n));
    ck_copy_wait<LATER>();
    tile_for_each<L>(row0, images, n, [&](uint32_t place, int, int, bool real) {
        if (real) ck_put16(at + place, act<T>(ck_get16(at + place), scale, bias));
    });
}

/* The same for dy = a*g + b*x + c: g is in the tile, x in `line`, as tile_issue with LINE stored it; coeffs: a, b and
 * c, `gap` apart. */
template <class L, int LATER, typename T>
__device__ __forceinline__ void tile_bn_grad(uint32_t at, uint32_t line, const float *coeffs, int gap, int row0,
                                             int images, channels n = {}) {
    float     a[8], b[8], c[8];
    const int first = coefficients<L>(n);
    load_floats(a, coeffs + first);
    load_floats(b, coeffs + gap + first);
    load_floats(c, coeffs + 2 * gap + first);
    ck_copy_wait<LATER>();
    tile_for_each<L>(row0, images, n, [&](uint32_t place, int, int v, bool real) {
        if (!real) return;
        float g[8], x[8];
        ck_unpack<T>(ck_get16(at + place), g);
        ck_unpack<T>(ck_get16(line + (uint32_t)v * 16), x);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = fmaf(a[i], g[i], fmaf(b[i], x[i], c[i]));
        ck_put16(at + place, ck_pack<T>(g));
    });
}

/* The convolution's input for TH rows of output. */
template <class S, int I, int TH, int CH, int THREADS = cifar::THREADS>
using input_tile =
    tile<I, S::R == 1 ? (int)TH : S::STRIDE * TH + (S::STRIDE == 1 ? 2 : 1),
         S::R == 1 ? (int)S::P : S::H + (S::STRIDE == 1 ? 2 : 1), CH, S::C, S::H, S::R == 1 ? (int)S::STRIDE : 1,
         S::R == 1 ? 0 : 1, S::R == 3 && S::STRIDE == 2, THREADS, S::ANY>;
template <class S> __device__ __forceinline__ int input_row(int y0) {
    return S::R == 1 ? y0 : S::STRIDE * y0 - 1;
}
/* Position of filter position (0,0) for output pixel (y, x) of the tile, and of (r,s) relative to it. */
template <class S, class L> __device__ __forceinline__ int input_pixel(int y, int x) {
    return ((S::R == 1 ? y : S::STRIDE * y) * L::COLS + x) * L::PITCH;
}
template <class S, class L> __host__ __device__ constexpr int input_tap(int r, int s) {
    return S::R == 1 ? 0 : (r * L::COLS + (S::STRIDE == 2 ? (s & 1) * ((L::COLS + 1) / 2) + (s >> 1) : s)) * L::PITCH;
}

/* With a stride of 1, products process TH rows of an image in groups of 16 pixels. The next group is one row below. A
 * group is half a row, a row, or two rows half an image apart. So a row of the input in registers is used for all rows
 * of the filter. */
template <int P, int TH> struct groups {
    enum { STRIPS = P > 16 ? P / 16 : 1, DOWN = TH * P / 16 / STRIPS };
    static_assert(P >= 16 || (P == 8 && TH == P), "two rows half an image apart");
    /* Pixel i of 16, relative to the group's first row and column. */
    static __device__ __forceinline__ int row(int i) { return P < 16 ? i / P * DOWN : 0; }
    static __device__ __forceinline__ int col(int i) { return P < 16 ? i % P : i; }
};

/* ---- the stem's input: 3 channels ---- */

/* A pixel gets a 4th channel, 0. 4 neighbouring pixels are the 16 columns of a product: a row of the filter and a
 * column of zeros. Pixels are 8 bytes apart, but ldmatrix needs addresses that are multiples of 16 bytes. So each line
 * is stored twice, the second time one pixel further. */

enum { STEM_SIDE = 32, STEM_K = 16, STEM_TH = 16, STEM_ROWS = STEM_TH + 2, STEM_WIDE = 36 };
enum { STEM_COPY = 320, STEM_LINE = 640 }; /* bytes from a line to its second copy and to the next line */
enum { STEM_BYTES = STEM_ROWS * STEM_LINE, STEM_TILES = STEM_SIDE / STEM_TH };

__device__ __forceinline__ uint32_t stem_pixel(int row, int col) {
    return (uint32_t)(row * STEM_LINE + (col & 1) * STEM_COPY + (col >> 1) * 16);
}

/* Rows row0.. of an image, STEM_ROWS of them; column j of the image is stored in column j + 1. */
template <typename T> __device__ __forceinline__ void stem_fill(char *to, const T *x, int row0) {
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(x);
#pragma unroll 3
    for (int v = (int)threadIdx.x; v < STEM_ROWS * STEM_WIDE; v += THREADS) {
        const int row = v / STEM_WIDE, col = v % STEM_WIDE, h = row0 + row, w = col - 1;
        uint2     pixel = make_uint2(0, 0);
        if (h >= 0 && h < STEM_SIDE && w >= 0 && w < STEM_SIDE) {
            const uint16_t *p = bits + (h * STEM_SIDE + w) * 3;
            pixel             = make_uint2((uint32_t)p[0] | (uint32_t)p[1] << 16, (uint32_t)p[2]);
        }
        *reinterpret_cast<uint2 *>(to + row * STEM_LINE + col * 8) = pixel;
        if (col > 0) *reinterpret_cast<uint2 *>(to + row * STEM_LINE + STEM_COPY + (col - 1) * 8) = pixel;
    }
}

/* ---- columns of the product ---- */

/* A thread of a product tile has columns 2t and 2t+1 (t = lane % 4) of each 8. Filters are stored in shared memory so
 * that these columns are 2*NT neighbouring channels, which the thread then reads and writes together. */

/* Column of channel c. */
template <int NT> __host__ __device__ constexpr int column_of(int c) {
    const int q = c % (8 * NT), t = q / (2 * NT), j = q % (2 * NT) / 2;
    return c - q + j * 8 + 2 * t + c % 2;
}

/* 2*NT channels of a thread. */
template <int NT> struct piece { uint32_t word[NT]; };
template <int NT> __device__ __forceinline__ piece<NT> piece_load(const void *from) {
    piece<NT> p;
    if constexpr (NT == 4) {
        const uint4 v = *reinterpret_cast<const uint4 *>(from);
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else {
        const uint2 v = *reinterpret_cast<const uint2 *>(from);
        p.word[0] = v.x, p.word[1] = v.y;
    }
    return p;
}
/* One store: the compiler would split plain stores. */
template <int NT> __device__ __forceinline__ void piece_store(void *to, const piece<NT> &p) {
    if constexpr (NT == 4)
        ck_store_whole(to, make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]));
    else
        asm volatile("st.global.v2.u32 [%0], {%1, %2};\n" ::"l"(to), "r"(p.word[0]), "r"(p.word[1]) : "memory");
}

/* ---- host side ---- */

/* Channels of the tiles for images of this size. A tensor has at most so many. */
inline int64_t most_in(const struct ck_conv *v) {
    return 512 / v->H;
}
inline int64_t most_out(const struct ck_conv *v) {
    return 512 / v->P;
}
/* Whether tensors have fewer channels than tiles. The stem's input has 3 in both cases. */
inline bool is_narrow(const struct ck_conv *v) {
    return (v->C != 3 && v->C != most_in(v)) || v->K != most_out(v);
}

/* Calls run(shape) with the shape of v: one of those that ck_cifar_conv_supports, but not the stem. */
template <bool ANY, typename Run> cudaError_t run_shape(const struct ck_conv *v, Run run) {
    constexpr bool B = false;
    if (v->H == 32 && v->stride == 1) return run(shape<16, 16, 32, 1, 3, B, ANY>());
    if (v->H == 32) return v->R == 3 ? run(shape<16, 32, 32, 2, 3, B, ANY>()) : run(shape<16, 32, 32, 2, 1, B, ANY>());
    if (v->H == 16 && v->stride == 1) return run(shape<32, 32, 16, 1, 3, B, ANY>());
    if (v->H == 16) return v->R == 3 ? run(shape<32, 64, 16, 2, 3, B, ANY>()) : run(shape<32, 64, 16, 2, 1, B, ANY>());
    return run(shape<64, 64, 8, 1, 3, B, ANY>());
}

} // namespace cifar

#endif

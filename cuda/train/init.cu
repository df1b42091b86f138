/* cuda/train/init.cu: weight initialisation: initialises all parameters in one launch. Reference:
 * cr_param_store_init_host (graph/param_store.c, core/rng.c).
 *
 * A block generates a tile of CK_INIT_TILE elements that are consecutive in OIHW order, four for each Philox call. The
 * integers are those of cuRAND and core/rng.c; the float formulas are also the same. The layout in memory (K,R,S,C)
 * matters only for the stores, so the values do not depend on the layout, the launch or the number of GPUs.
 *
 * log, sin and cos are computed in double with core/rng.c's polynomials and rounded once. C libraries and CUDA round
 * some arguments differently; with their functions, initial values would depend on the machine.
 *
 * Roofline: writes 4 bytes an element, reads none. About 60 instructions an element (15 of Philox; 15 in double, which
 * A100 and H100 execute at half rate) take about twice as long as the stores. Limiter: issue slots. */
#include "cuda/common/common.cuh"

#include <curand_philox4x32_x.h>

namespace {

enum { THREADS = 256, QUADS = CK_INIT_TILE / 4 };
static_assert(QUADS % (2 * THREADS) == 0, "all threads draw the same number of quads, two at a time");

/* ---- random numbers: core/rng.c's formulas, each float operation rounded once. PAIRS values are computed together, so
 * that they hide each other's latency and constants are loaded once. ---- */

enum { PAIRS = 4 };

/* c0 + c1 x + c2 x^2 + ... for every x. */
template <int TERMS>
__device__ __forceinline__ void polynomial(const double (&c)[TERMS], const double *x, double *out) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) out[i] = fma(c[TERMS - 1], x[i], c[TERMS - 2]);
#pragma unroll
    for (int t = TERMS - 3; t >= 0; t--)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) out[i] = fma(out[i], x[i], c[t]);
}

/* Natural logarithms of floats in (0, 1]. x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). log(1 + f)/f is a
 * polynomial with a relative error of 2^-33. */
__device__ __forceinline__ void log_of(const float *x, float *out) {
    constexpr double c[] = {0x1.0000000034ca3p+0, -0x1.0000001a7f017p-1, 0x1.555553aa0f980p-2, -0x1.ffffaae30d483p-3,
                            0x1.999a7d48c0d3ap-3, -0x1.5568d22fe6100p-3, 0x1.24883dada0a00p-3, -0x1.fc599187f3b0ep-4,
                            0x1.c44f7ad7d524cp-4, -0x1.be62fe319e0dfp-4, 0x1.b3ac3b074d2bbp-4, -0x1.dee09d025c21ap-5};
    double           k[PAIRS], f[PAIRS], p[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS;
         i++) { /* converts to double by moving bits and adding a constant: conversion instructions are slow */
        const uint32_t bits = __float_as_uint(x[i]), root_half = 0x3f3504f3u;
        const int32_t  whole = (int32_t)(bits - root_half) >> 23;
        const uint32_t z     = bits - ((uint32_t)whole << 23);
        f[i]                 = __hiloint2double((int)((z >> 3) + 0x38000000u), (int)(z << 29)) - 1.0;
        k[i]                 = __hiloint2double(0x43300000, (int)((uint32_t)whole ^ 0x80000000u)) - 0x1.000008p52;
    }
    polynomial(c, f, p);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) out[i] = (float)fma(k[i], 0x1.62e42fefa39efp-1, f[i] * p[i]);
}

/* Cosine and sine of floats in [0, 2 pi]: a = q pi/2 + r with |r| <= pi/4. */
__device__ __forceinline__ void cos_sin_of(const float *a, float *cosine, float *sine) {
    constexpr double even[] = {0x1.ffffffff97859p-1, -0x1.ffffffbdd5162p-2, 0x1.55553a80e36e4p-5,
                               -0x1.6c07840b6086dp-10, 0x1.990692c59fc3ap-16};
    constexpr double odd[] = {0x1.fffffffff67c2p-1, -0x1.5555554948073p-3, 0x1.1111074b2d8c8p-7, -0x1.a00ee7e21e29fp-13,
                              0x1.6cb7488e7e88fp-19};
    constexpr double magic = 0x1.8p52; /* adding it rounds to an integer */
    double           r[PAIRS], square[PAIRS], e[PAIRS], o[PAIRS];
    uint32_t         q[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const double t = fma((double)a[i], 0x1.45f306dc9c883p-1, magic);
        q[i]           = (uint32_t)__double2loint(t);
        r[i]           = fma(t - magic, -0x1.921fb54442d18p+0, (double)a[i]);
        r[i]           = fma(t - magic, -0x1.1a62633145c07p-54, r[i]); /* the difference between pi/2 and its double */
        square[i]      = r[i] * r[i];
    }
    polynomial(even, square, e);
    polynomial(odd, square, o);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const float ef = (float)e[i], of = (float)(r[i] * o[i]), c = q[i] & 1 ? of : ef, s = q[i] & 1 ? ef : of;
        cosine[i] = __uint_as_float(__float_as_uint(c) ^ (q[i] + 1) << 30 & 0x80000000u);
        sine[i]   = __uint_as_float(__float_as_uint(s) ^ q[i] << 30 & 0x80000000u);
    }
}

/* Square root rounded as IEEE requires, for 0 and for numbers far from denormal and infinite. It equals __fsqrt_rn
 * without the branch for other numbers, which would separate the pairs. */
__device__ __forceinline__ float root_of(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    const float s = __fmul_rn(x, y);
    return x > 0.0f ? fmaf(fmaf(-s, s, x), __fmul_rn(0.5f, y), s) : 0.0f;
}

/* Box-Muller: values 2i and 2i + 1 of the normal distribution from words 2i and 2i + 1. */
__device__ __forceinline__ void normal_of(const uint32_t *word, float *value) {
    float log[PAIRS], angle[PAIRS], cosine[PAIRS], sine[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        log[i]   = __fmul_rn(__fadd_rn((float)(word[2 * i] >> 8), 1.0f), 0x1p-24f); /* never the logarithm of 0 */
        angle[i] = __fmul_rn(6.28318530717958647692f, __fmul_rn((float)(word[2 * i + 1] >> 8), 0x1p-24f));
    }
    log_of(log, log);
    cos_sin_of(angle, cosine, sine);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const float radius = root_of(__fmul_rn(-2.0f, log[i]));
        value[2 * i]       = __fmul_rn(radius, cosine[i]);
        value[2 * i + 1]   = __fmul_rn(radius, sine[i]);
    }
}

__device__ __forceinline__ float uniform_of(uint32_t word) {
    return __fadd_rn(__fmul_rn(__fadd_rn((float)(word >> 8), 0.5f), 0x1p-23f), -1.0f);
}

/* Generates the elements of quads `first` and `first + THREADS` of a parameter. */
__device__ __forceinline__ void draw(const struct ck_init_param &p, uint64_t first, uint2 key, uint32_t purpose,
                                     float *value) {
    uint32_t word[2 * PAIRS];
    if (p.draw == CK_DISTRIBUTION_CONSTANT) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) value[i] = p.scale;
        return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS / 2; i++) {
        const uint64_t quad = first + (uint64_t)(i * THREADS);
        const uint4    w =
            curand_Philox4x32_10(make_uint4((uint32_t)quad, (uint32_t)(quad >> 32), p.number, purpose), key);
        word[4 * i] = w.x, word[4 * i + 1] = w.y, word[4 * i + 2] = w.z, word[4 * i + 3] = w.w;
    }
    if (p.draw == CK_DISTRIBUTION_NORMAL)
        normal_of(word, value);
    else
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) value[i] = uniform_of(word[i]);
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) value[i] = __fmul_rn(p.scale, value[i]);
}

/* ---- stores ---- */

/* Index of the parameter that owns the tile. first_tile is increasing; the warp compares 32 entries at a time. */
__device__ __forceinline__ int find(const struct ck_init_param *table, int params, int64_t tile) {
    const int lane  = (int)(threadIdx.x % CK_WARP);
    int       first = 0;
    while (params > 1) {
        const int      step = (params + CK_WARP - 1) / CK_WARP, at = lane * step;
        const unsigned below = __ballot_sync(0xffffffffu, at < params && table[first + at].first_tile <= tile);
        const int      skip  = (CK_WARP - 1 - __clz((int)below)) * step; /* lane 0 is always below */
        first += skip;
        params = step < params - skip ? step : params - skip;
    }
    return first;
}

/* Stores a quad of a tensor whose memory order is OIHW. */
__device__ __forceinline__ void put_quad(const struct ck_init_param &p, float *to, int64_t element, const float *v) {
    if (element + 4 <= p.elems) {
        ck_store(to, element / 4, ck_pack<float>(v));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (element + i < p.elems) to[element + i] = v[i];
}

/* Stores a generated tile in K,RS,C order. A lane stores one channel, a warp 32 channels that start at a multiple of 32
 * where possible, so that each of its RS stores fills 128 bytes. Lanes read RS words apart, without bank conflicts for
 * odd RS. Elements in the tiles before and after are stored by those tiles. */
__device__ __forceinline__ void put_tile(const struct ck_init_param &p, float *to, const float *drawn, int64_t element,
                                         int count) {
    const int64_t  channel = element / p.RS, k = channel / p.C; /* of K*C, and their filter */
    const int      head = (int)(element - channel * p.RS);      /* elements of the first channel in the previous tile */
    const uint32_t c = (uint32_t)(channel - k * p.C), early = c % CK_WARP;
    const int      columns = (head + count - 1) / (int)p.RS + 1 + (int)early;
    for (int i = (int)threadIdx.x; i < columns; i += THREADS) {
        const uint32_t column = c - early + (uint32_t)i, more = column / p.C;
        float         *at   = to + (k + more) * p.RS * p.C + (column - more * p.C);
        int            from = (i - (int)early) * (int)p.RS - head;
        for (uint32_t rs = 0; rs < p.RS; rs++, from++, at += p.C)
            if ((unsigned)from < (unsigned)count) *at = drawn[from];
    }
}

__global__ void __launch_bounds__(THREADS)
    init(const struct ck_init_param *table, int params, float *values, uint2 key, uint32_t purpose, double *state) {
    __shared__ __align__(16) float drawn[CK_INIT_TILE];
    const struct ck_init_param     p = table[find(table, params, blockIdx.x)];
    const int64_t element = ((int64_t)blockIdx.x - p.first_tile) * CK_INIT_TILE, left = p.elems - element;
    const int     count = (int)(left < CK_INIT_TILE ? left : CK_INIT_TILE);
    float        *to    = values + p.at;
#pragma unroll 1
    for (int i = (int)threadIdx.x; 4 * i < count; i += PAIRS / 2 * THREADS) {
        float v[2 * PAIRS];
        draw(p, (uint64_t)element / 4 + (uint64_t)i, key, purpose, v);
#pragma unroll
        for (int j = 0; j < PAIRS / 2; j++) {
            const int at = 4 * (i + j * THREADS);
            if (at >= count) break;
            if (p.RS == 1)
                put_quad(p, to, element + at, v + 4 * j);
            else
                ck_store(drawn, at / 4, ck_pack<float>(v + 4 * j));
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) state[CK_STATE_LOSS_SCALE] = 1.0; /* 16-bit training increases it */
    if (p.RS == 1) return;
    __syncthreads();
    put_tile(p, to, drawn, element, count);
}

} // namespace

cudaError_t ck_init(const struct ck_init_param *table, int params, int64_t tiles, float *values, uint64_t seed,
                    uint32_t purpose, double *state, cudaStream_t stream) {
    if (tiles < 1 || tiles > INT32_MAX) return tiles ? cudaErrorInvalidValue : cudaSuccess;
    const uint2 key = make_uint2((uint32_t)seed, (uint32_t)(seed >> 32));
    init<<<(unsigned)tiles, THREADS, 0, stream>>>(table, params, values, key, purpose, state);
    return cudaGetLastError();
}

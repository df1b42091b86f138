/* device/cpu/tuned/int8/qconv.c: 8-bit convolution on every processor, with exact sums.
 *
 * oneDNN adds pairs of 8-bit products in 16 bits where the processor has no VNNI, and these sums saturate. Here both
 * operands are widened to 16 bits, and pairs of products are added in 32 bits (pmaddwd). The filter is widened once
 * (pack_filter). A tile of output pixels gathers its inputs as rows of T = R * S * C numbers:
 *
 *   columns  i16 [pixels of a tile][T2]      T2: T rounded up to an even number; the padding is 0
 *   packed   i16 [K / 16][T2 / 2][16][2]     filters beyond K are 0
 *
 * The rounding rule of graph/ops.def is followed exactly, so results equal those of the reference. */
#include "device/cpu/simd.h"

#include <math.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    LANES  = 16, /* output channels of a step */
    PIXELS = 6,  /* output pixels of a step: 12 vectors of sums, 2 of the filter and 1 of an input fit 16 registers */
    TILE   = 24  /* output pixels, at most, for which a filter is read once */
};

struct shape {
    int64_t N, H, W, C, K, R, P, Q, stride, pad;
    int64_t pairs; /* T2 / 2 */
};

static struct shape shape_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_qconv_x]], *w = &p->tensor[op->in[CR_IN_qconv_w]],
                           *y = &p->tensor[op->out[CR_OUT_qconv_y]];
    return (struct shape){.N      = x->dim[0],
                          .H      = x->dim[1],
                          .W      = x->dim[2],
                          .C      = x->dim[3],
                          .K      = w->dim[0],
                          .R      = w->dim[1],
                          .P      = y->dim[1],
                          .Q      = y->dim[2],
                          .stride = op->attr.conv.stride,
                          .pad    = op->attr.conv.pad,
                          .pairs  = (w->dim[1] * w->dim[2] * w->dim[3] + 1) / 2};
}

static bool is_byte(enum cr_dtype dtype) {
    return dtype == CR_I8 || dtype == CR_U8;
}

/* ---- the filter ---- */

static int64_t blocks_of(int64_t K) {
    return (K + LANES - 1) / LANES;
}

/* w: i8 [K][length]. */
static void pack(const int8_t *w, int64_t K, int64_t length, int16_t *packed, int threads) {
    const int64_t pairs = (length + 1) / 2;
    CR_PARALLEL_FOR(threads)
    for (int64_t block = 0; block < blocks_of(K); block++) {
        int16_t *to = packed + block * pairs * 2 * LANES;
        for (int64_t i = 0; i < pairs * 2 * LANES; i++) {
            const int64_t k = block * LANES + i / 2 % LANES, t = i / (2 * LANES) * 2 + i % 2;
            to[i] = k < K && t < length ? w[k * length + t] : 0;
        }
    }
}

static size_t packed_bytes(int64_t K, int64_t pairs) {
    return (size_t)(blocks_of(K) * pairs) * 2 * LANES * sizeof(int16_t);
}

int64_t cr_cpu_qconv_own_bytes(const struct cr_program *p, const struct cr_op *op) {
    const struct shape s = shape_of(p, op);
    return (int64_t)packed_bytes(s.K, s.pairs);
}

static bool pack_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w     = &p->tensor[op->in[CR_IN_pack_filter_w]];
    const int64_t           pairs = (w->dim[1] * w->dim[2] * w->dim[3] + 1) / 2;
    (void)device;
    return p->tensor[op->out[CR_OUT_pack_filter_y]].bytes >= packed_bytes(w->dim[0], pairs);
}

static cr_status pack_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = &call->program->tensor[call->op->in[CR_IN_pack_filter_w]];
    pack(call->in[CR_IN_pack_filter_w], w->dim[0], w->dim[1] * w->dim[2] * w->dim[3], call->out[CR_OUT_pack_filter_y],
         cr_cpu_threads(device));
    return CR_OK;
}

/* ---- inputs of a tile ---- */

CR_BY_LEVEL(void, widen_u8, (const uint8_t *from, int16_t *to, int64_t count), (from, to, count)) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
}
CR_BY_LEVEL(void, widen_i8, (const int8_t *from, int16_t *to, int64_t count), (from, to, count)) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

/* The window of output pixel `pixel`, row by row. */
static void gather(const struct shape *s, const void *x, bool is_signed, int64_t pixel, int16_t *column) {
    const int64_t q = pixel % s->Q, p = pixel / s->Q % s->P, n = pixel / s->Q / s->P;
    const int64_t left = q * s->stride - s->pad, line = s->R * s->C;
    const int64_t first = CR_MAX(-left, 0), last = CR_MIN(s->W - left, s->R); /* columns of the window in the image */
    for (int64_t r = 0; r < s->R; r++, column += line) {
        const int64_t h = p * s->stride - s->pad + r;
        if (h < 0 || h >= s->H || first >= last) {
            memset(column, 0, (size_t)line * sizeof *column);
            continue;
        }
        const int64_t from = ((n * s->H + h) * s->W + left + first) * s->C, count = (last - first) * s->C;
        memset(column, 0, (size_t)(first * s->C) * sizeof *column);
        if (is_signed)
            widen_i8((const int8_t *)x + from, column + first * s->C, count);
        else
            widen_u8((const uint8_t *)x + from, column + first * s->C, count);
        memset(column + last * s->C, 0, (size_t)((s->R - last) * s->C) * sizeof *column);
    }
    if (s->R * line % 2) *column = 0;
}

/* ---- sums: [PIXELS][LANES] for one block of filters ---- */

static void sums_plain(const int16_t *column, const int16_t *filter, int64_t pairs, int32_t *sum) {
    memset(sum, 0, PIXELS * LANES * sizeof *sum);
    for (int64_t t = 0; t < pairs; t++, filter += 2 * LANES)
        for (int i = 0; i < PIXELS; i++) {
            const int16_t *x = column + (i * pairs + t) * 2;
            for (int k = 0; k < LANES; k++) sum[i * LANES + k] += x[0] * filter[2 * k] + x[1] * filter[2 * k + 1];
        }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void sums_avx2(const int16_t *column, const int16_t *filter, int64_t pairs,
                                                      int32_t *sum) {
    __m256i a[PIXELS], b[PIXELS];
    for (int i = 0; i < PIXELS; i++) a[i] = b[i] = _mm256_setzero_si256();
    for (int64_t t = 0; t < pairs; t++, filter += 2 * LANES) {
        const __m256i f = _mm256_loadu_si256((const __m256i *)filter),
                      g = _mm256_loadu_si256((const __m256i *)(filter + LANES));
#pragma GCC unroll 6
        for (int i = 0; i < PIXELS; i++) {
            int32_t pair;
            memcpy(&pair, column + (i * pairs + t) * 2, sizeof pair);
            const __m256i x = _mm256_set1_epi32(pair);
            a[i]            = _mm256_add_epi32(a[i], _mm256_madd_epi16(x, f));
            b[i]            = _mm256_add_epi32(b[i], _mm256_madd_epi16(x, g));
        }
    }
    for (int i = 0; i < PIXELS; i++) {
        _mm256_storeu_si256((__m256i *)(sum + i * LANES), a[i]);
        _mm256_storeu_si256((__m256i *)(sum + i * LANES + LANES / 2), b[i]);
    }
}
#endif

/* ---- outputs ---- */

struct outputs {
    const float  *coeffs; /* [3][K] */
    const void   *add;    /* NULL without */
    void         *y;
    enum cr_dtype add_type, y_type;
    bool          relu;
};

static inline __attribute__((always_inline)) void put(const struct outputs *o, int64_t K, int64_t pixel, int64_t k,
                                                      const int32_t *sum) {
    const int     count = (int)CR_MIN(K - k, LANES);
    const int64_t at    = pixel * K + k;
    float         v[LANES];
    for (int i = 0; i < count; i++) v[i] = fmaf((float)sum[i], o->coeffs[k + i], o->coeffs[K + k + i]);
    if (o->add && o->add_type == CR_I8)
        for (int i = 0; i < count; i++)
            v[i] = fmaf((float)((const int8_t *)o->add)[at + i], o->coeffs[2 * K + k + i], v[i]);
    else if (o->add)
        for (int i = 0; i < count; i++)
            v[i] = fmaf((float)((const uint8_t *)o->add)[at + i], o->coeffs[2 * K + k + i], v[i]);
    if (o->relu)
        for (int i = 0; i < count; i++) v[i] = v[i] < 0 ? 0 : v[i];
    if (o->y_type == CR_F32) {
        memcpy((float *)o->y + at, v, (size_t)count * sizeof *v);
        return;
    }
    const float low = o->y_type == CR_I8 ? -128.0f : 0.0f, high = o->y_type == CR_I8 ? 127.0f : 255.0f;
    for (int i = 0; i < count; i++) {
        const float whole = v[i] == v[i] ? rintf(v[i]) : 0; /* NaN becomes 0 */
        const int   byte  = (int)(whole > high ? high : whole < low ? low : whole);
        if (o->y_type == CR_I8)
            ((int8_t *)o->y)[at + i] = (int8_t)byte;
        else
            ((uint8_t *)o->y)[at + i] = (uint8_t)byte;
    }
}

static void put_plain(const struct outputs *o, int64_t K, int64_t pixel, int64_t k, const int32_t *sum) {
    put(o, K, pixel, k, sum);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void put_avx2(const struct outputs *o, int64_t K, int64_t pixel, int64_t k,
                                                         const int32_t *sum) {
    put(o, K, pixel, k, sum);
}
#endif

/* ---- the convolution ---- */

struct work {
    struct shape   shape;
    struct outputs out;
    const void    *x;
    const int16_t *packed;
    bool           is_signed, vectors; /* vectors: AVX2 and fused multiply-adds */
};

static void one_step(const struct work *w, const int16_t *column, const int16_t *filter, int64_t pixel, int64_t count,
                     int64_t k) {
    int32_t sum[PIXELS * LANES];
#ifdef __x86_64__
    if (w->vectors) {
        sums_avx2(column, filter, w->shape.pairs, sum);
        for (int64_t i = 0; i < count; i++) put_avx2(&w->out, w->shape.K, pixel + i, k, sum + i * LANES);
        return;
    }
#endif
    sums_plain(column, filter, w->shape.pairs, sum);
    for (int64_t i = 0; i < count; i++) put_plain(&w->out, w->shape.K, pixel + i, k, sum + i * LANES);
}

/* Output pixels [begin, end), at most TILE. columns: [TILE][T2]; those beyond the tile hold any numbers. */
static void one_tile(const struct work *w, int64_t begin, int64_t end, int16_t *columns) {
    const struct shape *s = &w->shape;
    for (int64_t pixel = begin; pixel < end; pixel++)
        gather(s, w->x, w->is_signed, pixel, columns + (pixel - begin) * s->pairs * 2);
    for (int64_t k = 0; k < s->K; k += LANES)
        for (int64_t pixel = begin; pixel < end; pixel += PIXELS)
            one_step(w, columns + (pixel - begin) * s->pairs * 2, w->packed + k * s->pairs * 2, pixel,
                     CR_MIN(end - pixel, PIXELS), k);
}

static size_t columns_bytes(const struct shape *s) {
    return ((size_t)(TILE * s->pairs) * 2 * sizeof(int16_t) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

static bool qconv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const enum cr_dtype x = p->tensor[op->in[CR_IN_qconv_x]].dtype, y = p->tensor[op->out[CR_OUT_qconv_y]].dtype;
    const int           add = op->in[CR_IN_qconv_add];
    (void)device;
    return is_byte(x) && (is_byte(y) || y == CR_F32) && (add < 0 || is_byte(p->tensor[add].dtype));
}

/* The workspace holds the columns of all threads, and behind them the filter if the program has not packed it. */
static size_t qconv_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct shape s     = shape_of(p, op);
    const size_t       tiles = (size_t)cr_cpu_threads(device) * columns_bytes(&s);
    return tiles + (op->in[CR_IN_qconv_packed] < 0 ? packed_bytes(s.K, s.pairs) : 0);
}

static struct work work_of(const struct cr_call *call) {
    const struct cr_op     *op  = call->op;
    const struct cr_tensor *t   = call->program->tensor;
    const int               add = op->in[CR_IN_qconv_add];
    return (struct work){.shape     = shape_of(call->program, op),
                         .x         = call->in[CR_IN_qconv_x],
                         .packed    = call->in[CR_IN_qconv_packed],
                         .is_signed = t[op->in[CR_IN_qconv_x]].dtype == CR_I8,
                         .vectors   = cr_cpu_level() >= CR_CPU_AVX2,
                         .out       = {.coeffs   = call->in[CR_IN_qconv_coeffs],
                                       .add      = add >= 0 ? call->in[CR_IN_qconv_add] : NULL,
                                       .y        = call->out[CR_OUT_qconv_y],
                                       .add_type = add >= 0 ? t[add].dtype : CR_U8,
                                       .y_type   = t[op->out[CR_OUT_qconv_y]].dtype,
                                       .relu     = op->attr.conv.relu}};
}

static cr_status qconv_launch(struct cr_device *device, const struct cr_call *call) {
    struct work         w       = work_of(call);
    const struct shape *s       = &w.shape;
    const int           threads = cr_cpu_threads(device);
    const int64_t       pixels  = s->N * s->P * s->Q;
    const int64_t       tiles = threads * ((pixels + threads * TILE - 1) / (threads * TILE)); /* of nearly equal size */
    if (call->op->in[CR_IN_qconv_packed] < 0) {
        int16_t *packed = (int16_t *)((char *)call->workspace + (size_t)threads * columns_bytes(s));
        pack(call->in[CR_IN_qconv_w], s->K, s->R * s->R * s->C, packed, threads);
        w.packed = packed;
    }
    CR_PARALLEL_FOR(threads)
    for (int part = 0; part < threads; part++) {
        int16_t *columns = (int16_t *)((char *)call->workspace + (size_t)part * columns_bytes(s));
        for (int64_t tile = tiles * part / threads; tile < tiles * (part + 1) / threads; tile++)
            one_tile(&w, pixels * tile / tiles, pixels * (tile + 1) / tiles, columns);
    }
    return CR_OK;
}

const struct cr_kernel cr_cpu_qconv_kernels[] = {
    {CR_KERNEL("cpu.pack_filter", pack_filter, CR_MATH_EXACT), .accepts = pack_accepts, .launch = pack_launch},
    {CR_KERNEL("cpu.qconv", qconv, CR_MATH_EXACT), .accepts = qconv_accepts, .workspace = qconv_workspace,
     .launch = qconv_launch},
    {0}};

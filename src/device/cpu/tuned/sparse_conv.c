/* device/cpu/tuned/sparse_conv.c: direct convolution with a sparse filter.
 *
 * A unit of work is a band of rows of an image (or several small images) and a range of output channels. A chunk of its
 * input channels is transposed ("staged") from pixel-major to channel-major order, with padding; the chunk fits in the
 * first-level cache. An output channel is then a few vectors of 16 neighbouring pixels. A nonzero weight is one
 * broadcast and one multiply-add for each vector, whose operand is read at the offset of the weight. With a stride,
 * pixels of each phase are staged separately, so that neighbours stay adjacent. The padding columns between rows are
 * computed too and dropped. The limit is one multiply-add per cycle, because reads cross cache lines. */
#include "device/cpu/tuned/sparse_conv.h"

#include "device/cpu/cpu.h"

#include <string.h>

/* The compiler may contract multiply-adds in this file; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum {
    LANES        = 16,
    BLOCK        = 12,       /* vectors of sums in registers, with AVX-512 */
    UNIT         = 16,       /* approximate number of vectors of a unit */
    STAGED_BYTES = 32 << 10, /* bytes staged at a time, */
    CHUNK_MIN = 16, /* but at least this many channels: short runs of weights cost more than the second-level cache */
    PART      = 16, /* minimum number of output channels of a unit */
    EIGHT     = 8
};
typedef float lanes8 __attribute__((vector_size(4 * EIGHT), aligned(4), may_alias));
typedef int   indices8 __attribute__((vector_size(4 * EIGHT)));

/* Selects eight of the sixteen elements of two vectors. */
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (indices8){__VA_ARGS__})
#endif

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* ---- the plan ---- */

static int64_t phases(int64_t taps, int64_t stride) {
    return CR_MIN(taps, stride);
}
static int64_t vectors_of(const struct cr_cpu_sparse_plan *p) {
    return ceil_div(((p->images - 1) * p->rows + p->band - 1) * p->columns + p->Q, LANES);
}
static void set_band(struct cr_cpu_sparse_plan *p, int64_t band, int64_t images) {
    p->band    = band;
    p->images  = images;
    p->rows    = band + ceil_div(p->R, p->stride) - 1;
    p->vectors = vectors_of(p);
}

struct cr_cpu_sparse_plan cr_cpu_sparse_conv_plan(int64_t N, int64_t H, int64_t W, int64_t C, int64_t K, int64_t R,
                                                  int64_t S, int64_t stride, int64_t pad) {
    struct cr_cpu_sparse_plan p = {
        .N = N, .H = H, .W = W, .C = C, .K = K, .R = R, .S = S, .stride = stride, .pad = pad};
    p.P       = (H + 2 * pad - R) / stride + 1;
    p.Q       = (W + 2 * pad - S) / stride + 1;
    p.columns = p.Q + ceil_div(S, stride) - 1;
    set_band(&p, p.P, 1);
    if (p.vectors > UNIT) {
        int64_t parts = 1;
        while (p.vectors > UNIT && p.band > 1) set_band(&p, ceil_div(p.P, ++parts), 1);
    } else {
        while (p.images < N && p.vectors < UNIT) set_band(&p, p.P, p.images + 1);
        if (p.vectors > UNIT) set_band(&p, p.P, p.images - 1);
        set_band(&p, p.P, ceil_div(N, ceil_div(N, p.images)));
    }
    p.channel_elems = p.images * p.rows * p.columns * phases(R, stride) * phases(S, stride) +
                      EIGHT; /* vectors may read beyond the last row */
    p.chunk = CR_MIN(C, CR_MAX(CHUNK_MIN, STAGED_BYTES / ((int64_t)sizeof(float) * p.channel_elems)));
    if (p.chunk < C) p.chunk -= p.chunk % EIGHT;
    return p;
}

/* Phases are stored one after the other, each with all rows of a unit. */
struct cr_linear_layout cr_cpu_sparse_conv_layout(const struct cr_cpu_sparse_plan *p) {
    const int64_t phase_elems = p->images * p->rows * p->columns;
    return (struct cr_linear_layout){.stride   = p->stride,
                                     .chunk    = p->chunk,
                                     .c_step   = p->channel_elems,
                                     .r_phase  = phase_elems * phases(p->S, p->stride),
                                     .r_step   = p->columns,
                                     .s_phase  = phase_elems,
                                     .s_step   = 1,
                                     .rows     = p->K,
                                     .multiple = 1};
}

/* ---- workspace of each thread: staged channels, with a margin for the reads of the last vector, and sums ---- */

int64_t cr_cpu_sparse_staged_elems(const struct cr_cpu_sparse_plan *p) {
    return ceil_div(p->channel_elems * p->chunk + LANES + p->columns, LANES) * LANES;
}
static int64_t thread_floats(const struct cr_cpu_sparse_plan *p) {
    return cr_cpu_sparse_staged_elems(p) + p->K * p->vectors * LANES + LANES;
}
size_t cr_cpu_sparse_conv_workspace(const struct cr_cpu_sparse_plan *plan, int threads) {
    return (size_t)thread_floats(plan) * (size_t)threads * sizeof(float);
}

/* ---- transposing between pixel-major and channel-major order ---- */

/* Before: row[i] holds eight channels of pixel i. After: row[i] holds eight pixels of channel i. */
static inline __attribute__((always_inline)) void transpose(lanes8 row[EIGHT]) {
    lanes8 a[EIGHT], b[EIGHT];
    for (int i = 0; i < EIGHT; i += 2) {
        a[i]     = PICK(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = PICK(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < EIGHT; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j]     = PICK(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * j + 1] = PICK(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        row[i]     = PICK(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        row[i + 4] = PICK(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Copies pixels at a distance of `pitch` floats to to[channel*channel_pitch + pixel]. Up to 7 floats after the end are
 * overwritten; they belong to rows that are staged later. */
CR_BY_LEVEL(void, stage_run,
            (const float *x, int64_t pitch, int64_t pixels, int64_t channels, int64_t channel_pitch, float *to),
            (x, pitch, pixels, channels, channel_pitch, to)) {
    for (int64_t i = 0; i < pixels; i += EIGHT) {
        const float  *at = x + i * pitch;
        const int64_t in = CR_MIN(EIGHT, pixels - i);
        int64_t       c  = 0;
        for (; c + EIGHT <= channels; c += EIGHT) {
            lanes8 row[EIGHT] = {{0}};
            if (in == EIGHT)
#pragma GCC unroll 8
                for (int j = 0; j < EIGHT; j++) row[j] = *(const lanes8 *)(at + j * pitch + c);
            else
#pragma GCC unroll 8
                for (int j = 0; j < EIGHT; j++)
                    if (j < in) row[j] = *(const lanes8 *)(at + j * pitch + c);
            transpose(row);
#pragma GCC unroll 8
            for (int j = 0; j < EIGHT; j++) *(lanes8 *)(to + (c + j) * channel_pitch + i) = row[j];
        }
        for (; c < channels; c++)
            for (int64_t j = 0; j < in; j++) to[c * channel_pitch + i + j] = at[j * pitch + c];
    }
}

static void clear_run(int64_t pixels, int64_t channels, int64_t channel_pitch, float *to) {
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < pixels; i++) to[c * channel_pitch + i] = 0.0f;
}

/* Stages row h of one phase; x points to channel c0 of the image. h may be outside the image. */
static void stage_row(const struct cr_cpu_sparse_plan *p, const float *x, int64_t h, int64_t s, int64_t channels,
                      float *to) {
    const int64_t first = CR_MIN(p->columns, CR_MAX(0, ceil_div(p->pad - s, p->stride)));
    int64_t       end   = CR_MIN(p->columns, p->W + p->pad > s ? ceil_div(p->W + p->pad - s, p->stride) : 0);
    if (h < 0 || h >= p->H || end < first) end = first;
    clear_run(first, channels, p->channel_elems, to);
    stage_run(x + (h * p->W + first * p->stride + s - p->pad) * p->C, p->stride * p->C, end - first, channels,
              p->channel_elems, to + first);
    clear_run(p->columns - end, channels, p->channel_elems, to + end);
}

void cr_cpu_sparse_stage(const struct cr_cpu_sparse_plan *p, const struct cr_cpu_sparse_tile *at, const float *x,
                         int64_t c0, int64_t channels, float *to) {
    for (int64_t r = 0; r < phases(p->R, p->stride); r++)
        for (int64_t s = 0; s < phases(p->S, p->stride); s++)
            for (int64_t row = 0; row < p->images * p->rows; row++, to += p->columns) {
                const int64_t n = row / p->rows, h = (at->p0 + row % p->rows) * p->stride + r - p->pad;
                if (n < at->images)
                    stage_row(p, x + (at->n + n) * p->H * p->W * p->C + c0, h, s, channels, to);
                else
                    clear_run(p->columns, channels, p->channel_elems, to);
            }
}

void cr_cpu_sparse_stage_outputs(const struct cr_cpu_sparse_plan *p, const struct cr_cpu_sparse_tile *at,
                                 const float *y, int64_t k0, int64_t channels, int64_t pitch, float *to) {
    clear_run(pitch, channels, pitch, to);
    for (int64_t n = 0; n < at->images; n++)
        for (int64_t row = 0; row < p->band && at->p0 + row < p->P; row++) {
            float *first = to + (n * p->rows + row) * p->columns;
            stage_run(y + (((at->n + n) * p->P + at->p0 + row) * p->Q) * p->K + k0, p->K, p->Q, channels, pitch, first);
            clear_run(EIGHT, channels, pitch, first + p->Q);
        }
}

struct unit {
    const struct cr_cpu_sparse_plan *p;
    const struct cr_cpu_sparse_call *call;
    struct cr_cpu_sparse_tile        at;
    int64_t                          k0, k1;
    float                           *staged, *sums;
};

/* ---- multiplication ---- */

static inline __attribute__((always_inline)) void run_block(const struct cr_sparse_entry *entry,
                                                            const struct cr_sparse_entry *end, const float *x,
                                                            float *sums, const int vectors) {
    f32x16 sum[BLOCK];
    for (int v = 0; v < vectors; v++) sum[v] = ((const f32x16 *)sums)[v];
    for (; entry < end; entry++) {
        const float *at = x + entry->offset;
        const f32x16 w  = entry->value - (f32x16){0};
#pragma GCC unroll 12
        for (int v = 0; v < vectors; v++) sum[v] += w * *(const f32x16 *)(at + v * LANES);
    }
    for (int v = 0; v < vectors; v++) ((f32x16 *)sums)[v] = sum[v];
}

#define RUN(count)                                                                                                     \
    case count: run_block(entry, end, x, sums, count); break
CR_BY_LEVEL(void, run,
            (const struct cr_sparse_entry *entry, const struct cr_sparse_entry *end, const float *x, float *sums,
             int vectors),
            (entry, end, x, sums, vectors)) {
    switch (vectors) {
        RUN(1);
        RUN(2);
        RUN(3);
        RUN(4);
        RUN(5);
        RUN(6);
        RUN(7);
        RUN(8);
        RUN(9);
        RUN(10);
        RUN(11);
        RUN(12);
    }
}

/* Number of vectors of sums that stay in registers. */
static int64_t block_max(void) {
    return cr_cpu_level() == CR_CPU_AVX512 ? BLOCK : BLOCK / 2;
}

static void multiply(const struct unit *u, int64_t chunk) {
    const struct cr_cpu_sparse_plan *p      = u->p;
    const struct cr_linear_filter   *f      = u->call->filter;
    const uint32_t                  *start  = f->start + chunk * f->rows;
    const int64_t                    blocks = ceil_div(p->vectors, block_max());
    for (int64_t k = u->k0; k < u->k1; k++)
        for (int64_t b = 0; b < blocks && start[k] < start[k + 1]; b++) {
            const int64_t v = p->vectors * b / blocks, count = p->vectors * (b + 1) / blocks - v;
            run(f->entry + start[k], f->entry + start[k + 1], u->staged + v * LANES,
                u->sums + (k * p->vectors + v) * LANES, (int)count);
        }
}

/* ---- output ---- */

/* Write eight channels of one pixel, or `count` channels. */
static inline __attribute__((always_inline)) void write_eight(const struct cr_cpu_sparse_call *call, const lanes8 *from,
                                                              int64_t at, int64_t k) {
    lanes8 v = *from;
    if (call->bias) v += *(const lanes8 *)(call->bias + k);
    if (call->add) v += *(const lanes8 *)(call->add + at);
    if (call->relu)
        for (int i = 0; i < EIGHT; i++) v[i] = v[i] < 0.0f ? 0.0f : v[i];
    *(lanes8 *)(call->y + at) = v;
}
static void write_some(const struct cr_cpu_sparse_call *call, const float *v, int64_t at, int64_t k, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float sum = v[i];
        if (call->bias) sum += call->bias[k + i];
        if (call->add) sum += call->add[at + i];
        call->y[at + i] = call->relu && sum < 0.0f ? 0.0f : sum;
    }
}

/* Writes pixels of a row from output `pixel`: transposes sums[channel][0..] in blocks of eight by eight. */
struct write_call {
    const struct cr_cpu_sparse_call *call;
    const float                     *sums;
    int64_t                          pixel, pixels, k0, k1, K, step; /* step: floats between channels */
};
CR_BY_LEVEL(void, write_pixels, (const struct write_call *w), (w)) {
    for (int64_t q = 0; q < w->pixels; q += EIGHT)
        for (int64_t k = w->k0; k < w->k1; k += EIGHT) {
            const int64_t pixels = CR_MIN(EIGHT, w->pixels - q), channels = CR_MIN(EIGHT, w->k1 - k);
            const float  *from     = w->sums + k * w->step + q;
            lanes8        v[EIGHT] = {{0}};
#pragma GCC unroll 8
            for (int j = 0; j < EIGHT; j++)
                if (j < channels)
                    v[j] = *(const lanes8 *)(from + j * w->step); /* values beyond the last row are not used */
            transpose(v);
            for (int64_t i = 0; i < pixels; i++) {
                const int64_t at = (w->pixel + q + i) * w->K + k;
                if (channels == EIGHT)
                    write_eight(w->call, &v[i], at, k);
                else
                    write_some(w->call, (const float *)&v[i], at, k, channels);
            }
        }
}

static void run_unit(const struct unit *u) {
    const struct cr_cpu_sparse_plan *p = u->p;
    memset(u->sums + u->k0 * p->vectors * LANES, 0, (size_t)((u->k1 - u->k0) * p->vectors * LANES) * sizeof *u->sums);
    for (int64_t chunk = 0; chunk * p->chunk < p->C; chunk++) {
        cr_cpu_sparse_stage(p, &u->at, u->call->x, chunk * p->chunk, CR_MIN(p->chunk, p->C - chunk * p->chunk),
                            u->staged);
        multiply(u, chunk);
    }
    for (int64_t n = 0; n < u->at.images; n++)
        for (int64_t row = 0; row < p->band && u->at.p0 + row < p->P; row++) {
            const struct write_call w = {.call   = u->call,
                                         .sums   = u->sums + (n * p->rows + row) * p->columns,
                                         .pixel  = ((u->at.n + n) * p->P + u->at.p0 + row) * p->Q,
                                         .pixels = p->Q,
                                         .k0     = u->k0,
                                         .k1     = u->k1,
                                         .K      = p->K,
                                         .step   = p->vectors * LANES};
            write_pixels(&w);
        }
}

void cr_cpu_sparse_conv(const struct cr_cpu_sparse_plan *p, const struct cr_cpu_sparse_call *call, void *workspace,
                        int threads) {
    const int64_t bands = ceil_div(p->P, p->band), tiles = ceil_div(p->N, p->images) * bands;
    const int64_t parts = CR_MIN(ceil_div(2 * (int64_t)threads, tiles), ceil_div(p->K, PART)), units = tiles * parts;
    const int64_t tail =
        cr_cpu_sparse_staged_elems(p) - p->channel_elems * p->chunk; /* read by vectors beyond the end, but not used */
    for (int t = 0; t < threads; t++)
        memset((float *)workspace + t * thread_floats(p) + p->channel_elems * p->chunk, 0,
               (size_t)tail * sizeof(float));
    CR_THREADS(t, threads)
        for (int64_t i = units * t / threads; i < units * (t + 1) / threads; i++) {
            float        *mine = (float *)workspace + t * thread_floats(p);
            const int64_t part = i % parts, tile = i / parts, n = tile / bands * p->images;
            struct unit   u = {.p      = p,
                               .call   = call,
                               .at     = {.n = n, .images = CR_MIN(p->images, p->N - n), .p0 = tile % bands * p->band},
                               .k0     = p->K * part / parts,
                               .k1     = p->K * (part + 1) / parts,
                               .staged = mine,
                               .sums   = mine + cr_cpu_sparse_staged_elems(p)};
            run_unit(&u);
        }
}

/* device/cpu/tuned/conv/winograd_wgrad.c: filter gradients of 3x3 convolutions of stride 1 with 16 multiplications for
 * four pixels of dy instead of 36. It is the gradient of winograd.c with respect to g:
 *
 *     dU = sum over tiles of (A dY A^T) * V with V = B^T d B, and dg = G^T dU G
 *
 * dU is 16 products of matrices, [channels of dy][tiles] by [tiles][channels of x], which run in the tiles of
 * wgrad_tile.c. Channels are divided into units whose dU stays in the second cache: V is computed anew for each unit,
 * which costs little. Threads divide the units, or the tiles where there are fewer units than threads. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/wgrad.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

enum {
    VECTOR       = sizeof(f32x8) / sizeof(float),
    PLACES       = 16,  /* numbers of a transformed tile */
    TAPS         = 9,   /* of a filter */
    UNIT         = 128, /* channels of a unit */
    BLOCK        = 96,  /* tiles that are transformed at once */
    CHANNELS_MIN = 64   /* with fewer, the transforms cost more than they save */
};

bool cr_winograd_wgrad_is_better(const struct cr_winograd_wgrad *s) {
    return s->C >= CHANNELS_MIN && s->C % VECTOR == 0 && s->K >= CHANNELS_MIN && s->K % VECTOR == 0 &&
           s->N * ((s->P + 1) / 2) * ((s->Q + 1) / 2) >= BLOCK;
}

/* ---- transforms ---- */

static inline __attribute__((always_inline)) void spread(f32x8 a, f32x8 b, f32x8 t[4]) {
    t[0] = a;
    t[1] = a + b;
    t[2] = a - b;
    t[3] = -b;
}

/* A d A^T of 2x2 pixels of dy. Number `place` of channel k goes to to[place * step + k / group * by_group + k % group];
 * a group is 4 or 8 channels. */
CR_BY_LEVEL(void, transform_gradient,
            (const float *const d[4], int64_t channels, int64_t group, int64_t by_group, float *to, int64_t step),
            (d, channels, group, by_group, to, step)) {
    for (int64_t k = 0; k < channels; k += VECTOR) {
        f32x8 columns[2][4], out[4];
        for (int j = 0; j < 2; j++) spread(*(const f32x8 *)(d[j] + k), *(const f32x8 *)(d[2 + j] + k), columns[j]);
        for (int i = 0; i < 4; i++) {
            spread(columns[0][i], columns[1][i], out);
            for (int j = 0; j < 4; j++) {
                float *at = to + (4 * i + j) * step + k / group * by_group;
                memcpy(at, &out[j], (size_t)group * sizeof *at);
                if (group < VECTOR) memcpy(at + by_group, (const float *)&out[j] + VECTOR / 2, sizeof out[j] / 2);
            }
        }
    }
}

static inline __attribute__((always_inline)) void gather(const f32x8 u[4], f32x8 g[3]) {
    const f32x8 sum = (u[1] + u[2]) * 0.5f;
    g[0]            = u[0] + sum;
    g[1]            = (u[1] - u[2]) * 0.5f;
    g[2]            = sum + u[3];
}

/* G^T dU G of `count` channels of x. u: `copies` sums at distance `by_copy`, u[place * step + channel] each, which are
 * added; tap t goes to dw[t * by_tap + channel]. */
CR_BY_LEVEL(void, transform_sums,
            (const float *u, int64_t step, int copies, int64_t by_copy, int64_t count, float *dw, int64_t by_tap,
             bool accumulate),
            (u, step, copies, by_copy, count, dw, by_tap, accumulate)) {
    for (int64_t i = 0; i < count; i += VECTOR) {
        f32x8 rows[4][3], column[4], out[3];
        for (int r = 0; r < 4; r++) {
            for (int s = 0; s < 4; s++) {
                column[s] = *(const f32x8 *)(u + (4 * r + s) * step + i);
                for (int n = 1; n < copies; n++)
                    column[s] += *(const f32x8 *)(u + n * by_copy + (4 * r + s) * step + i);
            }
            gather(column, rows[r]);
        }
        for (int s = 0; s < 3; s++) {
            for (int r = 0; r < 4; r++) column[r] = rows[r][s];
            gather(column, out);
            for (int r = 0; r < 3; r++) {
                f32x8 *to = (f32x8 *)(dw + (3 * r + s) * by_tap + i);
                if (accumulate) out[r] += *to;
                *to = out[r];
            }
        }
    }
}

/* ---- a unit ---- */

struct job {
    struct cr_winograd_wgrad s;
    const float             *x, *dy;
    int64_t                  rows, columns;           /* tiles of an image */
    int64_t                  tiles;                   /* of all images */
    int64_t                  unit, units_of_x, units; /* channels of a unit; units */
};

struct unit {
    int64_t c, C, k, K; /* channels of x, of dy */
};

/* The memory of a thread. */
struct memory {
    float *v;     /* [place][tile][pitch] */
    float *dy;    /* [place][group][tile][channel of the group] */
    float *edge;  /* of cr_winograd_input */
    float *zeros; /* a pixel of dy outside the image */
    float *sums;  /* dU: [place][K][C] */
};

static int64_t dy_floats(int64_t K) {
    return (K + VECTOR - 1) / cr_wgrad_group() * cr_wgrad_group_floats(BLOCK);
}

/* The pitch is not monotonic: a unit of fewer channels may have the larger pitch. */
static int64_t memory_floats(int64_t unit) {
    return PLACES * (BLOCK * (unit + CR_WGRAD_PITCH) + dy_floats(unit) + unit * unit + unit) + unit;
}

static struct memory memory_at(float *scratch, int64_t unit) {
    struct memory m = {.v = scratch};
    m.dy            = m.v + PLACES * BLOCK * (unit + CR_WGRAD_PITCH);
    m.edge          = m.dy + PLACES * dy_floats(unit);
    m.zeros         = m.edge + PLACES * unit;
    m.sums          = m.zeros + unit;
    memset(m.zeros, 0, (size_t)unit * sizeof *m.zeros);
    return m;
}

static struct unit unit_at(const struct job *j, int64_t i) {
    struct unit u = {.c = i % j->units_of_x * j->unit, .k = i / j->units_of_x * j->unit};
    u.C           = CR_MIN(j->unit, j->s.C - u.c);
    u.K           = CR_MIN(j->unit, j->s.K - u.k);
    return u;
}

/* Transforms tile number `tile` of all images, which is number `i` of the block. */
static void read_tile(const struct job *j, const struct unit *u, int64_t tile, int64_t i, const struct memory *m) {
    const struct cr_winograd_wgrad *s     = &j->s;
    const int64_t                   image = tile / (j->rows * j->columns), h = tile / j->columns % j->rows * 2;
    const int64_t                   w = tile % j->columns * 2, group = cr_wgrad_group();
    const struct cr_winograd_image  x = {
         .x = j->x + image * s->H * s->W * s->C + u->c, .height = s->H, .width = s->W, .pitch = s->C};
    const float *d[4];
    cr_winograd_input(&x, h - s->pad, w - s->pad, u->C, m->v + i * cr_wgrad_pitch(u->C), BLOCK * cr_wgrad_pitch(u->C),
                      m->edge);
    for (int n = 0; n < 4; n++) {
        const int64_t row = h + n / 2, column = w + n % 2;
        d[n] = row < s->P && column < s->Q ? j->dy + ((image * s->P + row) * s->Q + column) * s->K + u->k : m->zeros;
    }
    transform_gradient(d, u->K, group, cr_wgrad_group_floats(BLOCK), m->dy + i * group, dy_floats(u->K));
}

/* dU += the sums over tiles begin ... end - 1. */
static void add_tiles(const struct job *j, const struct unit *u, int64_t begin, int64_t end, const struct memory *m) {
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t tiles = CR_MIN((int64_t)BLOCK, end - first);
        for (int64_t i = 0; i < tiles; i++) read_tile(j, u, first + i, i, m);
        for (int place = 0; place < PLACES; place++) {
            const struct cr_wgrad_pixels pixels = {.x         = m->v + place * BLOCK * cr_wgrad_pitch(u->C),
                                                   .dy        = m->dy + place * dy_floats(u->K),
                                                   .images    = 1,
                                                   .rows      = 1,
                                                   .columns   = tiles,
                                                   .by_column = cr_wgrad_pitch(u->C),
                                                   .by_group  = cr_wgrad_group_floats(BLOCK)};
            cr_wgrad_add(&pixels, u->K, u->C, m->sums + place * u->K * u->C, u->C);
        }
    }
}

/* Channel `k` of the unit. */
static void write_filter(const struct job *j, const struct unit *u, int64_t k, const float *sums, int copies,
                         int64_t by_copy, bool accumulate, float *dw) {
    transform_sums(sums + k * u->C, u->K * u->C, copies, by_copy, u->C, dw + (u->k + k) * TAPS * j->s.C + u->c, j->s.C,
                   accumulate);
}

/* ---- threads ---- */

static struct job job_of(const struct cr_winograd_wgrad *s, int threads) {
    struct job j = {.s = *s, .unit = UNIT, .rows = (s->P + 1) / 2, .columns = (s->Q + 1) / 2};
    j.tiles      = s->N * j.rows * j.columns;
    if ((s->C + UNIT - 1) / UNIT * ((s->K + UNIT - 1) / UNIT) < threads && s->C * s->K > (int64_t)UNIT * UNIT)
        j.unit = UNIT / 2;
    j.unit       = CR_MIN(j.unit, CR_MAX(s->C, s->K));
    j.units_of_x = (s->C + j.unit - 1) / j.unit;
    j.units      = j.units_of_x * ((s->K + j.unit - 1) / j.unit);
    return j;
}

int64_t cr_winograd_wgrad_floats(const struct cr_winograd_wgrad *s, int threads) {
    return memory_floats(job_of(s, threads).unit) * threads;
}

static void zero_sums(const struct unit *u, const struct memory *m) {
    memset(m->sums, 0, (size_t)(PLACES * u->K * u->C) * sizeof *m->sums);
}

/* Threads divide the tiles of one unit. */
static void run_by_tiles(const struct job *j, const struct unit *u, bool accumulate, float *dw, float *scratch,
                         int threads) {
    const int64_t part = memory_floats(j->unit);
    CR_PARALLEL_FOR(threads)
    for (int t = 0; t < threads; t++) {
        const struct memory m = memory_at(scratch + t * part, j->unit);
        int64_t             begin, end;
        cr_run_of(j->tiles, t, threads, &begin, &end);
        zero_sums(u, &m);
        add_tiles(j, u, begin, end, &m);
    }
    const float *sums = memory_at(scratch, j->unit).sums;
    CR_PARALLEL_FOR(threads)
    for (int64_t k = 0; k < u->K; k++) write_filter(j, u, k, sums, threads, part, accumulate, dw);
}

static void run_by_units(const struct job *j, bool accumulate, float *dw, float *scratch, int threads) {
    CR_PARALLEL_FOR(threads)
    for (int t = 0; t < threads; t++) {
        const struct memory m = memory_at(scratch + t * memory_floats(j->unit), j->unit);
        int64_t             begin, end;
        cr_run_of(j->units, t, threads, &begin, &end);
        for (int64_t i = begin; i < end; i++) {
            const struct unit u = unit_at(j, i);
            zero_sums(&u, &m);
            add_tiles(j, &u, 0, j->tiles, &m);
            for (int64_t k = 0; k < u.K; k++) write_filter(j, &u, k, m.sums, 1, 0, accumulate, dw);
        }
    }
}

void cr_winograd_wgrad_run(const struct cr_winograd_wgrad *s, const float *x, const float *dy, bool accumulate,
                           float *dw, float *scratch, int threads) {
    struct job j = job_of(s, threads);
    j.x          = x;
    j.dy         = dy;
    if (j.units >= threads && threads > 1) {
        run_by_units(&j, accumulate, dw, scratch, threads);
        return;
    }
    for (int64_t i = 0; i < j.units; i++) {
        const struct unit u = unit_at(&j, i);
        run_by_tiles(&j, &u, accumulate, dw, scratch, threads);
    }
}

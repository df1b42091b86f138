/* device/cpu/tuned/conv/winograd_wgrad.c: filter gradients of 3x3 convolutions of stride 1 by Winograd's algorithm
 * (winograd.h). It is the gradient of winograd.c with respect to g:
 *
 *     dU = sum over tiles of (A dY A^T) * V with V = B^T d B, and dg = G^T dU G
 *
 * dU is one product of matrices for each place, [channels of dy][tiles] by [tiles][channels of x], which runs in the
 * tiles of wgrad_tile.c. Channels are divided into units whose dU stays in the second cache: V is computed anew for
 * each unit, which costs little. Threads divide the units, or the tiles where there are fewer units than threads. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/wgrad.h"
#include "device/cpu/tuned/conv/window.h"
#include "device/cpu/tuned/conv/winograd.h"

#include <string.h>

enum { TAPS = 9 /* of a filter */, VECTOR = CR_WINOGRAD_VECTOR };

/* How F(m x m) divides the work. */
struct sizes {
    int64_t channels; /* the least for which it is chosen: with fewer, the transforms cost more than they save */
    int64_t block;    /* tiles that are transformed at once, and the least for which it is chosen */
    int64_t unit;     /* channels of a unit */
};
static const struct sizes sizes2 = {64, 96, 128}, sizes4 = {16, 48, 128};

static int64_t tiles_of(const struct cr_winograd_wgrad *s, int m) {
    return s->N * ((s->P + m - 1) / m) * ((s->Q + m - 1) / m);
}

static bool pays(const struct cr_winograd_wgrad *s, int m, const struct sizes *sizes) {
    return s->C >= sizes->channels && s->K >= sizes->channels && tiles_of(s, m) >= sizes->block;
}

int cr_winograd_wgrad_choose(const struct cr_winograd_wgrad *s) {
    if (s->C % VECTOR || s->K % VECTOR) return 0;
    if (pays(s, 4, &sizes4) && tiles_of(s, 4) * cr_winograd_places(4) < tiles_of(s, 2) * cr_winograd_places(2))
        return 4;
    return pays(s, 2, &sizes2) ? 2 : 0;
}

/* ---- a unit ---- */

struct job {
    struct cr_winograd_wgrad s;
    int                      m, places; /* of winograd.h */
    int64_t                  block;     /* tiles */
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

static int64_t dy_floats(const struct job *j, int64_t K) {
    return (K + VECTOR - 1) / cr_wgrad_group() * cr_wgrad_group_floats(j->block);
}

/* The pitch is not monotonic: a unit of fewer channels may have the larger pitch. */
static int64_t v_floats(const struct job *j) {
    return j->block * (j->unit + CR_WGRAD_PITCH);
}

static int64_t memory_floats(const struct job *j) {
    return j->places * (v_floats(j) + dy_floats(j, j->unit) + j->unit * j->unit + j->unit) + j->unit;
}

static struct memory memory_at(const struct job *j, float *scratch) {
    struct memory m = {.v = scratch};
    m.dy            = m.v + j->places * v_floats(j);
    m.edge          = m.dy + j->places * dy_floats(j, j->unit);
    m.zeros         = m.edge + j->places * j->unit;
    m.sums          = m.zeros + j->unit;
    memset(m.zeros, 0, (size_t)j->unit * sizeof *m.zeros);
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
    const int64_t                   image = tile / (j->rows * j->columns), h = tile / j->columns % j->rows * j->m;
    const int64_t                   w = tile % j->columns * j->m, group = cr_wgrad_group();
    const struct cr_winograd_image  x = {
         .x = j->x + image * s->H * s->W * s->C + u->c, .height = s->H, .width = s->W, .pitch = s->C};
    const float *d[CR_WINOGRAD_OUTPUTS_MAX];
    cr_winograd_input(j->m, &x, h - s->pad, w - s->pad, u->C, m->v + i * cr_wgrad_pitch(u->C),
                      j->block * cr_wgrad_pitch(u->C), m->edge);
    for (int n = 0; n < j->m * j->m; n++) {
        const int64_t row = h + n / j->m, column = w + n % j->m;
        d[n] = row < s->P && column < s->Q ? j->dy + ((image * s->P + row) * s->Q + column) * s->K + u->k : m->zeros;
    }
    cr_winograd_gradient(j->m, d, u->K, group, cr_wgrad_group_floats(j->block), m->dy + i * group, dy_floats(j, u->K));
}

/* dU += the sums over tiles begin ... end - 1. */
static void add_tiles(const struct job *j, const struct unit *u, int64_t begin, int64_t end, const struct memory *m) {
    for (int64_t first = begin; first < end; first += j->block) {
        const int64_t tiles = CR_MIN(j->block, end - first);
        for (int64_t i = 0; i < tiles; i++) read_tile(j, u, first + i, i, m);
        for (int place = 0; place < j->places; place++) {
            const struct cr_wgrad_pixels pixels = {.x         = m->v + place * j->block * cr_wgrad_pitch(u->C),
                                                   .dy        = m->dy + place * dy_floats(j, u->K),
                                                   .images    = 1,
                                                   .rows      = 1,
                                                   .columns   = tiles,
                                                   .by_column = cr_wgrad_pitch(u->C),
                                                   .by_group  = cr_wgrad_group_floats(j->block)};
            cr_wgrad_add(&pixels, u->K, u->C, m->sums + place * u->K * u->C, u->C);
        }
    }
}

/* Channel `k` of the unit. */
static void write_filter(const struct job *j, const struct unit *u, int64_t k, const float *sums, int copies,
                         int64_t by_copy, bool accumulate, float *dw) {
    const struct cr_winograd_sums from = {
        .u = sums + k * u->C, .step = u->K * u->C, .by_copy = by_copy, .copies = copies};
    cr_winograd_filter_gradient(j->m, &from, u->C, dw + (u->k + k) * TAPS * j->s.C + u->c, j->s.C, accumulate);
}

/* ---- threads ---- */

static struct job job_of(const struct cr_winograd_wgrad *s, int threads) {
    const int           m     = cr_winograd_wgrad_choose(s);
    const struct sizes *sizes = m == 4 ? &sizes4 : &sizes2;
    const int64_t       whole = sizes->unit;
    struct job          j = {.s = *s, .m = m, .places = cr_winograd_places(m), .block = sizes->block, .unit = whole};
    j.rows                = (s->P + m - 1) / m;
    j.columns             = (s->Q + m - 1) / m;
    j.tiles               = s->N * j.rows * j.columns;
    if ((s->C + whole - 1) / whole * ((s->K + whole - 1) / whole) < threads && s->C * s->K > whole * whole)
        j.unit = whole / 2;
    j.unit       = CR_MIN(j.unit, CR_MAX(s->C, s->K));
    j.units_of_x = (s->C + j.unit - 1) / j.unit;
    j.units      = j.units_of_x * ((s->K + j.unit - 1) / j.unit);
    return j;
}

int64_t cr_winograd_wgrad_floats(const struct cr_winograd_wgrad *s, int threads) {
    const struct job j = job_of(s, threads);
    return memory_floats(&j) * threads;
}

static void zero_sums(const struct job *j, const struct unit *u, const struct memory *m) {
    memset(m->sums, 0, (size_t)(j->places * u->K * u->C) * sizeof *m->sums);
}

/* Threads divide the tiles of one unit. */
static void run_by_tiles(const struct job *j, const struct unit *u, bool accumulate, float *dw, float *scratch,
                         int threads) {
    const int64_t part = memory_floats(j);
    CR_THREADS(t, threads) {
        const struct memory m = memory_at(j, scratch + t * part);
        int64_t             begin, end;
        cr_run_of(j->tiles, t, threads, &begin, &end);
        zero_sums(j, u, &m);
        add_tiles(j, u, begin, end, &m);
    }
    const float *sums = memory_at(j, scratch).sums;
    CR_PARALLEL_BY(threads, int64_t, k, u->K) write_filter(j, u, k, sums, threads, part, accumulate, dw);
}

static void run_by_units(const struct job *j, bool accumulate, float *dw, float *scratch, int threads) {
    CR_THREADS(t, threads) {
        const struct memory m = memory_at(j, scratch + t * memory_floats(j));
        int64_t             begin, end;
        cr_run_of(j->units, t, threads, &begin, &end);
        for (int64_t i = begin; i < end; i++) {
            const struct unit u = unit_at(j, i);
            zero_sums(j, &u, &m);
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

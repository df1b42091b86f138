/* device/cpu/tuned/conv/winograd.c: 3x3 convolutions of stride 1 with 16 multiplications for four output pixels instead
 * of 36: F(2x2, 3x3) of Winograd's algorithm (Lavin and Gray 2016).
 *
 *     U = G g G^T of each filter g, V = B^T d B of each tile d of 4x4 input pixels, M = sum over channels of U * V,
 *     and A^T M A is the 2x2 output pixels of the tile
 *
 * M is 16 products of matrices, [tiles][channels] by [channels][outputs], which run in the tiles of tile.c. The
 * transforms only add and halve. checkops holds the kernel to the same error bound as the plain sum. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

enum {
    VECTOR        = sizeof(f32x8) / sizeof(float),
    PLACES        = 16,       /* numbers of a transformed tile */
    BLOCK_FLOATS  = 64 << 10, /* of V and M of a block of tiles */
    CHANNELS_MIN  = 64,       /* with fewer, the transforms cost more than they save */
    TILES_MIN     = 24,       /* with fewer, reading 16 instead of 9 numbers for each filter costs more */
    CHUNK_FILTERS = 6 << 10   /* floats of a panel: they stay in the first cache */
};

bool cr_conv_is_winograd(const struct cr_conv_plan *plan) {
    const struct cr_conv_window *v = &plan->window[0];
    return plan->windows == 1 && v->height == 3 && v->width == 3 && plan->stride == 1 &&
           plan->channels >= CHANNELS_MIN && plan->channels % VECTOR == 0 && plan->outputs >= CHANNELS_MIN &&
           plan->outputs % cr_conv_tile_size(plan->outputs).panel == 0 &&
           plan->images * ((v->rows + 1) / 2) * ((v->columns + 1) / 2) >= TILES_MIN;
}

int64_t cr_winograd_packed_floats(const struct cr_conv_plan *plan) {
    return PLACES * plan->channels * plan->outputs;
}

/* ---- filters ---- */

/* G g of a column of g: four numbers. */
static inline __attribute__((always_inline)) void filter_column(const f32x8 g[3], f32x8 u[4]) {
    const f32x8 sum = g[0] + g[2];
    u[0]            = g[0];
    u[1]            = (sum + g[1]) * 0.5f;
    u[2]            = (sum - g[1]) * 0.5f;
    u[3]            = g[2];
}

/* U of `count` filters: tap t of filter i is g[t * step + i], U goes to u[place * by + i]. */
CR_BY_LEVEL(void, transform_filters, (const float *g, int64_t step, int64_t count, float *u, int64_t by),
            (g, step, count, u, by)) {
    for (int64_t i = 0; i < count; i += VECTOR) {
        f32x8 half[4][3], column[3], out[4];
        for (int s = 0; s < 3; s++) {
            for (int r = 0; r < 3; r++) column[r] = *(const f32x8 *)(g + (3 * r + s) * step + i);
            filter_column(column, out);
            for (int r = 0; r < 4; r++) half[r][s] = out[r];
        }
        for (int r = 0; r < 4; r++) {
            filter_column(half[r], out);
            for (int s = 0; s < 4; s++) *(f32x8 *)(u + (4 * r + s) * by + i) = out[s];
        }
    }
}

/* [place][panel][channel][output of the panel]. Some channels of a panel at a time, in two steps. */
void cr_winograd_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads) {
    enum { CHANNELS = 16, TAPS = 9, STEP = CHANNELS * CR_PANEL_MAX };
    const struct cr_conv_window *v     = &plan->window[0];
    const int64_t                panel = cr_conv_tile_size(plan->outputs).panel, C = plan->channels;
    CR_PARALLEL_FOR(threads)
    for (int64_t first = 0; first < plan->outputs; first += panel)
        for (int64_t c = 0; c < C; c += CHANNELS) {
            const int64_t count = CR_MIN((int64_t)CHANNELS, C - c);
            const float  *from  = w + first * plan->by_output + c * plan->by_channel;
            float         taps[TAPS * STEP];
            for (int64_t t = 0; t < TAPS; t++)
                cr_conv_pack_tap(plan,
                                 from + (v->tap_row + t / 3 * v->by) * plan->by_row +
                                     (v->tap_column + t % 3 * v->by) * plan->by_tap,
                                 panel, count, panel, taps + t * STEP);
            transform_filters(taps, STEP, count * panel, packed + first * C + c * panel, C * plan->outputs);
        }
}

/* ---- tiles of the input and of the output ---- */

static inline __attribute__((always_inline)) void subtract_rows(const f32x8 d[4], f32x8 t[4]) {
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
}

CR_BY_LEVEL(void, transform_input,
            (const float *x, int64_t row, int64_t pixel, int64_t channels, float *v, int64_t step),
            (x, row, pixel, channels, v, step)) {
    for (int64_t c = 0; c < channels; c += VECTOR) {
        f32x8 t[4][4], column[4], out[4];
        for (int j = 0; j < 4; j++) {
            for (int i = 0; i < 4; i++) column[i] = *(const f32x8 *)(x + i * row + j * pixel + c);
            subtract_rows(column, out);
            for (int i = 0; i < 4; i++) t[i][j] = out[i];
        }
        for (int i = 0; i < 4; i++) {
            subtract_rows(t[i], out);
            for (int j = 0; j < 4; j++) *(f32x8 *)(v + (4 * i + j) * step + c) = out[j];
        }
    }
}

/* The 4x4 pixels of a tile that reaches over an edge, with zeros outside the image. */
static void copy_tile(const struct cr_winograd_image *image, int64_t h, int64_t w, int64_t channels, float *to) {
    for (int64_t i = 0; i < PLACES; i++, to += channels) {
        const int64_t row = h + i / 4, column = w + i % 4;
        if (row < 0 || row >= image->height || column < 0 || column >= image->width)
            memset(to, 0, (size_t)channels * sizeof *to);
        else
            memcpy(to, image->x + (row * image->width + column) * image->pitch, (size_t)channels * sizeof *to);
    }
}

void cr_winograd_input(const struct cr_winograd_image *image, int64_t h, int64_t w, int64_t channels, float *v,
                       int64_t step, float *edge) {
    const int64_t pixel = image->pitch;
    if (h >= 0 && w >= 0 && h + 4 <= image->height && w + 4 <= image->width) {
        transform_input(image->x + (h * image->width + w) * pixel, image->width * pixel, pixel, channels, v, step);
        return;
    }
    copy_tile(image, h, w, channels, edge);
    transform_input(edge, 4 * channels, channels, channels, v, step);
}

/* A^T m A of one tile, from m[place * step + output] to to[(2 * i + j) * outputs + output] for pixel (i, j). */
CR_BY_LEVEL(void, transform_output, (const float *m, int64_t step, int64_t outputs, float *to),
            (m, step, outputs, to)) {
    for (int64_t o = 0; o < outputs; o += VECTOR) {
        f32x8 t[2][4];
        for (int j = 0; j < 4; j++) {
            f32x8 d[4];
            for (int i = 0; i < 4; i++) d[i] = *(const f32x8 *)(m + (4 * i + j) * step + o);
            t[0][j] = d[0] + d[1] + d[2];
            t[1][j] = d[1] - d[2] - d[3];
        }
        for (int i = 0; i < 2; i++) {
            *(f32x8 *)(to + 2 * i * outputs + o)       = t[i][0] + t[i][1] + t[i][2];
            *(f32x8 *)(to + (2 * i + 1) * outputs + o) = t[i][1] - t[i][2] - t[i][3];
        }
    }
}

/* ---- the part of a thread ---- */

struct job {
    const struct cr_conv_plan *plan;
    const struct cr_conv_io   *io;
    int64_t                    rows, columns; /* tiles of an image */
    int64_t                    block;         /* tiles of a block: whole rows of tiles */
    int64_t                    first, last;   /* outputs */
};

/* Tile number `tile` of all images: V, at v + place * step. */
static void read_tile(const struct job *j, int64_t tile, float *v, int64_t step, float *edge) {
    const struct cr_conv_plan     *plan  = j->plan;
    const int64_t                  image = tile / j->columns / j->rows;
    const struct cr_winograd_image x     = {.x      = j->io->x + image * plan->height * plan->width * plan->channels,
                                            .height = plan->height,
                                            .width  = plan->width,
                                            .pitch  = plan->channels};
    cr_winograd_input(&x, tile / j->columns % j->rows * 2 - plan->window[0].top,
                      tile % j->columns * 2 - plan->window[0].left, plan->channels, v, step, edge);
}

static void write_tile(const struct job *j, int64_t tile, const float *m, int64_t step, float *sums) {
    const struct cr_conv_plan *plan = j->plan;
    const struct cr_conv_io   *io   = j->io;
    const int64_t image = tile / j->columns / j->rows, h = tile / j->columns % j->rows * 2, w = tile % j->columns * 2;
    const int64_t outputs = j->last - j->first;
    transform_output(m, step, outputs, sums);
    for (int64_t i = 0; i < 4; i++) {
        const int64_t row = h + i / 2, column = w + i % 2;
        if (row >= plan->out_height || column >= plan->out_width) continue;
        const int64_t place = ((image * plan->out_height + row) * plan->out_width + column) * plan->outputs + j->first;
        cr_conv_finish(io->y + place, sums + i * outputs, io->add ? io->add + place : NULL,
                       io->bias ? io->bias + j->first : NULL, io->relu, outputs);
    }
}

/* M = V U for one place and all tiles of a block. The filters of the next place are C * outputs floats further on. */
static void multiply(const struct job *j, const float *v, const float *u, int64_t tiles, float *m) {
    const struct cr_tile_size size = cr_conv_tile_size(j->plan->outputs);
    cr_tile_function         *run  = cr_conv_tile(j->plan->outputs);
    const int64_t             C = j->plan->channels, outputs = j->last - j->first;
    const int64_t             chunk = CHUNK_FILTERS / size.panel;
    struct cr_tile            t     = {.rows = 1, .to = m};
    for (int64_t output = 0; output < outputs; output += size.panel)
        for (int64_t c = 0; c < C; c += chunk) {
            t.len          = CR_MIN(chunk, C - c);
            t.begin        = c ? m : NULL;
            const float *w = u + (j->first + output) * C + c * size.panel, *next = w + t.len * size.panel;
            if (output + size.panel >= outputs && c + chunk >= C) next = u + (j->plan->outputs + j->first) * C;
            for (int64_t first = 0; first < tiles; first += size.pixels) {
                for (int p = 0; p < size.pixels; p++) {
                    const int64_t tile = CR_MIN(first + p, tiles - 1);
                    t.x[p]             = v + tile * C + c;
                    t.y[p]             = tile * outputs;
                }
                cr_tile_prefetch(&t, next, size.panel, first / size.pixels, (tiles + size.pixels - 1) / size.pixels);
                run(&t, w, output);
            }
        }
}

static void run_block(const struct job *j, int64_t first, int64_t tiles, float *scratch) {
    const int64_t C = j->plan->channels, outputs = j->last - j->first;
    float        *v = scratch, *m = v + PLACES * j->block * C, *edge = m + PLACES * j->block * j->plan->outputs;
    for (int64_t i = 0; i < tiles; i++) read_tile(j, first + i, v + i * C, tiles * C, edge);
    for (int i = 0; i < PLACES; i++)
        multiply(j, v + i * tiles * C, j->io->packed + i * C * j->plan->outputs, tiles, m + i * tiles * outputs);
    for (int64_t i = 0; i < tiles; i++) write_tile(j, first + i, m + i * outputs, tiles * outputs, edge);
}

static struct job job_of(const struct cr_conv_plan *plan, const struct cr_conv_io *io) {
    const int64_t fit = BLOCK_FLOATS / (PLACES * (plan->channels + plan->outputs));
    struct job    j   = {.plan = plan, .io = io, .last = plan->outputs};
    j.rows            = (plan->window[0].rows + 1) / 2;
    j.columns         = (plan->window[0].columns + 1) / 2;
    j.block           = CR_MAX(fit / (2 * CR_TILE_PIXELS_MAX), 1) * 2 * CR_TILE_PIXELS_MAX;
    return j;
}

int64_t cr_winograd_scratch_floats(const struct cr_conv_plan *plan) {
    const struct job j = job_of(plan, NULL);
    return PLACES * (j.block * (plan->channels + plan->outputs) + CR_MAX(plan->channels, plan->outputs));
}

/* Threads divide the tiles; where these are few, the panels too. */
static void run_thread(struct job j, int thread, int threads, float *scratch) {
    const int64_t all = j.plan->images * j.rows * j.columns, panel = cr_conv_tile_size(j.plan->outputs).panel;
    const int64_t panels  = j.plan->outputs / panel;
    int           columns = 1;
    int64_t       begin, end;
    while (all * columns < (int64_t)2 * CR_TILE_PIXELS_MAX * threads && threads % (2 * columns) == 0 &&
           2 * columns <= panels)
        columns *= 2;
    cr_run_of(panels, thread % columns, columns, &j.first, &j.last);
    cr_run_of(all, thread / columns, threads / columns, &begin, &end);
    j.first *= panel;
    j.last *= panel;
    for (int64_t i = begin; i < end; i += j.block) run_block(&j, i, CR_MIN(j.block, end - i), scratch);
}

void cr_winograd_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads) {
    const struct job j = job_of(plan, io);
    CR_PARALLEL_FOR(threads)
    for (int t = 0; t < threads; t++) run_thread(j, t, threads, scratch + t * cr_winograd_scratch_floats(plan));
}

/* device/cpu/tuned/conv/winograd.c: 3x3 convolutions of stride 1 by Winograd's algorithm (winograd.h): F(4x4) needs 36
 * multiplications for 16 output pixels instead of 144, F(2x2) 16 for 4 instead of 36.
 *
 * M is one product of matrices for each place, [tiles][channels] by [channels][outputs], which runs in the tiles of
 * tile.c. checkops holds the kernel to the same error bound as the plain sum. */
#include "device/cpu/tuned/conv/winograd.h"

#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/window.h"

enum {
    BLOCK_FLOATS  = 64 << 10, /* of V and M of a block of tiles */
    CHUNK_FILTERS = 6 << 10   /* floats of a panel: they stay in the first cache */
};

/* With fewer channels the transforms cost more than they save. With fewer tiles, reading 36 or 16 instead of 9 numbers
 * for each filter costs more. */
struct least {
    int64_t channels, tiles;
};
static const struct least least2 = {64, 24}, least4 = {16, 32};

/* Tiles of an image, one way. */
static int64_t tiles_of(int64_t pixels, int m) {
    return (pixels + m - 1) / m;
}

static int64_t all_tiles(const struct cr_conv_plan *plan, int m) {
    return plan->images * tiles_of(plan->window[0].rows, m) * tiles_of(plan->window[0].columns, m);
}

static bool pays(const struct cr_conv_plan *plan, int m, const struct least *least) {
    return CR_MIN(plan->channels, plan->outputs) >= least->channels && all_tiles(plan, m) >= least->tiles;
}

int cr_winograd_choose(const struct cr_conv_plan *plan) {
    const struct cr_conv_window *v = &plan->window[0];
    if (plan->windows != 1 || v->height != 3 || v->width != 3 || plan->stride != 1 ||
        plan->channels % CR_WINOGRAD_VECTOR || plan->outputs % cr_conv_tile_size(plan->outputs).panel)
        return 0;
    /* Small images fill few tiles of 4x4 pixels. */
    if (pays(plan, 4, &least4) &&
        all_tiles(plan, 4) * cr_winograd_places(4) < all_tiles(plan, 2) * cr_winograd_places(2))
        return 4;
    return pays(plan, 2, &least2) ? 2 : 0;
}

int64_t cr_winograd_packed_floats(const struct cr_conv_plan *plan) {
    return cr_winograd_places(plan->winograd) * plan->channels * plan->outputs;
}

/* ---- filters ---- */

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
            cr_winograd_filters(plan->winograd, taps, STEP, count * panel, packed + first * C + c * panel,
                                C * plan->outputs);
        }
}

/* ---- the part of a thread ---- */

struct job {
    const struct cr_conv_plan *plan;
    const struct cr_conv_io   *io;
    int                        m, places;     /* of winograd.h */
    int64_t                    rows, columns; /* tiles of an image */
    int64_t                    block;         /* tiles of a block */
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
    cr_winograd_input(j->m, &x, tile / j->columns % j->rows * j->m - plan->window[0].top,
                      tile % j->columns * j->m - plan->window[0].left, plan->channels, v, step, edge);
}

static void write_tile(const struct job *j, int64_t tile, const float *products, int64_t step, float *sums) {
    const struct cr_conv_plan *plan  = j->plan;
    const struct cr_conv_io   *io    = j->io;
    const int64_t              image = tile / j->columns / j->rows, outputs = j->last - j->first;
    const int64_t              h = tile / j->columns % j->rows * j->m, w = tile % j->columns * j->m;
    cr_winograd_output(j->m, products, step, outputs, sums);
    for (int i = 0; i < j->m * j->m; i++) {
        const int64_t row = h + i / j->m, column = w + i % j->m;
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
    float        *v = scratch, *m = v + j->places * j->block * C, *edge = m + j->places * j->block * j->plan->outputs;
    for (int64_t i = 0; i < tiles; i++) read_tile(j, first + i, v + i * C, tiles * C, edge);
    for (int i = 0; i < j->places; i++)
        multiply(j, v + i * tiles * C, j->io->packed + i * C * j->plan->outputs, tiles, m + i * tiles * outputs);
    for (int64_t i = 0; i < tiles; i++) write_tile(j, first + i, m + i * outputs, tiles * outputs, edge);
}

static struct job job_of(const struct cr_conv_plan *plan, const struct cr_conv_io *io) {
    struct job    j   = {.plan = plan, .io = io, .m = plan->winograd, .last = plan->outputs};
    const int64_t one = cr_winograd_places(j.m) * (plan->channels + plan->outputs), tile = 2 * CR_TILE_PIXELS_MAX;
    j.places  = cr_winograd_places(j.m);
    j.rows    = tiles_of(plan->window[0].rows, j.m);
    j.columns = tiles_of(plan->window[0].columns, j.m);
    j.block   = CR_MAX(BLOCK_FLOATS / one / tile, 1) * tile;
    return j;
}

int64_t cr_winograd_scratch_floats(const struct cr_conv_plan *plan) {
    const struct job j = job_of(plan, NULL);
    return j.places * (j.block * (plan->channels + plan->outputs) + CR_MAX(plan->channels, plan->outputs));
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
    CR_THREADS(t, threads) run_thread(j, t, threads, scratch + t * cr_winograd_scratch_floats(plan));
}

/* device/cpu/tuned/conv/run.c: runs a plan: divides pixels and panels among the threads, and long sums into chunks that stay in
 * a cache. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/gather.h"

#include <string.h>

enum {
    CHUNK_FLOATS     = 384,       /* of a row and its taps: the filters of a chunk of a panel stay in the first cache */
    BLOCK_BYTES      = 192 << 10, /* of rows: they stay in the second cache, for the next panels */
    BLOCK_TILES_MIN  = 4,
    TILES_PER_THREAD = 8 /* fewer: threads divide the panels, too */
};

/* ---- chunks of the sums: some taps, or a part of one ---- */

struct chunks {
    int64_t groups, taps; /* of taps; taps of a group */
    int64_t parts, len;   /* of a row; floats of a part */
};
struct chunk {
    int64_t tap, taps, first, len; /* floats first ... first + len - 1 of each row */
    bool    is_first, is_last;
};

/* Chunks are about equally long. An output pixel without taps has one empty chunk. */
static struct chunks chunks_of(const struct cr_conv_plan *plan, int64_t taps) {
    struct chunks c    = {.parts = (plan->len + CHUNK_FLOATS - 1) / CHUNK_FLOATS};
    const int64_t most = CR_MIN(CR_MAX(CHUNK_FLOATS / plan->len, 1), (int64_t)CR_TILE_TAPS_MAX);
    c.len              = (plan->len + c.parts - 1) / c.parts;
    c.groups           = CR_MAX((taps + most - 1) / most, 1);
    c.taps             = (taps + c.groups - 1) / c.groups;
    return c;
}

static struct chunk chunk_at(const struct chunks *c, const struct cr_conv_plan *plan, int64_t taps, int64_t i) {
    const int64_t tap = i / c->parts * c->taps, first = i % c->parts * c->len;
    return (struct chunk){.tap      = tap,
                          .taps     = CR_MIN(c->taps, taps - tap),
                          .first    = first,
                          .len      = CR_MIN(c->len, plan->len - first),
                          .is_first = i == 0,
                          .is_last  = i == c->groups * c->parts - 1};
}

/* ---- a block of pixels and a range of panels ---- */

struct block {
    const struct cr_conv_plan  *plan;
    const struct cr_conv_phase *phase;
    const struct cr_conv_io    *io;
    const float                *padded;         /* the copy of the only image, or NULL */
    int64_t                     begin, end;     /* pixels of all images: image * phase->pixels + pixel */
    int64_t                     panel, outputs; /* first output of the panel, and how many there are */
    struct cr_tile_size         size;
    cr_tile_function           *tile;
};

static const float zeros[CR_PANEL_MAX];

/* Sets the operands of the tile of the pixels from `at` on. Places after the last pixel repeat it and store into
 * `spare`, as all pixels of a panel do that has fewer outputs than the tile. */
static void set_tile(const struct block *b, const struct chunk *c, int64_t at, float *spare, struct cr_tile *tile) {
    const struct cr_conv_plan *plan  = b->plan;
    const int64_t              count = b->phase->pixels, taps = b->phase->taps;
    const float               *add   = c->is_first ? b->io->add : b->io->y;
    const bool                 whole = b->outputs == b->size.panel;
    int64_t                    image = at / count, pixel = at % count;
    tile->taps = (int)c->taps;
    tile->len  = c->len;
    for (int p = 0; p < b->size.pixels; p++) {
        const int32_t *from   = b->phase->from + pixel * taps + c->tap;
        const float   *x      = b->padded ? b->padded : b->io->x + image * plan->in_image;
        const int64_t  place  = image * plan->out_image + b->phase->to[pixel] + b->panel;
        const bool     exists = at + p < b->end;
        tile->out[p]          = exists && whole ? b->io->y + place : spare + p * CR_PANEL_MAX;
        tile->init[p]         = !whole ? (c->is_first ? zeros : tile->out[p]) : add ? add + place : zeros;
        for (int64_t t = 0; t < c->taps; t++)
            tile->row[t * b->size.pixels + p] = from[t] == CR_ROW_OUTSIDE ? plan->zero : x + from[t] + c->first;
        if (at + p + 1 < b->end && ++pixel == count) {
            pixel = 0;
            image++;
        }
    }
}

/* The floats of an output pixel, after its sum: bias, add where the tile did not begin with it, ReLU. */
static inline __attribute__((always_inline)) void finish(float *y, const float *sum, const float *add,
                                                         const float *bias, bool relu, int64_t count) {
    for (int64_t o = 0; o < count; o++) {
        const float v = sum[o] + (add ? add[o] : 0) + (bias ? bias[o] : 0);
        y[o]          = relu && v < 0 ? 0 : v;
    }
}
CR_BY_LEVEL(void, finish_pixel,
            (float *y, const float *sum, const float *add, const float *bias, bool relu, int64_t count),
            (y, sum, add, bias, relu, count)) {
    finish(y, sum, add, bias, relu, count);
}

static void finish_tile(const struct block *b, int64_t at, const struct cr_tile *tile) {
    const bool    whole = b->outputs == b->size.panel;
    const int64_t count = CR_MIN((int64_t)b->size.pixels, b->end - at), pixels = b->phase->pixels;
    const float  *bias = b->io->bias ? b->io->bias + b->panel : NULL;
    if (whole && !bias && !b->io->relu) return;
    for (int64_t p = 0; p < count; p++) {
        const int64_t g = at + p, place = g / pixels * b->plan->out_image + b->phase->to[g % pixels] + b->panel;
        const float  *add = !whole && b->io->add ? b->io->add + place : NULL;
        finish_pixel(b->io->y + place, tile->out[p], add, bias, b->io->relu, b->outputs);
    }
}

static void run_tile(const struct block *b, const struct chunk *c, int64_t at, float *spare) {
    const int64_t  len = b->plan->len, width = b->size.panel;
    struct cr_tile tile;
    tile.w = b->io->packed + b->phase->packed + (b->panel / width * b->phase->taps + c->tap) * len * width +
             c->first * width;
    set_tile(b, c, at, spare, &tile);
    b->tile(&tile);
    if (c->is_last) finish_tile(b, at, &tile);
}

/* Chunk by chunk, so that all tiles of the block read its filters from the first cache. The sums of a panel that has fewer
 * outputs than the tile stay in `spare` between chunks, so such a panel runs tile by tile. */
static void run_panel(const struct block *b) {
    float               spare[CR_TILE_PIXELS_MAX * CR_PANEL_MAX];
    const int64_t       taps   = b->phase->taps;
    const struct chunks chunks = chunks_of(b->plan, taps);
    const int64_t       all = chunks.groups * chunks.parts, by = b->size.pixels;
    const int64_t       tiles = (b->end - b->begin + by - 1) / by;
    const bool          whole = b->outputs == b->size.panel;
    for (int64_t i = 0; i < all * tiles; i++) {
        const struct chunk c = chunk_at(&chunks, b->plan, taps, whole ? i / tiles : i % all);
        run_tile(b, &c, b->begin + (whole ? i % tiles : i / all) * by, spare);
    }
}

/* ---- the part of a thread ---- */

/* Outputs first ... last - 1 of pixels begin ... end - 1, in blocks. */
static void run_pixels(struct block b, int64_t begin, int64_t end, int64_t first, int64_t last) {
    const int64_t fit   = BLOCK_BYTES / (b.plan->len * (int64_t)sizeof(float)) / b.size.pixels;
    const int64_t count = CR_MAX(fit, (int64_t)BLOCK_TILES_MIN) * b.size.pixels;
    for (b.begin = begin; b.begin < end; b.begin = b.end) {
        b.end = CR_MIN(b.begin + count, end);
        for (b.panel = first; b.panel < last; b.panel += b.size.panel) {
            b.outputs = CR_MIN((int64_t)b.size.panel, last - b.panel);
            run_panel(&b);
        }
    }
}

static void copy_padded(const struct cr_conv_plan *plan, const float *x, float *to) {
    const int64_t row = plan->image_width * plan->channels, edge = plan->pad * plan->channels;
    memset(to, 0, (size_t)plan->in_image * sizeof *to);
    for (int64_t h = 0; h < plan->image_height; h++)
        memcpy(to + (h + plan->pad) * plan->width * plan->channels + edge, x + h * row, (size_t)row * sizeof *to);
}

/* Image by image, because the copy with padding is that of one image. */
static void run_padded(struct block b, int64_t begin, int64_t end, int64_t first, int64_t last, float *scratch) {
    const int64_t count = b.phase->pixels, image_floats = b.plan->image_height * b.plan->image_width * b.plan->channels;
    b.padded = scratch;
    for (int64_t image = begin / count; image * count < end; image++) {
        copy_padded(b.plan, b.io->x + image * image_floats, scratch);
        run_pixels(b, CR_MAX(begin, image * count), CR_MIN(end, (image + 1) * count), first, last);
    }
}

/* Threads divide the tiles; where these are few, the panels too. */
static void run_thread(const struct block *b, int thread, int threads, float *scratch) {
    const int64_t by = b->size.pixels, all = b->plan->images * b->phase->pixels, tiles = (all + by - 1) / by;
    const int64_t panels  = (b->plan->outputs + b->size.panel - 1) / b->size.panel;
    int           columns = 1;
    int64_t       begin, end, first, last;
    while (tiles * columns < (int64_t)TILES_PER_THREAD * threads && threads % (2 * columns) == 0 &&
           2 * columns <= panels)
        columns *= 2;
    cr_run_of(tiles, thread / columns, threads / columns, &begin, &end);
    cr_run_of(panels, thread % columns, columns, &first, &last);
    begin *= by, end             = CR_MIN(end * by, all);
    first *= b->size.panel, last = CR_MIN(last * b->size.panel, b->plan->outputs);
    if (begin >= end || first >= last) return;
    if (b->plan->padded)
        run_padded(*b, begin, end, first, last, scratch);
    else
        run_pixels(*b, begin, end, first, last);
}

int64_t cr_conv_scratch_floats(const struct cr_conv_plan *plan) {
    return plan->padded ? (plan->in_image + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN : 0;
}

void cr_conv_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads) {
    struct block b = {
        .plan = plan, .io = io, .size = cr_conv_tile_size(plan->outputs), .tile = cr_conv_tile(plan->outputs)};
    for (int f = 0; f < plan->phases; f++) {
        b.phase = &plan->phase[f];
        CR_PARALLEL_FOR(threads)
        for (int t = 0; t < threads; t++) run_thread(&b, t, threads, scratch + t * cr_conv_scratch_floats(plan));
    }
}

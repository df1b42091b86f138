/* tools/spdnn/inputs.c: inputs of the sparse networks: images of digits, scaled to the network's width, one bit per
 * pixel. */
#include "tools/spdnn/spdnn.h"

#include "core/files.h"
#include "core/rng.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    SIDE     = CR_SPDNN_SIDE,
    PIXELS   = SIDE * SIDE,
    HEADER   = 16,
    WORD     = 32,
    SAMPLE   = 10000,
    LEVELS   = 257,
    SIDE_MAX = 256
};

/* ---- images ---- */

static uint32_t big_endian(const char *bytes) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 8 | (uint8_t)bytes[i];
    return value;
}

cr_status cr_spdnn_images_read(const char *path, struct cr_spdnn_images *out) {
    const size_t limit = (size_t)1 << 30;
    char        *file;
    size_t       length;
    CR_TRY(cr_file_read(path, limit, &file, &length));
    cr_status status = CR_OK;
    *out             = (struct cr_spdnn_images){0};
    if (length < HEADER || big_endian(file) != 0x803 || big_endian(file + 8) != SIDE || big_endian(file + 12) != SIDE)
        CR_FAIL_OUT(CR_ERR_FORMAT,
                    "%s: not a file of 28 x 28 images in MNIST's idx format (train-images-idx3-ubyte, uncompressed)",
                    path);
    out->count = big_endian(file + 4);
    if (out->count < 1 || length != HEADER + (size_t)out->count * PIXELS)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: %zu bytes do not match the header, which declares %lld images", path, length,
                    (long long)out->count);
    out->pixel = cr_alloc((size_t)out->count, PIXELS);
    if (!out->pixel) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %lld images", (long long)out->count);
    for (size_t i = 0; i < (size_t)out->count * PIXELS; i++) out->pixel[i] = (uint8_t)file[HEADER + i];
out:
    cr_free(file);
    if (status != CR_OK) out->count = 0;
    return status;
}

static double distance(double x, double y, const double a[2], const double b[2]) {
    const double dx = b[0] - a[0], dy = b[1] - a[1], square = dx * dx + dy * dy;
    const double t = square > 0 ? CR_MIN(CR_MAX(((x - a[0]) * dx + (y - a[1]) * dy) / square, 0.0), 1.0) : 0.0;
    return hypot(x - a[0] - t * dx, y - a[1] - t * dy);
}

/* Draws a polyline of three to five points in the area that digits fill, with a random pen width. */
static void draw_digit(uint8_t *pixel, uint64_t seed, int64_t number) {
    struct cr_rng rng    = cr_rng_make(seed, CR_RNG_SYNTHETIC, (uint64_t)number, 0);
    const int     points = 3 + (int)cr_rng_below(&rng, 3);
    const double  pen    = 0.8 + 1.2 * cr_rng_real(&rng);
    double        point[5][2];
    for (int i = 0; i < points; i++)
        for (int d = 0; d < 2; d++) point[i][d] = 5.0 + 18.0 * cr_rng_real(&rng);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            double nearest = SIDE;
            for (int i = 0; i + 1 < points; i++)
                nearest = CR_MIN(nearest, distance(x + 0.5, y + 0.5, point[i], point[i + 1]));
            pixel[y * SIDE + x] = (uint8_t)(255.0 * CR_MIN(CR_MAX(pen + 0.5 - nearest, 0.0), 1.0));
        }
}

cr_status cr_spdnn_images_generate(int64_t count, uint64_t seed, struct cr_spdnn_images *out) {
    *out = (struct cr_spdnn_images){.count = count};
    CR_ALLOC(out->pixel, (size_t)count * PIXELS);
    for (int64_t i = 0; i < count; i++) draw_digit(out->pixel + i * PIXELS, seed, i);
    return CR_OK;
}

void cr_spdnn_images_free(struct cr_spdnn_images *images) {
    cr_free(images->pixel);
    *images = (struct cr_spdnn_images){0};
}

/* ---- bilinear scaling: pixels are areas; border pixels are repeated outside ---- */

struct scaling {
    int   side;
    int   low[SIDE_MAX], high[SIDE_MAX]; /* the two source pixels of each result pixel */
    float weight[SIDE_MAX];              /* of the second source pixel */
};

static void scaling_init(int64_t neurons, struct scaling *e) {
    e->side = (int)lround(sqrt((double)neurons));
    CR_ASSERT(e->side <= SIDE_MAX);
    for (int o = 0; o < e->side; o++) {
        const float at    = ((float)o + 0.5f) * (float)SIDE / (float)e->side - 0.5f;
        const int   first = (int)floorf(at);
        e->weight[o]      = at - (float)first;
        e->low[o]         = CR_MIN(CR_MAX(first, 0), SIDE - 1);
        e->high[o]        = CR_MIN(CR_MAX(first + 1, 0), SIDE - 1);
    }
}

/* wide[SIDE][side]: each row of the image, scaled horizontally. */
static void scale_rows(const struct scaling *e, const uint8_t *pixel, float *wide) {
    for (int y = 0; y < SIDE; y++)
        for (int o = 0; o < e->side; o++) {
            const float a = pixel[y * SIDE + e->low[o]], b = pixel[y * SIDE + e->high[o]];
            wide[y * e->side + o] = a + (b - a) * e->weight[o];
        }
}
static void scale_line(const struct scaling *e, const float *wide, int y, float *line) {
    const float *a = wide + e->low[y] * e->side, *b = wide + e->high[y] * e->side;
    for (int o = 0; o < e->side; o++) line[o] = a[o] + (b[o] - a[o]) * e->weight[y];
}

/* ---- the threshold ---- */

/* A value is above an integer threshold exactly if its ceiling is: one histogram serves all thresholds. */
static int choose_threshold(const struct cr_spdnn_images *images, const struct scaling *e, double density) {
    const int64_t step =
        CR_MAX(images->count / SAMPLE, (int64_t)1) | 1; /* odd: in MNIST, even and odd images have different sources */
    double count[LEVELS] = {0}, all = 0, above = 0, best = INFINITY;
    float  wide[SIDE * SIDE_MAX], line[SIDE_MAX];
    int    threshold = 0;
    for (int64_t i = 0; i < images->count; i += step) {
        scale_rows(e, images->pixel + i * PIXELS, wide);
        for (int y = 0; y < e->side; y++) {
            scale_line(e, wide, y, line);
            for (int o = 0; o < e->side; o++) count[(int)ceilf(line[o])]++;
        }
        all += (double)e->side * e->side;
    }
    for (int t = LEVELS - 2; t >= 0; t--) {
        above += count[t + 1];
        if (fabs(above / all - density) >= best) continue;
        best      = fabs(above / all - density);
        threshold = t;
    }
    return threshold;
}

/* ---- inputs ---- */

struct fill_job {
    const struct cr_spdnn_images *images;
    struct cr_spdnn_inputs       *inputs;
    struct scaling                e;
    atomic_llong                  nonzeros;
};

/* Computes one word (32 inputs) of every neuron. */
static cr_status fill_word(void *context, int64_t word) {
    struct fill_job        *f    = context;
    struct cr_spdnn_inputs *to   = f->inputs;
    const int64_t           end  = CR_MIN((word + 1) * WORD, to->count);
    int64_t                 ones = 0;
    float                   wide[SIDE * SIDE_MAX], line[SIDE_MAX];
    uint32_t               *bits; /* [neurons]: a local copy, because the words of the result are far apart */
    CR_ALLOC(bits, (size_t)to->neurons);
    for (int64_t i = word * WORD; i < end; i++) {
        scale_rows(&f->e, f->images->pixel + i % f->images->count * PIXELS, wide);
        for (int y = 0; y < f->e.side; y++) {
            uint32_t *row = bits + y * f->e.side;
            scale_line(&f->e, wide, y, line);
            for (int o = 0; o < f->e.side; o++) {
                const uint32_t one = line[o] > (float)to->threshold;
                row[o] |= one << i % WORD;
                ones += one;
            }
        }
    }
    for (int64_t n = 0; n < to->neurons; n++) to->bit[n * to->words + word] = bits[n];
    cr_free(bits);
    atomic_fetch_add(&f->nonzeros, ones);
    return CR_OK;
}

cr_status cr_spdnn_inputs_open(const struct cr_spdnn_images *images, int64_t neurons, int64_t count, double density,
                               int threads, struct cr_spdnn_inputs *out) {
    struct fill_job f = {.images = images, .inputs = out};
    scaling_init(neurons, &f.e);
    if ((int64_t)f.e.side * f.e.side != neurons)
        return CR_FAIL(CR_ERR_USAGE, "%lld neurons: the number must be a square", (long long)neurons);
    *out           = (struct cr_spdnn_inputs){.neurons = neurons, .count = count, .words = (count + WORD - 1) / WORD};
    out->threshold = choose_threshold(images, &f.e, density);
    CR_ALLOC(out->bit, (size_t)(neurons * out->words));
    CR_TRY(cr_spdnn_parallel(out->words, threads, fill_word, &f));
    out->nonzeros = atomic_load(&f.nonzeros);
    return CR_OK;
}

cr_status cr_spdnn_inputs_pick(const struct cr_spdnn_inputs *all, int64_t step, struct cr_spdnn_inputs *out) {
    *out = (struct cr_spdnn_inputs){
        .neurons = all->neurons, .count = (all->count + step - 1) / step, .threshold = all->threshold};
    out->words = (out->count + WORD - 1) / WORD;
    CR_ALLOC(out->bit, (size_t)(out->neurons * out->words));
    for (int64_t n = 0; n < out->neurons; n++)
        for (int64_t i = 0; i < out->count; i++) {
            const uint32_t one = all->bit[n * all->words + i * step / WORD] >> i * step % WORD & 1;
            out->bit[n * out->words + i / WORD] |= one << i % WORD;
            out->nonzeros += one;
        }
    return CR_OK;
}

void cr_spdnn_inputs_close(struct cr_spdnn_inputs *inputs) {
    cr_free(inputs->bit);
    *inputs = (struct cr_spdnn_inputs){0};
}

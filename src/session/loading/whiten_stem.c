/* session/loading/whiten_stem.c: model.stem_init = whitening. The filters of the first convolution become the
 * eigenvectors of the covariance of image patches, divided by the square roots of the eigenvalues, and their negatives,
 * as in Page 2019 ("How to train your ResNet") and Jordan 2024 (airbench). Their outputs are uncorrelated and have
 * variance 1. See session/session.h. */
#include "data/data.h"
#include "session/checkpoint_tensors.h"

#include <math.h>
#include <string.h>

enum { IMAGES = 512, PATCHES = 256, SWEEPS = 30 }; /* patches of an image, at most */

static const double smallest = 5e-4; /* added to the eigenvalues: patches hardly vary in these directions */

struct patches {
    const struct cr_param *filter; /* [K][R][S][C] */
    int                    n;      /* elements of a patch: R * S * C */
    int                    height, width;
    enum cr_pixel_format   format;
    double                 mean[4], deviation[4]; /* normalisation of a channel */
    double                *patch, *sum, *product; /* [n], [n], [n][n] (lower triangle) */
    int64_t                count;
};

/* ---- covariance ---- */

static double channel_at(const struct patches *p, const uint8_t *image, int64_t pixel, int channel) {
    const int64_t at = pixel * cr_format_channels(p->format) + channel;
    uint16_t      wide;
    if (cr_format_bytes(p->format) == (size_t)cr_format_channels(p->format)) return image[at] / 255.0;
    memcpy(&wide, image + at * (int64_t)sizeof wide, sizeof wide);
    return wide / 65535.0;
}

static void add_patch(struct patches *p, const uint8_t *image, int y, int x) {
    const int R = (int)p->filter->dim[1], S = (int)p->filter->dim[2], C = (int)p->filter->dim[3];
    double   *to = p->patch;
    for (int r = 0; r < R; r++)
        for (int s = 0; s < S; s++)
            for (int c = 0; c < C; c++)
                *to++ = (channel_at(p, image, (int64_t)(y + r) * p->width + x + s, c) - p->mean[c]) / p->deviation[c];
    for (int i = 0; i < p->n; i++) {
        p->sum[i] += p->patch[i];
        for (int j = 0; j <= i; j++) p->product[i * p->n + j] += p->patch[i] * p->patch[j];
    }
    p->count++;
}

static void add_image(struct patches *p, const uint8_t *image) {
    const int rows = p->height - (int)p->filter->dim[1] + 1, columns = p->width - (int)p->filter->dim[2] + 1;
    const int step = CR_MAX((int)ceil(sqrt((double)rows * columns / PATCHES)), 1);
    for (int y = 0; y < rows; y += step)
        for (int x = 0; x < columns; x += step) add_patch(p, image, y, x);
}

/* The full symmetric matrix. */
static void finish_covariance(struct patches *p) {
    const double count = (double)CR_MAX(p->count, 1);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j <= i; j++) {
            const double value       = p->product[i * p->n + j] / count - p->sum[i] / count * (p->sum[j] / count);
            p->product[i * p->n + j] = p->product[j * p->n + i] = value;
        }
}

static cr_status read_patches(struct cr_session *s, const struct cr_dataset *train, struct patches *p) {
    const int64_t            batch   = CR_MIN(IMAGES, cr_dataset_count(train));
    struct cr_loader_options options = cr_loader_options_from(s->config, CR_SPLIT_TRAIN, &s->prepare_train, batch);
    struct cr_loader        *loader;
    struct cr_batch          images;
    options.prefetch = 1;
    CR_TRY(cr_loader_open(train, &options, &loader));
    cr_status status = cr_loader_next(loader, &images);
    if (status == CR_OK) {
        for (int64_t i = 0; i < batch; i++)
            add_image(p, images.images + (size_t)i * cr_prepare_bytes(&s->prepare_train));
        cr_loader_release(loader, &images);
        finish_covariance(p);
    }
    cr_loader_close(loader);
    return status;
}

/* ---- eigenvectors ---- */

/* Rotates rows or columns a and b: element i of each is `stride` apart. */
static void rotate(double *a, double *b, int n, int stride, double cosine, double sine) {
    for (int i = 0; i < n; i++) {
        const double x = a[i * stride], y = b[i * stride];
        a[i * stride] = cosine * x - sine * y;
        b[i * stride] = sine * x + cosine * y;
    }
}

/* Jacobi's method. The diagonal of matrix [n][n] becomes the eigenvalues, row i of vectors [n][n] the eigenvector of
 * the i-th. */
static void eigenvectors(double *matrix, int n, double *vectors) {
    memset(vectors, 0, (size_t)n * (size_t)n * sizeof *vectors);
    for (int i = 0; i < n; i++) vectors[i * n + i] = 1;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0, all = 0;
        for (int i = 0; i < n * n; i++) all += matrix[i] * matrix[i];
        for (int a = 0; a < n; a++)
            for (int b = a + 1; b < n; b++) {
                const double value = matrix[a * n + b];
                off += value * value;
                if (value * value <= 1e-32 * all) continue;
                const double angle = 0.5 * atan2(2 * value, matrix[b * n + b] - matrix[a * n + a]);
                rotate(matrix + a * n, matrix + b * n, n, 1, cos(angle), sin(angle));
                rotate(matrix + a, matrix + b, n, n, cos(angle), sin(angle));
                rotate(vectors + a * n, vectors + b * n, n, 1, cos(angle), sin(angle));
            }
        if (off <= 1e-24 * all) return;
    }
}

/* The index of the next largest eigenvalue; marks it as taken. */
static int take_largest(double *matrix, int n, double *value) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (matrix[i * n + i] > matrix[best * n + best]) best = i;
    *value                  = matrix[best * n + best];
    matrix[best * n + best] = -1;
    return best;
}

/* The first half of the filters in the order of the eigenvalues, the second half their negatives; filters beyond twice
 * the number of elements keep their values. */
static void make_filters(const struct patches *p, double *vectors, float *filters) {
    const int half = CR_MIN((int)p->filter->dim[0] / 2, p->n);
    for (int k = 0; k < half; k++) {
        double        value;
        const double *vector = vectors + p->n * take_largest(p->product, p->n, &value);
        for (int i = 0; i < p->n; i++) {
            const float weight                            = (float)(vector[i] / sqrt(CR_MAX(value, 0) + smallest));
            filters[(size_t)k * (size_t)p->n + (size_t)i] = weight;
            filters[(size_t)(half + k) * (size_t)p->n + (size_t)i] = -weight;
        }
    }
}

/* ---- the session ---- */

static cr_status replace_filters(struct cr_session *s, const struct patches *p, double *vectors) {
    const size_t bytes = (size_t)p->filter->elems * sizeof(float);
    void        *at    = cr_state_buffer_at(s, CR_BUFFER_VALUE) + (size_t)p->filter->offset * sizeof(float);
    float       *filters;
    CR_ALLOC(filters, (size_t)p->filter->elems);
    cr_status status = s->device->backend->sync(s->device);
    if (status == CR_OK) status = s->device->backend->get(s->device, filters, at, bytes);
    if (status == CR_OK) {
        make_filters(p, vectors, filters);
        status = s->device->backend->put(s->device, at, filters, bytes);
    }
    cr_free(filters);
    return status;
}

cr_status cr_session_whiten_stem(struct cr_session *s, const struct cr_dataset *train) {
    const struct cr_config *c       = s->config;
    const int               filter  = cr_param_store_first_filter(&s->model.store);
    struct patches          p       = {.filter = filter == CR_NONE ? NULL : &s->model.store.param[filter],
                                       .height = s->prepare_train.size,
                                       .width  = cr_prepare_width(&s->prepare_train),
                                       .format = s->prepare_train.format};
    double                 *vectors = NULL;
    cr_status               status  = CR_OK;
    CR_ASSERT(p.filter && s->model.store.real == CR_F32 && p.filter->dim[3] == cr_format_channels(p.format));
    p.n = (int)(p.filter->elems / p.filter->dim[0]);
    for (int i = 0; i < cr_format_channels(p.format); i++) {
        p.mean[i]      = cr_config_mean(c, i);
        p.deviation[i] = cr_config_std(c, i);
    }
    const size_t n = (size_t)p.n;
    p.patch        = cr_alloc(n, sizeof *p.patch);
    p.sum          = cr_alloc(n, sizeof *p.sum);
    p.product      = cr_alloc(n * n, sizeof *p.product);
    vectors        = cr_alloc(n * n, sizeof *vectors);
    if (!p.patch || !p.sum || !p.product || !vectors) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: image patches");
    CR_TRY_OUT(read_patches(s, train, &p));
    eigenvectors(p.product, p.n, vectors);
    status = replace_filters(s, &p, vectors);
out:
    cr_free(p.patch);
    cr_free(p.sum);
    cr_free(p.product);
    cr_free(vectors);
    return status;
}

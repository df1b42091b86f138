/* tests/unit/session/test_whiten_stem.c: model.stem_init = whitening. The outputs of the first half of the filters are
 * uncorrelated and have variance 1 on the patches of the training images, which are filtered here; the second half are
 * their negatives, and other parameters keep their values. */
#include "tests/harness/pruning_session.h"
#include "tests/harness/test.h"

enum { IMAGES = 200, SIDE = 16, STEPS = 2, HALF_MAX = 27 };

static const char *const keys[] = {
    "data.train_images=200", "data.image_size=16", "data.crop=none", "data.hflip=0", "train.device=cpu", NULL, NULL};

static const struct cr_param *stem(const struct cr_session *s) {
    return &s->model.store.param[0];
}

/* The output of filter k, KRSC, at a patch of an image of normalised values. */
static double filtered(const float *filter, const double *image, int y, int x) {
    double sum = 0;
    for (int r = 0; r < 3; r++)
        for (int s = 0; s < 3; s++)
            for (int c = 0; c < 3; c++)
                sum += (double)filter[(r * 3 + s) * 3 + c] * image[((y + r) * SIDE + x + s) * 3 + c];
    return sum;
}

static void read_image(const struct cr_session *s, const struct cr_dataset *train, int64_t i, double *out) {
    struct cr_image image;
    int32_t         label;
    REQUIRE_OK(cr_dataset_get(train, i, &image, &label));
    REQUIRE(image.width == SIDE && image.height == SIDE);
    for (int k = 0; k < SIDE * SIDE * 3; k++)
        out[k] = (image.rgb[k] / 255.0 - cr_config_mean(s->config, k % 3)) / cr_config_std(s->config, k % 3);
    cr_image_free(&image);
}

/* Covariance [half][half] of the outputs of the first filters over all patches. */
static void covariance(const struct cr_session *s, const struct cr_dataset *train, const float *filter, int half,
                       double *out) {
    double  mean[HALF_MAX] = {0}, image[SIDE * SIDE * 3], y[HALF_MAX];
    int64_t count          = 0;
    memset(out, 0, (size_t)(half * half) * sizeof *out);
    for (int64_t i = 0; i < IMAGES; i++) {
        read_image(s, train, i, image);
        for (int at = 0; at < (SIDE - 2) * (SIDE - 2); at++, count++) {
            for (int k = 0; k < half; k++) {
                y[k] = filtered(filter + 27 * k, image, at / (SIDE - 2), at % (SIDE - 2));
                mean[k] += y[k];
            }
            for (int k = 0; k < half * half; k++) out[k] += y[k / half] * y[k % half];
        }
    }
    for (int k = 0; k < half * half; k++)
        out[k] = out[k] / (double)count - mean[k / half] / (double)count * (mean[k % half] / (double)count);
}

static void whitens(const char *widths, int filters) {
    struct pruned      p;
    struct cr_dataset *train;
    float             *before, *after;
    const int          half = CR_MIN(filters / 2, HALF_MAX);
    double             got[HALF_MAX * HALF_MAX];
    const char        *list[8];
    memcpy(list, keys, sizeof keys);
    list[5] = widths;
    list[6] = NULL;
    REQUIRE_OK(pruned_open(&p, list));
    REQUIRE_OK(cr_dataset_open(p.config, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &before));
    REQUIRE_OK(cr_session_whiten_stem(&p.session, train));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &after));
    const struct cr_param *q      = stem(&p.session);
    const float           *filter = after + q->offset;
    REQUIRE(q->dim[0] == filters && q->dim[1] == 3 && q->dim[3] == 3);
    covariance(&p.session, train, filter, half, got);
    for (int k = 0; k < half * half; k++) CHECK_NEAR(got[k], k / half == k % half ? 1 : 0, 0.06);
    for (int k = 0; k < 27 * half; k++) CHECK(filter[27 * half + k] == -filter[k]);
    for (int64_t k = 0; k < p.session.model.store.value_elems; k++)
        if (k < q->offset || k >= q->offset + 54 * half) CHECK(before[k] == after[k]);
    cr_free(before);
    cr_free(after);
    cr_dataset_close(train);
    pruned_close(&p);
}

static void few_filters(void) {
    whitens("model.widths=8,16", 8);
}

/* More filters than directions: the last ten keep their initial values. */
static void many_filters(void) {
    whitens("model.widths=64,16", 64);
}

TESTS(CASE(few_filters), CASE(many_filters))

/* tests/gpu/test_cuda_calibrate.c: calibration on the GPU finds the scales that calibration on the CPU finds, also when
 * the run computes in 16 bits and the network has max pooling or zero channels in its shortcuts; two calibrations on
 * the GPU find bitwise identical scales. */
#include "session/quantization/quantized.h"
#include "tests/harness/test_gpu.h"
#include "tests/harness/train_support.h"

/* Relative difference of the largest magnitude of a tensor: fp32 sums in another order, or by another algorithm. */
#define TOLERANCE 1e-3

struct network {
    const char *name, *keys[6]; /* ended by NULL */
};

static const struct network networks[] = {
    {"max pooling", {"model.arch=resnet18", "data.image_size=64"}},
    {"bottlenecks",
     {"model.arch=custom", "model.block=bottleneck", "model.depths=1,2", "model.widths=32,64", "data.image_size=64"}},
    {"squeeze and excitation",
     {"model.arch=custom", "model.excitation=yes", "model.depths=1,1", "model.widths=32,64", "data.image_size=64"}},
    {"zero channels", {"model.arch=resnet20", "data.image_size=32"}},
};

static void prepare_network(struct run *r, const struct network *network) {
    static const char *const keys[] = {"model.classes=5",     "data.kind=synthetic",  "data.workers=1",
                                       "data.val_images=4",   "data.train_images=24", "train.batch=8",
                                       "train.save_every=0",  "train.epochs=1",       "train.precision=fp32",
                                       "model.bn_momentum=1", "optim.lr=0.001"};
    make_folder(r->dir);
    r->count = 0;
    for (size_t i = 0; i < CR_COUNT(keys); i++) give(r, keys[i]);
    for (int i = 0; network->keys[i]; i++) give(r, network->keys[i]);
}

/* The scales of the network trained in dir/weights. */
static cr_status calibrate(const struct run *base, const char *device, const char *precision, const char *method,
                           struct cr_calibration *out) {
    struct run              r = *base;
    const struct cr_config *config;
    struct cr_dataset      *train;
    const char *const       more[] = {formatted("model.weights=%s/weights", base->dir), device, precision, method,
                                      "quant.images=20"};
    for (size_t i = 0; i < CR_COUNT(more); i++) give(&r, more[i]);
    CR_TRY(cr_config_open(&config, NULL, r.value, r.count));
    cr_status status = cr_dataset_open(config, CR_SPLIT_TRAIN, &train);
    if (status == CR_OK) {
        status = cr_calibrate(config, train, out);
        cr_dataset_close(train);
    }
    cr_config_close(config);
    return status;
}

/* The scales of filters come from the same weights. */
static void compare(const struct network *network, const struct cr_calibration *got,
                    const struct cr_calibration *want) {
    CHECK_INT(got->count, want->count);
    CHECK_INT(got->images, want->images);
    double worst = 0;
    for (int i = 0; i < CR_MIN(got->count, want->count); i++) {
        CHECK_STR(got->at[i].name, want->at[i].name);
        CHECK_INT(got->at[i].elems, want->at[i].elems);
        if (strstr(want->at[i].name, ".weight_scale")) {
            CHECK(memcmp(got->at[i].scale, want->at[i].scale, (size_t)want->at[i].elems * sizeof(float)) == 0);
            continue;
        }
        const double apart = fabs((double)*got->at[i].scale / (double)*want->at[i].scale - 1);
        if (!(apart <= TOLERANCE))
            TEST_FAIL_("%s: %s is %g, want %g", network->name, want->at[i].name, (double)*got->at[i].scale,
                       (double)*want->at[i].scale);
        worst = fmax(worst, apart);
    }
    printf("    %s: %d scales, the worst is %.1e apart\n", network->name, got->count, worst);
}

static void compare_network(const struct network *network, const char *device) {
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=fp16"};
    struct cr_calibration    want, got[2];
    struct run               r;
    prepare_network(&r, network);
    REQUIRE_OK(TRAIN(&r, "weights", "train.device=cpu"));
    REQUIRE_OK(calibrate(&r, "train.device=cpu", "train.precision=fp32", "quant.method=max", &want));
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(calibrate(&r, device, precisions[k], "quant.method=max", &got[k]));
        compare(network, &got[k], &want);
    }
    for (int i = 0; i < want.count; i++) /* the same command gives the same scales, in any precision of the run */
        CHECK(memcmp(got[1].at[i].scale, got[0].at[i].scale, (size_t)want.at[i].elems * sizeof(float)) == 0);
    cr_calibration_free(&want);
    for (int k = 0; k < 2; k++) cr_calibration_free(&got[k]);
}

TEST(scales_equal_those_of_the_cpu) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(networks); i++) compare_network(&networks[i], "train.device=cuda");
}

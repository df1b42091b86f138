/* tests/unit/compiler/test_store_tensors.c: every tensor of the parameter store knows its buffer and its parameter,
 * also after all passes: cr_program_check, which compares both with its offset, is part of compiling. Here: no tensor
 * is left out by it, and the program of a changed store is refused. */
#include "tests/harness/compiler_support.h"
#include "tests/harness/owned.h"

static void check_program(struct bench_model *b, enum cr_program_kind kind, size_t bucket_bytes) {
    struct cr_cost_model      cost_model = greedy_cost_model(64);
    struct cr_compile_options options    = {.fuse = true, .reuse = true, .bucket_bytes = bucket_bytes, .wire = CR_F32};
    OWNED(program)            p          = {0};
    int                       slices = 0, several = 0;
    const int                 params = b->model.store.params;
    REQUIRE_OK(cr_model_program(&b->model, b->config, kind, 2, &p));
    CHECK_STATUS(cr_compile(&p, &cost_model, &options), CR_OK);
    for (int i = 0; i < p.tensors; i++) {
        const struct cr_tensor *t = &p.tensor[i];
        CHECK((t->buffer != CR_NONE) == (t->region == CR_REGION_STORE));
        CHECK(t->param != CR_SEVERAL || t->buffer == CR_BUFFER_GRAD);
        slices += t->param >= 0;
        several += t->param == CR_SEVERAL;
    }
    CHECK(slices > 20);
    CHECK(bucket_bytes ? several > 1 : several == 0);
    CHECK_INT(b->model.store.params, params); /* a program of a model adds no parameter */
}

/* The last two are programs that calibrate a quantised network: with max pooling, and with zero channels in its
 * shortcuts. */
TEST(tensors_of_networks) {
    static const char *const networks[][3] = {{"model.arch=resnet20", "ema.decay=0.9", "model.freeze=stem"},
                                              {"model.arch=resnet18", "quant.type=int8", "train.batch=2"},
                                              {"model.arch=resnet20", "quant.type=int8", "train.batch=2"}};
    for (int i = 0; i < 2 * (int)CR_COUNT(networks); i++) {
        OWNED(bench_model) b = {0};
        REQUIRE_OK(bench_open(&b, networks[i / 2], 3, 32));
        if (i % 2) cr_model_set_real(&b.model, CR_F16);
        b.model.calibrate = i >= 2;
        check_program(&b, CR_PROGRAM_EVAL, 0);
        if (!b.model.calibrate) check_program(&b, CR_PROGRAM_STEP, 0);
        if (!b.model.calibrate) check_program(&b, CR_PROGRAM_STEP, 100000);
    }
}

/* A parameter that is added after the tensors of a program moves the 16-bit weights: the program is refused. */
TEST(a_late_parameter_is_an_error) {
    const char *const  overrides[] = {"model.arch=resnet20"};
    const int64_t      dim[4]      = {1, 1, 1, 1};
    OWNED(bench_model) b           = {0};
    OWNED(program)     p           = {0};
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    cr_model_set_real(&b.model, CR_F16);
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_EVAL, 2, &p));
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    (void)cr_param_store_add(&b.model.store, "late.scale", CR_ROLE_SCALE, dim, CR_NONE);
    CHECK_STATUS(cr_program_check(&p), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "of the parameter store");
}

/* tests/unit/compiler/test_store_tensors.c: every tensor of the parameter store knows its buffer and its parameter,
 * also after all passes. The truth is its offset: those of the buffers and of the parameters in them. */
#include "tests/harness/compiler_support.h"

static size_t element_bytes(const struct cr_param_store *store, int buffer) {
    return cr_dtype_bytes(cr_param_store_buffer_dtype(store, (enum cr_param_buffer)buffer));
}

/* The buffer whose bytes contain the tensor's. */
static int buffer_at(const struct cr_param_store *store, const struct cr_tensor *t) {
    for (int b = 0; b < CR_BUFFERS; b++) {
        const size_t begin = cr_param_store_buffer_offset(store, (enum cr_param_buffer)b),
                     bytes = cr_param_store_buffer_bytes(store, (enum cr_param_buffer)b);
        if (begin <= t->offset && t->offset + t->bytes <= begin + bytes) return b;
    }
    return CR_NONE;
}

/* The parameter whose slice of a buffer has exactly the tensor's bytes. A whole buffer of one parameter would be its
 * slice too; no network here has one. */
static int param_at(const struct cr_param_store *store, const struct cr_tensor *t, int buffer) {
    const bool running = buffer == CR_BUFFER_RUNNING || buffer == CR_BUFFER_EMA_RUNNING;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q     = &store->param[k];
        const size_t           begin = cr_param_store_buffer_offset(store, (enum cr_param_buffer)buffer) +
                             (size_t)q->offset * element_bytes(store, buffer);
        if (cr_param_is_running(q->role) == running && begin == t->offset &&
            t->bytes == (size_t)q->elems * element_bytes(store, buffer))
            return k;
    }
    return CR_NONE;
}

static void check_tensor(const struct cr_program *p, int id, int *slices, int *several) {
    const struct cr_tensor *t = &p->tensor[id];
    if (t->region != CR_REGION_STORE) {
        CHECK(t->buffer == CR_NONE && t->param == CR_NONE);
        return;
    }
    const int buffer = buffer_at(p->store, t);
    CHECK_INT(t->buffer, buffer);
    if (t->param == CR_SEVERAL) {
        CHECK(buffer == CR_BUFFER_GRAD && t->bytes < cr_param_store_buffer_bytes(p->store, CR_BUFFER_GRAD));
        ++*several;
        return;
    }
    const bool whole = t->bytes == cr_param_store_buffer_bytes(p->store, (enum cr_param_buffer)buffer);
    CHECK_INT(t->param, whole ? CR_NONE : param_at(p->store, t, buffer));
    CHECK_INT(cr_tensor_store_find(p, (enum cr_param_buffer)buffer, t->param), id);
    *slices += t->param >= 0;
}

static void check_program(struct bench_model *b, enum cr_program_kind kind, size_t bucket_bytes) {
    struct cr_cost_model      cost_model = greedy_cost_model(64);
    struct cr_compile_options options    = {.fuse = true, .reuse = true, .bucket_bytes = bucket_bytes, .wire = CR_F32};
    struct cr_program         p;
    int                       slices = 0, several = 0;
    REQUIRE_OK(cr_model_program(&b->model, b->config, kind, 2, &p));
    CHECK_STATUS(cr_compile(&p, &cost_model, &options), CR_OK);
    for (int t = 0; t < p.tensors; t++) check_tensor(&p, t, &slices, &several);
    CHECK(slices > 20);
    CHECK(bucket_bytes ? several > 1 : several == 0);
    const int tensors = p.tensors; /* a tensor that exists is found */
    for (int t = 0; t < tensors; t++)
        if (p.tensor[t].region == CR_REGION_STORE && p.tensor[t].param != CR_SEVERAL)
            CHECK_INT(cr_tensor_store(&p, (enum cr_param_buffer)p.tensor[t].buffer, p.tensor[t].param), t);
    CHECK_INT(p.tensors, tensors);
    cr_program_free(&p);
}

static void tensors_of_networks(void) {
    const char *const overrides[] = {"model.arch=resnet20", "ema.decay=0.9", "model.freeze=stem"};
    for (int half = 0; half < 2; half++) {
        struct bench_model b;
        REQUIRE_OK(bench_open(&b, overrides, 3, 32));
        if (half) cr_model_set_real(&b.model, CR_F16);
        check_program(&b, CR_PROGRAM_STEP, 0);
        check_program(&b, CR_PROGRAM_STEP, 100000);
        check_program(&b, CR_PROGRAM_EVAL, 0);
        bench_close(&b);
    }
}

/* Programs that calibrate a quantised network: with max pooling, and with zero channels in its shortcuts. */
static void tensors_of_calibration(void) {
    const char *const networks[][2] = {{"model.arch=resnet18", "quant.type=int8"},
                                       {"model.arch=resnet20", "quant.type=int8"}};
    for (int i = 0; i < 4; i++) {
        struct bench_model b;
        REQUIRE_OK(bench_open(&b, networks[i / 2], 2, 32));
        if (i % 2) cr_model_set_real(&b.model, CR_F16);
        const int params  = b.model.store.params;
        b.model.calibrate = true;
        check_program(&b, CR_PROGRAM_EVAL, 0);
        CHECK_INT(b.model.store.params, params); /* a program of a model adds no parameter */
        bench_close(&b);
    }
}

/* A parameter that is added after the tensors of a program moves the 16-bit weights: the program is refused. */
static void a_late_parameter_is_an_error(void) {
    const char *const  overrides[] = {"model.arch=resnet20"};
    const int64_t      dim[4]      = {1, 1, 1, 1};
    struct bench_model b;
    struct cr_program  p;
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    cr_model_set_real(&b.model, CR_F16);
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_EVAL, 2, &p));
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    (void)cr_param_store_add(&b.model.store, "late.scale", CR_ROLE_SCALE, dim, CR_NONE);
    CHECK_STATUS(cr_program_check(&p), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "of the parameter store");
    cr_program_free(&p);
    bench_close(&b);
}

TESTS(CASE(tensors_of_networks), CASE(tensors_of_calibration), CASE(a_late_parameter_is_an_error))

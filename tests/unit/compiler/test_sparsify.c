/* tests/unit/compiler/test_sparsify.c: the weight formats of a pruned convolution that are measured, and the one that
 * is chosen, with an artificial cost model. */
#include "compiler/passes.h"
#include "tests/harness/test.h"

enum { FORMATS = 6, K = 8, C = 16, KEPT_EACH = 8 /* every eighth weight */ };

/* The data of the cost model in microseconds. `estimate` is 0 where no estimate exists; `takes` is 0 where the format
 * does not exist. */
struct artificial {
    double dense, estimate[FORMATS], takes[FORMATS];
    int    measured[FORMATS], measurements;
    bool   half; /* a program of 16 bits */
};

static bool is_sparse(const struct cr_op *op) {
    return op->attr.conv.pattern.nnz > 0;
}

static int number_of(const struct cr_op *op) {
    return cr_sparse_format_number(op->attr.conv.pattern.format);
}

static int64_t packed_elems(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct artificial *t      = self;
    const int                format = number_of(op);
    return format < FORMATS && t->takes[format] > 0 ? 100 + format : 0;
}
static double estimate(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct artificial *t = self;
    return number_of(op) < FORMATS ? 1e-6 * t->estimate[number_of(op)] : 0;
}
static void algo_name(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    CHECK_INT(p->tensor[op->in[CR_IN_conv_packed]].dim[3], 100 + number_of(op)); /* not of the last format tried */
    cr_text_add(out, "cut %c", 'a' + number_of(op));
}
static cr_status cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct artificial *t = self;
    if (is_sparse(op)) t->measured[t->measurements++] = number_of(op);
    *seconds = 1e-6 * (is_sparse(op) ? t->takes[number_of(op)] : t->dense);
    return CR_OK;
}

/* Runs the pass over one convolution; returns the chosen format, CR_NONE for dense. */
static int run(struct artificial *t, bool has_estimates, struct cr_text *report) {
    const int64_t         dim[4] = {K, 3, 3, C};
    struct cr_param_store store  = {.real = CR_F32};
    struct cr_program     p;
    struct cr_cost_model  cost_model = {.device.self         = t,
                                        .self                = t,
                                        .alignment           = 64,
                                        .device.packed_elems = packed_elems,
                                        .device.estimate     = has_estimates ? estimate : NULL,
                                        .cost                = cost,
                                        .device.algo_name    = algo_name};
    const int             param      = cr_param_store_add(&store, "w", CR_ROLE_CONV, dim, CR_NONE);
    static uint8_t        bits[K * 9 * C / 8 + 64];
    memset(bits, 0, sizeof bits);
    for (int64_t i = 0; i < K * 9 * C; i += KEPT_EACH) {
        const int64_t at = store.param[param].offset + i;
        bits[at / 8]     = (uint8_t)(bits[at / 8] | 1u << at % 8);
    }
    store.pattern = bits;
    cr_program_init(&p, "eval", &store);
    if (t->half) p.real = CR_F16;
    struct cr_op conv     = cr_op_make(CR_OP_conv, cr_program_layer(&p, "layer"));
    conv.in[CR_IN_conv_x] = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, C);
    conv.in[CR_IN_conv_w] = cr_tensor_store(&p, CR_BUFFER_VALUE, param);
    conv.attr.conv.stride = 1;
    conv.attr.conv.pad    = 1;
    cr_emit(&p, &conv, "y");
    CHECK(!p.failed && !store.failed);
    t->measurements = 0;
    CHECK(cr_pass_sparsify(&p, &cost_model, false, report) == CR_OK);
    int taken = CR_NONE;
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv && is_sparse(&p.op[i])) {
            taken = number_of(&p.op[i]);
            CHECK_INT(p.tensor[p.op[i].in[CR_IN_conv_packed]].dim[3], 100 + taken);
        }
    cr_program_free(&p);
    cr_param_store_free(&store);
    return taken;
}

static void check_measured(const struct artificial *t, const int *want, int count) {
    CHECK_INT(t->measurements, count);
    for (int i = 0; i < count && i < t->measurements; i++) CHECK_INT(t->measured[i], want[i]);
}

/* Without estimates: every existing format in the order of its number; of equal times the first. */
TEST(all_formats_are_measured) {
    struct artificial t = {.dense = 100, .estimate = {1, 900, 900, 900, 900, 900}, .takes = {90, 50, 0, 70, 50, 200}};
    CHECK_INT(run(&t, false, NULL), 1);
    check_measured(&t, (const int[]){0, 1, 3, 4, 5}, 5);
    t.dense = 50; /* dense wins where sparse is no faster */
    CHECK_INT(run(&t, false, NULL), CR_NONE);
}

/* Formats without estimate first, then by estimate; of equal times still the first by number. */
TEST(fast_estimates_come_first) {
    struct artificial t = {.dense = 100, .estimate = {60, 50, 0, 40, 55, 0}, .takes = {90, 50, 95, 70, 50, 0}};
    CHECK_INT(run(&t, true, NULL), 1);
    check_measured(&t, (const int[]){2, 3, 1, 4, 0}, 5);
}

/* A format whose estimate is above CR_ESTIMATE_MARGIN times the best known time, dense or sparse, is not measured;
 * every other format is. */
TEST(slow_estimates_are_not_measured) {
    struct artificial t = {.dense = 100, .estimate = {249, 251, 0, 20, 99, 101}, .takes = {1, 1, 120, 40, 39, 38}};
    CHECK_INT(run(&t, true, NULL), 4);
    check_measured(&t, (const int[]){2, 3, 4}, 3); /* 101 > 2.5 * 39; 5, 0 and 1 are skipped */
    t = (struct artificial){.dense = 100, .estimate = {249, 251, 0, 0, 0, 0}, .takes = {96, 1, 120, 0, 0, 0}};
    CHECK_INT(run(&t, true, NULL), 0);
    check_measured(&t, (const int[]){2, 0}, 2);
    t = (struct artificial){.dense = 10, .estimate = {26, 27, 28, 29, 30, 31}, .takes = {1, 1, 1, 1, 1, 1}};
    CHECK_INT(run(&t, true, NULL), CR_NONE);
    CHECK_INT(t.measurements, 0);
}

/* In 16 bits: where the estimated gains are too small, formats with an estimate are not measured. */
TEST(small_estimated_gain_in_16_bits) {
    struct cr_text    out = {0};
    struct artificial t   = {.dense = 100, .estimate = {97.5, 120, 0, 99, 0, 98}, .takes = {50, 50, 99, 50, 98, 50}};
    CHECK_INT(run(&t, true, NULL), 0);
    CHECK(t.measurements > 2);
    t.half = true;
    CHECK_INT(run(&t, true, &out), CR_NONE);
    check_measured(&t, (const int[]){2, 4}, 2); /* formats without estimate */
    CHECK(out.data && strstr(out.data, "estimated total gain 2.5 %, below the minimum of 3 %; not measured"));
    cr_text_free(&out);
    t.takes[4] = 60; /* a format without estimate is chosen all the same */
    CHECK_INT(run(&t, true, NULL), 4);
    t.estimate[0] = 96.9;
    CHECK_INT(run(&t, true, NULL), 0);
    CHECK_INT(t.measurements, 6);
    t = (struct artificial){
        .dense = 100, .half = true, .estimate = {97.5, 120, 99, 99, 98, 98}, .takes = {50, 50, 50, 50, 50, 50}};
    CHECK_INT(run(&t, true, &out), CR_NONE);
    CHECK_INT(t.measurements, 0);
    CHECK(out.data && strstr(out.data, "sparse formats, all skipped: total gain too small"));
    cr_text_free(&out);
    CHECK_INT(run(&t, false, NULL), 0); /* without estimates all are measured */
}

TEST(small_gain_is_not_enough) {
    struct cr_text    out = {0};
    struct artificial t   = {.dense = 100, .takes = {0, 0, 0, 97.5, 99, 98}};
    CHECK_INT(run(&t, false, &out), CR_NONE);
    CHECK(out.data && strstr(out.data, "total gain 2.5 %, below the minimum of 3 %") &&
          strstr(out.data, "all convolutions stay dense"));
    cr_text_free(&out);
    t.takes[3] = 96.9;
    CHECK_INT(run(&t, false, NULL), 3);
}

/* tests/unit/compiler/test_sparsify.c: which layouts of a pruned convolution are asked for, and which is taken, by an
 * invented target. */
#include "compiler/rewrite/explain.h"
#include "tests/harness/test.h"

enum { LAYOUTS = 6, K = 8, C = 16, KEPT_EACH = 8 /* every eighth weight */ };

/* What the target knows, microseconds; 0 of `foreseen`: nothing; 0 of `takes`: there is no such layout. */
struct invented {
    double dense, foreseen[LAYOUTS], takes[LAYOUTS];
    int    asked[LAYOUTS], asks;
    bool   json; /* the report as JSON */
    bool   half; /* a program of 16 bits */
};

static bool is_sparse(const struct cr_op *op) {
    return op->attr.conv.pattern.nnz > 0;
}

static int64_t packed_elems(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct invented *t = self;
    (void)p;
    const int layout = op->attr.conv.pattern.format;
    return layout < LAYOUTS && t->takes[layout] > 0 ? 100 + layout : 0;
}
static double estimate(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct invented *t = self;
    (void)p;
    return op->attr.conv.pattern.format < LAYOUTS ? 1e-6 * t->foreseen[op->attr.conv.pattern.format] : 0;
}
static void algo_name(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    (void)self, (void)p;
    cr_text_add(out, "cut %c", 'a' + op->attr.conv.pattern.format);
}
/* Tells of the tensor of kept weights as it stands: of the layout that was taken, not of the last one tried. */
static cr_status tell(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_selection *out) {
    const struct invented *t = self;
    *out = is_sparse(op) ? (struct cr_selection){"kept", (int)p->tensor[op->in[CR_IN_conv_packed]].dim[3],
                                                 1e-6 * t->takes[op->attr.conv.pattern.format], "file"}
                         : (struct cr_selection){"plain", 0, 1e-6 * t->dense, "measured"};
    return CR_OK;
}
static cr_status cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct invented *t = self;
    (void)p;
    if (is_sparse(op)) t->asked[t->asks++] = op->attr.conv.pattern.format;
    *seconds = 1e-6 * (is_sparse(op) ? t->takes[op->attr.conv.pattern.format] : t->dense);
    return CR_OK;
}

/* Runs the pass over one convolution; the layout that was taken, CR_NONE: dense. */
static int run(struct invented *t, bool foresees, struct cr_text *report) {
    const int64_t         dim[4] = {K, 3, 3, C};
    struct cr_param_store store  = {.real = CR_F32};
    struct cr_program     p;
    struct cr_cost_model  target = {.self         = t,
                                    .alignment    = 64,
                                    .packed_elems = packed_elems,
                                    .estimate     = foresees ? estimate : NULL,
                                    .cost         = cost,
                                    .algo_name    = algo_name,
                                    .explain      = tell};
    const int             param  = cr_param_store_add(&store, "w", CR_ROLE_CONV, dim, CR_NONE);
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
    t->asks                   = 0;
    struct cr_choices choices = {.text = report, .json = t->json};
    CHECK(cr_pass_sparsify(&p, &target, false, report ? &choices : NULL) == CR_OK);
    int taken = CR_NONE;
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv && is_sparse(&p.op[i])) {
            taken = p.op[i].attr.conv.pattern.format;
            CHECK_INT(p.tensor[p.op[i].in[CR_IN_conv_packed]].dim[3], 100 + taken);
        }
    cr_program_free(&p);
    cr_param_store_free(&store);
    return taken;
}

static void check_asked(const struct invented *t, const int *want, int count) {
    CHECK_INT(t->asks, count);
    for (int i = 0; i < count && i < t->asks; i++) CHECK_INT(t->asked[i], want[i]);
}

/* Without forecasts: every layout that is there, as numbered; of equals the first. */
static void all_are_asked(void) {
    struct invented t = {.dense = 100, .foreseen = {1, 900, 900, 900, 900, 900}, .takes = {90, 50, 0, 70, 50, 200}};
    CHECK_INT(run(&t, false, NULL), 1);
    check_asked(&t, (const int[]){0, 1, 3, 4, 5}, 5);
    t.dense = 50; /* dense wins where sparse is no faster */
    CHECK_INT(run(&t, false, NULL), CR_NONE);
}

/* Unknown ones first, then by what is foreseen; of equals the first by number still. */
static void quick_ones_come_first(void) {
    struct invented t = {.dense = 100, .foreseen = {60, 50, 0, 40, 55, 0}, .takes = {90, 50, 95, 70, 50, 0}};
    CHECK_INT(run(&t, true, NULL), 1);
    check_asked(&t, (const int[]){2, 3, 1, 4, 0}, 5);
}

/* Beyond CR_ESTIMATE_MARGIN times the best that is known, dense or sparse, nothing is asked for; up to there everything
 * is. */
static void far_ones_are_not_asked(void) {
    struct invented t = {.dense = 100, .foreseen = {249, 251, 0, 20, 99, 101}, .takes = {1, 1, 120, 40, 39, 38}};
    CHECK_INT(run(&t, true, NULL), 4);
    check_asked(&t, (const int[]){2, 3, 4}, 3); /* 101 > 2.5 * 39; 5, 0 and 1 are left behind */
    t = (struct invented){.dense = 100, .foreseen = {249, 251, 0, 0, 0, 0}, .takes = {96, 1, 120, 0, 0, 0}};
    CHECK_INT(run(&t, true, NULL), 0);
    check_asked(&t, (const int[]){2, 0}, 2);
    t = (struct invented){.dense = 10, .foreseen = {26, 27, 28, 29, 30, 31}, .takes = {1, 1, 1, 1, 1, 1}};
    CHECK_INT(run(&t, true, NULL), CR_NONE);
    CHECK_INT(t.asks, 0);
}

/* In 16 bits: where forecasts promise too little, those that have one are not asked for. */
static void little_is_foreseen_in_16_bits(void) {
    struct cr_text  out = {0};
    struct invented t   = {.dense = 100, .foreseen = {97.5, 120, 0, 99, 0, 98}, .takes = {50, 50, 99, 50, 98, 50}};
    CHECK_INT(run(&t, true, NULL), 0);
    CHECK(t.asks > 2);
    t.half = true;
    CHECK_INT(run(&t, true, &out), CR_NONE);
    check_asked(&t, (const int[]){2, 4}, 2); /* of which nobody knows */
    CHECK(out.data &&
          strstr(out.data, "estimated total gain 2.5 %, below the minimum of 3 %; not measured"));
    cr_text_free(&out);
    t.takes[4] = 60; /* what nobody foresaw is taken all the same */
    CHECK_INT(run(&t, true, NULL), 4);
    t.foreseen[0] = 96.9;
    CHECK_INT(run(&t, true, NULL), 0);
    CHECK_INT(t.asks, 6);
    t = (struct invented){
        .dense = 100, .half = true, .foreseen = {97.5, 120, 99, 99, 98, 98}, .takes = {50, 50, 50, 50, 50, 50}};
    CHECK_INT(run(&t, true, &out), CR_NONE);
    CHECK_INT(t.asks, 0);
    CHECK(out.data && strstr(out.data, "sparse formats, all skipped: total gain too small"));
    cr_text_free(&out);
    CHECK_INT(run(&t, false, NULL), 0); /* without forecasts all are asked for */
}

/* A little is not enough: the program stays what it was, and the report says why. */
static void a_small_gain_is_none(void) {
    struct cr_text  out = {0};
    struct invented t   = {.dense = 100, .takes = {0, 0, 0, 97.5, 99, 98}};
    CHECK_INT(run(&t, false, &out), CR_NONE);
    CHECK(out.data && strstr(out.data, "total gain 2.5 %, below the minimum of 3 %") &&
          strstr(out.data, "all convolutions stay dense"));
    cr_text_free(&out);
    t.takes[3] = 96.9;
    CHECK_INT(run(&t, false, NULL), 3);
}

static void lines_say_so(void) {
    struct cr_text  out = {0};
    struct invented t   = {.dense = 100, .foreseen = {0, 0, 0, 20, 79, 301}, .takes = {0, 0, 0, 40, 39, 38}};
    run(&t, true, &out);
    CHECK(out.data && strstr(out.data, "layer ") && strstr(out.data, "nonzero  12.50 %  sparse"));
    CHECK(out.data && strstr(out.data, "(format 4, cut e, best of 2; 1 pruned by estimate)\n"));
    cr_text_free(&out);
    out = (struct cr_text){0};
    t   = (struct invented){.dense = 10, .foreseen = {26, 27}, .takes = {1, 1}};
    run(&t, true, &out);
    CHECK(out.data && strstr(out.data, "dense ") &&
          strstr(out.data, "2 sparse formats, all pruned by estimate\n"));
    cr_text_free(&out);
    out = (struct cr_text){0};
    t   = (struct invented){.dense = 10};
    run(&t, true, &out);
    CHECK(out.data && strstr(out.data, "no sparse kernel supports it\n"));
    cr_text_free(&out);
}

static void json_says_the_same(void) {
    struct cr_text  out = {0};
    struct invented t   = {
          .dense = 100, .foreseen = {0, 0, 0, 20, 79, 301}, .takes = {0, 0, 0, 40, 39, 38}, .json = true};
    run(&t, true, &out);
    CHECK_STR(out.data, "{\"choice\": \"pattern\", \"layer\": \"layer\", \"kind\": \"conv\", \"type\": \"f32\", "
                        "\"stride\": 1, \"pad\": 1, \"shape\": "
                        "{\"x\": [1, 8, 8, 16], \"w\": [8, 3, 3, 16], \"packed\": [1, 1, 1, 104], \"y\": [1, 8, 8, 8]}, "
                        "\"kernel\": \"kept\", \"algo\": 104, "
                        "\"us\": 39.0000, \"source\": \"file\", \"density\": 0.125000, \"chosen\": \"sparse\", "
                        "\"dense_us\": 100.0000, \"sparse_us\": 39.0000, "
                        "\"format\": 4, \"format_name\": \"cut e\", \"formats\": 2, \"formats_pruned\": 1}\n");
    cr_text_free(&out);
    out = (struct cr_text){0};
    t   = (struct invented){.dense = 10, .foreseen = {26, 27}, .takes = {1, 1}, .json = true};
    run(&t, true, &out);
    CHECK(out.data && strstr(out.data, "\"kernel\": \"plain\", \"algo\": 0, \"us\": 10.0000, \"source\": \"measured\""));
    CHECK(out.data && strstr(out.data, "\"chosen\": \"dense\", \"dense_us\": 10.0000, \"sparse_us\": null, \"format\": "
                                       "null, \"format_name\": null, \"formats\": 0, \"formats_pruned\": 2}\n"));
    cr_text_free(&out);
}

TESTS(CASE(all_are_asked), CASE(quick_ones_come_first), CASE(far_ones_are_not_asked),
      CASE(little_is_foreseen_in_16_bits), CASE(a_small_gain_is_none), CASE(lines_say_so), CASE(json_says_the_same))

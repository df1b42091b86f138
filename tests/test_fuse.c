/* test_fuse.c: fusion by patterns: what is joined, what must not be, and that any mixture of joins computes what the
 * plain program computes (on the reference rows, in double). */
#include "layers/layer.h"
#include "passes_help.h"
#include "ref_run.h"

/* ---- hand-built programs ---- */

struct hand {
    struct cr_program p;
    int               x, coef, saved; /* leaves */
};

static void hand_open(struct hand *h) {
    cr_program_init(&h->p, "hand", NULL);
    h->x     = cr_tensor_add(&h->p, "x", CR_F32, CR_REGION_INPUT, 2, 4, 4, 8);
    h->coef  = cr_tensor_add(&h->p, "coef", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
    h->saved = cr_tensor_add(&h->p, "saved", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
}

static int emit1(struct hand *h, struct cr_op op, const char *name) {
    int index = cr_emit(&h->p, &op, name); /* may move the array */
    return h->p.op[index].out[0];
}

static int bn(struct hand *h, int x, const char *name) {
    struct cr_op op             = cr_op_make(CR_OP_bn_apply, CR_NONE);
    op.in[CR_IN_bn_apply_x]     = x;
    op.in[CR_IN_bn_apply_coef]  = h->coef;
    op.in[CR_IN_bn_apply_saved] = h->saved;
    return emit1(h, op, name);
}

static int relu(struct hand *h, int x, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_relu, CR_NONE);
    op.in[0]        = x;
    return emit1(h, op, name);
}

static int add(struct hand *h, int a, int b, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_add, CR_NONE);
    op.in[0]        = a;
    op.in[1]        = b;
    return emit1(h, op, name);
}

static int relu_grad(struct hand *h, int dy, int y, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_relu_grad, CR_NONE);
    op.in[0]        = dy;
    op.in[1]        = y;
    return emit1(h, op, name);
}

/* stats and apply of a BN's gradient; returns dx */
static int bn_grad(struct hand *h, int dy, int x, const char *name) {
    char         text[64];
    struct cr_op stats = cr_op_make(CR_OP_bn_grad_stats, CR_NONE), apply = cr_op_make(CR_OP_bn_grad_apply, CR_NONE);
    stats.in[CR_IN_bn_grad_stats_dy]    = dy;
    stats.in[CR_IN_bn_grad_stats_x]     = x;
    stats.in[CR_IN_bn_grad_stats_saved] = h->saved;
    snprintf(text, sizeof text, "%s.stats", name);
    emit1(h, stats, text);
    apply.in[CR_IN_bn_grad_apply_dy]   = dy;
    apply.in[CR_IN_bn_grad_apply_x]    = x;
    apply.in[CR_IN_bn_grad_apply_coef] = h->coef;
    return emit1(h, apply, name);
}

static void keep(struct hand *h, int tensor) {
    h->p.tensor[tensor].keep = true;
}

/* The fused program: one line an op, "kind slot:name slot:name ...", outputs first. */
static void fused_text(struct hand *h, const struct cr_target *target, struct cr_text *out) {
    cr_status status = cr_pass_fuse(&h->p, target);
    if (status == CR_OK) status = cr_program_check(&h->p);
    CHECK_STATUS(status, CR_OK);
    for (int i = 0; i < h->p.ops; i++) {
        const struct cr_op      *op   = &h->p.op[i];
        const struct cr_op_info *info = cr_op_info(op->kind);
        cr_text_add(out, "%s%s %s =", i ? "; " : "", info->name, h->p.tensor[op->out[0]].name);
        for (int s = 0; s < info->ins; s++)
            if (op->in[s] >= 0) cr_text_add(out, " %s:%s", info->in_name[s], h->p.tensor[op->in[s]].name);
        if (op->kind == CR_OP_bn_apply && op->attr.bn.relu) cr_text_add(out, " relu");
    }
}

static void check_fused(struct hand *h, const struct cr_target *target, const char *want) {
    static const struct cr_target any  = {.alignment = 64};
    struct cr_text                text = {0};
    fused_text(h, target ? target : &any, &text);
    CHECK_STR(text.data, want);
    cr_text_free(&text);
    cr_program_free(&h->p);
}

static void bn_takes_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x coef:coef saved:saved relu");
}

static void bn_takes_sum_from_either_side(void) {
    for (int side = 0; side < 2; side++) {
        struct hand h;
        hand_open(&h);
        int b = bn(&h, h.x, "b"), z = relu(&h, h.x, "z");
        keep(&h, side ? add(&h, z, b, "s") : add(&h, b, z, "s"));
        check_fused(&h, NULL, "relu z = x:x; bn_apply s = x:x coef:coef saved:saved add:z");
    }
}

static void bn_takes_sum_and_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, h.x, bn(&h, h.x, "b"), "s"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x coef:coef saved:saved add:x relu");
}

static void bn_takes_the_shortcuts_bn(void) {
    struct hand h;
    hand_open(&h);
    int a = bn(&h, h.x, "a"), u = relu(&h, h.x, "u"), b = bn(&h, u, "b");
    keep(&h, relu(&h, add(&h, a, b, "s"), "y"));
    check_fused(&h, NULL, "relu u = x:x; bn_apply y = x:x coef:coef saved:saved add:u add_coef:coef relu");
}

static void bn_gradient_takes_relu_gradient(void) {
    struct hand h;
    hand_open(&h);
    int y = relu(&h, bn(&h, h.x, "b"), "y");
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, y, "g"), h.x, "dx"));
    check_fused(&h, NULL,
                "bn_apply y = x:x coef:coef saved:saved relu; bn_grad_stats dx.stats = dy:x x:x saved:saved y:y; "
                "bn_grad_apply dx = dy:x x:x coef:coef y:y");
}

/* ---- what must stay apart ---- */

static void read_by_another(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, relu(&h, b, "y"));
    keep(&h, relu(&h, b, "z"));
    check_fused(&h, NULL, "bn_apply b = x:x coef:coef saved:saved; relu y = x:b; relu z = x:b");
}

static void read_twice_by_one(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, add(&h, b, b, "s"));
    check_fused(&h, NULL, "bn_apply b = x:x coef:coef saved:saved; add s = a:b b:b");
}

static void kept_for_others(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, b);
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x coef:coef saved:saved; relu y = x:b");
}

static void kept_sum(void) {
    struct hand h;
    hand_open(&h);
    int s = add(&h, bn(&h, h.x, "b"), h.x, "s");
    keep(&h, s);
    keep(&h, relu(&h, s, "y"));
    check_fused(&h, NULL, "bn_apply s = x:x coef:coef saved:saved add:x; relu y = x:s");
}

static void on_another_lane(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    h.p.op[1].lane = CR_LANE_TO_HOST;
    check_fused(&h, NULL, "bn_apply b = x:x coef:coef saved:saved; relu y = x:b");
}

static void rewritten_in_between(void) {
    struct hand h;
    hand_open(&h);
    int          b    = bn(&h, h.x, "b");
    struct cr_op zero = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[0]       = h.coef; /* the coefficients change before the ReLU */
    cr_emit(&h.p, &zero, "");
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x coef:coef saved:saved; zero coef =; relu y = x:b");
}

static void gradients_of_two_readers(void) {
    struct hand h;
    hand_open(&h);
    int g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    keep(&h, add(&h, g, h.x, "s"));
    check_fused(
        &h, NULL,
        "relu_grad g = dy:x y:x; bn_grad_stats dx.stats = dy:g x:x saved:saved; bn_grad_apply dx = dy:g x:x coef:coef; "
        "add s = a:g b:x");
}

static void gradients_of_two_bns(void) {
    struct hand h;
    hand_open(&h);
    int u = relu(&h, h.x, "u"), g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    h.p.op[h.p.ops - 1].in[CR_IN_bn_grad_apply_x] = u; /* stats of one BN, apply of another */
    check_fused(&h, NULL,
                "relu u = x:x; relu_grad g = dy:x y:x; bn_grad_stats dx.stats = dy:g x:x saved:saved; "
                "bn_grad_apply dx = dy:g x:u coef:coef");
}

/* ---- targets that know only some of it ---- */

static bool no_plain_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE || op->attr.bn.relu;
}
static bool no_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE;
}
static bool no_second_bn(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add_coef] == CR_NONE;
}
static bool half_of_the_gradient(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_grad_apply; /* then the statistics must not be joined either */
}

static void targets_decide(void) {
    struct cr_target target = {.alignment = 64, .accepts = no_plain_sum};
    struct hand      h;
    hand_open(&h); /* the widest pattern goes although the one below it is refused */
    keep(&h, relu(&h, add(&h, bn(&h, h.x, "b"), h.x, "s"), "y"));
    check_fused(&h, &target, "bn_apply y = x:x coef:coef saved:saved add:x relu");

    target.accepts = no_sum;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, bn(&h, relu(&h, bn(&h, h.x, "a"), "u"), "b"), h.x, "s"), "y"));
    check_fused(&h, &target,
                "bn_apply u = x:x coef:coef saved:saved relu; bn_apply b = x:u coef:coef saved:saved; add s = a:b b:x; "
                "relu y = x:s");

    target.accepts = no_second_bn;
    hand_open(&h);
    keep(&h, add(&h, bn(&h, h.x, "a"), bn(&h, h.x, "b"), "s"));
    check_fused(&h, &target, "bn_apply b = x:x coef:coef saved:saved; bn_apply s = x:x coef:coef saved:saved add:b");

    target.accepts = half_of_the_gradient;
    hand_open(&h);
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, h.x, "g"), h.x, "dx"));
    check_fused(
        &h, &target,
        "relu_grad g = dy:x y:x; bn_grad_stats dx.stats = dy:g x:x saved:saved; bn_grad_apply dx = dy:g x:x coef:coef");
}

/* ---- bookkeeping ---- */

static void references_follow(void) {
    struct bench_model b;
    struct cr_program  p;
    const char        *overrides[] = {"model.arch=resnet20"};
    struct cr_target   target      = {.alignment = 64};
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_STEP, 4, &p));
    int ops = p.ops, tensors = p.tensors;
    REQUIRE_OK(cr_pass_fuse(&p, &target));
    REQUIRE_OK(cr_program_check(&p));
    /* 19 ReLUs and 9 sums forward; backward the ReLUs of the stem and inside the blocks, whose gradient one BN reads.
     * Each takes one transient with it. */
    CHECK_INT(ops - p.ops, 19 + 9 + 1 + 9);
    CHECK_INT(tensors - p.tensors, 19 + 9 + 1 + 9);
    CHECK_STR(p.tensor[p.images].name, "images");
    CHECK_STR(p.tensor[p.labels].name, "labels");
    CHECK_STR(p.tensor[p.logits].name, "fc.y");
    CHECK_STR(p.tensor[p.metrics].name, "metrics");
    for (int i = 0; i < p.ops; i++) CHECK(p.op[i].kind != CR_OP_relu);
    ops = p.ops;
    REQUIRE_OK(cr_pass_fuse(&p, &target)); /* nothing is left to do */
    CHECK_INT(p.ops, ops);
    cr_program_free(&p);
    bench_close(&b);
}

static void shortcut_b_joins_two_bns(void) {
    struct bench_model b;
    struct cr_program  p;
    const char        *overrides[] = {"model.arch=resnet18"};
    struct cr_target   target      = {.alignment = 64};
    int                joined      = 0;
    REQUIRE_OK(bench_open(&b, overrides, 1, 64));
    REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_EVAL, 4, &p));
    REQUIRE_OK(cr_pass_fuse(&p, &target));
    for (int i = 0; i < p.ops; i++)
        joined += p.op[i].kind == CR_OP_bn_apply && p.op[i].in[CR_IN_bn_apply_add_coef] >= 0;
    CHECK_INT(joined, 3); /* layer2, layer3, layer4 */
    cr_program_free(&p);
    bench_close(&b);
}

/* ---- the oracle: fused = plain ---- */

struct refuser { /* accepts a random part of the joins */
    struct cr_rng rng;
    int           share; /* of 4 */
};

static bool accepts_some(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct refuser *r = self;
    (void)p, (void)op;
    return draw(&r->rng, 1, 4) <= r->share;
}

/* A stem, a plain block, two blocks of which one has a shortcut of the given kind, a classifier. Returns the loss op.
 */
static int emit_network(struct cr_net *net, enum cr_block block, enum cr_shortcut shortcut) {
    struct cr_stage first = {
        .path = "layer1", .block = block, .shortcut = shortcut, .width = 4, .depth = 1, .stride = 1};
    struct cr_stage second = {
        .path = "layer2", .block = block, .shortcut = shortcut, .width = 8, .depth = 2, .stride = 2};
    int x = cr_layer_input(net, 3, 6);
    x     = cr_layer_conv(net, "conv1", x, block == CR_BLOCK_BASIC ? 4 : 16, 3, 1, 1);
    x     = cr_layer_relu(net, "relu", cr_layer_batchnorm(net, "bn1", x, false));
    x     = cr_layer_stage(net, &second, cr_layer_stage(net, &first, x));
    x     = cr_layer_dense(net, "fc", cr_layer_avgpool(net, "avgpool", x), 5);
    return cr_layer_loss(net, x, 0.1f);
}

static void fill_run(struct ref_run *run) {
    for (int i = 0; i < run->store.params; i++) {
        const struct cr_param *q     = &run->store.param[i];
        bool                   fixed = cr_store_is_running(q->role) || q->role == CR_ROLE_GAMMA;
        struct cr_rng          rng   = test_rng(1000 + (uint64_t)i);
        size_t                 plane =
            cr_store_plane_offset(&run->store, cr_store_is_running(q->role) ? CR_PLANE_RUNNING : CR_PLANE_VALUE);
        double *data = (double *)(void *)(run->region + plane) + q->offset;
        for (int64_t k = 0; k < q->elems; k++) data[k] = (fixed ? 1 : 0) + 0.3 * (double)cr_rng_normal(&rng);
    }
    struct cr_rng rng = test_rng(2);
    for (int64_t i = 0; i < cr_tensor_elems(&run->p.tensor[run->p.images]); i++)
        ref_set(run, run->p.images, i, (double)draw(&rng, 0, 255));
    for (int64_t i = 0; i < 3; i++) ref_set(run, run->p.labels, i, (double)i);
}

/* Builds, differentiates, fuses (target may be NULL), fills and runs; *joined gets the number of ops that fusion saved.
 */
static cr_status build(struct ref_run *run, const struct cr_config *config, enum cr_block block,
                       enum cr_shortcut shortcut, struct cr_target *target, int *joined) {
    struct cr_program table; /* the store must be complete before tensors refer to it */
    cr_program_init(&table, "table", &run->store);
    struct cr_net net = {.program = &table, .store = &run->store, .config = config, .training = true};
    emit_network(&net, block, shortcut);
    cr_program_free(&table);
    net.program = &run->p;
    int loss    = emit_network(&net, block, shortcut);
    CR_TRY(cr_pass_grad(&run->p, loss, false, 1, 0.1f));
    *joined = run->p.ops;
    if (target) CR_TRY(cr_pass_fuse(&run->p, target));
    *joined -= run->p.ops;
    CR_TRY(cr_program_check(&run->p));
    CR_TRY(ref_bind(run));
    fill_run(run);
    return ref_exec(run, 0, run->p.ops);
}

/* Largest difference of the whole store, gradients and running statistics included. */
static double store_gap(const struct ref_run *a, const struct ref_run *b) {
    double        gap = 0;
    const double *x = (const double *)(void *)a->region, *y = (const double *)(void *)b->region;
    for (size_t i = 0; i < cr_store_bytes(&a->store) / sizeof(double); i++) {
        if (!(fabs(x[i] - y[i]) <= gap)) gap = fabs(x[i] - y[i]); /* NaN too */
    }
    return gap;
}

static void any_mixture_computes_the_same(void) {
    struct cr_config config;
    REQUIRE_OK(cr_config_open(&config, NULL, NULL, 0));
    for (int round = 0; round < 24; round++) {
        enum cr_block    block    = round & 1 ? CR_BLOCK_BOTTLENECK : CR_BLOCK_BASIC;
        enum cr_shortcut shortcut = round & 2 ? CR_SHORTCUT_A : CR_SHORTCUT_B;
        struct refuser   refuser  = {.rng = test_rng((uint64_t)round), .share = round < 4 ? 4 : 1 + round % 3};
        struct cr_target target   = {.self = &refuser, .accepts = accepts_some};
        struct ref_run   plain, fused;
        int              none, joined;
        REQUIRE_OK(ref_open(&plain, CR_F64, 1));
        REQUIRE_OK(ref_open(&fused, CR_F64, 1));
        REQUIRE_OK(build(&plain, &config, block, shortcut, NULL, &none));
        REQUIRE_OK(build(&fused, &config, block, shortcut, &target, &joined));
        CHECK(joined > 0 && none == 0);
        const double *grad =
            (const double *)(void *)(plain.region + cr_store_plane_offset(&plain.store, CR_PLANE_GRAD));
        double most = 0;
        for (int64_t i = 0; i < plain.store.value_elems; i++) most = fmax(most, fabs(grad[i]));
        CHECK(most > 1e-3); /* there is something to compare */
        CHECK_NEAR(store_gap(&plain, &fused), 0, 1e-12 * fmax(most, 1));
        for (int64_t i = 0; i < cr_tensor_elems(&plain.p.tensor[plain.p.logits]); i++)
            CHECK_NEAR(ref_at(&fused, fused.p.logits, i), ref_at(&plain, plain.p.logits, i), 1e-12);
        ref_close(&plain);
        ref_close(&fused);
    }
    cr_config_close(&config);
}

TESTS(CASE(bn_takes_relu), CASE(bn_takes_sum_from_either_side), CASE(bn_takes_sum_and_relu),
      CASE(bn_takes_the_shortcuts_bn), CASE(bn_gradient_takes_relu_gradient), CASE(read_by_another),
      CASE(read_twice_by_one), CASE(kept_for_others), CASE(kept_sum), CASE(on_another_lane), CASE(rewritten_in_between),
      CASE(gradients_of_two_readers), CASE(gradients_of_two_bns), CASE(targets_decide), CASE(references_follow),
      CASE(shortcut_b_joins_two_bns), CASE(any_mixture_computes_the_same))

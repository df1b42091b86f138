/* tests/unit/compiler/test_finish_later.c: convolutions, and their gradients, that the next op completes. */
#include "tests/harness/finish_support.h"

static bool finishes(void *self, const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    (void)self, (void)p;
    return last->kind == CR_OP_conv && op->attr.conv.stride == 1;
}
static bool finishes_grads(void *self, const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    (void)self, (void)p, (void)op;
    return last->kind == CR_OP_conv_grad;
}

static bool leaves_filter(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p, (void)op;
    return true;
}

/* The index of the first conv_grad that finishes a BN and whose gradient the next op reads. */
static int first_grad(const struct cr_program *p) {
    int i = 0;
    while (p->op[i].kind != CR_OP_conv_grad || p->op[i].in[CR_IN_conv_grad_gamma] < 0) i++;
    return i;
}

/* The first convolution of each of the nine blocks is marked; the second one is followed by the end of the block. The
 * tensors that the next op needs to finish the BN live until that op, also where nothing else reads them. */
static void first_convolutions_of_blocks_are_marked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes};
    struct bench_model         b;
    struct cr_program          p;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++) {
        const struct cr_op *op = &p.op[i];
        if (op->kind != CR_OP_conv) continue;
        const bool later = op->attr.conv.finish_later;
        if (later) {
            CHECK_INT(p.op[i + 1].kind, CR_OP_conv);
            CHECK_INT(p.op[i + 1].in[CR_IN_conv_scale_bias], op->out[CR_OUT_conv_next_scale_bias]);
        }
        CHECK_INT(p.tensor[op->workspace].last, later ? i + 1 : i);
        CHECK_INT(p.tensor[op->out[CR_OUT_conv_sums]].last, later ? i + 1 : i);
    }
    cr_program_free(&p);
    bench_close(&b);
}

/* Nothing is marked if no kernel can finish a BN, if another op is between the two, or if another stream reads a
 * result. */
static void nothing_is_marked_where_a_result_is_needed_earlier(void) {
    const struct cr_cost_model none = {.alignment = 64}, model = {.alignment = 64, .finishes = finishes};
    struct bench_model         b;
    struct cr_program          p;
    if (!open_program(&b, &p)) return;
    cr_pass_finish_later(&p, &none);
    CHECK_INT(marked(&p), 0);
    int first = 1; /* the first convolution of the first block */
    while (p.op[first].kind != CR_OP_conv || p.op[first].in[CR_IN_conv_scale_bias] < 0) first++;
    struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream       = CR_STREAM_TO_HOST;
    copy.in[0]        = p.op[first].in[CR_IN_conv_scale_bias];
    copy.out[0]       = cr_tensor_add(&p, "copy", CR_F32, CR_REGION_HOST, 2, 1, 1, 16);
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 8);
    cr_program_free(&p);
    bench_close(&b);
}

/* All 18 gradients with a BN before them are marked, also where the gradient of the shortcut is between two of them.
 * The tensors that the next conv_grad needs to complete one live until that op. */
static void gradients_are_marked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads};
    struct bench_model         b;
    struct cr_program          p;
    int                        ids[CR_OP_IDS_MAX], between = 0;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv_grad);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 18);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++) {
        const struct cr_op *op   = &p.op[i];
        int                 next = i + 1;
        if (!cr_op_finishes_later(op)) continue;
        while (cr_op_before(&p, next) != i) next++;
        between += next - i - 1;
        CHECK_INT(p.op[next].in[CR_IN_conv_grad_dy_coeffs], op->out[CR_OUT_conv_grad_grad_coeffs]);
        CHECK_INT(cr_op_finish_ids(op, ids), 8);
        CHECK_INT(p.tensor[op->workspace].last, next);
        CHECK_INT(p.tensor[op->out[CR_OUT_conv_grad_grad_sums]].last, next);
        CHECK(p.tensor[op->out[CR_OUT_conv_grad_dw]].last >= next);
        CHECK(p.tensor[op->in[CR_IN_conv_grad_mean_rstd]].last >= next);
    }
    CHECK_INT(between, 2);
    cr_program_free(&p);
    bench_close(&b);
}

/* A gradient that the next op or an op of another stream reads is not marked. */
static void gradients_that_are_needed_earlier_are_not_marked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads};
    struct bench_model         b;
    struct cr_program          p;
    if (!open_program(&b, &p)) return;
    const int first = first_grad(&p);
    cr_pass_finish_later(&p, &model);
    CHECK(p.op[first].attr.conv.finish_later && p.op[first + 1].attr.conv.finish_later);
    p.op[first].attr.conv.finish_later = p.op[first + 1].attr.conv.finish_later = false;
    p.op[first + 1].in[CR_IN_conv_grad_mean_rstd] = p.op[first].out[CR_OUT_conv_grad_grad_sums];
    struct cr_op copy                             = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream                                   = CR_STREAM_TO_HOST;
    copy.in[0]                                    = p.op[first + 1].out[CR_OUT_conv_grad_dw];
    copy.out[0]                                   = cr_tensor_add(&p, "copy", CR_F32, CR_REGION_HOST, 64, 3, 3, 64);
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    CHECK(!p.op[first].attr.conv.finish_later && !p.op[first + 1].attr.conv.finish_later);
    cr_program_free(&p);
    bench_close(&b);
}

static int marked_filters(const struct cr_program *p) {
    int n = 0;
    for (int i = 0; i < p->ops; i++) n += p->op[i].kind == CR_OP_conv_grad && p->op[i].attr.conv.filter_later;
    return n;
}

/* The stem computes dw of all others; until then their inputs and workspaces live. */
static void filter_gradients_of_a_network_are_one_group(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads, .leaves_filter = leaves_filter};
    struct bench_model         b;
    struct cr_program          p;
    int                        end = 0;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv_grad);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked_filters(&p), 18);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv_grad) end = i;
    CHECK_INT(p.op[end].out[CR_OUT_conv_grad_dx], CR_NONE);
    for (int i = 0; i < end; i++) {
        if (p.op[i].kind != CR_OP_conv_grad) continue;
        CHECK_INT(p.tensor[p.op[i].workspace].last, end);
        CHECK(p.tensor[p.op[i].in[CR_IN_conv_grad_x]].last >= end);
        CHECK(p.tensor[p.op[i].out[CR_OUT_conv_grad_dw]].last >= end);
    }
    cr_program_free(&p);
    bench_close(&b);
}

/* If an op before the end of the group reads one dw, no group is made. If an op of another stream reads an x, this
 * convolution computes the dw of those before it. */
static void filter_gradients_that_are_needed_earlier_do_not_wait(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads, .leaves_filter = leaves_filter};
    struct bench_model         b;
    struct cr_program          p;
    if (!open_program(&b, &p)) return;
    int first = first_grad(&p), between = first;
    while (p.op[between].kind != CR_OP_pad_shortcut_grad) between++;
    const int dy        = p.op[between].in[0];
    p.op[between].in[0] = p.op[first].out[CR_OUT_conv_grad_dw];
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked_filters(&p), 0);
    p.op[between].in[0] = dy;
    int late            = first;
    for (int n = 0; n < 11; n += p.op[late].kind == CR_OP_conv_grad) late++;
    struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream       = CR_STREAM_TO_HOST;
    copy.in[0]        = p.op[late].in[CR_IN_conv_grad_x];
    copy.out[0]       = cr_tensor_add(&p, "copy", CR_F16, CR_REGION_HOST, 4, 8, 8, 64);
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked_filters(&p), 11);
    CHECK(!p.op[late].attr.conv.filter_later && p.op[late].attr.conv.finish_later);
    cr_program_free(&p);
    bench_close(&b);
}

/* An op of another stream reads the x of the convolution behind `before` convolutions, so that this one computes the dw
 * of those before it. Returns the number of filter gradients that wait. Behind that convolution no dw waits, because it
 * has not left its own dw to a later launch. */
static int filters_of_group(int before) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads, .leaves_filter = leaves_filter};
    struct bench_model         b;
    struct cr_program          p;
    if (!open_program(&b, &p)) return -1;
    int end = first_grad(&p);
    for (int n = 0; n < before; n += p.op[end].kind == CR_OP_conv_grad) end++;
    while (p.op[end].kind != CR_OP_conv_grad) end++;
    struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream       = CR_STREAM_TO_HOST;
    copy.in[0]        = p.op[end].in[CR_IN_conv_grad_x];
    copy.out[0]       = cr_tensor_add(&p, "copy", CR_F16, CR_REGION_HOST, 4, 8, 8, 64);
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    const int filters = marked_filters(&p);
    cr_program_free(&p);
    bench_close(&b);
    return filters;
}

/* A group has at least nine convolutions. */
static void small_groups_are_not_made(void) {
    CHECK_INT(filters_of_group(8), 0); /* nine more follow, but they may not be a group */
    CHECK_INT(filters_of_group(9), 9);
    CHECK_INT(filters_of_group(10), 10);
}

/* A convolution is not completed by an op that runs more often (behind the hoisted ops) or that reads another tensor
 * with the coefficients of its BN. */
static void convolutions_that_do_not_fit_are_not_marked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes};
    for (int n = 0; n < 3; n++) {
        struct bench_model b;
        struct cr_program  p;
        int                next = 1; /* the second convolution of the first block */
        if (!open_program(&b, &p)) return;
        while (p.op[next].kind != CR_OP_conv || p.op[next].in[CR_IN_conv_scale_bias] < 0) next++;
        if (n == 1) p.hoisted = next;
        if (n == 2) p.op[next].in[CR_IN_conv_x] = cr_tensor_add(&p, "x", CR_F32, CR_REGION_POOL, 4, 32, 32, 16);
        cr_pass_finish_later(&p, &model);
        CHECK_INT(marked(&p), n ? 8 : 9);
        cr_program_free(&p);
        bench_close(&b);
    }
}

/* An op of another stream that reads a dw has to wait for the op that computes it: the stem for those of the group. */
static void waits_for_what_was_left_are_checked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_grads, .leaves_filter = leaves_filter};
    struct bench_model         b;
    struct cr_program          p;
    int                        end = 0;
    if (!open_program(&b, &p)) return;
    const int first = first_grad(&p);
    cr_pass_finish_later(&p, &model);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv_grad) end = i;
    struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream       = CR_STREAM_TO_HOST;
    copy.in[0]        = p.op[first].out[CR_OUT_conv_grad_dw];
    copy.out[0]       = cr_tensor_add(&p, "copy", CR_F32, CR_REGION_HOST, 64, 3, 3, 64);
    copy.wait[0]      = first;
    (void)cr_emit(&p, &copy, "copy");
    const int last = p.ops - 1;
    for (int filters = 1; filters >= 0; filters--) {
        const int computes = filters ? end : first + 1;
        p.op[last].wait[0] = computes - 1;
        CHECK_STATUS(cr_waits_check(&p), CR_ERR_DEVICE);
        p.op[last].wait[0] = computes;
        CHECK_STATUS(cr_waits_check(&p), CR_OK);
        for (int i = 0; i < p.ops; i++)
            if (cr_op_finishes_later(&p.op[i])) p.op[i].attr.conv.filter_later = false;
    }
    cr_program_free(&p);
    bench_close(&b);
}

/* ---- below a limit of the memory pool ---- */

/* Workspaces as those of the CIFAR kernels: dy, and parts of dw. */
static cr_status selects(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    (void)self;
    op->kernel = (int)op->kind;
    *workspace = 0;
    if (op->kind == CR_OP_conv_grad) *workspace = p->tensor[op->in[CR_IN_conv_grad_g]].bytes + (4 << 20);
    return CR_OK;
}
static const struct cr_cost_model limited_model = {.alignment     = 256,
                                                   .cost          = costs_a_launch,
                                                   .select        = selects,
                                                   .finishes      = finishes_grads,
                                                   .leaves_filter = leaves_filter};

/* The training program of ResNet-20 at batch 128, in 16 bits, with all checks that do not need the compiler's own data.
 * Returns the bytes of its pool, 0 after a failed check. */
static size_t compile_within(struct bench_model *b, size_t limit, bool recompute, struct cr_program *p) {
    const struct cr_compile_options how    = {.fuse = true, .reuse = true, .pool_limit = limit, .recompute = recompute};
    cr_status                       status = cr_model_program(&b->model, b->config, CR_PROGRAM_STEP, 128, p);
    if (status == CR_OK) status = cr_compile(p, &limited_model, &how);
    if (status == CR_OK) status = cr_program_check(p);
    if (status == CR_OK) status = cr_plan_check(p, limited_model.alignment);
    if (status == CR_OK) status = cr_waits_check(p);
    CHECK_STATUS(status, CR_OK);
    if (status != CR_OK) return 0;
    if (limit) CHECK(p->region_bytes[CR_REGION_POOL] <= limit);
    return p->region_bytes[CR_REGION_POOL];
}

/* One byte less than a program needs: first no filter gradient waits, then no op completes another one. Below that
 * tensors are recomputed. */
static void less_is_left_to_other_ops_below_a_limit(void) {
    static const char *const overrides[] = {"model.arch=resnet20", "model.shortcut=A"};
    static const struct {
        int  grads, filters; /* that other ops complete */
        bool recompute;
    } v[]                   = {{18, 18, false}, {18, 0, false}, {0, 0, false}, {0, 0, true}};
    size_t             pool = 0;
    struct bench_model b;
    REQUIRE_OK(bench_open(&b, overrides, 2, 32));
    cr_model_set_real(&b.model, CR_F16);
    for (size_t i = 0; i < CR_COUNT(v); i++) {
        struct cr_program p;
        const size_t      need = compile_within(&b, pool ? pool - 1 : 0, v[i].recompute, &p);
        CHECK_INT(marked(&p), v[i].grads);
        CHECK_INT(marked_filters(&p), v[i].filters);
        CHECK(need && (!pool || need < pool));
        pool = need;
        cr_program_free(&p);
    }
    bench_close(&b);
}

/* The passes behind select, without the fallback below a limit. */
static cr_status finish_program(struct cr_program *p, const struct cr_cost_model *model, int ranks) {
    if (ranks > 1) CR_TRY(cr_pass_buckets(p, model, 256 << 10, CR_F32));
    cr_pass_finish_later(p, model);
    CR_TRY(cr_pass_insert_waits(p));
    CR_TRY(cr_waits_check(p));
    CR_TRY(cr_pass_plan(p, model->alignment, true));
    CR_TRY(cr_plan_check(p, model->alignment));
    return cr_waits_check(p);
}

/* Several ranks, accumulated gradients, recomputed and offloaded tensors: the checks of lifetimes and waits pass.
 * Gradients that are sent to other ranks are not left to other ops, nor is a dw whose x is offloaded. */
static void programs_with_other_streams_pass_the_checks(void) {
    static const char *const          overrides[] = {"model.arch=resnet20", "model.shortcut=A"};
    static const enum cr_program_kind kinds[]     = {CR_PROGRAM_STEP, CR_PROGRAM_MICRO_FIRST, CR_PROGRAM_MICRO,
                                                     CR_PROGRAM_MICRO_LAST};
    struct cr_cost_model              model       = limited_model;
    struct bench_model                b;
    REQUIRE_OK(bench_open(&b, overrides, 2, 32));
    model.bytes_per_s = model.to_host_bytes_per_s = model.to_device_bytes_per_s = 1e12;
    for (int n = 0; n < 4 * (int)CR_COUNT(kinds); n++) {
        const enum cr_program_kind      kind    = kinds[n / 4];
        const bool                      limited = n / 2 % 2;
        struct cr_fit_report            fit     = {0};
        struct cr_program               p;
        const struct cr_compile_options how = {.fuse       = true,
                                               .reuse      = true,
                                               .recompute  = true,
                                               .offload    = true,
                                               .pool_limit = limited ? 24 << 20 : 0,
                                               .report     = &fit,
                                               .until      = "select"};
        b.model.ranks                       = 1 + n % 2;
        cr_status status                    = cr_model_program(&b.model, b.config, kind, 32, &p);
        if (status == CR_OK) status = cr_compile(&p, &model, &how);
        if (status == CR_OK) status = finish_program(&p, &model, b.model.ranks);
        CHECK_STATUS(status, CR_OK);
        const bool sends   = b.model.ranks > 1 && (kind == CR_PROGRAM_STEP || kind == CR_PROGRAM_MICRO_LAST);
        const int  filters = marked_filters(&p);
        CHECK_INT(marked(&p), sends ? 0 : 18);
        CHECK(sends ? filters == 0 : limited ? filters > 0 && filters < 18 : filters == 18);
        CHECK(!limited || (fit.recomputed > 0 && fit.offloaded > 0));
        cr_program_free(&p);
    }
    bench_close(&b);
}

TESTS(CASE(first_convolutions_of_blocks_are_marked), CASE(small_groups_are_not_made),
      CASE(convolutions_that_do_not_fit_are_not_marked), CASE(nothing_is_marked_where_a_result_is_needed_earlier),
      CASE(gradients_are_marked), CASE(gradients_that_are_needed_earlier_are_not_marked),
      CASE(filter_gradients_of_a_network_are_one_group), CASE(filter_gradients_that_are_needed_earlier_do_not_wait),
      CASE(waits_for_what_was_left_are_checked), CASE(less_is_left_to_other_ops_below_a_limit),
      CASE(programs_with_other_streams_pass_the_checks))

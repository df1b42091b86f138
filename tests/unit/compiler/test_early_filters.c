/* tests/unit/compiler/test_early_filters.c: which convolutions may read their filter before the launches before them
 * have ended: cases by hand, and a network whose first op writes all filters. */
#include "tests/harness/compiler_support.h"

enum { ELEMS = 16 * 9 * 16 };

/* A store tensor of `elems` numbers at a byte offset. */
static int store_tensor(struct cr_program *p, size_t offset, int64_t elems) {
    char name[32];
    snprintf(name, sizeof name, "s%d", p->tensors);
    const int id         = cr_tensor_add(p, name, CR_F32, CR_REGION_STORE, 16, 3, 3, elems / 144);
    p->tensor[id].offset = offset;
    return id;
}

static void write_tensor(struct cr_program *p, int tensor) {
    struct cr_op zero       = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[CR_OUT_zero_y] = tensor;
    cr_emit(p, &zero, NULL);
}

/* Emits a convolution with filter `w`, preceded by two ops that write the tensors at first_offset and second_offset of
 * `elems` numbers, and returns its bit. The filter begins at byte 4096. */
static bool is_early(size_t first_offset, size_t second_offset, int64_t elems, int fillers) {
    struct cr_program p;
    cr_program_init(&p, "step", NULL);
    const int x = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 16), w = store_tensor(&p, 4096, ELEMS);
    write_tensor(&p, store_tensor(&p, first_offset, elems));
    write_tensor(&p, store_tensor(&p, second_offset, elems));
    for (int i = 0; i < fillers; i++) write_tensor(&p, store_tensor(&p, 1 << 20, ELEMS));
    struct cr_op conv     = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x] = x;
    conv.in[CR_IN_conv_w] = w;
    conv.attr.conv.stride = 1;
    conv.attr.conv.pad    = 1;
    const int at          = cr_emit(&p, &conv, "y");
    CHECK(!p.failed && !p.op[at].attr.conv.early_filter);
    cr_pass_early_filters(&p);
    const bool early = p.op[at].attr.conv.early_filter;
    cr_program_free(&p);
    return early;
}

static void cases_by_hand(void) {
    const size_t elsewhere = 1 << 20, bytes = ELEMS * sizeof(float);
    CHECK(is_early(elsewhere, elsewhere, ELEMS, 0));
    CHECK(!is_early(4096, elsewhere, ELEMS, 0)); /* either of the two ops before writes the filter */
    CHECK(!is_early(elsewhere, 4096, ELEMS, 0));
    CHECK(!is_early(elsewhere, 4096, ELEMS, 1)); /* the second writer is still one of the last two */
    CHECK(is_early(4096, elsewhere, ELEMS, 1));  /* the writer is the third op before */
    CHECK(is_early(elsewhere, 4096, ELEMS, 2));
    CHECK(!is_early(4096 - 1024, elsewhere, ELEMS, 0)); /* the written bytes overlap the filter's */
    CHECK(!is_early(4096 + bytes - 4, elsewhere, ELEMS, 0));
    CHECK(is_early(4096 + bytes, 4096 - 4 * 144, 144, 0)); /* directly before and behind */
    CHECK(!is_early(0, elsewhere, 2 * ELEMS, 0));          /* a whole buffer that contains the filter */
}

/* The first convolutions of a program: an op outside the program may have written the filter. */
static void first_ops_wait(void) {
    struct cr_program p;
    cr_program_init(&p, "step", NULL);
    struct cr_op conv     = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x] = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 16);
    conv.in[CR_IN_conv_w] = store_tensor(&p, 0, ELEMS);
    conv.attr.conv.stride = 1;
    conv.attr.conv.pad    = 1;
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        cr_emit(&p, &conv, name);
    }
    cr_pass_early_filters(&p);
    for (int i = 0; i < 4; i++) CHECK(p.op[i].attr.conv.early_filter == (i >= 2));
    cr_program_free(&p);
}

/* A conv_grad may load a tensor of the forward pass before the wait, unless one of the two ops before it wrote the
 * tensor: their launches may still run. */
static void check_data(int slot) {
    for (int writer = 0; writer < 3; writer++) {
        struct cr_program p;
        cr_program_init(&p, "step", NULL);
        struct cr_op grad             = cr_op_make(CR_OP_conv_grad, CR_NONE);
        grad.in[CR_IN_conv_grad_x]    = store_tensor(&p, 4 << 20, ELEMS);
        grad.in[CR_IN_conv_grad_g]    = store_tensor(&p, 5 << 20, ELEMS);
        grad.in[CR_IN_conv_grad_w]    = store_tensor(&p, 6 << 20, ELEMS);
        grad.out[CR_OUT_conv_grad_dw] = store_tensor(&p, 7 << 20, ELEMS);
        if (grad.in[slot] < 0) grad.in[slot] = store_tensor(&p, 8 << 20, ELEMS);
        for (int i = 0; i < 3; i++) write_tensor(&p, i == writer ? grad.in[slot] : store_tensor(&p, 1 << 20, ELEMS));
        write_tensor(&p, grad.in[CR_IN_conv_grad_g]); /* g is always new */
        const int at = p.ops;
        (void)cr_emit(&p, &grad, NULL);
        CHECK(!p.failed && p.ops == at + 1);
        cr_pass_early_filters(&p);
        CHECK(p.op[at].attr.conv.early_data == (writer < 2));
        cr_program_free(&p);
    }
}

static void activations_of_the_backward(void) {
    check_data(CR_IN_conv_grad_x);
    check_data(CR_IN_conv_grad_dy_x);
    check_data(CR_IN_conv_grad_bn_x);
}

/* A recomputed convolution may write the coefficients of its BN directly before the backward that reads them. */
static void coefficients_of_the_backward(void) {
    check_data(CR_IN_conv_grad_scale_bias);
    check_data(CR_IN_conv_grad_mean_rstd);
}

static struct cr_op conv_of(int x, int w, int y) {
    struct cr_op conv       = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x]   = x;
    conv.in[CR_IN_conv_w]   = w;
    conv.out[CR_OUT_conv_y] = y;
    conv.attr.conv.stride   = 1;
    conv.attr.conv.pad      = 1;
    return conv;
}

/* left: the launch of the second convolution completes the BN of the first one. apply: it also computes the bn_apply
 * between them. This launch then writes the BN's scale_bias. Returns whether a gradient may read scale_bias early, with
 * `others` launches between the second convolution and the gradient. */
static bool reads_left_result_early(bool left, bool apply, int others) {
    struct cr_program p;
    int               tensor[12];
    cr_program_init(&p, "step", NULL);
    for (int i = 0; i < (int)CR_COUNT(tensor); i++) tensor[i] = store_tensor(&p, (size_t)(4 + i) << 20, ELEMS);
    struct cr_op first = conv_of(tensor[0], tensor[1], tensor[2]), end = cr_op_make(CR_OP_bn_apply, CR_NONE),
                 next                      = conv_of(tensor[apply ? 4 : 2], tensor[5], tensor[6]),
                 grad                      = cr_op_make(CR_OP_conv_grad, CR_NONE);
    first.out[CR_OUT_conv_next_scale_bias] = tensor[3];
    first.attr.conv.finish_later           = left;
    end.in[CR_IN_bn_apply_x]               = tensor[2];
    end.in[CR_IN_bn_apply_scale_bias]      = tensor[3];
    end.out[CR_OUT_bn_apply_y]             = tensor[4];
    end.attr.bn.finish_later               = left;
    next.in[CR_IN_conv_scale_bias]         = apply ? CR_NONE : tensor[3];
    grad.in[CR_IN_conv_grad_x]             = tensor[7];
    grad.in[CR_IN_conv_grad_g]             = tensor[8];
    grad.in[CR_IN_conv_grad_w]             = tensor[9];
    grad.in[CR_IN_conv_grad_scale_bias]    = tensor[3];
    grad.out[CR_OUT_conv_grad_dw]          = tensor[10];
    const int written                      = store_tensor(&p, 1 << 20, ELEMS);
    for (int i = 0; i < 2; i++) write_tensor(&p, written);
    (void)cr_emit(&p, &first, NULL);
    if (apply) (void)cr_emit(&p, &end, NULL);
    (void)cr_emit(&p, &next, NULL);
    for (int i = 0; i < others; i++) write_tensor(&p, written);
    const int at = cr_emit(&p, &grad, NULL);
    CHECK(!p.failed);
    cr_pass_early_filters(&p);
    const bool early = p.op[at].attr.conv.early_data;
    cr_program_free(&p);
    return early;
}

static void results_left_to_a_later_launch(void) {
    CHECK(reads_left_result_early(false, false, 1)); /* the third op before has written it */
    CHECK(!reads_left_result_early(true, false, 1)); /* the second op before writes it */
    CHECK(reads_left_result_early(true, false, 2));
    CHECK(reads_left_result_early(false, true, 0));
    CHECK(!reads_left_result_early(true, true, 0)); /* the op before computes the bn_apply and writes scale_bias */
    CHECK(!reads_left_result_early(true, true, 1));
    CHECK(reads_left_result_early(true, true, 2));
}

/* Ops that launch nothing on the convolution's stream do not count: the kernel launched last has written its filter. */
static void ops_without_a_launch(void) {
    for (int writers = 1; writers <= 3; writers++) {
        struct cr_program p;
        cr_program_init(&p, "step", NULL);
        struct cr_op conv = cr_op_make(CR_OP_conv, CR_NONE), copy = cr_op_make(CR_OP_prefetch, CR_NONE),
                     barrier              = cr_op_make(CR_OP_barrier, CR_NONE);
        conv.in[CR_IN_conv_x]             = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 16);
        conv.in[CR_IN_conv_w]             = store_tensor(&p, 4096, ELEMS);
        conv.attr.conv.stride             = 1;
        conv.attr.conv.pad                = 1;
        barrier.out[CR_OUT_barrier_event] = cr_tensor_add(&p, "event", CR_F32, CR_REGION_POOL, 1, 1, 1, 1);
        copy.stream                       = CR_STREAM_TO_DEVICE;
        copy.in[CR_IN_prefetch_x]         = cr_tensor_add(&p, "host", CR_F32, CR_REGION_HOST, 1, 8, 8, 16);
        copy.in[CR_IN_prefetch_event]     = barrier.out[CR_OUT_barrier_event];
        for (int i = 0; i < 3; i++)
            write_tensor(&p, i + 1 == writers ? conv.in[CR_IN_conv_w] : store_tensor(&p, 1 << 20, ELEMS));
        for (int i = 0; i < 2; i++) {
            char name[16];
            snprintf(name, sizeof name, "copy%d", i);
            if (i == 0) (void)cr_emit(&p, &barrier, NULL);
            (void)cr_emit(&p, &copy, name);
        }
        const int at = cr_emit(&p, &conv, "y");
        CHECK(!p.failed);
        cr_pass_early_filters(&p);
        CHECK(p.op[at].attr.conv.early_filter == (writers == 1));
        cr_program_free(&p);
    }
}

/* A 16-bit program begins with the op that rounds all parameters. The first convolution follows directly; all others
 * may read their filter early. The bit is set by the last pass only. */
static void network_in_16_bits(void) {
    const char *const    overrides[] = {"model.arch=resnet20"};
    const char *const    passes[]    = {"select", "order", "plan"};
    struct cr_cost_model cost_model  = greedy_cost_model(64);
    struct bench_model   b;
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    cr_model_set_real(&b.model, CR_F16);
    for (size_t pass = 0; pass < CR_COUNT(passes); pass++) {
        struct cr_compile_options options = {.fuse = true, .reuse = true, .until = passes[pass]};
        struct cr_program         p;
        int                       early = 0, late = 0, last_late = 0;
        REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 2, &p));
        CHECK(cr_compile(&p, &cost_model, &options) == CR_OK && p.op[0].kind == CR_OP_cast);
        for (int i = 0; i < p.ops; i++) {
            if (p.op[i].kind != CR_OP_conv && p.op[i].kind != CR_OP_conv_grad) continue;
            early += p.op[i].attr.conv.early_filter;
            late += !p.op[i].attr.conv.early_filter;
            if (!p.op[i].attr.conv.early_filter) last_late = i;
        }
        CHECK(early + late >= 19);
        if (pass + 1 == CR_COUNT(passes))
            CHECK(late == 1 && last_late <= 2);
        else
            CHECK_INT(early, 0);
        cr_program_free(&p);
    }
    bench_close(&b);
}

/* ---- the launch before, in whole networks ---- */

/* Op i launches a kernel in the compute stream. */
static bool is_launched(const struct cr_program *p, int i) {
    const struct cr_op *op = &p->op[i];
    return op->stream == CR_STREAM_COMPUTE && op->kind != CR_OP_barrier &&
           !(cr_op_finishes_later(op) && (op->kind == CR_OP_bn_apply || op->kind == CR_OP_pad_shortcut));
}

static bool writes_bytes_of(const struct cr_program *p, const struct cr_op *op, int tensor) {
    const struct cr_tensor *b = &p->tensor[tensor];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        const struct cr_tensor *a = op->out[s] < 0 ? NULL : &p->tensor[op->out[s]];
        if (a && a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
            return true;
    }
    return false;
}

/* Op `by` completes the op before it, and the op before that one if the first is a bn_apply without a launch. Returns
 * whether one of them writes `tensor`, because the launch of `by` then writes it. */
static bool completes_writer_of(const struct cr_program *p, int by, int tensor) {
    for (int op = cr_op_before(p, by); op >= 0 && cr_op_finishes_later(&p->op[op]); op = cr_op_before(p, op)) {
        if (writes_bytes_of(p, &p->op[op], tensor)) return true;
        if (is_launched(p, op)) return false;
    }
    return false;
}

/* The kernel that was launched last before op i may still run when the kernel of op i starts. Returns whether it has
 * written `tensor`. A tensor that an op of another stream has written is complete: op i waits for an event. */
static bool last_launch_writes(const struct cr_program *p, int i, int tensor) {
    for (int at = i - 1, launched = 0; at >= 0 && !launched; at--) {
        if (writes_bytes_of(p, &p->op[at], tensor)) return is_launched(p, at);
        launched = is_launched(p, at);
        if (launched && completes_writer_of(p, at, tensor)) return true;
    }
    return false;
}

/* Counts the tensors of an op that its kernel reads early, in [0], and those that the last launch may have written. */
static void count_early(const struct cr_program *p, int i, const int *slots, size_t count, int counts[2]) {
    for (size_t k = 0; k < count; k++) {
        const int tensor = p->op[i].in[slots[k]];
        if (tensor < 0) continue;
        counts[0]++;
        counts[1] += last_launch_writes(p, i, tensor);
    }
}
static void check_early_reads(const struct cr_program *p, int counts[2]) {
    static const int filter[] = {CR_IN_conv_w}, grad_filter[] = {CR_IN_conv_grad_w},
                     data[] = {CR_IN_conv_grad_x, CR_IN_conv_grad_dy_x, CR_IN_conv_grad_bn_x,
                               CR_IN_conv_grad_scale_bias, CR_IN_conv_grad_mean_rstd};
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (op->kind == CR_OP_conv && op->attr.conv.early_filter) count_early(p, i, filter, 1, counts);
        if (op->kind == CR_OP_conv_grad && op->attr.conv.early_filter) count_early(p, i, grad_filter, 1, counts);
        if (op->kind == CR_OP_conv_grad && op->attr.conv.early_data) count_early(p, i, data, CR_COUNT(data), counts);
    }
}

static bool finishes_all(void *self, const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    (void)self, (void)p, (void)last, (void)op;
    return true;
}
static bool leaves_all(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p, (void)op;
    return true;
}

/* With offload and recomputation, prefetches and barriers stand between a recomputed tensor and the backward that reads
 * it. They launch nothing on the compute stream. left: all ops that later launches can complete have finish_later. */
static void check_recomputed(bool left, const char *shortcut) {
    const char *const         overrides[] = {"model.arch=resnet20", shortcut};
    struct cr_cost_model      cost_model  = greedy_cost_model(64);
    struct cr_compile_options o           = {.fuse = true, .reuse = true};
    struct cr_fit_report      r           = {0};
    struct cr_program         p;
    struct bench_model        b;
    int                       counts[2] = {0, 0}, both = 0, ends = 0;
    size_t                    whole = 0;
    cost_model.bytes_per_s = 4.2e12, cost_model.flops_per_s = 200e12;
    cost_model.to_host_bytes_per_s = cost_model.to_device_bytes_per_s = 30e9;
    cost_model.duplex_speedup = 1, cost_model.copy_latency_s = 10e-6;
    if (left) cost_model.finishes = finishes_all, cost_model.leaves_filter = leaves_all;
    REQUIRE_OK(bench_open(&b, overrides, 2, 32));
    cr_model_set_real(&b.model, CR_F16);
    for (int percent = 100; percent >= 40; percent -= 5) {
        o.report = &r, o.pool_limit = whole / 100 * (size_t)percent;
        o.recompute = whole > 0, o.offload = whole > 0;
        CHECK_STATUS(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 128, &p), CR_OK);
        CHECK_STATUS(cr_compile(&p, &cost_model, &o), CR_OK);
        if (!whole) whole = p.region_bytes[CR_REGION_POOL];
        both += r.offloaded && r.recomputed;
        for (int i = 0; i < p.ops; i++) ends += cr_op_finishes_later(&p.op[i]);
        check_early_reads(&p, counts);
        cr_program_free(&p);
    }
    CHECK(both > 0 && counts[0] > 100 && (ends > 0) == left);
    CHECK_INT(counts[1], 0);
    bench_close(&b);
}
static void recomputed_and_prefetched_tensors(void) {
    check_recomputed(false, "model.shortcut=A");
    check_recomputed(true, "model.shortcut=A");
    check_recomputed(true, "model.shortcut=B");
}

TESTS(CASE(cases_by_hand), CASE(first_ops_wait), CASE(activations_of_the_backward), CASE(coefficients_of_the_backward),
      CASE(results_left_to_a_later_launch), CASE(ops_without_a_launch), CASE(network_in_16_bits),
      CASE(recomputed_and_prefetched_tensors))

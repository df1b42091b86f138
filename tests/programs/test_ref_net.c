/* tests/programs/test_ref_net.c: gradients of tiny networks against finite differences, in double: layers,
 * cr_pass_grad and cr_pass_fuse together with the reference kernels. Every kind of block, shortcut and stem; frozen
 * parameters; label smoothing; a padded label. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "layers/layer.h"
#include "tests/harness/finite_differences.h"

struct net_case {
    int              size, classes;
    bool             imagenet_stem, frozen_stem, fuse;
    enum cr_block    block;
    enum cr_shortcut shortcut;
    int64_t          width;
    int              depth, stride;
    float            smoothing;
};

static void configure(struct cr_config *config) {
    *config                   = (struct cr_config){0};
    config->model.bn_eps      = 1e-3;
    config->model.bn_momentum = 0.1;
    config->data.channels     = 3;
    config->data.mean.count = config->data.std.count = 3;
    for (int i = 0; i < 3; i++) {
        config->data.mean.at[i] = 0.45;
        config->data.std.at[i]  = 0.25;
    }
}

/* Emits the forward program; returns the index of its loss op. */
static int emit_net(struct ref_run *run, const struct cr_config *config, const struct net_case *c) {
    struct cr_net net = {
        .program = &run->p, .store = &run->store, .config = config, .training = true, .frozen = c->frozen_stem};
    struct cr_stage stage = {.groups   = 1,
                             .path     = "layer1",
                             .block    = c->block,
                             .shortcut = c->shortcut,
                             .width    = c->width,
                             .depth    = c->depth,
                             .stride   = c->stride};
    int             x     = cr_layer_input(&net, 3, c->size);
    x                     = cr_layer_conv(&net, "conv1", x, 4, c->imagenet_stem ? 7 : 3, c->imagenet_stem ? 2 : 1,
                      c->imagenet_stem ? 3 : 1);
    x                     = cr_layer_relu(&net, "relu", cr_layer_batchnorm(&net, "bn1", x, false));
    if (c->imagenet_stem) x = cr_layer_maxpool(&net, "maxpool", x, 3, 2, 1);
    net.frozen = false;
    x          = cr_layer_stage(&net, &stage, x);
    x          = cr_layer_dense(&net, "fc", cr_layer_avgpool(&net, "avgpool", x), c->classes);
    return cr_layer_loss(&net, x, c->smoothing);
}

/* Builds the program twice: offsets in the buffers are known once all parameters are. */
static cr_status build_net(struct ref_run *run, const struct net_case *c) {
    struct cr_config           config;
    const struct cr_cost_model anything = {.alignment = 64};
    configure(&config);
    emit_net(run, &config, c);
    cr_program_free(&run->p);
    cr_program_init(&run->p, "step", &run->store);
    run->p.real = run->store.real;
    int loss    = emit_net(run, &config, c);
    CR_TRY(cr_pass_grad(&run->p, loss, false, 1.0f, c->smoothing));
    CR_TRY(cr_program_check(&run->p));
    if (c->fuse) CR_TRY(cr_pass_fuse(&run->p, &anything));
    CR_TRY(cr_program_check(&run->p));
    return CR_OK;
}

static void fill_net(struct ref_run *run, int classes) {
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 1, 0);
    for (int64_t i = 0; i < cr_tensor_elems(&run->p.tensor[run->p.images]); i++)
        ref_set(run, run->p.images, i, (double)cr_rng_below(&rng, 256));
    for (int i = 0; i < 3; i++)
        ref_set(run, run->p.labels, i, i == 1 ? -1 : (double)cr_rng_below(&rng, (uint64_t)classes));
    for (int k = 0; k < run->store.params; k++) {
        const struct cr_param *q = &run->store.param[k];
        bool   running = cr_param_is_running(q->role), one = q->role == CR_ROLE_GAMMA || q->role == CR_ROLE_VAR;
        int    t      = cr_tensor_find(&run->p, q->name);
        double spread = one || running ? 0.2 : q->fan_in > 0 ? sqrt(2.0 / (double)q->fan_in) : 0.2;
        ref_fill(run, t, one ? 1 : 0, spread);
    }
}

static int forward_length(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_loss) return i + 1;
    return 0;
}

static void check_net(const struct net_case *c) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    REQUIRE_OK(build_net(&run, c));
    REQUIRE_OK(ref_bind(&run));
    fill_net(&run, c->classes);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    struct fd f = {.run = &run, .forward_ops = forward_length(&run.p), .y = run.p.metrics, .dy = CR_NONE, .h = 1e-5};
    int       trained = 0;
    for (int k = 0; k < run.store.params; k++) {
        const struct cr_param *q = &run.store.param[k];
        if (cr_param_is_running(q->role) || q->frozen) continue;
        char grad[128];
        snprintf(grad, sizeof grad, "grad.%s", q->name);
        /* about a dozen elements per parameter, with a stride that is not a multiple of its rows */
        fd_check(&f, cr_tensor_find(&run.p, q->name), cr_tensor_find(&run.p, grad), (int)(q->elems / 12) | 1);
        trained++;
    }
    CHECK(trained > 6);
    fd_finish(&f);
    ref_close(&run);
}

static void check_both(struct net_case c) {
    c.fuse = false;
    check_net(&c);
    c.fuse = true;
    check_net(&c);
}

static void cifar_option_a(void) {
    check_both((struct net_case){.size      = 7,
                                 .classes   = 5,
                                 .block     = CR_BLOCK_BASIC,
                                 .shortcut  = CR_SHORTCUT_A,
                                 .width     = 6,
                                 .depth     = 2,
                                 .stride    = 2,
                                 .smoothing = 0.125f});
}
static void basic_option_b(void) {
    check_both((struct net_case){.size     = 6,
                                 .classes  = 7,
                                 .block    = CR_BLOCK_BASIC,
                                 .shortcut = CR_SHORTCUT_B,
                                 .width    = 5,
                                 .depth    = 2,
                                 .stride   = 2});
}
static void imagenet_bottleneck(void) {
    check_both((struct net_case){.size          = 17,
                                 .classes       = 6,
                                 .imagenet_stem = true,
                                 .block         = CR_BLOCK_BOTTLENECK,
                                 .shortcut      = CR_SHORTCUT_B,
                                 .width         = 2,
                                 .depth         = 2,
                                 .stride        = 1,
                                 .smoothing     = 0.125f});
}
static void frozen_stem(void) {
    check_both((struct net_case){.size        = 6,
                                 .classes     = 4,
                                 .frozen_stem = true,
                                 .block       = CR_BLOCK_BASIC,
                                 .shortcut    = CR_SHORTCUT_B,
                                 .width       = 4,
                                 .depth       = 1,
                                 .stride      = 2});
}
static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(cifar_option_a), CASE(basic_option_b), CASE(imagenet_bottleneck), CASE(frozen_stem), CASE(nothing_leaks))

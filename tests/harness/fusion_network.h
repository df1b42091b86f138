/* tests/harness/fusion_network.h: small networks for the fusion tests on the reference kernels: unfused and fused
 * programs over equal parameter stores. */
#ifndef CR_TEST_FUSE_NET_H
#define CR_TEST_FUSE_NET_H

#include "tests/harness/compiler_support.h"
#include "tests/harness/reference_run.h"

struct net_case {
    enum cr_block    block;
    enum cr_shortcut shortcut;
    bool             large;      /* the stem of the ImageNet networks */
    bool             eval;       /* forward only, with the running statistics */
    bool             accumulate; /* gradients accumulate */
    unsigned         frozen;     /* bit 0: the stem; bits 1, 2: the stages */
    int64_t          width;      /* of the first stage */
    int              ranks;      /* SyncBN over so many ranks, which all have the same images; 0: without */
    int              depth;      /* blocks of a stage; 0: two */
};

/* A stem, one or two plain blocks, two blocks of which one has a shortcut of the given kind, and a classifier. Returns
 * the loss op. */
static inline int emit_network(struct cr_net *net, const struct net_case *c) {
    struct cr_stage first  = {.groups   = 1,
                              .path     = "layer1",
                              .block    = c->block,
                              .shortcut = c->shortcut,
                              .width    = c->width,
                              .depth    = c->depth ? c->depth : 2,
                              .stride   = 1};
    struct cr_stage second = first;
    second.path            = "layer2";
    second.width           = 2 * c->width;
    second.stride          = 2;
    int64_t stem           = c->block == CR_BLOCK_BASIC || c->shortcut == CR_SHORTCUT_B ? c->width : 4 * c->width;
    int     x              = cr_layer_input(net, 3, c->large ? 18 : 6);
    net->frozen            = c->frozen & 1;
    x                      = cr_layer_conv(net, "conv1", x, stem, c->large ? 7 : 3, c->large ? 2 : 1, c->large ? 3 : 1);
    x                      = cr_layer_relu(net, "relu", cr_layer_batchnorm(net, "bn1", x, false));
    if (c->large) x = cr_layer_maxpool(net, "maxpool", x, 3, 2, 1);
    net->frozen = c->frozen & 2;
    x           = cr_layer_stage(net, &first, x);
    net->frozen = c->frozen & 4;
    x           = cr_layer_stage(net, &second, x);
    net->frozen = false;
    x           = cr_layer_dense(net, "fc", cr_layer_avgpool(net, "avgpool", x), 5);
    return cr_layer_loss(net, x, 0.1f);
}

/* Fills parameters and running statistics with values as in a trained network; gammas that start at 0 stay 0. */
static inline void fill_run(struct ref_run *run) {
    for (int i = 0; i < run->store.params; i++) {
        const struct cr_param *q     = &run->store.param[i];
        bool                   fixed = cr_param_is_running(q->role) || q->role == CR_ROLE_GAMMA;
        struct cr_rng          rng   = test_rng(1000 + (uint64_t)i);
        size_t  buffer = cr_param_store_buffer_offset(&run->store, cr_param_is_running(q->role) ? CR_BUFFER_RUNNING
                                                                                                : CR_BUFFER_VALUE);
        double *data   = (double *)(void *)(run->region + buffer) + q->offset;
        for (int64_t k = 0; k < q->elems; k++)
            data[k] = q->zero ? 0 : (fixed ? 1 : 0) + 0.3 * (double)cr_rng_normal(&rng);
    }
    struct cr_rng rng  = test_rng(2);
    double       *grad = (double *)(void *)(run->region + cr_param_store_buffer_offset(&run->store, CR_BUFFER_GRAD));
    for (int64_t i = 0; i < run->store.value_elems; i++)
        grad[i] = 0.01 * (double)cr_rng_normal(&rng); /* gradients before the step: accumulated or overwritten */
    for (int64_t i = 0; i < cr_tensor_elems(&run->p.tensor[run->p.images]); i++)
        ref_set(run, run->p.images, i, (double)draw(&rng, 0, 255));
    for (int64_t i = 0; i < 3; i++) {
        ref_set(run, run->p.labels, i, (double)i);
        if (run->p.boxes == CR_NONE) continue;
        ref_set(run, run->p.boxes, 4 * i, (double)i - 1); /* shifted by one, mirrored */
        ref_set(run, run->p.boxes, 4 * i + 2, (double)(i & 1));
    }
}

/* Opens a run in FP64 with the network and its gradients; without a configuration, with the defaults. */
static inline cr_status emit_run(struct ref_run *run, const struct cr_config *config, const struct net_case *c) {
    OWNED(config)     defaults = NULL;
    struct cr_program table; /* the parameter store must be complete before tensors refer to it */
    CR_TRY(ref_open(run, CR_F64, 1));
    if (!config) CR_TRY(cr_config_open(&defaults, NULL, NULL, 0));
    cr_program_init(&table, "table", &run->store);
    struct cr_net net = {.program  = &table,
                         .store    = &run->store,
                         .config   = config ? config : defaults,
                         .training = !c->eval,
                         .bn_ranks = c->ranks};
    emit_network(&net, c);
    cr_program_free(&table);
    net.program = &run->p;
    int loss    = emit_network(&net, c);
    return c->eval ? CR_OK : cr_pass_grad(&run->p, loss, c->accumulate, 1, 0.1f);
}

/* The sum over several ranks with the same values: `factor` is their number. */
static inline void multiply(struct ref_run *run, int tensor, double factor) {
    for (int64_t i = 0; i < cr_tensor_elems(&run->p.tensor[tensor]); i++)
        ref_set(run, tensor, i, factor * ref_at(run, tensor, i));
}

static inline void bind_call(struct ref_run *run, const struct cr_op *op, struct cr_call *call) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) call->in[s] = op->in[s] >= 0 ? ref_data(run, op->in[s]) : NULL;
    for (int s = 0; s < CR_OP_OUT_MAX; s++) call->out[s] = op->out[s] >= 0 ? ref_data(run, op->out[s]) : NULL;
}

/* As ref_exec, with the scratch memory of the kernels of fused ops, and with ops of several parts. */
static inline cr_status run_op(struct ref_run *run, const struct cr_op *op) {
    struct cr_call          call  = {.program = &run->p, .op = op, .step = &run->step};
    size_t                  bytes = 0;
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(run->device, &run->p, op, 0, &index);
    if (!kernel) return CR_FAIL(CR_ERR_DEVICE, "no kernel for %s", cr_op_info(op->kind)->name);
    CR_TRY(cr_kernel_prepare(run->device, kernel, &run->p, op, &call.prepared, &bytes));
    if (bytes && !(call.workspace = cr_alloc(bytes, 1))) return CR_NO_MEMORY(bytes);
    if (bytes) memset(call.workspace, 0xff, bytes);
    struct cr_call      part[CR_FUSED_MAX];
    int                 parts;
    const struct cr_op *of = cr_op_parts(op, &parts);
    bind_call(run, op, &call);
    for (int k = 0; k < parts && of != op; k++) {
        part[k] = (struct cr_call){.program = &run->p, .op = &of[k], .step = &run->step};
        bind_call(run, &of[k], &part[k]);
        call.part = part;
    }
    cr_status status = kernel->launch(run->device, &call);
    cr_kernel_release(kernel, call.prepared);
    cr_free(call.workspace);
    return status;
}

static inline cr_status finish_ranks(struct ref_run *run, int ranks) {
    CR_TRY(cr_program_check(&run->p));
    CR_TRY(ref_bind(run));
    for (int t = 0; t < run->p.tensors; t++) /* NaN: an unwritten element must not be read */
        if (run->own[t]) memset(run->own[t], 0xff, run->p.tensor[t].bytes);
    fill_run(run);
    for (int i = 0; i < run->p.ops; i++) {
        CR_TRY(run_op(run, &run->p.op[i]));
        if (run->p.op[i].kind == CR_OP_all_reduce) multiply(run, run->p.op[i].out[0], ranks);
    }
    return CR_OK;
}
static inline cr_status finish_run(struct ref_run *run) {
    return finish_ranks(run, 1);
}

/* Largest difference of the whole store, gradients and running statistics included. */
static inline double store_gap(const struct ref_run *a, const struct ref_run *b) {
    double        gap = 0;
    const double *x = (const double *)(void *)a->region, *y = (const double *)(void *)b->region;
    for (size_t i = 0; i < cr_param_store_bytes(&a->store) / sizeof(double); i++) {
        double d = fabs(x[i] - y[i]);
        if (isnan(d)) return d;
        gap = fmax(gap, d);
    }
    return gap;
}

static inline double largest_gradient(const struct ref_run *run) {
    const double *grad =
        (const double *)(void *)(run->region + cr_param_store_buffer_offset(&run->store, CR_BUFFER_GRAD));
    double most = 0;
    for (int64_t i = 0; i < run->store.value_elems; i++) most = fmax(most, fabs(grad[i]));
    return most;
}

/* Both programs have run: all persistent values must be the same. */
static inline void check_same(const struct ref_run *plain, const struct ref_run *fused) {
    double most = largest_gradient(plain);
    CHECK(most > 1e-3); /* the gradients must not be trivial */
    CHECK_NEAR(store_gap(plain, fused), 0, 1e-10 * fmax(most, 1));
    for (int64_t i = 0; i < cr_tensor_elems(&plain->p.tensor[plain->p.logits]); i++)
        CHECK_NEAR(ref_at(fused, fused->p.logits, i), ref_at(plain, plain->p.logits, i), 1e-10);
    for (int64_t i = 0; i < 4; i++)
        CHECK_NEAR(ref_at(fused, fused->p.metrics, i), ref_at(plain, plain->p.metrics, i), 1e-10);
}

/* Number of ops of a kind that use an input slot (or, with `out`, an output slot). */
static inline int count_slot(const struct cr_program *p, enum cr_op_kind kind, int slot, bool out) {
    int n = 0;
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == kind) n += (out ? p->op[i].out[slot] : p->op[i].in[slot]) >= 0;
    return n;
}
#define COUNT_IN(p, op, slot) count_slot(p, CR_OP_##op, CR_IN_##op##_##slot, false)

#endif

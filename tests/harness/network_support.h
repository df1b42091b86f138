/* tests/harness/network_support.h: one program of one network, compiled and bound, for tests that compare compile
 * options; net_open opens it on the CPU. */
#ifndef CR_NET_SUPPORT_H
#define CR_NET_SUPPORT_H

#include "core/rng.h"
#include "tests/harness/test.h"

struct net {
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_device       *device;
    struct cr_cost_model    cost_model;
    struct cr_program       program;
    struct cr_memory        memory;
    struct cr_exec         *exec; /* NULL when opening failed earlier */
    struct cr_fit_report    fit;
};

struct net_plan { /* the program and its compile options */
    const char *const       *overrides;
    int                      count;
    enum cr_program_kind     kind;
    int                      classes, size;
    int64_t                  batch;
    struct cr_device_options device;
    bool                     fuse;
    size_t                   pool_limit; /* limits of these two passes */
    bool                     recompute;
    bool                     offload;
    enum cr_offload_score    score;
    enum cr_dtype            real;                   /* CR_F32 when not given */
    void (*change_device)(struct cr_device *device); /* after it was opened; NULL: no change */
};

/* net_close() is valid after success and after failure. */
static inline cr_status net_open(struct net *n, const struct net_plan *plan) {
    const struct cr_compile_options how   = {.reuse         = true,
                                             .fuse          = plan->fuse,
                                             .pool_limit    = plan->pool_limit,
                                             .recompute     = plan->recompute,
                                             .offload       = plan->offload,
                                             .offload_score = plan->score,
                                             .report        = &n->fit};
    const struct cr_program        *all[] = {&n->program};
    *n                                    = (struct net){0};
    CR_TRY(cr_config_open(&n->config, NULL, plan->overrides, plan->count));
    CR_TRY(cr_model_open(n->config, plan->classes, plan->size, plan->size, &n->model));
    cr_model_set_real(&n->model, plan->real);
    CR_TRY(cr_device_open(CR_DEVICE_CPU, &plan->device, &n->device));
    if (plan->change_device) plan->change_device(n->device);
    n->cost_model = cr_device_cost_model(n->device);
    CR_TRY(cr_model_program(&n->model, n->config, plan->kind, plan->batch, &n->program));
    CR_TRY(cr_compile(&n->program, &n->cost_model, &how));
    CR_TRY(cr_memory_open(&n->memory, n->device, &n->model.store, all, 1));
    return cr_exec_open(&n->program, &n->memory, &n->exec);
}

static inline void net_close(struct net *n) {
    cr_exec_close(n->exec);
    if (n->memory.device) cr_memory_close(&n->memory);
    cr_program_free(&n->program);
    cr_device_close(n->device);
    cr_model_close(&n->model);
    cr_config_close(n->config);
}
OWNABLE(net, struct net, net_close(x))

/* Runs `steps` updates on noise; the noise is the same each time. */
static inline cr_status net_train(struct net *n, int steps, int classes) {
    const struct cr_tensor *images = &n->program.tensor[n->program.images];
    const int64_t           batch  = images->dim[0];
    uint8_t                *pixels = cr_alloc(images->bytes, 1);
    int32_t      *labels = cr_alloc((size_t)batch, sizeof *labels), *boxes = cr_alloc((size_t)batch * 4, sizeof *boxes);
    struct cr_rng rng           = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    struct cr_step_block step   = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-4f};
    cr_status            status = pixels && labels && boxes ? CR_OK : CR_NO_MEMORY(images->bytes);
    for (; status == CR_OK && step.step < steps; step.step++) {
        for (size_t i = 0; i < images->bytes; i++) pixels[i] = (uint8_t)cr_rng_u32(&rng);
        for (int64_t i = 0; i < batch; i++) labels[i] = (int32_t)cr_rng_below(&rng, (uint32_t)classes);
        status = cr_exec_feed(n->exec, pixels, labels, boxes);
        if (status == CR_OK) status = cr_exec_run(n->exec, &step);
    }
    cr_free(pixels);
    cr_free(labels);
    cr_free(boxes);
    return status;
}

#endif

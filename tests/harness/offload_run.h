/* tests/harness/offload_run.h: a small network and its training program, whose tensors are offloaded by hand or by the
 * pass. */
#ifndef CR_TEST_OFFLOAD_RUN_H
#define CR_TEST_OFFLOAD_RUN_H

#include "tests/harness/executor_poison.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/streams_support.h"

enum { BATCH = 3, SIZE = 32, CLASSES = 10, STEPS = 4 };

static const struct cr_step_block block = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f, .clip_norm = 1};

/* ---- a network and one of its programs ---- */

struct offload_run {
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_device       *device;
    struct cr_cost_model    cost_model;
    struct cr_program       program;
    struct hand_offloads    offloads;
    struct cr_fit_report    report;
    struct cr_memory        memory;
    struct cr_exec         *exec;
    bool                    random_streams;
};

static const char *const basic[]      = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                         "model.arch=custom",   "model.block=basic",  "model.depths=2,2",
                                         "model.widths=4,8",    "model.stem=cifar"};
static const char *const bottleneck[] = {"data.kind=synthetic", "data.image_size=32",     "train.device=cpu",
                                         "model.arch=custom",   "model.block=bottleneck", "model.depths=1,2",
                                         "model.widths=4,4",    "model.stem=imagenet"};

struct how {
    const char *const    *overrides;
    bool                  fuse, random_streams;
    int                   one_in; /* of the tensors that can be offloaded by hand; 0: none */
    uint64_t              seed;
    size_t                limit; /* otherwise: by the pass, down to this many bytes */
    enum cr_offload_score score;
};

static inline cr_status make_program(struct offload_run *s, const struct how *how) {
    const struct cr_compile_options select = {.fuse = how->fuse, .reuse = true, .until = "select"};
    CR_TRY(cr_model_program(&s->model, s->config, CR_PROGRAM_STEP, BATCH, &s->program));
    CR_TRY(cr_compile(&s->program, &s->cost_model, &select));
    if (how->limit) CR_TRY(cr_pass_offload(&s->program, &s->cost_model, how->limit, how->score, &s->report));
    if (how->one_in) hand_offload(&s->program, &s->cost_model, how->one_in, &s->offloads);
    return hand_finish(&s->program, &s->cost_model);
}

static inline cr_status offload_run_open(struct offload_run *s, const struct how *how) {
    const struct cr_device_options options = {.threads = 1, .deterministic = true};
    *s                                     = (struct offload_run){.random_streams = how->random_streams};
    CR_TRY(cr_config_open(&s->config, NULL, how->overrides, 8));
    CR_TRY(cr_model_open(s->config, CLASSES, SIZE, SIZE, &s->model));
    CR_TRY(how->random_streams ? streams_open(&options, how->seed, &s->device)
                               : cr_device_open(CR_DEVICE_CPU, &options, &s->device));
    s->cost_model = cr_device_cost_model(s->device);
    return make_program(s, how);
}

static inline cr_status start(struct offload_run *s) {
    return exec_begin(s->device, &s->model, s->config, &s->program, &s->memory, &s->exec);
}

static inline void offload_run_close(struct offload_run *s) {
    cr_exec_close(s->exec);
    if (s->memory.device) cr_memory_close(&s->memory);
    cr_program_free(&s->program);
    if (s->random_streams)
        streams_close();
    else
        cr_device_close(s->device);
    cr_model_close(&s->model);
    cr_config_close(s->config);
}
OWNABLE(offload_run, struct offload_run, offload_run_close(x))

static inline cr_status train(struct offload_run *s) {
    static uint8_t pixels[BATCH * SIZE * SIZE * 3];
    int32_t        labels[BATCH], boxes[BATCH * 4] = {0};
    for (int step = 0; step < STEPS; step++) {
        struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, (uint64_t)step, 7);
        for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)cr_rng_below(&rng, 256);
        for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)cr_rng_below(&rng, CLASSES);
        CR_TRY(cr_exec_feed(s->exec, pixels, labels, boxes));
        CR_TRY(cr_exec_run(s->exec, &block));
    }
    return s->device->backend->sync(s->device);
}

static inline bool same_store(const struct offload_run *a, const struct offload_run *b) {
    return memcmp(a->memory.region[CR_REGION_STORE], b->memory.region[CR_REGION_STORE],
                  cr_param_store_bytes(&a->model.store)) == 0;
}

static const struct {
    const char *const *overrides;
    bool               fuse;
} nets[] = {{basic, true}, {basic, false}, {bottleneck, true}, {bottleneck, false}};

#endif

/* tests/harness/gpu_training.h: a training program on a device of its own, for tests that compare whole trainings. */
#ifndef CR_TEST_GPU_TRAINING_H
#define CR_TEST_GPU_TRAINING_H

#include "model/model.h"
#include "runtime/executor.h"

struct run {
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_device       *device;
    struct cr_program       program;
    struct cr_memory        memory;
    struct cr_exec         *exec;
};

/* Closes the members that are open. The others are zero. */
static inline void run_close(struct run *r) {
    cr_exec_close(r->exec);
    if (r->memory.device) cr_memory_close(&r->memory);
    cr_program_free(&r->program);
    cr_device_close(r->device);
    cr_model_close(&r->model);
    cr_config_close(r->config);
}

#endif

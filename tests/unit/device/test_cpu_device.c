/* tests/unit/device/test_cpu_device.c: the CPU device: memory, initial parameters, threads. That every op has a
 * reference kernel: test_checkops. */
#include "tests/harness/reference_run.h"

TEST(regions) {
    static const size_t sizes[] = {1, 255, 4096, 100001};
    OWNED(ref_run)      run     = {0};
    REQUIRE_OK(ref_open(&run, CR_F32, 1));
    for (size_t i = 0; i < CR_COUNT(sizes); i++) {
        void *region, *back = cr_alloc(sizes[i], 1), *data = cr_alloc(sizes[i], 1);
        REQUIRE_OK(run.device->backend->reserve(run.device, sizes[i], &region));
        CHECK((uintptr_t)region % 256 == 0);
        for (size_t k = 0; k < sizes[i]; k++) CHECK(((char *)region)[k] == 0);
        memset(data, 0x5a, sizes[i]);
        REQUIRE_OK(run.device->backend->put(run.device, region, data, sizes[i]));
        REQUIRE_OK(run.device->backend->get(run.device, back, region, sizes[i]));
        REQUIRE_OK(run.device->backend->sync(run.device));
        CHECK(memcmp(back, data, sizes[i]) == 0);
        run.device->backend->release(run.device, region);
        cr_free(back);
        cr_free(data);
    }
    void *region = NULL;
    CHECK_STATUS(run.device->backend->reserve(run.device, SIZE_MAX - 10, &region), CR_ERR_MEMORY);
    CHECK(!region);
    run.device->backend->release(run.device, NULL);
}

static struct cr_config init_config(void) {
    return (struct cr_config){.model.init = CR_INIT_HE_FAN_OUT, .train.seed = 5};
}

static void add_params(struct ref_run *run) {
    cr_param_store_add(&run->store, "conv", CR_ROLE_CONV, (const int64_t[4]){5, 3, 3, 2}, CR_NONE);
    cr_param_store_add(&run->store, "bn.weight", CR_ROLE_GAMMA, (const int64_t[4]){1, 1, 1, 5}, CR_NONE);
    cr_param_store_add(&run->store, "bn.running_var", CR_ROLE_VAR, (const int64_t[4]){1, 1, 1, 5}, CR_NONE);
}

TEST(initial_store) {
    const struct cr_config config = init_config();
    for (int wide = 0; wide < 2; wide++) {
        OWNED(ref_run) run = {0};
        REQUIRE_OK(ref_open(&run, wide ? CR_F64 : CR_F32, 1));
        add_params(&run);
        int conv = cr_tensor_store(&run.p, CR_BUFFER_VALUE, 0), gamma = cr_tensor_store(&run.p, CR_BUFFER_VALUE, 1);
        int var   = cr_tensor_store(&run.p, CR_BUFFER_RUNNING, 2),
            state = cr_tensor_store(&run.p, CR_BUFFER_STATE, CR_NONE);
        REQUIRE_OK(ref_bind(&run));
        ref_set(&run, state, CR_STATE_LOSS_SCALE, 0);
        REQUIRE_OK(run.device->backend->init_store(run.device, &run.store, &config, run.region));
        /* element k,r,s,c = 2,1,0,1 has the index ((2*2 + 1)*3 + 1)*3 + 0 in file order */
        CHECK_NEAR(ref_at(&run, conv, ((2 * 3 + 1) * 3 + 0) * 2 + 1),
                   (double)cr_param_store_initial(&run.store, 0, 48, &config), 0);
        CHECK_NEAR(ref_at(&run, gamma, 4), 1, 0);
        CHECK_NEAR(ref_at(&run, var, 4), 1, 0);
        CHECK_NEAR(ref_at(&run, state, CR_STATE_LOSS_SCALE), 1, 0);
    }
}

enum { JOBS_MAX = 1000 };

static void note_job(void *context, int i) {
    int *calls = context; /* each element is written by one call */
    calls[i]++;
}

TEST(for_each_calls_every_job_once) {
    static const int counts[] = {0, 1, 2, 7, JOBS_MAX};
    for (int threads = 1; threads <= 4; threads++) {
        const struct cr_device_options options = {.threads = threads};
        OWNED(device)                  device  = NULL;
        REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
        for (size_t k = 0; k < CR_COUNT(counts); k++) {
            int calls[JOBS_MAX] = {0};
            device->backend->for_each(device, counts[k], note_job, calls);
            for (int i = 0; i < JOBS_MAX; i++) CHECK_INT(calls[i], i < counts[k]);
        }
    }
}

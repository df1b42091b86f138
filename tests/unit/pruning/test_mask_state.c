/* tests/unit/pruning/test_mask_state.c: save and load of pruned networks: bitwise identical, files that get smaller,
 * memory that runs out, files that do not fit. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/pruning_session.h"

static char dir[SUPPORT_PATH];

static bool begin(struct pruned *a) {
    make_folder(dir);
    return pruned_open(a, (const char *const[]){"train.device=cpu", NULL}) == CR_OK;
}

static void end(struct pruned *a) {
    pruned_close(a);
}

static int64_t file_size(const char *file) {
    size_t   size  = 0;
    uint8_t *bytes = read_bytes(formatted("%s/%s", dir, file), &size);
    cr_free(bytes);
    return bytes ? (int64_t)size : -1;
}

TEST(save_and_load_is_bitwise_identical) {
    struct pruned      a, b;
    struct cr_position at;
    int64_t            before = INT64_MAX;
    REQUIRE(begin(&a));
    for (int step = 0; step <= 10; step += 2) {
        if (step) REQUIRE_OK(pruned_prune(&a, 0.1 * step));
        REQUIRE_OK(pruned_save(&a, dir, step));
        REQUIRE_OK(pruned_open(&b, (const char *const[]){"train.device=cpu", "train.seed=9", NULL}));
        CHECK(!pruned_same(&a, &b));
        REQUIRE_OK(cr_state_load(&b.session, formatted("%s/step-%d", dir, step), &at));
        CHECK(pruned_same(&a, &b));
        CHECK_INT(at.step, step);
        pruned_close(&b);
        const int64_t size = file_size(formatted("step-%d/model.safetensors", step));
        if (step != 2) CHECK(size < before); /* at 18 % values and gaps take more space than all values */
        before = size;
    }
    end(&a);
}

TEST(session_without_masks_reads_weights) {
    struct pruned           a, b;
    struct cr_state_buffers buffers;
    bool                    pruned;
    REQUIRE(begin(&a));
    REQUIRE_OK(pruned_prune(&a, 1));
    REQUIRE_OK(pruned_save(&a, dir, 3));
    REQUIRE_OK(cr_state_buffers_get(&a.session, &buffers));
    REQUIRE_OK(pruned_open(&b, (const char *const[]){"train.device=cpu", "prune.sparsity=0", NULL}));
    CHECK(!b.session.model.store.has_mask);
    REQUIRE_OK(cr_session_load_weights(&b.session, formatted("%s/step-3/model.safetensors", dir), true));
    const char *region = b.session.memory.region[CR_REGION_STORE]; /* on the CPU: plain memory */
    CHECK(memcmp(region + cr_param_store_buffer_offset(&b.session.model.store, CR_BUFFER_VALUE), buffers.value,
                 cr_param_store_buffer_bytes(&b.session.model.store, CR_BUFFER_VALUE)) == 0);
    REQUIRE_OK(cr_state_is_pruned(formatted("%s/step-3", dir), &pruned));
    CHECK(pruned);
    cr_state_buffers_free(&buffers);
    pruned_close(&b);
    end(&a);
}

TEST(failing_allocations_leak_nothing) {
    struct pruned      a, b;
    struct cr_position at;
    REQUIRE(begin(&a));
    REQUIRE_OK(pruned_prune(&a, 1));
    REQUIRE_OK(pruned_open(&b, (const char *const[]){"train.device=cpu", NULL}));
    for_each_failing_alloc(f, .least = 20, .tolerated = true) {
        failing_alloc_run(&f, pruned_save(&a, dir, 1));
    }
    for_each_failing_alloc(f, .least = 20) {
        failing_alloc_run(&f, cr_state_load(&b.session, formatted("%s/step-1", dir), &at));
    }
    for_each_failing_alloc(f, .least = 2) {
        failing_alloc_run(&f, pruned_prune(&b, 1));
    }
    CHECK(pruned_same(&a, &b));
    pruned_close(&b);
    end(&a);
}

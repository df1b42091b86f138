/* tests/gpu/test_cuda_prune.c: pruned networks on the GPU: updates keep zeros, checkpoints are bitwise identical,
 * and a run that is interrupted while it prunes resumes bitwise identically, in fp32 and in 16 bits. (test_checkops
 * compares the update itself with the reference.) */
#include "tests/harness/pruning_session.h"
#include "tests/harness/test.h"
#include "tests/harness/test_gpu.h"
#include "training/training.h"

TEST(zeros_remain_zero) {
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=fp16", "train.precision=bf16"};
    NEED_GPU();
    for (size_t k = 0; k < CR_COUNT(precisions); k++) {
        char               dir[SUPPORT_PATH], path[SUPPORT_PATH];
        struct pruned      a, b;
        struct cr_position at;
        int64_t            alive, count;
        make_folder(dir);
        REQUIRE_OK(pruned_open(&a, (const char *const[]){"train.device=cuda", precisions[k], NULL}));
        REQUIRE_OK(pruned_nonzeros(&a, &alive, &count));
        CHECK_INT(count, 0);                       /* a new mask keeps all weights */
        for (int round = 1; round <= 3; round++) { /* masks change between launches of a captured graph */
            REQUIRE_OK(pruned_prune(&a, round / 3.0));
            REQUIRE_OK(pruned_steps(&a, 4));
            REQUIRE_OK(pruned_nonzeros(&a, &alive, &count));
            CHECK_INT(alive, 0);
            CHECK(count > 1200 * round);
        }
        REQUIRE_OK(pruned_save(&a, dir, 1));
        REQUIRE_OK(pruned_open(&b, (const char *const[]){"train.device=cuda", precisions[k], NULL}));
        REQUIRE_OK(cr_state_load(&b.session, text_into(path, "%s/step-1", dir), &at));
        CHECK(pruned_same(&a, &b));
        REQUIRE_OK(pruned_steps(&a, 3));
        CHECK(!pruned_same(&a, &b));
        REQUIRE_OK(pruned_steps(&b, 3));
        CHECK(pruned_same(&a, &b));
        pruned_close(&a);
        pruned_close(&b);
    }
}

static cr_status train(const char *dir, const char *name, const char *precision, const char *steps,
                       const char *resume) {
    char                    output[2 * SUPPORT_PATH];
    const struct cr_config *config;
    int                     signal_taken;
    snprintf(output, sizeof output, "train.output=%s/%s", dir, name);
    const char *list[] = {"model.arch=custom",
                          "model.depths=1,1",
                          "model.widths=8,16",
                          "model.shortcut=B",
                          "data.kind=synthetic",
                          "data.image_size=8",
                          "data.train_images=24",
                          "data.val_images=4",
                          "train.batch=4",
                          "train.epochs=2",
                          "train.save_every=1000",
                          "prune.sparsity=0.9",
                          "prune.start=0.3",
                          "prune.end=1.5",
                          "prune.frequency=2",
                          "train.device=cuda",
                          precision,
                          steps,
                          output};
    CR_TRY(cr_config_open(&config, NULL, list, CR_COUNT(list)));
    const struct cr_train_options options = {.resume = resume, .overrides = list, .override_count = CR_COUNT(list)};
    cr_status                     status  = cr_train(config, &options, &signal_taken);
    cr_config_close(config);
    return status;
}

static bool same_file(const char *dir, const char *a, const char *b, const char *file) {
    char     path_a[SUPPORT_PATH], path_b[SUPPORT_PATH];
    size_t   size_a = 0, size_b = 0;
    uint8_t *x = read_bytes(text_into(path_a, "%s/%s/last/%s", dir, a, file), &size_a),
            *y = read_bytes(text_into(path_b, "%s/%s/last/%s", dir, b, file), &size_b);
    bool same  = x && y && size_a == size_b && memcmp(x, y, size_a) == 0;
    cr_free(x);
    cr_free(y);
    return same;
}

TEST(resumed_runs_are_bitwise_identical) {
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=fp16"};
    char                     dir[SUPPORT_PATH];
    NEED_GPU();
    for (size_t k = 0; k < CR_COUNT(precisions); k++) {
        make_folder(dir);
        REQUIRE_OK(train(dir, "whole", precisions[k], "train.steps=0", NULL));
        for (int cut = 2; cut < 11; cut += 2) {
            char name[32], steps[32];
            snprintf(name, sizeof name, "cut%d", cut);
            snprintf(steps, sizeof steps, "train.steps=%d", cut);
            REQUIRE_OK(train(dir, name, precisions[k], steps, NULL));
            REQUIRE_OK(train(dir, name, precisions[k], "train.steps=0", "auto"));
            CHECK(same_file(dir, "whole", name, "model.safetensors"));
            CHECK(same_file(dir, "whole", name, "state.safetensors"));
        }
    }
}

/* tests/unit/api/test_api_damage.c: one flipped bit in a file of a checkpoint is detected, by a run that resumes and by
 * the library, and the older checkpoint is found. The bits come from a fixed sequence. */
#include "data/source.h"
#include "tests/harness/api_support.h"

#include <fcntl.h>
#include <inttypes.h>

/* A run with two checkpoints, step-2 and step-4 (`last` and `best`). */
static bool have_two_checkpoints(const char *key, const char *more) {
    const char *const list[] = {"train.epochs=2", "train.save_every=2", "train.keep=9", key, more};
    if (api_train(list, 5) != CR_OK) {
        TEST_FAIL_("training: %s", cr_error_message());
        return false;
    }
    unlink(formatted("%s/best", run)); /* the newest is used */
    return true;
}

static void flip(const char *path, uint64_t bit) {
    unsigned char byte;
    const int     fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)(bit / 8)) == 1);
    byte ^= (unsigned char)(1u << bit % 8);
    CHECK(pwrite(fd, &byte, 1, (off_t)(bit / 8)) == 1);
    close(fd);
}

/* The step from which the run would resume; -1: none. The warnings are not shown. */
static int64_t resumed_step(void) {
    OWNED(string) found = NULL;
    const int     out = dup(2), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, 2);
    const cr_status status = cr_ckpt_find_intact(run, &found);
    dup2(out, 2);
    close(out);
    close(null);
    if (status != CR_OK || !found) return -1;
    return strtoll(strrchr(found, '-') + 1, NULL, 10);
}

static bool library_opens(void) {
    const cresnet_options options = api_options(1);
    OWNED(api_model)      model   = NULL;
    cresnet_error         error;
    if (cresnet_open(run, &options, &model, &error) != CRESNET_OK) {
        CHECK(*error.text);
        return false;
    }
    return true;
}

/* Flips `flips` bits of a file, one after the other. Returns how many of them a resumed run notices. */
static int count_noticed(const char *name, uint64_t seed, int flips, int *by_library) {
    struct stat st;
    int         noticed    = 0;
    *by_library            = 0;
    const char *const path = formatted("%s/step-4/%s", run, name);
    if (stat(path, &st) != 0 || !st.st_size) TEST_FAIL_("%s is missing", path);
    for (int i = 0; i < flips; i++) {
        const uint64_t bit = cr_hash_mix(seed * 1000 + (uint64_t)i) % ((uint64_t)st.st_size * 8);
        flip(path, bit);
        const bool seen = resumed_step() == 2, refused = !library_opens();
        if (!seen) TEST_FAIL_("%s: bit %" PRIu64 " is not noticed", name, bit);
        noticed += seen;
        *by_library += refused;
        flip(path, bit);
    }
    return noticed;
}

TEST(every_flipped_bit_is_noticed) {
    int by_library;
    if (!have_two_checkpoints("optim.kind=adamw", "optim.lr=0.001")) return;
    CHECK_INT(resumed_step(), 4);
    CHECK(library_opens());
    static const struct {
        const char *file;
        int         flips;
    } files[] = {{"model.safetensors", 100}, {"config.ini", 40}, {"classes.txt", 40}, {"checksums.txt", 40}};
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        CHECK_INT(count_noticed(files[i].file, 10 + i, files[i].flips, &by_library), files[i].flips);
        CHECK_INT(by_library, files[i].flips);
    }
    CHECK_INT(count_noticed("state.safetensors", 2, 100, &by_library), 100); /* the library does not read its tensors */
    CHECK_INT(resumed_step(), 4);
    CHECK(library_opens());
}

/* Files of moving averages; sparse tensors and the mask of a pruned network. The library does not read the state. */
TEST(other_files) {
    static const struct {
        const char *key, *file;
        bool        is_read;
    } cases[] = {{"ema.decay=0.5", "ema.safetensors", true},
                 {"prune.sparsity=0.5", "model.safetensors", true},
                 {"prune.sparsity=0.5", "state.safetensors", false}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        int by_library;
        if (!have_two_checkpoints("train.seed=3", cases[i].key)) return;
        CHECK_INT(count_noticed(cases[i].file, 6 + i, 40, &by_library), 40);
        if (cases[i].is_read) CHECK_INT(by_library, 40);
    }
}

/* A folder that an older version wrote has no checksums.txt: what the files say of themselves remains. */
TEST(without_the_list) {
    int by_library;
    if (!have_two_checkpoints("train.seed=3", "train.measure=no")) return;
    CHECK_INT(unlink(formatted("%s/step-4/checksums.txt", run)), 0);
    CHECK_INT(resumed_step(), 4);
    CHECK(library_opens());
    CHECK_INT(count_noticed("model.safetensors", 9, 100, &by_library), 100);
    CHECK_INT(by_library, 100);
}

/* Checkpoints: what is in the files, conversion and permutation, messages, folders, links, keep-N, find. Failing calls
 * and kills: test_checkpoint_faults.c. */
#include "checkpoint_fake.h"

#include <sys/stat.h>

static bool is_there(const char *path) { return access(path, F_OK) == 0; }

static void check_link(const char *link, const char *want) {
    char    target[64] = "";
    ssize_t length     = readlink(in_folder("%s", link), target, sizeof target - 1);
    CHECK(length > 0);
    CHECK_STR(target, want);
}

static bool same_file(const char *a, const char *b) {
    char  *x = NULL, *y = NULL;
    size_t nx = 0, ny = 1;
    bool   same = cr_file_read(a, 1 << 20, &x, &nx) == CR_OK && cr_file_read(b, 1 << 20, &y, &ny) == CR_OK && nx == ny &&
                !memcmp(x, y, nx);
    cr_free(x);
    cr_free(y);
    return same;
}

/* ---- what a checkpoint holds ---- */

static void files_of_a_checkpoint(void) {
    struct cr_st_file *file;
    float              conv[120];
    int64_t            count = 0;
    REQUIRE(folder_open());
    REQUIRE_OK(fake_save(folder, 5, false, 2));
    check_link("last", "step-5");
    CHECK(!is_there(in_folder("best")));
    CHECK_INT(sound_step(in_folder("step-5")), 5);
    REQUIRE_OK(cr_st_open(in_folder("last/model.safetensors"), &file));
    CHECK_INT(cr_st_count(file), MODEL);
    CHECK_STR(cr_st_meta_find(file, "format"), "pt");
    CHECK(cr_st_meta_find(file, "step") == NULL); /* equal weights, equal files, whatever the step */
    const struct cr_st_entry *entry = cr_st_find(file, "conv1.weight");
    REQUIRE(entry && entry->bytes == sizeof conv && entry->dims == 4 && entry->dim[1] == 3);
    REQUIRE_OK(cr_st_read(file, entry, 0, conv, sizeof conv));
    for (int i = 0; i < 120; i++) CHECK_NEAR(conv[i], value_of(CONV, 5, i), 0); /* K,C,R,S: the file counts up */
    entry = cr_st_find(file, "bn1.num_batches_tracked");
    REQUIRE(entry && entry->dims == 0 && entry->dtype == CR_I64);
    REQUIRE_OK(cr_st_read(file, entry, 0, &count, 8));
    CHECK_INT(count, value_of(COUNT, 5, 0));
    cr_st_close(file);
    REQUIRE_OK(cr_st_open(in_folder("last/state.safetensors"), &file));
    CHECK_STR(cr_st_meta_find(file, "step"), "5");
    CHECK_STR(cr_st_meta_find(file, "epoch"), "3");
    cr_st_close(file);
    folder_close();
}

static void equal_states_equal_bytes(void) {
    static const char *const names[] = {"model.safetensors", "state.safetensors", "config.ini", "classes.txt"};
    REQUIRE(folder_open());
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("b")));
    REQUIRE_OK(fake_save(in_folder("a"), 7, false, 2));
    usleep(20000);
    REQUIRE_OK(fake_save(in_folder("b"), 7, true, 0));
    for (size_t i = 0; i < CR_COUNT(names); i++)
        CHECK(same_file(in_folder("a/step-7/%s", names[i]), in_folder("b/last/%s", names[i])));
    REQUIRE_OK(fake_save(in_folder("b"), 8, false, 0));
    CHECK(!same_file(in_folder("a/last/model.safetensors"), in_folder("b/last/model.safetensors")));
    folder_close();
}

/* ---- larger than the buffers ---- */

struct plain {
    unsigned char *bytes;
    uint64_t       size, next; /* chunks come at rising offsets */
    size_t         largest;
};

static cr_status plain_get(void *self, uint64_t address, uint64_t offset, void *host, size_t bytes) {
    struct plain *plain = self;
    CR_ASSERT(address == 77 && offset == plain->next && offset + bytes <= plain->size);
    plain->next    = offset + bytes;
    plain->largest = CR_MAX(plain->largest, bytes);
    memcpy(host, plain->bytes + offset, bytes);
    return CR_OK;
}
static cr_status plain_put(void *self, uint64_t address, uint64_t offset, const void *host, size_t bytes) {
    struct plain *plain = self;
    CR_ASSERT(address == 77 && offset == plain->next && offset + bytes <= plain->size);
    plain->next    = offset + bytes;
    plain->largest = CR_MAX(plain->largest, bytes);
    memcpy(plain->bytes + offset, host, bytes);
    return CR_OK;
}

static void large_case(struct cr_ckpt_tensor tensor) {
    struct plain       plain = {0};
    struct cr_st_file *file;
    int64_t            elems = elems_of(&tensor);
    struct cr_ckpt_io  io    = {&plain, plain_get, plain_put};
    tensor.name              = "t";
    tensor.address           = 77;
    plain.size               = (uint64_t)elems * 4;
    plain.bytes              = cr_alloc(plain.size, 1);
    unsigned char *copy      = cr_alloc(plain.size, 1);
    REQUIRE(plain.bytes && copy && folder_open());
    for (int64_t i = 0; i < elems; i++) ((float *)(void *)plain.bytes)[place_of(&tensor, i)] = (float)(i % 16000000);
    struct cr_ckpt_save save = {.run_dir = folder, .step = 1, .model = &tensor, .model_count = 1, .config_text = ""};
    REQUIRE_OK(cr_ckpt_write(&save, &io));
    CHECK_INT(plain.next, plain.size);
    CHECK(plain.largest <= CR_CKPT_CHUNK_BYTES);
    REQUIRE_OK(cr_st_open(in_folder("last/model.safetensors"), &file));
    REQUIRE_OK(cr_st_read(file, cr_st_at(file, 0), 0, copy, plain.size));
    int64_t wrong = 0;
    for (int64_t i = 0; i < elems; i++) wrong += ((float *)(void *)copy)[i] != (float)(i % 16000000);
    CHECK_INT(wrong, 0);
    memcpy(copy, plain.bytes, plain.size);
    memset(plain.bytes, 0xee, plain.size);
    plain.next = 0;
    REQUIRE_OK(cr_ckpt_read(file, "x", &tensor, 1, NULL, NULL, &io));
    CHECK_INT(plain.next, plain.size);
    CHECK(!memcmp(copy, plain.bytes, plain.size));
    CHECK(plain.largest <= CR_CKPT_CHUNK_BYTES);
    cr_st_close(file);
    cr_free(copy);
    cr_free(plain.bytes);
    folder_close();
}

static void larger_than_the_buffers(void) {
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {1500, 100, 3, 3}, .permute_krsc = true});
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {2, 120000, 3, 3}, .permute_krsc = true}); /* one row is 4.1 MiB */
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {1100, 1000, 1, 1}, .permute_krsc = true});
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {700, 1, 41, 41}, .permute_krsc = true});
    large_case((struct cr_ckpt_tensor){.dims = 1, .dim = {(2 << 20) + 1}});
    large_case((struct cr_ckpt_tensor){.dims = 2, .dim = {0, 3}});
}

/* Filters of other types than F32 (masks, half planes): the file counts up, and the way back restores the store. */
static void permutes_any_type(void) {
    static const enum cr_dtype types[] = {CR_U8, CR_F16, CR_BF16, CR_I64, CR_F64};
    for (size_t t = 0; t < CR_COUNT(types); t++) {
        struct cr_ckpt_tensor tensor = {"t", types[t], 4, {2, 3, 2, 5}, true, 77};
        size_t                size   = cr_dtype_bytes(types[t]);
        unsigned char         store[480], want[480], before[480];
        struct plain          plain = {.bytes = store, .size = 60 * size};
        struct cr_ckpt_io     io    = {&plain, plain_get, plain_put};
        struct cr_st_file    *file;
        REQUIRE(folder_open());
        for (int i = 0; i < 60; i++) {
            put_value(store, types[t], place_of(&tensor, i), i);
            put_value(want, types[t], i, i);
        }
        memcpy(before, store, 60 * size);
        struct cr_ckpt_save save = {.run_dir = folder, .step = 1, .state = &tensor, .state_count = 1, .config_text = ""};
        REQUIRE_OK(cr_ckpt_write(&save, &io));
        REQUIRE_OK(cr_st_open(in_folder("last/state.safetensors"), &file));
        memset(store, 0, sizeof store);
        REQUIRE_OK(cr_st_read(file, cr_st_at(file, 0), 0, store, 60 * size));
        CHECK(!memcmp(store, want, 60 * size));
        plain.next = 0;
        REQUIRE_OK(cr_ckpt_read(file, "x", &tensor, 1, NULL, NULL, &io));
        CHECK(!memcmp(store, before, 60 * size));
        cr_st_close(file);
        folder_close();
    }
}

/* ---- reading other types ---- */

static void read_as_f32(enum cr_dtype dtype) {
    struct cr_ckpt_tensor tensor = fake_tensors[CONV];
    struct cr_st_entry    entry  = {.name = "conv1.weight", .dtype = dtype, .dims = 4, .dim = {4, 3, 2, 5}};
    struct cr_st_writer  *writer;
    struct fake           fake = {0};
    double                data[120]; /* room for any type */
    REQUIRE(folder_open());
    for (int i = 0; i < 120; i++) put_value(data, dtype, i, i * 0.5 - 30);
    REQUIRE_OK(cr_st_create(in_folder("x"), &entry, 1, NULL, 0, &writer));
    REQUIRE_OK(cr_st_write(writer, data, 120 * cr_dtype_bytes(dtype)));
    REQUIRE_OK(cr_st_finish(writer));
    REQUIRE_OK(fake_read(&fake, in_folder("x"), &tensor, 1));
    for (int i = 0; i < 120; i++) CHECK_NEAR(((float *)(void *)fake.blob[CONV])[place_of(&tensor, i)], i * 0.5 - 30, 0);
    CHECK_INT(fake.blob[CONV][480] | fake.blob[CONV][599], 0); /* and nothing behind */
    folder_close();
}

static void half_and_double_become_float(void) {
    read_as_f32(CR_F32);
    read_as_f32(CR_F16);
    read_as_f32(CR_BF16);
    read_as_f32(CR_F64);
}

/* ---- what does not fit ---- */

static const char *linear_alias(const char *name) {
    return !strcmp(name, "fc.weight") ? "linear.weight" : !strcmp(name, "fc.bias") ? "linear.bias" : NULL;
}

/* A model file with these tensors, all F32 zeros but for scalars, which are I64. */
static cr_status make_file(const char *path, const struct cr_st_entry *entries, int count) {
    struct cr_st_writer *writer;
    CR_TRY(cr_st_create(path, entries, count, NULL, 0, &writer));
    for (int i = 0; i < count; i++) {
        char zeros[4096] = {0};
        CR_TRY(cr_st_write(writer, zeros, (size_t)cr_st_writer_entry(writer, i)->bytes));
    }
    CR_TRY(cr_st_finish(writer));
    return CR_OK;
}

/* Reads the fake model from such a file; on failure the store must be untouched. */
static cr_status read_model(const struct cr_st_entry *entries, int count, const char *ignore, bool alias) {
    struct fake        fake = {0};
    struct cr_st_file *file;
    struct cr_ckpt_io  io = {&fake, fake_get, fake_put};
    unlink(in_folder("m"));
    CR_TRY(make_file(in_folder("m"), entries, count));
    CR_TRY(cr_st_open(in_folder("m"), &file));
    cr_status status = cr_ckpt_read(file, "weights.safetensors", fake_tensors, MODEL, ignore, alias ? linear_alias : NULL, &io);
    cr_st_close(file);
    if (status != CR_OK) CHECK_INT(fake.calls, 0);
    return status;
}

#define CONV_OK {.name = "conv1.weight", .dtype = CR_F32, .dims = 4, .dim = {4, 3, 2, 5}}
#define FC_OK {.name = "fc.weight", .dtype = CR_F32, .dims = 2, .dim = {10, 6}}
#define BIAS_OK {.name = "fc.bias", .dtype = CR_F32, .dims = 1, .dim = {10}}
#define COUNT_OK {.name = "bn1.num_batches_tracked", .dtype = CR_I64}
#define READ(ignore, alias, ...)                                                                                       \
    read_model((const struct cr_st_entry[]){__VA_ARGS__},                                                              \
               (int)(sizeof((const struct cr_st_entry[]){__VA_ARGS__}) / sizeof(struct cr_st_entry)), ignore, alias)

static void what_fits(void) {
    REQUIRE(folder_open());
    CHECK_STATUS(READ(NULL, false, CONV_OK, FC_OK, BIAS_OK, COUNT_OK), CR_OK);
    CHECK_STATUS(READ(NULL, true, CONV_OK, FC_OK, BIAS_OK, COUNT_OK), CR_OK);
    /* names of the pretrained CIFAR files: linear.*, no counts */
    CHECK_STATUS(READ(".num_batches_tracked", true, CONV_OK, {.name = "linear.weight", .dtype = CR_F32, .dims = 2, .dim = {10, 6}},
                      {.name = "linear.bias", .dtype = CR_F32, .dims = 1, .dim = {10}}),
                 CR_OK);
    /* more than asked for, but ignored */
    CHECK_STATUS(READ("x.y,.num_batches_tracked,.extra", false, CONV_OK, FC_OK, BIAS_OK, COUNT_OK,
                      {.name = "bn9.num_batches_tracked", .dtype = CR_I64}, {.name = "an.extra", .dtype = CR_I64}),
                 CR_OK);
    folder_close();
}

static void what_does_not_fit(void) {
    REQUIRE(folder_open());
    CHECK_STATUS(READ(NULL, false, FC_OK, BIAS_OK, COUNT_OK), CR_ERR_FORMAT);
    CHECK_STR(cr_error_message(), "weights.safetensors: does not fit: \"conv1.weight\" [4, 3, 2, 5] is missing");
    CHECK_STATUS(READ(NULL, false, CONV_OK, BIAS_OK, COUNT_OK, {.name = "fc.weight", .dtype = CR_F32, .dims = 2, .dim = {100, 6}}),
                 CR_ERR_FORMAT);
    CHECK_STR(cr_error_message(),
              "weights.safetensors: does not fit: \"fc.weight\" has shape [100, 6] in the file, [10, 6] here");
    CHECK_STATUS(READ(NULL, false, CONV_OK, FC_OK, COUNT_OK, {.name = "fc.bias", .dtype = CR_I32, .dims = 1, .dim = {10}}),
                 CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"fc.bias\" has elements of type I32 in the file, F32 here");
    CHECK_STATUS(READ(NULL, false, CONV_OK, FC_OK, BIAS_OK, COUNT_OK, {.name = "extra\x1b", .dtype = CR_F32, .dims = 1, .dim = {3}}),
                 CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"extra\\u001b\" [3] is in the file, but not wanted here");
    /* the same elements in another shape */
    CHECK_STATUS(READ(NULL, false, CONV_OK, BIAS_OK, COUNT_OK, {.name = "fc.weight", .dtype = CR_F32, .dims = 1, .dim = {60}}),
                 CR_ERR_FORMAT);
    CHECK_STATUS(READ(NULL, false, CONV_OK, FC_OK, BIAS_OK, {.name = "bn1.num_batches_tracked", .dtype = CR_I64, .dims = 1, .dim = {1}}),
                 CR_ERR_FORMAT);
    CHECK_STATUS(READ(NULL, false, CONV_OK, FC_OK, COUNT_OK, {.name = "fc.bias", .dtype = CR_F32}), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"fc.bias\" has shape [] in the file, [10] here");
    /* both names of one tensor; a name that only ends like an ignored one's middle */
    CHECK_STATUS(READ(NULL, true, CONV_OK, FC_OK, BIAS_OK, COUNT_OK, {.name = "linear.bias", .dtype = CR_F32, .dims = 1, .dim = {10}}),
                 CR_ERR_FORMAT);
    CHECK_STATUS(READ(".num", false, CONV_OK, FC_OK, BIAS_OK), CR_ERR_FORMAT);
    /* five are listed */
    CHECK_STATUS(READ(NULL, false, {.name = "a", .dtype = CR_I64}, {.name = "b", .dtype = CR_I64}, {.name = "c", .dtype = CR_I64},
                      {.name = "d", .dtype = CR_I64}),
                 CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"a\" [] is in the file, but not wanted here; and 3 more");
    folder_close();
}

static void io_fails(void) {
    struct fake fake;
    int64_t     live = cr_alloc_live();
    REQUIRE(folder_open());
    REQUIRE_OK(fake_save(folder, 1, false, 2));
    for (int n = 1; n <= BLOBS; n++) {
        fake_fill(&fake, 2);
        fake.fail_at = n;
        CHECK_STATUS(fake_save_from(&fake, folder, 2, true, 2), CR_ERR_DEVICE);
        CHECK_INT(leftovers(folder), 0);
        CHECK(!is_there(in_folder("step-2")));
    }
    fake_fill(&fake, 2);
    fake.fail_at = 2;
    CHECK_STATUS(fake_read(&fake, in_folder("last/model.safetensors"), fake_tensors, MODEL), CR_ERR_DEVICE);
    CHECK_INT(cr_alloc_live(), live);
    folder_close();
}

static void class_name_with_line_break(void) {
    const char *const   classes[] = {"cat", "do\ng"};
    struct cr_ckpt_io   io   = {NULL, fake_get, fake_put};
    struct cr_ckpt_save save = {.step = 1, .config_text = "", .class_names = classes, .classes = 2};
    REQUIRE(folder_open());
    save.run_dir = folder;
    CHECK_STATUS(cr_ckpt_write(&save, &io), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "class 1 has a line break");
    CHECK_INT(leftovers(folder), 0);
    folder_close();
}

/* ---- folders and links ---- */

static void run_folder(void) {
    REQUIRE(folder_open());
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b//c/")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b//c/")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b/c")));
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b/c")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b/c/lost+found")));
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b/c")));
    REQUIRE_OK(cr_file_write_atomic(in_folder("a/b/c/file"), "x", 1));
    CHECK(cr_ckpt_dir_in_use(in_folder("a/b/c")));
    CHECK_STATUS(cr_ckpt_prepare_dir(in_folder("a/b/c/file")), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "is not a folder");
    CHECK_STATUS(cr_ckpt_prepare_dir(in_folder("a/b/c/file/run")), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), in_folder("a/b/c/file"));
    CHECK_HAS(cr_error_message(), "train.output=");
    CHECK_STATUS(cr_ckpt_prepare_dir("/proc/cresnet-run"), CR_ERR_IO); /* nobody, root included, may make folders there */
    CHECK_HAS(cr_error_message(), "/proc/cresnet-run");
    CHECK_STATUS(cr_ckpt_prepare_dir(""), CR_ERR_IO);
    CHECK_STATUS(fake_save(in_folder("nowhere"), 1, false, 1), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), in_folder("nowhere"));
    CHECK_INT(leftovers(in_folder("a/b/c")), 0);
    folder_close();
}

static void keep_counts(void) {
    REQUIRE(folder_open());
    for (int step = 1; step <= 9; step++) REQUIRE_OK(fake_save(folder, step, step == 3, 2));
    for (int step = 1; step <= 9; step++)
        CHECK_INT(sound_step(in_folder("step-%d", step)), step == 3 || step >= 7 ? step : -1);
    check_link("best", "step-3");
    check_link("last", "step-9");
    REQUIRE_OK(cr_ckpt_mark_best(folder, 8));
    check_link("best", "step-8");
    REQUIRE_OK(fake_save(folder, 10, false, 0));
    for (int step = 1; step <= 10; step++) CHECK(is_there(in_folder("step-%d", step)) == (step == 8 || step == 10));
    CHECK_STATUS(cr_ckpt_mark_best(folder, 3), CR_ERR_IO);
    check_link("best", "step-8");
    /* what is not a step-N is nobody's to remove */
    CHECK_INT(mkdir(in_folder("step-007"), 0700) | mkdir(in_folder("step-x"), 0700) | mkdir(in_folder("step-"), 0700), 0);
    REQUIRE_OK(fake_save(folder, 11, false, -1));
    REQUIRE_OK(fake_save(folder, 12, false, 0));
    CHECK(is_there(in_folder("step-007")) && is_there(in_folder("step-x")) && is_there(in_folder("step-")));
    CHECK(!is_there(in_folder("step-10")) && !is_there(in_folder("step-11")) && is_there(in_folder("step-8")));
    CHECK_INT(leftovers(folder), 0);
    folder_close();
}

static void a_step_saved_again(void) {
    struct fake other;
    REQUIRE(folder_open());
    REQUIRE_OK(fake_save(folder, 1, true, 5));
    fake_fill(&other, 2);
    REQUIRE_OK(fake_save_from(&other, folder, 1, false, 5));
    CHECK_INT(sound_step(in_folder("step-1")), -1); /* it holds step 2's values now */
    REQUIRE_OK(fake_save(folder, 1, false, 5));
    CHECK_INT(sound_step(in_folder("step-1")), 1);
    CHECK_INT(sound_step(in_folder("best")), 1);
    CHECK_INT(leftovers(folder), 0);
    folder_close();
}

/* A killed process had our number (in a container that is the rule) and nobody swept. */
static void leftovers_of_our_own_number(void) {
    REQUIRE(folder_open());
    REQUIRE_OK(cr_fs_mkdirs(in_folder(".tmp-step-5.%ld/sub", (long)getpid())));
    CHECK_INT(symlink("step-1", in_folder(".tmp-last.%ld", (long)getpid())), 0);
    REQUIRE_OK(fake_save(folder, 5, false, 1));
    CHECK_INT(sound_step(in_folder("last")), 5);
    CHECK(!is_there(in_folder("step-5/sub")));
    CHECK_INT(leftovers(folder), 0);
    folder_close();
}

static void links_that_are_folders(void) {
    REQUIRE(folder_open());
    CHECK_INT(mkdir(in_folder("last"), 0700) | mkdir(in_folder("last/mine"), 0700), 0);
    CHECK_STATUS(fake_save(folder, 1, false, 1), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "move the folder away");
    CHECK(is_there(in_folder("last/mine")));
    CHECK_INT(sound_step(in_folder("step-1")), 1);
    CHECK_INT(leftovers(folder), 0);
    folder_close();
}

/* ---- find ---- */

static int64_t found_step(const char *run_dir) {
    char     *found = NULL;
    cr_status status = cr_ckpt_find(run_dir, &found);
    int64_t   step   = found ? sound_step(found) : status == CR_OK ? -2 : -3;
    cr_free(found);
    return step;
}

static void damage(const char *path) {
    CHECK_INT(truncate(path, 100), 0);
}

static void find_newest(void) {
    char *said;
    REQUIRE(folder_open());
    CHECK_INT(found_step(folder), -2);
    CHECK_INT(found_step(in_folder("none")), -2);
    REQUIRE_OK(cr_file_write_atomic(in_folder("file"), "x", 1));
    CHECK_INT(found_step(in_folder("file")), -3);
    for (int step = 1; step <= 10; step += 3) REQUIRE_OK(fake_save(folder, step, false, 10)); /* 1 4 7 10: 10 > 7 as numbers */
    CHECK_INT(found_step(folder), 10);
    stderr_to(in_folder("said"));
    damage(in_folder("step-10/state.safetensors"));
    CHECK_INT(found_step(folder), 7);
    stderr_back();
    REQUIRE_OK(cr_file_read(in_folder("said"), 10000, &said, NULL));
    CHECK_HAS(said, "step-10/state.safetensors");
    CHECK_HAS(said, "passed over");
    CHECK(strchr(said, '\n') == strrchr(said, '\n')); /* one line */
    cr_free(said);
    stderr_to("/dev/null");
    unlink(in_folder("last"));
    CHECK_INT(found_step(folder), 7);
    unlink(in_folder("step-7/config.ini"));
    CHECK_INT(found_step(folder), 4);
    CHECK_INT(symlink("step-1", in_folder("last")), 0); /* somebody went back by hand */
    CHECK_INT(found_step(folder), 1);
    unlink(in_folder("last"));
    CHECK_INT(symlink("step-99", in_folder("last")), 0);
    CHECK_INT(found_step(folder), 4);
    CHECK_INT(rename(in_folder("step-4"), in_folder("step-50")), 0); /* its files say step 4 */
    CHECK_INT(found_step(folder), 1);
    damage(in_folder("step-1/model.safetensors"));
    CHECK_INT(found_step(folder), -2);
    stderr_back();
    folder_close();
}

static void model_paths(void) {
    char *path;
    REQUIRE(folder_open());
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("run")));
    CHECK_STATUS(cr_ckpt_model_path(in_folder("run"), &path), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), in_folder("run"));
    CHECK_STATUS(cr_ckpt_model_path(in_folder("none"), &path), CR_ERR_IO);
    REQUIRE_OK(fake_save(in_folder("run"), 3, true, 2));
    const char *const given[] = {"run", "run/last", "run/best", "run/step-3", "run/step-3/model.safetensors"};
    for (size_t i = 0; i < CR_COUNT(given); i++) {
        struct fake fake = {0};
        REQUIRE_OK(cr_ckpt_model_path(in_folder("%s", given[i]), &path));
        CHECK_STATUS(fake_read(&fake, path, fake_tensors, MODEL), CR_OK);
        cr_free(path);
    }
    folder_close();
}

/* ---- small files ---- */

static void small_files(void) {
    char  *text = NULL;
    size_t length;
    REQUIRE(folder_open());
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "one", 3));
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "a\0b", 3));
    REQUIRE_OK(cr_file_read(in_folder("x"), 3, &text, &length));
    CHECK(length == 3 && !memcmp(text, "a\0b", 4));
    cr_free(text);
    CHECK_STATUS(cr_file_read(in_folder("x"), 2, &text, &length), CR_ERR_FORMAT);
    CHECK_STATUS(cr_file_read(in_folder("y"), 2, &text, &length), CR_ERR_IO);
    CHECK_STATUS(cr_file_read(folder, 2, &text, &length), CR_ERR_IO);
    CHECK_STATUS(cr_file_write_atomic(in_folder("no/x"), "", 0), CR_ERR_IO);
    char longest[5000];
    memset(longest, 'a', sizeof longest);
    longest[4999] = 0;
    CHECK_STATUS(cr_file_write_atomic(longest, "", 0), CR_ERR_IO);
    CHECK_STATUS(cr_ckpt_prepare_dir(longest), CR_ERR_IO);
    folder_close();
}

TESTS(CASE(files_of_a_checkpoint), CASE(equal_states_equal_bytes), CASE(larger_than_the_buffers),
      CASE(permutes_any_type), CASE(half_and_double_become_float), CASE(class_name_with_line_break),
      CASE(what_fits), CASE(what_does_not_fit), CASE(io_fails), CASE(run_folder),
      CASE(keep_counts), CASE(a_step_saved_again), CASE(leftovers_of_our_own_number), CASE(links_that_are_folders), CASE(find_newest), CASE(model_paths),
      CASE(small_files))

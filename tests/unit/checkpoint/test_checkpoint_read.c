/* tests/unit/checkpoint/test_checkpoint_read.c: reading checkpoints and weights: chunks, permutation, conversion,
 * names, and the messages about files that do not fit. Folders and links: tests/unit/checkpoint/test_checkpoint.c. */
#include "tests/harness/checkpoint_fake.h"

struct plain {
    unsigned char *bytes;
    uint64_t       size, next; /* chunks come at increasing offsets */
    size_t         largest;
};

static cr_status plain_get(void *self, struct cr_ckpt_address address, uint64_t offset, void *host, size_t bytes) {
    struct plain *plain = self;
    CR_ASSERT(address.kind == 3 && address.value == 77 && offset == plain->next && offset + bytes <= plain->size);
    plain->next    = offset + bytes;
    plain->largest = CR_MAX(plain->largest, bytes);
    memcpy(host, plain->bytes + offset, bytes);
    return CR_OK;
}
static cr_status plain_put(void *self, struct cr_ckpt_address address, uint64_t offset, const void *host,
                           size_t bytes) {
    struct plain *plain = self;
    CR_ASSERT(address.kind == 3 && address.value == 77 && offset == plain->next && offset + bytes <= plain->size);
    plain->next    = offset + bytes;
    plain->largest = CR_MAX(plain->largest, bytes);
    memcpy(plain->bytes + offset, host, bytes);
    return CR_OK;
}

static void large_case(struct cr_ckpt_tensor tensor) {
    struct plain       plain = {0};
    struct cr_st_file *file;
    int64_t            elems = elems_of(&tensor);
    struct cr_ckpt_io  io    = {.self = &plain, .get = plain_get, .put = plain_put};
    tensor.name              = "t";
    tensor.address           = (struct cr_ckpt_address){3, 77};
    plain.size               = (uint64_t)elems * 4;
    plain.bytes              = cr_alloc(plain.size, 1);
    unsigned char *copy      = cr_alloc(plain.size, 1);
    REQUIRE(plain.bytes && copy);
    folder_open();
    for (int64_t i = 0; i < elems; i++) ((float *)(void *)plain.bytes)[place_of(&tensor, i)] = (float)(i % 16000000);
    struct cr_ckpt_save save = {.run_dir = tmp_path, .step = 1, .model = &tensor, .model_count = 1, .config_text = ""};
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
    REQUIRE_OK(cr_ckpt_read(file, "x", &tensor, 1, NULL, &io));
    CHECK_INT(plain.next, plain.size);
    CHECK(!memcmp(copy, plain.bytes, plain.size));
    CHECK(plain.largest <= CR_CKPT_CHUNK_BYTES);
    cr_st_close(file);
    cr_free(copy);
    cr_free(plain.bytes);
}

TEST(larger_than_the_buffers) {
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {1500, 100, 3, 3}, .permute_krsc = true});
    large_case(
        (struct cr_ckpt_tensor){.dims = 4, .dim = {2, 120000, 3, 3}, .permute_krsc = true}); /* one row is 4.1 MiB */
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {1100, 1000, 1, 1}, .permute_krsc = true});
    large_case((struct cr_ckpt_tensor){.dims = 4, .dim = {700, 1, 41, 41}, .permute_krsc = true});
    large_case((struct cr_ckpt_tensor){.dims = 1, .dim = {(2 << 20) + 1}});
    large_case((struct cr_ckpt_tensor){.dims = 2, .dim = {0, 3}});
}

/* Filters of types other than F32 (masks, half buffers): values in file order, and reading them restores the
 * parameters. */
TEST(permutes_any_type) {
    static const enum cr_dtype types[] = {CR_U8, CR_F16, CR_BF16, CR_I64, CR_F64};
    for (size_t t = 0; t < CR_COUNT(types); t++) {
        struct cr_ckpt_tensor tensor = {"t", types[t], 4, {2, 3, 2, 5}, true, {3, 77}};
        size_t                size   = cr_dtype_bytes(types[t]);
        unsigned char         store[480], want[480], before[480];
        struct plain          plain = {.bytes = store, .size = 60 * size};
        struct cr_ckpt_io     io    = {.self = &plain, .get = plain_get, .put = plain_put};
        OWNED(weights)        file  = NULL;
        folder_open();
        for (int i = 0; i < 60; i++) {
            put_value(store, types[t], place_of(&tensor, i), i);
            put_value(want, types[t], i, i);
        }
        memcpy(before, store, 60 * size);
        struct cr_ckpt_save save = {
            .run_dir = tmp_path, .step = 1, .state = &tensor, .state_count = 1, .config_text = ""};
        REQUIRE_OK(cr_ckpt_write(&save, &io));
        REQUIRE_OK(cr_st_open(in_folder("last/state.safetensors"), &file));
        memset(store, 0, sizeof store);
        REQUIRE_OK(cr_st_read(file, cr_st_at(file, 0), 0, store, 60 * size));
        CHECK(!memcmp(store, want, 60 * size));
        plain.next = 0;
        REQUIRE_OK(cr_ckpt_read(file, "x", &tensor, 1, NULL, &io));
        CHECK(!memcmp(store, before, 60 * size));
    }
}

static void read_as_f32(enum cr_dtype dtype) {
    struct cr_ckpt_tensor tensor = fake_tensors[CONV];
    struct cr_st_entry    entry  = {.name = "conv1.weight", .dtype = dtype, .dims = 4, .dim = {4, 3, 2, 5}};
    struct cr_st_writer  *writer;
    struct fake           fake = {0};
    double                data[120]; /* room for any type */
    folder_open();
    for (int i = 0; i < 120; i++) put_value(data, dtype, i, i * 0.5 - 30);
    REQUIRE_OK(cr_st_create(in_folder("x"), &entry, 1, NULL, 0, &writer));
    REQUIRE_OK(cr_st_write(writer, data, 120 * cr_dtype_bytes(dtype)));
    REQUIRE_OK(cr_st_finish(&writer));
    REQUIRE_OK(fake_read(&fake, in_folder("x"), &tensor, 1));
    for (int i = 0; i < 120; i++) CHECK_NEAR(((float *)(void *)fake.blob[CONV])[place_of(&tensor, i)], i * 0.5 - 30, 0);
    CHECK_INT(fake.blob[CONV][480] | fake.blob[CONV][599], 0); /* and nothing after it */
}

TEST(half_and_double_become_float) {
    read_as_f32(CR_F32);
    read_as_f32(CR_F16);
    read_as_f32(CR_BF16);
    read_as_f32(CR_F64);
}

/* A model file with these tensors: all F32 zeros, except scalars, which are I64. */
static cr_status make_file(const char *path, const struct cr_st_entry *entries, int count) {
    struct cr_st_writer *writer;
    CR_TRY(cr_st_create(path, entries, count, NULL, 0, &writer));
    for (int i = 0; i < count; i++) {
        char zeros[4096] = {0};
        CR_TRY(cr_st_write(writer, zeros, (size_t)cr_st_writer_entry(writer, i)->bytes));
    }
    CR_TRY(cr_st_finish(&writer));
    return CR_OK;
}

/* Reads the fake model from such a file; after a failure the parameters must be unchanged. */
static cr_status read_model(const struct cr_st_entry *entries, int count, const char *ignore) {
    struct fake        fake = {0};
    struct cr_st_file *file;
    struct cr_ckpt_io  io = {.self = &fake, .get = fake_get, .put = fake_put};
    unlink(in_folder("m"));
    CR_TRY(make_file(in_folder("m"), entries, count));
    CR_TRY(cr_ckpt_open_weights(in_folder("m"), fake_tensors, MODEL, &file));
    cr_status status = cr_ckpt_read(file, "weights.safetensors", fake_tensors, MODEL, ignore, &io);
    cr_st_close(file);
    if (status != CR_OK) CHECK_INT(fake.calls, 0);
    return status;
}

#define CONV_OK                                                                                                        \
    {                                                                                                                  \
        .name = "conv1.weight", .dtype = CR_F32, .dims = 4, .dim = { 4, 3, 2, 5 }                                      \
    }
#define FC_OK                                                                                                          \
    {                                                                                                                  \
        .name = "fc.weight", .dtype = CR_F32, .dims = 2, .dim = { 10, 6 }                                              \
    }
#define BIAS_OK                                                                                                        \
    {                                                                                                                  \
        .name = "fc.bias", .dtype = CR_F32, .dims = 1, .dim = { 10 }                                                   \
    }
#define COUNT_OK                                                                                                       \
    { .name = "bn1.num_batches_tracked", .dtype = CR_I64 }
#define READ(ignore, ...)                                                                                              \
    read_model((const struct cr_st_entry[]){__VA_ARGS__},                                                              \
               (int)(sizeof((const struct cr_st_entry[]){__VA_ARGS__}) / sizeof(struct cr_st_entry)), ignore)

TEST(matching_tensors) {
    folder_open();
    CHECK_STATUS(READ(NULL, CONV_OK, FC_OK, BIAS_OK, COUNT_OK), CR_OK);
    CHECK_STATUS(READ(NULL, CONV_OK, FC_OK, BIAS_OK, COUNT_OK), CR_OK);
    /* names of the pretrained CIFAR files: linear.*, no counts */
    CHECK_STATUS(READ(".num_batches_tracked", CONV_OK,
                      {.name = "linear.weight", .dtype = CR_F32, .dims = 2, .dim = {10, 6}},
                      {.name = "linear.bias", .dtype = CR_F32, .dims = 1, .dim = {10}}),
                 CR_OK);
    /* more tensors than requested, but ignored */
    CHECK_STATUS(READ("x.y,.num_batches_tracked,.extra", CONV_OK, FC_OK, BIAS_OK, COUNT_OK,
                      {.name = "bn9.num_batches_tracked", .dtype = CR_I64}, {.name = "an.extra", .dtype = CR_I64}),
                 CR_OK);
}

TEST(mismatched_tensors) {
    folder_open();
    CHECK_STATUS(READ(NULL, FC_OK, BIAS_OK, COUNT_OK), CR_ERR_FORMAT);
    CHECK_STR(cr_error_message(), "weights.safetensors: does not fit: \"conv1.weight\" [4, 3, 2, 5] is missing");
    CHECK_STATUS(
        READ(NULL, CONV_OK, BIAS_OK, COUNT_OK, {.name = "fc.weight", .dtype = CR_F32, .dims = 2, .dim = {100, 6}}),
        CR_ERR_FORMAT);
    CHECK_STR(cr_error_message(),
              "weights.safetensors: does not fit: \"fc.weight\" has shape [100, 6] in the file, [10, 6] here");
    CHECK_STATUS(READ(NULL, CONV_OK, FC_OK, COUNT_OK, {.name = "fc.bias", .dtype = CR_I32, .dims = 1, .dim = {10}}),
                 CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"fc.bias\" has elements of type I32 in the file, F32 here");
    CHECK_STATUS(
        READ(NULL, CONV_OK, FC_OK, BIAS_OK, COUNT_OK, {.name = "extra\x1b", .dtype = CR_F32, .dims = 1, .dim = {3}}),
        CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"extra\\u001b\" [3] is in the file, but not in the network");
    /* the same elements in another shape */
    CHECK_STATUS(READ(NULL, CONV_OK, BIAS_OK, COUNT_OK, {.name = "fc.weight", .dtype = CR_F32, .dims = 1, .dim = {60}}),
                 CR_ERR_FORMAT);
    CHECK_STATUS(READ(NULL, CONV_OK, FC_OK, BIAS_OK,
                      {.name = "bn1.num_batches_tracked", .dtype = CR_I64, .dims = 1, .dim = {1}}),
                 CR_ERR_FORMAT);
    CHECK_STATUS(READ(NULL, CONV_OK, FC_OK, COUNT_OK, {.name = "fc.bias", .dtype = CR_F32}), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"fc.bias\" has shape [] in the file, [10] here");
    /* both names of one tensor; a name that only ends like the middle of an ignored one */
    CHECK_STATUS(
        READ(NULL, CONV_OK, FC_OK, BIAS_OK, COUNT_OK, {.name = "linear.bias", .dtype = CR_F32, .dims = 1, .dim = {10}}),
        CR_ERR_FORMAT);
    CHECK_STATUS(READ(".num", CONV_OK, FC_OK, BIAS_OK), CR_ERR_FORMAT);
    /* the message lists five of each kind */
    CHECK_STATUS(READ(NULL, {.name = "a", .dtype = CR_I64}, {.name = "b", .dtype = CR_I64},
                      {.name = "c", .dtype = CR_I64}, {.name = "d", .dtype = CR_I64}, {.name = "e", .dtype = CR_I64},
                      {.name = "f", .dtype = CR_I64}, {.name = "g", .dtype = CR_I64}),
                 CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "\"fc.bias\" [10] is missing; \"bn1.num_batches_tracked\" [] is missing; \"a\" []");
    CHECK_HAS(cr_error_message(), "\"e\" [] is in the file, but not in the network; and 2 more in the file");
}
enum { MANY = 60 };

struct many {
    uint32_t *values[MANY]; /* by address.value */
    int64_t   elems[MANY];
    int       fails[2]; /* tensors whose put fails; -1: none */
};

static cr_status many_get(void *self, struct cr_ckpt_address address, uint64_t offset, void *host, size_t bytes) {
    const struct many *m = self;
    memcpy(host, (const char *)m->values[address.value] + offset, bytes);
    return CR_OK;
}
static cr_status many_put(void *self, struct cr_ckpt_address address, uint64_t offset, const void *host, size_t bytes) {
    const struct many *m = self;
    for (int i = 0; i < 2; i++)
        if (m->fails[i] == (int)address.value) return CR_FAIL(CR_ERR_DEVICE, "tensor %d is refused", m->fails[i]);
    CR_ASSERT(offset + bytes <= (uint64_t)m->elems[address.value] * sizeof(uint32_t));
    memcpy((char *)m->values[address.value] + offset, host, bytes);
    return CR_OK;
}

/* Filters and vectors of many sizes, some larger than a chunk. Of several errors, that of the first tensor is given. */
TEST(tensors_are_read_by_several_threads) {
    static char           name[MANY][16];
    struct cr_ckpt_tensor tensor[MANY] = {{0}};
    struct many           saved = {.fails = {-1, -1}}, read = {.fails = {-1, -1}};
    struct cr_ckpt_io     io = {.self = &saved, .get = many_get, .put = many_put};
    struct cr_st_file    *file;
    folder_open();
    for (int i = 0; i < MANY; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        const int64_t length = 1 + 4001 * i % 200000, filters = 1 + 9 * i % 70;
        tensor[i]      = (struct cr_ckpt_tensor){.name         = name[i],
                                                 .dtype        = CR_F32,
                                                 .dims         = i % 3 ? 4 : 1,
                                                 .dim          = {i % 3 ? filters : length, 1 + i % 37, 3, 3},
                                                 .permute_krsc = i % 3 != 0,
                                                 .address      = {3, (uint64_t)i}};
        saved.elems[i] = read.elems[i] = elems_of(&tensor[i]);
        saved.values[i]                = cr_alloc((size_t)saved.elems[i], sizeof(uint32_t));
        read.values[i]                 = cr_alloc((size_t)saved.elems[i], sizeof(uint32_t));
        REQUIRE(saved.values[i] && read.values[i]);
        for (int64_t k = 0; k < saved.elems[i]; k++) saved.values[i][k] = (uint32_t)(k * 2654435761u + (uint32_t)i);
    }
    struct cr_ckpt_save save = {
        .run_dir = tmp_path, .step = 1, .model = tensor, .model_count = MANY, .config_text = ""};
    REQUIRE_OK(cr_ckpt_write(&save, &io));
    REQUIRE_OK(cr_st_open(in_folder("last/model.safetensors"), &file));
    io = (struct cr_ckpt_io){.self = &read, .get = many_get, .put = many_put, .parallel_put = true};
    REQUIRE_OK(cr_ckpt_read(file, "x", tensor, MANY, NULL, &io));
    for (int i = 0; i < MANY; i++)
        CHECK(memcmp(saved.values[i], read.values[i], (size_t)saved.elems[i] * sizeof(uint32_t)) == 0);
    read.fails[0] = 41, read.fails[1] = 17;
    CHECK_INT(cr_ckpt_read(file, "x", tensor, MANY, NULL, &io), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "tensor 17 is refused");
    cr_st_close(file);
    for (int i = 0; i < MANY; i++) {
        cr_free(saved.values[i]);
        cr_free(read.values[i]);
    }
}

/* tests/unit/api/test_api_dlpack.c: images and logits as tensors of DLPack: values compared with
 * cresnet_classify_tensor, ownership, order with the streams of the caller, reuse of memory. Tensors in host memory and
 * the errors are tested in python/tests/test_dlpack.py. */
#include "api/model.h"
#define IMAGES 7
#include "tests/harness/api_support.h"
#include "tests/harness/streams_support.h"

enum { BATCH = 3 };

/* As in the header of DLPack. */
struct tensor {
    void    *data;
    int32_t  device, index, dims;
    uint8_t  code, bits;
    uint16_t lanes;
    int64_t *dim, *stride;
    uint64_t offset;
};
struct managed {
    struct tensor tensor;
    void         *context;
    void (*deleter)(struct managed *);
};

static int64_t       shape[4] = {IMAGES, API_SIZE, API_SIZE, 3};
static struct tensor tensor_at(void *data, int device) {
    return (struct tensor){.data = data, .device = device, .dims = 4, .code = 1, .bits = 8, .lanes = 1, .dim = shape};
}

static cresnet_model *open_model(float want[IMAGES][API_CLASSES]) {
    const cresnet_options options = api_options(BATCH);
    cresnet_output        output  = api_logits(want[0]);
    cresnet_model        *m       = open_run(&options);
    cresnet_error         error;
    if (m) CHECK_CALL(cresnet_classify_tensor(m, &all_images, &output, &error), CRESNET_OK);
    return m;
}

TEST(wrong_arguments_are_errors) {
    float               want[IMAGES][API_CLASSES];
    cresnet_error       error;
    void               *out = NULL;
    OWNED(api_model)    m   = open_model(want);
    const struct tensor all = tensor_at(images, 1), none = tensor_at(NULL, 1), many = {.device = 1, .dims = 40};
    REQUIRE(m);
    CHECK_CALL(cresnet_classify_dlpack(NULL, &all, NULL, &out, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_dlpack(m, NULL, NULL, &out, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_dlpack(m, &all, NULL, NULL, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_dlpack(m, &none, NULL, &out, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_dlpack(m, &many, NULL, &out, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_synchronize(NULL, &error), CRESNET_ERROR_ARGUMENT);
    CHECK(out == NULL);
    cresnet_logits_retain(NULL, NULL);
    const int64_t live = cr_alloc_live();
    for (int nth = 1; nth <= 2; nth++) {
        cr_alloc_fail_at(nth);
        const cresnet_status status = cresnet_classify_dlpack(m, &all, NULL, &out, &error);
        cr_alloc_fail_at(0);
        if (nth == 1) CHECK_INT(status, CRESNET_ERROR_MEMORY);
        if (status == CRESNET_OK) ((struct managed *)out)->deleter(out);
    }
    CHECK_INT(cr_alloc_live(), live);
}

/* A model on the CPU whose evaluation program runs on a device with streams instead. */
struct on_streams {
    cresnet_model    *m;
    struct cr_device *cpu;
    struct cr_memory  memory;
    struct cr_exec   *cpu_exec, *exec;
    void             *logits_bytes;
};

static cr_status move_to_streams(struct on_streams *o, uint64_t seed) {
    struct cr_session             *s       = &o->m->session;
    const struct cr_program       *all[]   = {&s->eval};
    const struct cr_device_options options = {.threads = 1};
    o->cpu                                 = s->device;
    o->cpu_exec                            = s->eval_exec;
    CR_TRY(streams_open(&options, seed, &s->device));
    s->device->options.index = 0;
    CR_TRY(cr_memory_open(&o->memory, s->device, &s->model.store, all, 1));
    memcpy(o->memory.region[CR_REGION_STORE], s->memory.region[CR_REGION_STORE], s->memory.bytes[CR_REGION_STORE]);
    CR_TRY(cr_exec_open(&s->eval, &o->memory, &s->eval_exec));
    o->exec = s->eval_exec;
    CR_ARENA_ALLOC(&o->m->arena, o->m->addresses, BATCH);
    return CR_OK;
}

static void move_back(struct on_streams *o) {
    cr_api_free_logits(o->m);
    cr_exec_close(o->exec);
    cr_memory_close(&o->memory);
    streams_close();
    o->m->session.device    = o->cpu;
    o->m->session.eval_exec = o->cpu_exec;
}

static void copy_on(int foreign, void *to, const void *from, size_t bytes) {
    CHECK(streams_add(&(struct work){
              .what = WORK_COPY, .stream = CR_STREAMS + foreign, .dst = to, .src = from, .bytes = bytes}) == CR_OK);
}

/* The caller's stream writes the images before the call, and reads the logits and changes the images after it. The
 * next call on the same stream reuses the memory of the logits. A call on another stream must not. */
TEST(work_is_in_order_with_the_streams_of_the_caller) {
    static uint8_t late[IMAGES * API_PIXELS], garbage[IMAGES * API_PIXELS];
    float          want[IMAGES][API_CLASSES], got[4][IMAGES][API_CLASSES];
    cresnet_error  error;
    int            out_of_turn = 0;
    memset(garbage, 99, sizeof garbage);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct on_streams   o   = {.m = open_model(want)};
        const struct tensor all = tensor_at(late, 2);
        void               *address[4];
        REQUIRE(o.m);
        REQUIRE_OK(move_to_streams(&o, seed));
        memset(got, 0, sizeof got);
        for (int call = 0; call < 4; call++) {
            const int foreign = call == 3;
            void     *out     = NULL;
            if (seed % 2) REQUIRE_OK(streams_sync(NULL)); /* or all calls are enqueued first */
            if (foreign) REQUIRE_OK(streams_sync(NULL));  /* the second stream does not wait for the first */
            copy_on(foreign, late, images, sizeof images);
            REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(foreign), &out, &error));
            struct managed *logits = out;
            address[call]          = logits->tensor.data;
            CHECK_INT(logits->tensor.device, 2);
            CHECK_INT(logits->tensor.bits, 32);
            copy_on(foreign, got[call], logits->tensor.data, sizeof got[call]);
            copy_on(foreign, late, garbage, sizeof garbage);
            logits->deleter(logits);
        }
        REQUIRE_CALL(cresnet_synchronize(o.m, &error));
        for (int call = 0; call < 4; call++) CHECK(memcmp(got[call], want, sizeof want) == 0);
        CHECK(address[1] == address[0] && address[2] == address[0] && address[3] != address[0]);
        out_of_turn += streams_.out_of_turn;
        CHECK(streams_.graph_launches > 0);
        move_back(&o);
        cresnet_close(o.m);
    }
    CHECK(out_of_turn > 0);
}

/* The model is freed with its last logits; their memory is limited while they are returned by other streams. */
TEST(logits_on_the_device_keep_the_model) {
    float             want[IMAGES][API_CLASSES];
    cresnet_error     error;
    void             *out[8];
    struct on_streams o   = {.m = open_model(want)};
    struct tensor     all = tensor_at(images, 2);
    REQUIRE(o.m);
    REQUIRE_OK(move_to_streams(&o, 1));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(i % 2), &out[i], &error));
        CHECK_INT(o.m->owners, 9);
        for (int i = 0; i < 8; i++) ((struct managed *)out[i])->deleter(out[i]);
        CHECK_INT(o.m->owners, 1);
    }
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) { /* no reuse of memory that another stream may read */
        void *first = NULL, *second = NULL;
        REQUIRE_CALL(cresnet_synchronize(o.m, &error));
        cr_api_free_logits(o.m);
        REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &first, &error));
        const void *address = ((struct managed *)first)->tensor.data;
        cresnet_logits_retain(first, streams_foreign(elsewhere));
        for (int i = 0; i < 2; i++) ((struct managed *)first)->deleter(first);
        REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &second, &error));
        CHECK((((struct managed *)second)->tensor.data == address) == !elsewhere);
        ((struct managed *)second)->deleter(second);
    }
    all.index = 1;
    CHECK_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &out[0], &error), CRESNET_ERROR_ARGUMENT);
    CHECK_HAS(error.text, "the images are on GPU 1, but the model is on GPU 0");
    all.index = 0, all.dim = (int64_t[]){IMAGES, 3, API_SIZE, API_SIZE};
    CHECK_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &out[0], &error), CRESNET_ERROR_ARGUMENT);
    CHECK_HAS(error.text, "must be in the form that the network reads: CRESNET_NHWC");
    all.stride = (int64_t[]){API_PIXELS, 1, API_SIZE * 3, 3}; /* channels last */
    REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &out[0], &error));
    REQUIRE_CALL(cresnet_synchronize(o.m, &error));
    CHECK(memcmp(((struct managed *)out[0])->tensor.data, want, sizeof want) == 0);
    all.dim = (int64_t[]){0, 3, API_SIZE, API_SIZE}, all.data = NULL;
    REQUIRE_CALL(cresnet_classify_dlpack(o.m, &all, streams_foreign(0), &out[1], &error));
    CHECK_INT(((struct managed *)out[1])->tensor.dim[0], 0);
    ((struct managed *)out[1])->deleter(out[1]);
    const int64_t live = cr_alloc_live();
    for (int nth = 1; nth < 4; nth++) { /* while the first logits are not returned */
        cr_alloc_fail_at(nth);
        const cresnet_status status = cresnet_classify_dlpack(o.m, &all, streams_foreign(1), &out[1], &error);
        cr_alloc_fail_at(0);
        if (status == CRESNET_OK) ((struct managed *)out[1])->deleter(out[1]);
        CHECK(status == CRESNET_OK || status == CRESNET_ERROR_MEMORY);
    }
    CHECK(cr_alloc_live() <= live + 8);
    cresnet_logits_retain(out[0], streams_foreign(0));
    ((struct managed *)out[0])->deleter(out[0]);
    CHECK_INT(o.m->owners, 2);
    move_back(&o);
    cresnet_close(o.m); /* not freed yet: the logits have an owner */
    CHECK_INT(o.m->owners, 1);
    o.m->session.device  = o.cpu;
    const int64_t before = cr_alloc_live();
    ((struct managed *)out[0])->deleter(out[0]);
    CHECK(cr_alloc_live() < before);
}

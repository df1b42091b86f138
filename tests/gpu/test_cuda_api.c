/* tests/gpu/test_cuda_api.c: the library on a GPU: results close to those of the CPU, tensors in GPU memory after the
 * work of a stream, one model for ten threads, no change of the GPU that the caller uses. */
#define IMAGES 40
#include "tests/harness/api_support.h"
#include "tests/harness/test_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

enum { BATCH = 16, THREADS = 10 };

static cresnet_model *open_on(const char *device, const char *precision, bool f32_tensors) {
    cresnet_options options;
    cresnet_options_init(&options);
    options.device      = device;
    options.precision   = precision;
    options.max_batch   = BATCH;
    options.features    = 1;
    options.f32_tensors = f32_tensors;
    return open_run(&options);
}

struct results {
    float logits[IMAGES][API_CLASSES], features[IMAGES][API_FEATURES];
};
static cresnet_output output_to(struct results *r) {
    cresnet_output output;
    cresnet_output_init(&output);
    memset(r, 0, sizeof *r);
    output.logits   = r->logits[0];
    output.features = r->features[0];
    return output;
}

TEST(results_are_close_to_those_of_the_cpu) {
    static const struct {
        const char *precision;
        double      bound;
    } cases[] = {{"fp32", 2e-4}, {"tf32", 5e-3}, {"fp16", 1e-2}, {"bf16", 6e-2}};
    static struct results want, got;
    cresnet_error         error;
    NEED_GPU();
    cresnet_model *cpu    = open_on("cpu", "auto", false);
    cresnet_output output = output_to(&want);
    REQUIRE(cpu);
    CHECK_CALL(cresnet_classify_tensor(cpu, &all_images, &output, &error), CRESNET_OK);
    cresnet_close(cpu);
    for (size_t c = 0; c < CR_COUNT(cases); c++) {
        OWNED(api_model) model = open_on("cuda", cases[c].precision, false);
        cresnet_info     info  = {.size = sizeof info};
        REQUIRE(model);
        output = output_to(&got);
        CHECK_CALL(cresnet_classify_tensor(model, &all_images, &output, &error), CRESNET_OK);
        CHECK_CALL(cresnet_get_info(model, &info), CRESNET_OK);
        CHECK_STR(info.precision, cases[c].precision);
        for (int i = 0; i < IMAGES; i++) {
            for (int k = 0; k < API_CLASSES; k++)
                CHECK_NEAR((double)got.logits[i][k], (double)want.logits[i][k], cases[c].bound);
            for (int k = 0; k < API_FEATURES; k++)
                CHECK_NEAR((double)got.features[i][k], (double)want.features[i][k], cases[c].bound);
        }
    }
}

/* The stream fills the tensor only after a delay: a model that did not wait would read zeros. */
TEST(tensors_in_gpu_memory_wait_for_their_stream) {
    static struct results want, got;
    static float          values[IMAGES * API_PIXELS];
    cresnet_error         error;
    NEED_GPU();
    for (int f32 = 0; f32 < 2; f32++) {
        const size_t   bytes  = f32 ? sizeof values : sizeof images;
        cresnet_model *model  = open_on("cuda", "fp16", f32);
        const void    *source = f32 ? (const void *)values : images;
        void          *device = NULL, *pinned = NULL, *large = NULL;
        cudaStream_t   stream = NULL;
        const size_t   many   = (size_t)1 << 30;
        cresnet_info   info   = {.size = sizeof info};
        REQUIRE(model);
        CHECK_CALL(cresnet_get_info(model, &info), CRESNET_OK);
        for (int i = 0; i < IMAGES * API_PIXELS; i++)
            values[i] = ((float)images[i] / 255 - info.mean[i % 3]) / info.std[i % 3];
        cresnet_tensor tensor = {.data = source, .type = f32 ? CRESNET_F32 : CRESNET_U8, .count = IMAGES};
        cresnet_output output = output_to(&want);
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);

        REQUIRE(cudaMalloc(&device, bytes) == cudaSuccess && cudaMalloc(&large, many) == cudaSuccess);
        REQUIRE(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault) == cudaSuccess);
        REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
        REQUIRE(cudaMemset(device, 0, bytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
        memcpy(pinned, source, bytes);
        for (int i = 0; i < 40; i++) REQUIRE(cudaMemsetAsync(large, i, many, stream) == cudaSuccess); /* some 10 ms */
        REQUIRE(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);
        tensor.data      = device;
        tensor.on_device = 1;
        tensor.stream    = stream;
        output           = output_to(&got);
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
        tensor.type = f32 ? CRESNET_U8 : CRESNET_F32; /* not the form that the network reads */
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_ERROR_ARGUMENT);
        cresnet_close(model);
        (void)cudaStreamDestroy(stream);
        (void)cudaFreeHost(pinned);
        (void)cudaFree(device);
        (void)cudaFree(large);
    }
}

/* One tensor for each image, in reverse order: at addresses that are multiples of 16 bytes, and at odd ones. */
TEST(scattered_tensors_in_gpu_memory_are_gathered) {
    static struct results want, got;
    cresnet_tensor        list[IMAGES];
    cresnet_error         error;
    NEED_GPU();
    cresnet_model *model  = open_on("cuda", "fp16", false);
    cresnet_output output = output_to(&want);
    char          *device = NULL;
    REQUIRE(model);
    CHECK_CALL(cresnet_classify_tensor(model, &all_images, &output, &error), CRESNET_OK);
    REQUIRE(cudaMalloc((void **)&device, IMAGES * (API_PIXELS + 16)) == cudaSuccess);
    for (int odd = 0; odd < 2; odd++) {
        const size_t apart = API_PIXELS + (odd ? 3 : 16);
        for (int i = 0; i < IMAGES; i++) {
            const int image = IMAGES - 1 - i;
            REQUIRE(cudaMemcpy(device + (size_t)i * apart, images + image * API_PIXELS, API_PIXELS,
                               cudaMemcpyHostToDevice) == cudaSuccess);
            list[image] =
                (cresnet_tensor){.data = device + (size_t)i * apart, .type = CRESNET_U8, .count = 1, .on_device = 1};
        }
        output = output_to(&got);
        CHECK_CALL(cresnet_classify_tensors(model, list, IMAGES, &output, &error), CRESNET_OK);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
    cresnet_close(model);
    (void)cudaFree(device);
}

struct caller {
    cresnet_model        *model;
    const struct results *want;
    int                   wrong;
};

static void *call_often(void *argument) {
    struct caller *c = argument;
    struct results got;
    cresnet_error  error;
    for (int i = 0; i < 20; i++) {
        const cresnet_output output = output_to(&got);
        if (cresnet_classify_tensor(c->model, &all_images, &output, &error) != CRESNET_OK ||
            memcmp(&got, c->want, sizeof got) != 0)
            c->wrong++;
    }
    return NULL;
}

TEST(threads_share_a_model_and_keep_their_gpu) {
    static struct results want;
    cresnet_error         error;
    pthread_t             thread[THREADS];
    struct caller         caller[THREADS];
    int                   before = -1, after = -2;
    NEED_GPU();
    if (!have_run()) return;
    REQUIRE(cudaGetDevice(&before) == cudaSuccess);
    cresnet_model       *model  = open_on("cuda", "fp16", false);
    const cresnet_output output = output_to(&want);
    REQUIRE(model);
    CHECK_CALL(cresnet_classify_tensor(model, &all_images, &output, &error), CRESNET_OK);
    for (int i = 0; i < THREADS; i++) {
        caller[i] = (struct caller){.model = model, .want = &want};
        REQUIRE(pthread_create(&thread[i], NULL, call_often, &caller[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(thread[i], NULL);
        CHECK_INT(caller[i].wrong, 0);
    }
    cresnet_close(model);
    CHECK(cudaGetDevice(&after) == cudaSuccess && after == before);
}

/* Calls for tensors on the device overlap: each gets its own results, also next to calls that cannot overlap. */
enum { CALLS = 60 };
struct overlapping {
    cresnet_model *model;
    const char    *device; /* all images */
    int            number, wrong;
    bool           compare; /* with the results that an earlier run of this thread's calls has left here */
    float          logits[CALLS][BATCH][API_CLASSES];
};

static void *call_with_parts(void *argument) {
    struct overlapping *c = argument;
    for (int i = 0; i < CALLS; i++) {
        const int            first = (c->number + 7 * i) % (IMAGES - BATCH), count = 1 + (c->number + i) % BATCH;
        const bool           host   = c->number == 0 && i % 8 == 0;
        const char          *pixels = host ? (const char *)images : c->device;
        const cresnet_tensor tensor = {
            .data = pixels + first * API_PIXELS, .type = CRESNET_U8, .count = count, .on_device = !host};
        float          logits[BATCH][API_CLASSES];
        const size_t   bytes = (size_t)count * sizeof logits[0];
        cresnet_output output;
        cresnet_error  error;
        cresnet_output_init(&output);
        output.logits = logits[0];
        if (cresnet_classify_tensor(c->model, &tensor, &output, &error) != CRESNET_OK ||
            (c->compare && memcmp(logits, c->logits[i], bytes) != 0))
            c->wrong++;
        memcpy(c->logits[i], logits, bytes);
    }
    return NULL;
}

TEST(overlapping_calls_get_their_own_results) {
    static struct results     want;
    static struct overlapping caller[THREADS];
    cresnet_error             error;
    pthread_t                 thread[THREADS];
    char                     *device = NULL;
    NEED_GPU();
    cresnet_model       *model  = open_on("cuda", "fp16", false);
    const cresnet_output output = output_to(&want);
    REQUIRE(model);
    CHECK_CALL(cresnet_classify_tensor(model, &all_images, &output, &error), CRESNET_OK);
    REQUIRE(cudaMalloc((void **)&device, sizeof images) == cudaSuccess);
    REQUIRE(cudaMemcpy(device, images, sizeof images, cudaMemcpyHostToDevice) == cudaSuccess);
    for (int i = 0; i < THREADS; i++) {
        caller[i] = (struct overlapping){.model = model, .device = device, .number = i};
        (void)call_with_parts(&caller[i]);
        for (int k = 0; k < API_CLASSES; k++)
            CHECK_NEAR((double)caller[i].logits[1][0][k], (double)want.logits[i + 7][k], 1e-2);
        caller[i].compare = true;
    }
    for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&thread[i], NULL, call_with_parts, &caller[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(thread[i], NULL);
        CHECK_INT(caller[i].wrong, 0);
    }
    cresnet_close(model);
    (void)cudaFree(device);
}

TEST(a_gpu_that_does_not_exist_is_an_error) {
    cresnet_options options;
    cresnet_model  *model;
    cresnet_error   error;
    NEED_GPU();
    if (!have_run()) return;
    cresnet_options_init(&options);
    options.device = "cuda:77";
    CHECK_CALL(cresnet_open(run, &options, &model, &error), CRESNET_ERROR_DEVICE);
    CHECK_HAS(error.text, "77");
}

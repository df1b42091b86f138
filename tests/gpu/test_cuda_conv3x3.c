/* tests/gpu/test_cuda_conv3x3.c: the kernels cuda.conv3x3* on batches that give each thread block several tiles.
 * checkops compares them with the reference for small batches, where a block has one tile. Here images repeat: each
 * image must have bitwise the result that it has in a batch without repetitions, and sums are multiples. */
#include "core/rng.h"
#include "tests/harness/test_gpu.h"

#include <cuda_runtime_api.h>

enum { DISTINCT = 2, VECTORS = 4, NEEDED_KIB = 163 /* shared memory of the portable kernel's thread block */ };

struct layer {
    int64_t side, x_channels, y_channels; /* side of x */
    int     stride, repeats;
};
/* On 132 multiprocessors, a block has at least two tiles of 256 pixels. */
static const struct layer layers[] = {
    {56, 64, 64, 1, 12},   {28, 128, 128, 1, 48}, {14, 256, 256, 1, 96},   {56, 128, 128, 2, 48},
    {28, 256, 256, 2, 96}, {56, 128, 128, 1, 24}, {7, 1024, 1024, 1, 128},
};

struct job {
    const struct layer *layer;
    struct cr_program   p;
    int                 x, y, w, bn_x, vector[VECTORS]; /* x and y of the forward form; vector: f32 */
    char               *at[16];                         /* of each tensor */
};
static struct cr_device *device;

static int64_t images(const struct job *j) {
    return j->p.tensor[j->x].dim[0];
}

static cr_status fill(struct job *j, int tensor, bool positive) {
    const struct cr_tensor *t     = &j->p.tensor[tensor];
    const size_t            image = t->bytes / (size_t)(t->dim[0] > DISTINCT ? t->dim[0] : 1);
    const size_t            piece = t->dim[0] > DISTINCT && t->dim[0] == images(j) ? image * DISTINCT : t->bytes;
    const int64_t           count = (int64_t)piece / (t->dtype == CR_F32 ? 4 : 2);
    struct cr_rng           rng   = cr_rng_make((uint64_t)tensor + 1, CR_RNG_TEST, 0, 0);
    char                   *host  = malloc(piece);
    if (!host) return CR_NO_MEMORY(piece);
    for (int64_t i = 0; i < count; i++) {
        const float v = (float)(cr_rng_real(&rng) - (positive ? -0.5 : 0.5));
        if (t->dtype == CR_F32)
            memcpy(host + 4 * i, &v, sizeof v);
        else
            memcpy(host + 2 * i, &(uint16_t){cr_f32_to_f16(v)}, 2);
    }
    cr_status status = CR_OK;
    for (size_t have = 0; have < t->bytes && status == CR_OK; have += piece)
        status = device->backend->put(device, j->at[tensor] + have, host, CR_MIN(piece, t->bytes - have));
    free(host);
    return status;
}

static cr_status job_open(struct job *j, const struct layer *l, int repeats) {
    const int64_t N = (int64_t)DISTINCT * repeats, low = l->side / l->stride;
    *j = (struct job){.layer = l};
    cr_program_init(&j->p, "conv3x3", NULL);
    j->p.real = CR_F16;
    j->x      = cr_tensor_add(&j->p, "x", CR_F16, CR_REGION_POOL, N, l->side, l->side, l->x_channels);
    j->y      = cr_tensor_add(&j->p, "y", CR_F16, CR_REGION_POOL, N, low, low, l->y_channels);
    j->bn_x   = cr_tensor_add(&j->p, "bn_x", CR_F16, CR_REGION_POOL, N, l->side, l->side, l->x_channels);
    j->w      = cr_tensor_add(&j->p, "w", CR_F16, CR_REGION_POOL, l->y_channels, 3, 3, l->x_channels);
    for (int i = 0; i < VECTORS; i++) { /* mean_rstd, gamma, beta, sums */
        const int64_t channels = i == VECTORS - 1 ? CR_MAX(l->x_channels, l->y_channels) : l->x_channels;
        j->vector[i] =
            cr_tensor_add(&j->p, formatted("v%d", i), CR_F32, CR_REGION_POOL, i % 3 == 0 ? 2 : 1, 1, 1, channels);
    }
    for (int i = 0; i <= j->vector[VECTORS - 1]; i++) {
        CR_TRY(device->backend->reserve(device, j->p.tensor[i].bytes, (void **)&j->at[i]));
        CR_TRY(fill(j, i, i == j->vector[0] || i == j->vector[1]));
    }
    return CR_OK;
}

static void job_close(struct job *j) {
    for (int i = 0; i <= j->vector[VECTORS - 1]; i++)
        if (j->at[i]) device->backend->release(device, j->at[i]);
    cr_program_free(&j->p);
}

/* ---- running an op ---- */

static cr_status run(struct job *j, struct cr_op op, const struct cr_kernel *kernel, int index) {
    struct cr_call call  = {.program = &j->p, .op = &op};
    size_t         bytes = 0;
    op.kernel            = index;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op.in[s] >= 0) call.in[s] = j->at[op.in[s]];
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op.out[s] >= 0) call.out[s] = j->at[op.out[s]];
    CR_TRY(cr_kernel_prepare(device, kernel, &j->p, &op, &call.prepared, &bytes));
    if (bytes) CR_TRY(device->backend->reserve(device, bytes, &call.workspace));
    cr_status status = kernel->launch(device, &call);
    if (status == CR_OK) status = device->backend->sync(device);
    cr_kernel_release(kernel, call.prepared);
    if (bytes) device->backend->release(device, call.workspace);
    return status;
}

static void *result(const struct job *j, int tensor) {
    void *host = malloc(j->p.tensor[tensor].bytes);
    if (!host) abort();
    CHECK_STATUS(device->backend->get(device, host, j->at[tensor], j->p.tensor[tensor].bytes), CR_OK);
    return host;
}

static void compare_images(const char *kernel, const struct job *few, const struct job *many, int tensor) {
    char        *want = result(few, tensor), *got = result(many, tensor);
    const size_t bytes = few->p.tensor[tensor].bytes;
    for (int i = 0; i < many->layer->repeats; i++)
        if (memcmp(want, got + (size_t)i * bytes, bytes) != 0) {
            TEST_FAIL_("%s: images %d and %d differ from those of a small batch", kernel, i * DISTINCT,
                       (i + 1) * DISTINCT - 1);
            break;
        }
    free(want), free(got);
}
/* The order of a sum depends on the batch. */
static void compare_sums(const char *kernel, const struct job *few, const struct job *many, int64_t count) {
    float *want = result(few, few->vector[VECTORS - 1]), *got = result(many, many->vector[VECTORS - 1]);
    double size = 0;
    for (int64_t i = 0; i < count; i++) size = CR_MAX(size, fabs((double)want[i]));
    for (int64_t i = 0; i < count; i++) {
        const double sum = (double)want[i] * many->layer->repeats;
        if (fabs((double)got[i] - sum) <= 1e-4 * size * many->layer->repeats) continue;
        TEST_FAIL_("%s: sum %d: %g, expected %g", kernel, (int)i, (double)got[i], sum);
        break;
    }
    free(want), free(got);
}

enum form { FORWARD, GRADIENT, GRADIENT_OF_BN };

static struct cr_op op_of(const struct job *j, enum form form) {
    struct cr_op op     = cr_op_make(form == FORWARD ? CR_OP_conv : CR_OP_conv_dgrad, CR_NONE);
    op.attr.conv.stride = j->layer->stride;
    op.attr.conv.pad    = 1;
    if (form == FORWARD) {
        op.in[CR_IN_conv_x]      = j->x;
        op.in[CR_IN_conv_w]      = j->w;
        op.out[CR_OUT_conv_y]    = j->y;
        op.out[CR_OUT_conv_sums] = j->vector[VECTORS - 1];
        return op;
    }
    op.in[CR_IN_conv_dgrad_dy]   = j->y;
    op.in[CR_IN_conv_dgrad_w]    = j->w;
    op.out[CR_OUT_conv_dgrad_dx] = j->x;
    if (form == GRADIENT) return op;
    op.in[CR_IN_conv_dgrad_bn_x]        = j->bn_x;
    op.in[CR_IN_conv_dgrad_mean_rstd]   = j->vector[0];
    op.in[CR_IN_conv_dgrad_gamma]       = j->vector[1];
    op.in[CR_IN_conv_dgrad_beta]        = j->vector[2];
    op.out[CR_OUT_conv_dgrad_grad_sums] = j->vector[VECTORS - 1];
    return op;
}

static int run_kernels(struct job *few, struct job *many, enum form form) {
    const struct cr_op      op = op_of(few, form);
    const struct cr_kernel *kernel;
    int                     index, runs = 0;
    for (int from = 0; (kernel = cr_kernel_find(device, &few->p, &op, from, &index)); from = index + 1) {
        if (strncmp(kernel->name, "cuda.conv3x3", 12) != 0) continue;
        CHECK_STATUS(run(few, op, kernel, index), CR_OK);
        CHECK_STATUS(run(many, op_of(many, form), kernel, index), CR_OK);
        compare_images(kernel->name, few, many, form == FORWARD ? few->y : few->x);
        if (form != GRADIENT)
            compare_sums(kernel->name, few, many,
                         2 * (form == FORWARD ? few->layer->y_channels : few->layer->x_channels));
        runs++;
    }
    return runs;
}

static void run_layers(enum form form) {
    const struct cr_device_options options = {.deterministic = true};
    int                            runs    = 0;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    for (size_t i = 0; i < CR_COUNT(layers); i++) {
        struct job few, many;
        cr_status  status = job_open(&few, &layers[i], 1);
        if (status == CR_OK) status = job_open(&many, &layers[i], layers[i].repeats);
        CHECK_STATUS(status, CR_OK);
        if (status != CR_OK) break;
        runs += run_kernels(&few, &many, form);
        job_close(&few), job_close(&many);
    }
    cr_device_close(device);
    int block_bytes = 0;
    CHECK(cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    if (runs == 0 && test_block_bytes(block_bytes) < (size_t)NEEDED_KIB << 10)
        SKIP("no kernel cuda.conv3x3* exists for GPUs with less than 163 KiB of shared memory a thread block");
    CHECK(runs > 0); /* all other GPUs have a kernel for 64 channels */
}

TEST(forward) {
    NEED_GPU();
    run_layers(FORWARD);
}
TEST(gradient) {
    NEED_GPU();
    run_layers(GRADIENT);
}
TEST(gradient_of_bn_and_relu) {
    NEED_GPU();
    run_layers(GRADIENT_OF_BN);
}

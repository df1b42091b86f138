/* tools/spdnn/tests/test_cuda_spdnn.c: sparse deep networks on the GPU: values, categories and active inputs are
 * bitwise identical to those of the CPU, for layers with a launch of their own and layers that share a launch. */
#include "tests/harness/test_gpu.h"
#include "tools/spdnn/kernels.h"
#include "tools/spdnn/tests/spdnn_support.h"

static const struct cr_device_options plain = {.deterministic = true};

static struct cr_device *gpu, *cpu;
static int               launches; /* of the network of the last comparison */

static bool devices(void) {
    return cr_device_open(CR_DEVICE_CUDA, &plain, &gpu) == CR_OK &&
           cr_device_open(CR_DEVICE_CPU, &plain, &cpu) == CR_OK;
}
static void devices_close(void) {
    cr_device_close(gpu);
    cr_device_close(cpu);
    gpu = cpu = NULL;
}

/* Bitwise identical where products are exact; otherwise within the difference of sums of fused and of rounded
 * products. */
static void compare(const char *what, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *in,
                    const struct cr_spdnn_options *options) {
    struct cr_spdnn_result got, want;
    launches = 0;
    REQUIRE_OK(cr_spdnn_run(cpu, net, in, options, &want));
    REQUIRE_OK(cr_spdnn_run(gpu, net, in, options, &got));
    if (got.categories != want.categories)
        TEST_FAIL_("%s: %lld categories, expected %lld", what, (long long)got.categories, (long long)want.categories);
    for (int l = 0; l <= net->layers; l++)
        if (got.survivors[l] != want.survivors[l])
            TEST_FAIL_("%s: %lld active after layer %d, expected %lld", what, (long long)got.survivors[l], l,
                       (long long)want.survivors[l]);
    int64_t wrong = 0;
    for (int64_t i = 0; got.categories == want.categories && i < want.categories; i++)
        wrong += got.category[i] != want.category[i];
    for (int64_t v = 0; got.categories == want.categories && v < net->neurons * want.categories; v++) {
        const float bound = net->exact ? 0 : 1e-4f * fmaxf(want.values[v], 1);
        wrong += !(fabsf(got.values[v] - want.values[v]) <= bound);
    }
    if (wrong)
        TEST_FAIL_("%s: %lld wrong of %lld values", what, (long long)wrong,
                   (long long)(net->neurons * want.categories));
    CHECK(got.captured && got.seconds > 0);
    CHECK(got.streamed == options->stream);
    launches = got.launches;
    CHECK(launches >= 1 && launches <= net->layers && want.launches == 0);
    cr_spdnn_result_free(&got);
    cr_spdnn_result_free(&want);
}

TEST(challenge_networks_equal_the_cpu) {
    NEED_GPU();
    REQUIRE(devices());
    static const struct {
        int64_t neurons, inputs;
        int     layers;
    } cases[] = {{1024, 1, 3},     {1024, 129, 1}, {1024, 1000, 2},  {1024, 3000, 6},
                 {1024, 6000, 40}, {4096, 700, 9}, {16384, 300, 12}, {65536, 200, 4}};
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        for (int mode = 0; mode < 4; mode++) {
            const struct cr_spdnn_options options = {
                .keep_dead = mode == 1, .stream = mode == 2, .values = true, .repeats = 2};
            struct cr_spdnn_inputs in;
            struct cr_spdnn_net    net;
            char                   what[80];
            snprintf(what, sizeof what, "%lld neurons, %d layers, %s", (long long)cases[i].neurons, cases[i].layers,
                     mode == 1   ? "nothing dropped"
                     : mode == 2 ? "streamed"
                     : mode == 3 ? "single rows"
                                 : "plain");
            REQUIRE_OK(support_digits(cases[i].neurons, cases[i].inputs, &in));
            REQUIRE_OK(cr_spdnn_net_open(cases[i].neurons, cases[i].layers, -0.3f, 1, mode == 3 ? 1 : 16, 4, &net));
            compare(what, &net, &in, &options);
            cr_spdnn_net_close(&net);
            cr_spdnn_inputs_close(&in);
        }
    devices_close();
}

/* Rows of any length, groups of any size, weights of both types: the kernel must not depend on the challenge's
 * networks. */
TEST(any_network_equals_the_cpu) {
    NEED_GPU();
    REQUIRE(devices());
    static const int twins[] = {1, 2, 3, 4, 7, 8, 16, 33};
    for (size_t t = 0; t < CR_COUNT(twins); t++)
        for (int powers = 0; powers <= 26; powers += 13)
            for (int64_t inputs = 31; inputs < 2000; inputs += 900) {
                const struct cr_spdnn_options options = {.values = true, .repeats = 1};
                struct support_net            n;
                struct cr_spdnn_inputs        in;
                char                          what[80];
                snprintf(what, sizeof what, "%d equal rows, weights %d, %lld inputs", twins[t], powers,
                         (long long)inputs);
                REQUIRE_OK(support_net_open(509, 5, twins[t], 90, powers, powers ? -0.125f : -0.25f, 16, &n));
                REQUIRE_OK(support_inputs(509, inputs, 0.05, &in));
                compare(what, &n.net, &in, &options);
                cr_spdnn_inputs_close(&in);
                support_net_close(&n);
            }
    devices_close();
}

/* Number of launches on a device with this much shared memory for networks of 1,024 neurons with groups of 16 rows. */
static bool shares_launches(void) {
    int shared = 0;
    CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    return ck_spdnn_deep_fits(1024, (int)test_block_bytes(shared));
}

/* The challenge's layers share launches in groups of 16 rows; in groups of 8 rows each layer has its own launch. */
TEST(layers_share_launches) {
    NEED_GPU();
    REQUIRE(devices());
    static const struct {
        int64_t inputs;
        int     layers, mode;
    } cases[] = {{1, 2, 0}, {33, 9, 0}, {5000, 120, 0}, {1000, 30, 1}, {2000, 30, 2}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const struct cr_spdnn_options options = {
            .keep_dead = cases[i].mode == 1, .stream = cases[i].mode == 2, .values = true, .repeats = 2};
        struct cr_spdnn_inputs in;
        REQUIRE_OK(support_digits(1024, cases[i].inputs, &in));
        for (int rows = 8; rows <= 16; rows += 8) {
            struct cr_spdnn_net net;
            char                what[80];
            snprintf(what, sizeof what, "%d layers, mode %d, groups of %d rows", cases[i].layers, cases[i].mode, rows);
            REQUIRE_OK(cr_spdnn_net_open(1024, cases[i].layers, -0.3f, 1, rows, 4, &net));
            compare(what, &net, &in, &options);
            if (rows == 16 && shares_launches())
                CHECK(2 * launches <= cases[i].layers + 1);
            else
                CHECK(launches == cases[i].layers);
            cr_spdnn_net_close(&net);
        }
        cr_spdnn_inputs_close(&in);
    }
    devices_close();
}

/* Layers of both types of weights: neighbours of one type share a launch. */
static void mix_types(struct support_net *n, struct support_net *other) {
    for (int l = 3; l < n->net.layers; l += l % 5 == 4 ? 4 : 1) {
        const struct cr_spdnn_layer mine = n->net.layer[l];
        n->net.layer[l]                  = other->net.layer[l];
        other->net.layer[l]              = mine;
    }
}

/* Rows of any length, some empty, both types of weights in one network; one layer has groups of 8 rows; each layer
 * has its own launch. */
TEST(any_layers_share_launches) {
    NEED_GPU();
    REQUIRE(devices());
    enum { ODD = 7 };
    for (int mode = 0; mode < 4; mode++) /* f16; both types; any f32; both types with one layer of other groups */
        for (int64_t inputs = 31; inputs < 5000; inputs += 2234) {
            const struct cr_spdnn_options options = {
                .keep_dead = inputs > 31 && inputs < 3000, .values = true, .repeats = 2};
            /* rounding errors grow from layer to layer */
            const int              powers = mode == 2 ? 0 : 13, layers = mode == 2 ? 5 : 12;
            struct support_net     n, wide;
            struct cr_spdnn_inputs in;
            char                   what[80];
            snprintf(what, sizeof what, "weights of mode %d, %lld inputs", mode, (long long)inputs);
            REQUIRE_OK(support_net_open(1024, layers, 16, 90, powers, powers ? -0.0078125f : -0.125f, 16, &n));
            REQUIRE_OK(support_net_open(1024, layers, 16, 90, 26, -0.0078125f, 16, &wide));
            REQUIRE_OK(support_inputs(1024, inputs, 0.05, &in));
            if (mode % 2) mix_types(&n, &wide);
            if (mode == 3) {
                cr_spdnn_layer_free(&n.net.layer[ODD]);
                REQUIRE_OK(cr_spdnn_pack(&n.csr[ODD], 8, &n.net.layer[ODD]));
            }
            for (int l = 0; l < layers; l++) REQUIRE(n.net.layer[l].rows == (mode == 3 && l == ODD ? 8 : 16));
            compare(what, &n.net, &in, &options);
            CHECK(mode < 3 && shares_launches() ? launches < layers : launches == layers);
            cr_spdnn_inputs_close(&in);
            support_net_close(&wide);
            support_net_close(&n);
        }
    devices_close();
}

TEST(all_inputs_may_become_inactive) {
    NEED_GPU();
    REQUIRE(devices());
    const struct cr_spdnn_options options = {.values = true, .repeats = 1};
    struct cr_spdnn_inputs        in;
    struct cr_spdnn_net           net;
    REQUIRE_OK(support_digits(1024, 500, &in));
    REQUIRE_OK(cr_spdnn_net_open(1024, 5, -1.5f, 1, 16, 2, &net));
    compare("a bias that kills", &net, &in, &options);
    cr_spdnn_net_close(&net);
    cr_spdnn_inputs_close(&in);
    devices_close();
}

/* A view of some words of each neuron, as for GPUs that split the inputs. */
TEST(a_part_of_the_inputs_equals_the_cpu) {
    NEED_GPU();
    REQUIRE(devices());
    struct cr_spdnn_inputs in;
    struct cr_spdnn_net    net;
    REQUIRE_OK(support_digits(1024, 1000, &in));
    REQUIRE_OK(cr_spdnn_net_open(1024, 7, -0.3f, 1, 16, 2, &net));
    for (int64_t first = 0; first < 1000; first += 384) {
        const struct cr_spdnn_options options = {.values = true, .repeats = 1};
        struct cr_spdnn_inputs        view    = in;
        view.bit += first / 32;
        view.count = CR_MIN((int64_t)384, 1000 - first);
        compare("a part", &net, &view, &options);
    }
    cr_spdnn_net_close(&net);
    cr_spdnn_inputs_close(&in);
    devices_close();
}

/* More weights than a stage holds: buffers are overwritten while other warps compute. */
TEST(streamed_weights_are_correct) {
    NEED_GPU();
    REQUIRE(devices());
    struct cr_spdnn_inputs in;
    struct cr_spdnn_net    net;
    REQUIRE_OK(support_digits(16384, 400, &in));
    REQUIRE_OK(cr_spdnn_net_open(16384, 90, -0.4f, 1, 16, 8, &net));
    size_t bytes = 0;
    for (int l = 0; l < net.layers; l++) bytes += net.layer[l].bytes;
    CHECK(bytes > (size_t)64 << 20);
    for (int times = 0; times < 3; times++)
        compare("streamed", &net, &in, &(struct cr_spdnn_options){.stream = true, .values = true, .repeats = 3});
    cr_spdnn_net_close(&net);
    cr_spdnn_inputs_close(&in);
    devices_close();
}

TEST(nothing_leaks) {
    NEED_GPU();
    REQUIRE(devices());
    struct cr_spdnn_inputs in;
    struct cr_spdnn_net    net;
    REQUIRE_OK(support_digits(4096, 5000, &in));
    REQUIRE_OK(cr_spdnn_net_open(4096, 4, -0.35f, 1, 16, 2, &net));
    const struct cr_spdnn_options options = {.values = true, .repeats = 1};
    compare("first", &net, &in, &options);
    const size_t before = gpu->backend->memory_free(gpu);
    for (int i = 0; i < 3; i++) compare("again", &net, &in, &options);
    CHECK(gpu->backend->memory_free(gpu) + ((size_t)16 << 20) >= before);
    cr_spdnn_net_close(&net);
    cr_spdnn_inputs_close(&in);
    devices_close();
}

/* tools/spdnn/tests/test_spdnn.c: the networks of the Graph Challenge: counts and structure of the generated networks,
 * packing, inputs, and the results of the CPU against a dense loop in double. */
#include "device/device.h"
#include "tests/harness/failing_alloc.h"
#include "tools/spdnn/tests/spdnn_support.h"

static const struct cr_device_options plain = {.deterministic = true};

/* ---- the generator ---- */

TEST(edge_counts_match_published_values) {
    static const struct {
        int64_t neurons, layers, edges;
    } published[] = {{1024, 120, 3932160}, {4096, 120, 15728640}, {16384, 480, 251658240}, {65536, 1920, 4026531840}};
    for (size_t i = 0; i < CR_COUNT(published); i++) {
        struct cr_spdnn_net net;
        const int           layers = published[i].neurons == 1024 ? 120 : 2;
        REQUIRE_OK(cr_spdnn_net_open(published[i].neurons, layers, -0.3f, 1, 16, 2, &net));
        CHECK_INT(net.edges * (published[i].layers / layers), published[i].edges);
        CHECK(net.exact);
        for (int l = 0; l < layers; l++) {
            CHECK_INT(net.layer[l].rows, 16);
            CHECK_INT(net.layer[l].groups, published[i].neurons / 16);
            CHECK(net.layer[l].half);
        }
        cr_spdnn_net_close(&net);
    }
    CHECK(cr_spdnn_published(1024) && cr_spdnn_published(65536)->nonzeros == 392191985);
    CHECK(!cr_spdnn_published(2048) && !cr_spdnn_rates(1024, 7) && cr_spdnn_rates(4096, 480)->a100 == 18.63);
}

/* The residue to which the permutation maps input i, identified by the outputs of i: {p, p - shift}; -1: other
 * outputs. */
static int64_t residue_of(const struct cr_spdnn_csr *csr, const uint8_t *feeds, int64_t i, int64_t shift) {
    const int64_t N = csr->rows, M = N / 16;
    int64_t       found = -1;
    for (int64_t p = 0; p < M; p++) {
        bool fits = true;
        for (int64_t j = 0; fits && j < N; j++) fits = feeds[i * N + j] == (j % M == p || (j + shift) % M == p);
        if (!fits) continue;
        if (found >= 0 && 2 * shift != M) return -1;
        if (found < 0) found = p;
    }
    return found;
}

TEST(layers_follow_the_generator) {
    const int64_t N = 256, M = 16;
    uint8_t      *feeds = cr_alloc((size_t)(N * N), 1);
    int64_t       residue[256];
    REQUIRE(feeds);
    for (int index = 0; index < 12; index++) {
        struct cr_spdnn_csr csr;
        const int64_t       shift   = (int64_t)1 << index % 4;
        int                 hit[16] = {0}, moved = 0;
        REQUIRE_OK(cr_spdnn_radix(N, index, 5, &csr));
        memset(feeds, 0, (size_t)(N * N));
        for (int64_t j = 0; j < N; j++) {
            CHECK_INT(csr.start[j + 1] - csr.start[j], 32);
            for (uint32_t e = csr.start[j]; e < csr.start[j + 1]; e++) {
                CHECK(e == csr.start[j] || csr.column[e] > csr.column[e - 1]);
                CHECK(csr.weight[e] == 0.0625f);
                feeds[csr.column[e] * N + j] = 1;
            }
        }
        for (int64_t i = 0; i < N; i++) {
            const int64_t p = residue_of(&csr, feeds, i, shift);
            REQUIRE(p >= 0);
            if (index % 4 == 0)
                residue[i] = p; /* one permutation for all layers of a block */
            else
                CHECK(residue[i] == p || (2 * shift == M && residue[i] == (p + shift) % M));
            hit[residue[i]]++;
            moved += residue[i] != i % M;
        }
        for (int c = 0; c < 16; c++) CHECK_INT(hit[c], 16);
        CHECK(index < 4 ? moved == 0 : moved > 100);
        cr_spdnn_csr_free(&csr);
    }
    cr_free(feeds);
}

TEST(wrong_sizes_are_refused) {
    struct cr_spdnn_csr csr = {0};
    struct cr_spdnn_net net = {0};
    CHECK_STATUS(cr_spdnn_radix(1000, 0, 1, &csr), CR_ERR_USAGE);
    CHECK_STATUS(cr_spdnn_radix(16, 0, 1, &csr), CR_ERR_USAGE);
    CHECK_STATUS(cr_spdnn_radix(131072, 0, 1, &csr), CR_ERR_USAGE);
    CHECK_STATUS(cr_spdnn_net_open(1024, 2, 0.1f, 1, 16, 1, &net), CR_ERR_USAGE);
    CHECK_STATUS(cr_spdnn_net_open(1000, 20, -0.1f, 1, 16, 4, &net), CR_ERR_USAGE);
}

/* ---- packing ---- */

static float weight_at(const struct cr_spdnn_layer *f, size_t at) {
    if (!f->half) return ((const float *)(const void *)(f->data + f->weight_at))[at];
    const uint16_t h = ((const uint16_t *)(const void *)(f->data + f->weight_at))[at];
    const double   m = h & 1023, e = h >> 10 & 31;
    return (float)((h & 0x8000 ? -1 : 1) * (e == 0 ? ldexp(m, -24) : ldexp(1024 + m, (int)e - 25)));
}

/* Every row of the packed matrix equals that row of the matrix, as often as it occurs. */
static void check_packed(const struct cr_spdnn_csr *csr, const struct cr_spdnn_layer *f) {
    const uint32_t *start  = (const uint32_t *)(const void *)f->data;
    const uint16_t *row    = (const uint16_t *)(const void *)(f->data + f->row_at);
    const uint16_t *column = (const uint16_t *)(const void *)(f->data + f->column_at);
    uint8_t        *seen   = cr_alloc((size_t)csr->rows, 1);
    int64_t         rows   = 0;
    REQUIRE(seen);
    CHECK_INT(start[f->groups], f->columns);
    for (int64_t g = 0; g < f->groups; g++)
        for (int r = 0; r < f->rows; r++) {
            const uint32_t j = row[g * f->rows + r], count = csr->start[j + 1] - csr->start[j];
            REQUIRE(start[g + 1] - start[g] == count);
            rows += !seen[j];
            seen[j] = 1;
            for (uint32_t k = 0; k < count; k++) {
                CHECK(column[start[g] + k] == csr->column[csr->start[j] + k]);
                CHECK(weight_at(f, (size_t)(start[g] + k) * (size_t)f->rows + (size_t)r) ==
                      csr->weight[csr->start[j] + k]);
            }
        }
    CHECK_INT(rows, csr->rows);
    cr_free(seen);
}

TEST(packing_keeps_every_edge) {
    static const int twins[] = {1, 2, 3, 5, 8, 16, 40}, wanted[] = {1, 2, 4, 8, 8, 16, 16};
    for (size_t t = 0; t < CR_COUNT(twins); t++)
        for (int powers = 0; powers < 40; powers += 13) {
            struct cr_spdnn_csr   csr;
            struct cr_spdnn_layer layer, alone;
            REQUIRE_OK(support_csr(301, twins[t], 70, powers, 11, &csr));
            REQUIRE_OK(cr_spdnn_pack(&csr, 16, &layer));
            REQUIRE_OK(cr_spdnn_pack(&csr, 1, &alone));
            check_packed(&csr, &layer);
            check_packed(&csr, &alone);
            if (twins[t] == 1)
                CHECK(layer.rows <= 2); /* a few rows agree by chance: the empty ones */
            else
                CHECK(layer.rows == wanted[t] || twins[t] == 3 || twins[t] == 5);
            CHECK_INT(alone.rows, 1);
            CHECK(layer.exact == (powers > 0));
            CHECK(layer.half == (powers == 13));
            cr_spdnn_layer_free(&layer);
            cr_spdnn_layer_free(&alone);
            cr_spdnn_csr_free(&csr);
        }
}

/* Consecutive groups share columns: this is the purpose of the order. */
TEST(neighbours_share_columns) {
    struct cr_spdnn_csr   csr;
    struct cr_spdnn_layer f;
    int64_t               shared = 0;
    REQUIRE_OK(cr_spdnn_radix(1024, 9, 1, &csr));
    REQUIRE_OK(cr_spdnn_pack(&csr, 16, &f));
    check_packed(&csr, &f);
    const uint16_t *column = (const uint16_t *)(const void *)(f.data + f.column_at);
    for (int64_t g = 1; g < f.groups; g++)
        for (int a = 0; a < 32; a++)
            for (int b = 0; b < 32; b++) shared += column[g * 32 + a] == column[(g - 1) * 32 + b];
    CHECK(shared > 16 * (f.groups - 1) * 8 / 10);
    cr_spdnn_layer_free(&f);
    cr_spdnn_csr_free(&csr);
}

/* ---- inputs ---- */

TEST(images_become_bits) {
    struct cr_spdnn_images images = {.count = 3, .pixel = cr_alloc(3, 784)};
    struct cr_spdnn_inputs in, some;
    REQUIRE(images.pixel);
    memset(images.pixel + 784, 255, 784);                                          /* black, white, */
    for (int y = 0; y < 28; y++) memset(images.pixel + 2 * 784 + y * 28, 200, 14); /* and one half of each */
    REQUIRE_OK(cr_spdnn_inputs_open(&images, 4096, 70, 0.5, 3, &in));
    CHECK(in.threshold >= 0 && in.threshold < 200);
    for (int64_t i = 0; i < 70; i++) {
        int ones = 0, left = 0;
        for (int64_t n = 0; n < 4096; n++) {
            const int one = in.bit[n * in.words + i / 32] >> i % 32 & 1;
            ones += one;
            left += one && n % 64 < 34;
        }
        if (i % 3 == 0) CHECK_INT(ones, 0);
        if (i % 3 == 1) CHECK_INT(ones, 4096);
        if (i % 3 == 2) CHECK(left == ones && ones % 64 == 0 && ones >= 64 * 31 && ones <= 64 * 33);
    }
    REQUIRE_OK(cr_spdnn_inputs_pick(&in, 7, &some));
    CHECK_INT(some.count, 10);
    for (int64_t n = 0; n < 4096; n += 17)
        for (int64_t i = 0; i < 10; i++)
            CHECK((some.bit[n * some.words] >> i & 1) == (in.bit[n * in.words + i * 7 / 32] >> i * 7 % 32 & 1));
    cr_spdnn_inputs_close(&some);
    cr_spdnn_inputs_close(&in);
    cr_spdnn_images_free(&images);
}

TEST(synthetic_inputs_have_the_same_density) {
    struct cr_spdnn_inputs in;
    REQUIRE_OK(support_digits(1024, 3000, &in));
    CHECK_NEAR((double)in.nonzeros / 3000 / 1024, 0.104, 0.104 * 0.02);
    cr_spdnn_inputs_close(&in);
}

TEST(mnist_density_matches_published_value) {
    static const int64_t   widths[] = {1024, 4096, 16384, 65536};
    struct cr_spdnn_images images;
    char                   path[4096];
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    snprintf(path, sizeof path, "%s/mnist/train-images-idx3-ubyte", test_data_dir());
    if (cr_spdnn_images_read(path, &images) != CR_OK) SKIP("no MNIST in CRESNET_TEST_DATA");
    CHECK_INT(images.count, 60000);
    for (size_t i = 0; i < CR_COUNT(widths); i++) {
        const struct cr_spdnn_published *p = cr_spdnn_published(widths[i]);
        struct cr_spdnn_inputs           in;
        REQUIRE_OK(
            cr_spdnn_inputs_open(&images, widths[i], 60000, (double)p->nonzeros / 60000 / (double)widths[i], 2, &in));
        CHECK_NEAR((double)in.nonzeros, (double)p->nonzeros, 0.01 * (double)p->nonzeros);
        cr_spdnn_inputs_close(&in);
    }
    cr_spdnn_images_free(&images);
}

TEST(other_files_are_refused_as_mnist) {
    struct cr_spdnn_images images;
    CHECK_STATUS(cr_spdnn_images_read(CR_SOURCE_DIR "/CMakeLists.txt", &images), CR_ERR_FORMAT);
    CHECK_STATUS(cr_spdnn_images_read(CR_SOURCE_DIR "/no-such-file", &images), CR_ERR_IO);
}

/* ---- results ---- */

/* y[neurons] of one input through all layers, with every weight of the dense matrix. */
static bool dense(const struct cr_spdnn_csr *csr, int layers, double bias, const struct cr_spdnn_inputs *in,
                  int64_t input, double *y, double *x, double *w) {
    const int64_t N     = in->neurons;
    bool          alive = false;
    for (int64_t n = 0; n < N; n++) y[n] = in->bit[n * in->words + input / 32] >> input % 32 & 1;
    for (int l = 0; l < layers; l++) {
        memcpy(x, y, (size_t)N * sizeof *x);
        alive = false;
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            memset(w, 0, (size_t)N * sizeof *w);
            for (uint32_t e = csr[l].start[j]; e < csr[l].start[j + 1]; e++)
                w[csr[l].column[e]] = (double)csr[l].weight[e];
            for (int64_t i = 0; i < N; i++) sum += w[i] * x[i];
            y[j]  = fmin(fmax(sum + bias, 0), 32);
            alive = alive || y[j] > 0;
        }
    }
    return alive;
}

static void compare_with_dense(const struct cr_spdnn_net *net, const struct cr_spdnn_csr *csr,
                               const struct cr_spdnn_inputs *in, double bound) {
    const struct cr_spdnn_options options = {.values = true, .repeats = 1};
    struct cr_spdnn_result        r;
    struct cr_device             *cpu;
    double                       *y  = cr_alloc((size_t)(3 * net->neurons), sizeof *y);
    int64_t                       at = 0;
    REQUIRE(y);
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &plain, &cpu));
    REQUIRE_OK(cr_spdnn_run(cpu, net, in, &options, &r));
    for (int64_t i = 0; i < in->count; i++) {
        const bool alive = dense(csr, net->layers, (double)net->bias, in, i, y, y + net->neurons, y + 2 * net->neurons);
        const bool here  = at < r.categories && r.category[at] == i;
        CHECK(alive == here);
        for (int64_t n = 0; here && n < net->neurons; n++)
            CHECK_NEAR((double)r.values[n * r.categories + at], y[n], bound * fmax(y[n], 1));
        at += here;
    }
    CHECK_INT(at, r.categories);
    CHECK_INT(r.survivors[0], in->count);
    CHECK_INT(r.survivors[net->layers], r.categories);
    for (int l = 0; l < net->layers; l++) CHECK(r.survivors[l + 1] <= r.survivors[l]);
    cr_spdnn_result_free(&r);
    cr_device_close(cpu);
    cr_free(y);
}

TEST(challenge_networks_equal_a_dense_loop) {
    static struct cr_spdnn_csr csr[120];
    struct cr_spdnn_inputs     in;
    REQUIRE_OK(support_digits(1024, 20, &in));
    for (int l = 0; l < 120; l++) REQUIRE_OK(cr_spdnn_radix(1024, l, 1, &csr[l]));
    static const int depths[] = {1, 7, 120};
    for (size_t d = 0; d < CR_COUNT(depths); d++) {
        struct cr_spdnn_net net;
        REQUIRE_OK(cr_spdnn_net_open(1024, depths[d], -0.3f, 1, 16, 2, &net));
        compare_with_dense(&net, csr, &in, 1e-5);
        cr_spdnn_net_close(&net);
    }
    for (int l = 0; l < 120; l++) cr_spdnn_csr_free(&csr[l]);
    cr_spdnn_inputs_close(&in);
}

TEST(any_matrix_equals_a_dense_loop) {
    static const int twins[] = {1, 3, 16};
    for (size_t t = 0; t < CR_COUNT(twins); t++)
        for (int powers = 0; powers < 4; powers += 3) {
            struct support_net     n;
            struct cr_spdnn_inputs in;
            REQUIRE_OK(support_net_open(160, 4, twins[t], 30, powers, -0.25f, 16, &n));
            REQUIRE_OK(support_inputs(160, 75, 0.2, &in));
            compare_with_dense(&n.net, n.csr, &in, 1e-4);
            cr_spdnn_inputs_close(&in);
            support_net_close(&n);
        }
}

TEST(dropping_changes_nothing) {
    struct cr_spdnn_options options = {.values = true, .repeats = 1};
    struct cr_spdnn_inputs  in;
    struct cr_spdnn_result  r[3];
    struct cr_spdnn_net     net, alone;
    struct cr_device       *cpu;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &plain, &cpu));
    REQUIRE_OK(support_digits(1024, 150, &in));
    REQUIRE_OK(cr_spdnn_net_open(1024, 9, -0.3f, 1, 16, 2, &net));
    REQUIRE_OK(cr_spdnn_net_open(1024, 9, -0.3f, 1, 1, 2, &alone));
    REQUIRE_OK(cr_spdnn_run(cpu, &net, &in, &options, &r[0]));
    REQUIRE_OK(cr_spdnn_run(cpu, &alone, &in, &options, &r[1]));
    options.keep_dead = true;
    REQUIRE_OK(cr_spdnn_run(cpu, &net, &in, &options, &r[2]));
    CHECK(r[0].categories > 0 && r[0].categories < 150);
    CHECK_INT(r[2].survivors[8], 150);
    for (int i = 1; i < 3; i++) {
        REQUIRE(r[i].categories == r[0].categories);
        CHECK(cr_spdnn_hash(r[i].category, r[i].categories) == cr_spdnn_hash(r[0].category, r[0].categories));
        CHECK(memcmp(r[i].values, r[0].values, (size_t)(1024 * r[0].categories) * sizeof(float)) == 0);
    }
    CHECK(cr_spdnn_hash(r[0].category, r[0].categories) != cr_spdnn_hash(r[0].category, r[0].categories - 1));
    for (int i = 0; i < 3; i++) cr_spdnn_result_free(&r[i]);
    cr_spdnn_net_close(&net);
    cr_spdnn_net_close(&alone);
    cr_spdnn_inputs_close(&in);
    cr_device_close(cpu);
}

/* Devices that share inputs get views of some words of each neuron. */
TEST(split_inputs_equal_the_whole) {
    const struct cr_spdnn_options options = {.repeats = 1};
    struct cr_spdnn_inputs        in;
    struct cr_spdnn_result        whole, part;
    struct cr_spdnn_net           net;
    struct cr_device             *cpu;
    int64_t                       at = 0;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &plain, &cpu));
    REQUIRE_OK(support_digits(1024, 300, &in));
    REQUIRE_OK(cr_spdnn_net_open(1024, 8, -0.3f, 1, 16, 2, &net));
    REQUIRE_OK(cr_spdnn_run(cpu, &net, &in, &options, &whole));
    for (int64_t first = 0; first < 300; first += 128) {
        struct cr_spdnn_inputs view = in;
        view.bit += first / 32;
        view.count = CR_MIN((int64_t)128, 300 - first);
        REQUIRE_OK(cr_spdnn_run(cpu, &net, &view, &options, &part));
        for (int64_t i = 0; i < part.categories; i++, at++)
            CHECK(at < whole.categories && whole.category[at] == part.category[i] + first);
        cr_spdnn_result_free(&part);
    }
    CHECK_INT(at, whole.categories);
    CHECK(at > 0);
    cr_spdnn_result_free(&whole);
    cr_spdnn_net_close(&net);
    cr_spdnn_inputs_close(&in);
    cr_device_close(cpu);
}

TEST(failing_allocations_are_errors) {
    const struct cr_spdnn_options options = {.values = true, .repeats = 1};
    struct cr_spdnn_inputs        in;
    struct cr_device             *cpu;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &plain, &cpu));
    REQUIRE_OK(support_inputs(64, 40, 0.3, &in));
    for_each_failing_alloc(f, .least = 5) {
        struct cr_spdnn_net    net = {0};
        struct cr_spdnn_result r   = {0};
        failing_alloc_begin(&f);
        cr_status status = cr_spdnn_net_open(64, 2, -0.1f, 1, 16, 1, &net);
        if (status == CR_OK) status = cr_spdnn_run(cpu, &net, &in, &options, &r);
        failing_alloc_end(&f, status);
        cr_spdnn_result_free(&r);
        cr_spdnn_net_close(&net);
    }
    cr_spdnn_inputs_close(&in);
    cr_device_close(cpu);
}

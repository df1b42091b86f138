/* tests/gpu/test_cuda_init.c: initial values generated on the GPU are those of the CPU within 4 units in the last
 * place, at the correct positions, for all shapes. */
#include "tests/harness/test_gpu.h"

enum { ULP_MOST = 4 };

struct net {
    struct cr_param_store store;
    struct cr_config      config;
    struct cr_device     *device;
    void                 *region;
    char                 *host; /* host copy */
};

static void add(struct net *n, const char *name, enum cr_param_role role, int64_t K, int64_t R, int64_t S, int64_t C) {
    cr_param_store_add(&n->store, name, role, (const int64_t[4]){K, R, S, C}, CR_NONE);
}

/* Filters whose tiles end within a channel, within four numbers, at the end of a filter; single rows; many filters
 * of few channels. */
static void add_shapes(struct net *n) {
    add(n, "stem", CR_ROLE_CONV, 64, 7, 7, 3);
    add(n, "bn.weight", CR_ROLE_GAMMA, 1, 1, 1, 65);
    add(n, "bn.bias", CR_ROLE_BETA, 1, 1, 1, 65);
    add(n, "bn.running_mean", CR_ROLE_MEAN, 1, 1, 1, 65);
    add(n, "bn.running_var", CR_ROLE_VAR, 1, 1, 1, 65);
    add(n, "last.weight", CR_ROLE_GAMMA, 1, 1, 1, 7);
    n->store.param[n->store.params - 1].zero = true;
    add(n, "one", CR_ROLE_CONV, 1, 1, 1, 1);
    add(n, "three", CR_ROLE_CONV, 16, 3, 3, 3);
    add(n, "odd", CR_ROLE_CONV, 70, 3, 3, 33);
    add(n, "even", CR_ROLE_CONV, 13, 2, 2, 100);
    add(n, "tall", CR_ROLE_CONV, 3, 5, 1, 1);
    add(n, "long", CR_ROLE_CONV, 3, 3, 3, 4100);
    add(n, "plain", CR_ROLE_CONV, 64, 3, 3, 64);
    add(n, "wide", CR_ROLE_CONV, 256, 3, 3, 256);
    add(n, "point", CR_ROLE_CONV, 255, 1, 1, 77);
    add(n, "fc.weight", CR_ROLE_DENSE_WEIGHT, 10, 1, 1, 513);
    add(n, "fc.bias", CR_ROLE_DENSE_BIAS, 1, 1, 1, 10);
}

static cr_status net_open(struct net *n, int64_t seed, enum cr_init init, enum cr_init_shape shape) {
    const struct cr_device_options options = {0};
    *n                         = (struct net){.store = {.real = CR_F32, .half = CR_F16, .has_momentum = true}};
    n->config.train.seed       = seed;
    n->config.model.init       = init;
    n->config.model.init_shape = shape;
    add_shapes(n);
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &n->device));
    CR_TRY(n->device->backend->reserve(n->device, cr_param_store_bytes(&n->store), &n->region));
    CR_ALLOC(n->host, cr_param_store_bytes(&n->store));
    return CR_OK;
}

static void net_close(struct net *n) {
    if (n->region) n->device->backend->release(n->device, n->region);
    cr_device_close(n->device);
    cr_param_store_free(&n->store);
    cr_free(n->host);
}
OWNABLE(net, struct net, net_close(x))

static cr_status draw(struct net *n) {
    const struct cr_backend *backend = n->device->backend;
    CR_TRY(backend->init_store(n->device, &n->store, &n->config, n->region));
    return backend->get(n->device, n->host, n->region, cr_param_store_bytes(&n->store));
}

static const char *buffer(const struct net *n, enum cr_param_buffer which) {
    return n->host + cr_param_store_buffer_offset(&n->store, which);
}

/* Maps floats to integers of the same order. */
static int64_t place(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static void check_param(const struct net *n, int param, int64_t most, int64_t *worst) {
    const struct cr_param *q = &n->store.param[param];
    const int64_t          K = q->dim[0], R = q->dim[1], S = q->dim[2], C = q->dim[3];
    const float           *at =
        (const float *)(const void *)buffer(n, cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE) +
        q->offset;
    int shown = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        const int64_t c = i % C, s = i / C % S, r = i / C / S % R, k = i / C / S / R;
        const float   want     = cr_param_store_initial(&n->store, param, ((k * C + c) * R + r) * S + s, &n->config);
        const int64_t distance = place(at[i]) - place(want), size = distance < 0 ? -distance : distance;
        *worst = CR_MAX(*worst, size);
        if (size <= most || ++shown > 3) continue;
        TEST_FAIL_("%s[%lld,%lld,%lld,%lld] = %.9g, expected %.9g, %lld ulp apart (%lld filters)", q->name,
                   (long long)k, (long long)r, (long long)s, (long long)c, (double)at[i], (double)want, (long long)size,
                   (long long)K);
    }
    for (int64_t i = q->elems; i < (q->elems + 63) / 64 * 64; i++) CHECK(at[i] == 0);
}

static bool is_zero(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

TEST(values_are_those_of_the_cpu) {
    static const struct {
        int64_t            seed;
        enum cr_init       init;
        enum cr_init_shape shape;
    } draws[] = {{1, CR_INIT_HE_FAN_OUT, CR_INIT_NORMAL},
                 {0, CR_INIT_HE_FAN_IN, CR_INIT_NORMAL},
                 {0x123456789abcdef, CR_INIT_HE_FAN_OUT, CR_INIT_UNIFORM},
                 {INT64_MAX, CR_INIT_HE_FAN_IN, CR_INIT_NORMAL}};
    NEED_GPU();
    for (size_t d = 0; d < CR_COUNT(draws); d++) {
        OWNED(net) n     = {0};
        int64_t    worst = 0;
        REQUIRE_OK(net_open(&n, draws[d].seed, draws[d].init, draws[d].shape));
        REQUIRE_OK(draw(&n));
        for (int i = 0; i < n.store.params;
             i++) { /* only the normal distribution uses functions whose rounding may differ */
            const bool normal = n.store.param[i].role == CR_ROLE_CONV && draws[d].shape == CR_INIT_NORMAL;
            check_param(&n, i, normal ? ULP_MOST : 0, &worst);
        }
        printf("    seed %lld: largest difference %lld ulp\n", (long long)draws[d].seed, (long long)worst);
    }
}

TEST(other_elements_are_zero) {
    NEED_GPU();
    OWNED(net) n = {0};
    double     state[CR_STATE_COUNT];
    REQUIRE_OK(net_open(&n, 1, CR_INIT_HE_FAN_OUT, CR_INIT_NORMAL));
    REQUIRE_OK(draw(&n));
    CHECK(is_zero(buffer(&n, CR_BUFFER_GRAD), cr_param_store_buffer_bytes(&n.store, CR_BUFFER_GRAD)));
    CHECK(is_zero(buffer(&n, CR_BUFFER_MOMENTUM), cr_param_store_buffer_bytes(&n.store, CR_BUFFER_MOMENTUM)));
    CHECK(is_zero(buffer(&n, CR_BUFFER_HALF), cr_param_store_buffer_bytes(&n.store, CR_BUFFER_HALF)));
    memcpy(state, buffer(&n, CR_BUFFER_STATE), sizeof state);
    CHECK(state[CR_STATE_LOSS_SCALE] == 1);
    for (int i = 1; i < CR_STATE_COUNT; i++) CHECK(state[i] == 0);
}

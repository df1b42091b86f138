/* tests/gpu/test_cuda_fused.c: cuDNN's kernels on a GPU, in every fused form and with every algorithm, against plain
 * loops in double over the same rounded operands; in-place sums; batches beyond 2^31 elements. */
#include "tests/gpu/cuda_fused_bench.h"
#include "tests/harness/test_gpu.h"

/* ---- expected results ---- */

/* Operands as numbers; NULL: absent. Results, and for each result the sum of the magnitudes of its terms. */
struct truth {
    int64_t       N, H, C, K, P, R, stride, pad;
    const double *x, *w, *y, *scale_bias, *bias, *add, *bn_x, *mean_rstd, *gamma, *beta;
    enum cr_dtype type;
    bool          relu;
    double       *out, *size, *sums, *sums_size;
};

static double rounded(enum cr_dtype type, double x) {
    char cell[16];
    cr_number_store(type, cell, 0, x);
    return cr_number_load(type, cell, 0);
}

static double act_of(const struct truth *t, int64_t i) {
    if (!t->scale_bias) return t->x[i];
    const double v = t->x[i] * t->scale_bias[i % t->C] + t->scale_bias[t->C + i % t->C];
    return v > 0 ? rounded(t->type, v) : 0;
}

/* Calls `term` for every product of the convolution. */
static void each_product(struct truth *t, void (*term)(struct truth *t, int64_t x, int64_t w, int64_t y)) {
    for (int64_t y = 0; y < t->N * t->P * t->P * t->K; y++) {
        const int64_t k = y % t->K, q = y / t->K % t->P, p = y / t->K / t->P % t->P, n = y / t->K / t->P / t->P;
        for (int64_t r = 0; r < t->R; r++)
            for (int64_t s = 0; s < t->R; s++) {
                const int64_t h = p * t->stride - t->pad + r, v = q * t->stride - t->pad + s;
                if (h < 0 || v < 0 || h >= t->H || v >= t->H) continue;
                for (int64_t c = 0; c < t->C; c++)
                    term(t, ((n * t->H + h) * t->H + v) * t->C + c, ((k * t->R + r) * t->R + s) * t->C + c, y);
            }
    }
}
static void add_term(struct truth *t, int64_t at, double product) {
    t->out[at] += product;
    t->size[at] += fabs(product);
}
static void forward_term(struct truth *t, int64_t x, int64_t w, int64_t y) {
    add_term(t, y, act_of(t, x) * t->w[w]);
}
static void wgrad_term(struct truth *t, int64_t x, int64_t w, int64_t y) {
    add_term(t, w, act_of(t, x) * t->y[y]);
}
static void dgrad_term(struct truth *t, int64_t x, int64_t w, int64_t y) {
    add_term(t, x, t->y[y] * t->w[w]);
}

static void add_sums(struct truth *t, int64_t i, int64_t channels, double first, double second) {
    const int64_t c = i % channels;
    t->sums[c] += first;
    t->sums[channels + c] += second;
    t->sums_size[c] += fabs(first);
    t->sums_size[channels + c] += fabs(second);
}

static void finish_forward(struct truth *t) {
    for (int64_t i = 0; i < t->N * t->P * t->P * t->K; i++) {
        if (t->bias) add_term(t, i, t->bias[i % t->K]);
        if (t->add) add_term(t, i, t->add[i]);
        if (t->relu && t->out[i] < 0) t->out[i] = 0;
        if (t->sums) add_sums(t, i, t->K, t->out[i], t->out[i] * t->out[i]);
    }
}

static void finish_dgrad(struct truth *t) {
    for (int64_t i = 0; i < t->N * t->H * t->H * t->C; i++) {
        const int64_t c = i % t->C;
        if (t->add) add_term(t, i, t->add[i]);
        if (!t->bn_x) continue;
        const double xhat = (t->bn_x[i] - t->mean_rstd[c]) * t->mean_rstd[t->C + c];
        if (xhat * t->gamma[c] + t->beta[c] <= 0) t->out[i] = 0;
        add_sums(t, i, t->C, t->out[i], t->out[i] * xhat);
    }
}

static const double *number(const struct bench *b, const char *name) {
    const int t = cr_tensor_find(&b->a.p, name);
    return t >= 0 ? b->host[t] : NULL;
}

static int sums_of(const struct cr_op *op) {
    if (op->kind == CR_OP_conv) return op->out[CR_OUT_conv_sums];
    return op->kind == CR_OP_conv_dgrad ? op->out[CR_OUT_conv_dgrad_grad_sums] : CR_NONE;
}

static bool truth_make(const struct bench *b, const struct shape_of_conv *s, struct truth *t) {
    const struct cr_program *p     = &b->a.p;
    const int                sums  = sums_of(&b->a.op);
    const size_t             elems = (size_t)cr_tensor_elems(&p->tensor[b->a.op.out[0]]);
    *t                             = (struct truth){.N          = s->N,
                                                    .H          = s->H,
                                                    .C          = s->C,
                                                    .K          = s->K,
                                                    .R          = s->window,
                                                    .stride     = s->stride,
                                                    .pad        = s->pad,
                                                    .P          = p->tensor[cr_tensor_find(p, "y")].dim[1],
                                                    .x          = number(b, "x"),
                                                    .w          = number(b, "w"),
                                                    .y          = number(b, "y"),
                                                    .scale_bias = number(b, "scale_bias"),
                                                    .bias       = number(b, "bias"),
                                                    .add        = number(b, "add"),
                                                    .bn_x       = number(b, "bn_x"),
                                                    .mean_rstd  = number(b, "mean_rstd"),
                                                    .gamma      = number(b, "gamma"),
                                                    .beta       = number(b, "beta"),
                                                    .type       = p->tensor[cr_tensor_find(p, "x")].dtype,
                                                    .relu       = b->a.op.attr.conv.relu};
    t->out                         = cr_alloc(elems, sizeof *t->out);
    t->size                        = cr_alloc(elems, sizeof *t->size);
    if (sums >= 0) {
        t->sums      = cr_alloc((size_t)cr_tensor_elems(&p->tensor[sums]), sizeof *t->sums);
        t->sums_size = cr_alloc((size_t)cr_tensor_elems(&p->tensor[sums]), sizeof *t->sums_size);
    }
    if (!t->out || !t->size || (sums >= 0 && (!t->sums || !t->sums_size))) return false;
    each_product(t, b->a.op.kind == CR_OP_conv         ? forward_term
                    : b->a.op.kind == CR_OP_conv_wgrad ? wgrad_term
                                                       : dgrad_term);
    if (b->a.op.kind == CR_OP_conv) finish_forward(t);
    if (b->a.op.kind == CR_OP_conv_dgrad) finish_dgrad(t);
    return true;
}

static void truth_free(struct truth *t) {
    cr_free(t->out);
    cr_free(t->size);
    cr_free(t->sums);
    cr_free(t->sums_size);
}

/* The error bound: two roundings of the result and two of the operands of each term, generously; for sums, one
 * rounding of each element. */
static void compare(const char *what, const double *got, const double *want, const double *size, int64_t elems,
                    double unit) {
    double  worst = 0;
    int64_t at    = 0;
    for (int64_t i = 0; i < elems; i++) {
        const double bound = 2 * unit * fabs(want[i]) + unit * size[i] + 1e-4, off = fabs(got[i] - want[i]) / bound;
        if (!(off <= worst)) worst = off, at = i;
    }
    if (!(worst <= 1))
        TEST_FAIL_("%s: element %lld is %g, expected %g: %.3g times the bound", what, (long long)at, got[at], want[at],
                   worst);
}

/* ---- every form, every algorithm ---- */

static const struct shape_of_conv shapes[] = {
    {3, 9, 16, 24, 3, 1, 1}, {2, 8, 64, 32, 1, 1, 0},  {2, 9, 32, 16, 3, 2, 1},
    {3, 8, 24, 64, 1, 2, 0}, {1, 12, 16, 64, 4, 1, 0},
};

static void check_algos(struct bench *b, enum form form, const struct shape_of_conv *s, int *done) {
    struct truth t;
    char         what[160];
    const double unit = b->a.p.tensor[0].dtype == CR_BF16 ? 8e-3 : 1e-3;
    const int    n    = b->kernel->algo_count ? b->kernel->algo_count(b->device, &b->a.p, &b->a.op) : 1;
    CHECK(n >= 1);
    fill_host(b, 7);
    REQUIRE(truth_make(b, s, &t));
    for (int algo = 0; algo < n; algo++) {
        for (int k = 0; k < b->a.p.tensors; k++) cr_free(b->host[k]);
        fill_host(b, 7);
        cr_status status = move_tensors(b, true);
        if (status == CR_OK) status = put_guards(b);
        if (status == CR_OK) status = run_algo(b, algo);
        if (status == CR_OK) status = move_tensors(b, false);
        snprintf(what, sizeof what, "%s, %s, %lldx%lld %lld-%lld %dx%d/%d, algo %d", b->kernel->name, form_name[form],
                 (long long)s->H, (long long)s->H, (long long)s->C, (long long)s->K, s->window, s->window, s->stride,
                 algo);
        if (status != CR_OK) {
            TEST_FAIL_("%s: %s", what, cr_error_message());
            continue;
        }
        const int out = b->a.op.out[0], sums = sums_of(&b->a.op);
        compare(what, b->host[out], t.out, t.size, cr_tensor_elems(&b->a.p.tensor[out]), unit);
        if (sums >= 0)
            compare(what, b->host[sums], t.sums, t.sums_size, cr_tensor_elems(&b->a.p.tensor[sums]), 2 * unit);
        if (!guards_stand(b)) TEST_FAIL_("%s: wrote behind a tensor", what);
        ++*done;
    }
    truth_free(&t);
}

static void check_form(struct cr_device *device, enum form form, enum cr_dtype real, const struct shape_of_conv *s,
                       bool in_place, int *done) {
    struct bench b      = {.device = device};
    void        *region = NULL;
    alone_open(&b.a, form, real, s);
    b.kernel = find_row(device, &b.a);
    if (b.kernel) {
        place_tensors(&b, in_place);
        if (device->backend->reserve(device, b.bytes, &region) != CR_OK) TEST_FAIL_("%s", cr_error_message());
        b.region = region;
        if (region) check_algos(&b, form, s, done);
    }
    bench_close(&b);
}

static struct cr_device *open_device(void) {
    const struct cr_device_options options = {.tf32 = true};
    struct cr_device              *device  = NULL;
    if (cr_device_open(CR_DEVICE_CUDA, &options, &device) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return device;
}

static void every_form_with_every_algo(void) {
    NEED_GPU();
    static const enum cr_dtype types[] = {CR_F16, CR_BF16, CR_F32};
    struct cr_device          *device  = open_device();
    REQUIRE(device);
    for (size_t i = 0; i < CR_COUNT(types); i++)
        for (int form = 0; form < FORMS; form++) {
            int done = 0;
            for (size_t k = 0; k < CR_COUNT(shapes); k++)
                check_form(device, (enum form)form, types[i], &shapes[k], false, &done);
            const bool plain = form == PLAIN || form == WGRAD || form == DGRAD || form == DGRAD_ADD ||
                               (form >= BIAS && form <= BIAS_ADD_RELU);
            if (plain || types[i] == CR_F16) CHECK(done > 0);
        }
    cr_device_close(device);
}

static void add_in_place(void) {
    NEED_GPU();
    static const enum form forms[] = {BIAS_ADD, BIAS_ADD_RELU, DGRAD_ADD, DGRAD_ADD_BN};
    struct cr_device      *device  = open_device();
    REQUIRE(device);
    for (size_t i = 0; i < CR_COUNT(forms); i++) {
        int done = 0;
        for (size_t k = 0; k < CR_COUNT(shapes); k++) check_form(device, forms[i], CR_F16, &shapes[k], true, &done);
        CHECK(done > 0);
    }
    cr_device_close(device);
}

/* ---- beyond 2^31 elements ---- */

enum {
    PERIOD = 64,
    IMAGES = 131136
}; /* images repeat after PERIOD: x and y have 32*32*16*131136 = 2^31 + 1048576 elements */

/* Copies a tensor's first images to the end of the batch by doubling. */
static cr_status repeat(struct bench *b, int tensor) {
    const struct cr_backend *backend = b->device->backend;
    const struct cr_tensor  *v       = &b->a.p.tensor[tensor];
    const size_t             image   = v->bytes / (size_t)v->dim[0];
    char                    *to      = b->region + b->at[tensor];
    for (size_t have = PERIOD * image; have < v->bytes; have *= 2)
        CR_TRY(backend->async->move(b->device, CR_STREAM_COMPUTE, to + have, to, CR_MIN(have, v->bytes - have)));
    return backend->sync(b->device);
}

/* Fills the operands of `big` from `small`, whose batch is one period. */
static cr_status spread(struct bench *big, const struct bench *small) {
    for (int t = 0; t < big->a.p.tensors; t++) {
        const struct cr_tensor *v    = &small->a.p.tensor[t];
        char                   *copy = cr_alloc(v->bytes, 1);
        if (!copy) return CR_NO_MEMORY(v->bytes);
        for (int64_t i = 0; i < cr_tensor_elems(v); i++) cr_number_store(v->dtype, copy, i, small->host[t][i]);
        cr_status status = big->device->backend->put(big->device, big->region + big->at[t], copy, v->bytes);
        cr_free(copy);
        if (status == CR_OK && v->dim[0] == PERIOD && big->a.p.tensor[t].dim[0] == IMAGES) status = repeat(big, t);
        if (status != CR_OK) return status;
    }
    return CR_OK;
}

/* Images of the big output must be those of the small one; checked where the slices begin and end. */
static void check_images(struct bench *big, const struct bench *small) {
    static const int64_t    places[] = {0, 63, IMAGES / 2 - 1, IMAGES / 2, IMAGES / 2 + 1, IMAGES - 65, IMAGES - 1};
    const int               out      = big->a.op.out[0];
    const struct cr_tensor *v        = &big->a.p.tensor[out];
    const int64_t           elems    = v->dim[1] * v->dim[2] * v->dim[3];
    const size_t            bytes    = (size_t)elems * cr_dtype_bytes(v->dtype);
    char                   *copy     = cr_alloc(bytes, 1);
    for (size_t i = 0; copy && i < CR_COUNT(places); i++) {
        double      worst = 0;
        const char *from  = big->region + big->at[out] + (size_t)places[i] * bytes;
        if (big->device->backend->get(big->device, copy, from, bytes) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            break;
        }
        for (int64_t e = 0; e < elems; e++) {
            const double want = small->host[out][places[i] % PERIOD * elems + e],
                         got  = cr_number_load(v->dtype, copy, e);
            worst             = CR_MAX(worst, fabs(got - want) / (2e-3 * fabs(want) + 2e-2));
        }
        if (!(worst <= 1))
            TEST_FAIL_("%s: image %lld: %g times the bound", big->kernel->name, (long long)places[i], worst);
    }
    cr_free(copy);
}

/* dw and sums: the result of one period times the number of periods in the batch. `size` is of the order of the sum
 * of magnitudes. */
static void check_total(struct bench *big, const struct bench *small, int tensor, double size) {
    const struct cr_tensor *v      = &big->a.p.tensor[tensor];
    float                  *copy   = cr_alloc(v->bytes, 1);
    const double            factor = (double)IMAGES / PERIOD;
    if (copy && big->device->backend->get(big->device, copy, big->region + big->at[tensor], v->bytes) == CR_OK)
        for (int64_t i = 0; i < cr_tensor_elems(v); i++)
            CHECK_NEAR(copy[i], factor * small->host[tensor][i], 4e-3 * factor * (fabs(small->host[tensor][i]) + size));
    cr_free(copy);
}

static void cross(struct cr_device *device, enum form form) {
    struct shape_of_conv s     = {PERIOD, 32, 16, 16, 3, 1, 1};
    struct bench         small = {.device = device}, big = {.device = device};
    void                *region[2] = {NULL, NULL};
    alone_open(&small.a, form, CR_F16, &s);
    s.N = IMAGES;
    alone_open(&big.a, form, CR_F16, &s);
    small.kernel = find_row(device, &small.a);
    big.kernel   = find_row(device, &big.a);
    place_tensors(&small, false);
    place_tensors(&big, false);
    cr_status status = small.kernel && big.kernel ? CR_OK : CR_ERR_DEVICE;
    if (status == CR_OK) status = device->backend->reserve(device, small.bytes, &region[0]);
    if (status == CR_OK) status = device->backend->reserve(device, big.bytes, &region[1]);
    small.region = region[0];
    big.region   = region[1];
    if (status == CR_OK) {
        fill_host(&small, 11);
        if (form == WGRAD || form == ACT_WGRAD) /* so that 16 bits hold the sum over a slice */
            for (int64_t i = 0; i < cr_tensor_elems(&small.a.p.tensor[small.a.op.in[CR_IN_conv_wgrad_dy]]); i++)
                small.host[small.a.op.in[CR_IN_conv_wgrad_dy]][i] *= 1.0 / 4096;
        status = spread(&big, &small);
    }
    if (status == CR_OK) status = move_tensors(&small, true);
    if (status == CR_OK) status = run_algo(&small, 0);
    if (status == CR_OK) status = move_tensors(&small, false);
    if (status == CR_OK) status = run_algo(&big, 0);
    if (status != CR_OK)
        TEST_FAIL_("%s: %s", form_name[form], cr_error_message());
    else if (form == WGRAD || form == ACT_WGRAD)
        check_total(&big, &small, big.a.op.out[0], 0.05);
    else {
        check_images(&big, &small);
        if (sums_of(&big.a.op) >= 0) check_total(&big, &small, sums_of(&big.a.op), 2e3);
    }
    bench_close(&small);
    bench_close(&big);
}

static void batches_beyond_2_to_the_31(void) {
    NEED_GPU();
    static const enum form forms[] = {PLAIN, WGRAD, DGRAD, SUMS, ACT_WGRAD, DGRAD_ADD_BN};
    struct cr_device      *device  = open_device();
    REQUIRE(device);
    if (device->backend->memory_free(device) < (size_t)32 << 30) {
        cr_device_close(device);
        SKIP("it takes 32 GiB of the GPU's memory");
    }
    for (size_t i = 0; i < CR_COUNT(forms); i++) cross(device, forms[i]);
    cr_device_close(device);
}

TESTS(CASE(every_form_with_every_algo), CASE(add_in_place), CASE(batches_beyond_2_to_the_31))

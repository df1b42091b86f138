/* tests/unit/verification/test_verify_head.c: the bound of the op head in f16. A kernel that rounds its results in
 * between, as GPUs do, is within the bound; a kernel with an error in one of its twelve parts is not. */
#include "core/rng.h"
#include "tests/harness/test.h"
#include "verification/verify.h"

#include <math.h>

enum { N = 6, H = 4, W = 2, P = H * W, C = 8, K = 7 };
enum flaw {
    CORRECT,
    NO_BIAS, /* of the BN */
    NO_ADD,
    NO_RELU,
    SUM_FOR_MEAN, /* in the pooling */
    NO_CLASSIFIER_BIAS,
    NO_SMOOTHING,
    NO_WEIGHT, /* of the loss */
    LABEL_OF_NEXT,
    SKIPS_AN_IMAGE, /* in dw */
    HALF_DB,
    NO_MASK,
    GRADIENT_OF_SUM, /* in the gradient of the pooling */
    NO_RSTD,
    COUNTS_ONE_MORE,
    NO_MEAN_IN_COEFFS,
    FLAWS
};

struct unit {
    struct cr_param_store store;
    struct cr_program     p;
    enum cr_dtype         type;
    /* inputs and outputs in the types of the tensors */
    uint16_t x[N * P * C], add[N * P * C], w[K * C], dx[N * P * C], logits[N * K];
    float    scale_bias[2 * C], mean_rstd[2 * C], b[K], gamma[C], metrics[4], dw[K * C], db[K], dgamma[C], dbeta[C],
        coeffs[3 * C];
    int32_t labels[N];
    double  state[CR_STATE_COUNT];
};

static int tensor(struct unit *u, const char *name, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                  int64_t d3) {
    return cr_tensor_add(&u->p, name, dtype, CR_REGION_POOL, d0, d1, d2, d3);
}

static void unit_open(struct unit *u, enum cr_dtype type) {
    struct cr_op op = cr_op_make(CR_OP_head, CR_NONE);
    *u              = (struct unit){.type = type};
    cr_program_init(&u->p, "head", &u->store);
    op.attr.head        = (struct cr_head_attr){.loss = {.smoothing = 0.1f, .weight = 0.5f}, .bn = {.count = N * P}};
    op.in[CR_IN_head_x] = tensor(u, "x", type, N, H, W, C);
    op.in[CR_IN_head_scale_bias] = tensor(u, "scale_bias", CR_F32, 2, 1, 1, C);
    op.in[CR_IN_head_mean_rstd]  = tensor(u, "mean_rstd", CR_F32, 2, 1, 1, C);
    op.in[CR_IN_head_add]        = tensor(u, "add", type, N, H, W, C);
    op.in[CR_IN_head_w]          = tensor(u, "w", type, K, 1, 1, C);
    op.in[CR_IN_head_b]          = tensor(u, "b", CR_F32, 1, 1, 1, K);
    op.in[CR_IN_head_labels]     = tensor(u, "labels", CR_I32, N, 1, 1, 1);
    op.in[CR_IN_head_state]      = tensor(u, "state", CR_F64, 1, 1, 1, CR_STATE_COUNT);
    op.in[CR_IN_head_gamma]      = tensor(u, "gamma", CR_F32, 1, 1, 1, C);
    op.out[CR_OUT_head_dx]       = tensor(u, "dx", type, N, H, W, C);
    op.out[CR_OUT_head_logits]   = tensor(u, "logits", type, N, 1, 1, K);
    op.out[CR_OUT_head_metrics]  = tensor(u, "metrics", CR_F32, 1, 1, 1, 4);
    op.out[CR_OUT_head_dw]       = tensor(u, "dw", CR_F32, K, 1, 1, C);
    op.out[CR_OUT_head_db]       = tensor(u, "db", CR_F32, 1, 1, 1, K);
    op.out[CR_OUT_head_dgamma]   = tensor(u, "dgamma", CR_F32, 1, 1, 1, C);
    op.out[CR_OUT_head_dbeta]    = tensor(u, "dbeta", CR_F32, 1, 1, 1, C);
    op.out[CR_OUT_head_coeffs]   = tensor(u, "coeffs", CR_F32, 3, 1, 1, C);
    cr_emit(&u->p, &op, "");
}

static double get(const struct unit *u, const uint16_t *data, int64_t i) {
    return cr_number_load(u->type, data, i);
}
/* Rounds to the type, stores and returns the stored value. */
static double put(const struct unit *u, uint16_t *data, int64_t i, double x) {
    cr_number_store(u->type, data, i, x);
    return get(u, data, i);
}
static double rounded(const struct unit *u, double x) {
    return cr_verify_stored(u->type, x);
}

static void fill(struct unit *u, uint64_t seed) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < N * P * C; i++) {
        put(u, u->x, i, (double)cr_rng_normal(&rng));
        put(u, u->add, i, (double)cr_rng_normal(&rng));
    }
    for (int i = 0; i < K * C; i++) put(u, u->w, i, (double)cr_rng_normal(&rng));
    for (int k = 0; k < K; k++) u->b[k] = cr_rng_normal(&rng);
    for (int c = 0; c < C; c++) {
        u->scale_bias[c] = 1 + 0.1f * cr_rng_normal(&rng), u->scale_bias[C + c] = 0.5f * cr_rng_normal(&rng);
        u->mean_rstd[c] = 0.5f * cr_rng_normal(&rng), u->mean_rstd[C + c] = 1.5f + 0.1f * (float)c;
        u->gamma[c] = 1 + 0.2f * cr_rng_normal(&rng);
    }
    for (int n = 0; n < N; n++) u->labels[n] = n == 2 ? -1 : (int32_t)cr_rng_below(&rng, K);
    u->state[CR_STATE_LOSS_SCALE] = 64;
}

/* ---- the kernel under test ---- */

/* Results between the ops, rounded to the type. */
struct between {
    double z[N * P * C], feature[N * C], dlogits[N * K], dz[N * C];
};

static void run_forward(struct unit *u, struct between *m, enum flaw flaw) {
    for (int i = 0; i < N * P * C; i++) {
        const int    c   = i % C;
        const double pre = get(u, u->x, i) * (double)u->scale_bias[c] +
                           (flaw == NO_BIAS ? 0 : (double)u->scale_bias[C + c]) +
                           (flaw == NO_ADD ? 0 : get(u, u->add, i));
        m->z[i] = rounded(u, pre < 0 && flaw != NO_RELU ? 0 : pre);
    }
    for (int f = 0; f < N * C; f++) {
        double sum = 0;
        for (int p = 0; p < P; p++) sum += m->z[(f / C * P + p) * C + f % C];
        m->feature[f] = rounded(u, flaw == SUM_FOR_MEAN ? sum : sum / P);
    }
    for (int i = 0; i < N * K; i++) {
        double sum = flaw == NO_CLASSIFIER_BIAS ? 0 : (double)u->b[i % K];
        for (int c = 0; c < C; c++) sum += m->feature[i / K * C + c] * get(u, u->w, i % K * C + c);
        put(u, u->logits, i, sum);
    }
}

static void run_loss(struct unit *u, struct between *m, enum flaw flaw) {
    const double smoothing = flaw == NO_SMOOTHING ? 0 : (double)0.1f, weight = flaw == NO_WEIGHT ? 1 : 0.5;
    double       total = 0, counts[3] = {flaw == COUNTS_ONE_MORE ? 1 : 0};
    for (int n = 0; n < N; n++) counts[0] += u->labels[n] >= 0;
    for (int n = 0; n < N; n++) {
        const int label  = u->labels[flaw == LABEL_OF_NEXT ? (n + 1) % N : n];
        double    sum    = 0;
        int       before = 0;
        for (int k = 0; k < K; k++) sum += exp(get(u, u->logits, n * K + k));
        for (int k = 0; k < K; k++) {
            const double l = get(u, u->logits, n * K + k), own = label < 0 ? 0 : get(u, u->logits, n * K + label),
                         target = smoothing / K + (k == label ? 1 - smoothing : 0);
            before += l > own || (l == own && k < label);
            if (label >= 0) total -= target * (l - log(sum));
            m->dlogits[n * K + k] =
                label < 0 ? 0 : rounded(u, 64 * weight / fmax(counts[0], 1) * (exp(l) / sum - target));
        }
        counts[1] += label >= 0 && before < 1, counts[2] += label >= 0 && before < 5;
    }
    u->metrics[0] = (float)total;
    for (int i = 0; i < 3; i++) u->metrics[1 + i] = (float)counts[i];
}

static void run_classifier(struct unit *u, struct between *m, enum flaw flaw) {
    for (int i = 0; i < K * C; i++) {
        double sum = 0;
        for (int n = flaw == SKIPS_AN_IMAGE; n < N; n++) sum += m->dlogits[n * K + i / C] * m->feature[n * C + i % C];
        u->dw[i] = (float)sum;
    }
    for (int k = 0; k < K; k++) {
        double sum = 0;
        for (int n = 0; n < N; n++) sum += m->dlogits[n * K + k];
        u->db[k] = (float)(flaw == HALF_DB ? sum / 2 : sum);
    }
    for (int f = 0; f < N * C; f++) {
        double sum = 0;
        for (int k = 0; k < K; k++) sum += m->dlogits[f / C * K + k] * get(u, u->w, k * C + f % C);
        m->dz[f] = rounded(u, rounded(u, sum) / (flaw == GRADIENT_OF_SUM ? 1 : P));
    }
}

static void run_bn(struct unit *u, const struct between *m, enum flaw flaw) {
    double sums[2 * C] = {0};
    for (int i = 0; i < N * P * C; i++) {
        const int    c = i % C;
        const double g = put(u, u->dx, i, m->z[i] > 0 || flaw == NO_MASK ? m->dz[i / (P * C) * C + c] : 0);
        sums[c] += g;
        sums[C + c] +=
            g * (get(u, u->x, i) - (double)u->mean_rstd[c]) * (flaw == NO_RSTD ? 1 : (double)u->mean_rstd[C + c]);
    }
    for (int c = 0; c < C; c++) {
        const double rstd = (double)u->mean_rstd[C + c], s = (double)u->gamma[c] * rstd, X = sums[C + c] / (N * P);
        u->dbeta[c] = (float)sums[c], u->dgamma[c] = (float)sums[C + c];
        u->coeffs[c]     = (float)s;
        u->coeffs[C + c] = (float)(-s * rstd * X);
        u->coeffs[2 * C + c] =
            (float)(s * ((flaw == NO_MEAN_IN_COEFFS ? 0 : (double)u->mean_rstd[c]) * rstd * X - sums[c] / (N * P)));
    }
}

static struct cr_verify_result run(struct unit *u, struct cr_device *cpu, enum flaw flaw) {
    static struct between      m;
    const struct cr_step_block step                = {0};
    const struct cr_verify_io  io                  = {.in = {[CR_IN_head_x]          = u->x,
                                                             [CR_IN_head_scale_bias] = u->scale_bias,
                                                             [CR_IN_head_mean_rstd]  = u->mean_rstd,
                                                             [CR_IN_head_add]        = u->add,
                                                             [CR_IN_head_w]          = u->w,
                                                             [CR_IN_head_b]          = u->b,
                                                             [CR_IN_head_labels]     = u->labels,
                                                             [CR_IN_head_state]      = u->state,
                                                             [CR_IN_head_gamma]      = u->gamma}};
    const void *const          outs[CR_OP_OUT_MAX] = {
                 [CR_OUT_head_dx] = u->dx,       [CR_OUT_head_logits] = u->logits, [CR_OUT_head_metrics] = u->metrics,
                 [CR_OUT_head_dw] = u->dw,       [CR_OUT_head_db] = u->db,         [CR_OUT_head_dgamma] = u->dgamma,
                 [CR_OUT_head_dbeta] = u->dbeta, [CR_OUT_head_coeffs] = u->coeffs};
    struct cr_verify_result r = {0};
    run_forward(u, &m, flaw);
    run_loss(u, &m, flaw);
    run_classifier(u, &m, flaw);
    run_bn(u, &m, flaw);
    if (cr_verify_op(cpu, &u->p, &u->p.op[0], CR_MATH_F32, &step, &io, outs, &r) != CR_OK)
        TEST_FAIL_("%s", cr_error_message());
    return r;
}

static void check_type(enum cr_dtype type) {
    const struct cr_device_options options = {.ref_only = true};
    struct cr_device              *cpu     = NULL;
    static struct unit             u;
    if (cr_device_open(CR_DEVICE_CPU, &options, &cpu) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    unit_open(&u, type);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fill(&u, seed);
        const struct cr_verify_result r = run(&u, cpu, CORRECT);
        if (!r.ok)
            TEST_FAIL_("seed %d: output %d, element %d: %g instead of %g, bound %g", (int)seed, r.slot, (int)r.index,
                       r.got, r.want, r.bound);
        for (int flaw = CORRECT + 1; flaw < FLAWS; flaw++)
            if (run(&u, cpu, (enum flaw)flaw).ok) TEST_FAIL_("seed %d: error %d was not detected", (int)seed, flaw);
    }
    cr_program_free(&u.p);
    cr_device_close(cpu);
}

static void rounded_in_between(void) {
    check_type(CR_F16);
    check_type(CR_BF16);
}

/* With 10^4 as scale, z overflows in f16: nothing that depends on it is compared. */
static void overflow(void) {
    const struct cr_device_options options = {.ref_only = true};
    struct cr_device              *cpu     = NULL;
    static struct unit             u;
    if (cr_device_open(CR_DEVICE_CPU, &options, &cpu) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    unit_open(&u, CR_F16);
    fill(&u, 3);
    for (int c = 0; c < C; c++) u.scale_bias[c] = 1e5f;
    CHECK(run(&u, cpu, CORRECT).ok);
    cr_program_free(&u.p);
    cr_device_close(cpu);
}

TESTS(CASE(rounded_in_between), CASE(overflow))

/* tests/unit/compiler/test_conv_fusion.c: fusion of convolutions with neighbouring ops. The choice has the least total
 * cost of all programs that the options allow; all of them are built and must be valid. Fused forms of the shipped
 * networks: tests/guard. Equal results are checked in test_fusion_networks.c. */
#include "compiler/fusion/conv_fusion.h"
#include "tests/harness/fusion_forms.h"

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* A number from the form and shapes of the op, independent of tensor names. */
static uint64_t op_hash(const struct cr_program *p, const struct cr_op *op, uint64_t seed) {
    uint64_t h = mix(seed, (uint64_t)op->kind);
    for (int s = 0; s < CR_OP_IN_MAX + CR_OP_OUT_MAX; s++) {
        int id = s < CR_OP_IN_MAX ? op->in[s] : op->out[s - CR_OP_IN_MAX];
        h      = mix(h, id >= 0);
        for (int d = 0; d < 4 && id >= 0; d++) h = mix(h, (uint64_t)p->tensor[id].dim[d]);
        if (id >= 0) h = mix(h, (uint64_t)p->tensor[id].dtype);
    }
    return h;
}

struct artificial {
    uint64_t seed;
    int      accepted_eighths; /* of 8 fused forms that are accepted */
    int64_t  estimates;
    int      fail_at; /* the n-th cost estimate fails */
};

/* True when a convolution does more than its own work. */
static bool no_fused_conv(void *self, const struct cr_program *p, const struct cr_op *op) {
    return !is_fused_conv(op);
}

static bool hashed_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct artificial *v = self;
    return !is_fused_conv(op) || (int)(op_hash(p, op, v->seed) >> 20 & 7) < v->accepted_eighths;
}

static cr_status hashed_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct artificial *v = self;
    *seconds             = 1e-6 * (double)(1 + (op_hash(p, op, v->seed ^ 77) >> 20) % 1000);
    if (++v->estimates == v->fail_at) return CR_FAIL(CR_ERR_DEVICE, "the clock stopped");
    return CR_OK;
}

static struct cr_cost_model hashed(struct artificial *v) {
    return (struct cr_cost_model){.self = v, .alignment = 64, .accepts = hashed_accepts, .cost = hashed_cost};
}

static int64_t total_ps(const struct cr_program *p, const struct cr_cost_model *cost_model) {
    int64_t sum = 0;
    for (int i = 0; i < p->ops; i++) {
        double seconds = 0;
        if (cost_model->cost(cost_model->self, p, &p->op[i], &seconds) != CR_OK) return -1;
        sum += llround(1e12 * seconds);
    }
    return sum;
}

/* Builds the program of the choices in `chosen` from `plain`, and adds up its cost. */
static int64_t cost_of_choice(const struct cr_program *plain, const struct cr_cost_model *cost_model,
                              const int *chosen) {
    struct cr_program      p;
    struct cr_edit         edit;
    struct cr_conv_fusions j;
    int64_t                sum = -1;
    if (cr_program_copy(plain, &p) != CR_OK) return -1;
    if (cr_edit_open(&edit, &p, cost_model) == CR_OK && cr_conv_fusions_find(&j, &edit) == CR_OK) {
        for (int i = 0; i < j.candidates; i++) j.candidate[i].chosen = chosen[i];
        cr_conv_fusions_apply(&j);
        cr_conv_fusions_close(&j);
        CHECK_STATUS(cr_edit_finish(&edit), CR_OK);
        CHECK_STATUS(cr_program_check(&p), CR_OK);
        sum = total_ps(&p, cost_model);
    }
    cr_edit_close(&edit);
    cr_program_free(&p);
    return sum;
}

enum { CANDIDATES_MAX = 32 };

struct enumeration { /* over all choices of one path; the other candidates stay unchanged */
    const struct cr_program      *plain;
    const struct cr_cost_model   *cost_model;
    const struct cr_conv_fusions *j;
    int                           chosen[CANDIDATES_MAX];
    int64_t                       least;
    int                           tried;
};

static void enumerate_from(struct enumeration *w, int candidate, int before) {
    if (candidate == CR_NONE) {
        int64_t cost = cost_of_choice(w->plain, w->cost_model, w->chosen);
        w->tried++;
        if (w->least < 0 || cost < w->least) w->least = cost;
        return;
    }
    const struct cr_fusion_candidate *s = &w->j->candidate[candidate],
                                     *b = before == CR_NONE ? NULL : &w->j->candidate[before];
    for (int k = 0; k < s->options; k++) {
        if (b && !cr_conv_fusion_fits(b, &b->option[w->chosen[before]], &s->option[k])) continue;
        w->chosen[candidate] = k;
        enumerate_from(w, s->next, candidate);
    }
    w->chosen[candidate] = s->chosen;
}

static double combinations(const struct cr_conv_fusions *j, int candidate) {
    double n = 1;
    for (int i = candidate; i != CR_NONE; i = j->candidate[i].next) n *= j->candidate[i].options;
    return n;
}

/* Compares the choice with every other combination of each path, by the cost of whole programs. Returns the number of
 * programs. */
static int try_all(const struct cr_program *plain, const struct cr_cost_model *cost_model, int *longest) {
    OWNED(program)         p = {0};
    struct cr_edit         edit;
    struct cr_conv_fusions j;
    struct enumeration     w = {.plain = plain, .cost_model = cost_model, .j = &j};
    CHECK_STATUS(cr_program_copy(plain, &p), CR_OK);
    CHECK_STATUS(cr_edit_open(&edit, &p, cost_model), CR_OK);
    CHECK_STATUS(cr_conv_fusions_find(&j, &edit), CR_OK);
    CHECK_STATUS(cr_conv_fusions_choose(&j), CR_OK);
    CHECK(j.candidates <= CANDIDATES_MAX);
    for (int i = 0; i < j.candidates; i++) w.chosen[i] = j.candidate[i].chosen;
    int64_t best = cost_of_choice(plain, cost_model, w.chosen);
    for (int i = 0; i < j.candidates; i++) {
        int length = 1;
        for (int k = j.candidate[i].next; k != CR_NONE; k = j.candidate[k].next) length++;
        if (j.candidate[i].has_previous || combinations(&j, i) > 2000 || combinations(&j, i) < 2) continue;
        *longest = CR_MAX(*longest, length);
        w.least  = -1;
        enumerate_from(&w, i, CR_NONE);
        CHECK_INT(w.least, best);
    }
    /* The cost that the pass computed equals the cost of the programs. */
    CHECK_INT(total_ps(plain, cost_model) - best, j.plain_ps - j.chosen_ps);
    cr_conv_fusions_close(&j);
    cr_edit_close(&edit);
    return w.tried;
}

/* The step of a network with fused patterns and unfused convolutions. */
static cr_status plain_program(struct bench_model *b, enum cr_dtype real, enum cr_program_kind kind,
                               struct cr_program *p) {
    const struct cr_cost_model patterns = {.alignment = 64, .accepts = no_fused_conv};
    cr_model_set_real(&b->model, real);
    CR_TRY(cr_model_program(&b->model, b->config, kind, 2, p));
    return cr_pass_fuse(p, &patterns);
}

/* Two stages: two blocks, one with a projection (or option A). */
#define TINY "model.arch=custom", "model.classes=10", "model.depths=2,1"
static const char *const nets[][7] = {
    {TINY, "model.widths=8,16", "model.stem=cifar", "model.shortcut=B", "model.block=basic"},
    {TINY, "model.widths=2,4", "model.stem=cifar", "model.shortcut=A", "model.block=bottleneck"},
    {TINY, "model.widths=2,4", "model.stem=imagenet", "model.shortcut=B", "model.block=bottleneck"},
};

TEST(minimum_over_all_programs) {
    int tried = 0, longest = 0;
    for (int round = 0; round < (TEST_SANITIZED ? 12 : 60); round++) {
        struct artificial    v          = {.seed = (uint64_t)round, .accepted_eighths = 1 + round % 5};
        struct cr_cost_model cost_model = hashed(&v);
        OWNED(bench_model)   b          = {0};
        OWNED(program)       p          = {0};
        REQUIRE_OK(bench_open(&b, nets[round % 3], 7, 32));
        REQUIRE_OK(plain_program(&b, round & 1 ? CR_F16 : CR_F32, CR_PROGRAM_STEP, &p));
        tried += try_all(&p, &cost_model, &longest);
    }
    CHECK(tried > (TEST_SANITIZED ? 200 : 1000));
    CHECK_INT(longest, 4); /* a CIFAR stem and the bottleneck block after it */
}

/* ---- any cost model, any program ---- */

TEST(failing_cost_estimate_is_reported) {
    struct artificial    v          = {.seed = 5, .accepted_eighths = 8, .fail_at = 20};
    struct cr_cost_model cost_model = hashed(&v);
    OWNED(bench_model)   b          = {0};
    OWNED(program)       p          = {0};
    REQUIRE_OK(bench_open(&b, nets[0], 7, 32));
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 2, &p));
    CHECK_STATUS(cr_pass_fuse(&p, &cost_model), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "the clock stopped");
    CHECK_INT(v.estimates, 20); /* and no cost estimate after the failed one */
}

TEST(report_names_chosen_fusions) {
    unsigned             known      = S;
    struct cr_cost_model cost_model = {.self = &known, .alignment = 64, .accepts = accepts_features, .cost = flat_cost};
    OWNED(bench_model)   b          = {0};
    OWNED(program)       p          = {0};
    struct cr_text       text       = {0};
    REQUIRE_OK(bench_open(&b, nets[0], 7, 32));
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 2, &p));
    int ops = p.ops, tensors = p.tensors;
    REQUIRE_OK(cr_fuse_report(&p, &cost_model, &text));
    CHECK_HAS(text.data, "layer2.0.conv1               S               2  11000000.00  10000000.00\n");
    CHECK_HAS(text.data, " 88000000.00  80000000.00\n"); /* eight convolutions */
    CHECK_HAS(text.data, "S: BN sums of the output");    /* the table explains the letters */
    CHECK(p.ops == ops && p.tensors == tensors);
    cr_text_free(&text);
    text  = (struct cr_text){0};
    known = 0;
    REQUIRE_OK(cr_fuse_report(&p, &cost_model, &text));
    CHECK_STR(text.data, "no convolution has a fusion option on this device\n");
    cr_text_free(&text);
}

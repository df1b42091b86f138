/* tests/unit/pruning/test_channel_groups.c: the traced groups of channels equal those that measurements of random
 * networks give. Every filter is 0, so that a value reaches other layers only through sums, poolings, factors and
 * shortcuts. Then one filter, bias or BN shift after the other is changed, and every channel of every tensor that
 * changes belongs to the same unit. With random weights, a unit whose filters, scales and shifts are 0 has the
 * value 0 in every tensor, whatever the filters that read it hold. */
#include "model/model.h"
#include "pruning/channel_groups.h"
#include "tests/harness/random_network.h"
#include "tests/harness/reference_run.h"

enum { CLASSES = 3, BATCH = 1, NETWORKS = 50 };

struct measured {
    struct ref_run run;
    int           *first; /* [tensors] number of a tensor's first channel */
    int           *set;   /* [channels of all tensors] parent in a disjoint-set forest */
    void         **base;  /* [tensors] values before a change */
};

static int find(const int *set, int i) {
    while (set[i] != i) i = set[i];
    return i;
}

static void merge(int *set, int a, int b) {
    a                 = find(set, a);
    b                 = find(set, b);
    set[CR_MAX(a, b)] = CR_MIN(a, b);
}

static bool has_filter(const struct cr_op *op) {
    return op->kind == CR_OP_conv || op->kind == CR_OP_dense;
}

static bool is_store(const struct measured *m, int tensor) {
    return m->run.p.tensor[tensor].region == CR_REGION_STORE;
}

static void set_all(struct measured *m, int tensor, double x) {
    for (int64_t i = 0; i < cr_tensor_elems(&m->run.p.tensor[tensor]); i++) ref_set(&m->run, tensor, i, x);
}

/* Filters 0, shifts 1, biases 0.25; images of one colour would do as well. */
static cr_status prepare(struct measured *m) {
    const struct cr_program *p     = &m->run.p;
    int                      count = 0;
    CR_ALLOC(m->first, (size_t)p->tensors);
    CR_ALLOC(m->base, (size_t)p->tensors);
    for (int t = 0; t < p->tensors; t++) {
        m->first[t] = count;
        count += (int)p->tensor[t].dim[3];
        m->base[t] = cr_alloc(p->tensor[t].bytes, 1);
        if (!m->base[t]) return CR_NO_MEMORY(p->tensor[t].bytes);
        if (!is_store(m, t)) continue;
        const enum cr_param_role role = p->store->param[p->tensor[t].param].role;
        set_all(m, t,
                role == CR_ROLE_CONV || role == CR_ROLE_DENSE_WEIGHT || role == CR_ROLE_MEAN ? 0
                : role == CR_ROLE_DENSE_BIAS || role == CR_ROLE_CHANNEL_CONV                 ? 0.25
                                                                                             : 1);
    }
    CR_ALLOC(m->set, (size_t)count);
    for (int i = 0; i < count; i++) m->set[i] = i;
    for (int64_t i = 0; i < cr_tensor_elems(&p->tensor[p->images]); i++) ref_set(&m->run, p->images, i, 200);
    CR_TRY(ref_exec(&m->run, 0, p->ops));
    for (int t = 0; t < p->tensors; t++) memcpy(m->base[t], ref_data(&m->run, t), p->tensor[t].bytes);
    return CR_OK;
}

/* Merges all channels that differ from the values before. */
static void merge_changed(struct measured *m, int with) {
    const struct cr_program *p = &m->run.p;
    for (int i = 0; i < p->ops; i++) {
        const int    t     = p->op[i].out[0];
        const size_t bytes = p->tensor[t].bytes, elem = bytes / (size_t)cr_tensor_elems(&p->tensor[t]);
        const char  *now = ref_data(&m->run, t), *before = m->base[t];
        if (p->op[i].kind == CR_OP_loss || t == p->logits) continue;
        for (size_t at = 0; at < bytes; at += elem)
            if (memcmp(now + at, before + at, elem) != 0)
                merge(m->set, with, m->first[t] + (int)(at / elem % (size_t)p->tensor[t].dim[3]));
    }
}

/* Runs the ops from `from` on. The convolutions after it compute 0 whatever they read. */
static cr_status run_from(struct measured *m, int from) {
    for (int i = from; i < m->run.p.ops; i++)
        if (i == from || m->run.p.op[i].kind != CR_OP_conv) CR_TRY(ref_exec(&m->run, i, i + 1));
    return CR_OK;
}

/* Changes output k of a tensor of the parameter store that op `at` reads, and merges what changes with `with`. */
static cr_status change(struct measured *m, int at, int tensor, int64_t k, int with) {
    const struct cr_tensor *t     = &m->run.p.tensor[tensor];
    const int64_t           count = t->dim[0] > 1 || t->dim[1] > 1 ? t->dim[1] * t->dim[2] * t->dim[3] : 1;
    for (int64_t i = 0; i < count; i++) ref_set(&m->run, tensor, k * count + i, 0.5);
    CR_TRY(run_from(m, at));
    merge_changed(m, with);
    for (int i = 0; i < m->run.p.tensors; i++) memcpy(ref_data(&m->run, i), m->base[i], m->run.p.tensor[i].bytes);
    return CR_OK;
}

static cr_status measure(struct measured *m) {
    const struct cr_program *p = &m->run.p;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (op->kind == CR_OP_bn_scale_bias) {
            const int beta = op->in[CR_IN_bn_scale_bias_beta];
            for (int64_t k = 0; k < p->tensor[beta].dim[3]; k++) CR_TRY(change(m, i, beta, k, m->first[beta] + (int)k));
        }
        if (!has_filter(op) || op->out[0] == p->logits) continue;
        for (int64_t k = 0; k < p->tensor[op->in[1]].dim[0]; k++) {
            CR_TRY(change(m, i, op->in[1], k, m->first[op->out[0]] + (int)k));
            if (op->kind == CR_OP_dense) CR_TRY(change(m, i, op->in[CR_IN_dense_b], k, m->first[op->out[0]] + (int)k));
        }
    }
    return CR_OK;
}

/* ---- the comparison ---- */

static bool mixes_channels(const struct measured *m, int set) {
    const struct cr_program *p = &m->run.p;
    for (int i = 0; i < p->ops; i++) {
        int       count = 0;
        const int t     = p->op[i].out[0];
        for (int64_t c = 0; c < p->tensor[t].dim[3]; c++) count += find(m->set, m->first[t] + (int)c) == set;
        if (count > 1) return true;
    }
    return false;
}

static int compared; /* channels of all networks */
static int staying;  /* of these, channels that cannot be removed */

/* Two channels of activations are of one traced unit exactly when they are of one measured set. */
static void compare(const struct measured *m, const struct cr_channel_groups *g, const char *name) {
    const struct cr_program *p      = &m->run.p;
    int                     *set_of = cr_alloc((size_t)g->units, sizeof *set_of), wrong = 0;
    REQUIRE(set_of);
    for (int i = 0; i < g->units; i++) set_of[i] = CR_NONE;
    for (int i = 0; i < p->ops; i++) {
        const int t = p->op[i].out[0];
        if (t == p->logits || p->op[i].kind == CR_OP_loss || p->op[i].kind == CR_OP_normalize ||
            p->op[i].kind == CR_OP_zero)
            continue;
        for (int64_t c = 0; c < p->tensor[t].dim[3]; c++) {
            const int unit = cr_channel_unit(g, t, CR_AXIS_C, c), set = find(m->set, m->first[t] + (int)c);
            if (p->op[i].kind == CR_OP_pad_shortcut && set == m->first[t] + (int)c) continue; /* a zero channel */
            compared++;
            if (g->group_of[unit] == CR_NONE) {
                staying++;
                wrong += !mixes_channels(m, set);
                continue;
            }
            if (set_of[unit] == CR_NONE) set_of[unit] = set;
            wrong += set_of[unit] != set || mixes_channels(m, set);
        }
    }
    for (int a = 0; a < g->units; a++) /* two units are not one set */
        for (int b = 0; b < a; b++) wrong += set_of[a] != CR_NONE && set_of[a] == set_of[b];
    if (wrong) TEST_FAIL_("%s: %d channels differ", name, wrong);
    cr_free(set_of);
}

/* Every index that reads or writes a channel is of the unit of the channel. */
static void check_filters(const struct cr_channel_groups *g) {
    const struct cr_program *p = g->program;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (!has_filter(op)) continue;
        const struct cr_tensor *w     = &p->tensor[op->in[1]];
        int                     wrong = 0;
        for (int64_t k = 0; k < w->dim[0]; k++)
            wrong += cr_channel_unit(g, op->in[1], CR_AXIS_K, k) != cr_channel_unit(g, op->out[0], CR_AXIS_C, k);
        for (int64_t c = 0; c < w->dim[3]; c++)
            wrong += cr_channel_unit(g, op->in[1], CR_AXIS_C, c) != cr_channel_unit(g, op->in[0], CR_AXIS_C, c);
        CHECK_INT(wrong, 0);
    }
}

static cr_status open_network(const char *const *keys, int count, int size, const struct cr_config **config,
                              struct cr_model *model, struct cr_program *program) {
    CR_TRY(cr_config_open(config, NULL, keys, count));
    CR_TRY(cr_model_open(*config, CLASSES, size, size, model));
    return cr_model_program(model, *config, CR_PROGRAM_EVAL, BATCH, program);
}

/* ---- channels that are 0 ---- */

static void draw_weights(struct measured *m, uint64_t seed) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_TEST, 77, 0);
    for (int t = 0; t < m->run.p.tensors; t++) {
        if (!is_store(m, t)) continue;
        const enum cr_param_role role = m->run.p.store->param[m->run.p.tensor[t].param].role;
        for (int64_t i = 0; i < cr_tensor_elems(&m->run.p.tensor[t]); i++) {
            const double x = 0.5 * (double)cr_rng_normal(&rng);
            ref_set(&m->run, t, i, role == CR_ROLE_VAR || role == CR_ROLE_GAMMA ? fabs(x) + 0.3 : x);
        }
    }
}

/* Sets the slices of a unit to 0: those that write it, or those of filters that read it. */
static void zero_unit(struct measured *m, const struct cr_channel_groups *g, int unit, bool readers) {
    for (int t = 0; t < m->run.p.tensors; t++) {
        const struct cr_tensor *x = &m->run.p.tensor[t];
        if (!is_store(m, t)) continue;
        const enum cr_param_role role   = m->run.p.store->param[x->param].role;
        const bool               matrix = role == CR_ROLE_CONV || role == CR_ROLE_DENSE_WEIGHT;
        const int64_t            inner  = x->dim[1] * x->dim[2] * x->dim[3];
        if (cr_param_is_running(role) || (readers && !matrix)) continue;
        const enum cr_channel_axis axis = matrix && !readers ? CR_AXIS_K : CR_AXIS_C;
        for (int64_t i = 0; i < cr_tensor_elems(x); i++)
            if (cr_channel_unit(g, t, axis, axis == CR_AXIS_K ? i / inner : i % x->dim[3]) == unit)
                ref_set(&m->run, t, i, 0);
    }
}

/* Number of elements of the unit's channels, in all activations, that are not 0. */
static int64_t nonzeros(const struct measured *m, const struct cr_channel_groups *g, int unit) {
    int64_t count = 0;
    for (int i = 0; i < m->run.p.ops; i++) {
        const int               t = m->run.p.op[i].out[0];
        const struct cr_tensor *x = &m->run.p.tensor[t];
        if (m->run.p.op[i].kind == CR_OP_bn_scale_bias || m->run.p.op[i].kind == CR_OP_loss) continue;
        for (int64_t k = 0; k < cr_tensor_elems(x); k++)
            if (cr_channel_unit(g, t, CR_AXIS_C, k % x->dim[3]) == unit) count += ref_at(&m->run, t, k) != 0;
    }
    return count;
}

static int zeroed; /* units of all networks */

static cr_status check_zeros(struct measured *m, const struct cr_channel_groups *g, uint64_t seed, const char *name) {
    const struct cr_program *p   = &m->run.p;
    struct cr_rng            rng = cr_rng_make(seed, CR_RNG_TEST, 78, 0);
    double                   before[CLASSES];
    for (int n = 0; n < 8; n++) {
        const int unit = (int)cr_rng_below(&rng, (uint64_t)g->units);
        if (g->group_of[unit] == CR_NONE) continue;
        draw_weights(m, seed);
        CR_TRY(ref_exec(&m->run, 0, p->ops));
        const int64_t usual = nonzeros(m, g, unit);
        zero_unit(m, g, unit, false);
        CR_TRY(ref_exec(&m->run, 0, p->ops));
        const int64_t left = nonzeros(m, g, unit);
        if (!usual || left)
            TEST_FAIL_("%s: unit %d: %lld of %lld are not 0", name, unit, (long long)left, (long long)usual);
        for (int k = 0; k < CLASSES; k++) before[k] = ref_at(&m->run, p->logits, k);
        zero_unit(m, g, unit, true);
        CR_TRY(ref_exec(&m->run, 0, p->ops));
        for (int k = 0; k < CLASSES; k++)
            if (before[k] != ref_at(&m->run, p->logits, k)) TEST_FAIL_("%s: unit %d: a reader matters", name, unit);
        zeroed++;
    }
    return CR_OK;
}

static int excited, deep, by_option[3]; /* networks of each kind */

static void count_kinds(const struct cr_config *c) {
    excited += c->model.excitation;
    deep += c->model.stem == CR_STEM_DEEP;
    by_option[c->model.shortcut == CR_SHORTCUT_A ? 0 : c->model.shortcut == CR_SHORTCUT_B ? 1 : 2]++;
}

static void check_network(const char *const *keys, int count, int size, uint64_t seed, const char *name) {
    const struct cr_config        *config;
    struct cr_model                model;
    struct cr_channel_groups       groups;
    struct measured                m       = {0};
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    REQUIRE_OK(open_network(keys, count, size, &config, &model, &m.run.p));
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &m.run.device));
    REQUIRE_OK(cr_channel_groups_trace(&m.run.p, &groups));
    m.run.store = model.store;
    REQUIRE_OK(ref_bind(&m.run));
    REQUIRE_OK(prepare(&m));
    REQUIRE_OK(measure(&m));
    compare(&m, &groups, name);
    check_filters(&groups);
    REQUIRE_OK(check_zeros(&m, &groups, seed, name));
    count_kinds(config);
    cr_channel_groups_free(&groups);
    for (int t = 0; t < m.run.p.tensors; t++) cr_free(m.base[t]);
    cr_free(m.base);
    cr_free(m.first);
    cr_free(m.set);
    ref_close(&m.run); /* with the parameter store, which it shares with the model */
    model.store = (struct cr_param_store){0};
    cr_model_close(&model);
    cr_config_close(config);
}

static void random_networks(void) {
    for (uint64_t i = 0; i < NETWORKS; i++) {
        struct random_network n;
        random_network(i, 1, &n);
        check_network(n.keys, RANDOM_KEYS, n.size, i, n.name);
    }
    CHECK(compared > 10000);
    CHECK(staying > 100 && staying < compared / 2);
    CHECK(zeroed > 100 && excited >= 10 && deep >= 10);
    for (int k = 0; k < 3; k++) CHECK(by_option[k] >= 10);
}

/* ---- groups of known networks ---- */

static const struct cr_channel_group *group_named(const struct cr_channel_groups *g, const char *name) {
    for (int i = 0; i < g->groups; i++)
        if (strcmp(g->group[i].name, name) == 0) return &g->group[i];
    return NULL;
}

struct want {
    const char *name;
    int         units;
    bool        halves;
};

static void check_groups(const char *const *keys, int count, const struct want *want, int groups) {
    const struct cr_config  *config;
    struct cr_model          model;
    struct cr_program        program;
    struct cr_channel_groups g;
    REQUIRE_OK(open_network(keys, count, 32, &config, &model, &program));
    REQUIRE_OK(cr_channel_groups_trace(&program, &g));
    CHECK_INT(g.groups, groups);
    for (int i = 0; i < groups; i++) {
        const struct cr_channel_group *found = group_named(&g, want[i].name);
        if (!found) TEST_FAIL_("no group %s", want[i].name);
        CHECK_INT(found ? found->units : 0, want[i].units);
        CHECK(found && found->halves == want[i].halves);
    }
    cr_channel_groups_free(&g);
    cr_program_free(&program);
    cr_model_close(&model);
    cr_config_close(config);
}

/* ResNet-8 with shortcuts of option A: layer1 has 16 channels, which layer2 and layer3 share; layer2 adds 16. */
static void option_a(void) {
    static const char *const keys[] = {"model.arch=custom", "model.depths=1,1,1", "model.widths=16,32,64",
                                       "model.stem=cifar", "model.shortcut=A"};
    static const struct want want[] = {{"conv1", 16, false},          {"layer1.0.conv1", 16, false},
                                       {"layer2.0.conv1", 32, false}, {"layer2.0.conv2", 16, true},
                                       {"layer3.0.conv1", 64, false}, {"layer3.0.conv2", 32, true}};
    check_groups(keys, CR_COUNT(keys), want, CR_COUNT(want));
}

/* The inner channels of grouped convolutions stay: 1 stem and 4 stages remain. */
static void grouped_convolutions(void) {
    static const char *const keys[] = {"model.arch=resnext50_32x4d"};
    static const struct want want[] = {{"conv1", 64, false},
                                       {"layer1.0.conv3", 256, false},
                                       {"layer2.0.conv3", 512, false},
                                       {"layer3.0.conv3", 1024, false},
                                       {"layer4.0.conv3", 2048, false}};
    check_groups(keys, CR_COUNT(keys), want, CR_COUNT(want));
}

TESTS({"random_networks", random_networks}, {"option_a", option_a}, {"grouped_convolutions", grouped_convolutions})

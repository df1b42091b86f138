/* tests/unit/runtime/test_chains.c: chains of ops, with a chain kernel on the CPU that launches its ops' kernels: which
 * chains the pass chooses, the lifetimes and workspaces of their tensors, and how the executor runs them. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "device/kernel.h"
#include "tests/harness/network_support.h"
#include "tests/harness/test.h"

#include <string.h>

enum { FIRST = 4, OPS = 6, WORKSPACE = 123456 };

/* ---- a chain kernel ---- */

static struct {
    int    launches, prepared;
    double together;
} fake;

struct copies {
    struct cr_call call[OPS];
};

static int match(const struct cr_device *device, const struct cr_program *p, int first) {
    (void)device, (void)p;
    return first == FIRST ? OPS : 0;
}
static size_t workspace(const struct cr_device *device, const struct cr_program *p, int first, int ops) {
    (void)device, (void)ops;
    return p->op[first].workspace >= 0 ? WORKSPACE : 0;
}
static cr_status prepare(struct cr_device *device, const struct cr_call *const *call, int ops, void **prepared) {
    struct copies *c;
    (void)device;
    CR_ALLOC(c, 1);
    for (int i = 0; i < ops; i++) c->call[i] = *call[i];
    fake.prepared++;
    *prepared = c;
    return CR_OK;
}
static cr_status launch(struct cr_device *device, void *prepared) {
    struct copies *c = prepared;
    fake.launches++;
    for (int i = 0; i < OPS; i++) CR_TRY(device->kernels[c->call[i].op->kernel]->launch(device, &c->call[i]));
    return CR_OK;
}
static void release(struct cr_device *device, void *prepared) {
    (void)device;
    if (prepared) fake.prepared--;
    cr_free(prepared);
}
static const struct cr_chain_kernel kernel = {
    .name = "fake", .match = match, .workspace = workspace, .prepare = prepare, .launch = launch, .release = release};
static const struct cr_chain_kernel *const kernels[] = {&kernel, NULL};

static cr_status chain_cost(void *self, const struct cr_program *p, int first, struct cr_chain_cost *out) {
    *out = (struct cr_chain_cost){0};
    if (cr_chain_find(self, p, first, 0, &out->ops))
        out->kernel = "fake", out->together = fake.together, out->apart = 1e-3,
        out->workspace = workspace(self, p, first, OPS);
    return CR_OK;
}

/* ---- a network ---- */

static const char *const overrides[] = {"model.arch=custom", "model.depths=1,1", "model.widths=8,16",
                                        "model.classes=5"};

/* together: seconds of the chain, against 1 ms of its ops; 0: the device has no chain kernels. */
static cr_status open_network(struct net *n, double together) {
    const struct cr_compile_options how     = {.reuse = true, .fuse = true};
    const struct cr_program        *all[]   = {&n->program};
    const struct cr_device_options  options = {.threads = 1, .deterministic = true};
    *n                                      = (struct net){0};
    fake.together                           = together;
    cr_log_quiet(true);
    CR_TRY(cr_config_open(&n->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(&n->config, 5, 16, 16, &n->model));
    CR_TRY(cr_device_open(CR_DEVICE_CPU, &options, &n->device));
    struct cr_cost_model cost_model = cr_device_cost_model(n->device);
    if (together > 0) n->device->chains = kernels, cost_model.chain = chain_cost;
    CR_TRY(cr_model_program(&n->model, &n->config, CR_PROGRAM_STEP, 4, &n->program));
    CR_TRY(cr_compile(&n->program, &cost_model, &how));
    CR_TRY(cr_memory_open(&n->memory, n->device, &n->model.store, all, 1));
    CR_TRY(cr_exec_open(&n->program, &n->memory, &n->exec));
    return n->device->backend->init_store(n->device, &n->model.store, &n->config, n->memory.region[CR_REGION_STORE]);
}

/* ---- cases ---- */

static void the_faster_alternative_is_chosen(void) {
    struct net n;
    REQUIRE_OK(open_network(&n, 1e-4));
    for (int i = 0; i < n.program.ops; i++) CHECK_INT(n.program.op[i].chain, i == FIRST ? OPS : 0);
    CHECK_INT(fake.prepared, 1);
    net_close(&n);
    CHECK_INT(fake.prepared, 0);
    REQUIRE_OK(open_network(&n, 2e-3));
    for (int i = 0; i < n.program.ops; i++) CHECK_INT(n.program.op[i].chain, 0);
    net_close(&n);
}

/* No two tensors of the chain share memory, except the workspaces of its ops, which the launch does not use. */
static void tensors_of_a_chain_live_through_it(void) {
    struct net n;
    REQUIRE_OK(open_network(&n, 1e-4));
    const struct cr_program *p = &n.program;
    for (int i = FIRST; i < FIRST + OPS; i++) {
        int ids[CR_OP_IDS_MAX], count = cr_op_writes(&p->op[i], ids);
        for (int k = 0; k < count; k++) {
            const struct cr_tensor *t = &p->tensor[ids[k]];
            if (ids[k] == p->op[i].workspace && i > FIRST) continue;
            CHECK(t->region != CR_REGION_POOL || (t->first <= FIRST && t->last >= FIRST + OPS - 1));
            CHECK_INT(t->alias, CR_NONE);
        }
    }
    if (p->op[FIRST].workspace >= 0) CHECK(p->tensor[p->op[FIRST].workspace].bytes >= WORKSPACE);
    net_close(&n);
}

static void a_chain_is_one_launch_and_gives_the_same_bits(void) {
    struct net with, without;
    REQUIRE_OK(open_network(&with, 1e-4));
    REQUIRE_OK(open_network(&without, 0));
    fake.launches = 0;
    REQUIRE_OK(net_train(&with, 3, 5));
    REQUIRE_OK(net_train(&without, 3, 5));
    CHECK_INT(fake.launches, 3);
    CHECK(memcmp(with.memory.region[CR_REGION_STORE], without.memory.region[CR_REGION_STORE],
                 with.memory.bytes[CR_REGION_STORE]) == 0);
    net_close(&with);
    net_close(&without);
}

static void a_part_of_a_chain_runs_op_by_op(void) {
    struct net                 n;
    const struct cr_step_block step = {.lr = 0.1f};
    REQUIRE_OK(open_network(&n, 1e-4));
    fake.launches = 0;
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, 0, FIRST + 1));
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, FIRST + 2, n.program.ops - 1));
    CHECK_INT(fake.launches, 0);
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, 0, FIRST + OPS - 1));
    CHECK_INT(fake.launches, 1);
    net_close(&n);
}

TESTS(CASE(the_faster_alternative_is_chosen), CASE(tensors_of_a_chain_live_through_it),
      CASE(a_chain_is_one_launch_and_gives_the_same_bits), CASE(a_part_of_a_chain_runs_op_by_op))

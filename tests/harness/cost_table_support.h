/* tests/harness/cost_table_support.h: helpers of the cost table tests: kernels of one op that take a given time on the
 * fake device, and a cost table on it. */
#ifndef CR_TEST_COSTS_SUPPORT_H
#define CR_TEST_COSTS_SUPPORT_H

#include "autotune/cost_table_internal.h"

#include "tests/harness/data_support.h"
#include "tests/harness/fake_device.h"

/* ---- kernels of one op that take a given time ---- */

static int     launches, prepares, releases;
static double  takes[3][2];  /* seconds by kernel and algo */
static size_t  workspace[3]; /* bytes, by kernel */
static double  enqueue_s[3]; /* host time of a kernel launch outside a graph capture */
static int64_t not_noise;    /* halves of inputs outside the noise range (1 to 2 with a sign) */

struct prepared {
    int kernel, algo;
};

static inline cr_status prepare_kernel(int row, const struct cr_op *op, void **out, size_t *bytes) {
    struct prepared *p = cr_alloc(1, sizeof *p);
    if (!p) return CR_NO_MEMORY(sizeof *p);
    *p     = (struct prepared){row, op->algo};
    *out   = p;
    *bytes = workspace[row];
    prepares++;
    return CR_OK;
}
#define PREPARE(n)                                                                                                     \
    static cr_status prepare_##n(struct cr_device *d, const struct cr_program *p, const struct cr_op *op, void **out,  \
                                 size_t *bytes) {                                                                      \
        return prepare_kernel(n, op, out, bytes);                                                                      \
    }
PREPARE(0)
PREPARE(1)
PREPARE(2)

static inline cr_status launch_kernel(struct cr_device *d, const struct cr_call *call) {
    const struct prepared *p = call->prepared;
    launches++;
    clock_s += takes[p->kernel][p->algo];
    if (!is_capturing) { /* the device waits for the host, whose launch really takes this time */
        const int64_t start = cr_time_ns();
        while ((double)(cr_time_ns() - start) < enqueue_s[p->kernel] * 1e9) continue;
        clock_s += enqueue_s[p->kernel];
    }
    CR_ASSERT(call->workspace && call->in[CR_IN_relu_x] && call->out[CR_OUT_relu_y]);
    const size_t    bytes = call->program->tensor[call->op->in[CR_IN_relu_x]].bytes;
    const uint16_t *x     = call->in[CR_IN_relu_x];
    for (size_t i = 1; i < bytes / 2; i++)
        not_noise += (x[i] & 0x7c00) != 0x3c00;    /* one byte is set between launches: it is the first one */
    memset(call->out[CR_OUT_relu_y], 0x7f, bytes); /* NaN */
    memset(call->workspace, 0x7f, workspace[p->kernel]);
    return CR_OK;
}
static inline void release_kernel(void *p) {
    releases++, cr_free(p);
}
static inline int two_algos(struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {
    return 2;
}

static struct cr_kernel kernel_a = {.name          = "fake.a",
                                    .op            = CR_OP_relu,
                                    .deterministic = true,
                                    .prepare       = prepare_0,
                                    .launch        = launch_kernel,
                                    .release       = release_kernel};
static struct cr_kernel kernel_b = {.name          = "fake.b",
                                    .op            = CR_OP_relu,
                                    .deterministic = true,
                                    .prepare       = prepare_1,
                                    .launch        = launch_kernel,
                                    .release       = release_kernel,
                                    .algo_count    = two_algos};
static struct cr_kernel kernel_c = {
    .name = "fake.c", .op = CR_OP_relu, .prepare = prepare_2, .launch = launch_kernel, .release = release_kernel};
static const struct cr_kernel *kernels[] = {&kernel_a, &kernel_b, &kernel_c, NULL};

/* ---- fixture of every case ---- */

struct fixture {
    struct cr_device      device;
    struct cr_program     program;
    struct cr_op          op;
    struct cr_cost_table *table;
    char                  path[CR_PATH_MAX], dir[SUPPORT_PATH]; /* of the file */
};

/* `folder` may be that of the fixture. */
static inline void fixture_open(struct fixture *s, const char *folder, const char *device) {
    char                   dir[SUPPORT_PATH];
    const double           as_given[3][2] = {{3e-4, 0}, {2e-4, 1e-4}, {5e-5, 0}};
    const struct cr_device fake           = {.backend = &fake_backend,
                                             .kernels = kernels,
                                             .options = {.deterministic = true},
                                             .caps    = {.alignment = 256, .bytes_per_s = 1e9, .flops_per_s = 1e9}};
    snprintf(dir, sizeof dir, "%s", folder);
    *s = (struct fixture){.device = fake};
    memcpy(s->dir, dir, sizeof dir);
    snprintf(s->device.caps.text, sizeof s->device.caps.text, "%s", device);
    memcpy(takes, as_given, sizeof takes);
    memset(enqueue_s, 0, sizeof enqueue_s);
    event_s  = 0;
    launches = prepares = releases = 0;
    not_noise                      = 0;
    memory_max                     = 1 << 20;
    workspace[0] = workspace[1] = workspace[2] = 100;
    cr_program_init(&s->program, "p", NULL);
    s->op                    = cr_op_make(CR_OP_relu, CR_NONE);
    s->op.in[CR_IN_relu_x]   = cr_tensor_add(&s->program, "x", CR_F16, CR_REGION_POOL, 2, 4, 4, 8);
    s->op.out[CR_OUT_relu_y] = cr_tensor_add(&s->program, "y", CR_F16, CR_REGION_POOL, 2, 4, 4, 8);
    REQUIRE_OK(cr_path_join(s->path, s->dir, "kernel_times.txt"));
    REQUIRE_OK(cr_cost_table_open(&s->device, s->path, &s->table));
}

static inline void fixture_close(struct fixture *s) {
    cr_cost_table_close(s->table);
    cr_program_free(&s->program);
}
OWNABLE(fixture, struct fixture, fixture_close(x))

/* In a new folder. */
static inline void fixture_begin(struct fixture *s) {
    char dir[SUPPORT_PATH];
    make_folder(dir);
    fixture_open(s, dir, "GPU A, driver 1");
}

/* The next process with the same file. */
static inline void fixture_reopen(struct fixture *s, const char *device) {
    fixture_close(s);
    fixture_open(s, s->dir, device);
}

static inline struct cr_cost best(struct fixture *s) {
    struct cr_cost cost = {.kernel = CR_NONE};
    CHECK_STATUS(cr_cost_table_best(s->table, &s->program, &s->op, &cost), CR_OK);
    return cost;
}

static inline int64_t measured(const struct fixture *s) {
    return s->table->measured;
}

/* The file with one more line, and a valid checksum. */
static inline void add_line_and_checksum(const char *text, const char *line, struct cr_text *out) {
    const char *sum = strstr(text, "\nsum\t");
    REQUIRE(sum);
    cr_text_add(out, "%.*s%s", (int)(sum + 1 - text), text, line);
    cr_text_add(out, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(out->data));
}

/* Recomputes the checksum of a changed text. */
static inline void update_checksum(char *text) {
    char *sum = strstr(text, "\nsum\t");
    REQUIRE(sum);
    const char kept     = sum[1];
    sum[1]              = 0;
    const uint64_t hash = cr_cost_hash(text);
    sum[1]              = kept;
    snprintf(sum + 1, strlen(sum + 1) + 1, "sum\t%016llx\n", (unsigned long long)hash);
}

static inline void resize(struct fixture *s, int64_t batch) {
    s->program.tensor[0].dim[0] = s->program.tensor[1].dim[0] = batch;
}

#endif

/* tests/gpu/test_fatbin_limits.c: no kernel needs more than the compute capability has that it is chosen for.
 *
 * Needs no GPU. For each capability, kernels accept ops through an offline device and are launched with a runtime that
 * only records (tests/gpu/fatbin_limits.h). Each launch is compared with the limits of NVIDIA's programming guide:
 * shared memory, registers and threads of a block, grid, instructions that only 9.0 has. All kernels of this project
 * that accept an op are launched, as choices depend on measured times. The ops are those of all shipped configs and all
 * cases of test_checkops. Fused ops (cr_pass_bn_chains) are those of CIFAR networks. */
#include "compiler/passes.h"
#include "cuda/conv/cudnn/cudnn_graph.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/libraries.h"
#include "device/capability.h"
#include "device/offline.h"
#include "tests/checkops/checkops.h"
#include "tests/gpu/fatbin_limits.h"
#include "tests/harness/test.h"

#include <dirent.h>

/* Table of technical specifications in the CUDA programming guide. */
enum { KIB = 1024, REGISTERS = 65536, THREAD_REGISTERS = 255, THREADS = 1024, PORTABLE_BYTES = 48 * KIB };
static const struct target {
    const char *gpu; /* of plan --target */
    int         cc, block_kib;
} targets[] = {{"a100", 80, 163}, {"h100", 90, 227}, {"rtx3090", 86, 99}, {"rtx4090", 89, 99}, {"rtx5090", 120, 99}};
enum {
    TARGETS    = CR_COUNT(targets),
    CIFAR_SIZE = 32,
    CLASSES    = 10,
    BATCH      = 64 /* where a config leaves them open */
};

struct totals {
    int ops, launches,
        foreign;        /* foreign: launches whose code is that of another family, because the build has no PTX */
    int64_t most_bytes; /* of shared memory */
};

/* Registers that a block occupies: warps get them in units of 256. */
static int64_t block_registers(const struct fatbin_code *code, int64_t threads) {
    const int64_t warps = (threads + 31) / 32, each = ((int64_t)code->registers * 32 + 255) / 256 * 256;
    return warps * each;
}

/* Returns what exceeds a limit, or NULL. */
static const char *exceeds(const struct target *t, const struct fatbin_launch *l, const struct fatbin_code *code) {
    const int64_t threads = (int64_t)l->block[0] * l->block[1] * l->block[2],
                  bytes   = code->shared_bytes + l->dynamic_bytes;
    if (threads < 1 || threads > THREADS || threads > code->threads) return "threads of a block";
    if (l->grid[0] < 1 || l->grid[0] > INT32_MAX || l->grid[1] < 1 || l->grid[1] > 65535 || l->grid[2] < 1 ||
        l->grid[2] > 65535)
        return "blocks of the grid";
    if (code->registers < 1) return "registers: unknown";
    if (code->registers > THREAD_REGISTERS || block_registers(code, threads) > REGISTERS) return "registers";
    if (bytes > (int64_t)t->block_kib * KIB) return "shared memory";
    if (bytes > PORTABLE_BYTES && l->allowed_bytes < l->dynamic_bytes) return "shared memory that was not allowed";
    if (t->cc != 90 && fatbin_is_specific(l->fatbin, l->name)) return "code of 9.0a";
    if (l->cluster > 1 && t->cc != 90) return "a cluster";
    if (l->overlaps && code->arch < 90) return "a dependent launch";
    return NULL;
}

static void check_launch(const struct target *t, const struct cr_kernel *kernel, const struct fatbin_launch *l,
                         struct totals *totals, const char *where) {
    bool                      foreign = false;
    const struct fatbin_code *code    = fatbin_find(l->fatbin, l->name, t->cc, &foreign);
    if (!code) {
        TEST_FAIL_("%s on %s, %s: no code for %s", kernel->name, t->gpu, where, l->name);
        return;
    }
    /* A build without code of 9.0 uses the kernels of 8.0 there: see cr_cuda_set_capability. */
    const char *what = foreign && t->cc == 90 ? NULL : exceeds(t, l, code);
    if (what)
        TEST_FAIL_("%s on %s (%d.%d, code of %d%s), %s: %s: %lld + %lld bytes of shared memory (%lld allowed), %d "
                   "registers x %u threads of at most %d, grid %u x %u x %u in %s",
                   kernel->name, t->gpu, t->cc / 10, t->cc % 10, code->arch, code->specific ? "a" : "", where, what,
                   (long long)code->shared_bytes, (long long)l->dynamic_bytes, (long long)l->allowed_bytes,
                   code->registers, l->block[0] * l->block[1] * l->block[2], code->threads, l->grid[0], l->grid[1],
                   l->grid[2], l->name);
    totals->launches++;
    totals->foreign += foreign;
    totals->most_bytes = CR_MAX(totals->most_bytes, code->shared_bytes + l->dynamic_bytes);
}

/* Device addresses of the operands; nothing reads or writes there. */
static void *address(int operand) {
    return (void *)(uintptr_t)(((uint64_t)1 << 45) + ((uint64_t)operand << 36));
}

static cr_status launch(struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *p,
                        const struct cr_op *op) {
    const struct cr_step_block step = {.lr = 0.1f, .clip_norm = 1, .step = 1};
    struct cr_call             call = {.program = p, .op = op, .step = &step, .workspace = address(0)};
    size_t                     workspace;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) call.in[s] = address(1 + s);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) call.out[s] = address(1 + CR_OP_IN_MAX + s);
    CR_TRY(cr_kernel_prepare(device, kernel, p, op, &call.prepared, &workspace));
    const cr_status status = kernel->launch(device, &call);
    cr_kernel_release(kernel, call.prepared);
    return status;
}

static void check_algo(const struct target *t, struct cr_device *device, const struct cr_kernel *kernel,
                       const struct cr_program *p, const struct cr_op *op, struct totals *totals, const char *where) {
    fatbin_start(t->cc);
    const cr_status status = launch(device, kernel, p, op);
    if (status != CR_OK) {
        TEST_FAIL_("%s on %s, %s, algorithm %d: %s", kernel->name, t->gpu, where, op->algo, cr_error_message());
        cr_error_clear();
    }
    for (int i = 0; i < fatbin_record.count; i++) check_launch(t, kernel, &fatbin_record.launch[i], totals, where);
    if (fatbin_record.tensor_maps && t->cc != 90)
        TEST_FAIL_("%s on %s, %s: tensor maps of TMA", kernel->name, t->gpu, where);
}

static bool is_own(const struct cr_kernel *kernel) {
    return strncmp(kernel->name, "cuda.", 5) == 0 && !kernel->collective;
}

static bool launched[CR_KERNELS_MAX]; /* on any target, by index: all have the same list */

/* All algorithms of all kernels of this project that accept the op. */
static void check_op(const struct target *t, struct cr_device *device, const struct cr_program *p,
                     const struct cr_op *given, struct totals *totals, const char *where) {
    struct cr_op op = *given;
    totals->ops++;
    for (int i = 0; device->kernels[i]; i++) {
        const struct cr_kernel *kernel = device->kernels[i];
        op.algo                        = 0;
        if (kernel->op != op.kind || !is_own(kernel) || !cr_kernel_accepts(device, kernel, p, &op)) continue;
        launched[i]     = true;
        const int algos = kernel->algo_count ? kernel->algo_count(device, p, &op) : 1;
        for (op.algo = 0; op.algo < algos; op.algo++) check_algo(t, device, kernel, p, &op, totals, where);
    }
}

static void report(const struct totals *totals) {
    for (size_t i = 0; i < TARGETS; i++) {
        const struct target *t = &targets[i];
        printf("    %d.%d as %s: %d launches of %d ops, at most %lld of %d bytes of shared memory%s\n", t->cc / 10,
               t->cc % 10, t->gpu, totals[i].launches, totals[i].ops, (long long)totals[i].most_bytes,
               t->block_kib * KIB, totals[i].foreign ? "; no code for this capability, that of an older one" : "");
        CHECK(totals[i].ops > 1000 && totals[i].launches > totals[i].ops / 2);
    }
}

static const char          *why_not;        /* no test is possible: the reason */
static struct fatbin_totals totals_of_code; /* in the program; all 0 until it is read */
/* Offline devices whose kernels can be launched: prepare of an offline device makes no tables. */
static struct cr_device *devices[TARGETS];
/* Offline devices that programs are compiled for. They remember what cuDNN has answered. */
static struct cr_device *planned[TARGETS];

static cr_status put_nothing(struct cr_device *device, void *to, const void *host, size_t bytes) {
    return CR_OK;
}

static cr_status open_devices(void) {
    static struct cr_backend       backend;
    const struct cr_device_options options = {.tf32 = true}, deterministic = {.deterministic = true};
    for (size_t i = 0; i < TARGETS; i++) {
        why_not = cr_cuda_libs_missing() ? cr_cuda_libs_missing() : cr_cudnn_offline_unsupported();
        if (why_not) return CR_OK;
        CR_TRY(cr_gpu_open_offline(cr_gpu_find(targets[i].gpu), &deterministic, &planned[i]));
        CR_TRY(cr_cuda_open_offline_kernels(cr_gpu_find(targets[i].gpu), &options, &devices[i]));
        backend                      = *devices[i]->backend;
        backend.put                  = put_nothing;
        devices[i]->backend          = &backend;
        cuda_of(devices[i])->offline = NULL;
    }
    return CR_OK;
}

/* Once: reads the machine code and opens the devices. */
static cr_status prepare(void) {
    if (totals_of_code.kernels) return CR_OK;
    CR_TRY(fatbin_open_program(&totals_of_code));
    printf("    %d kernels, %d files with machine code\n", totals_of_code.kernels, totals_of_code.files);
    if (totals_of_code.packed)
        why_not = "compressed machine code could not be read (libzstd or liblz4 is missing)";
    else if (!totals_of_code.files)
        why_not = "this build has no machine code, only PTX";
    else if (totals_of_code.oldest > targets[0].cc)
        why_not = "this build has no code for 8.0, the first of the tested capabilities";
    return why_not ? CR_OK : open_devices();
}

TEST(limits_are_those_of_the_guide) {
    for (size_t i = 0; i < TARGETS; i++)
        CHECK_INT(cr_capability_of(targets[i].cc).block_bytes, targets[i].block_kib * KIB);
}

static cr_status compile(struct cr_device *device, const struct cr_config *config, enum cr_dtype real,
                         enum cr_program_kind kind, struct cr_model *model, struct cr_program *p) {
    const struct cr_cost_model      cost_model = cr_device_cost_model(device);
    const struct cr_compile_options how        = {.fuse = true, .until = "fuse"};
    const int                       size       = config->data.image_size ? (int)config->data.image_size : CIFAR_SIZE;
    CR_TRY(cr_model_open(config, CR_MAX((int)config->model.classes, CLASSES), size, size, model));
    cr_model_set_real(model, real);
    CR_TRY(cr_model_program(model, config, kind, config->train.batch ? config->train.batch : BATCH, p));
    return cr_compile(p, &cost_model, &how);
}

/* ---- ops of several parts ---- */

/* Chooses a kernel of this project that accepts the op, if possible one that stores rows of sums. */
static void choose_kernel(struct cr_device *device, const struct cr_program *p, struct cr_op *op) {
    bool found = false;
    for (int i = 0; device->kernels[i]; i++) {
        const struct cr_kernel *kernel = device->kernels[i];
        if (kernel->op != op->kind || !is_own(kernel)) continue;
        const bool accepts = cr_kernel_accepts(device, kernel, p, op);
        if (accepts ? found && !kernel->sum_rows : found || kernel->sum_rows) continue;
        op->kernel = i;
        found      = accepts;
    }
}

static struct cr_call call_of(const struct cr_program *p, const struct cr_op *op) {
    struct cr_call call = {.program = p, .op = op, .workspace = address(0)};
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) call.in[s] = address(p->ops + op->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) call.out[s] = address(p->ops + op->out[s]);
    return call;
}

/* Numbers of fused ops by their last part. */
struct fused {
    int convs, grads, filters;
};
/* limit: of the pool; 1: filter gradients are not fused. */
static void check_fused_ops(const struct target *t, struct cr_device *device, struct cr_program *p, size_t limit,
                            struct totals *totals, struct fused *fused, const char *where) {
    const struct cr_cost_model cost_model = cr_device_cost_model(device);
    for (int i = 0; i < p->ops; i++) choose_kernel(device, p, &p->op[i]);
    REQUIRE_OK(cr_pass_bn_chains(p, &cost_model, limit));
    for (int i = 0; i < p->ops; i++) {
        static struct cr_call part[CR_FUSED_MAX];
        const struct cr_op   *op   = &p->op[i];
        struct cr_call        call = call_of(p, op);
        if (op->kind != CR_OP_fused) continue;
        for (int k = 0; k < op->attr.fused.parts; k++) part[k] = call_of(p, &op->attr.fused.part[k]);
        call.part                         = part;
        const struct cr_kernel *kernel    = device->kernels[op->kernel];
        const enum cr_op_kind   last_part = op->attr.fused.part[op->attr.fused.parts - 1].kind;
        fatbin_start(t->cc);
        if (kernel->launch(device, &call) != CR_OK) {
            TEST_FAIL_("%s on %s, %s, op %d: %s", kernel->name, t->gpu, where, i, cr_error_message());
            cr_error_clear();
        }
        for (int k = 0; k < fatbin_record.count; k++) check_launch(t, kernel, &fatbin_record.launch[k], totals, where);
        totals->ops++;
        fused->convs += last_part == CR_OP_conv;
        fused->grads += last_part == CR_OP_conv_grad;
        fused->filters += last_part == CR_OP_conv_wgrad;
    }
}

/* The program of a config as it is fused for the GPU of `target`, on all targets up to `last`. */
static void check_config(size_t target, size_t last, const struct cr_config *config, const char *name,
                         enum cr_dtype real, enum cr_program_kind kind, struct totals *totals) {
    OWNED(model)    model  = {0};
    OWNED(program)  p      = {0};
    const cr_status status = compile(planned[target], config, real, kind, &model, &p);
    if (status != CR_OK) TEST_FAIL_("%s on %s: %s", name, targets[target].gpu, cr_error_message());
    for (int i = 0; status == CR_OK && i < p.ops; i++) {
        const char *const where = formatted("%.100s, %s, op %d", name, cr_dtype_name(real), i);
        for (size_t t = target; t <= last; t++) check_op(&targets[t], devices[t], &p, &p.op[i], &totals[t], where);
    }
}

/* Fused ops differ between 8.0, the capabilities with 99 KiB of shared memory, and 9.0. */
static void check_programs(const struct cr_config *config, const char *name, struct totals *totals) {
    static const enum cr_dtype        reals[] = {CR_F16, CR_BF16, CR_F32};
    static const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_EVAL};
    for (size_t r = 0; r < CR_COUNT(reals); r++)
        for (size_t k = 0; k < CR_COUNT(kinds); k++)
            for (size_t t = 0, last; t < TARGETS; t = last + 1) {
                for (last = t; last + 1 < TARGETS && targets[last + 1].block_kib == targets[t].block_kib;) last++;
                check_config(t, last, config, name, reals[r], kinds[k], totals);
            }
}

TEST(configs_stay_within_the_limits) {
    struct totals totals[TARGETS] = {0};
    int           configs         = 0;
    REQUIRE_OK(prepare());
    if (why_not) SKIP(why_not);
    DIR *folder = opendir(CR_SOURCE_DIR "/configs");
    REQUIRE(folder);
    for (const struct dirent *e; (e = readdir(folder));) {
        const struct cr_config *config;
        if (!strstr(e->d_name, ".ini")) continue;
        REQUIRE_OK(cr_config_open(&config, formatted("%s/configs/%s", CR_SOURCE_DIR, e->d_name), NULL, 0));
        check_programs(config, e->d_name, totals);
        cr_config_close(config);
        configs++;
    }
    closedir(folder);
    CHECK(configs > 20);
    report(totals);
}

TEST(cases_of_checkops_stay_within_the_limits) {
    struct totals        totals[TARGETS] = {0};
    struct checkops_list list            = {0};
    char                 where[300];
    REQUIRE_OK(prepare());
    if (why_not) SKIP(why_not);
    REQUIRE_OK(checkops_list_make(CHECKOPS_HALF, &list));
    for (int i = 0; i < list.count; i++) {
        struct checkops_unit unit;
        REQUIRE_OK(checkops_unit_make(&list.item[i], &unit));
        checkops_unit_text(&unit, where, sizeof where);
        for (size_t t = 0; t < TARGETS; t++)
            check_op(&targets[t], devices[t], &unit.program, unit.op, &totals[t], where);
        checkops_unit_free(&unit);
    }
    checkops_list_free(&list);
    report(totals);
    for (int i = 0; devices[0]->kernels[i]; i++)
        if (is_own(devices[0]->kernels[i]) && devices[0]->kernels[i]->op != CR_OP_fused && !launched[i])
            TEST_FAIL_("no case launches %s", devices[0]->kernels[i]->name);
}

static void check_network(size_t target, const char *const keys[3], enum cr_dtype real, size_t limit,
                          struct totals *totals, struct fused *fused) {
    OWNED(config)  config = NULL;
    OWNED(model)   model  = {0};
    OWNED(program) p      = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, keys, 3));
    REQUIRE_OK(compile(planned[target], config, real, CR_PROGRAM_STEP, &model, &p));
    check_fused_ops(&targets[target], devices[target], &p, limit, totals, fused,
                    formatted("%s, %s, %s", keys[1], keys[2], cr_dtype_name(real)));
}

/* With 32 and 80 images filter gradients are fused, but not where a block has 99 KiB. Tiles are parts of images (32) or
 * whole images (80). With 1,024 only convolutions finish the BN before them. */
TEST(fused_ops_stay_within_the_limits) {
    static const char *const networks[][3] = {{"model.arch=resnet56", "model.shortcut=A", "train.batch=32"},
                                              {"model.arch=resnet56", "model.shortcut=A", "train.batch=80"},
                                              {"model.arch=resnet56", "model.shortcut=B", "train.batch=80"},
                                              {"model.arch=resnet56", "model.shortcut=A", "train.batch=1024"}};
    REQUIRE_OK(prepare());
    if (why_not) SKIP(why_not);
    for (size_t t = 0; t < TARGETS; t++) {
        struct totals totals = {0};
        struct fused  fused  = {0};
        for (size_t k = 0; k < 4 * CR_COUNT(networks); k++)
            check_network(t, networks[k / 4], k % 2 ? CR_F16 : CR_BF16, k / 2 % 2 ? 1 : SIZE_MAX, &totals, &fused);
        printf("    %s: fused ops: %d convolutions, %d gradients, %d of filter gradients\n", targets[t].gpu,
               fused.convs, fused.grads, fused.filters);
        CHECK(fused.convs > 0);
        CHECK((fused.grads > 0 && fused.filters > 0) || targets[t].block_kib == 99);
        CHECK(totals.launches >= totals.ops);
    }
}

TEST(nothing_is_left) {
    for (size_t i = 0; i < TARGETS; i++) cr_device_close(devices[i]), cr_device_close(planned[i]);
    fatbin_close_program();
}

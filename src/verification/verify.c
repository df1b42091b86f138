/* verification/verify.c: computes the reference result of an op and the scale of its error bound. See
 * verification/verify.h. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- the reference run: the same op on f64 tensors ---- */

struct ref_run {
    struct cr_device          *cpu;
    const struct cr_kernel    *kernel;
    const struct cr_program   *original;
    const struct cr_verify_io *io;
    struct cr_program          program; /* shallow copy: shares ops, layers and names with the original */
    struct cr_param_store      store;   /* copy of the original with f64 buffers */
    struct cr_tensor          *tensor;
    struct cr_op               op; /* copy: the run on magnitudes may change attributes */
    struct cr_step_block       step;
    void                      *in[CR_OP_IN_MAX], *out[CR_OP_OUT_MAX];
    void                      *own[CR_OP_IN_MAX + CR_OP_OUT_MAX]; /* buffers to free; in and out may share */
    int                        owns;
    bool                       bf16_factors; /* of the kernel's arithmetic */
};

const struct cr_kernel *cr_verify_ref(const struct cr_device *cpu, enum cr_op_kind kind) {
    for (const struct cr_kernel *const *kernel = cpu->kernels; *kernel; kernel++)
        if ((*kernel)->op == kind && (*kernel)->reference) return *kernel;
    return NULL;
}

static void ref_run_close(struct ref_run *t) {
    for (int i = 0; i < t->owns; i++) cr_free(t->own[i]);
    cr_free(t->tensor);
}

static cr_status ref_run_buffer(struct ref_run *t, int id, void **out) {
    const size_t bytes  = t->tensor[id].bytes;
    void        *buffer = cr_alloc(bytes, 1);
    if (!buffer) return CR_NO_MEMORY(bytes);
    t->own[t->owns++] = buffer;
    *out              = buffer;
    return CR_OK;
}

/* Offset of a tensor in the parameter store with f64 buffers: the same element of the same buffer. */
static size_t f64_offset(const struct cr_param_store *from, const struct cr_param_store *to,
                         const struct cr_tensor *t) {
    const enum cr_param_buffer buffer = (enum cr_param_buffer)t->buffer;
    const size_t elem = (t->offset - cr_param_store_buffer_offset(from, buffer)) / cr_dtype_bytes(from->real);
    return cr_param_store_buffer_offset(to, buffer) + elem * cr_dtype_bytes(to->real);
}

static cr_status ref_run_tensors(struct ref_run *t, const struct cr_program *program) {
    CR_ALLOC(t->tensor, (size_t)program->tensors);
    memcpy(t->tensor, program->tensor, (size_t)program->tensors * sizeof *t->tensor);
    t->program        = *program;
    t->program.tensor = t->tensor;
    t->program.real   = CR_F64;
    if (program->store) {
        t->store         = *program->store;
        t->store.real    = CR_F64;
        t->program.store = &t->store;
    }
    for (int i = 0; i < program->tensors; i++) {
        struct cr_tensor *tensor = &t->tensor[i];
        if (!is_real(tensor->dtype)) continue;
        if (tensor->buffer != CR_NONE && tensor->dtype == program->store->real)
            tensor->offset = f64_offset(program->store, &t->store, tensor);
        tensor->dtype = CR_F64;
        tensor->bytes = (size_t)cr_tensor_elems(tensor) * sizeof(double);
    }
    return CR_OK;
}

/* Allocates buffers for the tensors of the op. Only the shapes of all other tensors are used. */
static cr_status ref_run_open(struct ref_run *t, struct cr_device *cpu, const struct cr_program *program,
                              const struct cr_op *op, const struct cr_step_block *step, const struct cr_verify_io *io) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    t->cpu                        = cpu;
    t->kernel                     = cr_verify_ref(cpu, op->kind);
    t->original                   = program;
    t->io                         = io;
    t->op                         = *op;
    t->step                       = *step;
    if (!t->kernel) return CR_FAIL(CR_ERR_DEVICE, "there is no reference kernel for the op %s", info->name);
    CR_TRY(ref_run_tensors(t, program));
    for (int s = 0; s < info->ins; s++)
        if (op->in[s] >= 0) CR_TRY(ref_run_buffer(t, op->in[s], &t->in[s]));
    for (int s = 0; s < info->outs; s++) {
        if (op->out[s] < 0) continue;
        for (int i = 0; i < info->ins; i++)
            if (op->in[i] == op->out[s]) t->out[s] = t->in[i];
        if (!t->out[s]) CR_TRY(ref_run_buffer(t, op->out[s], &t->out[s]));
    }
    return CR_OK;
}

static double magnitude(char letter, double x, bool first_half) {
    switch (letter) {
    case 'a': return fabs(x);
    case 'n': return -fabs(x);
    case 's': return first_half ? -fabs(x) : fabs(x);
    default: return x;
    }
}

static void load_input(struct ref_run *t, int id, const void *from, void *to, char letter) {
    const struct cr_tensor *tensor = &t->original->tensor[id];
    const int64_t           n      = cr_tensor_elems(tensor);
    if (!is_real(tensor->dtype)) {
        memcpy(to, from, tensor->bytes);
        return;
    }
    double *dst = to;
    if (tensor->dtype == CR_F32)
        for (int64_t i = 0; i < n; i++) dst[i] = (double)((const float *)from)[i];
    else
        for (int64_t i = 0; i < n; i++) dst[i] = cr_number_load(tensor->dtype, from, i);
    if (letter == 'k') return;
    for (int64_t i = 0; i < n; i++) dst[i] = magnitude(letter, dst[i], i < n / 2);
}

static void round_to_bf16(double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = (double)cr_bf16_to_f32(cr_f32_to_bf16((float)x[i]));
}

/* Fills the buffers from the original inputs. letters NULL: the inputs are copied unchanged. */
static void load_inputs(struct ref_run *t, const char *letters, char before) {
    enum { FACTORS = 2 }; /* the first slots of convolutions and their gradients */
    const struct cr_op_info *info = cr_op_info(t->op.kind);
    for (int s = 0; s < info->ins; s++) {
        if (!t->in[s]) continue;
        load_input(t, t->op.in[s], t->io->in[s], t->in[s], letters ? letters[s] : 'k');
        if (t->bf16_factors && s < FACTORS) round_to_bf16(t->in[s], cr_tensor_elems(&t->tensor[t->op.in[s]]));
    }
    for (int s = 0; s < info->outs; s++)
        if (t->out[s] && t->io->before[s])
            load_input(t, t->op.out[s], t->io->before[s], t->out[s], letters ? before : 'k');
}

static cr_status run_reference(struct ref_run *t) {
    cr_status      status = CR_OK;
    size_t         bytes  = 0;
    struct cr_call call   = {.program = &t->program, .op = &t->op, .step = &t->step};
    memcpy(call.out, t->out, sizeof call.out);
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = t->in[s];
    CR_TRY(cr_kernel_prepare(t->cpu, t->kernel, &t->program, &t->op, &call.prepared, &bytes));
    call.workspace = cr_alloc(bytes, 1);
    if (!call.workspace) CR_NO_MEMORY_OUT(bytes);
    CR_TRY_OUT(t->kernel->launch(t->cpu, &call));
    CR_TRY_OUT(t->cpu->backend->sync(t->cpu));
out:
    cr_free(call.workspace);
    cr_kernel_release(t->kernel, call.prepared);
    return status;
}

/* ---- the expected ---- */

void cr_verify_expected_free(struct cr_verify_expected *expected) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        cr_free(expected->want[s]);
        cr_free(expected->scale[s]);
        cr_free(expected->before[s]);
        cr_free(expected->slack[s]);
        cr_free(expected->alternative[s]);
        cr_free(expected->noise[s]);
        cr_free(expected->pull[s]);
    }
    *expected = (struct cr_verify_expected){0};
}

static cr_status expected_alloc(const struct ref_run *t, struct cr_verify_expected *expected) {
    for (int s = 0; s < cr_op_info(t->op.kind)->outs; s++) {
        if (!t->out[s] || cr_verify_rule(t->op.kind)->no_value) continue;
        expected->elems[s] = cr_tensor_elems(&t->tensor[t->op.out[s]]);
        CR_ALLOC(expected->want[s], (size_t)expected->elems[s]);
        CR_ALLOC(expected->scale[s], (size_t)expected->elems[s]);
        if (!t->io->before[s]) continue;
        CR_ALLOC(expected->before[s], (size_t)expected->elems[s]);
        const enum cr_dtype dtype = t->original->tensor[t->op.out[s]].dtype;
        for (int64_t i = 0; i < expected->elems[s]; i++)
            expected->before[s][i] = cr_number_load(dtype, t->io->before[s], i);
    }
    return CR_OK;
}

/* Loads the inputs, applies the prologue of the rule and runs the reference kernel. *flips receives whether an operand
 * may be off; NULL if not needed. */
static cr_status run_pass(struct ref_run *t, const struct cr_verify_rule *rule, enum cr_verify_pass pass, bool *flips) {
    const struct cr_verify_hooks *hooks      = cr_verify_hooks(t->op.kind);
    const struct cr_op            op         = t->op;
    struct cr_verify_run          run        = {.pass = pass, .original = t->original, .op = &t->op, .in = t->in};
    const bool                    magnitudes = pass != CR_VERIFY_WANT;
    cr_status                     status;
    load_inputs(t, magnitudes ? rule->magnitude : NULL, magnitudes ? rule->before : 'k');
    if (hooks->prologue) hooks->prologue(&run);
    status = run_reference(t);
    t->op  = op;
    if (flips) *flips = run.flips;
    return status;
}

static double result_at(const struct ref_run *t, int slot, int64_t i) {
    return cr_number_load(t->tensor[t->op.out[slot]].dtype, t->out[slot], i);
}

static cr_status expected_want(struct ref_run *t, const struct cr_verify_rule *rule,
                               struct cr_verify_expected *expected) {
    CR_TRY(run_pass(t, rule, CR_VERIFY_WANT, NULL));
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; i < expected->elems[s]; i++) expected->want[s][i] = result_at(t, s, i);
    return CR_OK;
}

/* A, and as slack the increase of A where operands may be off. */
static cr_status expected_scale(struct ref_run *t, const struct cr_verify_rule *rule,
                                struct cr_verify_expected *expected) {
    const struct cr_verify_hooks *hooks = cr_verify_hooks(t->op.kind);
    const struct cr_op            op    = t->op;
    const struct cr_step_block    step  = t->step;
    bool                          flips;
    if (hooks->adjust) hooks->adjust(&t->op, &t->step);
    CR_TRY(run_pass(t, rule, CR_VERIFY_SCALE, &flips));
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; i < expected->elems[s]; i++) expected->scale[s][i] = fabs(result_at(t, s, i));
    if (flips) {
        CR_TRY(run_pass(t, rule, CR_VERIFY_FLIP, NULL));
        for (int s = 0; s < CR_OP_OUT_MAX; s++) {
            if (!expected->elems[s]) continue;
            CR_TRY(cr_verify_array(expected, s, expected->slack));
            for (int64_t i = 0; i < expected->elems[s]; i++)
                expected->slack[s][i] = fmax(fabs(result_at(t, s, i)) - expected->scale[s][i], 0);
        }
    }
    t->op   = op;
    t->step = step;
    return CR_OK;
}

/* The reference computes in FP64. A kernel that only rounds must give the rounded value. */
static void round_wants(const struct ref_run *t, struct cr_verify_expected *expected) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        uint64_t element = 0;
        for (int64_t i = 0; i < expected->elems[s]; i++) {
            const enum cr_dtype dtype = t->original->tensor[t->op.out[s]].dtype;
            cr_number_store(dtype, &element, 0, expected->want[s][i]);
            expected->want[s][i] = cr_number_load(dtype, &element, 0);
        }
    }
}

static bool inputs_are_finite(const struct ref_run *t) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!t->in[s] || !is_real(t->tensor[t->op.in[s]].dtype)) continue;
        const double *x = t->in[s];
        for (int64_t i = 0; i < cr_tensor_elems(&t->tensor[t->op.in[s]]); i++)
            if (!isfinite(x[i])) return false;
    }
    return true;
}

/* ---- CR_RELAXED_TILE_ERROR ---- */

/* Replaces numbers i * step by the largest of those at most NEAR places away. */
static void spread_line(double *line, int64_t count, int64_t step) {
    enum { NEAR = 3 /* pixels of a tile may be so far apart, in each direction */ };
    double before[NEAR + 1] = {0}; /* the last numbers as they were */
    for (int64_t i = 0; i < count; i++) {
        double most = 0;
        memmove(before + 1, before, NEAR * sizeof *before);
        before[0] = line[i * step];
        for (int n = 0; n <= NEAR; n++) most = fmax(most, before[n]);
        for (int64_t n = 1; n <= NEAR && i + n < count; n++) most = fmax(most, line[(i + n) * step]);
        line[i * step] = most;
    }
}

static void spread_over_tiles(const struct ref_run *t, double *scale) {
    const int               w = t->op.in[t->op.kind == CR_OP_conv ? CR_IN_conv_w : CR_IN_conv_dgrad_w];
    const struct cr_tensor *y = &t->tensor[t->op.out[0]];
    const int64_t           H = y->dim[1], W = y->dim[2], C = y->dim[3];
    if (t->tensor[w].dim[1] != 3 || t->tensor[w].dim[2] != 3 || t->op.attr.conv.stride != 1) return;
    for (int64_t i = 0; i < y->dim[0]; i++, scale += H * W * C)
        for (int64_t c = 0; c < C; c++) {
            for (int64_t h = 0; h < H; h++) spread_line(scale + h * W * C + c, W, C);
            for (int64_t v = 0; v < W; v++) spread_line(scale + v * C + c, H, W * C);
        }
}

static cr_status expected_fill(struct ref_run *t, enum cr_math math, struct cr_verify_expected *expected) {
    const struct cr_verify_rule  *rule  = cr_verify_rule(t->op.kind);
    const struct cr_verify_hooks *hooks = cr_verify_hooks(t->op.kind);
    CR_TRY(expected_alloc(t, expected));
    CR_TRY(expected_want(t, rule, expected));
    expected->exact = cr_verify_is_exact(&t->op);
    if (rule->rounds) round_wants(t, expected);
    if (expected->exact) return CR_OK;
    if (rule->magnitude) CR_TRY(expected_scale(t, rule, expected));
    load_inputs(t, NULL, 'k');
    struct cr_verify_values v = {.program     = &t->program,
                                 .original    = t->original,
                                 .op          = &t->op,
                                 .step        = &t->step,
                                 .u           = cr_verify_unit(math)->sum,
                                 .relaxations = expected->relaxations};
    v.want                    = (const double *const *)expected->want;
    for (int s = 0; s < CR_OP_IN_MAX; s++) v.in[s] = t->in[s];
    const bool pads   = rule->pads && (t->op.kind != CR_OP_conv_pair || t->op.in[CR_IN_conv_pair_first_w] >= 0);
    expected->spreads = pads && !inputs_are_finite(t);
    if (hooks->closed) hooks->closed(&v, expected->scale);
    if (hooks->correct) hooks->correct(&v, expected->scale);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (!expected->elems[s]) continue;
        /* With a NaN or infinite input A is not usable: the elements that it reaches are compared by position. */
        for (int64_t i = 0; i < expected->elems[s]; i++)
            if (!isfinite(expected->scale[s][i])) expected->scale[s][i] = 0;
        if (s == 0 && (expected->relaxations & CR_RELAXED_TILE_ERROR)) spread_over_tiles(t, expected->scale[s]);
        expected->terms[s] = cr_verify_terms(&t->program, &t->op, s);
        expected->tiny[s]  = cr_verify_tiny(&v, s);
    }
    expected->peak = cr_verify_peak(&t->program, &t->op);
    return hooks->epilogue ? hooks->epilogue(&v, expected) : CR_OK;
}

cr_status cr_verify_expected_make(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                                  enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                                  struct cr_verify_expected *out) {
    struct ref_run            t        = {0};
    struct cr_verify_expected expected = {
        .program = program, .op = op, .math = math, .relaxations = io->relaxations, .peak = 1};
    cr_status status;
    CR_TRY_OUT(ref_run_open(&t, cpu, program, op, step, io));
    t.bf16_factors = cr_verify_unit(math)->bf16_factors;
    CR_TRY_OUT(expected_fill(&t, math, &expected));
out:
    ref_run_close(&t);
    if (status != CR_OK)
        cr_verify_expected_free(&expected);
    else
        *out = expected;
    return status;
}

cr_status cr_verify_op(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                       enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                       const void *const got[], struct cr_verify_result *out) {
    struct cr_verify_expected expected = {0};
    CR_TRY(cr_verify_expected_make(cpu, program, op, math, step, io, &expected));
    cr_verify_compare(&expected, got, out);
    cr_verify_expected_free(&expected);
    return CR_OK;
}

/* verification/verify.c: one op, or a whole program op by op, against the reference row in double. See
 * verification/verify.h. */
#include "verification/verify.h"

#include <float.h>
#include <math.h>
#include <string.h>

static bool is_real(enum cr_dtype dtype) {
    return dtype == CR_F32 || dtype == CR_F64 || dtype == CR_F16 || dtype == CR_BF16;
}

/* ---- the twin: the same op on f64 tensors ---- */

struct twin {
    struct cr_device          *cpu;
    const struct cr_kernel    *row;
    const struct cr_program   *original;
    const struct cr_verify_io *io;
    struct cr_program          program; /* shallow: shares ops, layers and names with the original */
    struct cr_param_store      store;   /* the original's, with f64 planes */
    struct cr_tensor          *tensor;
    struct cr_op               op; /* a copy: the run on magnitudes may change attributes */
    struct cr_step_block       step;
    void                      *in[CR_OP_IN_MAX], *out[CR_OP_OUT_MAX];
    void                      *own[CR_OP_IN_MAX + CR_OP_OUT_MAX]; /* buffers to free; in and out may share */
    int                        owns;
};

const struct cr_kernel *cr_verify_ref(const struct cr_device *cpu, enum cr_op_kind kind) {
    for (const struct cr_kernel *const *row = cpu->kernels; *row; row++)
        if ((*row)->op == kind && strncmp((*row)->name, "ref.", 4) == 0) return *row;
    return NULL;
}

static void twin_close(struct twin *t) {
    for (int i = 0; i < t->owns; i++) cr_free(t->own[i]);
    cr_free(t->tensor);
}

static cr_status twin_buffer(struct twin *t, int id, void **out) {
    const size_t bytes  = t->tensor[id].bytes;
    void        *buffer = cr_alloc(bytes, 1);
    if (!buffer) return CR_NO_MEMORY(bytes);
    t->own[t->owns++] = buffer;
    *out              = buffer;
    return CR_OK;
}

/* Where a tensor of the store lies when the planes are f64: at the same element of the same plane. */
static size_t offset_in_twin(const struct cr_param_store *from, const struct cr_param_store *to, size_t offset) {
    enum cr_param_buffer plane = CR_BUFFER_VALUE;
    for (int i = 0; i < CR_BUFFERS; i++)
        if (cr_param_store_buffer_offset(from, (enum cr_param_buffer)i) <= offset &&
            cr_param_store_buffer_bytes(from, (enum cr_param_buffer)i))
            plane = (enum cr_param_buffer)i;
    const size_t elem = (offset - cr_param_store_buffer_offset(from, plane)) / cr_dtype_bytes(from->real);
    return cr_param_store_buffer_offset(to, plane) + elem * cr_dtype_bytes(to->real);
}

static cr_status twin_tensors(struct twin *t, const struct cr_program *program) {
    CR_ALLOC(t->tensor, (size_t)CR_MAX(program->tensors, 1));
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
        if (tensor->region == CR_REGION_STORE && program->store && tensor->dtype == program->store->real)
            tensor->offset = offset_in_twin(program->store, &t->store, tensor->offset);
        tensor->dtype = CR_F64;
        tensor->bytes = (size_t)cr_tensor_elems(tensor) * sizeof(double);
    }
    return CR_OK;
}

/* Only the op's own tensors get buffers; all others are only looked at for their shapes. */
static cr_status twin_open(struct twin *t, struct cr_device *cpu, const struct cr_program *program,
                           const struct cr_op *op, const struct cr_step_block *step, const struct cr_verify_io *io) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    t->cpu                        = cpu;
    t->row                        = cr_verify_ref(cpu, op->kind);
    t->original                   = program;
    t->io                         = io;
    t->op                         = *op;
    t->step                       = *step;
    if (!t->row) return CR_FAIL(CR_ERR_DEVICE, "there is no reference row for the op %s", info->name);
    CR_TRY(twin_tensors(t, program));
    for (int s = 0; s < info->ins; s++)
        if (op->in[s] >= 0) CR_TRY(twin_buffer(t, op->in[s], &t->in[s]));
    for (int s = 0; s < info->outs; s++) {
        if (op->out[s] < 0) continue;
        for (int i = 0; i < info->ins; i++)
            if (op->in[i] == op->out[s]) t->out[s] = t->in[i];
        if (!t->out[s]) CR_TRY(twin_buffer(t, op->out[s], &t->out[s]));
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

static void twin_load_one(struct twin *t, int id, const void *from, void *to, char letter) {
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

/* Fills the buffers from the original inputs. letters NULL: as they are. */
static void twin_load(struct twin *t, const char *letters, char before) {
    const struct cr_op_info *info = cr_op_info(t->op.kind);
    for (int s = 0; s < info->ins; s++)
        if (t->in[s]) twin_load_one(t, t->op.in[s], t->io->in[s], t->in[s], letters ? letters[s] : 'k');
    for (int s = 0; s < info->outs; s++)
        if (t->out[s] && t->io->before[s])
            twin_load_one(t, t->op.out[s], t->io->before[s], t->out[s], letters ? before : 'k');
}

static cr_status twin_run(struct twin *t) {
    cr_status      status = CR_OK;
    size_t         bytes  = 0;
    struct cr_call call   = {.program = &t->program, .op = &t->op, .step = &t->step};
    memcpy(call.out, t->out, sizeof call.out);
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = t->in[s];
    if (t->row->prepare) CR_TRY(t->row->prepare(t->cpu, &t->program, &t->op, &call.prepared, &bytes));
    if (bytes) {
        call.workspace = cr_alloc(bytes, 1);
        if (!call.workspace) {
            status = CR_NO_MEMORY(bytes);
            goto out;
        }
    }
    CR_TRY_OUT(t->row->launch(t->cpu, &call));
    CR_TRY_OUT(t->cpu->backend->sync(t->cpu));
out:
    cr_free(call.workspace);
    if (t->row->release) t->row->release(call.prepared);
    return status;
}

/* ---- the truth ---- */

void cr_verify_expected_free(struct cr_verify_expected *truth) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        cr_free(truth->want[s]);
        cr_free(truth->scale[s]);
        cr_free(truth->before[s]);
        cr_free(truth->slack[s]);
        cr_free(truth->alternative[s]);
        cr_free(truth->noise[s]);
        cr_free(truth->pull[s]);
    }
    *truth = (struct cr_verify_expected){0};
}

static cr_status truth_alloc(const struct twin *t, struct cr_verify_expected *truth) {
    for (int s = 0; s < cr_op_info(t->op.kind)->outs; s++) {
        if (!t->out[s] || cr_verify_rule(t->op.kind)->no_value) continue;
        truth->elems[s] = cr_tensor_elems(&t->tensor[t->op.out[s]]);
        CR_ALLOC(truth->want[s], (size_t)truth->elems[s]);
        CR_ALLOC(truth->scale[s], (size_t)truth->elems[s]);
        if (!t->io->before[s]) continue;
        CR_ALLOC(truth->before[s], (size_t)truth->elems[s]);
        const enum cr_dtype dtype = t->original->tensor[t->op.out[s]].dtype;
        for (int64_t i = 0; i < truth->elems[s]; i++) truth->before[s][i] = cr_number_load(dtype, t->io->before[s], i);
    }
    return CR_OK;
}

/* Loads, lets the rule's hook make operands, runs. `flips`: whether an operand may be off; NULL: not asked. */
static cr_status twin_pass(struct twin *t, const struct cr_verify_rule *rule, enum cr_verify_pass pass, bool *flips) {
    const struct cr_op   op         = t->op;
    struct cr_verify_run run        = {.pass = pass, .original = t->original, .op = &t->op, .in = t->in};
    const bool           magnitudes = pass != CR_VERIFY_WANT;
    cr_status            status;
    twin_load(t, magnitudes ? rule->magnitude : NULL, magnitudes ? rule->before : 'k');
    if (rule->prologue) rule->prologue(&run);
    status = twin_run(t);
    t->op  = op;
    if (flips) *flips = run.flips;
    return status;
}

static double result_at(const struct twin *t, int slot, int64_t i) {
    return cr_number_load(t->tensor[t->op.out[slot]].dtype, t->out[slot], i);
}

static cr_status truth_want(struct twin *t, const struct cr_verify_rule *rule, struct cr_verify_expected *truth) {
    CR_TRY(twin_pass(t, rule, CR_VERIFY_WANT, NULL));
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; i < truth->elems[s]; i++) truth->want[s][i] = result_at(t, s, i);
    return CR_OK;
}

/* A, and how much it grows where operands may be off. */
static cr_status truth_scale_by_magnitudes(struct twin *t, const struct cr_verify_rule *rule,
                                           struct cr_verify_expected *truth) {
    const struct cr_op         op   = t->op;
    const struct cr_step_block step = t->step;
    bool                       flips;
    if (rule->adjust) rule->adjust(&t->op, &t->step);
    CR_TRY(twin_pass(t, rule, CR_VERIFY_SCALE, &flips));
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; i < truth->elems[s]; i++) truth->scale[s][i] = fabs(result_at(t, s, i));
    if (flips) {
        CR_TRY(twin_pass(t, rule, CR_VERIFY_FLIP, NULL));
        for (int s = 0; s < CR_OP_OUT_MAX; s++) {
            if (!truth->elems[s]) continue;
            CR_TRY(cr_verify_array(truth, s, &truth->slack[s]));
            for (int64_t i = 0; i < truth->elems[s]; i++)
                truth->slack[s][i] = fmax(fabs(result_at(t, s, i)) - truth->scale[s][i], 0);
        }
    }
    t->op   = op;
    t->step = step;
    return CR_OK;
}

/* The reference computes in double; what is right for a row that only rounds is the rounded number. */
static void round_wants(const struct twin *t, struct cr_verify_expected *truth) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        uint64_t element = 0;
        for (int64_t i = 0; i < truth->elems[s]; i++) {
            const enum cr_dtype dtype = t->original->tensor[t->op.out[s]].dtype;
            cr_number_store(dtype, &element, 0, truth->want[s][i]);
            truth->want[s][i] = cr_number_load(dtype, &element, 0);
        }
    }
}

static bool inputs_are_finite(const struct twin *t) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!t->in[s] || !is_real(t->tensor[t->op.in[s]].dtype)) continue;
        const double *x = t->in[s];
        for (int64_t i = 0; i < cr_tensor_elems(&t->tensor[t->op.in[s]]); i++)
            if (!isfinite(x[i])) return false;
    }
    return true;
}

static cr_status truth_fill(struct twin *t, enum cr_math math, struct cr_verify_expected *truth) {
    const struct cr_verify_rule *rule = cr_verify_rule(t->op.kind);
    CR_TRY(truth_alloc(t, truth));
    CR_TRY(truth_want(t, rule, truth));
    truth->exact = cr_verify_is_exact(&t->op);
    if (rule->rounds) round_wants(t, truth);
    if (truth->exact) return CR_OK;
    if (rule->magnitude) CR_TRY(truth_scale_by_magnitudes(t, rule, truth));
    twin_load(t, NULL, 'k');
    struct cr_verify_values v = {.program     = &t->program,
                                 .original    = t->original,
                                 .op          = &t->op,
                                 .step        = &t->step,
                                 .u           = cr_verify_unit(math)->sum,
                                 .relaxations = truth->relaxations};
    v.want                    = (const double *const *)truth->want;
    for (int s = 0; s < CR_OP_IN_MAX; s++) v.in[s] = t->in[s];
    truth->spreads = rule->pads && !inputs_are_finite(t);
    if (rule->closed) rule->closed(&v, truth->scale);
    if (rule->correct) rule->correct(&v, truth->scale);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (!truth->elems[s]) continue;
        /* A NaN or infinite input makes A useless: what it reaches is judged by position, all else must be as it was.
         */
        for (int64_t i = 0; i < truth->elems[s]; i++)
            if (!isfinite(truth->scale[s][i])) truth->scale[s][i] = 0;
        truth->terms[s] = cr_verify_terms(&t->program, &t->op, s);
        truth->tiny[s]  = cr_verify_tiny(&v, s);
    }
    truth->peak = cr_verify_peak(&t->program, &t->op);
    return rule->epilogue ? rule->epilogue(&v, truth) : CR_OK;
}

cr_status cr_verify_expected_make(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                                  enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                                  struct cr_verify_expected *out) {
    struct twin               t     = {0};
    struct cr_verify_expected truth = {
        .program = program, .op = op, .math = math, .relaxations = io->relaxations, .peak = 1};
    cr_status status;
    CR_TRY_OUT(twin_open(&t, cpu, program, op, step, io));
    CR_TRY_OUT(truth_fill(&t, math, &truth));
out:
    twin_close(&t);
    if (status != CR_OK)
        cr_verify_expected_free(&truth);
    else
        *out = truth;
    return status;
}

/* Those that change the bounds of this op. */
static unsigned liberties_that_count(const struct cr_op *op, unsigned relaxations) {
    const bool forward = op->kind == CR_OP_conv, backward = op->kind == CR_OP_conv_dgrad;
    unsigned   kinds = 0;
    if (forward && op->in[CR_IN_conv_bias] >= 0) kinds |= CR_RELAXED_HALF_BIAS;
    if ((forward && op->in[CR_IN_conv_add] >= 0) || (backward && op->in[CR_IN_conv_dgrad_add] >= 0))
        kinds |= CR_RELAXED_ROUNDED_SUM;
    if (backward && op->in[CR_IN_conv_dgrad_bn_x] >= 0) kinds |= CR_RELAXED_ZERO_GRADIENT;
    return relaxations & kinds;
}

bool cr_verify_expected_reuse(struct cr_verify_expected *truth, enum cr_math math, unsigned relaxations) {
    if (!truth->op ||
        liberties_that_count(truth->op, truth->relaxations) != liberties_that_count(truth->op, relaxations))
        return false;
    const struct cr_verify_unit *a = cr_verify_unit(math), *b = cr_verify_unit(truth->math);
    const bool by_unit = cr_verify_rule(truth->op->kind)->by_unit || cr_verify_fuses_finalize(truth->op);
    if (by_unit && (a->sum != b->sum || a->operand != b->operand || a->drift != b->drift)) return false;
    truth->math        = math;
    truth->relaxations = relaxations;
    return true;
}

/* ---- the judgement ---- */

struct judged {
    double bound, ratio; /* ratio <= 1: right */
    bool   nonfinite;    /* one side is finite and the other is not */
};

/* Does x become infinite when it is rounded? From half a step behind the largest number on. */
static bool overflows_to(enum cr_dtype dtype, double x) {
    const double top = cr_verify_largest(dtype);
    return x >= top + cr_verify_half_ulp(dtype, top);
}

/* What all elements of an output have in common. */
struct judging {
    const struct cr_verify_expected *truth;
    int                              slot;
    enum cr_dtype dtype, result; /* of the tensor; what a sum may pass through: a type of 16 bits, or F64 */
    double        by_scale, by_want, by_noise, by_pull, tiny, limit;
    bool          rounds_twice, drops_nan;
};

static struct judging judging_of(const struct cr_verify_expected *truth, int slot) {
    const struct cr_verify_unit *u      = cr_verify_unit(truth->math);
    const enum cr_dtype          dtype  = truth->program->tensor[truth->op->out[slot]].dtype;
    const bool                   is_f64 = truth->math == CR_MATH_F64;
    const double                 n = truth->terms[slot], behind = truth->noise_terms[slot];
    if (truth->noise[slot]) { /* sums of its own numbers are added in plain arithmetic, and in wide types only */
        const double sum = is_f64 ? u->sum : cr_verify_unit(CR_MATH_F32)->sum;
        return (struct judging){.truth    = truth,
                                .slot     = slot,
                                .dtype    = dtype,
                                .result   = CR_F64,
                                .by_scale = CR_VERIFY_C * sum * sqrt(n),
                                .by_noise = CR_VERIFY_C * u->sum * sqrt(behind) + u->operand,
                                .by_pull  = u->drift * behind + u->operand,
                                .tiny     = is_f64 ? 0 : truth->tiny[slot],
                                .limit    = is_f64 ? DBL_MAX : (double)FLT_MAX};
    }
    return (struct judging){
        .truth    = truth,
        .slot     = slot,
        .dtype    = dtype,
        .result   = u->result == dtype ? CR_F64 : u->result,
        .by_scale = CR_VERIFY_C * u->sum * sqrt(n) + u->operand,
        .by_want  = u->drift * n,
        .tiny     = is_f64 ? 0 : truth->tiny[slot],
        .limit    = is_f64 ? DBL_MAX : (double)FLT_MAX,
        /* from double to 16 bits by way of f32: cr_number_store */
        .rounds_twice = is_f64 && (dtype == CR_F16 || dtype == CR_BF16),
        .drops_nan =
            (truth->relaxations & CR_RELAXED_NAN_RELU) && truth->op->kind == CR_OP_conv && truth->op->attr.conv.relu,
    };
}

/* What a number is off by before it is rounded to the output's type. *overflows: it may have become infinite on the
 * way. */
static double error_of(const struct judging *g, int64_t i, bool *overflows) {
    const double want = g->truth->want[g->slot][i], A = g->truth->scale[g->slot][i];
    double       error = g->by_scale * A + g->by_want * fabs(want);
    if (g->truth->slack[g->slot]) error += g->truth->slack[g->slot][i];
    if (g->truth->noise[g->slot])
        error += g->by_noise * g->truth->noise[g->slot][i] + g->by_pull * g->truth->pull[g->slot][i];
    /* What did not move, and counts, have A = 0 and may not move by underflow either. */
    if (A > 0 || !is_real(g->dtype)) error += g->tiny;
    if (g->rounds_twice) error += cr_verify_half_ulp(CR_F32, fabs(want));
    *overflows = A * g->truth->peak >= g->limit;
    if (g->result == CR_F64 || A == 0) return error;
    const double *before = g->truth->before[g->slot];
    const double  sum    = fabs(want - (before ? before[i] : 0)) + error;
    *overflows           = *overflows || overflows_to(g->result, sum);
    return error + cr_verify_half_ulp(g->result, sum);
}

double cr_verify_error(const struct cr_verify_expected *truth, int slot, int64_t i, bool *any) {
    const struct judging g     = judging_of(truth, slot);
    const double         other = truth->alternative[slot] ? truth->alternative[slot][i] : NAN,
                 apart         = fabs(other - truth->want[slot][i]);
    const double error = error_of(&g, i, any) + (isfinite(apart) ? apart : 0), top = fabs(truth->want[slot][i]) + error;
    *any = *any || truth->scale[slot][i] == CR_VERIFY_UNUSED || overflows_to(g.dtype, top);
    return error + cr_verify_half_ulp(g.dtype, top);
}

/* The right number that `got` is meant to be: of two, the one that lies nearer. */
static double meant(const struct judging *g, int64_t i, double got) {
    const double want  = g->truth->want[g->slot][i],
                 other = g->truth->alternative[g->slot] ? g->truth->alternative[g->slot][i] : NAN;
    if (isnan(other) || !isfinite(got)) return want;
    return !isfinite(want) || fabs(got - other) < fabs(got - want) ? other : want;
}

static struct judged judge(const struct judging *g, int64_t i, double got) {
    const double  want = meant(g, i, got);
    struct judged j    = {0};
    if (got == want || (isnan(got) && isnan(want)) || g->truth->scale[g->slot][i] == CR_VERIFY_UNUSED) return j;
    if (isnan(got) && g->truth->spreads) return j;
    if (got == 0 && g->drops_nan && (isnan(want) || g->truth->spreads)) return j; /* a NaN was there */
    if (g->truth->bits[g->slot]) {
        const unsigned either = (unsigned)g->truth->slack[g->slot][i];
        j.ratio               = ((unsigned)got ^ (unsigned)want) & ~either ? INFINITY : 0;
        return j;
    }
    if (!g->truth->exact) {
        bool         overflows;
        const double error = error_of(g, i, &overflows), top = fabs(want) + error;
        j.bound = error + cr_verify_half_ulp(g->dtype, top);
        if (isfinite(want) && !isfinite(got) && (overflows || overflows_to(g->dtype, top))) return j;
    }
    j.nonfinite = isfinite(got) != isfinite(want);
    if (!isfinite(got) || !isfinite(want))
        j.ratio = INFINITY;
    else
        j.ratio = j.bound > 0 ? fabs(got - want) / j.bound : INFINITY;
    return j;
}

void cr_verify_compare(const struct cr_verify_expected *truth, const void *const got[], struct cr_verify_result *out) {
    struct cr_verify_result r = {.ok = true};
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (!truth->elems[s]) continue;
        const struct judging g = judging_of(truth, s);
        for (int64_t i = 0; i < truth->elems[s]; i++) {
            const double        x = cr_number_load(g.dtype, got[s], i);
            const struct judged j = judge(&g, i, x);
            r.nonfinite += j.nonfinite;
            if (!(j.ratio > r.worst)) continue;
            r.ok    = j.ratio <= 1 && r.ok;
            r.worst = j.ratio;
            r.slot  = s;
            r.index = i;
            r.got   = x;
            r.want  = meant(&g, i, x);
            r.bound = j.bound;
        }
    }
    *out = r;
}

cr_status cr_verify_op(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                       enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                       const void *const got[], struct cr_verify_result *out) {
    struct cr_verify_expected truth = {0};
    CR_TRY(cr_verify_expected_make(cpu, program, op, math, step, io, &truth));
    cr_verify_compare(&truth, got, out);
    cr_verify_expected_free(&truth);
    return CR_OK;
}

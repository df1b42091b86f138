/* model/teacher.c: a teacher's ops and constant weights in a student's programs (distillation). See model/teacher.h. */
#include "model/network.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the plain network for inference ---- */

/* Builds the teacher's forward program, which the caller frees with cr_program_free. Returns its logits. */
static int build(struct cr_teacher *teacher, int64_t batch, enum cr_dtype real, struct cr_program *p) {
    cr_program_init(p, "teacher", &teacher->model.store);
    p->real           = real;
    struct cr_net net = {.program = p, .store = &teacher->model.store, .config = teacher->config, .bn_ranks = 1};
    return cr_model_emit(&net, &teacher->model, batch, teacher->model.eval_size);
}

/* A batch norm of the plain network. */
struct norm {
    const struct cr_op *scale; /* bn_scale_bias */
    const struct cr_op *conv;  /* the convolution before it; NULL: a grouped one */
};

static struct norm norm_of(const struct cr_program *p, const struct cr_op *apply) {
    const struct cr_op *scale = &p->op[cr_program_writer(p, apply->in[CR_IN_bn_apply_scale_bias])],
                       *conv  = &p->op[cr_program_writer(p, apply->in[CR_IN_bn_apply_x])];
    return (struct norm){scale, conv->kind == CR_OP_conv ? conv : NULL};
}

/* The parameter [2,C] that holds the scale and bias of a batch norm. */
static int scale_bias_param(const struct cr_program *p, const struct norm *norm, struct cr_param_store *store) {
    char          name[256];
    const int     gamma  = p->tensor[norm->scale->in[CR_IN_bn_scale_bias_gamma]].param;
    const int64_t dim[4] = {2, 1, 1, store->param[gamma].elems};
    snprintf(name, sizeof name, "%s.scale_bias", store->param[gamma].name);
    const int found = cr_param_store_find(store, name);
    return found != CR_NONE ? found : cr_param_store_add(store, name, CR_ROLE_GAMMA, dim, CR_NONE);
}

/* ---- constants ---- */

/* The values of the parameter that an input slot of an op holds. */
static float *values_of(const struct cr_program *p, const struct cr_op *op, int slot, float *values) {
    return values + p->store->param[p->tensor[op->in[slot]].param].offset;
}

/* Multiplies the filter of the convolution before the batch norm by the scale, whose constant is then 1. */
static void scale_filter(struct cr_teacher *teacher, const struct cr_program *p, const struct cr_op *conv, int64_t c,
                         double scale) {
    const struct cr_tensor *t     = &p->tensor[conv->in[CR_IN_conv_w]];
    const int64_t           elems = cr_tensor_elems(t) / t->dim[0];
    float                  *w     = values_of(p, conv, CR_IN_conv_w, teacher->value) + c * elems;
    for (int64_t i = 0; i < elems; i++) w[i] = (float)((double)w[i] * scale);
}

static void fold(struct cr_teacher *teacher, const struct cr_program *p, const struct cr_op *apply, float *running) {
    struct cr_param_store *store = &teacher->model.store;
    const struct norm      norm  = norm_of(p, apply);
    const float           *gamma = values_of(p, norm.scale, CR_IN_bn_scale_bias_gamma, teacher->value),
                *beta            = values_of(p, norm.scale, CR_IN_bn_scale_bias_beta, teacher->value),
                *mean            = values_of(p, norm.scale, CR_IN_bn_scale_bias_running_mean, running),
                *var             = values_of(p, norm.scale, CR_IN_bn_scale_bias_running_var, running);
    const int     param          = scale_bias_param(p, &norm, store);
    const int64_t C              = store->param[param].dim[3];
    float        *scale_bias     = teacher->value + store->param[param].offset;
    for (int64_t c = 0; c < C; c++) {
        const double scale = (double)gamma[c] / sqrt((double)var[c] + (double)norm.scale->attr.bn.eps);
        if (norm.conv) scale_filter(teacher, p, norm.conv, c, scale);
        scale_bias[c]     = norm.conv ? 1 : (float)scale;
        scale_bias[C + c] = (float)((double)beta[c] - (double)mean[c] * scale);
    }
}

static cr_status make_constants(struct cr_teacher *teacher, const float *value, float *running) {
    struct cr_param_store *store = &teacher->model.store;
    const int64_t          given = store->value_elems;
    struct cr_program      p;
    cr_status              status = CR_OK;
    (void)build(teacher, 1, CR_F32, &p);
    if (p.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while building the teacher");
    for (int i = 0; i < p.ops; i++) {
        if (p.op[i].kind != CR_OP_bn_apply) continue;
        const struct norm norm = norm_of(&p, &p.op[i]);
        (void)scale_bias_param(&p, &norm, store);
    }
    if (store->failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while building the teacher");
    CR_ALLOC_OUT(teacher->value, (size_t)store->value_elems);
    memcpy(teacher->value, value, (size_t)given * sizeof *value);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_bn_apply) fold(teacher, &p, &p.op[i], running);
out:
    cr_program_free(&p);
    return status;
}

cr_status cr_teacher_open(const struct cr_config **config, int classes, int64_t size, const float *value,
                          float *running, struct cr_teacher **out) {
    struct cr_teacher      *teacher = cr_alloc(1, sizeof *teacher);
    const struct cr_config *own     = *config;
    *config                         = NULL;
    if (!teacher) {
        cr_config_close(own);
        return CR_NO_MEMORY(sizeof *teacher);
    }
    teacher->config  = own;
    cr_status status = cr_model_open(teacher->config, classes, size, size, &teacher->model);
    if (status == CR_OK) status = make_constants(teacher, value, running);
    if (status == CR_OK)
        *out = teacher;
    else
        cr_teacher_close(teacher);
    return status;
}

void cr_teacher_close(struct cr_teacher *teacher) {
    if (!teacher) return;
    cr_model_close(&teacher->model);
    cr_config_close(teacher->config);
    cr_free(teacher->value);
    cr_free(teacher);
}

/* ---- the ops in a student's program ---- */

struct splice {
    struct cr_program       *p;    /* the student's */
    const struct cr_program *from; /* the teacher's */
    int                     *map;  /* [from->tensors] tensors of `p`, or CR_NONE */
};

/* The constant of a parameter of the teacher. */
static int constant(struct splice *s, int param, enum cr_param_buffer buffer) {
    const struct cr_param *q     = &s->from->store->param[param];
    const enum cr_dtype    dtype = cr_param_store_buffer_dtype(s->p->store, buffer);
    char                   name[256];
    snprintf(name, sizeof name, "teacher.%s", q->name);
    const int id = cr_tensor_add(s->p, name, dtype, CR_REGION_STORE, q->dim[0], q->dim[1], q->dim[2], q->dim[3]);
    if (s->p->failed) return 0;
    s->p->tensor[id].buffer = (int)buffer;
    s->p->tensor[id].param  = CR_SEVERAL; /* none of the student's parameters */
    s->p->tensor[id].offset =
        cr_param_store_buffer_offset(s->p->store, buffer) + (size_t)q->offset * cr_dtype_bytes(dtype);
    return id;
}

static int mapped(struct splice *s, int tensor) {
    if (tensor == CR_NONE || s->p->failed) return tensor == CR_NONE ? CR_NONE : 0;
    if (s->map[tensor] != CR_NONE) return s->map[tensor];
    const struct cr_tensor *t = &s->from->tensor[tensor];
    char                    name[256];
    snprintf(name, sizeof name, "teacher.%s", t->name);
    if (t->region == CR_REGION_STORE)
        s->map[tensor] =
            constant(s, t->param, t->buffer == CR_BUFFER_HALF ? CR_BUFFER_TEACHER_HALF : CR_BUFFER_TEACHER);
    else
        s->map[tensor] =
            cr_tensor_add(s->p, name, t->dtype, CR_REGION_POOL, t->dim[0], t->dim[1], t->dim[2], t->dim[3]);
    return s->map[tensor];
}

/* Copies an op whose tensors are mapped. */
static void copy_op(struct splice *s, struct cr_teacher *teacher, int index) {
    const struct cr_program *from = s->from;
    struct cr_op             op   = from->op[index];
    char                     name[256];
    if (op.kind == CR_OP_cast || op.kind == CR_OP_normalize || op.kind == CR_OP_bn_scale_bias) return;
    const bool norm = op.kind == CR_OP_bn_apply;
    for (int k = 0; k < cr_op_info(op.kind)->ins; k++)
        if (!norm || k != CR_IN_bn_apply_scale_bias) op.in[k] = mapped(s, op.in[k]);
    if (norm) {
        const struct norm of = norm_of(from, &from->op[index]);
        op.in[CR_IN_bn_apply_scale_bias] =
            constant(s, scale_bias_param(from, &of, &teacher->model.store), CR_BUFFER_TEACHER);
    }
    for (int k = 0; k < cr_op_info(op.kind)->outs; k++) op.out[k] = mapped(s, op.out[k]);
    snprintf(name, sizeof name, "teacher.%s", from->layer[op.layer]);
    op.layer = cr_program_layer(s->p, name);
    if (!s->p->failed) cr_emit(s->p, &op, "");
}

/* True when both networks may read one normalised tensor. The pass fuse gives a 7x7 stem a form of the images of its
 * own (space to depth), which needs a tensor that only the stem reads. */
static bool shares_input(const struct cr_model *student, const struct cr_teacher *teacher,
                         const struct cr_input_attr *a, const struct cr_input_attr *b) {
    return student->stem != CR_STEM_IMAGENET && teacher->model.stem != CR_STEM_IMAGENET &&
           memcmp(a->mean, b->mean, sizeof a->mean) == 0 && memcmp(a->std, b->std, sizeof a->std) == 0;
}

/* The student's images, normalised as the teacher's were. */
static int teacher_input(struct cr_program *p, const struct cr_model *student, const struct cr_program *from, int x,
                         int *teacher_x) {
    const int own    = cr_program_writer(p, x);
    int       theirs = CR_NONE;
    for (int i = 0; i < from->ops && theirs == CR_NONE; i++)
        if (from->op[i].kind == CR_OP_normalize) theirs = i;
    CR_ASSERT(own != CR_NONE && theirs != CR_NONE);
    *teacher_x = from->op[theirs].out[0];
    if (shares_input(student, student->teacher, &p->op[own].attr.input, &from->op[theirs].attr.input)) return x;
    struct cr_op op = p->op[own];
    op.attr.input   = from->op[theirs].attr.input;
    op.out[0]       = CR_NONE;
    op.layer        = cr_program_layer(p, "teacher.input");
    const int index = cr_emit(p, &op, "teacher.input.y");
    return p->failed ? 0 : p->op[index].out[0];
}

void cr_teacher_emit(struct cr_net *net, const struct cr_model *student, int x) {
    struct cr_teacher *teacher = student->teacher;
    struct cr_program *p       = net->program, from;
    int                teacher_x;
    if (p->failed) return;
    const int     logits = build(teacher, p->tensor[x].dim[0], p->real, &from);
    struct splice s      = {.p = p, .from = &from, .map = cr_alloc((size_t)from.tensors, sizeof *s.map)};
    if (from.failed || !s.map) {
        p->failed = true;
        p->too_large |= from.too_large;
    } else {
        for (int i = 0; i < from.tensors; i++) s.map[i] = CR_NONE;
        const int input  = teacher_input(p, student, &from, x, &teacher_x);
        s.map[teacher_x] = input;
        for (int i = 0; i < from.ops && !p->failed; i++) copy_op(&s, teacher, i);
        net->teacher_logits = mapped(&s, logits);
    }
    cr_free(s.map);
    cr_program_free(&from);
}

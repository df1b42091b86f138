/* graph/program_check.c: checks the invariants of a program. See graph/graph.h. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static cr_status check_names(const struct cr_program *p) {
    const char **names;
    cr_status    status = CR_OK;
    CR_ALLOC(names, (size_t)p->tensors);
    for (int i = 0; i < p->tensors; i++) names[i] = p->tensor[i].name;
    qsort(names, (size_t)p->tensors, sizeof *names, cr_compare_texts);
    for (int i = 1; i < p->tensors && status == CR_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = CR_FAIL(CR_ERR_DEVICE, "program %s: two tensors are named %s", p->name, names[i]);
    cr_free(names);
    return status;
}

static cr_status check_slots(const struct cr_program *p, int index, const struct cr_op *op) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins + info->outs; s++) {
        bool in = s < info->ins;
        int  k = in ? s : s - info->ins, id = in ? op->in[k] : op->out[k];
        bool optional = in ? info->in_optional[k] : info->out_optional[k];
        if (id >= p->tensors || id < CR_NONE || (id == CR_NONE && !optional))
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s): slot %s holds no tensor", p->name, index, info->name,
                           in ? info->in_name[k] : info->out_name[k]);
    }
    return CR_OK;
}

/* POOL and HOST tensors have one writer, which precedes every reader. */
static bool is_transient(const struct cr_program *p, int id) {
    return id >= 0 && (p->tensor[id].region == CR_REGION_POOL || p->tensor[id].region == CR_REGION_HOST);
}

/* written[id] is set when an earlier op writes tensor id. */
static cr_status check_order(const struct cr_program *p, int index, const struct cr_op *op, bool *written) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins; s++) {
        int id = op->in[s];
        if (is_transient(p, id) && !written[id])
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s) reads %s before any op writes it", p->name, index,
                           info->name, p->tensor[id].name);
    }
    for (int s = 0; s < info->outs; s++) {
        int id = op->out[s];
        if (!is_transient(p, id)) continue;
        bool updated_in_place = false; /* metrics: the same tensor is read and written */
        for (int k = 0; k < info->ins; k++) updated_in_place |= op->in[k] == id;
        if (written[id] && !updated_in_place)
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s) writes %s a second time", p->name, index, info->name,
                           p->tensor[id].name);
        written[id] = true;
    }
    return CR_OK;
}

/* ---- the parameter store ---- */

/* A tensor of the parameter store gets its offset when it is created. A parameter that is added later moves all buffers
 * behind its own. */
static cr_status check_store(const struct cr_program *p) {
    for (int i = 0; p->store && i < p->tensors; i++) {
        const struct cr_tensor *t = &p->tensor[i];
        if (t->region != CR_REGION_STORE || t->buffer == CR_NONE || t->param == CR_SEVERAL) continue;
        const size_t offset = cr_param_store_offset(p->store, (enum cr_param_buffer)t->buffer, t->param);
        if (t->offset != offset)
            return CR_FAIL(CR_ERR_DEVICE,
                           "program %s: %s is at byte %zu of the parameter store, its parameter at byte %zu", p->name,
                           t->name, t->offset, offset);
    }
    return CR_OK;
}

/* ---- gradients ---- */

/* What the ops of a program do with the gradient of one parameter. Only the ops that touch a parameter visit it, so the
 * check needs time in proportion to the ops: networks may have thousands of parameters. */
struct grad_use {
    int writers;      /* ops that write it, without all_reduce */
    int last_writer;  /* -1: none */
    int first_reader; /* the number of ops: none */
    int sums;         /* all_reduces that cover it; each that covers only a part counts as two */
    int last_sum;     /* -1: none */
};

struct grad_check {
    const struct cr_program *program;
    const int               *param; /* trainable and frozen parameters, in the order of their offsets */
    int                      params;
    struct grad_use         *use;  /* [params] */
    size_t                   base; /* offset of the gradient buffer, and bytes of one element */
    size_t                   size;
};

static size_t grad_begin(const struct grad_check *c, int k) {
    return c->base + (size_t)c->program->store->param[c->param[k]].offset * c->size;
}

static size_t grad_end(const struct grad_check *c, int k) {
    return grad_begin(c, k) + (size_t)c->program->store->param[c->param[k]].elems * c->size;
}

/* The parameters *begin to *end - 1 are those whose gradients the tensor overlaps. */
static void overlapped_params(const struct grad_check *c, int tensor, int *begin, int *end) {
    *begin = *end = 0;
    if (tensor < 0 || c->program->tensor[tensor].region != CR_REGION_STORE) return;
    const struct cr_tensor *t    = &c->program->tensor[tensor];
    int                     high = c->params;
    while (*begin < high) {
        int middle = *begin + (high - *begin) / 2;
        if (grad_end(c, middle) <= t->offset)
            *begin = middle + 1;
        else
            high = middle;
    }
    for (*end = *begin; *end < c->params && grad_begin(c, *end) < t->offset + t->bytes;) ++*end;
}

static void note_all_reduce(struct grad_check *c, int index) {
    const struct cr_op     *op = &c->program->op[index];
    const struct cr_tensor *t  = &c->program->tensor[op->out[0]];
    int                     begin, end;
    overlapped_params(c, op->out[0], &begin, &end);
    for (int k = begin; k < end; k++) {
        bool whole = t->offset <= grad_begin(c, k) && grad_end(c, k) <= t->offset + t->bytes;
        c->use[k].sums += whole && op->in[0] == op->out[0] ? 1 : 2;
        c->use[k].last_sum = index;
    }
}

static void note_gradients(struct grad_check *c, int index, const struct cr_op *op) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    int                      begin, end;
    if (op->kind == CR_OP_all_reduce) {
        note_all_reduce(c, index);
        return;
    }
    for (int s = 0; s < info->outs; s++) {
        overlapped_params(c, op->out[s], &begin, &end);
        for (int k = begin; k < end; k++) {
            c->use[k].writers += c->use[k].last_writer != index;
            c->use[k].last_writer = index;
        }
    }
    for (int s = 0; s < info->ins; s++) {
        overlapped_params(c, op->in[s], &begin, &end);
        for (int k = begin; k < end; k++) c->use[k].first_reader = CR_MIN(c->use[k].first_reader, index);
    }
}

/* In programs that sum gradients over ranks: one all_reduce covers the whole gradient of each trainable parameter,
 * after its last writer and before its first reader. */
static cr_status check_all_reduce(const struct grad_check *c, int k) {
    const struct grad_use *use = &c->use[k];
    const struct cr_param *q   = &c->program->store->param[c->param[k]];
    if (q->frozen) return CR_OK; /* a bucket may contain the zeros of frozen parameters */
    if (use->sums == 1 && use->last_sum > use->last_writer && use->last_sum < use->first_reader) return CR_OK;
    return CR_FAIL(
        CR_ERR_DEVICE,
        "program %s: the gradient of %s must be summed over the ranks exactly once, between its writer (op %d) "
        "and its reader (op %d): %d sums, the last is op %d",
        c->program->name, q->name, use->last_writer, use->first_reader, use->sums, use->last_sum);
}

static bool reduces_gradients(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_all_reduce && p->tensor[p->op[i].out[0]].buffer == CR_BUFFER_GRAD) return true;
    return false;
}

static cr_status check_uses(struct grad_check *c) {
    const bool reduced = reduces_gradients(c->program);
    for (int k = 0; k < c->params; k++)
        c->use[k] = (struct grad_use){.last_writer = -1, .first_reader = c->program->ops, .last_sum = -1};
    for (int i = 0; i < c->program->ops; i++) {
        int                 parts;
        const struct cr_op *part = cr_op_parts(&c->program->op[i], &parts);
        for (int k = 0; k < parts; k++) note_gradients(c, i, &part[k]);
    }
    for (int k = 0; k < c->params; k++) {
        const struct cr_param *q = &c->program->store->param[c->param[k]];
        if (c->use[k].writers != (q->frozen ? 0 : 1))
            return CR_FAIL(CR_ERR_DEVICE, "program %s: the gradient of %s has %d writers", c->program->name, q->name,
                           c->use[k].writers);
        if (reduced) CR_TRY(check_all_reduce(c, k));
    }
    return CR_OK;
}

/* In a program with a loss gradient exactly one op writes each trainable parameter's slice of the gradient buffer. */
static cr_status check_gradients(const struct cr_program *p) {
    bool has_backward = false;
    for (int i = 0; i < p->ops; i++) has_backward |= p->op[i].kind == CR_OP_loss_grad || p->op[i].kind == CR_OP_head;
    if (!has_backward || !p->store) return CR_OK;
    const size_t      params = (size_t)p->store->params;
    struct grad_check c      = {.program = p,
                                .base    = cr_param_store_buffer_offset(p->store, CR_BUFFER_GRAD),
                                .size    = cr_dtype_bytes(p->store->real)};
    cr_status         status;
    int              *param;
    CR_ALLOC(param, params);
    CR_ALLOC_OUT(c.use, params);
    for (int k = 0; k < p->store->params; k++)
        if (!cr_param_is_running(p->store->param[k].role)) param[c.params++] = k;
    c.param = param;
    status  = check_uses(&c);
out:
    cr_free(param);
    cr_free(c.use);
    return status;
}

cr_status cr_program_check(const struct cr_program *p) {
    if (p->failed) return CR_NO_MEMORY(0);
    bool *written;
    CR_ALLOC(written, (size_t)p->tensors);
    cr_status status = check_names(p);
    for (int i = 0; i < p->ops && status == CR_OK; i++) {
        int                 parts;
        const struct cr_op *part = cr_op_parts(&p->op[i], &parts);
        for (int k = 0; k < parts && status == CR_OK; k++) {
            status = check_slots(p, i, &part[k]);
            if (status == CR_OK) status = check_order(p, i, &part[k], written);
        }
    }
    if (status == CR_OK) status = check_store(p);
    if (status == CR_OK) status = check_gradients(p);
    cr_free(written);
    return status;
}

/* graph/program.c: builds and copies programs, and finds the lifetimes of their tensors. See graph/graph.h. */
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

/* ---- building ---- */

void cr_program_init(struct cr_program *p, const char *name, const struct cr_param_store *store) {
    *p = (struct cr_program){.name          = name,
                             .store         = store,
                             .real          = CR_F32,
                             .images        = CR_NONE,
                             .labels        = CR_NONE,
                             .boxes         = CR_NONE,
                             .mixes         = CR_NONE,
                             .features      = CR_NONE,
                             .maps          = CR_NONE,
                             .logits        = CR_NONE,
                             .metrics       = CR_NONE,
                             .class_weights = CR_NONE,
                             .grad_norm     = CR_NONE};
}

void cr_program_free(struct cr_program *p) {
    cr_free(p->tensor);
    cr_free(p->op);
    cr_free(p->layer);
    cr_arena_free(&p->arena);
    cr_program_init(p, "", NULL);
}

/* Makes room for one more element in *array; returns false and sets p->failed when there is no memory. */
static bool grow(struct cr_program *p, void *array, int used, int *capacity, size_t size) {
    if (p->failed) return false;
    if (used < *capacity) return true;
    int   new_capacity = CR_MAX(64, *capacity * 2);
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = cr_realloc(old, (size_t)new_capacity, size);
    if (!grown) {
        p->failed = true;
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *capacity = new_capacity;
    return true;
}

static const char *copy_name(struct cr_program *p, const char *name) {
    const char *copy = cr_arena_printf(&p->arena, "%s", name);
    if (!copy) p->failed = true;
    return copy ? copy : "";
}

int cr_program_layer(struct cr_program *p, const char *name) {
    if (!grow(p, &p->layer, p->layers, &p->layer_capacity, sizeof *p->layer)) return 0;
    p->layer[p->layers] = copy_name(p, name);
    return p->layers++;
}

int cr_tensor_add(struct cr_program *p, const char *name, enum cr_dtype dtype, enum cr_region region, int64_t d0,
                  int64_t d1, int64_t d2, int64_t d3) {
    CR_ASSERT(d0 > 0 && d1 > 0 && d2 > 0 && d3 > 0);
    double bytes = (double)d0 * (double)d1 * (double)d2 * (double)d3 * (double)cr_dtype_bytes(dtype);
    if (bytes > (double)CR_TENSOR_BYTES_MAX) p->failed = p->too_large = true;
    if (!grow(p, &p->tensor, p->tensors, &p->tensor_capacity, sizeof *p->tensor)) return 0;
    struct cr_tensor *t = &p->tensor[p->tensors];
    *t                  = (struct cr_tensor){.name    = copy_name(p, name),
                                             .dtype   = dtype,
                                             .region  = region,
                                             .dim     = {d0, d1, d2, d3},
                                             .first   = -1,
                                             .last    = -1,
                                             .alias   = CR_NONE,
                                             .buffer  = CR_NONE,
                                             .param   = CR_NONE,
                                             .copy_of = CR_NONE};
    t->bytes            = (size_t)cr_tensor_elems(t) * cr_dtype_bytes(dtype);
    if (region == CR_REGION_INPUT || region == CR_REGION_HOST) {
        t->offset = p->region_bytes[region];
        p->region_bytes[region] += (t->bytes + 255) / 256 * 256;
    }
    return p->tensors++;
}

int cr_tensor_derive(struct cr_program *p, const char *of, const char *suffix, enum cr_dtype dtype,
                     enum cr_region region, const int64_t dim[4]) {
    char   name[300];
    size_t used = (size_t)snprintf(name, sizeof name, "%s%s", of, suffix);
    for (; used + 1 < sizeof name && cr_tensor_find(p, name) != CR_NONE; used++) memcpy(name + used, "'", 2);
    return cr_tensor_add(p, name, dtype, region, dim[0], dim[1], dim[2], dim[3]);
}

int cr_tensor_find(const struct cr_program *p, const char *name) {
    for (int i = 0; i < p->tensors; i++)
        if (strcmp(p->tensor[i].name, name) == 0) return i;
    return CR_NONE;
}

int cr_tensor_store_find(const struct cr_program *p, enum cr_param_buffer buffer, int param) {
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].buffer == (int)buffer && p->tensor[i].param == param) return i;
    return CR_NONE;
}

int cr_tensor_store(struct cr_program *p, enum cr_param_buffer buffer, int param) {
    char name[256];
    int  id = cr_tensor_store_find(p, buffer, param);
    if (id != CR_NONE || p->failed) return CR_MAX(id, 0);
    if (param == CR_NONE)
        snprintf(name, sizeof name, "buffer.%s", cr_param_buffer_name(buffer));
    else if (buffer == CR_BUFFER_VALUE || buffer == CR_BUFFER_RUNNING)
        snprintf(name, sizeof name, "%s", p->store->param[param].name);
    else
        snprintf(name, sizeof name, "%s.%s", cr_param_buffer_name(buffer), p->store->param[param].name);
    CR_ASSERT(param == CR_NONE || buffer != CR_BUFFER_MASK);
    const enum cr_dtype dtype    = cr_param_store_buffer_dtype(p->store, buffer);
    const size_t        elems    = cr_param_store_buffer_bytes(p->store, buffer) / cr_dtype_bytes(dtype);
    const int64_t       whole[4] = {1, 1, 1, CR_MAX((int64_t)elems, 1)};
    const int64_t      *dim      = param == CR_NONE ? whole : p->store->param[param].dim;
    id                           = cr_tensor_add(p, name, dtype, CR_REGION_STORE, dim[0], dim[1], dim[2], dim[3]);
    if (p->failed) return id;
    p->tensor[id].offset = cr_param_store_offset(p->store, buffer, param);
    p->tensor[id].buffer = (int)buffer;
    p->tensor[id].param  = param;
    return id;
}

int cr_emit(struct cr_program *p, const struct cr_op *given, const char *name) {
    if (!grow(p, &p->op, p->ops, &p->op_capacity, sizeof *p->op)) return 0;
    struct cr_op             op   = *given;
    const struct cr_op_info *info = cr_op_info(op.kind);
    for (int s = 0; s < info->ins; s++) CR_ASSERT(op.in[s] != CR_NONE || info->in_optional[s]);
    for (int s = 0; s < info->outs; s++) {
        if (op.out[s] >= 0 || (op.out[s] == CR_NONE && info->out_optional[s])) continue;
        enum cr_dtype dtype;
        int64_t       dim[4];
        char          tensor_name[256];
        cr_op_infer(p, &op, s, &dtype, dim);
        if (s == 0)
            snprintf(tensor_name, sizeof tensor_name, "%s", name);
        else
            snprintf(tensor_name, sizeof tensor_name, "%s.%s", name, info->out_name[s]);
        op.out[s] = cr_tensor_add(p, tensor_name, dtype, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
        if (p->failed) return 0;
    }
    p->op[p->ops] = op;
    return p->ops++;
}

void cr_emit_at(struct cr_program *p, int at, const struct cr_op *op, const char *name) {
    const int from = cr_emit(p, op, name);
    if (p->failed) return;
    const struct cr_op made = p->op[from];
    memmove(&p->op[at + 1], &p->op[at], (size_t)(from - at) * sizeof made);
    p->op[at] = made;
}

static void copy_parts(struct cr_program *p, struct cr_op *op) {
    if (op->kind != CR_OP_fused) return;
    const struct cr_op fused = cr_op_fuse(p, op->attr.fused.part, op->attr.fused.parts);
    op->attr.fused           = fused.attr.fused;
}

cr_status cr_program_copy(const struct cr_program *from, struct cr_program *to) {
    struct cr_program p = *from;
    p.arena             = (struct cr_arena){0};
    p.tensor            = cr_alloc((size_t)from->tensors, sizeof *p.tensor);
    p.op                = cr_alloc((size_t)from->ops, sizeof *p.op);
    p.layer             = cr_alloc((size_t)from->layers, sizeof *p.layer);
    p.tensor_capacity   = from->tensors;
    p.op_capacity       = from->ops;
    p.layer_capacity    = from->layers;
    if (!p.tensor || !p.op || !p.layer) goto no_memory;
    if (from->tensors) memcpy(p.tensor, from->tensor, (size_t)from->tensors * sizeof *p.tensor);
    if (from->ops) memcpy(p.op, from->op, (size_t)from->ops * sizeof *p.op);
    for (int i = 0; i < p.tensors; i++) p.tensor[i].name = copy_name(&p, from->tensor[i].name);
    for (int i = 0; i < p.layers; i++) p.layer[i] = copy_name(&p, from->layer[i]);
    for (int i = 0; i < p.ops; i++) copy_parts(&p, &p.op[i]);
    if (p.failed && !from->failed) goto no_memory;
    *to = p;
    return CR_OK;
no_memory:
    cr_program_free(&p);
    return CR_NO_MEMORY((size_t)from->tensors * sizeof *from->tensor);
}

/* ---- lifetimes ---- */

int cr_program_writer(const struct cr_program *p, int tensor) {
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (p->op[i].out[s] == tensor) return i;
    return CR_NONE;
}

bool cr_program_is_constant(const struct cr_program *p, int tensor) {
    const int writer = cr_program_writer(p, tensor);
    return p->hoisted > 0 &&
           (p->tensor[tensor].region == CR_REGION_STORE || (writer != CR_NONE && writer < p->hoisted));
}

void cr_program_lifetimes(struct cr_program *p) {
    for (int t = 0; t < p->tensors; t++) p->tensor[t].first = p->tensor[t].last = -1;
    for (int i = 0; i < p->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_operands(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            struct cr_tensor *t = &p->tensor[ids[k]];
            if (t->first < 0) t->first = i;
            t->last = i;
        }
    }
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].keep && p->tensor[t].first >= 0) p->tensor[t].last = p->ops - 1;
}

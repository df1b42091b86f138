/* compiler/rewrite/rewrite.c: edits a program in place and compacts it at the end. */
#include "compiler/rewrite/rewrite.h"

/* Adds `sign` to the reader and writer counts of the op's operands. */
static void count_operands(struct cr_edit *edit, const struct cr_op *op, int sign) {
    int ids[CR_OP_IDS_MAX], n = cr_op_reads(op, ids);
    for (int i = 0; i < n; i++) edit->reads[ids[i]] += sign;
    n = cr_op_writes(op, ids);
    for (int i = 0; i < n; i++) edit->writes[ids[i]] += sign;
}

static void record_writer(struct cr_edit *edit, int index) {
    int ids[CR_OP_IDS_MAX], n = cr_op_writes(&edit->program->op[index], ids);
    for (int i = 0; i < n; i++)
        if (edit->writer[ids[i]] == CR_NONE || index < edit->writer[ids[i]]) edit->writer[ids[i]] = index;
}

cr_status cr_edit_open(struct cr_edit *edit, struct cr_program *program, const struct cr_cost_model *cost_model) {
    size_t tensors = (size_t)program->tensors, ops = (size_t)program->ops;
    *edit          = (struct cr_edit){.program = program, .cost_model = cost_model};
    edit->writer   = cr_alloc(tensors, sizeof *edit->writer);
    edit->reads    = cr_alloc(tensors, sizeof *edit->reads);
    edit->writes   = cr_alloc(tensors, sizeof *edit->writes);
    edit->removed  = cr_alloc(ops, sizeof *edit->removed);
    edit->capacity = (int)tensors;
    if (!edit->writer || !edit->reads || !edit->writes || !edit->removed) {
        cr_edit_close(edit);
        return CR_NO_MEMORY(tensors * 3 * sizeof(int) + ops);
    }
    for (int t = 0; t < program->tensors; t++) edit->writer[t] = CR_NONE;
    for (int i = 0; i < program->ops; i++) {
        count_operands(edit, &program->op[i], 1);
        record_writer(edit, i);
    }
    return CR_OK;
}

void cr_edit_close(struct cr_edit *edit) {
    cr_free(edit->writer);
    cr_free(edit->reads);
    cr_free(edit->writes);
    cr_free(edit->removed);
    *edit = (struct cr_edit){0};
}

void cr_edit_remove(struct cr_edit *edit, int index) {
    CR_ASSERT(!edit->removed[index]);
    edit->removed[index] = true;
    count_operands(edit, &edit->program->op[index], -1);
    int ids[CR_OP_IDS_MAX], n = cr_op_writes(&edit->program->op[index], ids);
    for (int i = 0; i < n; i++)
        if (edit->writer[ids[i]] == index) edit->writer[ids[i]] = CR_NONE;
}

void cr_edit_replace(struct cr_edit *edit, int index, const struct cr_op *fresh) {
    cr_edit_remove(edit, index);
    edit->removed[index]     = false;
    edit->program->op[index] = *fresh;
    count_operands(edit, fresh, 1);
    record_writer(edit, index);
}

static bool grow(int **array, int capacity) {
    int *fresh = cr_realloc(*array, (size_t)capacity, sizeof *fresh);
    if (fresh) *array = fresh;
    return fresh != NULL;
}

static bool make_room(struct cr_edit *edit) {
    if (edit->program->tensors < edit->capacity) return true;
    int wanted = CR_MAX(64, 2 * edit->capacity);
    if (!grow(&edit->writer, wanted) || !grow(&edit->reads, wanted) || !grow(&edit->writes, wanted)) return false;
    edit->capacity = wanted;
    return true;
}

int cr_edit_tensor(struct cr_edit *edit, const char *name, enum cr_dtype dtype, const int64_t dim[4]) {
    struct cr_program *p = edit->program;
    if (p->failed || !make_room(edit)) {
        p->failed = true;
        return CR_NONE;
    }
    int id = cr_tensor_add(p, name, dtype, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
    if (p->failed) return CR_NONE;
    edit->writer[id] = CR_NONE;
    edit->reads[id] = edit->writes[id] = 0;
    return id;
}

/* ---- queries ---- */

int cr_edit_next_reader(const struct cr_edit *edit, int tensor, int from) {
    for (int k = from + 1; k < edit->program->ops; k++) {
        if (edit->removed[k]) continue;
        int ids[CR_OP_IDS_MAX], n = cr_op_reads(&edit->program->op[k], ids);
        for (int i = 0; i < n; i++)
            if (ids[i] == tensor) return k;
    }
    return CR_NONE;
}

bool cr_edit_is_private(const struct cr_edit *edit, int tensor) {
    const struct cr_program *p = edit->program;
    if (tensor < 0 || p->tensor[tensor].region != CR_REGION_POOL || p->tensor[tensor].keep) return false;
    return tensor != p->images && tensor != p->labels && tensor != p->boxes && tensor != p->mixes &&
           tensor != p->logits && tensor != p->metrics;
}

bool cr_edit_is_inner(const struct cr_edit *edit, int tensor, int reads) {
    return cr_edit_is_private(edit, tensor) && edit->writes[tensor] == 1 && edit->reads[tensor] == reads;
}

int cr_edit_private_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind) {
    if (!cr_edit_is_inner(edit, tensor, 1)) return CR_NONE;
    int writer = edit->writer[tensor];
    return writer != CR_NONE && edit->program->op[writer].kind == kind ? writer : CR_NONE;
}

static bool overlap(const struct cr_program *p, int a, int b) {
    if (a == b) return true;
    if (p->tensor[a].region == CR_REGION_POOL) return false; /* POOL tensors have no offsets yet */
    return cr_tensors_overlap(&p->tensor[a], &p->tensor[b]);
}

static bool any_overlap(const struct cr_program *p, const int *a, int n, const int *b, int m) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            if (overlap(p, a[i], b[j])) return true;
    return false;
}

bool cr_edit_can_move(const struct cr_edit *edit, int from, int to) {
    const struct cr_program *p = edit->program;
    int                      reads[CR_OP_IDS_MAX], writes[CR_OP_IDS_MAX], n = cr_op_reads(&p->op[from], reads);
    for (int k = from + 1; k < to; k++)
        if (!edit->removed[k] && any_overlap(p, reads, n, writes, cr_op_writes(&p->op[k], writes))) return false;
    return true;
}

bool cr_edit_can_move_up(const struct cr_edit *edit, int from, int to) {
    const struct cr_program *p = edit->program;
    int                      reads[CR_OP_IDS_MAX], writes[CR_OP_IDS_MAX], ids[CR_OP_IDS_MAX];
    const int                n = cr_op_reads(&p->op[from], reads), m = cr_op_writes(&p->op[from], writes);
    for (int k = to + 1; k < from; k++) {
        if (edit->removed[k]) continue;
        int count = cr_op_writes(&p->op[k], ids);
        if (any_overlap(p, reads, n, ids, count) || any_overlap(p, writes, m, ids, count)) return false;
        count = cr_op_reads(&p->op[k], ids);
        if (any_overlap(p, writes, m, ids, count)) return false;
    }
    return true;
}

/* ---- compaction ---- */

static void remap(int *id, const int *map) {
    if (*id >= 0) *id = map[*id];
}

static void remap_op(struct cr_op *op, const int *map) {
    for (int k = 0; op->kind == CR_OP_fused && k < op->attr.fused.parts; k++) remap_op(&op->attr.fused.part[k], map);
    for (int s = 0; s < CR_OP_IN_MAX; s++) remap(&op->in[s], map);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) remap(&op->out[s], map);
    for (int i = 0; i < CR_OP_WAIT_MAX; i++) op->wait[i] = CR_NONE;
    remap(&op->workspace, map);
}

static bool is_needed(const struct cr_edit *edit, int tensor) {
    return edit->reads[tensor] > 0 || edit->writes[tensor] > 0 || !cr_edit_is_private(edit, tensor);
}

cr_status cr_edit_finish(struct cr_edit *edit) {
    struct cr_program *p = edit->program;
    int               *map;
    if (p->failed) return CR_NO_MEMORY((size_t)p->tensors * sizeof *p->tensor);
    if (edit->failure != CR_OK) return edit->failure;
    CR_ALLOC(map, (size_t)p->tensors);
    int tensors = 0, ops = 0;
    for (int t = 0; t < p->tensors; t++) map[t] = is_needed(edit, t) ? tensors++ : CR_NONE;
    for (int t = 0; t < p->tensors; t++) {
        if (map[t] == CR_NONE) continue;
        struct cr_tensor *to = &p->tensor[map[t]];
        *to                  = p->tensor[t];
        to->alias            = CR_NONE;
        to->first = to->last = -1;
        remap(&to->copy_of, map);
        if (to->region == CR_REGION_POOL) to->offset = 0;
    }
    for (int i = 0; i < p->ops; i++) {
        if (edit->removed[i]) continue;
        p->op[ops] = p->op[i];
        remap_op(&p->op[ops++], map);
    }
    int *refs[] = {&p->images, &p->labels,  &p->boxes,     &p->mixes,         &p->features,
                   &p->logits, &p->metrics, &p->grad_norm, &p->class_weights, &p->maps};
    for (size_t i = 0; i < CR_COUNT(refs); i++) remap(refs[i], map);
    p->tensors                      = tensors;
    p->ops                          = ops;
    p->region_bytes[CR_REGION_POOL] = p->bound_bytes = 0;
    cr_free(map);
    return CR_OK;
}

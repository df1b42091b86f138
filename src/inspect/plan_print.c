/* inspect/plan_print.c: prints a planned program as tables, a map of the pool, CSV and JSON. */
#include "inspect/plan_print.h"

#include "compiler/passes.h"
#include "compiler/schedule/streams.h"
#include "config/config.h"
#include "formats/json_write.h"

static const struct {
    char        letter;
    const char *name;
} kinds[CR_PLAN_KINDS] = {
    {'a', "activations"}, {'g', "gradients"}, {'s', "statistics"}, {'w', "workspaces"}, {'o', "offloaded"}};

enum { ROWS = 20, COLUMNS = 96, LARGEST = 5 };

/* ---- the lifetimes of the transients ---- */

/* Of a chain of tensors that reuse one storage; stored at the first tensor of the chain. */
struct lifetime {
    int  first, last;
    bool used;
};

struct view {
    const struct cr_program *p;
    enum cr_plan_kind       *kind; /* by tensor */
    struct cr_stream_interval
                    *interval; /* by tensor: live interval as planned, extended where streams run concurrently */
    struct lifetime *lifetime; /* by tensor: lifetime of the chain, valid at its first tensor */
    size_t          *load;     /* by op: live bytes */
    int              peak_op;
    size_t           sum; /* bytes of all transients, without reuse */
    const char      *unit;
    double           unit_bytes;
    struct cr_arena  arena; /* of the arrays */
};

static double in_units(const struct view *v, double bytes) {
    return bytes / v->unit_bytes;
}

static bool is_transient(const struct cr_tensor *t) {
    return t->region == CR_REGION_POOL && t->first >= 0;
}

static enum cr_plan_kind kind_of_op(enum cr_op_kind op) {
    switch (op) {
    case CR_OP_bn_sums:
    case CR_OP_bn_finalize:
    case CR_OP_bn_scale_bias:
    case CR_OP_gram:
    case CR_OP_gram_bn_finalize:
    case CR_OP_gram_bn_sums:
    case CR_OP_gram_bn_grad_sums:
    case CR_OP_bn_grad_sums:
    case CR_OP_bn_grad_finalize:
    case CR_OP_grad_norm:
    case CR_OP_param_norms:
    case CR_OP_lamb_norms:
    case CR_OP_loss:
    case CR_OP_zero: return CR_PLAN_STATISTICS;
    default:
        return op >= CR_OP_loss_grad ? CR_PLAN_GRADIENT
                                     : CR_PLAN_ACTIVATION; /* in graph/ops.def backward ops follow forward ops */
    }
}

/* The same op computes sums of gradients and sums of activations: its output is a gradient if the op comes after the
 * loss. */
void cr_plan_kinds(const struct cr_program *p, enum cr_plan_kind *out) {
    bool backward = false;
    for (int i = 0; i < p->ops; i++) {
        int                 parts;
        const struct cr_op *op = &p->op[i], *part = cr_op_parts(op, &parts);
        backward |= op->kind == CR_OP_loss_grad || op->kind == CR_OP_head;
        for (int k = 0; k < parts * CR_OP_OUT_MAX; k++) {
            const int               id   = part[k / CR_OP_OUT_MAX].out[k % CR_OP_OUT_MAX];
            const enum cr_plan_kind kind = kind_of_op(part[k / CR_OP_OUT_MAX].kind);
            if (id >= 0) out[id] = kind == CR_PLAN_ACTIVATION && backward ? CR_PLAN_GRADIENT : kind;
        }
        if (op->workspace >= 0) out[op->workspace] = CR_PLAN_WORKSPACE;
    }
    for (int i = 0; i < p->ops; i++) { /* offloaded and prefetched tensors, and the events between the copies */
        const struct cr_op *op = &p->op[i];
        if (op->kind == CR_OP_offload) out[op->in[CR_IN_offload_x]] = CR_PLAN_OFFLOADED;
        if (op->kind == CR_OP_prefetch) out[op->out[CR_OUT_prefetch_y]] = CR_PLAN_OFFLOADED;
        if (op->kind == CR_OP_barrier && op->out[CR_OUT_barrier_event] >= 0)
            out[op->out[CR_OUT_barrier_event]] = CR_PLAN_OFFLOADED;
    }
}

static void find_lifetimes(struct view *v) {
    const struct cr_program *p = v->p;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        if (!is_transient(x)) continue;
        struct lifetime *lifetime = &v->lifetime[cr_alias_root(p, t)];
        if (!lifetime->used) *lifetime = (struct lifetime){v->interval[t].lower, v->interval[t].upper - 1, true};
        lifetime->first = CR_MIN(lifetime->first, v->interval[t].lower);
        lifetime->last  = CR_MAX(lifetime->last, v->interval[t].upper - 1);
        v->sum += x->bytes;
    }
}

static void find_load(struct view *v) {
    for (int t = 0; t < v->p->tensors; t++)
        for (int i = v->lifetime[t].first; v->lifetime[t].used && i <= v->lifetime[t].last; i++)
            v->load[i] += v->p->tensor[t].bytes;
    for (int i = 1; i < v->p->ops; i++)
        if (v->load[i] > v->load[v->peak_op]) v->peak_op = i;
}

static cr_status find_all(struct view *v) {
    const size_t tensors = (size_t)v->p->tensors;
    CR_ARENA_ALLOC(&v->arena, v->kind, tensors);
    CR_ARENA_ALLOC(&v->arena, v->interval, tensors);
    CR_ARENA_ALLOC(&v->arena, v->lifetime, tensors);
    CR_ARENA_ALLOC(&v->arena, v->load, (size_t)v->p->ops + 1);
    CR_TRY(cr_stream_intervals(v->p, v->interval));
    cr_plan_kinds(v->p, v->kind);
    find_lifetimes(v);
    find_load(v);
    return CR_OK;
}

/* Without memory sets out->failed and returns false. The caller frees v->arena. */
static bool view_open(struct view *v, const struct cr_program *p, struct cr_text *out) {
    bool small = p->region_bytes[CR_REGION_POOL] < 1 << 20; /* tiny networks, as in tests */
    *v         = (struct view){.p = p, .unit = small ? "KiB" : "MiB", .unit_bytes = small ? 1 << 10 : 1 << 20};
    if (find_all(v) == CR_OK) return true;
    cr_arena_free(&v->arena);
    out->failed = true;
    return false;
}

/* ---- tables ---- */

static double ratio(const struct cr_program *p) {
    return p->bound_bytes ? (double)p->region_bytes[CR_REGION_POOL] / (double)p->bound_bytes : 1;
}

static void print_regions(const struct view *v, struct cr_text *out) {
    const struct cr_program *p = v->p;
    cr_text_add(out, "program %s: %d ops, %d tensors\n\n", p->name, p->ops, p->tensors);
    cr_text_add(out, "pool   %10.2f %s   lower bound %.2f, peak/bound %.4f; %.2f without memory reuse\n",
                in_units(v, (double)p->region_bytes[CR_REGION_POOL]), v->unit, in_units(v, (double)p->bound_bytes),
                ratio(p), in_units(v, (double)v->sum));
    cr_text_add(out, "store  %10.2f %s  ", in_units(v, p->store ? (double)cr_param_store_bytes(p->store) : 0), v->unit);
    for (int k = 0; k < CR_BUFFERS && p->store; k++) {
        const size_t bytes = cr_param_store_buffer_bytes(p->store, (enum cr_param_buffer)k);
        if (bytes)
            cr_text_add(out, "%s %s %.2f", k ? "," : "", cr_param_buffer_name((enum cr_param_buffer)k),
                        in_units(v, (double)bytes));
    }
    cr_text_add(out, "\ninput  %10.2f %s\n", in_units(v, (double)p->region_bytes[CR_REGION_INPUT]), v->unit);
    if (p->region_bytes[CR_REGION_HOST])
        cr_text_add(out, "host   %10.2f %s  page-locked, for offloaded tensors\n",
                    in_units(v, (double)p->region_bytes[CR_REGION_HOST]), v->unit);
}

/* Returns whether the tensor owns its storage at op `at`. At an op whose output reuses the storage, the output owns it.
 */
static bool owns_at_peak(const struct view *v, int t) {
    const struct cr_tensor *x  = &v->p->tensor[t];
    const int               at = v->peak_op;
    if (!is_transient(x) || at < x->first || at > x->last) return false;
    if (at != x->last) return true;
    const struct cr_op *op = &v->p->op[at];
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0 && v->p->tensor[op->out[s]].alias == t) return false;
    return true;
}

static void print_kinds(const struct view *v, struct cr_text *out) {
    const struct cr_program *p = v->p;
    struct {
        int    tensors;
        double all, peak;
    } sum[CR_PLAN_KINDS] = {0};
    for (int t = 0; t < p->tensors; t++) {
        if (!is_transient(&p->tensor[t])) continue;
        enum cr_plan_kind k = v->kind[t];
        sum[k].tensors++;
        sum[k].all += (double)p->tensor[t].bytes;
        if (owns_at_peak(v, t)) sum[k].peak += (double)p->tensor[t].bytes;
    }
    cr_text_add(out, "\n%-16s %8s %10s in all %10s at the peak op\n", "kind", "tensors", v->unit, v->unit);
    for (int k = 0; k < CR_PLAN_KINDS; k++)
        if (k != CR_PLAN_OFFLOADED || sum[k].tensors) /* few programs offload */
            cr_text_add(out, "%c %-14s %8d %17.2f %25.2f\n", kinds[k].letter, kinds[k].name, sum[k].tensors,
                        in_units(v, sum[k].all), in_units(v, sum[k].peak));
}

static void print_largest(const struct view *v, struct cr_text *out) {
    const struct cr_program *p = v->p;
    if (!p->ops) return;
    const struct cr_op *op    = &p->op[v->peak_op];
    const char         *layer = op->layer >= 0 && op->layer < p->layers ? p->layer[op->layer] : "";
    cr_text_add(out, "\npeak op: %d, %s%s%s, %.2f %s live; its largest tensors:\n", v->peak_op,
                cr_op_info(op->kind)->name, *layer ? " of " : "", layer, in_units(v, (double)v->load[v->peak_op]),
                v->unit);
    int shown[LARGEST], count = 0;
    for (; count < LARGEST; count++) {
        int best = CR_NONE;
        for (int t = 0; t < p->tensors; t++) {
            bool excluded = !owns_at_peak(v, t);
            for (int k = 0; k < count; k++) excluded |= shown[k] == t;
            if (!excluded && (best == CR_NONE || p->tensor[t].bytes > p->tensor[best].bytes)) best = t;
        }
        if (best == CR_NONE) break;
        shown[count]              = best;
        const struct cr_tensor *x = &p->tensor[best];
        cr_text_add(out, "%12.2f %s  %s  ", in_units(v, (double)x->bytes), v->unit, x->name);
        cr_tensor_add_shape(x, out);
        cr_text_add(out, "  ops %d to %d\n", x->first, x->last);
    }
}

/* ---- the map of the pool ---- */

struct pool_map {
    double cell[ROWS][COLUMNS][CR_PLAN_KINDS]; /* by row, column and kind: bytes times ops */
    int    columns;
    double row_bytes, column_ops;
};

static double overlap(double a, double b, double c, double d) {
    return CR_MAX(0, CR_MIN(b, d) - CR_MAX(a, c));
}

static void draw_tensor(struct pool_map *map, const struct cr_tensor *x, enum cr_plan_kind kind) {
    double low = (double)x->offset, high = low + (double)x->bytes, from = x->first, to = x->last + 1;
    int    row0 = (int)(low / map->row_bytes), column0 = (int)(from / map->column_ops);
    for (int r = row0; r < ROWS && r * map->row_bytes < high; r++)
        for (int c = column0; c < map->columns && c * map->column_ops < to; c++)
            map->cell[r][c][kind] += overlap(low, high, r * map->row_bytes, (r + 1) * map->row_bytes) *
                                     overlap(from, to, c * map->column_ops, (c + 1) * map->column_ops);
}

static char letter_of(const struct pool_map *map, int row, int column) {
    const double *cell    = map->cell[row][column];
    double        sum     = 0;
    int           largest = 0;
    for (int k = 0; k < CR_PLAN_KINDS; k++) {
        sum += cell[k];
        if (cell[k] > cell[largest]) largest = k;
    }
    return sum < map->row_bytes * map->column_ops / 2 ? '.' : kinds[largest].letter;
}

static void print_pool_map(const struct view *v, struct cr_text *out) {
    const struct cr_program *p    = v->p;
    double                   pool = (double)p->region_bytes[CR_REGION_POOL];
    if (pool <= 0 || p->ops == 0) return;
    struct pool_map *map = cr_alloc(1, sizeof *map);
    if (!map) {
        out->failed = true;
        return;
    }
    map->columns    = CR_MIN(COLUMNS, p->ops);
    map->column_ops = (double)p->ops / map->columns;
    map->row_bytes  = pool / ROWS;
    for (int t = 0; t < p->tensors; t++)
        if (is_transient(&p->tensor[t])) draw_tensor(map, &p->tensor[t], v->kind[t]);
    cr_text_add(out, "\nmap of the pool: time to the right, addresses upwards; the letter of the kind that fills most "
                     "of a cell, a point where "
                     "less than half is used\n");
    for (int r = ROWS - 1; r >= 0; r--) {
        char line[COLUMNS + 1] = {0};
        for (int c = 0; c < map->columns; c++) line[c] = letter_of(map, r, c);
        cr_text_add(out, "%10.2f |%s|\n", in_units(v, r * map->row_bytes), line);
    }
    cr_text_add(out, "%10s  op 0%*d\n", v->unit, map->columns - 4, p->ops - 1);
    cr_free(map);
}

void cr_plan_print_summary(const struct cr_program *p, struct cr_text *out) {
    struct view v;
    if (!view_open(&v, p, out)) return;
    print_regions(&v, out);
    print_kinds(&v, out);
    print_largest(&v, out);
    print_pool_map(&v, out);
    cr_arena_free(&v.arena);
}

/* ---- output for programs ---- */

void cr_plan_print_csv(const struct cr_program *p, struct cr_text *out) {
    struct view v;
    if (!view_open(&v, p, out)) return;
    cr_text_add(out, "id,lower,upper,size,offset\n");
    for (int t = 0; t < p->tensors; t++)
        if (v.lifetime[t].used)
            cr_text_add(out, "%d,%d,%d,%zu,%zu\n", t, v.lifetime[t].first, v.lifetime[t].last + 1, p->tensor[t].bytes,
                        p->tensor[t].offset);
    cr_arena_free(&v.arena);
}

static void json_offloads(const struct cr_program *p, struct cr_json_writer *w) {
    int offloaded = 0;
    for (int i = 0; i < p->ops; i++) offloaded += p->op[i].kind == CR_OP_prefetch;
    cr_json_put_int(w, "offloaded", offloaded);
}

static void json_sizes(const struct cr_plan_numbers *n, struct cr_json_writer *w) {
    if (n->sizes < 2) return;
    cr_json_open_array(w, "sizes");
    for (int k = 0; k < n->sizes; k++) {
        cr_json_open_object(w, NULL);
        cr_json_put_int(w, "image_size", n->size[k].image_size);
        cr_json_put_int(w, "from_epoch", n->size[k].from_epoch);
        cr_json_put_int(w, "ops", n->size[k].ops);
        cr_json_put_uint(w, "peak_bytes", n->size[k].peak_bytes);
        cr_json_put_uint(w, "bound_bytes", n->size[k].bound_bytes);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
}

void cr_plan_print_json(const struct cr_program *p, const struct cr_config *config, const struct cr_plan_numbers *n,
                        struct cr_text *out) {
    struct view v;
    if (!view_open(&v, p, out)) return;
    double bytes = 0, flops = 0;
    for (int i = 0; i < p->ops; i++) {
        double b, f;
        cr_op_cost(p, &p->op[i], &b, &f);
        bytes += b;
        flops += f;
    }
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "program", p->name);
    cr_json_put_string(&w, "config", config->name ? config->name : "");
    cr_json_put_string(&w, "arch", cr_word_arch(config->model.arch));
    cr_json_put_string(&w, "device", n->device);
    cr_json_put_int(&w, "batch", n->batch);
    cr_json_put_bool(&w, "fuse", config->train.fuse);
    cr_json_put_bool(&w, "reuse", config->memory.reuse);
    cr_json_put_int(&w, "ops", p->ops);
    cr_json_put_int(&w, "tensors", p->tensors);
    cr_json_put_uint(&w, "peak_bytes", p->region_bytes[CR_REGION_POOL]);
    cr_json_put_uint(&w, "bound_bytes", p->bound_bytes);
    cr_json_put_fixed(&w, "ratio", ratio(p), 6);
    cr_json_put_uint(&w, "sum_bytes", v.sum);
    cr_json_put_uint(&w, "store_bytes", p->store ? cr_param_store_bytes(p->store) : 0);
    cr_json_put_uint(&w, "input_bytes", p->region_bytes[CR_REGION_INPUT]);
    cr_json_put_uint(&w, "host_bytes", p->region_bytes[CR_REGION_HOST]);
    cr_json_put_int(&w, "peak_op", v.peak_op);
    json_offloads(p, &w);
    cr_json_put_fixed(&w, "flops", flops, 0);
    cr_json_put_fixed(&w, "bytes", bytes, 0);
    cr_json_put_fixed(&w, "plan_ms", n->plan_ms, 3);
    json_sizes(n, &w);
    cr_json_close_line(&w);
    cr_arena_free(&v.arena);
}

/* compiler/schedule/race_check.c: checks that each pair of conflicting accesses is ordered. It shares no code with
 * compiler/schedule/insert_waits.c.
 *
 * The check replays the program with one vector clock per stream: clock[l][m] counts the ops of stream m that are
 * complete for stream l. Memory is a sorted list of byte ranges. Each range remembers its last writer and, per stream,
 * its last reader since then. An access splits the ranges at its ends. The writer (and, for a write, the readers) of
 * each range that it covers must be complete. A write merges its ranges into one. Transients are compared by their
 * planned bytes; before plan, each transient has bytes of its own. */
#include "compiler/passes.h"

#include <string.h>

struct access { /* one op's access to a range */
    int op;     /* -1: none */
    int tensor;
};

struct range {
    uint64_t      begin, end;
    struct access writer, reader[CR_STREAMS];
};

struct replay {
    const struct cr_program *p;
    uint64_t                 base[CR_REGIONS]; /* start of each region in one address space */
    uint64_t                *transient_base;   /* before plan: address of each transient; NULL after plan */
    struct range            *range;            /* sorted, disjoint */
    int                      ranges, capacity;
    int                     *position;                      /* [ops] number of earlier ops of the same stream */
    int                      clock[CR_STREAMS][CR_STREAMS]; /* number of complete ops */
    int (*start_clock)[CR_STREAMS];                         /* [ops] clock of the op's stream when the op starts */
};

/* ---- memory ---- */

static void bounds_of(const struct replay *r, int tensor, uint64_t *begin, uint64_t *end) {
    const struct cr_tensor *t = &r->p->tensor[tensor];
    *begin =
        t->region == CR_REGION_POOL && r->transient_base ? r->transient_base[tensor] : r->base[t->region] + t->offset;
    *end = *begin + t->bytes;
}

static cr_status assign_addresses(struct replay *r) {
    const struct cr_program *p                  = r->p;
    uint64_t                 length[CR_REGIONS] = {0}, at = 0;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        length[x->region]         = CR_MAX(length[x->region], (uint64_t)x->offset + x->bytes);
    }
    for (int k = 0; k < CR_REGIONS; k++) {
        r->base[k] = at;
        at += length[k];
    }
    if (p->region_bytes[CR_REGION_POOL]) return CR_OK;
    CR_ALLOC(r->transient_base, (size_t)p->tensors);
    for (int t = 0; t < p->tensors; t++) {
        r->transient_base[t] = at;
        at += p->tensor[t].bytes;
    }
    return CR_OK;
}

static cr_status insert(struct replay *r, int at, const struct range *range) {
    CR_GROW(r->range, r->ranges, r->capacity, 256);
    memmove(&r->range[at + 1], &r->range[at], (size_t)(r->ranges - at) * sizeof *range);
    r->range[at] = *range;
    r->ranges++;
    return CR_OK;
}

/* Index of the first range that ends after `address`. */
static int find(const struct replay *r, uint64_t address) {
    int low = 0, high = r->ranges;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->range[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Splits the range that contains `address` in its inside. */
static cr_status split(struct replay *r, uint64_t address) {
    int k = find(r, address);
    if (k == r->ranges || r->range[k].begin >= address) return CR_OK;
    struct range right = r->range[k];
    right.begin        = address;
    r->range[k].end    = address;
    return insert(r, k + 1, &right);
}

/* ---- clocks ---- */

static cr_status conflict(const struct replay *r, struct access before, int op, int tensor) {
    const struct cr_program *p = r->p;
    return CR_FAIL(
        CR_ERR_DEVICE,
        "program %s: op %d (%s, stream %s) accesses %s, but does not wait for op %d (%s, stream %s), which accesses "
        "the same bytes as %s",
        p->name, op, cr_op_info(p->op[op].kind)->name, cr_stream_name(p->op[op].stream), p->tensor[tensor].name,
        before.op, cr_op_info(p->op[before.op].kind)->name, cr_stream_name(p->op[before.op].stream),
        p->tensor[before.tensor].name);
}

static bool is_complete(const struct replay *r, int op, struct access before) {
    if (before.op < 0 || before.op == op) return true;
    return r->clock[r->p->op[op].stream][r->p->op[before.op].stream] > r->position[before.op];
}

/* Checks an access to one range that it covers completely. */
static cr_status check_access(const struct replay *r, const struct range *range, int op, int tensor, bool writes) {
    if (!is_complete(r, op, range->writer)) return conflict(r, range->writer, op, tensor);
    for (int l = 0; l < CR_STREAMS && writes; l++)
        if (!is_complete(r, op, range->reader[l])) return conflict(r, range->reader[l], op, tensor);
    return CR_OK;
}

static struct range fresh_range(uint64_t begin, uint64_t end) {
    struct range range = {.begin = begin, .end = end, .writer = {-1, -1}};
    for (int l = 0; l < CR_STREAMS; l++) range.reader[l] = range.writer;
    return range;
}

static cr_status read_range(struct replay *r, int op, int tensor, uint64_t begin, uint64_t end) {
    int stream = r->p->op[op].stream;
    for (int k = find(r, begin); begin < end; k++) {
        uint64_t next = k < r->ranges ? CR_MIN(r->range[k].begin, end) : end;
        if (begin < next) { /* not accessed before */
            struct range range = fresh_range(begin, next);
            CR_TRY(insert(r, k, &range));
        }
        CR_TRY(check_access(r, &r->range[k], op, tensor, false));
        r->range[k].reader[stream] = (struct access){op, tensor};
        begin                      = r->range[k].end;
    }
    return CR_OK;
}

static cr_status write_range(struct replay *r, int op, int tensor, uint64_t begin, uint64_t end) {
    int first = find(r, begin), k = first;
    for (; k < r->ranges && r->range[k].begin < end; k++) CR_TRY(check_access(r, &r->range[k], op, tensor, true));
    struct range range = fresh_range(begin, end);
    range.writer       = (struct access){op, tensor};
    if (k == first) return insert(r, first, &range);
    r->range[first] = range;
    memmove(&r->range[first + 1], &r->range[k], (size_t)(r->ranges - k) * sizeof range);
    r->ranges -= k - first - 1;
    return CR_OK;
}

static cr_status access_tensor(struct replay *r, int op, int tensor, bool writes) {
    uint64_t begin, end;
    bounds_of(r, tensor, &begin, &end);
    if (begin == end) return CR_OK;
    CR_TRY(split(r, begin));
    CR_TRY(split(r, end));
    return writes ? write_range(r, op, tensor, begin, end) : read_range(r, op, tensor, begin, end);
}

/* Processes the waits of an op. Each wait names an earlier op of another stream; the clock of that op is merged. */
static cr_status process_waits(struct replay *r, int op) {
    const struct cr_program *p      = r->p;
    int                      stream = p->op[op].stream;
    for (int k = 0; k < CR_OP_WAIT_MAX && p->op[op].wait[k] != CR_NONE; k++) {
        int other = p->op[op].wait[k];
        if (other < 0 || other >= op || (int)p->op[other].stream == stream)
            return CR_FAIL(CR_ERR_DEVICE,
                           "program %s: op %d (%s) waits for op %d, which is not an earlier op of another stream",
                           p->name, op, cr_op_info(p->op[op].kind)->name, other);
        int from = p->op[other].stream;
        for (int l = 0; l < CR_STREAMS; l++)
            r->clock[stream][l] = CR_MAX(r->clock[stream][l], r->start_clock[other][l]);
        r->clock[stream][from] = CR_MAX(r->clock[stream][from], r->position[other] + 1);
    }
    memcpy(r->start_clock[op], r->clock[stream], sizeof r->clock[stream]);
    return CR_OK;
}

static cr_status step(struct replay *r, int op, int stream_ops[CR_STREAMS]) {
    const struct cr_op *o      = &r->p->op[op];
    int                 stream = o->stream, ids[CR_OP_IDS_MAX];
    r->position[op]            = stream_ops[stream]++;
    CR_TRY(process_waits(r, op));
    int n = cr_op_reads(o, ids);
    for (int i = 0; i < n; i++) CR_TRY(access_tensor(r, op, ids[i], false));
    n = cr_op_writes(o, ids);
    for (int i = 0; i < n; i++) CR_TRY(access_tensor(r, op, ids[i], true));
    r->clock[stream][stream] = stream_ops[stream];
    return CR_OK;
}

cr_status cr_waits_check(const struct cr_program *p) {
    cr_status     status                 = CR_OK;
    int           stream_ops[CR_STREAMS] = {0};
    struct replay r                      = {.p = p};
    CR_ALLOC_OUT(r.position, (size_t)p->ops);
    CR_ALLOC_OUT(r.start_clock, (size_t)p->ops);
    CR_TRY_OUT(assign_addresses(&r));
    for (int i = 0; i < p->ops; i++) CR_TRY_OUT(step(&r, i, stream_ops));
out:
    cr_free(r.position);
    cr_free(r.start_clock);
    cr_free(r.transient_base);
    cr_free(r.range);
    return status;
}

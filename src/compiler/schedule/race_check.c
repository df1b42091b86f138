/* compiler/schedule/race_check.c: the proof that every two conflicting accesses are ordered. Shares no code with
 * compiler/schedule/synchronize.c.
 *
 * Replays the list with a vector clock per lane: clock[l][m] counts the ops of lane m that lane l knows to be complete.
 * Memory is a sorted list of byte ranges; each remembers its last writer and, per lane, its last reader since. An
 * access splits the ranges at its ends and must know the writer (and, to write, the readers) of every range it covers;
 * a write makes its ranges one again. Transients are compared by their planned bytes, before plan by bytes of their
 * own. */
#include "compiler/compiler.h"

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
    uint64_t                 base[CR_REGIONS]; /* the regions laid one after the other in one address space */
    uint64_t                *own;              /* before plan: begin of each transient; NULL after plan */
    struct range            *range;            /* sorted, disjoint */
    int                      ranges, capacity;
    int                     *turn;                          /* by op: how many ops of its lane come before it */
    int                      clock[CR_STREAMS][CR_STREAMS]; /* ops known complete */
    int (*seen)[CR_STREAMS];                                /* by op: the clock of its lane when it starts */
};

/* ---- memory ---- */

static void bounds_of(const struct replay *r, int tensor, uint64_t *begin, uint64_t *end) {
    const struct cr_tensor *t = &r->p->tensor[tensor];
    *begin                    = t->region == CR_REGION_POOL && r->own ? r->own[tensor] : r->base[t->region] + t->offset;
    *end                      = *begin + t->bytes;
}

static cr_status lay_out(struct replay *r) {
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
    CR_ALLOC(r->own, (size_t)CR_MAX(p->tensors, 1));
    for (int t = 0; t < p->tensors; t++) {
        r->own[t] = at;
        at += p->tensor[t].bytes;
    }
    return CR_OK;
}

static cr_status make_room(struct replay *r, int more) {
    if (r->ranges + more <= r->capacity) return CR_OK;
    int           wanted = CR_MAX(256, 2 * r->capacity + more);
    struct range *fresh  = cr_realloc(r->range, (size_t)wanted, sizeof *fresh);
    if (!fresh) return CR_NO_MEMORY((size_t)wanted * sizeof *fresh);
    r->range    = fresh;
    r->capacity = wanted;
    return CR_OK;
}

static void insert(struct replay *r, int at, const struct range *range) {
    memmove(&r->range[at + 1], &r->range[at], (size_t)(r->ranges - at) * sizeof *range);
    r->range[at] = *range;
    r->ranges++;
}

/* First range that ends after `address`. */
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

/* Makes `address` an edge: a range that holds it inside becomes two. */
static cr_status split(struct replay *r, uint64_t address) {
    int k = find(r, address);
    if (k == r->ranges || r->range[k].begin >= address) return CR_OK;
    CR_TRY(make_room(r, 1));
    struct range right = r->range[k];
    right.begin        = address;
    r->range[k].end    = address;
    insert(r, k + 1, &right);
    return CR_OK;
}

/* ---- clocks ---- */

static cr_status conflict(const struct replay *r, struct access before, int op, int tensor) {
    const struct cr_program *p = r->p;
    return CR_FAIL(
        CR_ERR_DEVICE,
        "program %s: op %d (%s, lane %s) touches %s, but nothing makes it wait for op %d (%s, lane %s), which touches "
        "the same bytes as %s",
        p->name, op, cr_op_info(p->op[op].kind)->name, cr_stream_name(p->op[op].stream), p->tensor[tensor].name,
        before.op, cr_op_info(p->op[before.op].kind)->name, cr_stream_name(p->op[before.op].stream),
        p->tensor[before.tensor].name);
}

static bool knows(const struct replay *r, int op, struct access before) {
    if (before.op < 0 || before.op == op) return true;
    return r->clock[r->p->op[op].stream][r->p->op[before.op].stream] > r->turn[before.op];
}

/* Judges an access against one range that it covers whole. */
static cr_status judge(const struct replay *r, const struct range *range, int op, int tensor, bool writes) {
    if (!knows(r, op, range->writer)) return conflict(r, range->writer, op, tensor);
    for (int l = 0; l < CR_STREAMS && writes; l++)
        if (!knows(r, op, range->reader[l])) return conflict(r, range->reader[l], op, tensor);
    return CR_OK;
}

static struct range fresh_range(uint64_t begin, uint64_t end) {
    struct range range = {.begin = begin, .end = end, .writer = {-1, -1}};
    for (int l = 0; l < CR_STREAMS; l++) range.reader[l] = range.writer;
    return range;
}

static cr_status read_range(struct replay *r, int op, int tensor, uint64_t begin, uint64_t end) {
    int lane = r->p->op[op].stream;
    for (int k = find(r, begin); begin < end; k++) {
        uint64_t next = k < r->ranges ? CR_MIN(r->range[k].begin, end) : end;
        if (begin < next) { /* never touched before */
            CR_TRY(make_room(r, 1));
            struct range range = fresh_range(begin, next);
            insert(r, k, &range);
        }
        CR_TRY(judge(r, &r->range[k], op, tensor, false));
        r->range[k].reader[lane] = (struct access){op, tensor};
        begin                    = r->range[k].end;
    }
    return CR_OK;
}

static cr_status write_range(struct replay *r, int op, int tensor, uint64_t begin, uint64_t end) {
    int first = find(r, begin), k = first;
    for (; k < r->ranges && r->range[k].begin < end; k++) CR_TRY(judge(r, &r->range[k], op, tensor, true));
    struct range range = fresh_range(begin, end);
    range.writer       = (struct access){op, tensor};
    if (k == first) {
        CR_TRY(make_room(r, 1));
        insert(r, first, &range);
        return CR_OK;
    }
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

/* The waits of an op: earlier ops of other lanes; afterwards its lane knows what they knew. */
static cr_status take_waits(struct replay *r, int op) {
    const struct cr_program *p    = r->p;
    int                      lane = p->op[op].stream;
    for (int k = 0; k < CR_OP_WAIT_MAX && p->op[op].wait[k] != CR_NONE; k++) {
        int other = p->op[op].wait[k];
        if (other < 0 || other >= op || (int)p->op[other].stream == lane)
            return CR_FAIL(CR_ERR_DEVICE,
                           "program %s: op %d (%s) waits for op %d, which is not an earlier op of another lane",
                           p->name, op, cr_op_info(p->op[op].kind)->name, other);
        int from = p->op[other].stream;
        for (int l = 0; l < CR_STREAMS; l++) r->clock[lane][l] = CR_MAX(r->clock[lane][l], r->seen[other][l]);
        r->clock[lane][from] = CR_MAX(r->clock[lane][from], r->turn[other] + 1);
    }
    memcpy(r->seen[op], r->clock[lane], sizeof r->clock[lane]);
    return CR_OK;
}

static cr_status step(struct replay *r, int op, int turns[CR_STREAMS]) {
    const struct cr_op *o    = &r->p->op[op];
    int                 lane = o->stream, ids[CR_OP_IDS_MAX];
    r->turn[op]              = turns[lane]++;
    CR_TRY(take_waits(r, op));
    int n = cr_op_reads(o, ids);
    for (int i = 0; i < n; i++) CR_TRY(access_tensor(r, op, ids[i], false));
    n = cr_op_writes(o, ids);
    for (int i = 0; i < n; i++) CR_TRY(access_tensor(r, op, ids[i], true));
    r->clock[lane][lane] = turns[lane];
    return CR_OK;
}

cr_status cr_waits_check(const struct cr_program *p) {
    cr_status     status            = CR_OK;
    int           turns[CR_STREAMS] = {0};
    struct replay r                 = {.p = p};
    r.turn                          = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *r.turn);
    r.seen                          = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *r.seen);
    if (!r.turn || !r.seen) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while checking the order of program %s", p->name);
    CR_TRY_OUT(lay_out(&r));
    for (int i = 0; i < p->ops; i++) CR_TRY_OUT(step(&r, i, turns));
out:
    cr_free(r.turn);
    cr_free(r.seen);
    cr_free(r.own);
    cr_free(r.range);
    return status;
}

/* tests/harness/waits_support.h: programs of sgd ops on several streams, and which of their ops are ordered, computed
 * independently of the pass. */
#ifndef CR_TEST_WAITS_SUPPORT_H
#define CR_TEST_WAITS_SUPPORT_H

#include "compiler/passes.h"

#include <stdio.h>

/* ---- construction: sgd reads five tensors and writes three, of any size ---- */

static inline int new_tensor(struct cr_program *p, enum cr_region region, int64_t elems) {
    return cr_tensor_add(p, formatted("t%d", p->tensors), CR_F32, region, 1, 1, 1, elems);
}

/* A parameter tensor at a given offset. */
static inline int store_tensor(struct cr_program *p, size_t offset, int64_t elems) {
    int id               = new_tensor(p, CR_REGION_STORE, elems);
    p->tensor[id].offset = offset;
    return id;
}

/* An op with these reads and writes; -1 for none. Appended without the slot rules. */
static inline int add_op(struct cr_program *p, enum cr_stream stream, int read0, int read1, int write0, int write1) {
    struct cr_op op     = cr_op_make(CR_OP_zero, CR_NONE);
    op.out[0]           = CR_NONE;
    int any             = new_tensor(p, CR_REGION_POOL, 1);
    op.out[0]           = any;
    int index           = cr_emit(p, &op, "");
    p->op[index].kind   = CR_OP_sgd;
    p->op[index].stream = stream;
    p->op[index].in[0] = read0, p->op[index].in[1] = read1;
    p->op[index].out[0] = write0, p->op[index].out[1] = write1;
    return index;
}

/* ---- independent reachability ---- */

enum { OPS_MAX = 64 };

struct reach {
    bool before[OPS_MAX][OPS_MAX]; /* [i][j]: i is complete when j starts */
};

static inline void find_reach(const struct cr_program *p, struct reach *r) {
    memset(r, 0, sizeof *r);
    for (int j = 0; j < p->ops; j++) {
        for (int i = 0; i < j; i++) r->before[i][j] = p->op[i].stream == p->op[j].stream;
        for (int k = 0; k < CR_OP_WAIT_MAX && p->op[j].wait[k] >= 0; k++) r->before[p->op[j].wait[k]][j] = true;
        for (int i = 0; i < j; i++) /* through any op between */
            for (int m = i + 1; m < j && !r->before[i][j]; m++) r->before[i][j] = r->before[i][m] && r->before[m][j];
    }
}

static inline bool share_bytes(const struct cr_program *p, int a, int b, bool planned) {
    const struct cr_tensor *s = &p->tensor[a], *t = &p->tensor[b];
    if (a == b) return true;
    if (s->region != t->region || (s->region == CR_REGION_POOL && !planned)) return false;
    return s->offset < t->offset + t->bytes && t->offset < s->offset + s->bytes;
}

static inline bool ops_conflict(const struct cr_program *p, int i, int j, bool planned) {
    int ri[CR_OP_IDS_MAX], wi[CR_OP_IDS_MAX], rj[CR_OP_IDS_MAX], wj[CR_OP_IDS_MAX];
    int nri = cr_op_reads(&p->op[i], ri), nwi = cr_op_writes(&p->op[i], wi), nrj = cr_op_reads(&p->op[j], rj),
        nwj = cr_op_writes(&p->op[j], wj);
    for (int a = 0; a < nwi; a++) {
        for (int b = 0; b < nrj; b++)
            if (share_bytes(p, wi[a], rj[b], planned)) return true;
        for (int b = 0; b < nwj; b++)
            if (share_bytes(p, wi[a], wj[b], planned)) return true;
    }
    for (int a = 0; a < nri; a++)
        for (int b = 0; b < nwj; b++)
            if (share_bytes(p, ri[a], wj[b], planned)) return true;
    return false;
}

static inline bool truly_ordered(const struct cr_program *p, bool planned) {
    struct reach r;
    find_reach(p, &r);
    for (int j = 0; j < p->ops; j++)
        for (int i = 0; i < j; i++)
            if (!r.before[i][j] && ops_conflict(p, i, j, planned)) return false;
    return true;
}

static inline int waits_of(const struct cr_program *p, int op) {
    int n = 0;
    while (n < CR_OP_WAIT_MAX && p->op[op].wait[n] >= 0) n++;
    return n;
}

#endif

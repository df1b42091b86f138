/* sparsity/transpose.c: transposes a sparse filter for the data gradient: rows are input channels, taps are rotated. */
#include "sparsity/sparsity.h"

/* One axis: pixel stride*i + first of dx receives tap + stride*j of output i + taps - 1 - pad - j. */
struct axis {
    int64_t tap, taps, pad;
};
static struct axis axis_of(int64_t R, int64_t stride, int64_t pad, int64_t first) {
    struct axis a = {.tap = (first + pad) % stride};
    a.taps        = a.tap < R ? (R - a.tap + stride - 1) / stride : 0;
    a.pad         = a.taps - 1 - (first + pad - a.tap) / stride;
    return a;
}

struct cr_transposition cr_sparse_transposition(int64_t R, int64_t S, int64_t stride, int64_t pad, int64_t first_h,
                                                int64_t first_w) {
    const struct axis       r = axis_of(R, stride, pad, first_h), s = axis_of(S, stride, pad, first_w);
    struct cr_transposition t = {.stride = stride, .tap_r = r.tap, .tap_s = s.tap};
    if (!r.taps || !s.taps) return t;
    t.pad     = CR_MAX(CR_MAX(r.pad, s.pad), 0);
    t.first_r = t.pad - r.pad;
    t.first_s = t.pad - s.pad;
    t.R       = r.taps + t.first_r;
    t.S       = s.taps + t.first_s;
    return t;
}

/* Computes the first entry of each tap of each row: begin[k*(taps + 1) + tap]. */
static void find_taps(const struct cr_sparse *s, int64_t taps, int64_t *begin) {
    for (int64_t k = 0; k < s->K; k++) {
        int64_t i = s->row[k];
        for (int64_t tap = 0; tap <= taps; tap++) {
            while (i < s->row[k + 1] && s->index[i] < tap * s->C) i++;
            begin[k * (taps + 1) + tap] = i;
        }
    }
}

/* Visits the phase's entries in the order of the transposed rows: by tap, last tap first, then by output channel.
 * Counts the entries of each row; with `write`, also writes them. */
static void visit_entries(const struct cr_sparse *s, const struct cr_transposition *t, const int64_t *begin, bool write,
                          struct cr_sparse *to) {
    const int64_t taps = s->R * s->S, last_r = t->R - 1, last_s = t->S - 1;
    for (int64_t r = t->first_r; r <= last_r; r++)
        for (int64_t q = t->first_s; q <= last_s; q++) {
            const int64_t tap = (t->tap_r + t->stride * (last_r - r)) * s->S + t->tap_s + t->stride * (last_s - q);
            for (int64_t k = 0; k < s->K; k++)
                for (int64_t i = begin[k * (taps + 1) + tap]; i < begin[k * (taps + 1) + tap + 1]; i++) {
                    int64_t *next = &to->row[s->index[i] - tap * s->C + 1];
                    if (write) {
                        to->index[*next]   = (uint32_t)((r * t->S + q) * s->K + k);
                        to->element[*next] = (uint32_t)(k * taps * s->C) + s->index[i];
                    }
                    ++*next;
                }
        }
}

static cr_status transpose(const struct cr_sparse *s, const struct cr_transposition *t, const int64_t *begin,
                           struct cr_sparse *to) {
    CR_ALLOC(to->row, (size_t)to->K + 1);
    visit_entries(s, t, begin, false, to);
    for (int64_t c = 0; c < to->K; c++) to->row[c + 1] += to->row[c];
    const int64_t nonzeros = to->row[to->K];
    CR_ALLOC(to->index, (size_t)nonzeros);
    CR_ALLOC(to->element, (size_t)nonzeros);
    for (int64_t c = to->K; c > 0; c--) to->row[c] = to->row[c - 1]; /* row[c + 1] is the write position of row c */
    visit_entries(s, t, begin, true, to);
    return CR_OK;
}

cr_status cr_sparse_transpose(const struct cr_sparse *s, const struct cr_transposition *t,
                              struct cr_sparse *transposed) {
    struct cr_sparse to    = {.K = s->C, .R = t->R, .S = t->S, .C = s->K};
    const int64_t    taps  = s->R * s->S;
    int64_t         *begin = cr_alloc((size_t)(s->K * (taps + 1)), sizeof *begin);
    CR_ASSERT(t->R > 0 && t->S > 0 && !s->element && to.C <= UINT32_MAX / (to.R * to.S));
    cr_status status =
        begin ? CR_OK : CR_FAIL(CR_ERR_MEMORY, "out of memory for a transposed filter of %lld rows", (long long)s->K);
    if (status == CR_OK) {
        find_taps(s, taps, begin);
        status = transpose(s, t, begin, &to);
    }
    cr_free(begin);
    if (status != CR_OK)
        cr_sparse_free(&to);
    else
        *transposed = to;
    return status;
}

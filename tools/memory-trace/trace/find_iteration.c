/* tools/memory-trace/trace/find_iteration.c: finds the iteration in a memory log.
 *
 * Each event becomes a token that does not depend on ids: kind, size, distance to the previous event of the block.
 * An iteration is then a run of the sequence of tokens: a substring with a shortest period p that has at least 2p
 * tokens and cannot be extended to either side. A sequence of n tokens has fewer than n runs, and all of them are
 * found through the longest Lyndon words (Bannai, I, Inenaga, Nakashima, Takeda, Tsuruta 2017): for each run, in one
 * of the two orders of the tokens, a Lyndon word as long as the period begins in the run. Common prefixes and
 * suffixes are compared with polynomial hashes; the selected run is verified event by event. The time is n log n in
 * the worst case and linear for typical logs. */
#include "tools/memory-trace/trace/trace.h"

struct finder {
    const struct cr_trace *trace;
    int                    n;
    uint64_t              *token;   /* by event */
    uint64_t              *prefix;  /* [n + 1]: hash of the tokens before each event */
    uint64_t              *power;   /* [n + 1]: powers of the base */
    int32_t               *before;  /* previous event of the block, or CR_NONE */
    int32_t               *next;    /* end of the longest Lyndon word that begins at the event */
    int32_t               *mallocs; /* [n + 1]: number of mallocs before each event */
    int32_t               *frees;   /* [n + 1]: number of frees before each event */
    struct cr_trace_loop   best;
    int64_t                score; /* score of `best`, see score_of */
};

/* ---- tokens ---- */

static uint64_t mixed(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int distance(const struct finder *f, int i) {
    return f->before[i] == CR_NONE ? 0 : i - f->before[i];
}

static size_t size_at(const struct finder *f, int i) {
    return f->trace->block[f->trace->event[i].block].size;
}

/* Returns whether two events are equal. This is the exact comparison behind the tokens. */
static bool same_event(const struct finder *f, int i, int j) {
    return f->trace->event[i].kind == f->trace->event[j].kind && distance(f, i) == distance(f, j) &&
           size_at(f, i) == size_at(f, j);
}

/* Hashes are taken modulo the prime 2^61 - 1. */
static const uint64_t modulus = ((uint64_t)1 << 61) - 1;

/* a * b modulo 2^61 - 1; both factors are below 2^61, and the product is computed in 32-bit parts. */
static uint64_t times(uint64_t a, uint64_t b) {
    const uint64_t a1 = a >> 32, a0 = a & 0xffffffffu, b1 = b >> 32, b0 = b & 0xffffffffu;
    const uint64_t high = a1 * b1, middle = a1 * b0 + a0 * b1, low = a0 * b0; /* middle < 2^62 */
    /* high * 2^64 = high * 8, middle * 2^32 = its upper part * 2^61 ..., all modulo 2^61 - 1 */
    uint64_t sum =
        high * 8 + (middle >> 29) + ((middle & (((uint64_t)1 << 29) - 1)) << 32) + (low >> 61) + (low & modulus);
    sum = (sum & modulus) + (sum >> 61);
    return sum >= modulus ? sum - modulus : sum;
}

static uint64_t sum_of(uint64_t a, uint64_t b) {
    const uint64_t sum = a + b;
    return sum >= modulus ? sum - modulus : sum;
}

static cr_status find_before(struct finder *f) {
    int32_t *last; /* by block */
    CR_ALLOC(last, (size_t)CR_MAX(f->trace->blocks, 1));
    for (int b = 0; b < f->trace->blocks; b++) last[b] = CR_NONE;
    for (int i = 0; i < f->n; i++) {
        const int block = f->trace->event[i].block;
        f->before[i]    = last[block];
        last[block]     = i;
    }
    cr_free(last);
    return CR_OK;
}

static void make_tokens(struct finder *f) {
    const uint64_t base = mixed(0x63726573) % modulus;
    f->power[0]         = 1;
    for (int i = 0; i < f->n; i++) {
        const int kind    = f->trace->event[i].kind;
        f->token[i]       = mixed(mixed((uint64_t)distance(f, i) * CR_TRACE_KINDS + (uint64_t)kind) + size_at(f, i));
        f->prefix[i + 1]  = sum_of(times(f->prefix[i], base), f->token[i] % modulus);
        f->power[i + 1]   = times(f->power[i], base);
        f->mallocs[i + 1] = f->mallocs[i] + (kind == CR_TRACE_MALLOC);
        f->frees[i + 1]   = f->frees[i] + (kind == CR_TRACE_FREE);
    }
}

static cr_status set_up(struct finder *f) {
    const size_t n = (size_t)f->n;
    CR_ALLOC(f->token, n);
    CR_ALLOC(f->prefix, n + 1);
    CR_ALLOC(f->power, n + 1);
    CR_ALLOC(f->before, n);
    CR_ALLOC(f->next, n);
    CR_ALLOC(f->mallocs, n + 1);
    CR_ALLOC(f->frees, n + 1);
    CR_TRY(find_before(f));
    make_tokens(f);
    return CR_OK;
}

static void tear_down(struct finder *f) {
    cr_free(f->token);
    cr_free(f->prefix);
    cr_free(f->power);
    cr_free(f->before);
    cr_free(f->next);
    cr_free(f->mallocs);
    cr_free(f->frees);
}

/* ---- common prefixes and suffixes ---- */

enum { DIRECT = 8 }; /* tokens that are compared directly: most positions differ early */

static uint64_t hash_at(const struct finder *f, int from, int length) {
    return sum_of(f->prefix[from + length], modulus - times(f->prefix[from], f->power[length]));
}

/* Returns how many tokens are equal from i and from j on; i < j. */
static int common_after(const struct finder *f, int i, int j) {
    int k = 0, max = f->n - j;
    while (k < max && k < DIRECT && f->token[i + k] == f->token[j + k]) k++;
    if (k < DIRECT || k == max) return k;
    int low = k, high = CR_MIN(2 * k, max); /* the first `low` tokens are known to be equal */
    while (hash_at(f, i, high) == hash_at(f, j, high)) {
        low = high;
        if (high == max) return max;
        high = high > max / 2 ? max : 2 * high;
    }
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (hash_at(f, i, middle) == hash_at(f, j, middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns how many tokens before i and before j are equal, without i and j; i < j. */
static int common_before(const struct finder *f, int i, int j) {
    int k = 0, max = i;
    while (k < max && k < DIRECT && f->token[i - 1 - k] == f->token[j - 1 - k]) k++;
    if (k < DIRECT || k == max) return k;
    int low = k, high = CR_MIN(2 * k, max);
    while (hash_at(f, i - high, high) == hash_at(f, j - high, high)) {
        low = high;
        if (high == max) return max;
        high = high > max / 2 ? max : 2 * high;
    }
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (hash_at(f, i - middle, middle) == hash_at(f, j - middle, middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- runs ---- */

/* Long runs are likely the iteration. But many blocks of one size allocated in a row, or one block read again and
 * again, are long runs too. An iteration frees what it allocates, and most iterations allocate something. */
static int64_t score_of(const struct finder *f, int start, int end, int period) {
    const int mallocs = f->mallocs[start + period] - f->mallocs[start],
              frees   = f->frees[start + period] - f->frees[start];
    return (int64_t)(end - start) * (mallocs != frees ? 1 : mallocs ? 8 : 4);
}

static void consider(struct finder *f, int start, int end, int period) {
    if (end - start < 2 * (int64_t)period) return;
    const int64_t score = score_of(f, start, end, period);
    if (score < f->score || (score == f->score && start <= f->best.start)) return;
    f->best  = (struct cr_trace_loop){start, end, period};
    f->score = score;
}

/* Returns whether the suffix at i is less than the suffix at j > i. The end of the log is less than all tokens. */
static bool is_less(const struct finder *f, int i, int j, bool reversed) {
    const int k = common_after(f, i, j);
    if (j + k == f->n) return false;
    return (f->token[i + k] < f->token[j + k]) != reversed;
}

static void find_runs(struct finder *f, bool reversed) {
    for (int i = f->n - 1; i >= 0; i--) {
        int j = i + 1;
        while (j < f->n && is_less(f, i, j, reversed)) j = f->next[j];
        f->next[i] = j;
        if (j == f->n) continue; /* nothing repeats from here */
        const int period = j - i, after = common_after(f, i, j), before = common_before(f, i, j);
        if (before + after >= period) consider(f, i - before, j + after, period);
    }
}

/* Verifies the run event by event; where hashes collided, the run is shortened. */
static void verify(struct finder *f) {
    struct cr_trace_loop *l = &f->best;
    int                   i = l->start + l->period;
    while (i < f->n && same_event(f, i, i - l->period)) i++;
    l->end = i;
    for (i = l->start; i > 0 && same_event(f, i - 1, i - 1 + l->period); i--) continue;
    l->start = i;
}

cr_status cr_trace_find_loop(const struct cr_trace *trace, const char *name, struct cr_trace_loop *out) {
    struct finder f      = {.trace = trace, .n = trace->events};
    cr_status     status = CR_OK;
    CR_TRY_OUT(set_up(&f));
    find_runs(&f, false);
    find_runs(&f, true);
    if (f.score) verify(&f);
    if (!f.score || f.best.end - f.best.start < 2 * (int64_t)f.best.period)
        CR_FAIL_OUT(CR_ERR_FORMAT,
                    "%s: no iteration repeats in these %d events: record more iterations that do the same work", name,
                    f.n);
    *out = f.best;
out:
    tear_down(&f);
    return status;
}

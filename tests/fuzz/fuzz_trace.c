/* tests/fuzz/fuzz_trace.c: reads any bytes as a memory log; if the first byte is not 't', the bytes are a small
 * program of events: each byte is an event on one of a few blocks. An accepted log must be valid; if an iteration is
 * found, its plans must pass the check. */
#include "tests/fuzz/fuzz.h"
#include "tools/memory-trace/trace/trace.h"

#include <string.h>

static void check_log(const struct cr_trace *t) {
    int alive = 0;
    for (int b = 0; b < t->blocks; b++) {
        const struct cr_trace_block *x = &t->block[b];
        CR_ASSERT(x->id < t->id_bytes && t->id[x->id]);
        CR_ASSERT(t->event[x->alloc_at].kind == CR_TRACE_MALLOC && t->event[x->alloc_at].block == b);
        CR_ASSERT(x->free_at == CR_NONE || (x->free_at > x->alloc_at && t->event[x->free_at].kind == CR_TRACE_FREE));
        CR_ASSERT((x->first == CR_NONE) == (x->last == CR_NONE) && x->first <= x->last);
        CR_ASSERT(x->first == CR_NONE || x->first > x->alloc_at);
        alive += x->free_at == CR_NONE;
    }
    CR_ASSERT(alive == t->alive);
    for (int i = 0; i < t->events; i++)
        CR_ASSERT(t->event[i].block < t->blocks && (!i || t->event[i].time >= t->event[i - 1].time));
}

static void plan_log(const struct cr_trace *t) {
    struct cr_trace_loop loop;
    cr_status            status = cr_trace_find_loop(t, "fuzz.csv", &loop);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status != CR_OK) return;
    CR_ASSERT(loop.start >= 0 && loop.period > 0 && loop.end <= t->events && loop.end - loop.start >= 2 * loop.period);
    for (int by = 0; by < 2; by++) {
        struct cr_trace_plan plan;
        status = cr_trace_plan(t, &loop, (enum cr_trace_by)by, 8, &plan);
        CR_ASSERT(status == CR_OK || status == CR_ERR_MEMORY);
        if (status != CR_OK) continue;
        size_t online;
        CR_ASSERT(plan.bound <= plan.peak);
        CR_ASSERT(cr_trace_check(t, &loop, &plan) == CR_OK);
        CR_ASSERT(cr_trace_online(t, &loop, &plan, &online) == CR_OK);
        cr_trace_plan_free(&plan);
    }
}

static void try_bytes(const void *bytes, size_t count) {
    struct cr_trace trace;
    int64_t         live   = cr_alloc_live();
    cr_status       status = cr_trace_read_bytes(bytes, count, "fuzz.csv", &trace);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status == CR_OK) {
        check_log(&trace);
        plan_log(&trace);
        cr_trace_free(&trace);
    } else
        CR_ASSERT(strncmp(cr_error_message(), "fuzz.csv:", 9) == 0);
    CR_ASSERT(cr_alloc_live() == live);
}

/* Events as bytes, so that the fuzzer gets past the reader: three bits of block, two of kind, one of time.
 * Impossible events are skipped. */
static void write_events(const uint8_t *bytes, size_t count, struct cr_text *text) {
    static const char *const kinds[]  = {"malloc", "free", "read", "write"};
    bool                     alive[8] = {false};
    long long                time     = 0;
    cr_text_add(text, "time,event,id,size\n");
    for (size_t i = 0; i < count; i++) {
        const int block = bytes[i] & 7, kind = bytes[i] >> 3 & 3;
        time += bytes[i] >> 5 & 1;
        if ((kind == 0) == alive[block]) continue;
        alive[block] = kind != 1;
        cr_text_add(text, "%lld,%s,b%d,", time, kinds[kind], block);
        if (kind == 0) cr_text_add(text, "%d", bytes[i] >> 6 ? 100 * block : 7);
        cr_text_add(text, "\n");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    if (count > 1 << 16) return 0;
    if (!count || bytes[0] == 't') {
        try_bytes(bytes, count);
        return 0;
    }
    struct cr_text text = {0};
    write_events(bytes, count, &text);
    CR_ASSERT(!text.failed);
    try_bytes(text.data, text.length);
    cr_text_free(&text);
    return 0;
}

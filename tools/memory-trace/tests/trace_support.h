/* tools/memory-trace/tests/trace_support.h: helpers of the memory log tests: writes a log from short words, reads a
 * log, finds and plans its iteration. */
#ifndef CR_TEST_TRACE_SUPPORT_H
#define CR_TEST_TRACE_SUPPORT_H

#include "tests/harness/compiler_support.h"
#include "tools/memory-trace/trace/trace.h"

#define HEAD "time,event,id,size\n"

static inline cr_status read_text(const char *text, struct cr_trace *t) {
    return cr_trace_read_bytes(text, strlen(text), "log.csv", t);
}

/* Log text; each event has its own time: "malloc a 10" and so on. */
struct log {
    struct cr_text text;
    int64_t        time;
};

static inline void log_add(struct log *l, const char *event, int64_t id, int64_t size) {
    if (!l->text.length) cr_text_add(&l->text, HEAD);
    cr_text_add(&l->text, "%lld,%s,b%lld,", (long long)++l->time, event, (long long)id);
    if (size >= 0) cr_text_add(&l->text, "%lld", (long long)size);
    cr_text_add(&l->text, "\n");
}

/* Words such as "m1:64 w1 r1 f1": one event each. */
static inline void log_words(struct log *l, const char *words) {
    static const char *const names[] = {"malloc", "free", "read", "write"};
    for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        const size_t letter = strcspn("mfrw", (char[]){*at, 0});
        long long    id = 0, size = -1;
        CR_ASSERT(letter < CR_COUNT(names));
        sscanf(at + 1, "%lld:%lld", &id, &size);
        log_add(l, names[letter], id, size);
    }
}

struct planned {
    struct cr_trace      trace;
    struct cr_trace_loop loop;
    struct cr_trace_plan plan[2];
};

static inline cr_status plan_text(const char *text, size_t length, size_t alignment, struct planned *p) {
    *p = (struct planned){0};
    CR_TRY(cr_trace_read_bytes(text, length, "log.csv", &p->trace));
    CR_TRY(cr_trace_find_loop(&p->trace, "log.csv", &p->loop));
    for (int by = 0; by < 2; by++) {
        CR_TRY(cr_trace_plan(&p->trace, &p->loop, (enum cr_trace_by)by, alignment, &p->plan[by]));
        CR_TRY(cr_trace_check(&p->trace, &p->loop, &p->plan[by]));
    }
    return CR_OK;
}

static inline void planned_free(struct planned *p) {
    for (int by = 0; by < 2; by++) cr_trace_plan_free(&p->plan[by]);
    cr_trace_free(&p->trace);
}

/* `setup` once, then `iteration` `times` times. */
static inline cr_status plan_words(const char *setup, const char *iteration, int times, const char *tail,
                                   struct planned *p) {
    struct log l = {0};
    log_words(&l, setup);
    for (int i = 0; i < times; i++) log_words(&l, iteration);
    log_words(&l, tail);
    cr_status status = plan_text(l.text.data, l.text.length, 1, p);
    cr_text_free(&l.text);
    return status;
}

#endif

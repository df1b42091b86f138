/* cli/bench/allocators.c: cresnet bench pools: the memory of a training step, planned and as pools would hand it out
 * that do not know the future: how much they need, and what their calls cost. Nothing is trained. */
#include "cli/command.h"
#include "runtime/allocator_bench.h"
#include "session/session.h"

enum { STEPS = 20, STEPS_MAX = 100000 };

struct bench {
    struct cr_config         config;
    struct cr_session        session;
    const struct cr_program *program; /* of the session's training programs the one with the largest pool */
    struct cr_pool_event    *event;
    int                      events;
    int64_t                  steps;
    bool                     json;
    struct cr_text           out;
};

static const size_t piece = (size_t)2 << 20; /* the driver maps GPU memory in such pieces */

static cr_status bench_open(struct bench *b, const struct cr_args *args) {
    struct cr_session_options options = {.train = true};
    CR_TRY(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, STEPS_MAX, STEPS, &b->steps));
    CR_TRY(cr_cmd_classes(&b->config, &options.classes));
    CR_TRY(cr_session_open(&b->config, &options, &b->session));
    for (int i = 0; i < b->session.trains; i++) {
        const struct cr_program *p = &b->session.train[i];
        if (!b->program || p->region_bytes[CR_REGION_POOL] > b->program->region_bytes[CR_REGION_POOL]) b->program = p;
    }
    return cr_pool_events(b->program, b->session.device->caps.alignment, &b->event, &b->events);
}

static void bench_close(struct bench *b) {
    cr_free(b->event);
    cr_text_free(&b->out);
    cr_session_close(&b->session);
    cr_config_close(&b->config);
}

/* bytes 0, ms < 0: not known. */
static void print_row(struct bench *b, const char *name, const char *what, size_t bytes, double ms) {
    if (b->json) {
        cr_text_add(&b->out, ", {\"pool\": \"%s\"", name);
        if (bytes) cr_text_add(&b->out, ", \"bytes\": %zu", bytes);
        if (ms >= 0) cr_text_add(&b->out, ", \"ms\": %.4f", ms);
        cr_text_add(&b->out, "}");
        return;
    }
    cr_text_add(&b->out, "%-16s", name);
    if (bytes)
        cr_text_add(&b->out, " %12.2f %8.4f", cr_mib(bytes), (double)bytes / (double)b->program->bound_bytes);
    else
        cr_text_add(&b->out, " %12s %8s", "-", "-");
    if (ms >= 0)
        cr_text_add(&b->out, " %10.4f", ms);
    else
        cr_text_add(&b->out, " %10s", "-");
    cr_text_add(&b->out, "  %s\n", what);
}

static void print_head(struct bench *b) {
    const struct cr_program *p = b->program;
    if (b->json) {
        cr_text_add(&b->out,
                    "{\"program\": \"%s\", \"batch\": %lld, \"requests\": %d, \"steps\": %lld, \"device\": ", p->name,
                    (long long)b->session.batch, b->events / 2, (long long)b->steps);
        cr_text_add_json(&b->out, b->session.device->caps.text);
        cr_text_add(&b->out, ", \"pools\": [{\"pool\": \"load\", \"bytes\": %zu}", p->bound_bytes);
        return;
    }
    cr_text_add(&b->out, "program %s, batch %lld: %d requests a step; %s\n\n%-16s %12s %8s %10s\n", p->name,
                (long long)b->session.batch, b->events / 2, b->session.device->caps.text, "pool", "MiB", "of load",
                "ms a step");
    print_row(b, "load", "the largest sum of what lives at one time: no pool needs less", p->bound_bytes, -1);
}

static cr_status measure(struct bench *b) {
    const struct cr_backend *backend = b->session.device->backend;
    struct cr_pool_times     times;
    print_head(b);
    print_row(b, "planned", "ours: offsets known before the first step", b->program->region_bytes[CR_REGION_POOL], 0);
    CR_TRY(cr_pool_best_fit(b->event, b->events, (int)b->steps, &times));
    print_row(b, "best_fit", "online, free neighbours joined (as CnMeM), on the host", times.peak_bytes, times.ms);
    if (backend->async)
        print_row(b, "pieces", "a call a tensor when each takes whole pieces of 2 MiB (reckoned)",
                  cr_pool_load(b->event, b->events, piece), -1);
    for (const struct cr_pool *pool = backend->pools; pool && pool->name; pool++) {
        CR_TRY(pool->measure(b->session.device, b->event, b->events, (int)b->steps, &times));
        print_row(b, pool->name, pool->what, times.peak_bytes, times.ms);
    }
    if (b->json) cr_text_add(&b->out, "]}\n");
    return CR_OK;
}

cr_status cr_bench_pools(const struct cr_args *args) {
    struct bench b = {.json = cr_args_has(args, CR_OPT_JSON)};
    cr_status    status;
    CR_TRY(cr_args_most(args, 1));
    CR_TRY(cr_cmd_config(args, &b.config));
    CR_TRY_OUT(bench_open(&b, args));
    CR_TRY_OUT(measure(&b));
    CR_TRY_OUT(cr_cmd_print(&b.out));
out:
    bench_close(&b);
    return status;
}

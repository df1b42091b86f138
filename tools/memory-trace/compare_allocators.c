/* tools/memory-trace/compare_allocators.c: compares the static memory plan of a training step with online allocators:
 * memory they need and time of their calls. Nothing is trained. */
#include "formats/json_write.h"
#include "tools/memory-trace/allocators.h"
#include "tools/memory-trace/commands.h"

enum { STEPS = 20, STEPS_MAX = 100000 };

struct bench {
    const struct cr_config  *config;
    struct cr_session        session;
    const struct cr_program *program; /* the training program with the largest memory pool */
    struct cr_pool_event    *event;   /* [events]: allocations and frees of one step */
    int                      events;
    int64_t                  steps;
    bool                     json;
    struct cr_json_writer    writer; /* with json: writes to `out` */
    struct cr_text           out;
};

static const size_t page_bytes = (size_t)2 << 20; /* the driver maps GPU memory in pages of this size */

static cr_status bench_open(struct bench *b, const struct cr_tool_args *args) {
    CR_TRY(cr_tool_int(args, "steps", 1, STEPS_MAX, STEPS, &b->steps));
    CR_TRY(cr_trace_open_session(args, &b->config, &b->session));
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
    cr_config_close(b->config);
}

/* Adds one line of the table. bytes is 0 and ms is negative when unknown. */
static void print_allocator(struct bench *b, const char *name, const char *description, size_t bytes, double ms) {
    if (b->json) {
        cr_json_open_object(&b->writer, NULL);
        cr_json_put_string(&b->writer, "allocator", name);
        if (bytes) cr_json_put_uint(&b->writer, "bytes", bytes);
        if (ms >= 0) cr_json_put_fixed(&b->writer, "ms", ms, 4);
        cr_json_close_object(&b->writer);
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
    cr_text_add(&b->out, "  %s\n", description);
}

static void json_head(struct bench *b) {
    struct cr_json_writer *w = &b->writer;
    *w                       = cr_json_writer(&b->out, CR_JSON_SPACED);
    cr_json_open_object(w, NULL);
    cr_json_put_string(w, "program", b->program->name);
    cr_json_put_int(w, "batch", b->session.state.batch);
    cr_json_put_int(w, "allocations", b->events / 2);
    cr_json_put_int(w, "steps", b->steps);
    cr_json_put_string(w, "device", b->session.device->caps.text);
    cr_json_open_array(w, "allocators");
}

static void json_end(struct bench *b) {
    cr_json_close_array(&b->writer);
    cr_json_close_object(&b->writer);
    cr_json_end_line(&b->writer);
}

static void print_head(struct bench *b) {
    const struct cr_program *p = b->program;
    if (b->json)
        json_head(b);
    else
        cr_text_add(&b->out, "program %s, batch %lld: %d allocations per step; %s\n\n%-16s %12s %8s %10s\n", p->name,
                    (long long)b->session.state.batch, b->events / 2, b->session.device->caps.text, "allocator", "MiB",
                    "x bound", "ms/step");
    print_allocator(b, "lower_bound", "largest sum of live bytes; every allocator needs at least this", p->bound_bytes,
                    -1);
}

static cr_status measure(struct bench *b) {
    const struct cr_backend *backend = b->session.device->backend;
    struct cr_pool_times     times;
    print_head(b);
    print_allocator(b, "planned", "static plan: offsets are computed before the first step",
                    b->program->region_bytes[CR_REGION_POOL], 0);
    CR_TRY(cr_pool_best_fit(b->event, b->events, (int)b->steps, &times));
    print_allocator(b, "best_fit", "online best fit with coalescing of free blocks (as CnMeM), simulated on the host",
                    times.peak_bytes, times.ms);
    if (backend->async)
        print_allocator(b, "pages_2mib", "one call per tensor, each rounded up to 2 MiB pages (computed)",
                        cr_pool_load(b->event, b->events, page_bytes), -1);
    for (const struct cr_pool *pool = cr_pools_of(b->session.device); pool->name; pool++) {
        CR_TRY(pool->measure(b->session.device, b->event, b->events, (int)b->steps, &times));
        print_allocator(b, pool->name, pool->what, times.peak_bytes, times.ms);
    }
    if (b->json) json_end(b);
    return CR_OK;
}

cr_status cr_trace_command_allocators(const struct cr_tool_args *args) {
    struct bench b = {.json = cr_tool_value(args, "json") != NULL};
    cr_status    status;
    CR_TRY_OUT(bench_open(&b, args));
    CR_TRY_OUT(measure(&b));
    CR_TRY_OUT(cr_cmd_print(&b.out));
out:
    bench_close(&b);
    return status;
}

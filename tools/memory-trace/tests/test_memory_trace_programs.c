/* tools/memory-trace/tests/test_memory_trace_programs.c: memory logs of programs: random programs, whose plans are
 * verified by an independent check, and the log of our own programs, which must plan as the programs do. */
#include "tests/harness/failing_alloc.h"
#include "tools/memory-trace/tests/trace_support.h"

/* ---- random programs ---- */

enum { BLOCKS = 24, PARAMETERS = 5, HORIZON = 1000, EVENTS = BLOCKS * 6 + 20 };

struct happening {
    int64_t at;
    int     serial, kind, block; /* block < 0: parameter -1 - block */
};

static int compare_happenings(const void *a, const void *b) {
    const struct happening *s = a, *t = b;
    if (s->at != t->at) return s->at < t->at ? -1 : 1;
    return s->serial - t->serial;
}

/* One iteration: blocks at random times, some of which extend into the next one. *size by block. */
static int random_iteration(struct cr_rng *rng, bool wrap, struct happening *h, int64_t *size) {
    int n = 0;
    for (int b = 0; b < BLOCKS; b++) {
        int64_t from = draw(rng, 0, HORIZON - 2), most = wrap ? from + HORIZON - 1 : HORIZON - 1;
        int64_t to = CR_MIN(from + 1 + draw(rng, 1, 3) * draw(rng, 1, HORIZON / 4), most), uses = draw(rng, 0, 4);
        size[b] = draw(rng, 1, 1000);
        h[n++]  = (struct happening){from, 0, CR_TRACE_MALLOC, b};
        for (int k = 0; k < uses; k++)
            h[n++] = (struct happening){draw(rng, from, to), 0, k ? CR_TRACE_READ : CR_TRACE_WRITE, b};
        h[n++] = (struct happening){to, 0, CR_TRACE_FREE, b};
    }
    for (int k = 0; k < 20; k++)
        h[n++] =
            (struct happening){draw(rng, 0, HORIZON - 1), 0, CR_TRACE_READ, -1 - (int)draw(rng, 0, PARAMETERS - 1)};
    for (int i = 0; i < n; i++)
        h[i].serial = h[i].kind == CR_TRACE_MALLOC ? i - EVENTS : h[i].kind == CR_TRACE_FREE ? i + EVENTS : i;
    return n;
}

/* Ids behave as addresses: the smallest free one, so ids repeat, in another order each time. */
static int64_t take_address(bool *used) {
    int64_t a = 0;
    while (used[a]) a++;
    used[a] = true;
    return a;
}

static void write_random(struct cr_rng *rng, bool wrap, int iterations, struct log *l, int64_t *across, int *events) {
    static const char *const names[] = {"malloc", "free", "read", "write"};
    static struct happening  one[EVENTS], all[EVENTS * 8];
    static int64_t           address[BLOCKS * 8];
    int64_t                  size[BLOCKS], noise = draw(rng, 0, 60), cut;
    bool                     used[BLOCKS * 8 + 100] = {false};
    int                      n = random_iteration(rng, wrap, one, size), count = 0;
    *across = 0;
    *events = n;
    for (int p = 0; p < PARAMETERS; p++) {
        int64_t bytes = draw(rng, 1, 5000);
        *across += bytes;
        log_add(l, "malloc", 1000 + p, bytes);
        log_add(l, "write", 1000 + p, -1);
    }
    for (int k = 0; k < noise; k++) { /* this sequence does not repeat */
        int64_t id = 2000 + draw(rng, 0, 3);
        log_add(l, "malloc", id, 5000 + k);
        if (k % 2) log_add(l, "write", id, -1);
        log_add(l, "free", id, -1);
    }
    for (int it = 0; it < iterations; it++)
        for (int i = 0; i < n; i++) {
            all[count] = one[i];
            all[count].at += (int64_t)it * HORIZON;
            all[count].serial += it * 4 * EVENTS;
            if (one[i].block >= 0) all[count].block = one[i].block + it * BLOCKS;
            count++;
        }
    qsort(all, (size_t)count, sizeof *all, compare_happenings);
    cut = (iterations - 1) * HORIZON + draw(rng, 0, HORIZON); /* an incomplete last iteration */
    for (int i = 0; i < count && all[i].at < cut; i++) {
        if (all[i].block < 0) {
            log_add(l, names[all[i].kind], 999 - all[i].block, -1);
            continue;
        }
        const bool born = all[i].kind == CR_TRACE_MALLOC;
        if (born) address[all[i].block] = take_address(used);
        log_add(l, names[all[i].kind], address[all[i].block], born ? size[all[i].block % BLOCKS] : -1);
        if (all[i].kind == CR_TRACE_FREE) used[address[all[i].block]] = false;
    }
}

/* From the log alone: largest sum of live bytes of blocks that iterations allocate, in the middle of the repetition. */
static size_t load_of(const struct planned *p, int by) {
    size_t most = 0;
    for (int i = p->loop.end - 1; i >= p->loop.end - p->loop.period; i--) {
        size_t load = 0;
        int    at   = i - (p->loop.end - i > p->loop.period ? p->loop.period : 0);
        for (int b = 0; b < p->trace.blocks; b++) {
            const struct cr_trace_block *x = &p->trace.block[b];
            /* of the instances of a block, the one a period earlier, whose end is in the log */
            int from = x->alloc_at, to = x->free_at;
            if (from < p->loop.start || to == CR_NONE || to >= p->loop.end) continue;
            if (by == CR_TRACE_BY_USE && x->first != CR_NONE) {
                from = x->first;
                to   = x->last + 1;
            }
            /* the first instance, and the same one shifted */
            if (x->alloc_at >= p->loop.start + p->loop.period) continue;
            for (int k = -2; k <= 40; k++)
                if (from + k * p->loop.period <= at && at < to + k * p->loop.period) load += x->size;
        }
        most = CR_MAX(most, load);
    }
    return most;
}

/* Checks every pair of blocks of the repetition, event by event. */
static bool places_are_sound(const struct planned *p, int by) {
    const struct cr_trace_plan *plan     = &p->plan[by];
    struct cr_interval         *interval = cr_alloc((size_t)p->trace.blocks + 1, sizeof *interval);
    int                         n        = 0;
    for (int b = 0; b < p->trace.blocks; b++) {
        const struct cr_trace_block *x = &p->trace.block[b];
        if (x->alloc_at < p->loop.start || x->free_at == CR_NONE || x->free_at >= p->loop.end) continue;
        int turn  = (x->alloc_at - p->loop.start) / p->loop.period,
            phase = (x->alloc_at - p->loop.start) % p->loop.period, found = 0;
        for (int i = 0; i < plan->intervals; i++) {
            const struct cr_trace_interval *l = &plan->interval[i];
            if (l->phase != phase) continue;
            found++;
            interval[n] = (struct cr_interval){x->alloc_at, x->free_at, x->size,
                                               l->offset + (size_t)(turn % l->copies) * l->size};
            if (by == CR_TRACE_BY_USE && x->first != CR_NONE) {
                interval[n].lower = x->first;
                interval[n].upper = x->last + 1;
            }
        }
        if (found != 1) {
            cr_free(interval);
            return false;
        }
        n++;
    }
    bool sound = intervals_valid(interval, n, 1, plan->peak);
    cr_free(interval);
    return sound;
}

TEST(random_programs) {
    double worst[2] = {1, 1};
    int    tight = 0, rounds = 400, wrapping = 0;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng  rng = test_rng(777000 + (uint64_t)round);
        struct log     l   = {0};
        struct planned p;
        int64_t        across;
        int            events;
        const bool     wrap = round % 2;
        write_random(&rng, wrap, (int)draw(&rng, 5, 7), &l, &across, &events);
        cr_status status = plan_text(l.text.data, l.text.length, 1, &p);
        CHECK_STATUS(status, CR_OK);
        if (status == CR_OK) {
            CHECK_INT(p.loop.period, events);
            CHECK_INT(p.plan[0].intervals, BLOCKS);
            CHECK_INT(p.plan[0].persistent, across);
            CHECK_INT(p.plan[0].persistent_blocks, PARAMETERS);
            CHECK_INT(p.plan[0].leaked, 0);
            for (int by = 0; by < 2; by++) {
                CHECK_INT(p.plan[by].bound, load_of(&p, by));
                CHECK(places_are_sound(&p, by));
                CHECK(p.plan[by].bound <= p.plan[by].peak && p.plan[by].peak <= p.plan[by].naive);
                worst[by] = fmax(worst[by], (double)p.plan[by].peak / (double)p.plan[by].bound);
            }
            size_t online;
            REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
            CHECK(online >= p.plan[0].bound || p.plan[0].wrapping); /* it starts empty: earlier blocks are not in it */
            wrapping += p.plan[0].wrapping > 0;
            tight += p.plan[0].peak == p.plan[0].bound;
        }
        planned_free(&p);
        cr_text_free(&l.text);
    }
    printf("    %d programs, %d with lifetimes that wrap around: peak = bound in %d, worst %.4f, by use %.4f\n", rounds,
           wrapping, tight, worst[0], worst[1]);
    CHECK(wrapping > rounds / 3);
    CHECK(worst[0] < 1.35 && worst[1] < 1.35);
    CHECK(tight > rounds / 2);
}

TEST(planning_survives_failing_allocations) {
    struct cr_rng rng = test_rng(42);
    struct log    l   = {0};
    int64_t       across;
    int           events;
    write_random(&rng, true, 5, &l, &across, &events);
    for_each_failing_alloc(f, .least = 10) {
        struct planned p;
        failing_alloc_run(&f, plan_text(l.text.data, l.text.length, 1, &p));
        planned_free(&p);
    }
    cr_text_free(&l.text);
}

TEST(millions_of_lines) {
    struct log     l = {0};
    struct planned p;
    for (int i = 0; i < 1500; i++) /* 1500 iterations of 400 events */
        for (int b = 0; b < 100; b++) {
            log_add(&l, "malloc", b, 1 + b * b % 97);
            log_add(&l, "write", b, -1);
            if (b >= 3) log_add(&l, "read", b - 3, -1);
            if (b >= 3) log_add(&l, "free", b - 3, -1);
            if (b == 99)
                for (int k = 97; k < 100; k++) {
                    log_add(&l, "read", k, -1);
                    log_add(&l, "free", k, -1);
                }
        }
    int64_t begin = cr_time_ns();
    REQUIRE_OK(plan_text(l.text.data, l.text.length, 1, &p));
    double seconds = (double)(cr_time_ns() - begin) * 1e-9;
    printf("    %d events: %.2f s\n", p.trace.events, seconds);
    CHECK_INT(p.loop.period, 400);
    CHECK(seconds < 30); /* also under a sanitizer */
    planned_free(&p);
    cr_text_free(&l.text);
}

/* ---- our own programs ---- */

TEST(programs_and_logs_plan_alike) {
    const char *archs[] = {"resnet20", "resnet18", "resnet50"};
    for (size_t a = 0; a < CR_COUNT(archs); a++)
        for (int fuse = 0; fuse < 2; fuse++) {
            struct bench_model b;
            struct cr_program  p;
            struct cr_text     text = {0};
            struct planned     log;
            if (!compiled(&b, archs[a], a ? 224 : 32, 32, CR_PROGRAM_STEP, fuse, true, &p)) return;
            const struct cr_program *programs[] = {&p};
            cr_trace_write(programs, 1, 3, 256, &text);
            REQUIRE(!text.failed);
            REQUIRE_OK(plan_text(text.data, text.length, 64, &log));
            for (int by = 0; by < 2; by++) {
                CHECK_INT(log.plan[by].bound, p.bound_bytes);
                CHECK_INT(log.plan[by].peak, p.region_bytes[CR_REGION_POOL]);
            }
            CHECK_INT(log.plan[0].iterations, 2);
            CHECK_INT(log.plan[0].tail, 0);
            CHECK_INT(log.plan[0].wrapping, 0);
            CHECK(log.plan[0].persistent >= cr_param_store_bytes(&b.model.store) + p.region_bytes[CR_REGION_INPUT]);
            CHECK(log.plan[0].persistent <=
                  cr_param_store_bytes(&b.model.store) + p.region_bytes[CR_REGION_INPUT] + 8 * 256);
            printf("    %s, %s: %d events per iteration, %d intervals, peak %zu\n", archs[a], fuse ? "fused" : "plain",
                   log.loop.period, log.plan[0].intervals, log.plan[0].peak);
            planned_free(&log);
            cr_text_free(&text);
            cr_program_free(&p);
            bench_close(&b);
        }
}

/* Ops in parallel extend lifetimes beyond the uses in the program; the log has them as they are planned. */
TEST(programs_with_streams_and_logs_plan_alike) {
    for (int every = 5; every < 30; every += 6) {
        struct bench_model b;
        struct cr_program  p;
        struct cr_text     text = {0};
        struct planned     log;
        if (!compiled(&b, "resnet20", 32, 4, CR_PROGRAM_STEP, true, true, &p)) return;
        size_t before = p.bound_bytes;
        for (int i = every; i < p.ops; i += every) p.op[i].stream = CR_STREAM_COMM;
        REQUIRE_OK(cr_pass_insert_waits(&p));
        REQUIRE_OK(cr_pass_plan(&p, 256, true));
        const struct cr_program *programs[] = {&p};
        cr_trace_write(programs, 1, 3, 256, &text);
        REQUIRE_OK(plan_text(text.data, text.length, 64, &log));
        for (int by = 0; by < 2; by++) CHECK_INT(log.plan[by].bound, p.bound_bytes);
        CHECK(p.bound_bytes >= before);
        if (p.region_bytes[CR_REGION_POOL] == p.bound_bytes) CHECK_INT(log.plan[1].peak, p.bound_bytes);
        planned_free(&log);
        cr_text_free(&text);
        cr_program_free(&p);
        bench_close(&b);
    }
}

TEST(storage_reused_in_place_is_one_block) {
    struct cr_program p;
    struct cr_text    text = {0};
    struct planned    log;
    int               id[5];
    chain_program(&p, id);
    p.tensor[id[4]].keep = true;
    p.tensor[id[1]].keep = true; /* to the end, although no later op reads the tensor */
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    const struct cr_program *programs[] = {&p, &p};
    cr_trace_write(programs, 2, 2, 64, &text);
    REQUIRE_OK(plan_text(text.data, text.length, 64, &log));
    CHECK_INT(log.plan[1].bound, p.bound_bytes);
    CHECK_INT(log.plan[1].peak, p.region_bytes[CR_REGION_POOL]);
    CHECK_INT(log.plan[1].persistent, 0);
    planned_free(&log);
    cr_text_free(&text);
    cr_program_free(&p);
}

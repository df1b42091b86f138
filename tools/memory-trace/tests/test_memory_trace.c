/* tools/memory-trace/tests/test_memory_trace.c: memory logs: logs that are refused, plans of an iteration by hand,
 * lifetimes that wrap around the iteration, detection of the iteration in noise. */
#include "tools/memory-trace/tests/trace_support.h"

#include <unistd.h>

/* ---- reading ---- */

TEST(valid_log_is_read) {
    struct cr_trace t;
    REQUIRE_OK(read_text(HEAD "0,malloc,0x7f00,100\n1.5,write,0x7f00,\r\n1.50,read,0x7f00,40\n2,free,0x7f00,100\n"
                              "1700000000000000001,malloc,0x7f00,7\n1700000000000000002,malloc,x y,0",
                         &t));
    CHECK_INT(t.events, 6);
    CHECK_INT(t.blocks, 3);
    CHECK_INT(t.alive, 2);
    CHECK_INT(t.block[0].size, 100);
    CHECK_INT(t.block[0].alloc_at, 0);
    CHECK_INT(t.block[0].first, 1);
    CHECK_INT(t.block[0].last, 2);
    CHECK_INT(t.block[0].free_at, 3);
    CHECK_INT(t.block[1].free_at, CR_NONE); /* the same id for another block */
    CHECK_INT(t.block[1].first, CR_NONE);
    CHECK_STR(t.id + t.block[1].id, "0x7f00");
    CHECK_STR(t.id + t.block[2].id, "x y");
    CHECK_NEAR(t.event[1].time, 1.5, 1e-12);
    CHECK_INT(t.event[4].block, 1);
    cr_trace_free(&t);
    REQUIRE_OK(read_text(HEAD "1700000000000000001,malloc,a,1\n1700000000000000002,malloc,b,1\n", &t));
    CHECK_NEAR(t.event[1].time - t.event[0].time, 1, 0); /* nanoseconds since 1970 remain distinct */
    cr_trace_free(&t);
    REQUIRE_OK(
        read_text("\xef\xbb\xbf\"time\",event, id,size\r\n0, malloc,\"a,\"\"b\", 7\r\n1,free ,\"a,\"\"b\",\n", &t));
    CHECK(t.events == 2 && t.blocks == 1 && t.alive == 0 && t.block[0].size == 7);
    CHECK_STR(t.id + t.block[0].id, "a,\"b");
    cr_trace_free(&t);
}

TEST(invalid_logs_are_refused) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "log.csv:1: the log has no events"},
        {HEAD, "log.csv:2: the log has no events"},
        {"0,malloc,a,1\n", "log.csv:1: a memory log begins with"},
        {"time,event,id,bytes\n0,malloc,a,1\n", "log.csv:1: a memory log begins with"},
        {HEAD "0,malloc,a,1\n0,free,a,\n1,free,a,\n", "log.csv:4: a is freed twice (it was freed in line 3)"},
        {HEAD "0,malloc,a,1\n0,free,a,\n1,read,a,\n", "log.csv:4: a is read after its free"},
        {HEAD "0,malloc,a,1\n0,free,a,\n1,write,a,\n", "log.csv:4: a is written after its free"},
        {HEAD "0,malloc,a,1\n0,malloc,a,1\n", "log.csv:3: a is allocated, but was allocated before in line 2"},
        {HEAD "0,read,a,\n", "log.csv:2: a is read, but was never allocated"},
        {HEAD "0,free,a,\n", "log.csv:2: a is freed, but was never allocated"},
        {HEAD "0,alloc,a,1\n", "log.csv:2: event \"alloc\": must be malloc, free, read or write"},
        {HEAD "0,Malloc,a,1\n", "log.csv:2: event \"Malloc\""},
        {HEAD "0,,a,1\n", "log.csv:2: event \"\""},
        {HEAD "5,malloc,a,1\n4,write,a,\n", "log.csv:3: the time goes back to 4"},
        {HEAD "5.5,malloc,a,1\n5.4,write,a,\n", "log.csv:3: the time goes back"},
        {HEAD "1700000000000000002,malloc,a,1\n1700000000000000001,write,a,\n", "log.csv:3: the time goes back"},
        {HEAD "-1,malloc,a,1\n", "log.csv:2: time \"-1\""},
        {HEAD ",malloc,a,1\n", "log.csv:2: time \"\""},
        {HEAD "1.,malloc,a,1\n", "log.csv:2: time \"1.\""},
        {HEAD ".5,malloc,a,1\n", "log.csv:2: time \".5\""},
        {HEAD "1e3,malloc,a,1\n", "log.csv:2: time \"1e3\""},
        {HEAD "0,malloc,a,\n", "log.csv:2: size \"\": must be a whole number"},
        {HEAD "0,malloc,a,1.5\n", "log.csv:2: size \"1.5\""},
        {HEAD "0,malloc,a,-4\n", "log.csv:2: size \"-4\""},
        {HEAD "0,malloc,a,12k\n", "log.csv:2: size \"12k\""},
        {HEAD "0,malloc,a,1 2\n", "log.csv:2: size \"1 2\""},
        {HEAD "0,malloc,\"a,1\n", "log.csv:2: must have four fields"},
        {HEAD "0,malloc,a,99999999999999999999\n", "log.csv:2: size \"99999"},
        {HEAD "0,malloc,a,9999999999999999999\n", "no memory is so large"},
        {HEAD "0,malloc,a,10\n1,read,a,11\n", "log.csv:3: a: 11 bytes are read of a block of 10"},
        {HEAD "0,malloc,,10\n", "log.csv:2: the id is empty"},
        {HEAD "0,malloc,a\n", "log.csv:2: must have four fields"},
        {HEAD "0,malloc,a,1,2\n", "log.csv:2: must have four fields"},
        {HEAD "0,malloc,a,1\n\n1,free,a,\n", "log.csv:3: must have four fields"},
    };
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        struct cr_trace t;
        int64_t         live = cr_alloc_live();
        CHECK_STATUS(read_text(bad[i].text, &t), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), bad[i].says);
        CHECK_INT(cr_alloc_live(), live);
    }
}

TEST(files_and_long_lines) {
    char            path[] = "/tmp/cresnet-trace-XXXXXX", *line;
    struct cr_trace t;
    int             fd = mkstemp(path);
    REQUIRE(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fprintf(file, HEAD); /* more than one buffer of the reader, cut anywhere in a line */
    for (int i = 0; i < 100000; i++) fprintf(file, "%d,malloc,block-number-%d,%d\n", i, i, i);
    fclose(file);
    REQUIRE_OK(cr_trace_read(path, &t));
    CHECK_INT(t.events, 100000);
    for (int i = 0; i < t.blocks; i += 999) CHECK_INT(t.block[i].size, i);
    cr_trace_free(&t);
    unlink(path);
    CHECK_STATUS(cr_trace_read(path, &t), CR_ERR_IO);
    CHECK_STATUS(cr_trace_read("/tmp", &t), CR_ERR_IO);
    line = cr_alloc(5000000, 1);
    REQUIRE(line);
    memset(line, 'x', 4999999);
    memcpy(line, HEAD, strlen(HEAD));
    CHECK_STATUS(cr_trace_read_bytes(line, 4999999, "log.csv", &t), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "log.csv:2: a line has more than 4096 bytes");
    cr_free(line);
}

/* ---- one iteration by hand ---- */

TEST(plain_iteration) {
    struct planned p;
    /* parameter 9; x 30 and y 50 together, then z 40: at most 80. From first to last use, x and y do not overlap. */
    REQUIRE_OK(plan_words("m9:100 w9", "m1:30 w1 r9 r1 m2:50 w2 r2 f1 f2 m3:40 w3 r3 w9 f3", 4, "", &p));
    CHECK_INT(p.loop.period, 14);
    CHECK_INT(p.loop.end, p.trace.events);
    CHECK_INT(p.plan[0].iterations, 3); /* the first lifetime overlaps the parameter for the first time */
    CHECK_INT(p.plan[0].persistent, 100);
    CHECK_INT(p.plan[0].persistent_blocks, 1);
    CHECK_INT(p.plan[0].intervals, 3);
    CHECK_INT(p.plan[0].wrapping, 0);
    CHECK_INT(p.plan[0].bound, 80);
    CHECK_INT(p.plan[0].peak, 80);
    CHECK_INT(p.plan[0].naive, 120);
    CHECK_INT(p.plan[1].bound, 50);
    CHECK_INT(p.plan[1].peak, 50);
    size_t online;
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 80);
    /* each malloc has one offset; the check must detect a block moved onto another */
    p.plan[0].interval[1].offset = p.plan[0].interval[0].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, &p.plan[0]), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "overlap in the plan");
    planned_free(&p);
}

/* The allocator takes the smallest hole that fits the block, and merges adjacent holes. */
TEST(online_allocator) {
    struct planned p;
    size_t         online;
    REQUIRE_OK(plan_words("", "m1:30 m2:1 m3:10 m4:1 f1 f3 m5:10 m6:30 f2 f4 f5 f6", 3, "", &p));
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 42); /* 5 at the offset of 3, 6 at that of 1 */
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 m2:10 m3:5 f1 f2 m4:40 f3 f4", 3, "", &p));
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 45);
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 m2:5 f1 m3:40 f2 f3", 3, "", &p)); /* too large for the hole; a plan avoids this */
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 75);
    CHECK_INT(p.plan[0].peak, 45);
    planned_free(&p);
}

TEST(check_finds_faults) {
    struct planned p;
    REQUIRE_OK(plan_words("", "m1:30 m2:50 w1 w2 f1 f2", 3, "", &p));
    struct cr_trace_plan *plan = &p.plan[0];
    plan->peak -= 1;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->peak += 1;
    plan->intervals = 1;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "no offset");
    plan->intervals = 2;
    plan->interval[0].size--;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->interval[0].size++;
    plan->alignment = 32; /* offsets 30 and 50 are not multiples */
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->alignment = 1;
    REQUIRE_OK(cr_trace_check(&p.trace, &p.loop, plan));
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 w1 m2:50 f1 w2 f2", 3, "", &p)); /* overlap for one event only */
    plan->interval[0].offset = plan->interval[1].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    planned_free(&p);
    REQUIRE_OK(plan_words("m2:7 w2", "m1:30 r2 w1 f2 m2:50 r1 f1 w2", 4, "", &p)); /* across the end */
    plan->interval[0].offset = plan->interval[1].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    planned_free(&p);
}

TEST(lifetimes_wrap_around) {
    struct planned p;
    /* 2 is allocated late and read early in the next iteration, when 3 does not exist yet; 3 and 2 may have the same
     * offset. The ids of the double buffer change (2, 4), the lifetimes do not. */
    REQUIRE_OK(plan_words("m2:100 w2",
                          "m1:10 w1 r2 f2 m3:100 r1 w3 f3 m4:100 w4 f1 m1:10 w1 r4 f4 m3:100 r1 w3 f3 m2:100 w2 f1", 3,
                          "", &p));
    CHECK_INT(p.loop.period, 11);
    CHECK_INT(p.plan[0].intervals, 3);
    CHECK_INT(p.plan[0].bound, 110);
    CHECK_INT(p.plan[0].peak, 110);
    CHECK_INT(p.plan[0].persistent, 0);
    planned_free(&p);
    /* some block always exists: the cut goes through at least one lifetime. 1 .. 2 .. 1 .. 2 follow each other with an
     * overlap */
    REQUIRE_OK(plan_words("m1:60 w1", "m2:40 r1 w2 f1 r2 m1:60 w1 f2", 5, "", &p));
    CHECK_INT(p.plan[0].wrapping, 1);
    CHECK_INT(p.plan[0].bound, 100);
    CHECK_INT(p.plan[0].peak, 100);
    for (int i = 0; i < 2; i++) CHECK(p.plan[0].interval[i].lower < p.plan[0].steps);
    planned_free(&p);
}

TEST(lifetimes_longer_than_an_iteration) {
    struct planned p;
    struct log     l = {0};
    for (int i = 0; i < 12; i++) { /* block i is freed more than two iterations later */
        log_add(&l, "malloc", i, 64);
        log_add(&l, "write", i, -1);
        if (i >= 2) log_add(&l, "free", i - 2, -1);
        log_add(&l, "malloc", 100, 8);
        log_add(&l, "free", 100, -1);
    }
    REQUIRE_OK(plan_text(l.text.data, l.text.length, 1, &p));
    CHECK_INT(p.loop.period, 5);
    CHECK_INT(p.plan[0].intervals, 2);
    int most = 0;
    for (int i = 0; i < 2; i++) most = CR_MAX(most, p.plan[0].interval[i].copies);
    CHECK_INT(most, 3);
    CHECK_INT(p.plan[0].bound, 3 * 64); /* three from malloc to free, two when the small one is allocated */
    CHECK_INT(p.plan[0].peak, 3 * 64 + 8);
    CHECK_INT(p.plan[1].bound, 64);
    planned_free(&p);
    cr_text_free(&l.text);
}

TEST(leaks_are_reported) {
    struct planned p;
    struct log     l = {0};
    for (int i = 0; i < 6; i++) {
        log_add(&l, "malloc", 1000 + i, 10); /* never freed */
        log_words(&l, "m1:64 w1 r1 f1");
    }
    REQUIRE_OK(plan_text(l.text.data, l.text.length, 1, &p));
    CHECK_INT(p.loop.period, 5);
    CHECK_INT(p.plan[0].intervals, 1);
    CHECK_INT(p.plan[0].leaked, 10);
    CHECK_INT(p.plan[0].leaked_blocks, 1);
    planned_free(&p);
    cr_text_free(&l.text);
}

/* Events with the same time are one operation. */
TEST(events_of_one_time_are_one_operation) {
    struct planned p;
    struct cr_text text = {0};
    cr_text_add(&text, HEAD);
    for (int i = 0; i < 4; i++) {
        int t = 10 * i;
        cr_text_add(&text, "%d,malloc,a,10\n%d,malloc,b,20\n%d,write,a,\n", t, t, t);
        cr_text_add(&text, "%d,read,a,\n%d,write,b,\n", t + 1, t + 1); /* overlap: a and b */
        cr_text_add(&text, "%d,read,b,\n%d,free,a,\n%d,free,b,\n", t + 2, t + 2, t + 2);
    }
    REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
    CHECK_INT(p.plan[1].bound, 30);
    planned_free(&p);
    cr_text_free(&text);
    text = (struct cr_text){0};
    cr_text_add(&text, HEAD); /* a ends while b begins, and is freed before b is written: they overlap all the same */
    for (int i = 0; i < 4; i++) {
        int t = 10 * i;
        cr_text_add(&text, "%d,malloc,a,10\n%d,write,a,\n", t, t);
        cr_text_add(&text, "%d,malloc,b,20\n%d,read,a,\n%d,free,a,\n%d,write,b,\n", t + 1, t + 1, t + 1, t + 1);
        cr_text_add(&text, "%d,read,b,\n%d,free,b,\n", t + 2, t + 2);
    }
    REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
    CHECK_INT(p.plan[1].bound, 30);
    planned_free(&p);
    cr_text_free(&text);
    text = (struct cr_text){0};
    cr_text_add(&text, HEAD); /* at the same time, but b is allocated after the free of a: it may reuse its offset */
    for (int i = 0; i < 4; i++)
        cr_text_add(&text, "%d,malloc,a,10\n%d,write,a,\n%d,free,a,\n%d,malloc,b,20\n%d,write,b,\n%d,free,b,\n", i, i,
                    i, i, i, i);
    REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
    CHECK_INT(p.plan[0].bound, 20);
    CHECK_INT(p.plan[0].peak, 20);
    planned_free(&p);
    cr_text_free(&text);
    static const char *const middle[] = {"read,a|free,x|malloc,b|write,b", "malloc,b|read,a|free,a|malloc,x|write,b"};
    /* a block that is freed and another that is allocated in the middle of an operation do not split it */
    for (int k = 0; k < 2; k++) {
        text = (struct cr_text){0};
        cr_text_add(&text, HEAD);
        for (int i = 0; i < 12; i += 3) {
            cr_text_add(&text, "%d,malloc,a,10\n%d,write,a,\n", i, i);
            if (k == 0) cr_text_add(&text, "%d,malloc,x,1\n%d,write,x,\n", i, i);
            for (const char *at = middle[k]; *at; at += strcspn(at, "|"), at += strspn(at, "|"))
                cr_text_add(&text, "%d,%.*s,%s\n", i + 1, (int)strcspn(at, "|"), at,
                            *at != 'm'                        ? ""
                            : strncmp(at, "malloc,b", 8) == 0 ? "20"
                                                              : "1");
            if (k == 0) cr_text_add(&text, "%d,free,a,\n", i + 2);
            cr_text_add(&text, "%d,read,b,\n%d,free,b,\n", i + 2, i + 2);
            if (k == 1) cr_text_add(&text, "%d,write,x,\n%d,free,x,\n", i + 2, i + 2);
        }
        REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
        CHECK_INT(p.plan[1].bound, 30);
        planned_free(&p);
        cr_text_free(&text);
    }
    /* read a and write b at different times: b may reuse the offset of a */
    REQUIRE_OK(plan_words("", "m1:10 m2:20 w1 r1 w2 r2 f1 f2", 4, "", &p));
    CHECK_INT(p.plan[0].bound, 30);
    CHECK_INT(p.plan[1].bound, 20);
    planned_free(&p);
    /* a block without reads and writes is live from malloc to free */
    REQUIRE_OK(plan_words("", "m1:10 m2:20 w1 r1 m3:5 w3 f3 f1 f2", 4, "", &p));
    CHECK_INT(p.plan[1].bound, 30);
    planned_free(&p);
}

/* ---- detection of the iteration ---- */

static void check_period(const char *setup, const char *iteration, int times, const char *tail, int period) {
    struct planned p;
    cr_status      status = plan_words(setup, iteration, times, tail, &p);
    CHECK_STATUS(status, CR_OK);
    CHECK_INT(p.loop.period, period);
    planned_free(&p);
}

TEST(adversarial_periods) {
    /* an inner loop of three equal rounds, and one more event */
    check_period("", "m1:8 w1 f1 m1:8 w1 f1 m1:8 w1 f1 m2:9 w2 f2", 3, "", 12);
    /* two halves that differ only in the last size */
    check_period("", "m1:8 w1 f1 m2:8 w2 f2 m1:8 w1 f1 m2:9 w2 f2", 3, "", 12);
    /* a whole iteration of two equal halves counts as two iterations */
    check_period("", "m1:8 w1 r1 f1 m1:8 w1 r1 f1", 3, "", 4);
    /* the log ends in the middle of an inner loop */
    check_period("", "m2:9 w2 f2 m1:8 w1 f1 m1:8 w1 f1 m1:8 w1 f1", 4, "m2:9 w2 f2 m1:8 w1 f1 m1:8 w1", 12);
    /* reads at the end that repeat; frees of all parameters */
    check_period("m8:1 m9:1 w8 w9", "m1:5 r8 w1 r1 r9 f1", 5, "r8 r8 r8 r8 r8 r8 r8 f8 f9", 6);
    /* many equal parameters, which repeat too, before */
    check_period("m11:4 m12:4 m13:4 m14:4 m15:4 m16:4 m17:4 m18:4 m19:4 m20:4 m21:4 m22:4 m23:4 m24:4",
                 "m1:5 r11 w1 r1 r12 f1", 4, "", 6);
    /* almost twice a long sequence, which is not an iteration */
    check_period("m1:1 w1 m2:2 w2 m3:3 w3 f1 f2 f3 m1:4 w1 m2:5 w2 f1 f2 m1:1 w1 m2:2 w2 m3:3 w3 f1 f2 f3 m1:4 w1 m2:5 "
                 "w2 f1 m1:77 f1",
                 "m3:8 w3 r3 f3", 3, "", 4);
    /* parameters alone: nothing is allocated in an iteration */
    check_period("m8:1 m9:1 w8 w9", "r8 w9 r9 r9 w8", 4, "", 5);
    /* equal sizes, another order of the frees in every second iteration: two make one */
    check_period("", "m1:8 m2:8 w1 w2 f1 f2 m1:8 m2:8 w1 w2 f2 f1", 3, "", 12);
}

TEST(events_before_and_after_the_repetition) {
    for (int k = 0; k < 40; k++) { /* the repetition ends with a smaller or a larger number, for any hashes */
        struct planned p;
        struct log     l = {0};
        for (int i = 0; i < 60; i++)
            log_add(&l, "malloc", 1000 + i, 64); /* equal parameters: longer than the iterations */
        for (int i = 0; i < 3; i++) log_words(&l, "m1:8 w1 r1000 m2:9 w2 r2 f1 f2");
        log_add(&l, "malloc", 5, 100 + k);
        log_words(&l, "w5 r5 f5 r1000 r1007 r1003");
        cr_status status = plan_text(l.text.data, l.text.length, 1, &p);
        CHECK_STATUS(status, CR_OK);
        CHECK_INT(p.loop.period, 8);
        CHECK_INT(p.plan[0].persistent, 60 * 64);
        CHECK_INT(p.trace.events - p.loop.end, 7);
        planned_free(&p);
        cr_text_free(&l.text);
    }
}

TEST(logs_without_repetition) {
    struct planned p;
    CHECK_STATUS(plan_words("", "m1:8 w1 r1 m2:9 f2 f1", 1, "", &p), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "log.csv: no iteration repeats");
    planned_free(&p);
    struct log l = {0};
    for (int i = 0; i < 50; i++) { /* sizes that never repeat */
        log_add(&l, "malloc", 1, i);
        log_add(&l, "free", 1, -1);
    }
    CHECK_STATUS(plan_text(l.text.data, l.text.length, 1, &p), CR_ERR_FORMAT);
    planned_free(&p);
    cr_text_free(&l.text);
}

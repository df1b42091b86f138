/* test_trace.c: memory logs: what is refused, the iteration in noise, lives that go round, plans judged by a check of our own;
 * and the log of our own programs, which must plan as the programs do. */
#include "passes/trace.h"
#include "passes_help.h"

#include <unistd.h>

/* ---- help ---- */

#define HEAD "time,event,id,size\n"

static cr_status read_text(const char *text, struct cr_trace *t) { return cr_trace_read_bytes(text, strlen(text), "log.csv", t); }

/* Log text with a time of its own for each event: "malloc a 10" and so on. */
struct log {
    struct cr_text text;
    int64_t        time;
};

static void log_add(struct log *l, const char *event, int64_t id, int64_t size) {
    if (!l->text.length) cr_text_add(&l->text, HEAD);
    cr_text_add(&l->text, "%lld,%s,b%lld,", (long long)++l->time, event, (long long)id);
    if (size >= 0) cr_text_add(&l->text, "%lld", (long long)size);
    cr_text_add(&l->text, "\n");
}

/* Words such as "m1:64 w1 r1 f1": one event each. */
static void log_words(struct log *l, const char *words) {
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

static cr_status plan_text(const char *text, size_t length, size_t alignment, struct planned *p) {
    *p = (struct planned){0};
    CR_TRY(cr_trace_read_bytes(text, length, "log.csv", &p->trace));
    CR_TRY(cr_trace_find_loop(&p->trace, "log.csv", &p->loop));
    for (int by = 0; by < 2; by++) {
        CR_TRY(cr_trace_plan(&p->trace, &p->loop, (enum cr_trace_by)by, alignment, &p->plan[by]));
        CR_TRY(cr_trace_check(&p->trace, &p->loop, &p->plan[by]));
    }
    return CR_OK;
}

static void planned_free(struct planned *p) {
    for (int by = 0; by < 2; by++) cr_trace_plan_free(&p->plan[by]);
    cr_trace_free(&p->trace);
}

/* `setup` once, `iteration` so often. */
static cr_status plan_words(const char *setup, const char *iteration, int times, const char *tail, struct planned *p) {
    struct log l = {0};
    log_words(&l, setup);
    for (int i = 0; i < times; i++) log_words(&l, iteration);
    log_words(&l, tail);
    cr_status status = plan_text(l.text.data, l.text.length, 1, p);
    cr_text_free(&l.text);
    return status;
}

/* ---- reading ---- */

static void a_sound_log_is_read(void) {
    struct cr_trace t;
    REQUIRE_OK(read_text(HEAD "0,malloc,0x7f00,100\n1.5,write,0x7f00,\r\n1.50,read,0x7f00,40\n2,free,0x7f00,100\n"
                              "1700000000000000001,malloc,0x7f00,7\n1700000000000000002,malloc,x y,0", &t));
    CHECK_INT(t.events, 6);
    CHECK_INT(t.blocks, 3);
    CHECK_INT(t.alive, 2);
    CHECK_INT(t.block[0].size, 100);
    CHECK_INT(t.block[0].born, 0);
    CHECK_INT(t.block[0].first, 1);
    CHECK_INT(t.block[0].last, 2);
    CHECK_INT(t.block[0].died, 3);
    CHECK_INT(t.block[1].died, CR_NONE); /* the same id, another block */
    CHECK_INT(t.block[1].first, CR_NONE);
    CHECK_STR(t.id + t.block[1].id, "0x7f00");
    CHECK_STR(t.id + t.block[2].id, "x y");
    CHECK_NEAR(t.event[1].time, 1.5, 1e-12);
    CHECK_INT(t.event[4].block, 1);
    cr_trace_free(&t);
    REQUIRE_OK(read_text(HEAD "1700000000000000001,malloc,a,1\n1700000000000000002,malloc,b,1\n", &t));
    CHECK_NEAR(t.event[1].time - t.event[0].time, 1, 0); /* nanoseconds since 1970 stay apart */
    cr_trace_free(&t);
}

static void what_cannot_be_is_refused(void) {
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
        {HEAD "0,malloc,a, 1\n", "log.csv:2: size \" 1\""},
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

static void files_and_long_lines(void) {
    char            path[] = "/tmp/cresnet-trace-XXXXXX", *line;
    struct cr_trace t;
    int             fd = mkstemp(path);
    REQUIRE(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fprintf(file, HEAD); /* more than one piece of the reader's buffer, cut anywhere in a line */
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

static void a_plain_iteration(void) {
    struct planned p;
    /* parameter 9; x 30 and y 50 together, then z 40: 80 at most. From first to last use x and y do not meet. */
    REQUIRE_OK(plan_words("m9:100 w9", "m1:30 w1 r9 r1 m2:50 w2 r2 f1 f2 m3:40 w3 r3 w9 f3", 4, "", &p));
    CHECK_INT(p.loop.period, 14);
    CHECK_INT(p.loop.end, p.trace.events);
    CHECK_INT(p.plan[0].iterations, 3); /* the first one meets the parameter for the first time */
    CHECK_INT(p.plan[0].across, 100);
    CHECK_INT(p.plan[0].across_blocks, 1);
    CHECK_INT(p.plan[0].lives, 3);
    CHECK_INT(p.plan[0].wrapping, 0);
    CHECK_INT(p.plan[0].bound, 80);
    CHECK_INT(p.plan[0].peak, 80);
    CHECK_INT(p.plan[0].naive, 120);
    CHECK_INT(p.plan[1].bound, 50);
    CHECK_INT(p.plan[1].peak, 50);
    size_t online;
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 80);
    /* each malloc has one place; shifting one onto another must be seen */
    p.plan[0].life[1].offset = p.plan[0].life[0].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, &p.plan[0]), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "share bytes");
    planned_free(&p);
}

/* The pool takes the smallest hole that holds a block, and joins holes beside each other. */
static void an_online_pool(void) {
    struct planned p;
    size_t         online;
    REQUIRE_OK(plan_words("", "m1:30 m2:1 m3:10 m4:1 f1 f3 m5:10 m6:30 f2 f4 f5 f6", 3, "", &p));
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 42); /* 5 where 3 was, 6 where 1 was */
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 m2:10 m3:5 f1 f2 m4:40 f3 f4", 3, "", &p));
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 45);
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 m2:5 f1 m3:40 f2 f3", 3, "", &p)); /* too large for the hole; a plan knows better */
    REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
    CHECK_INT(online, 75);
    CHECK_INT(p.plan[0].peak, 45);
    planned_free(&p);
}

static void the_check_finds_faults(void) {
    struct planned p;
    REQUIRE_OK(plan_words("", "m1:30 m2:50 w1 w2 f1 f2", 3, "", &p));
    struct cr_trace_plan *plan = &p.plan[0];
    plan->peak -= 1;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->peak += 1;
    plan->lives = 1;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "no place");
    plan->lives = 2;
    plan->life[0].size--;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->life[0].size++;
    plan->alignment = 32; /* what lies at 30 or 50 is no multiple */
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    plan->alignment = 1;
    REQUIRE_OK(cr_trace_check(&p.trace, &p.loop, plan));
    planned_free(&p);
    REQUIRE_OK(plan_words("", "m1:30 w1 m2:50 f1 w2 f2", 3, "", &p)); /* together for one event only */
    plan->life[0].offset = plan->life[1].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    planned_free(&p);
    REQUIRE_OK(plan_words("m2:7 w2", "m1:30 r2 w1 f2 m2:50 r1 f1 w2", 4, "", &p)); /* round the end */
    plan->life[0].offset = plan->life[1].offset = 0;
    CHECK_STATUS(cr_trace_check(&p.trace, &p.loop, plan), CR_ERR_DEVICE);
    planned_free(&p);
}

static void lives_go_round(void) {
    struct planned p;
    /* 2 is made late and read early in the next iteration, when 3 is not there yet; 3 and 2 may lie in one place. The ids of the
     * double buffer change (2, 4), the lives do not. */
    REQUIRE_OK(plan_words("m2:100 w2", "m1:10 w1 r2 f2 m3:100 r1 w3 f3 m4:100 w4 f1 m1:10 w1 r4 f4 m3:100 r1 w3 f3 m2:100 w2 f1", 3, "", &p));
    CHECK_INT(p.loop.period, 11);
    CHECK_INT(p.plan[0].lives, 3);
    CHECK_INT(p.plan[0].bound, 110);
    CHECK_INT(p.plan[0].peak, 110);
    CHECK_INT(p.plan[0].across, 0);
    planned_free(&p);
    /* something is always there: the cut goes through one life at least. 1 .. 2 .. 1 .. 2 hand over with an overlap each */
    REQUIRE_OK(plan_words("m1:60 w1", "m2:40 r1 w2 f1 r2 m1:60 w1 f2", 5, "", &p));
    CHECK_INT(p.plan[0].wrapping, 1);
    CHECK_INT(p.plan[0].bound, 100);
    CHECK_INT(p.plan[0].peak, 100);
    for (int i = 0; i < 2; i++) CHECK(p.plan[0].life[i].lower < p.plan[0].steps);
    planned_free(&p);
}

static void lives_longer_than_an_iteration(void) {
    struct planned p;
    struct log     l = {0};
    for (int i = 0; i < 12; i++) { /* block i is freed two iterations and a bit later */
        log_add(&l, "malloc", i, 64);
        log_add(&l, "write", i, -1);
        if (i >= 2) log_add(&l, "free", i - 2, -1);
        log_add(&l, "malloc", 100, 8);
        log_add(&l, "free", 100, -1);
    }
    REQUIRE_OK(plan_text(l.text.data, l.text.length, 1, &p));
    CHECK_INT(p.loop.period, 5);
    CHECK_INT(p.plan[0].lives, 2);
    int most = 0;
    for (int i = 0; i < 2; i++) most = CR_MAX(most, p.plan[0].life[i].copies);
    CHECK_INT(most, 3);
    CHECK_INT(p.plan[0].bound, 3 * 64); /* three from malloc to free, two when the small one comes */
    CHECK_INT(p.plan[0].peak, 3 * 64 + 8);
    CHECK_INT(p.plan[1].bound, 64);
    planned_free(&p);
    cr_text_free(&l.text);
}

static void what_grows_is_told(void) {
    struct planned p;
    struct log     l = {0};
    for (int i = 0; i < 6; i++) {
        log_add(&l, "malloc", 1000 + i, 10); /* never freed */
        log_words(&l, "m1:64 w1 r1 f1");
    }
    REQUIRE_OK(plan_text(l.text.data, l.text.length, 1, &p));
    CHECK_INT(p.loop.period, 5);
    CHECK_INT(p.plan[0].lives, 1);
    CHECK_INT(p.plan[0].grown, 10);
    CHECK_INT(p.plan[0].grown_blocks, 1);
    planned_free(&p);
    cr_text_free(&l.text);
}

/* Events of one time are one operation. */
static void one_time_is_one_operation(void) {
    struct planned p;
    struct cr_text text = {0};
    cr_text_add(&text, HEAD);
    for (int i = 0; i < 4; i++) {
        int t = 10 * i;
        cr_text_add(&text, "%d,malloc,a,10\n%d,malloc,b,20\n%d,write,a,\n", t, t, t);
        cr_text_add(&text, "%d,read,a,\n%d,write,b,\n", t + 1, t + 1); /* together: a and b */
        cr_text_add(&text, "%d,read,b,\n%d,free,a,\n%d,free,b,\n", t + 2, t + 2, t + 2);
    }
    REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
    CHECK_INT(p.plan[1].bound, 30);
    planned_free(&p);
    cr_text_free(&text);
    text = (struct cr_text){0};
    cr_text_add(&text, HEAD); /* a goes while b comes, and is freed before b is written: they are together all the same */
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
    cr_text_add(&text, HEAD); /* at one time, but b is allocated behind a's free: it may have a's place */
    for (int i = 0; i < 4; i++)
        cr_text_add(&text, "%d,malloc,a,10\n%d,write,a,\n%d,free,a,\n%d,malloc,b,20\n%d,write,b,\n%d,free,b,\n", i, i, i, i, i, i);
    REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
    CHECK_INT(p.plan[0].bound, 20);
    CHECK_INT(p.plan[0].peak, 20);
    planned_free(&p);
    cr_text_free(&text);
    static const char *const middle[] = {"read,a|free,x|malloc,b|write,b", "malloc,b|read,a|free,a|malloc,x|write,b"};
    for (int k = 0; k < 2; k++) { /* what is freed and allocated in the middle of an operation does not part it */
        text = (struct cr_text){0};
        cr_text_add(&text, HEAD);
        for (int i = 0; i < 12; i += 3) {
            cr_text_add(&text, "%d,malloc,a,10\n%d,write,a,\n", i, i);
            if (k == 0) cr_text_add(&text, "%d,malloc,x,1\n%d,write,x,\n", i, i);
            for (const char *at = middle[k]; *at; at += strcspn(at, "|"), at += strspn(at, "|"))
                cr_text_add(&text, "%d,%.*s,%s\n", i + 1, (int)strcspn(at, "|"), at,
                            *at != 'm' ? "" : strncmp(at, "malloc,b", 8) == 0 ? "20" : "1");
            if (k == 0) cr_text_add(&text, "%d,free,a,\n", i + 2);
            cr_text_add(&text, "%d,read,b,\n%d,free,b,\n", i + 2, i + 2);
            if (k == 1) cr_text_add(&text, "%d,write,x,\n%d,free,x,\n", i + 2, i + 2);
        }
        REQUIRE_OK(plan_text(text.data, text.length, 1, &p));
        CHECK_INT(p.plan[1].bound, 30);
        planned_free(&p);
        cr_text_free(&text);
    }
    /* read a and write b at times of their own: b may take a's place */
    REQUIRE_OK(plan_words("", "m1:10 m2:20 w1 r1 w2 r2 f1 f2", 4, "", &p));
    CHECK_INT(p.plan[0].bound, 30);
    CHECK_INT(p.plan[1].bound, 20);
    planned_free(&p);
    /* a block that nobody reads or writes stays from malloc to free */
    REQUIRE_OK(plan_words("", "m1:10 m2:20 w1 r1 m3:5 w3 f3 f1 f2", 4, "", &p));
    CHECK_INT(p.plan[1].bound, 30);
    planned_free(&p);
}

/* ---- finding the iteration ---- */

static void check_period(const char *setup, const char *iteration, int times, const char *tail, int period) {
    struct planned p;
    cr_status      status = plan_words(setup, iteration, times, tail, &p);
    CHECK_STATUS(status, CR_OK);
    CHECK_INT(p.loop.period, period);
    planned_free(&p);
}

static void adversarial_periods(void) {
    /* an inner loop of three equal rounds, and one more event */
    check_period("", "m1:8 w1 f1 m1:8 w1 f1 m1:8 w1 f1 m2:9 w2 f2", 3, "", 12);
    /* two halves that differ in the last size only */
    check_period("", "m1:8 w1 f1 m2:8 w2 f2 m1:8 w1 f1 m2:9 w2 f2", 3, "", 12);
    /* a whole iteration that is two equal halves is two iterations */
    check_period("", "m1:8 w1 r1 f1 m1:8 w1 r1 f1", 3, "", 4);
    /* the log ends in the middle of an inner loop */
    check_period("", "m2:9 w2 f2 m1:8 w1 f1 m1:8 w1 f1 m1:8 w1 f1", 4, "m2:9 w2 f2 m1:8 w1 f1 m1:8 w1", 12);
    /* reads at the end that repeat; frees of all parameters */
    check_period("m8:1 m9:1 w8 w9", "m1:5 r8 w1 r1 r9 f1", 5, "r8 r8 r8 r8 r8 r8 r8 f8 f9", 6);
    /* many equal parameters, which repeat too, before */
    check_period("m11:4 m12:4 m13:4 m14:4 m15:4 m16:4 m17:4 m18:4 m19:4 m20:4 m21:4 m22:4 m23:4 m24:4",
                 "m1:5 r11 w1 r1 r12 f1", 4, "", 6);
    /* almost twice something long, which is no iteration */
    check_period("m1:1 w1 m2:2 w2 m3:3 w3 f1 f2 f3 m1:4 w1 m2:5 w2 f1 f2 m1:1 w1 m2:2 w2 m3:3 w3 f1 f2 f3 m1:4 w1 m2:5 w2 f1 m1:77 f1",
                 "m3:8 w3 r3 f3", 3, "", 4);
    /* parameters alone: nothing is allocated in an iteration */
    check_period("m8:1 m9:1 w8 w9", "r8 w9 r9 r9 w8", 4, "", 5);
    /* equal sizes, other order of the frees in each second iteration: two make one */
    check_period("", "m1:8 m2:8 w1 w2 f1 f2 m1:8 m2:8 w1 w2 f2 f1", 3, "", 12);
}

static void what_comes_before_and_behind(void) {
    for (int k = 0; k < 40; k++) { /* the repetition ends with a smaller or a larger number, whatever the hashes are */
        struct planned p;
        struct log     l = {0};
        for (int i = 0; i < 60; i++) log_add(&l, "malloc", 1000 + i, 64); /* equal parameters: longer than the iterations */
        for (int i = 0; i < 3; i++) log_words(&l, "m1:8 w1 r1000 m2:9 w2 r2 f1 f2");
        log_add(&l, "malloc", 5, 100 + k);
        log_words(&l, "w5 r5 f5 r1000 r1007 r1003");
        cr_status status = plan_text(l.text.data, l.text.length, 1, &p);
        CHECK_STATUS(status, CR_OK);
        CHECK_INT(p.loop.period, 8);
        CHECK_INT(p.plan[0].across, 60 * 64);
        CHECK_INT(p.trace.events - p.loop.end, 7);
        planned_free(&p);
        cr_text_free(&l.text);
    }
}

static void what_does_not_repeat(void) {
    struct planned p;
    CHECK_STATUS(plan_words("", "m1:8 w1 r1 m2:9 f2 f1", 1, "", &p), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "log.csv: no iteration is there twice");
    planned_free(&p);
    struct log l = {0};
    for (int i = 0; i < 50; i++) { /* sizes that never come again */
        log_add(&l, "malloc", 1, i);
        log_add(&l, "free", 1, -1);
    }
    CHECK_STATUS(plan_text(l.text.data, l.text.length, 1, &p), CR_ERR_FORMAT);
    planned_free(&p);
    cr_text_free(&l.text);
}

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

/* One iteration: blocks at random times, some of which go on in the next one. *size by block. */
static int random_iteration(struct cr_rng *rng, bool wrap, struct happening *h, int64_t *size) {
    int n = 0;
    for (int b = 0; b < BLOCKS; b++) {
        int64_t from = draw(rng, 0, HORIZON - 2), most = wrap ? from + HORIZON - 1 : HORIZON - 1;
        int64_t to   = CR_MIN(from + 1 + draw(rng, 1, 3) * draw(rng, 1, HORIZON / 4), most), uses = draw(rng, 0, 4);
        size[b]      = draw(rng, 1, 1000);
        h[n++]       = (struct happening){from, 0, CR_TRACE_MALLOC, b};
        for (int k = 0; k < uses; k++)
            h[n++] = (struct happening){draw(rng, from, to), 0, k ? CR_TRACE_READ : CR_TRACE_WRITE, b};
        h[n++] = (struct happening){to, 0, CR_TRACE_FREE, b};
    }
    for (int k = 0; k < 20; k++)
        h[n++] = (struct happening){draw(rng, 0, HORIZON - 1), 0, CR_TRACE_READ, -1 - (int)draw(rng, 0, PARAMETERS - 1)};
    for (int i = 0; i < n; i++) h[i].serial = h[i].kind == CR_TRACE_MALLOC ? i - EVENTS : h[i].kind == CR_TRACE_FREE ? i + EVENTS : i;
    return n;
}

/* Ids as addresses are: the smallest free one, so that they come again, in another order each time. */
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
    for (int k = 0; k < noise; k++) { /* nothing of it comes again in this way */
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
    cut = (iterations - 1) * HORIZON + draw(rng, 0, HORIZON); /* a last iteration that is not whole */
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
            /* of the instances of a life take the one a period before, whose end the log has seen */
            int from = x->born, to = x->died;
            if (from < p->loop.start || to == CR_NONE || to >= p->loop.end) continue;
            if (by == CR_TRACE_BY_USE && x->first != CR_NONE) {
                from = x->first;
                to   = x->last + 1;
            }
            if (x->born >= p->loop.start + p->loop.period) continue; /* the first instance, and it shifted */
            for (int k = -2; k <= 40; k++)
                if (from + k * p->loop.period <= at && at < to + k * p->loop.period) load += x->size;
        }
        most = CR_MAX(most, load);
    }
    return most;
}

/* Every pair of blocks of the repetition, event by event. */
static bool places_are_sound(const struct planned *p, int by) {
    const struct cr_trace_plan *plan = &p->plan[by];
    struct cr_life             *life = cr_alloc((size_t)p->trace.blocks + 1, sizeof *life);
    int                         n    = 0;
    for (int b = 0; b < p->trace.blocks; b++) {
        const struct cr_trace_block *x = &p->trace.block[b];
        if (x->born < p->loop.start || x->died == CR_NONE || x->died >= p->loop.end) continue;
        int turn = (x->born - p->loop.start) / p->loop.period, phase = (x->born - p->loop.start) % p->loop.period, found = 0;
        for (int i = 0; i < plan->lives; i++) {
            const struct cr_trace_life *l = &plan->life[i];
            if (l->phase != phase) continue;
            found++;
            life[n] = (struct cr_life){x->born, x->died, x->size, l->offset + (size_t)(turn % l->copies) * l->size};
            if (by == CR_TRACE_BY_USE && x->first != CR_NONE) {
                life[n].lower = x->first;
                life[n].upper = x->last + 1;
            }
        }
        if (found != 1) {
            cr_free(life);
            return false;
        }
        n++;
    }
    bool sound = lives_valid(life, n, 1, plan->peak);
    cr_free(life);
    return sound;
}

static void random_programs(void) {
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
            CHECK_INT(p.plan[0].lives, BLOCKS);
            CHECK_INT(p.plan[0].across, across);
            CHECK_INT(p.plan[0].across_blocks, PARAMETERS);
            CHECK_INT(p.plan[0].grown, 0);
            for (int by = 0; by < 2; by++) {
                CHECK_INT(p.plan[by].bound, load_of(&p, by));
                CHECK(places_are_sound(&p, by));
                CHECK(p.plan[by].bound <= p.plan[by].peak && p.plan[by].peak <= p.plan[by].naive);
                worst[by] = fmax(worst[by], (double)p.plan[by].peak / (double)p.plan[by].bound);
            }
            size_t online;
            REQUIRE_OK(cr_trace_online(&p.trace, &p.loop, &p.plan[0], &online));
            CHECK(online >= p.plan[0].bound || p.plan[0].wrapping); /* it starts empty: what came before is not in it */
            wrapping += p.plan[0].wrapping > 0;
            tight += p.plan[0].peak == p.plan[0].bound;
        }
        planned_free(&p);
        cr_text_free(&l.text);
    }
    printf("    %d programs, %d with lives that go round: peak = bound in %d, worst %.4f, by use %.4f\n", rounds, wrapping, tight,
           worst[0], worst[1]);
    CHECK(wrapping > rounds / 3);
    CHECK(worst[0] < 1.35 && worst[1] < 1.35);
    CHECK(tight > rounds / 2);
}

static void planning_survives_failing_allocations(void) {
    struct cr_rng rng = test_rng(42);
    struct log    l   = {0};
    int64_t       across, live;
    int           events;
    write_random(&rng, true, 5, &l, &across, &events);
    live = cr_alloc_live();
    for (int n = 1;; n++) {
        struct planned p;
        cr_alloc_fail_at(n);
        cr_status status = plan_text(l.text.data, l.text.length, 1, &p);
        cr_alloc_fail_at(0);
        planned_free(&p);
        CHECK_INT(cr_alloc_live(), live);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_MEMORY);
        REQUIRE(n < 200);
    }
    cr_text_free(&l.text);
}

static void millions_of_lines(void) {
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

static void programs_plan_alike(void) {
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
            CHECK_INT(log.plan[0].rest, 0);
            CHECK_INT(log.plan[0].wrapping, 0);
            CHECK(log.plan[0].across >= cr_store_bytes(&b.model.store) + p.region_bytes[CR_REGION_INPUT]);
            CHECK(log.plan[0].across <= cr_store_bytes(&b.model.store) + p.region_bytes[CR_REGION_INPUT] + 8 * 256);
            printf("    %s, %s: %d events an iteration, %d lives, peak %zu\n", archs[a], fuse ? "fused" : "plain",
                   log.loop.period, log.plan[0].lives, log.plan[0].peak);
            planned_free(&log);
            cr_text_free(&text);
            cr_program_free(&p);
            bench_close(&b);
        }
}

/* Ops beside each other stretch lives beyond the uses that the program names; the log has them as they are planned. */
static void programs_with_lanes_plan_alike(void) {
    for (int every = 5; every < 30; every += 6) {
        struct bench_model b;
        struct cr_program  p;
        struct cr_text     text = {0};
        struct planned     log;
        if (!compiled(&b, "resnet20", 32, 4, CR_PROGRAM_STEP, true, true, &p)) return;
        size_t before = p.bound_bytes;
        for (int i = every; i < p.ops; i += every) p.op[i].lane = CR_LANE_COMM;
        REQUIRE_OK(cr_pass_order(&p));
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

static void storage_that_is_handed_on_is_one_block(void) {
    struct cr_program p;
    struct cr_text    text = {0};
    struct planned    log;
    int               id[5];
    chain_program(&p, id);
    p.tensor[id[4]].keep = true;
    p.tensor[id[1]].keep = true; /* to the end, though nothing reads it there */
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    const struct cr_program *programs[] = {&p, &p};
    cr_trace_write(programs, 2, 2, 64, &text);
    REQUIRE_OK(plan_text(text.data, text.length, 64, &log));
    CHECK_INT(log.plan[1].bound, p.bound_bytes);
    CHECK_INT(log.plan[1].peak, p.region_bytes[CR_REGION_POOL]);
    CHECK_INT(log.plan[1].across, 0);
    planned_free(&log);
    cr_text_free(&text);
    cr_program_free(&p);
}

TESTS(CASE(a_sound_log_is_read), CASE(what_cannot_be_is_refused), CASE(files_and_long_lines), CASE(a_plain_iteration),
      CASE(an_online_pool), CASE(the_check_finds_faults), CASE(lives_go_round), CASE(lives_longer_than_an_iteration), CASE(what_grows_is_told),
      CASE(one_time_is_one_operation), CASE(adversarial_periods), CASE(what_comes_before_and_behind), CASE(what_does_not_repeat), CASE(random_programs),
      CASE(planning_survives_failing_allocations), CASE(millions_of_lines), CASE(programs_plan_alike), CASE(programs_with_lanes_plan_alike),
      CASE(storage_that_is_handed_on_is_one_block))

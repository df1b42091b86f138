/* tests/unit/api/test_api_overlap.c: calls of several threads on one model: the order of their parts, on a device that
 * is a counter. */
#include "api/model.h"
#include "tests/harness/test.h"

#include <sched.h>

enum { CALLERS = 8, CALLS = 200 };

/* The device ends a job at every third poll. */
static struct { atomic_int begun, ended, most, wrong, alone; } device;

struct call {
    int       number, value;
    cr_status begin, end; /* what the functions return */
};

static cr_status begin_call(struct cresnet_model *m, void *argument) {
    struct call *c = argument;
    if (c->begin != CR_OK) return CR_FAIL(c->begin, "call %d cannot begin", c->number);
    const int open = ++device.begun - device.ended;
    if (open > device.most) device.most = open;
    return CR_OK;
}

static bool call_is_ready(struct cresnet_model *m, void *argument) {
    static int polls;
    return polls++ % 3 == 2;
}

static cr_status end_call(struct cresnet_model *m, void *argument) {
    struct call *c = argument;
    device.ended++;
    c->value = 10 * c->number;
    return c->end == CR_OK ? CR_OK : CR_FAIL(c->end, "call %d cannot end", c->number);
}

/* Cannot overlap. */
static cr_status whole_call(struct cresnet_model *m, void *argument) {
    struct call *c = argument;
    if (device.begun != device.ended) device.wrong++;
    device.alone++;
    c->value = 10 * c->number;
    return CR_OK;
}

static cresnet_status overlapped(struct cresnet_model *m, struct call *c, cresnet_error *error) {
    struct cr_api_job job = {.begin = begin_call, .end = end_call, .ready = call_is_ready, .argument = c};
    return cr_api_call_job(m, &job, error);
}

struct caller {
    struct cresnet_model *model;
    int                   number;
};

static void *call_often(void *argument) {
    const struct caller *caller = argument;
    for (int i = 0; i < CALLS; i++) {
        struct call   c = {.number = 1 + caller->number * CALLS + i};
        cresnet_error error;
        const bool    alone = c.number % 50 == 0, numeric = c.number % 7 == 0;
        if (numeric && !alone) *(c.number % 2 ? &c.begin : &c.end) = CR_ERR_NUMERIC;
        const cresnet_status status =
            alone ? cr_api_call(caller->model, whole_call, &c, &error) : overlapped(caller->model, &c, &error);
        if (status != (numeric && !alone ? CRESNET_ERROR_NOT_FINITE : CRESNET_OK)) device.wrong++;
        if (c.begin == CR_OK && c.value != 10 * c.number) device.wrong++;
        if (status != CRESNET_OK && (int)strtol(error.text + 5, NULL, 10) != c.number) device.wrong++;
    }
    return NULL;
}

TEST(each_call_has_its_own_result) {
    cresnet_error         error;
    pthread_t             thread[CALLERS];
    struct caller         caller[CALLERS];
    struct cresnet_model *m = cr_api_start(&error);
    REQUIRE(m);
    for (int i = 0; i < CALLERS; i++) {
        caller[i] = (struct caller){m, i};
        REQUIRE(pthread_create(&thread[i], NULL, call_often, &caller[i]) == 0);
    }
    for (int i = 0; i < CALLERS; i++) (void)pthread_join(thread[i], NULL);
    CHECK_INT(device.wrong, 0);
    CHECK_INT(device.begun, device.ended);
    CHECK_INT(device.most, CR_API_BEGUN);
    CHECK_INT(device.alone, CALLERS * CALLS / 50);
    cr_api_stop(m);
}

TEST(calls_after_a_failure_of_the_device_are_refused) {
    cresnet_error         error;
    struct cresnet_model *m = cr_api_start(&error);
    struct call           c = {.number = 3, .end = CR_ERR_DEVICE}, next = {.number = 4};
    REQUIRE(m);
    CHECK_INT(overlapped(m, &c, &error), CRESNET_ERROR_DEVICE);
    CHECK_STR(error.text, "call 3 cannot end");
    CHECK_INT(overlapped(m, &next, &error), CRESNET_ERROR_BROKEN);
    CHECK_HAS(error.text, "call 3 cannot end");
    CHECK_INT(next.value, 0);
    CHECK_INT(cr_api_call(m, whole_call, &next, NULL), CRESNET_ERROR_BROKEN);
    cr_api_stop(m);
}

static cr_status fail_when_a_call_waits(struct cresnet_model *m, void *argument) {
    for (bool waits = false; !waits;) {
        (void)pthread_mutex_lock(&m->worker.mutex);
        waits = m->worker.first != NULL;
        (void)pthread_mutex_unlock(&m->worker.mutex);
        (void)sched_yield();
    }
    return CR_FAIL(CR_ERR_DEVICE, "the device is lost");
}

static void *lose_device(void *model) {
    CHECK_INT(cr_api_call(model, fail_when_a_call_waits, NULL, NULL), CRESNET_ERROR_DEVICE);
    return NULL;
}

static bool has_current(struct cresnet_model *m) {
    (void)pthread_mutex_lock(&m->worker.mutex);
    const bool has = m->worker.current != NULL;
    (void)pthread_mutex_unlock(&m->worker.mutex);
    return has;
}

TEST(a_waiting_call_gets_the_reason) {
    cresnet_error         error;
    pthread_t             thread;
    struct cresnet_model *m    = cr_api_start(&error);
    struct call           next = {.number = 5};
    REQUIRE(m);
    REQUIRE(pthread_create(&thread, NULL, lose_device, m) == 0);
    while (!has_current(m)) (void)sched_yield();
    CHECK_INT(cr_api_call(m, whole_call, &next, &error), CRESNET_ERROR_BROKEN);
    CHECK_HAS(error.text, "the device is lost");
    CHECK_INT(next.value, 0);
    (void)pthread_join(thread, NULL);
    cr_api_stop(m);
}

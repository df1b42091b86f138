/* tests/harness/fake_device.h: an asynchronous device that reads the time from `clock_s`. Its memory is host memory,
 * and it executes at once. The kernels of a test advance `clock_s`, and the cost table or the profiler measures
 * that. fake_wrap replaces the backend of an open CPU device by this one. */
#ifndef CR_TEST_FAKE_DEVICE_H
#define CR_TEST_FAKE_DEVICE_H

#include "device/device.h"
#include "device/kernel.h"

#include <stdint.h>
#include <string.h>

static double clock_s;    /* clock of the device */
static double event_s;    /* device time of an event */
static size_t memory_max; /* of one reservation */
static bool   is_capturing;

static inline cr_status fake_reserve(struct cr_device *d, size_t bytes, void **out) {
    if (bytes > memory_max) return CR_FAIL(CR_ERR_MEMORY, "no memory");
    *out = cr_alloc(bytes, 1);
    return *out ? CR_OK : CR_NO_MEMORY(bytes);
}
static inline void fake_release(struct cr_device *d, void *p) {
    cr_free(p);
}
static inline void      fake_close(struct cr_device *d) {}
static inline cr_status fake_copy(struct cr_device *d, void *dst, const void *src, size_t n) {
    return memcpy(dst, src, n), CR_OK;
}
static inline cr_status fake_move(struct cr_device *d, enum cr_stream l, void *dst, const void *src, size_t n) {
    return memmove(dst, src, n), CR_OK;
}
static inline cr_status fake_fill(struct cr_device *d, enum cr_stream l, void *dst, int byte, size_t n) {
    return memset(dst, byte, n), clock_s += 1.5e-6, CR_OK;
}
static inline cr_status event_create(struct cr_device *d, void **m) {
    *m = cr_alloc(1, sizeof(double));
    return *m ? CR_OK : CR_NO_MEMORY(8);
}
static inline void event_destroy(struct cr_device *d, void *m) {
    cr_free(m);
}
static inline cr_status event_record(struct cr_device *d, enum cr_stream l, void *m) {
    return *(double *)m = clock_s, clock_s += event_s, CR_OK;
}
static inline cr_status host_wait(struct cr_device *d, void *m) {
    return CR_OK;
}
static inline cr_status elapsed(struct cr_device *d, void *a, void *b, double *s) {
    return *s = *(double *)b - *(double *)a, CR_OK;
}

static double           capture_start;
static inline cr_status capture_begin(struct cr_device *d) {
    return is_capturing = true, capture_start = clock_s, CR_OK;
}
static inline cr_status capture_end(struct cr_device *d, void **out) {
    CR_TRY(event_create(d, out));
    *(double *)*out = clock_s - capture_start; /* capture takes no device time, replay does */
    clock_s         = capture_start;
    is_capturing    = false;
    return CR_OK;
}
static inline cr_status replay(struct cr_device *d, void *r) {
    return clock_s += *(double *)r, CR_OK;
}

static inline cr_status fake_get_small(struct cr_device *d, enum cr_stream l, void *const *host, const void *const *src,
                                       const size_t *bytes, int count) {
    for (int i = 0; i < count; i++) CR_TRY(fake_move(d, l, host[i], src[i], bytes[i]));
    return CR_OK;
}
/* Of the input feed, whose events have no time, and of another stream. */
static inline cr_status fake_order(struct cr_device *d, enum cr_stream l, void *m) {
    return CR_OK;
}
static inline void fake_range_push(const char *name) {}
static inline void fake_range_pop(void) {}

static const struct cr_async   fake_async   = {.host_reserve          = fake_reserve,
                                               .host_release          = fake_release,
                                               .put                   = fake_move,
                                               .get                   = fake_move,
                                               .get_small             = fake_get_small,
                                               .move                  = fake_move,
                                               .fill                  = fake_fill,
                                               .event_create          = event_create,
                                               .event_destroy         = event_destroy,
                                               .event_record          = event_record,
                                               .event_record_external = fake_order,
                                               .stream_wait_event     = fake_order,
                                               .host_wait             = host_wait,
                                               .elapsed               = elapsed,
                                               .capture_begin         = capture_begin,
                                               .capture_end           = capture_end,
                                               .graph_launch          = replay,
                                               .graph_destroy         = event_destroy,
                                               .range_push            = fake_range_push,
                                               .range_pop             = fake_range_pop};
static const struct cr_backend fake_backend = {.name    = "fake",
                                               .reserve = fake_reserve,
                                               .release = fake_release,
                                               .put     = fake_copy,
                                               .get     = fake_copy,
                                               .close   = fake_close,
                                               .async   = &fake_async};

/* ---- the CPU device as such a device ---- */

static struct cr_async                wrapped_async;
static struct cr_backend              wrapped_backend;
static struct cr_kernel               wrapped_kernel[512];
static const struct cr_kernel        *wrapped_kernels[512];
static const struct cr_kernel *const *cpu_kernels; /* those that it had */

/* `launch`: of all kernels, instead of their own; NULL: none. */
static inline void fake_wrap(struct cr_device *device,
                             cr_status (*launch)(struct cr_device *, const struct cr_call *)) {
    clock_s = event_s     = 0;
    memory_max            = SIZE_MAX;
    wrapped_async         = fake_async;
    wrapped_backend       = *device->backend;
    wrapped_backend.async = &wrapped_async;
    cpu_kernels           = device->kernels;
    memset(wrapped_kernels, 0, sizeof wrapped_kernels);
    for (int i = 0; cpu_kernels[i]; i++) {
        wrapped_kernel[i] = *cpu_kernels[i];
        if (launch) wrapped_kernel[i].launch = launch;
        wrapped_kernels[i] = &wrapped_kernel[i];
    }
    device->backend = &wrapped_backend;
    device->kernels = wrapped_kernels;
}

#endif

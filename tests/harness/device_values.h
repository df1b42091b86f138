/* tests/harness/device_values.h: compares tensors of two devices, which may have different types. */
#ifndef CR_TEST_DEVICE_VALUES_H
#define CR_TEST_DEVICE_VALUES_H

#include "device/device.h"
#include "tests/harness/test.h"

#include <math.h>
#include <stdlib.h>

struct device_values {
    struct cr_device       *device;
    const struct cr_tensor *tensor;
    const void             *at;
};

/* Square root of the sum of squared differences, relative to that of b. */
static inline double values_distance(struct device_values a, struct device_values b) {
    char  *x = malloc(a.tensor->bytes), *y = malloc(b.tensor->bytes);
    double off = 0, size = 0;
    if (!x || !y) abort();
    CHECK_STATUS(a.device->backend->get(a.device, x, a.at, a.tensor->bytes), CR_OK);
    CHECK_STATUS(b.device->backend->get(b.device, y, b.at, b.tensor->bytes), CR_OK);
    for (int64_t i = 0; i < cr_tensor_elems(a.tensor); i++) {
        const double p = cr_number_load(a.tensor->dtype, x, i), q = cr_number_load(b.tensor->dtype, y, i);
        off += (p - q) * (p - q), size += q * q;
    }
    free(x), free(y);
    return sqrt(off / size);
}

#endif

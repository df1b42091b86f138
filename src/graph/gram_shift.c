/* graph/gram_shift.c: the shift that the op gram subtracts from activations before it sums their products. */
#include "graph/graph.h"

#include <math.h>

int64_t cr_gram_sample(int i, int64_t pixels) {
    return (2 * i + 1) * pixels / (2 * CR_GRAM_SAMPLES);
}

double cr_gram_shift(const double sample[CR_GRAM_SAMPLES]) {
    double largest = 0;
    int    exponent;
    for (int i = 0; i < CR_GRAM_SAMPLES; i++) {
        if (!isfinite(sample[i])) return sample[CR_GRAM_CENTER];
        largest = fmax(largest, fabs(sample[i]));
    }
    if (largest < 0x1p-100) return 0;
    (void)frexp(largest, &exponent);
    const double step = ldexp(1, exponent - 4);
    return trunc(sample[CR_GRAM_CENTER] / step) * step;
}

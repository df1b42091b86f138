/* tests/harness/conv_problem.h: shapes of convolutions, for tests of the plans of sparse kernels. */
#ifndef CR_TEST_CONV_PROBLEM_H
#define CR_TEST_CONV_PROBLEM_H

#include "cuda/common/launchers.h"
#include "tests/harness/test.h"

/* Draws 24 random bits. */
static inline uint32_t draw_bits(void) {
    static uint32_t seed = 1;
    seed                 = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* N, H, W, C, K, R, S, stride and pad are given. */
static inline struct ck_conv conv_sized(struct ck_conv c) {
    c.P = (c.H + 2 * c.pad - c.R) / c.stride + 1;
    c.Q = (c.W + 2 * c.pad - c.S) / c.stride + 1;
    return c;
}

#endif

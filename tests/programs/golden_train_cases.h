/* tests/programs/golden_train_cases.h: the trainings of test_golden_train.c and their losses in PyTorch. */
#ifndef CR_TEST_GOLDEN_TRAIN_CASES_H
#define CR_TEST_GOLDEN_TRAIN_CASES_H

#include <stddef.h>
#include <stdint.h>

enum { OVERRIDES = 22, STEPS = 10, BATCH = 8, SIZE = 16, CLASSES = 10 };

struct golden {
    const char *name;
    double      loss[STEPS];
    const char *overrides[OVERRIDES];
    const char *start; /* name of the run whose initial weights are used; NULL: its own */
    double      clip;
    int64_t     first_batch; /* FIRST_BATCH of tests/golden/train/margin.py: a multiple of 10, as labels repeat then */
};

extern const struct golden goldens[];
extern const size_t        golden_count;

#endif

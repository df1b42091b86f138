/* tests/harness/run_support.h: a folder for a run, and the overrides of its configuration. */
#ifndef CR_TEST_RUN_SUPPORT_H
#define CR_TEST_RUN_SUPPORT_H

#include "tests/harness/data_support.h"

enum { MOST = 48 };

struct run {
    char        dir[SUPPORT_PATH];
    const char *value[MOST];
    int         count;
};

static inline void give(struct run *r, const char *value) {
    CR_ASSERT(r->count < MOST);
    r->value[r->count++] = value;
}

/* True when this file of the last checkpoint is bitwise identical in both runs. */
static inline bool same_file(const struct run *r, const char *a, const char *b, const char *file) {
    char     path_a[SUPPORT_PATH], path_b[SUPPORT_PATH];
    size_t   size_a, size_b;
    uint8_t *x    = read_bytes(text_into(path_a, "%s/%s/last/%s", r->dir, a, file), &size_a);
    uint8_t *y    = read_bytes(text_into(path_b, "%s/%s/last/%s", r->dir, b, file), &size_b);
    bool     same = x && y && size_a == size_b && memcmp(x, y, size_a) == 0;
    cr_free(x);
    cr_free(y);
    return same;
}

#endif

/* tests/harness/golden_tensors.h: compares tensors of a run with results of PyTorch in a safetensors file. The test
 * defines GOLDEN_FILE, a path below tests/golden/. */
#ifndef CR_TEST_GOLDEN_TENSORS_H
#define CR_TEST_GOLDEN_TENSORS_H

#include "tests/harness/reference_run.h"

#include <float.h>

#ifndef CR_SOURCE_DIR
#define CR_SOURCE_DIR "."
#endif

static struct cr_st_file *golden; /* opened on first use */

static inline void golden_close(void) {
    cr_st_close(golden);
}

static inline const struct cr_st_entry *golden_find(const char *part, const char *name) {
    if (!golden && cr_st_open(CR_SOURCE_DIR "/tests/golden/" GOLDEN_FILE, &golden) != CR_OK) {
        TEST_FAIL_("%s", cr_error_message());
        exit(1);
    }
    test_end_                      = golden_close;
    const char *const         full = formatted("%s.%s", part, name);
    const struct cr_st_entry *e    = cr_st_find(golden, full);
    if (!e) TEST_FAIL_("no golden tensor %s", full);
    return e;
}

/* Values of a golden tensor "part.name" as doubles; NULL (and a failure) when it is missing. The caller frees it with
 * cr_free. */
static inline double *golden_read(const char *part, const char *name, int64_t *count) {
    const struct cr_st_entry *e = golden_find(part, name);
    if (!e) return NULL;
    int64_t n      = (int64_t)(e->bytes / cr_dtype_bytes(e->dtype));
    void   *raw    = cr_alloc((size_t)n, cr_dtype_bytes(e->dtype));
    double *values = cr_alloc((size_t)n, sizeof *values);
    if (cr_st_read(golden, e, 0, raw, e->bytes) != CR_OK) TEST_FAIL_("%s.%s: %s", part, name, cr_error_message());
    for (int64_t i = 0; i < n; i++)
        values[i] = e->dtype == CR_F64   ? ((double *)raw)[i]
                    : e->dtype == CR_F32 ? (double)((float *)raw)[i]
                                         : ((int32_t *)raw)[i];
    cr_free(raw);
    *count = n;
    return values;
}

/* A leaf with the shape of the golden tensor (d[4]; N,C tensors become N,1,1,C and vectors 1,1,1,C); golden_fill fills
 * it. */
static inline void golden_shape(const char *part, const char *name, int64_t d[4]) {
    const struct cr_st_entry *e = golden_find(part, name);
    for (int i = 0; i < 4; i++) d[i] = 1;
    if (!e) return;
    if (e->dims == 4)
        memcpy(d, e->dim, 4 * sizeof *d);
    else if (e->dims == 2)
        d[0] = e->dim[0], d[3] = e->dim[1];
    else if (e->dims == 1)
        d[3] = e->dim[0];
}

static inline int golden_leaf(struct ref_run *run, const char *part, const char *name) {
    int64_t d[4];
    golden_shape(part, name, d);
    return ref_leaf(run, name, d[0], d[1], d[2], d[3]);
}

static inline void golden_fill(struct ref_run *run, int tensor, const char *part, const char *name) {
    int64_t        n      = 0;
    OWNED(doubles) values = golden_read(part, name, &n);
    CHECK_INT(n, cr_tensor_elems(&run->p.tensor[tensor]));
    for (int64_t i = 0; values && i < n; i++) ref_set(run, tensor, i, values[i]);
}

/* Every element within `ulps` roundings of the type of the tensor, at the largest magnitude of the tensor. */
static inline void golden_check(const struct ref_run *run, int tensor, const char *part, const char *name,
                                double ulps) {
    int64_t n    = 0;
    double *want = golden_read(part, name, &n), largest = 0;
    if (!want) return;
    CHECK_INT(n, cr_tensor_elems(&run->p.tensor[tensor]));
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    double unit = run->p.tensor[tensor].dtype == CR_F32 ? FLT_EPSILON / 2 : DBL_EPSILON / 2, worst = -1;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(ref_at(run, tensor, i) - want[i]);
        if (!(off <= ulps * unit * largest) && off > worst) {
            worst = off;
            TEST_FAIL_("%s.%s[%lld] = %.17g, want %.17g (%s, %.1f roundings)", part, name, (long long)i,
                       ref_at(run, tensor, i), want[i], cr_dtype_name(run->p.tensor[tensor].dtype),
                       off / (unit * largest));
        }
    }
    cr_free(want);
}

#endif

/* device/cpu/tuned/sparse_wgrad.c: gradient of the nonzeros of a sparse filter.
 *
 * Inputs are staged as in device/cpu/tuned/sparse_conv.c. Gradients of outputs are staged in the same way, with
 * zeros where no output is. The gradient of a weight is the dot product of one staged channel of each, beginning at the
 * offset of the weight. A unit of work is a chunk of input channels and a range of output channels for all images in
 * order, so the order of sums does not depend on the number of threads. The limit is two reads for each multiply-add.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/tuned/sparse_conv.h"

#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum { LANES = 16, PART = 64 /* maximum number of output channels of a unit */ };

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t pitch_of(const struct cr_cpu_sparse_plan *p) {
    return (p->vectors + 1) * LANES;
}
static int64_t thread_floats(const struct cr_cpu_sparse_plan *p) {
    return cr_cpu_sparse_staged_elems(p) + CR_MIN(p->K, (int64_t)PART) * pitch_of(p) + LANES;
}

/* Staged inputs and gradients of each thread, then one sum for each entry. */
size_t cr_cpu_sparse_wgrad_workspace(const struct cr_cpu_sparse_plan *p, const struct cr_linear_filter *filter,
                                     int threads) {
    return (size_t)(thread_floats(p) * threads + filter->entries) * sizeof(float);
}

/* sums[i] += dot product of dy with x from the offset of entry i. */
CR_BY_LEVEL(void, add_products,
            (const struct cr_sparse_entry *entry, int64_t count, const float *x, const float *dy, int64_t vectors,
             float *sums),
            (entry, count, x, dy, vectors, sums)) {
    for (int64_t i = 0; i < count; i++) {
        const float *at     = x + entry[i].offset;
        f32x16       sum[2] = {{0}, {0}};
        int64_t      v      = 0;
        for (; v + 2 <= vectors; v += 2) {
            sum[0] += *(const f32x16 *)(dy + v * LANES) * *(const f32x16 *)(at + v * LANES);
            sum[1] += *(const f32x16 *)(dy + (v + 1) * LANES) * *(const f32x16 *)(at + (v + 1) * LANES);
        }
        if (v < vectors) sum[0] += *(const f32x16 *)(dy + v * LANES) * *(const f32x16 *)(at + v * LANES);
        sum[0] += sum[1];
        float part[LANES];
        memcpy(part, &sum[0], sizeof part);
        for (int width = LANES / 2; width; width /= 2)
            for (int j = 0; j < width; j++) part[j] += part[j + width];
        sums[i] += part[0];
    }
}

struct job {
    const struct cr_cpu_sparse_plan  *p;
    const struct cr_cpu_sparse_wgrad *call;
    int64_t                           chunk, k0, k1;
    float                            *staged, *dy, *sums;
};

static void run_tile(const struct job *j, const struct cr_cpu_sparse_tile *at) {
    const struct cr_cpu_sparse_plan *p     = j->p;
    const struct cr_linear_filter   *f     = j->call->filter;
    const uint32_t                  *start = f->start + j->chunk * f->rows;
    cr_cpu_sparse_stage(p, at, j->call->x, j->chunk * p->chunk, CR_MIN(p->chunk, p->C - j->chunk * p->chunk),
                        j->staged);
    cr_cpu_sparse_stage_outputs(p, at, j->call->dy, j->k0, j->k1 - j->k0, pitch_of(p), j->dy);
    for (int64_t k = j->k0; k < j->k1; k++)
        add_products(f->entry + start[k], start[k + 1] - start[k], j->staged, j->dy + (k - j->k0) * pitch_of(p),
                     p->vectors, j->sums + start[k]);
}

static void run_job(const struct job *j) {
    const struct cr_cpu_sparse_plan *p     = j->p;
    const struct cr_linear_filter   *f     = j->call->filter;
    const uint32_t                  *start = f->start + j->chunk * f->rows;
    if (start[j->k0] == start[j->k1]) return;
    memset(j->staged, 0,
           (size_t)cr_cpu_sparse_staged_elems(p) *
               sizeof(float)); /* floats beyond the end are read and must be finite */
    memset(j->sums + start[j->k0], 0, (start[j->k1] - start[j->k0]) * sizeof(float));
    for (int64_t n = 0; n < p->N; n += p->images)
        for (int64_t p0 = 0; p0 < p->P; p0 += p->band)
            run_tile(j, &(struct cr_cpu_sparse_tile){.n = n, .images = CR_MIN(p->images, p->N - n), .p0 = p0});
    for (uint32_t i = start[j->k0]; i < start[j->k1]; i++)
        if (f->from[i] != CR_SPARSE_FILL) j->call->dw[f->from[i]] += j->sums[i];
}

void cr_cpu_sparse_wgrad(const struct cr_cpu_sparse_plan *p, const struct cr_cpu_sparse_wgrad *call, void *workspace,
                         int threads) {
    const int64_t chunks = call->filter->chunks,
                  parts  = CR_MAX(ceil_div(p->K, PART), CR_MIN(ceil_div(2 * (int64_t)threads, chunks), p->K));
    const int64_t jobs   = chunks * parts;
    float        *sums   = (float *)workspace + thread_floats(p) * threads;
    if (!call->accumulate) memset(call->dw, 0, (size_t)(p->K * p->R * p->S * p->C) * sizeof(float));
    CR_THREADS(t, threads)
        for (int64_t i = jobs * t / threads; i < jobs * (t + 1) / threads; i++) {
            float           *mine = (float *)workspace + t * thread_floats(p);
            const struct job j    = {.p      = p,
                                     .call   = call,
                                     .chunk  = i / parts,
                                     .k0     = p->K * (i % parts) / parts,
                                     .k1     = p->K * (i % parts + 1) / parts,
                                     .staged = mine,
                                     .dy     = mine + cr_cpu_sparse_staged_elems(p),
                                     .sums   = sums};
            run_job(&j);
        }
}

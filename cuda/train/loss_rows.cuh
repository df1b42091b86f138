/* cuda/train/loss_rows.cuh: softmax cross entropy with label smoothing of one sample, its gradient, and the sum of the
 * losses of a batch; for cuda/train/loss.cu and kernels that compute the loss together with other ops. All values are
 * relative to the row's largest logit, so nothing overflows and a common offset costs no accuracy. */
#ifndef CK_LOSS_ROWS_CUH
#define CK_LOSS_ROWS_CUH

#include "cuda/common/train_launchers.h"
#include "cuda/train/sample_group.cuh"

/* The largest logit of a row. NaN or +inf among the logits makes the sum of exponentials NaN (inf - inf), and all
 * results that depend on it. */
template <typename T, int GROUP> static __device__ __forceinline__ float row_top(const T *row, int64_t K, int lane) {
    float top = -INFINITY;
#pragma unroll 4
    for (int64_t k = lane; k < K; k += GROUP) top = fmaxf(top, ck_float(row[k]));
    return group_max<GROUP>(top);
}

static __device__ __forceinline__ bool is_class(int label, int64_t K) {
    return label >= 0 && label < K;
}

/* The target of sample n: the weight of the sample's own label, and the label that has the remaining weight. */
struct target {
    float share;
    int   other; /* -1: none */
};
static __device__ __forceinline__ struct target target_of(const struct ck_loss &a, int64_t n) {
    if (!a.mixes) return {1.0f, -1};
    const int32_t *mix     = a.mixes + CK_MIX_NUMBERS * n;
    const int      partner = mix[CK_MIX_PARTNER], other = partner >= 0 && partner < a.samples ? a.labels[partner] : -1;
    if (!is_class(other, a.classes)) return {1.0f, -1};
    return {(float)mix[CK_MIX_FRACTION] / (float)CK_MIX_ONE, other};
}

struct sample {
    float    loss;
    unsigned counts; /* VALID, CORRECT, CORRECT5 */
};
enum { VALID = 1, CORRECT = 2, CORRECT5 = 4, COUNT_BITS = 21 /* a batch has at most a million samples */ };

template <typename T, int GROUP>
static __device__ __forceinline__ struct sample sample_loss(const T *row, int64_t K, int label, struct target t,
                                                            float smoothing, int lane) {
    const float top = row_top<T, GROUP>(row, K, lane), own = ck_float(row[label]);
    float       sum = 0, below = 0; /* sum of exponentials; sum of distances from the largest logit */
    int         before = 0;         /* number of classes ranked before the label */
#pragma unroll 4
    for (int64_t k = lane; k < K; k += GROUP) {
        const float x = ck_float(row[k]);
        sum += expf(x - top);
        below += top - x;
        before += x > own || (x == own && k < label);
    }
    before = group_sum<GROUP>(before);
    if (own != own) before = 5; /* a NaN is never correct */
    const float log_sum = logf((float)group_sum<GROUP>((double)sum));
    /* Without smoothing the other classes are skipped: 0 * inf would be NaN for a class with probability 0. */
    float far = t.share > 0.0f ? t.share * (top - own) : 0.0f;
    if (t.share < 1.0f) far += (1.0f - t.share) * (top - ck_float(row[t.other]));
    if (smoothing != 0.0f)
        far = (1.0f - smoothing) * far + (float)((double)smoothing / (double)K * group_sum<GROUP>((double)below));
    return {log_sum + far,
            (unsigned)VALID | (before < 1 ? (unsigned)CORRECT : 0u) | (before < 5 ? (unsigned)CORRECT5 : 0u)};
}

/* metrics = before + the sums over all samples, in one block, so that the order of the sum depends only on their
 * number. before: NULL for zeros. */
static __device__ __forceinline__ void loss_sum(const struct sample *result, int64_t samples, const float *before,
                                                float *metrics) {
    double             sum    = 0;
    unsigned long long counts = 0; /* valid, correct, correct5: COUNT_BITS bits each */
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < samples; n += THREADS) {
        const struct sample s = result[n];
        sum += (double)s.loss;
        counts += (s.counts & VALID ? 1ull : 0ull) + (s.counts & CORRECT ? 1ull << COUNT_BITS : 0ull) +
                  (s.counts & CORRECT5 ? 1ull << 2 * COUNT_BITS : 0ull);
    }
    sum                             = ck_block_sum<THREADS>(sum);
    counts                          = ck_block_sum<THREADS>(counts);
    const unsigned long long ones   = (1ull << COUNT_BITS) - 1;
    const double             add[4] = {sum, (double)(counts & ones), (double)(counts >> COUNT_BITS & ones),
                                       (double)(counts >> 2 * COUNT_BITS)};
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; i++) metrics[i] = (float)((before ? (double)before[i] : 0) + add[i]);
}

/* Number of valid labels. Every block counts them: the labels are few, and a separate kernel would take longer. */
static __device__ __forceinline__ double count_valid(const int32_t *labels, int64_t samples, int64_t K) {
    int valid = 0;
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < samples; n += THREADS) valid += is_class(labels[n], K) ? 1 : 0;
    return ck_block_sum<THREADS>((double)valid);
}

/* dx may be the row of logits: the thread that reads an element writes it, after the group's last read of other
 * elements. */
template <typename T, int GROUP>
static __device__ __forceinline__ void grad_row(const T *row, T *dx, int64_t K, int label, struct target t,
                                                float smoothing, float factor, int lane) {
    const float top = row_top<T, GROUP>(row, K, lane);
    float       sum = 0;
#pragma unroll 4
    for (int64_t k = lane; k < K; k += GROUP) sum += expf(ck_float(row[k]) - top);
    const double total = group_sum<GROUP>((double)sum);
    const double rest = (double)smoothing / (double)K, whole = 1.0 - (double)smoothing, part = whole * (double)t.share;
    const bool   same  = t.other == label; /* both labels are the same class */
    const float  share = (float)(1.0 / total), none = (float)rest;
    const float  mine = (float)((same ? whole : part) + rest), theirs = (float)(whole - part + rest);
    for (int64_t k = lane; k < K; k += GROUP) {
        const float p = expf(ck_float(row[k]) - top) * share;
        dx[k]         = ck_round<T>(factor * (p - (k == label ? mine : k == t.other ? theirs : none)));
    }
}

#endif

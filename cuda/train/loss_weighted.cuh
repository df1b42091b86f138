/* cuda/train/loss_weighted.cuh: the loss of one sample with class weights, focal loss or binary cross-entropy, and its
 * gradient; for cuda/train/loss.cu. All arithmetic is FP64: with a focal loss the result depends on 1-p, which loses
 * its digits in FP32 when p is almost 1. */
#ifndef CK_LOSS_WEIGHTED_CUH
#define CK_LOSS_WEIGHTED_CUH

#include "cuda/common/train_launchers.h"
#include "cuda/train/sample_group.cuh"

struct problem {
    struct ck_loss         a;
    struct ck_loss_options o;
    int                    words; /* per sample in a.labels */
};

/* ---- labels and targets ---- */

static __device__ __forceinline__ bool is_valid(const struct problem &p, int64_t n) {
    const int first = p.a.labels[n * p.words];
    return first >= 0 && (p.o.several || first < p.a.classes);
}

static __device__ __forceinline__ bool has_label(const struct problem &p, int64_t n, int64_t k) {
    const int32_t *labels = p.a.labels + n * p.words;
    return p.o.several ? (uint32_t)labels[1 + k / 32] >> (k % 32) & 1 : labels[0] == k;
}

static __device__ __forceinline__ double class_weight(const struct problem &p, int64_t k) {
    return p.o.class_weights ? (double)p.o.class_weights[k] : 1.0;
}

/* The sample whose labels have the rest of the target (-1: none), and the part of the sample's own labels. */
struct pair {
    int64_t other;
    double  own_part;
};
static __device__ __forceinline__ struct pair pair_of(const struct problem &p, int64_t n) {
    if (!p.a.mixes) return {-1, 1.0};
    const int32_t *mix     = p.a.mixes + CK_MIX_NUMBERS * n;
    const int      partner = mix[CK_MIX_PARTNER];
    if (partner < 0 || partner >= p.a.samples || !is_valid(p, partner)) return {-1, 1.0};
    return {partner, (double)mix[CK_MIX_FRACTION] / (double)CK_MIX_ONE};
}

static __device__ __forceinline__ double class_target(const struct problem &p, int64_t n, struct pair with, int64_t k) {
    const double smoothing = (double)p.a.smoothing, even = p.o.several ? 0.5 : 1.0 / (double)p.a.classes;
    const double mixed = (has_label(p, n, k) ? with.own_part : 0.0) +
                         (with.other >= 0 && has_label(p, with.other, k) ? 1.0 - with.own_part : 0.0);
    const double soft = (1.0 - smoothing) * mixed + smoothing * even;
    return p.o.threshold > 0.0f ? (soft > (double)p.o.threshold ? 1.0 : 0.0) : soft;
}

/* ---- one class: as in the reference ---- */

struct term {
    double loss, slope, q;
};
static __device__ __forceinline__ struct term focal_term(double log_loss, double p, double q, double gamma) {
    if (gamma == 0.0) return {log_loss, 1.0, q};
    const double factor = pow(q, gamma);
    const double steep  = p == 0.0 ? 0.0 : gamma * p * (q > 0.0 ? log_loss / q : 1.0);
    return {factor * log_loss, factor * (1.0 + steep), q};
}

struct softmax {
    double top, rest; /* the largest logit; sum of exp(logit - top) without the largest logit */
};

/* NaN and +inf logits make the result NaN. */
template <typename T, int GROUP>
static __device__ __forceinline__ struct softmax softmax_of(const T *row, int64_t K, int lane) {
    double top = -INFINITY, rest = 0;
    bool   nan = false;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]);
        top            = fmax(top, x);
        nan |= x != x;
    }
    top = group_max<GROUP>(top);
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]);
        rest += x == top ? 0.0 : exp(x - top); /* exact ties with the largest logit are counted below */
    }
    double ties = 0;
    for (int64_t k = lane; k < K; k += GROUP) ties += (double)ck_float(row[k]) == top ? 1.0 : 0.0;
    rest = group_sum<GROUP>(nan ? (double)NAN : rest);
    ties = group_sum<GROUP>(ties);
    return {top, rest + (ties - 1.0) + (top - top)};
}

static __device__ __forceinline__ struct term softmax_term(const struct softmax &s, double x, double gamma, double *p) {
    const double e = exp(x - s.top), sum = 1.0 + s.rest;
    *p = e / sum;
    return focal_term(log1p(s.rest) + (s.top - x), *p, e == 1.0 ? s.rest / sum : (sum - e) / sum, gamma);
}

static __device__ __forceinline__ double sigmoid(double x) {
    return x >= 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}
static __device__ __forceinline__ double softplus(double x) {
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

/* ---- loss ---- */

struct result {
    double loss, first, second; /* numbers of the metrics: ck_loss */
};

template <typename T, int GROUP>
static __device__ __forceinline__ struct result softmax_loss(const struct problem &p, const T *row, int64_t n,
                                                             int lane) {
    const int64_t        K     = p.a.classes;
    const int            label = p.a.labels[n];
    const struct pair    with  = pair_of(p, n);
    const struct softmax s     = softmax_of<T, GROUP>(row, K, lane);
    const double         own   = (double)ck_float(row[label]);
    double               sum = 0, before = 0, probability;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]), a = class_weight(p, k) * class_target(p, n, with, k);
        if (a != 0.0) sum += a * softmax_term(s, x, (double)p.o.gamma, &probability).loss; /* 0 * inf is NaN */
        before += x > own || (x == own && k < label) ? 1.0 : 0.0;
    }
    sum    = group_sum<GROUP>(sum);
    before = group_sum<GROUP>(before);
    if (own != own) before = 5; /* a NaN is never correct */
    return {sum + 0.0 * s.rest, before < 1.0 ? 1.0 : 0.0, before < 5.0 ? 1.0 : 0.0};
}

template <typename T, int GROUP>
static __device__ __forceinline__ struct result sigmoid_loss(const struct problem &p, const T *row, int64_t n,
                                                             int lane) {
    const int64_t     K     = p.a.classes;
    const struct pair with  = pair_of(p, n);
    const double      g     = (double)p.o.gamma;
    const int         label = p.o.several ? -1 : p.a.labels[n];
    const double      own   = label < 0 ? 0.0 : (double)ck_float(row[label]);
    double            sum = 0, right = 0, before = 0;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]), t = class_target(p, n, with, k), y = sigmoid(x), q = sigmoid(-x);
        if (t != 0.0) sum += class_weight(p, k) * t * focal_term(softplus(-x), y, q, g).loss;
        if (t != 1.0) sum += (1.0 - t) * focal_term(softplus(x), q, y, g).loss;
        if (x != x) sum = x; /* fmax drops NaN */
        right += x == x && (x > 0.0) == has_label(p, n, k) ? 1.0 : 0.0;
        before += x > own || (x == own && k < label) ? 1.0 : 0.0;
    }
    sum    = group_sum<GROUP>(sum);
    right  = group_sum<GROUP>(right);
    before = group_sum<GROUP>(before);
    if (p.o.several) return {sum / (double)K, right == (double)K ? 1.0 : 0.0, right};
    if (own != own) before = 5; /* a NaN is never correct */
    return {sum / (double)K, before < 1.0 ? 1.0 : 0.0, before < 5.0 ? 1.0 : 0.0};
}

/* The divisor of the mean, the same in all threads: the number of valid samples, or the weights of their labels. Every
 * block computes it: the labels are few, and a separate kernel would take longer. */
static __device__ __forceinline__ double divisor_of(const struct problem &p, double *valid) {
    double count = 0, sum = 0;
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < p.a.samples; n += THREADS) count += is_valid(p, n) ? 1.0 : 0.0;
    *valid = ck_block_sum<THREADS>(count);
    if (p.o.sigmoid || !p.o.class_weights) return *valid;
    for (int64_t n = threadIdx.x; n < p.a.samples; n += THREADS) {
        if (!is_valid(p, n)) continue;
        const struct pair with = pair_of(p, n);
        sum += with.own_part * class_weight(p, p.a.labels[n]);
        if (with.other >= 0) sum += (1.0 - with.own_part) * class_weight(p, p.a.labels[with.other]);
    }
    return ck_block_sum<THREADS>(sum);
}

/* ---- gradient ---- */

/* dx may be the row of logits: the thread that reads an element writes it, after the group's last read of other
 * elements. */
template <typename T, int GROUP>
static __device__ __forceinline__ void softmax_grad(const struct problem &p, const T *row, T *dx, int64_t n,
                                                    double factor, int lane) {
    const int64_t        K     = p.a.classes;
    const struct pair    with  = pair_of(p, n);
    const struct softmax s     = softmax_of<T, GROUP>(row, K, lane);
    const double         g     = (double)p.o.gamma;
    double               total = 0, y;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double a = class_weight(p, k) * class_target(p, n, with, k);
        if (a != 0.0) total += a * softmax_term(s, (double)ck_float(row[k]), g, &y).slope;
    }
    total = group_sum<GROUP>(total);
    for (int64_t k = lane; k < K; k += GROUP) {
        const double      a    = class_weight(p, k) * class_target(p, n, with, k);
        const struct term t    = softmax_term(s, (double)ck_float(row[k]), g, &y);
        const double      mine = a != 0.0 ? a * t.slope : 0.0;
        dx[k]                  = ck_round<T>((float)(factor * (y * (total - mine) - mine * t.q)));
    }
}

template <typename T, int GROUP>
static __device__ __forceinline__ void sigmoid_grad(const struct problem &p, const T *row, T *dx, int64_t n,
                                                    double factor, int lane) {
    const int64_t     K    = p.a.classes;
    const struct pair with = pair_of(p, n);
    const double      g    = (double)p.o.gamma;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]), t = class_target(p, n, with, k), y = sigmoid(x), q = sigmoid(-x);
        double       d = x != x ? x : 0.0;
        if (t != 0.0) d -= class_weight(p, k) * t * q * focal_term(softplus(-x), y, q, g).slope;
        if (t != 1.0) d += (1.0 - t) * y * focal_term(softplus(x), q, y, g).slope;
        dx[k] = ck_round<T>((float)(factor / (double)K * d));
    }
}

#endif

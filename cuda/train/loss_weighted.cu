/* cuda/train/loss_weighted.cu: the loss with class weights, focal loss or binary cross-entropy, and its gradient.
 * Reference: device/cpu/reference/ref_loss.c.
 *
 * A warp processes a sample, or a block when there are many classes. All arithmetic is FP64: with a focal loss the
 * result depends on 1-p, which loses its digits in FP32 when p is almost 1, and the ops are small. Limiter: latency. */
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

static __device__ __forceinline__ double target_of(const struct problem &p, int64_t n, struct pair with, int64_t k) {
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

struct sample {
    double loss, first, second; /* the numbers of the metrics */
};

template <typename T, int GROUP>
static __device__ __forceinline__ struct sample softmax_loss(const struct problem &p, const T *row, int64_t n,
                                                             int lane) {
    const int64_t        K     = p.a.classes;
    const int            label = p.a.labels[n];
    const struct pair    with  = pair_of(p, n);
    const struct softmax s     = softmax_of<T, GROUP>(row, K, lane);
    const double         own   = (double)ck_float(row[label]);
    double               sum = 0, before = 0, probability;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]), a = class_weight(p, k) * target_of(p, n, with, k);
        if (a != 0.0) sum += a * softmax_term(s, x, (double)p.o.gamma, &probability).loss; /* 0 * inf is NaN */
        before += x > own || (x == own && k < label) ? 1.0 : 0.0;
    }
    sum    = group_sum<GROUP>(sum);
    before = group_sum<GROUP>(before);
    if (own != own) before = 5; /* a NaN is never correct */
    return {sum + 0.0 * s.rest, before < 1.0 ? 1.0 : 0.0, before < 5.0 ? 1.0 : 0.0};
}

template <typename T, int GROUP>
static __device__ __forceinline__ struct sample sigmoid_loss(const struct problem &p, const T *row, int64_t n,
                                                             int lane) {
    const int64_t     K     = p.a.classes;
    const struct pair with  = pair_of(p, n);
    const double      g     = (double)p.o.gamma;
    const int         label = p.o.several ? -1 : p.a.labels[n];
    const double      own   = label < 0 ? 0.0 : (double)ck_float(row[label]);
    double            sum = 0, right = 0, before = 0;
    for (int64_t k = lane; k < K; k += GROUP) {
        const double x = (double)ck_float(row[k]), t = target_of(p, n, with, k), y = sigmoid(x), q = sigmoid(-x);
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

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS) loss_kernel(struct problem p, struct sample *result) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    if (n >= p.a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const T      *row = (const T *)p.a.logits + n * p.a.classes;
    struct sample s   = {0, 0, 0};
    if (is_valid(p, n))
        s = p.o.sigmoid ? sigmoid_loss<T, GROUP>(p, row, n, lane) : softmax_loss<T, GROUP>(p, row, n, lane);
    if (lane == 0) result[n] = s;
}

/* The divisor of the mean, the same in all threads: the number of valid samples, or the weights of their labels. Every
 * block computes it: the labels are few, and a separate kernel would take longer. */
static __device__ __forceinline__ double divisor_of(const struct problem &p, double *valid) {
    double count = 0, sum = 0;
    for (int64_t n = threadIdx.x; n < p.a.samples; n += THREADS) {
        if (!is_valid(p, n)) continue;
        count += 1.0;
        if (p.o.sigmoid) continue;
        const struct pair with = pair_of(p, n);
        sum += with.own_part * class_weight(p, p.a.labels[n]);
        if (with.other >= 0) sum += (1.0 - with.own_part) * class_weight(p, p.a.labels[with.other]);
    }
    *valid = ck_block_sum<THREADS>(count);
    sum    = ck_block_sum<THREADS>(sum);
    return p.o.sigmoid ? *valid : sum;
}

/* One block, so that the order of the sum depends only on the number of samples. */
static __global__ void __launch_bounds__(THREADS)
    loss_sum_kernel(struct problem p, const struct sample *result, const float *before, float *metrics) {
    double sum = 0, first = 0, second = 0, valid;
    ck_begin_after_last();
    for (int64_t n = threadIdx.x; n < p.a.samples; n += THREADS) {
        sum += result[n].loss;
        first += result[n].first;
        second += result[n].second;
    }
    sum                  = ck_block_sum<THREADS>(sum);
    first                = ck_block_sum<THREADS>(first);
    second               = ck_block_sum<THREADS>(second);
    const double divisor = divisor_of(p, &valid);
    const double add[4]  = {divisor > 0.0 ? sum * (valid / divisor) : sum, valid, first, second};
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; i++) metrics[i] = (float)((double)before[i] + add[i]);
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
        const double a = class_weight(p, k) * target_of(p, n, with, k);
        if (a != 0.0) total += a * softmax_term(s, (double)ck_float(row[k]), g, &y).slope;
    }
    total = group_sum<GROUP>(total);
    for (int64_t k = lane; k < K; k += GROUP) {
        const double      a    = class_weight(p, k) * target_of(p, n, with, k);
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
        const double x = (double)ck_float(row[k]), t = target_of(p, n, with, k), y = sigmoid(x), q = sigmoid(-x);
        double       d = x != x ? x : 0.0;
        if (t != 0.0) d -= class_weight(p, k) * t * q * focal_term(softplus(-x), y, q, g).slope;
        if (t != 1.0) d += (1.0 - t) * y * focal_term(softplus(x), q, y, g).slope;
        dx[k] = ck_round<T>((float)(factor / (double)K * d));
    }
}

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS)
    loss_grad_kernel(struct problem p, float weight, const double *state, T *dx) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    double        valid;
    ck_begin_after_last();
    const double divisor = divisor_of(p, &valid);
    if (n >= p.a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const T     *row    = (const T *)p.a.logits + n * p.a.classes;
    T           *out    = dx + n * p.a.classes;
    const double factor = state[CK_STATE_LOSS_SCALE] * (double)weight / divisor;
    if (!is_valid(p, n) || divisor <= 0.0)
        for (int64_t k = lane; k < p.a.classes; k += GROUP) out[k] = ck_round<T>(0.0f);
    else if (p.o.sigmoid)
        sigmoid_grad<T, GROUP>(p, row, out, n, factor, lane);
    else
        softmax_grad<T, GROUP>(p, row, out, n, factor, lane);
}

/* ---- launchers ---- */

static struct problem problem_of(const struct ck_loss *a, const struct ck_loss_options *o) {
    return {*a, *o, o->several ? (int)(1 + (a->classes + 31) / 32) : 1};
}

static unsigned blocks_of(int64_t samples, int group) {
    return ck_blocks(samples, THREADS / group, INT32_MAX);
}

size_t ck_loss_weighted_workspace(int64_t samples) {
    return (size_t)samples * sizeof(struct sample);
}

template <typename T>
static cudaError_t launch_loss(const struct problem &p, struct sample *result, cudaStream_t stream) {
    if (p.a.classes <= WARP_CLASSES)
        return ck_launch(loss_kernel<T, CK_WARP>, blocks_of(p.a.samples, CK_WARP), THREADS, 0, stream, p, result);
    return ck_launch(loss_kernel<T, THREADS>, blocks_of(p.a.samples, THREADS), THREADS, 0, stream, p, result);
}

cudaError_t ck_loss_weighted(const struct ck_loss *a, const struct ck_loss_options *o, const float *before,
                             float *metrics, void *workspace, cudaStream_t stream) {
    const struct problem p      = problem_of(a, o);
    struct sample       *result = (struct sample *)workspace;
    cudaError_t          error  = cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, error = launch_loss<T>(p, result, stream));
    return error != cudaSuccess ? error : ck_launch(loss_sum_kernel, 1, THREADS, 0, stream, p, result, before, metrics);
}

template <typename T>
static cudaError_t launch_loss_grad(const struct problem &p, float weight, const double *state, T *dx,
                                    cudaStream_t stream) {
    if (p.a.classes <= WARP_CLASSES)
        return ck_launch(loss_grad_kernel<T, CK_WARP>, blocks_of(p.a.samples, CK_WARP), THREADS, 0, stream, p, weight,
                         state, dx);
    return ck_launch(loss_grad_kernel<T, THREADS>, blocks_of(p.a.samples, THREADS), THREADS, 0, stream, p, weight,
                     state, dx);
}

cudaError_t ck_loss_weighted_grad(const struct ck_loss *a, const struct ck_loss_options *o, float weight,
                                  const double *state, void *dx, cudaStream_t stream) {
    const struct problem p = problem_of(a, o);
    CK_BY_TYPE(a->type, return launch_loss_grad<T>(p, weight, state, (T *)dx, stream));
    return cudaErrorInvalidValue;
}

/* cuda/train/update.cuh: code that the optimizers share (cuda/train/sgd.cu: sgd; cuda/train/update_rules.cu: adamw,
 * lars, lamb; cuda/train/muon.cu: muon): the numbers of a step, and which elements of a vector of four are updated. */
#ifndef CK_UPDATE_CUH
#define CK_UPDATE_CUH

#include "cuda/common/common.cuh"

enum {
    CK_UPDATE_THREADS       = 256,
    CK_UPDATE_VECTOR        = 4 /* floats in a vector */,
    CK_UPDATE_BLOCK_VECTORS = CK_SGD_BLOCK / CK_UPDATE_VECTOR
};

struct update_numbers {
    float lr, mu, decay, factor; /* factor: clip / loss scale */
    float clip;
};

/* Gradient clipping as torch's clip_grad_norm_, which adds 1e-6 to the norm. */
static __device__ __forceinline__ struct update_numbers update_numbers_of(const struct ck_sgd *a) {
    /* all loads come before the first branch, so that they wait for memory together */
    const struct ck_step step = *a->step;
    const double         norm = (double)a->norm[0], scale = a->state[CK_STATE_LOSS_SCALE];
    double               clip = 1;
    if (step.clip_norm > 0.0f) clip = fmin(1.0, (double)step.clip_norm / (sqrt(norm) + 1e-6));
    return {step.lr, step.momentum, step.weight_decay, (float)(clip / scale), (float)clip};
}

struct adamw_numbers {
    struct update_numbers n;
    float                 size, root; /* lr / (1 - b1^t), 1 / sqrt(1 - b2^t) */
    float                 correct;    /* 1 / (1 - b1^t) */
    float                 rest1, b2, rest2, eps;
};

static __device__ __forceinline__ struct adamw_numbers adamw_numbers_of(const struct ck_rule *a) {
    struct adamw_numbers s;
    const double         t = a->sgd.state[CK_STATE_UPDATES] + 1, mu = (double)a->sgd.step->momentum;
    s.n       = update_numbers_of(&a->sgd);
    s.size    = (float)((double)s.n.lr / (1 - pow(mu, t)));
    s.root    = (float)(1 / sqrt(1 - pow(a->beta2, t)));
    s.correct = (float)(1 / (1 - pow(mu, t)));
    s.rest1   = (float)(1 - mu);
    s.b2      = (float)a->beta2;
    s.rest2   = (float)(1 - a->beta2);
    s.eps     = (float)a->eps;
    return s;
}

/* AdamW's step of one element; w, m and v become 0 when it is pruned. */
static __device__ __forceinline__ void adamw_element(const struct adamw_numbers *s, float size, float decay, bool keeps,
                                                     float g, float *w, float *m, float *v) {
    const float grad = s->n.factor * g, first = s->n.mu * *m + s->rest1 * grad,
                second = s->b2 * *v + s->rest2 * (grad * grad);
    const float moved  = *w - decay * *w - size * first / (sqrtf(second) * s->root + s->eps);
    *w                 = keeps ? moved : 0.0f;
    *m                 = keeps ? first : 0.0f;
    *v                 = keeps ? second : 0.0f;
}

/* Vector i of the values, gradients and momenta, and of another buffer of the same form. */
struct update_vectors {
    float w[CK_UPDATE_VECTOR], g[CK_UPDATE_VECTOR], m[CK_UPDATE_VECTOR], other[CK_UPDATE_VECTOR];
};

static __device__ __forceinline__ struct update_vectors update_load(const struct ck_sgd *a, const float *other,
                                                                    int64_t i) {
    const uint4 words[4] = {ck_load(a->value, i), ck_load(a->grad, i), ck_load(a->momentum, i), ck_load(other, i)};
    struct update_vectors v;
    ck_unpack<float>(words[0], v.w);
    ck_unpack<float>(words[1], v.g);
    ck_unpack<float>(words[2], v.m);
    ck_unpack<float>(words[3], v.other);
    return v;
}

/* AdamW's step of the first `live` elements of vector i; second: v->other is from it. */
static __device__ __forceinline__ void adamw_vector(const struct ck_sgd *a, float *second,
                                                    const struct adamw_numbers *s, int64_t i, float size, float decay,
                                                    unsigned kept, int live, struct update_vectors *v) {
#pragma unroll
    for (int j = 0; j < CK_UPDATE_VECTOR; j++)
        if (j < live) adamw_element(s, size, decay, kept >> j & 1u, v->g[j], &v->w[j], &v->m[j], &v->other[j]);
    ck_store(a->value, i, ck_pack<float>(v->w));
    ck_store(a->momentum, i, ck_pack<float>(v->m));
    ck_store(second, i, ck_pack<float>(v->other));
}

/* Number of elements of vector i, from its first on, that are updated: 0 to 4. */
static __device__ __forceinline__ int update_count(unsigned how, int64_t i) {
    const int live = (int)(how >> CK_SGD_COUNT_SHIFT) + 1 - (int)(i % CK_UPDATE_BLOCK_VECTORS) * CK_UPDATE_VECTOR;
    return how & CK_SGD_UPDATED ? (live < 0 ? 0 : live > CK_UPDATE_VECTOR ? CK_UPDATE_VECTOR : live) : 0;
}

/* Bit j: element j of four is not pruned. */
static __device__ __forceinline__ unsigned update_mask(const uint8_t *mask, int64_t i) {
    return mask[i / 2] >> (i % 2 * CK_UPDATE_VECTOR) & 15u;
}

/* Factor of the learning rate of the block that vector i belongs to; without SCALED a constant. */
template <bool SCALED> static __device__ __forceinline__ float update_scale(const struct ck_sgd *a, int64_t i) {
    return SCALED ? a->scale[i / CK_UPDATE_BLOCK_VECTORS] : 1.0f;
}

/* Runs after an update, in cuda/train/sgd.cu: updates the counters and the loss scale. */
cudaError_t ck_update_count(const struct ck_sgd *a, cudaStream_t stream);

#endif

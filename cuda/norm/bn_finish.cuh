/* cuda/norm/bn_finish.cuh: finishes the sums of one channel of a BN, in one thread: bn_finalize and bn_grad_finalize,
 * and kernels that do the same with sums that they have just computed. In double, because a variance is a difference of
 * large numbers. */
#ifndef CK_BN_FINISH_CUH
#define CK_BN_FINISH_CUH

#include "cuda/common/common.cuh"
#include "cuda/common/launchers.h"

/* Numbers that are the same for all channels are divided once, on the host; a division in double takes as long as a
 * load here. */
struct ck_bn_factors {
    double inverse, unbiased, old_weight, new_weight; /* 1/M, M/(M-1), 1-momentum, momentum */
};
static inline struct ck_bn_factors ck_bn_factors_of(const struct ck_bn_finalize *a) {
    const double M = (double)a->count, m = (double)a->momentum;
    return {1 / M, a->count > 1 ? M / (M - 1) : 1, 1 - m, m};
}

static __device__ __forceinline__ void ck_put_half(void *half, enum ck_type type, int64_t i, float value) {
    if (type == CK_F16)
        ((__half *)half)[i] = ck_round<__half>(value);
    else
        ((__nv_bfloat16 *)half)[i] = ck_round<__nv_bfloat16>(value);
}

/* load() comes first, so that the loads are in flight while the sums are computed. */
struct ck_bn_channel {
    float                           gamma, beta, old_mean, old_var;
    __device__ __forceinline__ void load(const struct ck_bn_finalize &a, int64_t c) {
        gamma    = a.gamma[c];
        beta     = a.beta[c];
        old_mean = a.old_mean[c];
        old_var  = a.old_var[c];
    }
    /* The batch is normalised by the biased variance; the running variance gets the unbiased one. Running statistics of
     * a channel whose sums are not finite do not change. */
    __device__ __forceinline__ void finish(const struct ck_bn_finalize &a, const struct ck_bn_factors &k, int64_t c,
                                           int64_t C, float sum, float squares) const {
        const double mean = (double)sum * k.inverse;
        double       var  = (double)squares * k.inverse - mean * mean;
        if (var < 0) var = 0; /* rounding errors; NaN stays NaN */
        const double rstd = rsqrt(var + (double)a.eps), scale = (double)gamma * rstd;
        const float  bias   = (float)((double)beta - mean * scale);
        a.mean_rstd[c]      = (float)mean;
        a.mean_rstd[C + c]  = (float)rstd;
        a.scale_bias[c]     = (float)scale;
        a.scale_bias[C + c] = bias;
        if (a.scale_bias_half) {
            ck_put_half(a.scale_bias_half, a.half, c, (float)scale);
            ck_put_half(a.scale_bias_half, a.half, C + c, bias);
        }
        const bool finite = isfinite(mean) && isfinite(var);
        a.new_mean[c]     = finite ? (float)(k.old_weight * (double)old_mean + k.new_weight * mean) : old_mean;
        a.new_var[c] = finite ? (float)(k.old_weight * (double)old_var + k.new_weight * (var * k.unbiased)) : old_var;
    }
};

/* With G = mean(g), X = mean(g*xhat), s = gamma*rstd:  dx = s*g + (-s*rstd*X)*x + s*(mean*rstd*X - G). `inverse`:
 * 1/M. */
struct ck_bn_grad_channel {
    float                           gamma, mean, rstd, dgamma, dbeta;
    __device__ __forceinline__ void load(const struct ck_bn_grad_finalize &a, int64_t c, int64_t C) {
        gamma  = a.gamma[c];
        mean   = a.mean_rstd[c];
        rstd   = a.mean_rstd[C + c];
        dgamma = a.accumulate && a.dgamma ? a.dgamma[c] : 0.0f;
        dbeta  = a.accumulate && a.dbeta ? a.dbeta[c] : 0.0f;
    }
    __device__ __forceinline__ void finish(const struct ck_bn_grad_finalize &a, double inverse, int64_t c, int64_t C,
                                           float sum, float product) const {
        const double s = (double)gamma * (double)rstd, X = (double)product * inverse, G = (double)sum * inverse;
        const double ranks = a.ranks > 1 ? (double)a.ranks : 1.0;
        if (a.dbeta) a.dbeta[c] = (float)((double)dbeta + (double)sum / ranks);
        if (a.dgamma) a.dgamma[c] = (float)((double)dgamma + (double)product / ranks);
        a.coeffs[c]         = (float)s;
        a.coeffs[C + c]     = (float)(-s * (double)rstd * X);
        a.coeffs[2 * C + c] = (float)(s * ((double)mean * (double)rstd * X - G));
    }
};

#endif

/* device/cpu/reference/ref_head.c: the fused op head: pooling, classifier, loss and their gradients in one op. The loss
 * and its gradient are those of ref_loss.c. */
#include "device/cpu/reference/ref.h"

/* Scratch memory. */
struct head {
    struct ref x, add, scale_bias, mean_rstd, w, b, logits, dx;
    double    *features, *dfeatures; /* [N][C] */
    double    *sums;                 /* [2][C] */
    void      *dlogits;              /* [N][K], in the type of the logits */
    int64_t    pixels;
};

size_t cr_ref_head_workspace(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_head_x]], *logits = &p->tensor[op->out[CR_OUT_head_logits]];
    return (size_t)(2 * (x->dim[0] + 1) * x->dim[3]) * sizeof(double) + logits->bytes;
}

static struct head head_of(const struct cr_call *call) {
    struct head h = {.x          = REF_IN(head, x),
                     .add        = REF_IN(head, add),
                     .scale_bias = REF_IN(head, scale_bias),
                     .mean_rstd  = REF_IN(head, mean_rstd),
                     .w          = REF_IN(head, w),
                     .b          = REF_IN(head, b),
                     .logits     = REF_OUT(head, logits),
                     .dx         = REF_OUT(head, dx),
                     .features   = call->workspace};
    h.pixels      = h.x.H * h.x.W;
    h.dfeatures   = h.features + h.x.N * h.x.C;
    h.sums        = h.dfeatures + h.x.N * h.x.C;
    h.dlogits     = h.sums + 2 * h.x.C;
    return h;
}

/* Element i of x, of channel c, behind BN and addition. */
static double before_relu(const struct head *h, int64_t i, int64_t c) {
    return ref_affine(&h->x, &h->scale_bias, i, c) + ref_get(&h->add, i);
}

static void forward(const struct head *h) {
    const int64_t C = h->x.C, K = h->logits.C;
    for (int64_t f = 0; f < h->x.N * C; f++) {
        double sum = 0;
        for (int64_t p = 0; p < h->pixels; p++)
            sum += ref_rectified(before_relu(h, (f / C * h->pixels + p) * C + f % C, f % C));
        h->features[f] = sum / (double)h->pixels;
    }
    for (int64_t i = 0; i < h->logits.elems; i++) {
        double sum = ref_get(&h->b, i % K);
        for (int64_t c = 0; c < C; c++) sum += h->features[i / K * C + c] * ref_get(&h->w, i % K * C + c);
        ref_put(&h->logits, i, sum);
    }
}

/* The ops loss (without dx) and loss_grad, on the operands of this op. */
static void loss(struct cr_device *device, const struct cr_call *call, void *dx) {
    const struct cr_op *head    = call->op;
    struct cr_op        op      = cr_op_make(dx ? CR_OP_loss_grad : CR_OP_loss, CR_NONE);
    struct cr_call      inner   = {.program = call->program, .op = &op, .step = call->step};
    const int           third   = dx ? CR_IN_loss_grad_state : CR_IN_loss_metrics;
    op.attr.loss                = head->attr.head.loss;
    op.in[CR_IN_loss_logits]    = head->out[CR_OUT_head_logits];
    op.in[CR_IN_loss_labels]    = head->in[CR_IN_head_labels];
    op.in[CR_IN_loss_mixes]     = head->in[CR_IN_head_mixes];
    op.in[third]                = dx ? head->in[CR_IN_head_state] : head->out[CR_OUT_head_metrics];
    op.out[0]                   = dx ? head->out[CR_OUT_head_logits] : head->out[CR_OUT_head_metrics];
    inner.in[CR_IN_loss_logits] = call->out[CR_OUT_head_logits];
    inner.in[CR_IN_loss_labels] = call->in[CR_IN_head_labels];
    inner.in[CR_IN_loss_mixes]  = call->in[CR_IN_head_mixes];
    inner.in[third]             = dx ? call->in[CR_IN_head_state] : call->out[CR_OUT_head_metrics];
    inner.out[0]                = dx ? dx : call->out[CR_OUT_head_metrics];
    (void)(dx ? cr_ref_loss_grad : cr_ref_loss)(device, &inner);
}

static void classifier_grad(const struct head *h, const struct ref *dw, const struct ref *db, bool accumulate) {
    const int64_t    C = h->x.C, K = h->logits.C;
    const struct ref dlogits = ref_scratch_like(&h->logits, h->dlogits);
    for (int64_t i = 0; i < dw->elems; i++) {
        double sum = accumulate ? ref_get(dw, i) : 0;
        for (int64_t n = 0; n < h->x.N; n++) sum += ref_get(&dlogits, n * K + i / C) * h->features[n * C + i % C];
        ref_put(dw, i, sum);
    }
    for (int64_t k = 0; k < K; k++) {
        double sum = accumulate ? ref_get(db, k) : 0;
        for (int64_t n = 0; n < h->x.N; n++) sum += ref_get(&dlogits, n * K + k);
        ref_put(db, k, sum);
    }
    for (int64_t f = 0; f < h->x.N * C; f++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += ref_get(&dlogits, f / C * K + k) * ref_get(&h->w, k * C + f % C);
        h->dfeatures[f] = sum;
    }
}

/* dx, and the sums of dx and of dx*xhat. */
static void backward(const struct head *h) {
    const int64_t C = h->x.C;
    for (int64_t c = 0; c < 2 * C; c++) h->sums[c] = 0;
    for (int64_t i = 0; i < h->dx.elems; i++) {
        const int64_t c = i % C;
        const double  g = before_relu(h, i, c) > 0 ? h->dfeatures[i / (h->pixels * C) * C + c] / (double)h->pixels : 0;
        ref_put(&h->dx, i, g);
        h->sums[c] += g;
        h->sums[C + c] += g * ((ref_get(&h->x, i) - ref_get(&h->mean_rstd, c)) * ref_get(&h->mean_rstd, C + c));
    }
}

REF_KERNEL(head) {
    const struct head        h       = head_of(call);
    const struct cr_bn_attr *bn      = &call->op->attr.head.bn;
    const struct ref         metrics = REF_OUT(head, metrics), dw = REF_OUT(head, dw), db = REF_OUT(head, db),
                     sums = {.data = h.sums, .dtype = CR_F64, .N = 2, .H = 1, .W = 1, .C = h.x.C, .elems = 2 * h.x.C};
    for (int i = 0; i < 4; i++) ref_put(&metrics, i, 0);
    forward(&h);
    loss(device, call, NULL);
    loss(device, call, h.dlogits);
    classifier_grad(&h, &dw, &db, bn->accumulate);
    backward(&h);
    cr_ref_grad_finalize(&(struct ref_grad_finalize){.attr      = *bn,
                                                     .grad_sums = sums,
                                                     .gamma     = REF_IN(head, gamma),
                                                     .mean_rstd = h.mean_rstd,
                                                     .dgamma    = REF_OUT(head, dgamma),
                                                     .dbeta     = REF_OUT(head, dbeta),
                                                     .coeffs    = REF_OUT(head, coeffs)});
}

/* compiler/fusion/conv_fusion.c: computes the cost of each fusion option and chooses the options of least total cost.
 */
#include "compiler/fusion/conv_fusion.h"

#include <math.h>

/* ---- which options the device accepts ---- */

enum { BN_INPUTS = 3, GRAD_FUSIONS = 3 }; /* number of values of enum cr_bn_input and enum cr_grad_fusion */

/* The indices [P][S], [W], [D] and [W][D][B] are the letters of compiler/fusion/conv_fusion.h. */
struct accepted_options {
    bool conv[BN_INPUTS][2];
    bool wgrad[BN_INPUTS];
    bool dgrad[GRAD_FUSIONS];
    bool joint[2][GRAD_FUSIONS][2];
    bool forward, backward; /* the convolution, its gradients: some option other than the plain one is accepted */
    bool bn_input;          /* some option with P or W is accepted */
};

static bool is_accepted(const struct cr_conv_fusions *f, struct cr_op op) {
    return cr_fuse_accepted(f->edit, &op);
}

/* Adds the 16-bit copy of scale_bias: library kernels read scale_bias in the type of the activations, other kernels
 * read the f32 values. */
static void add_half_scale_bias(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    const enum cr_dtype real = f->edit->program->real;
    if (!s->owned || (real != CR_F16 && real != CR_BF16)) return;
    const struct cr_op *finalize = cr_fuse_op(f->edit, s->finalize);
    if (finalize->out[CR_OUT_bn_finalize_scale_bias_half] != CR_NONE) return;
    s->half = cr_fuse_output(f->edit, finalize, CR_OUT_bn_finalize_scale_bias_half,
                             finalize->out[CR_OUT_bn_finalize_scale_bias], "scale_bias_half");
    if (s->half != CR_NONE && !is_accepted(f, cr_fused_finalize(f, s))) s->half = CR_NONE;
}

/* Returns whether this form of scale_bias is available, when there is a BN to fuse. */
static bool is_bn_input_available(const struct cr_fusion_candidate *s, int input) {
    return input == CR_BN_INPUT_NONE || (s->owned && (input == CR_BN_INPUT_F32 || s->half != CR_NONE));
}

static void find_accepted_forward(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                                  struct accepted_options *a) {
    for (int p = 0; p < BN_INPUTS; p++)
        for (int sums = 0; sums < 2; sums++) {
            const bool plain = p == CR_BN_INPUT_NONE && !sums;
            if (!is_bn_input_available(s, p) || (sums && s->sums == CR_NONE)) continue;
            a->conv[p][sums] = plain || is_accepted(f, cr_fused_conv(f, s, (enum cr_bn_input)p, sums));
            a->forward |= !plain && a->conv[p][sums];
            a->bn_input |= p && a->conv[p][sums];
        }
}

static bool is_joint_possible(const struct cr_fusion_candidate *s, int w, int d, int b) {
    if (w && !s->owned) return false;
    if (d > (int)s->epilogue.max_fusion || (d == CR_GRAD_FUSION_ADD && s->epilogue.add == CR_NONE)) return false;
    return !b || (s->apply != CR_NONE && (!s->masked || s->next != CR_NONE));
}

static void find_accepted_joint(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                                struct accepted_options *a) {
    if (s->wgrad == CR_NONE) return;
    if (s->dgrad != CR_NONE &&
        (!cr_fuse_same_stream(f->edit, s->wgrad, s->dgrad) || !cr_edit_can_move(f->edit, s->wgrad, s->dgrad)))
        return;
    for (int w = 0; w < 2; w++)
        for (int d = 0; d < GRAD_FUSIONS; d++)
            for (int b = 0; b < 2; b++) {
                a->joint[w][d][b] = is_joint_possible(s, w, d, b) &&
                                    is_accepted(f, cr_fused_conv_grad(f, s, w, (enum cr_grad_fusion)d, b));
                a->backward |= a->joint[w][d][b];
                a->bn_input |= w && a->joint[w][d][b];
            }
}

static void find_accepted_backward(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                                   struct accepted_options *a) {
    a->wgrad[0] = a->dgrad[0] = true;
    for (int w = CR_BN_INPUT_F32; w < BN_INPUTS && s->wgrad != CR_NONE; w++)
        a->wgrad[w] = is_bn_input_available(s, w) && is_accepted(f, cr_fused_wgrad(f, s, (enum cr_bn_input)w));
    if (s->dgrad != CR_NONE && s->epilogue.add != CR_NONE)
        a->dgrad[CR_GRAD_FUSION_ADD] = is_accepted(f, cr_fused_dgrad(f, s, CR_GRAD_FUSION_ADD));
    if (s->epilogue.max_fusion == CR_GRAD_FUSION_ALL && s->epilogue.gamma != CR_NONE)
        a->dgrad[CR_GRAD_FUSION_ALL] = is_accepted(f, cr_fused_dgrad(f, s, CR_GRAD_FUSION_ALL));
    find_accepted_joint(f, s, a);
    const bool w = a->wgrad[CR_BN_INPUT_F32] || a->wgrad[CR_BN_INPUT_HALF];
    a->backward |= w || a->dgrad[CR_GRAD_FUSION_ADD] || a->dgrad[CR_GRAD_FUSION_ALL];
    a->bn_input |= w;
}

/* ---- what the options cost: picoseconds ---- */

static int64_t op_ps(struct cr_conv_fusions *f, struct cr_op op) {
    const double seconds_max = 1e3; /* the sum of thousands of ops fits in 64 bits */
    const double seconds     = cr_fuse_seconds(f->edit, &op);
    return llround(1e12 * (seconds >= 0 ? fmin(seconds, seconds_max) : seconds_max));
}

/* Cost of the op with this index; 0 for CR_NONE. */
static int64_t ps_at(struct cr_conv_fusions *f, int op) {
    return op == CR_NONE ? 0 : op_ps(f, *cr_fuse_op(f->edit, op));
}

struct costs {
    int64_t conv[BN_INPUTS][2], sums;
    int64_t wgrad[BN_INPUTS], dgrad[GRAD_FUSIONS], joint[2][GRAD_FUSIONS][2];
    int64_t epilogue[GRAD_FUSIONS]; /* the ops behind the data gradient that stay separate */
    int64_t apply;                  /* the BN gradient behind the convolution */
    int64_t bn, finalize[2];        /* finalize: without and with the 16-bit copy */
};

static void add_forward_cost(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                             const struct accepted_options *a, struct costs *c) {
    for (int p = 0; p < BN_INPUTS; p++)
        for (int sums = 0; sums < 2; sums++)
            if (a->conv[p][sums]) c->conv[p][sums] = op_ps(f, cr_fused_conv(f, s, (enum cr_bn_input)p, sums));
    c->sums = ps_at(f, s->sums);
}

static void add_epilogue_cost(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, struct costs *c) {
    if (s->epilogue.max_fusion == CR_GRAD_FUSION_NONE) return;
    int64_t bits = cr_candidate_owns_mask_bits(f, s) ? ps_at(f, s->block) - op_ps(f, cr_unmasked_block(f, s)) : 0;
    c->epilogue[CR_GRAD_FUSION_ALL]  = s->epilogue.two ? op_ps(f, cr_fused_second_sums(f, s)) : 0;
    c->epilogue[CR_GRAD_FUSION_ADD]  = ps_at(f, s->epilogue.relu) + ps_at(f, s->epilogue.sums) + bits;
    c->epilogue[CR_GRAD_FUSION_NONE] = c->epilogue[CR_GRAD_FUSION_ADD] + ps_at(f, s->epilogue.add);
}

static void add_backward_cost(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                              const struct accepted_options *a, struct costs *c) {
    for (int w = 0; w < BN_INPUTS; w++)
        if (a->wgrad[w] && s->wgrad != CR_NONE) c->wgrad[w] = op_ps(f, cr_fused_wgrad(f, s, (enum cr_bn_input)w));
    for (int d = 0; d < GRAD_FUSIONS; d++)
        if (a->dgrad[d] && s->dgrad != CR_NONE) c->dgrad[d] = op_ps(f, cr_fused_dgrad(f, s, (enum cr_grad_fusion)d));
    for (int w = 0; w < 2; w++)
        for (int d = 0; d < GRAD_FUSIONS; d++)
            for (int b = 0; b < 2; b++)
                if (a->joint[w][d][b])
                    c->joint[w][d][b] = op_ps(f, cr_fused_conv_grad(f, s, w, (enum cr_grad_fusion)d, b));
    add_epilogue_cost(f, s, c);
    if (!s->masked) c->apply = ps_at(f, s->apply);
}

static void add_bn_cost(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, struct costs *c) {
    c->bn = ps_at(f, s->bn);
    if (s->half == CR_NONE) return;
    c->finalize[0] = ps_at(f, s->finalize);
    c->finalize[1] = op_ps(f, cr_fused_finalize(f, s));
}

/* ---- the list of options ---- */

static void add_option(struct cr_fusion_candidate *s, const struct costs *c, struct cr_fusion_option n) {
    n.ps = c->conv[n.p][n.s] + (n.s ? 0 : c->sums) + c->epilogue[n.d] + (n.b ? 0 : c->apply);
    n.ps += n.joint ? c->joint[n.w][n.d][n.b] : c->wgrad[n.w] + c->dgrad[n.d];
    n.ps += c->finalize[n.p == CR_BN_INPUT_HALF || n.w == CR_BN_INPUT_HALF];
    if (!(n.p && (n.w || s->wgrad == CR_NONE))) n.ps += c->bn;
    CR_ASSERT(s->options < CR_FUSION_OPTIONS_MAX);
    s->option[s->options++] = n;
}

/* Adds all options whose forward part is `n`. */
static void add_options(struct cr_fusion_candidate *s, const struct accepted_options *a, const struct costs *c,
                        struct cr_fusion_option n) {
    for (int w = 0; w < BN_INPUTS; w++)
        for (int d = 0; d < GRAD_FUSIONS; d++) {
            n.w = (enum cr_bn_input)w;
            n.d = (enum cr_grad_fusion)d;
            if (a->wgrad[w] && a->dgrad[d]) add_option(s, c, n);
        }
    n.joint = true;
    for (int w = 0; w < 2; w++)
        for (int d = 0; d < GRAD_FUSIONS; d++)
            for (int b = 0; b < 2; b++) {
                n.w = w ? CR_BN_INPUT_F32 : CR_BN_INPUT_NONE;
                n.d = (enum cr_grad_fusion)d;
                n.b = b;
                if (a->joint[w][d][b]) add_option(s, c, n);
            }
}

/* Computes the cost of an op only where several options exist. */
static void list_options(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    struct accepted_options a = {0};
    struct costs            c = {0};
    add_half_scale_bias(f, s);
    find_accepted_forward(f, s, &a);
    find_accepted_backward(f, s, &a);
    if (a.forward) add_forward_cost(f, s, &a, &c);
    if (a.backward) add_backward_cost(f, s, &a, &c);
    if (a.bn_input) add_bn_cost(f, s, &c);
    for (int p = 0; p < BN_INPUTS; p++)
        for (int sums = 0; sums < 2; sums++)
            if (a.conv[p][sums]) add_options(s, &a, &c, (struct cr_fusion_option){.p = (enum cr_bn_input)p, .s = sums});
}

/* Sets the cost of the BN gradient between `first` and its next candidate. */
static void find_edge_cost(struct cr_conv_fusions *f, struct cr_fusion_candidate *first) {
    bool choice = false;
    if (first->next == CR_NONE) return;
    const struct cr_fusion_candidate *next = &f->candidate[first->next];
    for (int i = 0; i < first->options; i++) choice |= first->option[i].b;
    for (int i = 0; i < next->options; i++) choice |= next->option[i].d == CR_GRAD_FUSION_ALL;
    if (!choice) return;
    first->dy_ps[0] = ps_at(f, first->apply);
    first->dy_ps[1] = op_ps(f, cr_unmasked_bn_grad_apply(f, first->apply));
}

cr_status cr_conv_fusions_find(struct cr_conv_fusions *f, struct cr_edit *edit) {
    *f = (struct cr_conv_fusions){.edit = edit};
    CR_TRY(cr_conv_fusions_match(f));
    for (int i = 0; i < f->candidates; i++) list_options(f, &f->candidate[i]);
    for (int i = 0; i < f->candidates; i++) find_edge_cost(f, &f->candidate[i]);
    return edit->failure;
}

void cr_conv_fusions_close(struct cr_conv_fusions *f) {
    cr_free(f->candidate);
    *f = (struct cr_conv_fusions){0};
}

/* ---- the choice: dynamic programming along each path of candidates ---- */

bool cr_conv_fusion_fits(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                         const struct cr_fusion_option *b) {
    return !first->masked || !a->b || b->d == CR_GRAD_FUSION_ALL;
}

int64_t cr_conv_fusion_edge_ps(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                               const struct cr_fusion_option *b) {
    return !first->masked || a->b ? 0 : first->dy_ps[b->d == CR_GRAD_FUSION_ALL];
}

/* The cheapest choice for a path up to one option of one candidate. */
struct partial_path {
    int64_t ps;
    int     fusions;  /* number of fusions, which decides between equal costs */
    int     previous; /* option of the candidate before; CR_NONE: first candidate, or not reachable */
    bool    reachable;
};

static int count_fusions(const struct cr_fusion_option *o) {
    return o->s + (o->p != CR_BN_INPUT_NONE) + (o->w != CR_BN_INPUT_NONE) + o->b + o->joint + (int)o->d;
}

static bool is_better(const struct partial_path *a, const struct partial_path *b) {
    if (!b->reachable) return true;
    return a->ps != b->ps ? a->ps < b->ps : a->fusions < b->fusions;
}

/* Extends the paths from[] of candidate `before` (NULL: none) to each option of candidate s. */
static void extend_paths(const struct cr_fusion_candidate *before, const struct partial_path *from,
                         const struct cr_fusion_candidate *s, struct partial_path *to) {
    for (int k = 0; k < s->options; k++) {
        const struct cr_fusion_option *o = &s->option[k];
        to[k] =
            (struct partial_path){.ps = o->ps, .fusions = count_fusions(o), .previous = CR_NONE, .reachable = !before};
        for (int i = 0; before && i < before->options; i++) {
            const struct cr_fusion_option *a = &before->option[i];
            if (!from[i].reachable || !cr_conv_fusion_fits(before, a, o)) continue;
            struct partial_path extended = {.ps        = from[i].ps + cr_conv_fusion_edge_ps(before, a, o) + o->ps,
                                            .fusions   = from[i].fusions + count_fusions(o),
                                            .previous  = i,
                                            .reachable = true};
            if (is_better(&extended, &to[k])) to[k] = extended;
        }
    }
}

/* Takes the cheapest path and follows it from its last candidate back to its first; order[length] are the candidates.
 */
static void choose_cheapest(struct cr_conv_fusions *f, const struct partial_path *paths, const int *order, int length) {
    const struct partial_path *last = &paths[(size_t)order[length - 1] * CR_FUSION_OPTIONS_MAX];
    int                        best = 0;
    for (int k = 1; k < f->candidate[order[length - 1]].options; k++)
        if (last[k].reachable && is_better(&last[k], &last[best])) best = k;
    f->chosen_ps += last[best].ps;
    for (int i = length - 1; i >= 0; i--) {
        f->candidate[order[i]].chosen = best;
        best                          = paths[(size_t)order[i] * CR_FUSION_OPTIONS_MAX + (size_t)best].previous;
    }
}

static void choose_path(struct cr_conv_fusions *f, int first, struct partial_path *paths, int *order) {
    int length = 0;
    for (int i = first; i != CR_NONE; i = f->candidate[i].next) {
        const struct cr_fusion_candidate *s      = &f->candidate[i],
                                         *before = length ? &f->candidate[order[length - 1]] : NULL;
        const struct partial_path *from = length ? &paths[(size_t)order[length - 1] * CR_FUSION_OPTIONS_MAX] : NULL;
        extend_paths(before, from, s, &paths[(size_t)i * CR_FUSION_OPTIONS_MAX]);
        f->plain_ps +=
            s->option[0].ps + (before ? cr_conv_fusion_edge_ps(before, &before->option[0], &s->option[0]) : 0);
        order[length++] = i;
    }
    choose_cheapest(f, paths, order, length);
}

cr_status cr_conv_fusions_choose(struct cr_conv_fusions *f) {
    size_t               count  = (size_t)CR_MAX(f->candidates, 1);
    struct partial_path *paths  = cr_alloc(count * CR_FUSION_OPTIONS_MAX, sizeof *paths);
    int                 *order  = cr_alloc(count, sizeof *order);
    cr_status            status = paths && order ? CR_OK : CR_NO_MEMORY(count * CR_FUSION_OPTIONS_MAX * sizeof *paths);
    f->plain_ps = f->chosen_ps = 0;
    for (int i = 0; i < f->candidates && status == CR_OK; i++)
        if (!f->candidate[i].has_previous) choose_path(f, i, paths, order);
    cr_free(paths);
    cr_free(order);
    return status;
}

cr_status cr_pass_conv_fusions(struct cr_edit *edit) {
    struct cr_conv_fusions f;
    cr_status              status = cr_conv_fusions_find(&f, edit);
    if (status == CR_OK) status = cr_conv_fusions_choose(&f);
    if (status == CR_OK) cr_conv_fusions_apply(&f);
    cr_conv_fusions_close(&f);
    return status;
}

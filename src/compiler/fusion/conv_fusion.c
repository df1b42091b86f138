/* compiler/fusion/conv_fusion.c: what each option costs, and the choice of least total. See
 * compiler/fusion/conv_fusion.h. */
#include "compiler/fusion/conv_fusion.h"

#include <math.h>
#include <stdio.h>

/* ---- what the target accepts ---- */

enum { ACTS = 3, TAKES = 3, JOINTS = 2 * TAKES * 2 };

struct offers {
    bool conv[ACTS][2];             /* [P][S] */
    bool wgrad[ACTS];               /* [W] */
    bool dgrad[TAKES];              /* [D] */
    bool joint[2][TAKES][2];        /* [W][D][B] */
    bool forward, backward, before; /* is there anything but the plain way: of conv, of its gradients; with P or W */
};

static bool accepted(const struct cr_conv_fusions *j, struct cr_op op) {
    return cr_fuse_accepted(j->edit, j->target, &op);
}

/* Rows of libraries want the coefficients in the type of the pictures; others take them as bn_finalize makes them. */
static void make_half(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    const enum cr_dtype real = j->edit->program->real;
    if (!s->owned || (real != CR_F16 && real != CR_BF16)) return;
    const struct cr_op *finalize = cr_fuse_op(j->edit, s->finalize);
    if (finalize->out[CR_OUT_bn_finalize_scale_bias_half] != CR_NONE) return;
    s->half = cr_fuse_output(j->edit, finalize, CR_OUT_bn_finalize_scale_bias_half,
                             finalize->out[CR_OUT_bn_finalize_scale_bias], "scale_bias_half");
    if (s->half != CR_NONE && !accepted(j, cr_fused_finalize(j, s))) s->half = CR_NONE;
}

/* With `act` there must be a BN to do, and such coefficients. */
static bool act_fits(const struct cr_fusion_candidate *s, int act) {
    return act == CR_BN_INPUT_NONE || (s->owned && (act == CR_BN_INPUT_F32 || s->half != CR_NONE));
}

static void ask_forward(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct offers *o) {
    for (int i = 0; i < 2 * ACTS; i++) {
        int p = i / 2, t = i % 2;
        if (!act_fits(s, p) || (t && s->sums == CR_NONE)) continue;
        o->conv[p][t] = i == 0 || accepted(j, cr_fused_conv(j, s, (enum cr_bn_input)p, t));
        o->forward |= i > 0 && o->conv[p][t];
        o->before |= p && o->conv[p][t];
    }
}

static bool joint_fits(const struct cr_fusion_candidate *s, int w, int d, int b) {
    if (w && !s->owned) return false;
    if (d > (int)s->epilogue.max_fusion || (d == CR_GRAD_FUSION_ADD && s->epilogue.add == CR_NONE)) return false;
    return !b || (s->apply != CR_NONE && (!s->masked || s->next != CR_NONE));
}

static void ask_backward(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct offers *o) {
    o->wgrad[0] = o->dgrad[0] = true;
    for (int w = CR_BN_INPUT_F32; w < ACTS && s->wgrad != CR_NONE; w++)
        o->wgrad[w] = act_fits(s, w) && accepted(j, cr_fused_wgrad(j, s, (enum cr_bn_input)w));
    if (s->dgrad != CR_NONE && s->epilogue.add != CR_NONE)
        o->dgrad[CR_GRAD_FUSION_ADD] = accepted(j, cr_fused_dgrad(j, s, CR_GRAD_FUSION_ADD));
    if (s->epilogue.max_fusion == CR_GRAD_FUSION_ALL && s->epilogue.gamma != CR_NONE)
        o->dgrad[CR_GRAD_FUSION_ALL] = accepted(j, cr_fused_dgrad(j, s, CR_GRAD_FUSION_ALL));
    bool together = s->wgrad != CR_NONE && (s->dgrad == CR_NONE || (cr_fuse_same_stream(j->edit, s->wgrad, s->dgrad) &&
                                                                    cr_edit_can_move(j->edit, s->wgrad, s->dgrad)));
    for (int i = 0; together && i < JOINTS; i++) {
        int w = i / 6, d = i / 2 % 3, b = i % 2;
        o->joint[w][d][b] =
            joint_fits(s, w, d, b) && accepted(j, cr_fused_conv_grad(j, s, w, (enum cr_grad_fusion)d, b));
        o->backward |= o->joint[w][d][b];
        o->before |= w && o->joint[w][d][b];
    }
    bool act = o->wgrad[CR_BN_INPUT_F32] || o->wgrad[CR_BN_INPUT_HALF];
    o->backward |= act || o->dgrad[CR_GRAD_FUSION_ADD] || o->dgrad[CR_GRAD_FUSION_ALL];
    o->before |= act;
}

/* ---- what it costs ---- */

static int64_t ps_of(struct cr_conv_fusions *j, struct cr_op op) {
    const double most    = 1e3; /* seconds: sums of thousands stay within 64 bits */
    double       seconds = 0;
    if (j->status != CR_OK) return 0;
    if (j->target->cost)
        j->status = j->target->cost(j->target->self, j->edit->program, &op, &seconds);
    else
        seconds = cr_op_seconds(j->target, j->edit->program, &op);
    return llround(1e12 * (seconds >= 0 ? fmin(seconds, most) : most));
}

static int64_t ps_at(struct cr_conv_fusions *j, int op) {
    return op == CR_NONE ? 0 : ps_of(j, *cr_fuse_op(j->edit, op));
}

struct prices {
    int64_t conv[ACTS][2], stats;
    int64_t wgrad[ACTS], dgrad[TAKES], joint[2][TAKES][2], gate[TAKES], apply;
    int64_t bn, finalize[2]; /* [with the 16-bit copy] */
};

static void price_forward(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, const struct offers *o,
                          struct prices *c) {
    for (int i = 0; i < 2 * ACTS; i++)
        if (o->conv[i / 2][i % 2])
            c->conv[i / 2][i % 2] = ps_of(j, cr_fused_conv(j, s, (enum cr_bn_input)(i / 2), i % 2));
    c->stats = ps_at(j, s->sums);
}

static void price_gate(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct prices *c) {
    if (s->epilogue.max_fusion == CR_GRAD_FUSION_NONE) return;
    int64_t bits = cr_candidate_owns_mask_bits(j, s) ? ps_at(j, s->bn) - ps_of(j, cr_unmasked_bn_apply(j, s)) : 0;
    c->gate[CR_GRAD_FUSION_ALL]  = s->epilogue.two ? ps_of(j, cr_fused_second_sums(j, s)) : 0;
    c->gate[CR_GRAD_FUSION_ADD]  = ps_at(j, s->epilogue.relu) + ps_at(j, s->epilogue.sums) + bits;
    c->gate[CR_GRAD_FUSION_NONE] = c->gate[CR_GRAD_FUSION_ADD] + ps_at(j, s->epilogue.add);
}

static void price_backward(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, const struct offers *o,
                           struct prices *c) {
    for (int w = 0; w < ACTS; w++)
        if (o->wgrad[w] && s->wgrad != CR_NONE) c->wgrad[w] = ps_of(j, cr_fused_wgrad(j, s, (enum cr_bn_input)w));
    for (int d = 0; d < TAKES; d++)
        if (o->dgrad[d] && s->dgrad != CR_NONE) c->dgrad[d] = ps_of(j, cr_fused_dgrad(j, s, (enum cr_grad_fusion)d));
    for (int i = 0; i < JOINTS; i++) {
        int w = i / 6, d = i / 2 % 3, b = i % 2;
        if (o->joint[w][d][b]) c->joint[w][d][b] = ps_of(j, cr_fused_conv_grad(j, s, w, (enum cr_grad_fusion)d, b));
    }
    price_gate(j, s, c);
    if (!s->masked) c->apply = ps_at(j, s->apply);
}

static void price_before(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct prices *c) {
    c->bn = ps_at(j, s->bn);
    if (s->half == CR_NONE) return;
    c->finalize[0] = ps_at(j, s->finalize);
    c->finalize[1] = ps_of(j, cr_fused_finalize(j, s));
}

/* ---- the options ---- */

static void add_option(struct cr_fusion_candidate *s, const struct prices *c, struct cr_fusion_option n) {
    n.ps = c->conv[n.p][n.s] + (n.s ? 0 : c->stats) + c->gate[n.d] + (n.b ? 0 : c->apply);
    n.ps += n.joint ? c->joint[n.w][n.d][n.b] : c->wgrad[n.w] + c->dgrad[n.d];
    n.ps += c->finalize[n.p == CR_BN_INPUT_HALF || n.w == CR_BN_INPUT_HALF];
    if (!(n.p && (n.w || s->wgrad == CR_NONE))) n.ps += c->bn;
    CR_ASSERT(s->options < CR_FUSION_OPTIONS_MAX);
    s->option[s->options++] = n;
}

static void list_backward(struct cr_fusion_candidate *s, const struct offers *o, const struct prices *c,
                          struct cr_fusion_option n) {
    for (int i = 0; i < ACTS * TAKES; i++) {
        n.w = (enum cr_bn_input)(i / TAKES);
        n.d = (enum cr_grad_fusion)(i % TAKES);
        if (o->wgrad[n.w] && o->dgrad[n.d]) add_option(s, c, n);
    }
    n.joint = true;
    for (int i = 0; i < JOINTS; i++) {
        n.w = i / 6 ? CR_BN_INPUT_F32 : CR_BN_INPUT_NONE;
        n.d = (enum cr_grad_fusion)(i / 2 % TAKES);
        n.b = i % 2;
        if (o->joint[n.w][n.d][n.b]) add_option(s, c, n);
    }
}

/* Asks for costs only where there is a choice. */
static void list_options(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    struct offers o = {0};
    struct prices c = {0};
    make_half(j, s);
    ask_forward(j, s, &o);
    ask_backward(j, s, &o);
    if (o.forward) price_forward(j, s, &o, &c);
    if (o.backward) price_backward(j, s, &o, &c);
    if (o.before) price_before(j, s, &c);
    for (int i = 0; i < 2 * ACTS; i++)
        if (o.conv[i / 2][i % 2])
            list_backward(s, &o, &c, (struct cr_fusion_option){.p = (enum cr_bn_input)(i / 2), .s = i % 2});
}

/* The BN's gradient between two convolutions. */
static void price_meeting(struct cr_conv_fusions *j, struct cr_fusion_candidate *first) {
    bool choice = false;
    if (first->next == CR_NONE) return;
    const struct cr_fusion_candidate *next = &j->candidate[first->next];
    for (int i = 0; i < first->options; i++) choice |= first->option[i].b;
    for (int i = 0; i < next->options; i++) choice |= next->option[i].d == CR_GRAD_FUSION_ALL;
    if (!choice) return;
    first->dy_ps[0] = ps_at(j, first->apply);
    first->dy_ps[1] = ps_of(j, cr_unmasked_bn_grad_apply(j, first->apply));
}

cr_status cr_conv_fusions_find(struct cr_conv_fusions *j, struct cr_edit *edit, const struct cr_cost_model *target) {
    *j = (struct cr_conv_fusions){.edit = edit, .target = target};
    CR_TRY(cr_conv_fusions_match(j));
    for (int i = 0; i < j->candidates; i++) list_options(j, &j->candidate[i]);
    for (int i = 0; i < j->candidates; i++) price_meeting(j, &j->candidate[i]);
    return j->status;
}

void cr_conv_fusions_close(struct cr_conv_fusions *j) {
    cr_free(j->candidate);
    *j = (struct cr_conv_fusions){0};
}

/* ---- the choice ---- */

bool cr_conv_fusion_fits(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                         const struct cr_fusion_option *b) {
    return !first->masked || !a->b || b->d == CR_GRAD_FUSION_ALL;
}

int64_t cr_conv_fusion_edge_ps(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                               const struct cr_fusion_option *b) {
    return !first->masked || a->b ? 0 : first->dy_ps[b->d == CR_GRAD_FUSION_ALL];
}

/* The best way to do the path up to a site with one of its options. */
struct step {
    int64_t ps;
    int     features, from; /* from: option of the site before; CR_NONE: no way leads here, or the first */
    bool    reached;
};

static int features_of(const struct cr_fusion_option *o) {
    return o->s + (o->p != CR_BN_INPUT_NONE) + (o->w != CR_BN_INPUT_NONE) + o->b + o->joint + (int)o->d;
}

static bool better(const struct step *a, const struct step *b) {
    if (!b->reached) return true;
    return a->ps != b->ps ? a->ps < b->ps : a->features < b->features;
}

static void take_step(const struct cr_fusion_candidate *before, const struct step *from,
                      const struct cr_fusion_candidate *s, struct step *to) {
    for (int k = 0; k < s->options; k++) {
        const struct cr_fusion_option *o = &s->option[k];
        to[k] = (struct step){.ps = o->ps, .features = features_of(o), .from = CR_NONE, .reached = !before};
        for (int i = 0; before && i < before->options; i++) {
            const struct cr_fusion_option *a = &before->option[i];
            if (!from[i].reached || !cr_conv_fusion_fits(before, a, o)) continue;
            struct step try = {.ps       = from[i].ps + cr_conv_fusion_edge_ps(before, a, o) + o->ps,
                               .features = from[i].features + features_of(o),
                               .from     = i,
                               .reached  = true};
            if (better(&try, &to[k])) to[k] = try;
        }
    }
}

/* From the end of the path back to its first site; `order` are its sites. */
static void take_best(struct cr_conv_fusions *j, const struct step *steps, const int *order, int length) {
    const struct step *last = &steps[(size_t)order[length - 1] * CR_FUSION_OPTIONS_MAX];
    int                best = 0;
    for (int k = 1; k < j->candidate[order[length - 1]].options; k++)
        if (last[k].reached && better(&last[k], &last[best])) best = k;
    j->chosen_ps += last[best].ps;
    for (int i = length - 1; i >= 0; i--) {
        j->candidate[order[i]].chosen = best;
        best                          = steps[(size_t)order[i] * CR_FUSION_OPTIONS_MAX + (size_t)best].from;
    }
}

static void choose_path(struct cr_conv_fusions *j, int first, struct step *steps, int *order) {
    int length = 0;
    for (int i = first; i != CR_NONE; i = j->candidate[i].next) {
        const struct cr_fusion_candidate *s      = &j->candidate[i],
                                         *before = length ? &j->candidate[order[length - 1]] : NULL;
        const struct step *from = length ? &steps[(size_t)order[length - 1] * CR_FUSION_OPTIONS_MAX] : NULL;
        take_step(before, from, s, &steps[(size_t)i * CR_FUSION_OPTIONS_MAX]);
        j->plain_ps +=
            s->option[0].ps + (before ? cr_conv_fusion_edge_ps(before, &before->option[0], &s->option[0]) : 0);
        order[length++] = i;
    }
    take_best(j, steps, order, length);
}

cr_status cr_conv_fusions_choose(struct cr_conv_fusions *j) {
    size_t       count  = (size_t)CR_MAX(j->candidates, 1);
    struct step *steps  = cr_alloc(count * CR_FUSION_OPTIONS_MAX, sizeof *steps);
    int         *order  = cr_alloc(count, sizeof *order);
    cr_status    status = steps && order ? CR_OK : CR_NO_MEMORY(count * CR_FUSION_OPTIONS_MAX * sizeof *steps);
    j->plain_ps = j->chosen_ps = 0;
    for (int i = 0; i < j->candidates && status == CR_OK; i++)
        if (!j->candidate[i].has_previous) choose_path(j, i, steps, order);
    cr_free(steps);
    cr_free(order);
    return status;
}

/* ---- all of it ---- */

cr_status cr_pass_conv_fusions(struct cr_edit *edit, const struct cr_cost_model *target) {
    struct cr_conv_fusions j;
    cr_status              status = cr_conv_fusions_find(&j, edit, target);
    if (status == CR_OK) status = cr_conv_fusions_choose(&j);
    if (status == CR_OK) cr_conv_fusions_apply(&j);
    cr_conv_fusions_close(&j);
    return status;
}

struct taken_word {
    char text[16];
};

static struct taken_word word_of(const struct cr_fusion_option *o) {
    static const char *const takes[] = {"", "+", "D"};
    struct taken_word        word;
    snprintf(word.text, sizeof word.text, "%s%s%s%s%s%s", o->s ? "S" : "", o->p ? "P" : "", o->w ? "W" : "",
             takes[o->d], o->b ? "B" : "", o->joint ? "J" : "");
    return word;
}

static void print_site(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct cr_text *out) {
    const struct cr_fusion_option *o    = &s->option[s->chosen];
    const struct cr_op            *conv = cr_fuse_op(j->edit, s->conv);
    const struct taken_word        word = word_of(o);
    cr_text_add(out, "%-28s %-8s %8d %12.2f %12.2f\n", conv->layer >= 0 ? j->edit->program->layer[conv->layer] : "?",
                *word.text ? word.text : "-", s->options, 1e-6 * (double)s->option[0].ps, 1e-6 * (double)o->ps);
}

static const char legend[] =
    "S the statistics of its output, P BN and ReLU of its input, W the same in its filter's gradient,\n"
    "+ the sum with the other branch's gradient, D that sum, the mask and the sums of the BN before it,\n"
    "B the gradient of the BN behind it, J filter's and data gradient in one op; - nothing\n";

static cr_status tell_gradient(const struct cr_conv_fusions *j, const struct cr_op *op, const char *before,
                               struct cr_choices *out) {
    cr_text_add(out->text, "%s{\"kind\": \"%s\", ", before, cr_op_info(op->kind)->name);
    CR_TRY(cr_choices_add_selection(out, j->target, j->edit->program, op));
    cr_text_add(out->text, "}");
    return CR_OK;
}

static cr_status tell_gradients(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                                const struct cr_fusion_option *o, struct cr_choices *out) {
    if (s->wgrad == CR_NONE && s->dgrad == CR_NONE) return CR_OK;
    cr_text_add(out->text, ", \"gradients\": [");
    if (o->joint) {
        const struct cr_op joint = cr_fused_conv_grad(j, s, o->w != CR_BN_INPUT_NONE, o->d, o->b);
        CR_TRY(tell_gradient(j, &joint, "", out));
    } else {
        const struct cr_op wgrad = s->wgrad != CR_NONE ? cr_fused_wgrad(j, s, o->w) : (struct cr_op){0};
        const struct cr_op dgrad = s->dgrad != CR_NONE ? cr_fused_dgrad(j, s, o->d) : (struct cr_op){0};
        if (s->wgrad != CR_NONE) CR_TRY(tell_gradient(j, &wgrad, "", out));
        if (s->dgrad != CR_NONE) CR_TRY(tell_gradient(j, &dgrad, s->wgrad != CR_NONE ? ", " : "", out));
    }
    cr_text_add(out->text, "]");
    return CR_OK;
}

/* One way alone was not priced. */
static cr_status tell_site(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                           struct cr_choices *out) {
    const struct cr_fusion_option *o    = &s->option[s->chosen];
    const struct cr_op             conv = cr_fused_conv(j, s, o->p, o->s);
    CR_TRY(cr_choices_begin(out, j->target, j->edit->program, &conv, "takes"));
    CR_TRY(tell_gradients(j, s, o, out));
    cr_text_add(out->text, ", \"takes\": \"%s\", \"ways\": %d", word_of(o).text, s->options);
    if (s->options > 1)
        cr_text_add(out->text, ", \"plain_us\": %.4f, \"chosen_us\": %.4f}\n", 1e-6 * (double)s->option[0].ps,
                    1e-6 * (double)o->ps);
    else
        cr_text_add(out->text, ", \"plain_us\": null, \"chosen_us\": null}\n");
    return CR_OK;
}

static void print(const struct cr_conv_fusions *j, struct cr_text *out) {
    bool choice = false;
    for (int i = 0; i < j->candidates; i++) choice |= j->candidate[i].options > 1;
    if (!choice) {
        cr_text_add(out, "no convolution can take anything over here\n");
        return;
    }
    cr_text_add(out, "%-28s %-8s %8s %12s %12s\n", "convolution", "takes", "of ways", "plain us", "chosen us");
    for (int i = 0; i < j->candidates; i++)
        if (j->candidate[i].options > 1) print_site(j, &j->candidate[i], out);
    cr_text_add(out, "%-28s %-8s %8s %12.2f %12.2f\n", "all, BN gradients between too", "", "",
                1e-6 * (double)j->plain_ps, 1e-6 * (double)j->chosen_ps);
    cr_text_add(out, "%s", legend);
}

cr_status cr_conv_fusions_explain(const struct cr_conv_fusions *j, struct cr_choices *out) {
    out->fusions  = j->candidates;
    out->plain_s  = 1e-12 * (double)j->plain_ps;
    out->chosen_s = 1e-12 * (double)j->chosen_ps;
    if (!out->json) print(j, out->text);
    for (int i = 0; out->json && i < j->candidates; i++) CR_TRY(tell_site(j, &j->candidate[i], out));
    return CR_OK;
}

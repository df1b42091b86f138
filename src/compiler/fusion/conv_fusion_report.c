/* compiler/fusion/conv_fusion_report.c: writes the fusion options of each convolution, as a table or as JSON lines. */
#include "compiler/fusion/conv_fusion.h"

#include <math.h>
#include <stdio.h>

/* The letters of an option, such as "SPW+". */
struct letters {
    char text[16];
};

static struct letters letters_of(const struct cr_fusion_option *o) {
    static const char *const grad_fusion[] = {"", "+", "D"};
    struct letters           letters;
    snprintf(letters.text, sizeof letters.text, "%s%s%s%s%s%s", o->s ? "S" : "", o->p ? "P" : "", o->w ? "W" : "",
             grad_fusion[o->d], o->b ? "B" : "", o->joint ? "J" : "");
    return letters;
}

/* ---- the table ---- */

static void print_candidate(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, struct cr_text *out) {
    const struct cr_fusion_option *o       = &s->option[s->chosen];
    const struct cr_op            *conv    = cr_fuse_op(f->edit, s->conv);
    const struct letters           letters = letters_of(o);
    cr_text_add(out, "%-28s %-8s %8d %12.2f %12.2f\n", conv->layer >= 0 ? f->edit->program->layer[conv->layer] : "?",
                *letters.text ? letters.text : "-", s->options, 1e-6 * (double)s->option[0].ps, 1e-6 * (double)o->ps);
}

static const char legend[] =
    "S: BN sums of the output; P: BN and ReLU of the input; W: BN and ReLU of the input in the filter gradient;\n"
    "+: add of the other branch's gradient; D: that add, the ReLU mask and the gradient sums of the BN before;\n"
    "B: gradient of the BN behind; J: filter gradient and data gradient in one op; -: no fusion\n";

static void print_table(const struct cr_conv_fusions *f, struct cr_text *out) {
    bool choice = false;
    for (int i = 0; i < f->candidates; i++) choice |= f->candidate[i].options > 1;
    if (!choice) {
        cr_text_add(out, "no convolution has a fusion option on this device\n");
        return;
    }
    cr_text_add(out, "%-28s %-8s %8s %12s %12s\n", "convolution", "fused", "options", "plain us", "chosen us");
    for (int i = 0; i < f->candidates; i++)
        if (f->candidate[i].options > 1) print_candidate(f, &f->candidate[i], out);
    cr_text_add(out, "%-28s %-8s %8s %12.2f %12.2f\n", "total, with BN gradients", "", "", 1e-6 * (double)f->plain_ps,
                1e-6 * (double)f->chosen_ps);
    cr_text_add(out, "%s", legend);
}

/* ---- JSON ---- */

static cr_status add_gradient_json(const struct cr_conv_fusions *f, const struct cr_op *op, struct cr_choices *out) {
    cr_json_open_object(&out->writer, NULL);
    cr_json_put_string(&out->writer, "kind", cr_op_info(op->kind)->name);
    CR_TRY(cr_choices_add_selection(out, f->cost_model, f->edit->program, op));
    cr_json_close_object(&out->writer);
    return CR_OK;
}

static cr_status add_gradients_json(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                                    const struct cr_fusion_option *o, struct cr_choices *out) {
    if (s->wgrad == CR_NONE && s->dgrad == CR_NONE) return CR_OK;
    cr_json_open_array(&out->writer, "gradients");
    if (o->joint) {
        const struct cr_op joint = cr_fused_conv_grad(f, s, o->w != CR_BN_INPUT_NONE, o->d, o->b);
        CR_TRY(add_gradient_json(f, &joint, out));
    } else {
        const struct cr_op wgrad = s->wgrad != CR_NONE ? cr_fused_wgrad(f, s, o->w) : (struct cr_op){0};
        const struct cr_op dgrad = s->dgrad != CR_NONE ? cr_fused_dgrad(f, s, o->d) : (struct cr_op){0};
        if (s->wgrad != CR_NONE) CR_TRY(add_gradient_json(f, &wgrad, out));
        if (s->dgrad != CR_NONE) CR_TRY(add_gradient_json(f, &dgrad, out));
    }
    cr_json_close_array(&out->writer);
    return CR_OK;
}

/* The costs are null for a candidate with the plain option only, because they are not computed. */
static cr_status add_candidate_json(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                                    struct cr_choices *out) {
    const struct cr_fusion_option *o    = &s->option[s->chosen];
    const struct cr_op             conv = cr_fused_conv(f, s, o->p, o->s);
    CR_TRY(cr_choices_begin(out, f->cost_model, f->edit->program, &conv, "fusion"));
    CR_TRY(add_gradients_json(f, s, o, out));
    cr_json_put_string(&out->writer, "fused", letters_of(o).text);
    cr_json_put_int(&out->writer, "options", s->options);
    cr_json_put_fixed(&out->writer, "unfused_us", s->options > 1 ? 1e-6 * (double)s->option[0].ps : NAN, 4);
    cr_json_put_fixed(&out->writer, "chosen_us", s->options > 1 ? 1e-6 * (double)o->ps : NAN, 4);
    cr_choices_end(out);
    return CR_OK;
}

cr_status cr_conv_fusions_explain(const struct cr_conv_fusions *f, struct cr_choices *out) {
    out->fusions  = f->candidates;
    out->plain_s  = 1e-12 * (double)f->plain_ps;
    out->chosen_s = 1e-12 * (double)f->chosen_ps;
    if (!out->json) print_table(f, out->text);
    for (int i = 0; out->json && i < f->candidates; i++) CR_TRY(add_candidate_json(f, &f->candidate[i], out));
    return CR_OK;
}

/* compiler/fusion/conv_fusion_report.c: prints the fusion options of each convolution and their costs, as a table. */
#include "compiler/fusion/conv_fusion.h"

#include <stdio.h>

static void print_candidate(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, struct cr_text *out) {
    static const char *const       grad_fusion[] = {"", "+", "D"};
    const struct cr_fusion_option *o             = &s->option[s->chosen];
    const struct cr_op            *conv          = cr_fuse_op(f->edit, s->conv);
    char                           letters[16]; /* such as "SPW+" */
    snprintf(letters, sizeof letters, "%s%s%s%s%s%s", o->s ? "S" : "", o->p ? "P" : "", o->w ? "W" : "",
             grad_fusion[o->d], o->b ? "B" : "", o->joint ? "J" : "");
    cr_text_add(out, "%-28s %-8s %8d %12.2f %12.2f\n", conv->layer >= 0 ? f->edit->program->layer[conv->layer] : "?",
                *letters ? letters : "-", s->options, 1e-6 * (double)s->option[0].ps, 1e-6 * (double)o->ps);
}

static const char legend[] =
    "S: BN sums of the output; P: BN and ReLU of the input; W: BN and ReLU of the input in the filter gradient;\n"
    "+: add of the other branch's gradient; D: that add, the ReLU mask and the gradient sums of the BN before;\n"
    "B: gradient of the BN behind; J: filter gradient and data gradient in one op; -: no fusion\n";

void cr_conv_fusions_print(const struct cr_conv_fusions *f, struct cr_text *out) {
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

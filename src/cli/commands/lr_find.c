/* cli/commands/lr_find.c: cresnet lr-find: suggests a learning rate, from a short training in memory. */
#include "training/lr_find.h"
#include "cli/common/command.h"
#include "formats/json_write.h"

#include <inttypes.h>

enum { STEPS = 100, STEPS_MAX = 1000000 };

static cr_status read_options(const struct cr_args *args, struct cr_lr_options *out) {
    CR_TRY(cr_args_max_operands(args, 1));
    *out = (struct cr_lr_options){.min_lr = 1e-7, .max_lr = 10};
    CR_TRY(cr_args_int(args, CR_OPT_LR_STEPS, CR_LR_STEPS_MIN, STEPS_MAX, STEPS, &out->steps));
    CR_TRY(
        cr_args_real(args, CR_OPT_MIN_LR, 1e-30, 1e30, "a learning rate from 1e-30 to 1e30, e.g. 1e-07", &out->min_lr));
    CR_TRY(cr_args_real(args, CR_OPT_MAX_LR, 1e-30, 1e30, "a learning rate from 1e-30 to 1e30, e.g. 10", &out->max_lr));
    if (out->min_lr >= out->max_lr)
        return cr_args_fail(args, "--min-lr %g must be less than --max-lr %g", out->min_lr, out->max_lr);
    return CR_OK;
}

static void print_json(const struct cr_lr_curve *c, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    if (c->steepest >= 0)
        cr_json_put_general(&w, "suggested_lr", c->lr[c->steepest], 6);
    else
        cr_json_put_null(&w, "suggested_lr");
    cr_json_put_bool(&w, "diverged", c->diverged);
    cr_json_open_array(&w, "steps");
    for (int64_t i = 0; i < c->count; i++) {
        cr_json_open_object(&w, NULL);
        cr_json_put_general(&w, "lr", c->lr[i], 9);
        cr_json_put_general(&w, "loss", c->loss[i], 9);
        cr_json_put_general(&w, "smoothed", c->smoothed[i], 9);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

static void print_text(const struct cr_args *args, const struct cr_lr_curve *c, struct cr_text *out) {
    const double lr = c->lr[c->steepest];
    cr_text_add(out,
                "suggested optim.lr = %.2g\n"
                "  why: around this rate the loss falls most clearly, measured by its slope over its noise.\n"
                "  The smoothed loss went from %.4g at a rate of %.2g to its lowest value, %.4g, at %.2g",
                lr, c->smoothed[0], c->lr[0], c->smoothed[c->lowest], c->lr[c->lowest]);
    if (c->diverged)
        cr_text_add(out, "; it diverged after %.2g (not finite, or %g times the lowest value)", c->lr[c->count - 1],
                    CR_LR_STOP_FACTOR);
    cr_text_add(out, ".\n");
    if (!c->diverged && c->lowest == c->count - 1)
        cr_text_add(out, "  note: the loss was still falling at the highest rate: a higher --max-lr may find more.\n");
    cr_text_add(out, "  try it: cresnet %s ", cr_fs_is_dir(args->operand[0]) ? "train CONFIG" : "train");
    if (!cr_fs_is_dir(args->operand[0])) cr_text_add(out, "%s ", args->operand[0]);
    cr_text_add(out, "optim.lr=%.2g\n", lr);
}

static cr_status print(const struct cr_args *args, const struct cr_lr_options *options,
                       const struct cr_lr_curve *curve) {
    struct cr_text text = {0};
    if (!curve->count)
        return CR_FAIL(CR_ERR_NUMERIC,
                       "the loss of the first step is not finite, at a learning rate of %g: the network or its weights "
                       "overflow%s",
                       options->min_lr, options->min_lr > 1e-7 ? "; try a lower --min-lr" : "");
    if (cr_args_has(args, CR_OPT_JSON))
        print_json(curve, &text);
    else if (curve->steepest >= 0)
        print_text(args, curve, &text);
    CR_TRY(cr_cmd_print(&text));
    if (curve->steepest >= 0) return CR_OK;
    return CR_FAIL(
        CR_ERR_NUMERIC,
        "no suggestion: between the learning rates %.2g and %.2g the loss never falls by more than its noise "
        "(%" PRId64 " steps): try more --steps, a larger --batch, another --min-lr or --max-lr, or check the "
        "labels",
        curve->lr[0], curve->lr[curve->count - 1], curve->count);
}

cr_status cr_cmd_lr_find(const struct cr_args *args, int *signal_taken) {
    const struct cr_config *config;
    struct cr_lr_options    options;
    struct cr_lr_curve      curve;
    (void)signal_taken;
    CR_TRY(read_options(args, &options));
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status = cr_lr_find(config, &options, &curve);
    if (status == CR_OK) status = print(args, &options, &curve);
    cr_lr_curve_free(&curve);
    cr_config_close(config);
    return status;
}

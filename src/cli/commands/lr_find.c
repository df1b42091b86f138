/* cli/commands/lr_find.c: cresnet lr-find: suggests a learning rate, from short trainings in memory. */
#include "training/lr_find.h"
#include "cli/common/command.h"
#include "formats/json_write.h"

#include <inttypes.h>
#include <math.h>

enum { STEPS = 60, STEPS_MAX = 1000000 };

static cr_status read_options(const struct cr_args *args, struct cr_lr_options *out) {
    CR_TRY(cr_args_max_operands(args, 1));
    *out = (struct cr_lr_options){.min_lr = 1e-4, .max_lr = 10};
    CR_TRY(cr_args_int(args, CR_OPT_LR_STEPS, CR_LR_STEPS_MIN, STEPS_MAX, STEPS, &out->steps));
    CR_TRY(
        cr_args_real(args, CR_OPT_MIN_LR, 1e-30, 1e30, "a learning rate from 1e-30 to 1e30, e.g. 1e-4", &out->min_lr));
    CR_TRY(cr_args_real(args, CR_OPT_MAX_LR, 1e-30, 1e30, "a learning rate from 1e-30 to 1e30, e.g. 10", &out->max_lr));
    if (out->min_lr >= out->max_lr)
        return cr_args_fail(args, "--min-lr %g must be less than --max-lr %g", out->min_lr, out->max_lr);
    return CR_OK;
}

/* Numbers of a training that diverged are null. */
static void print_json(const struct cr_lr_options *options, const struct cr_lr_found *f, struct cr_text *out) {
    const struct cr_lr_training *t = f->training;
    struct cr_json_writer        w = cr_json_open_line(out);
    cr_json_put_general(&w, "suggested_lr", f->best < 0 ? (double)NAN : t[f->best].lr, 9);
    cr_json_put_general(&w, "from_lr", f->best < 0 ? (double)NAN : t[f->low].lr, 9);
    cr_json_put_general(&w, "to_lr", f->best < 0 ? (double)NAN : t[f->high].lr, 9);
    cr_json_put_int(&w, "steps", options->steps);
    cr_json_put_general(&w, "start_loss", f->start_loss, 9);
    cr_json_open_array(&w, "rates");
    for (int i = 0; i < f->count; i++) {
        cr_json_open_object(&w, NULL);
        cr_json_put_general(&w, "lr", t[i].lr, 9);
        cr_json_put_general(&w, "loss", t[i].loss, 9);
        cr_json_put_general(&w, "descent", t[i].descent, 9);
        cr_json_put_general(&w, "error", t[i].error, 9);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

static void print_text(const struct cr_args *args, const struct cr_lr_options *options, const struct cr_lr_found *f,
                       struct cr_text *out) {
    const struct cr_lr_training *best = &f->training[f->best];
    cr_text_add(out,
                "suggested optim.lr = %.2g\n"
                "  why: %" PRId64
                " steps with this rate, which falls to 0, lower the loss from %.4g to %.4g; no rate that "
                "was tried does much better.\n",
                best->lr, options->steps, f->start_loss, best->loss);
    if (f->low < f->high)
        cr_text_add(out, "  Rates from %.2g to %.2g lower it by at least half as much.\n", f->training[f->low].lr,
                    f->training[f->high].lr);
    if (f->best == f->count - 1)
        cr_text_add(out, "  note: it is the highest rate that was tried: a higher --max-lr may find more.\n");
    if (f->best == 0)
        cr_text_add(out, "  note: it is the lowest rate that was tried: a lower --min-lr may find more.\n");
    cr_text_add(out, "  try it: cresnet %s ", cr_fs_is_dir(args->operand[0]) ? "train CONFIG" : "train");
    if (!cr_fs_is_dir(args->operand[0])) cr_text_add(out, "%s ", args->operand[0]);
    cr_text_add(out, "optim.lr=%.2g\n", best->lr);
}

static cr_status print(const struct cr_args *args, const struct cr_lr_options *options, const struct cr_lr_found *f,
                       struct cr_text *out) {
    if (cr_args_has(args, CR_OPT_JSON))
        print_json(options, f, out);
    else if (f->best >= 0)
        print_text(args, options, f, out);
    CR_TRY(cr_cmd_print(out));
    if (f->best >= 0) return CR_OK;
    return CR_FAIL(CR_ERR_NUMERIC,
                   "no descent: no suggestion: with no learning rate from %.2g to %.2g do %" PRId64
                   " steps lower the loss by more than its noise: try more --steps, a larger --batch, another --min-lr "
                   "or --max-lr, or check the labels",
                   f->training[0].lr, f->training[f->count - 1].lr, options->steps);
}

cr_status cr_cmd_lr_find(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config *config;
    struct cr_lr_options    options;
    struct cr_lr_found      found;
    CR_TRY(read_options(args, &options));
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status = cr_lr_find(config, &options, &found);
    if (status == CR_OK) status = print(args, &options, &found, &out->text);
    cr_config_close(config);
    return status;
}

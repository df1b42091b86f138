/* cmd_eval.c: cresnet eval: scores of given weights on a whole split. */
#include "cmd.h"
#include "session.h"

#include <math.h>

static void print_scores(const struct cr_config *config, const char *split, const struct cr_scores *s, bool json,
                         struct cr_text *out) {
    double n    = s->images ? (double)s->images : 1;
    double top1 = (double)s->right1 / n, top5 = (double)s->right5 / n, loss = s->loss_sum / n;
    double speed = s->seconds > 0 ? (double)s->images / s->seconds : 0;
    if (json) {
        cr_text_add(out,
                    "{\"split\": \"%s\", \"images\": %lld, \"right\": %lld, \"right5\": %lld, \"top1\": %.6f, "
                    "\"top5\": %.6f, ",
                    split, (long long)s->images, (long long)s->right1, (long long)s->right5, top1, top5);
        if (isfinite(loss)) cr_text_add(out, "\"loss\": %.6f, ", loss);
        else cr_text_add(out, "\"loss\": null, "); /* JSON has no word for it */
        cr_text_add(out, "\"corrupt\": %lld, \"seconds\": %.3f, \"images_per_s\": %.1f, \"weights\": ",
                    (long long)s->corrupt, s->seconds, speed);
        cr_text_add_json(out, config->model.weights);
        cr_text_add(out, "}\n");
        return;
    }
    cr_text_add(out, "%s: %lld of %lld right: top-1 %.2f %%, top-5 %.2f %%, loss %.4f  (%.1f s, %.0f images/s)\n",
                split, (long long)s->right1, (long long)s->images, 100 * top1, 100 * top5, loss, s->seconds, speed);
    if (s->corrupt) cr_text_add(out, "%lld unreadable pictures were left out\n", (long long)s->corrupt);
}

static cr_status evaluate(const struct cr_config *config, enum cr_split split, struct cr_scores *scores) {
    struct cr_dataset *dataset = NULL;
    struct cr_session  session = {0};
    cr_status          status;
    CR_TRY_OUT(cr_dataset_open(config, split, &dataset));
    struct cr_session_options options = {.eval = true, .execute = true, .classes = cr_dataset_classes(dataset)};
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    cr_log(CR_LOG_INFO, "device: %s", session.device->caps.text);
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(cr_session_evaluate(&session, dataset, NULL, scores));
out:
    cr_session_close(&session);
    cr_dataset_close(dataset);
    return status;
}

cr_status cr_cmd_eval(const struct cr_args *args, int *signal_taken) {
    static const char *const splits[] = {"val", "train", NULL};
    struct cr_config         config;
    struct cr_scores         scores = {0};
    struct cr_text           text   = {0};
    int                      split;
    cr_status                status;
    (void)signal_taken;
    CR_TRY(cr_args_most(args, 1));
    CR_TRY(cr_args_word(args, CR_OPT_SPLIT, splits, &split));
    CR_TRY(cr_cmd_config(args, &config));
    if (!*config.model.weights) {
        status = cr_args_fail(args, "no weights to evaluate: give --weights FILE, or a run folder instead of %s",
                              args->operand[0]);
        goto out;
    }
    CR_TRY_OUT(evaluate(&config, split ? CR_SPLIT_TRAIN : CR_SPLIT_VAL, &scores));
    print_scores(&config, splits[split], &scores, cr_args_has(args, CR_OPT_JSON), &text);
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_config_close(&config);
    return status;
}

/* cli/commands/train.c: cresnet train: opens the configuration and the ranks, then calls cr_train. */
#include "cli/common/command.h"
#include "core/files.h"
#include "session/session.h"
#include "training/training.h"

#include <stdlib.h>
#include <string.h>

/* --resume PATH continues in the run folder of PATH. Another output folder on the command line is refused, because its
 * user expects that the run of PATH does not change. */
static cr_status check_output(const struct cr_args *args, const struct cr_config *config) {
    const char *resume = args->value[CR_OPT_RESUME], *output = config->train.output;
    char        from[CR_PATH_MAX], path[CR_PATH_MAX];
    if (!resume || strcmp(resume, "auto") == 0 || !*output || cr_config_file(config, "train.output")) return CR_OK;
    if (!realpath(resume, from)) return CR_OK; /* the run reports this */
    CR_TRY(cr_path_join(path, from, "state.safetensors"));
    char *slash = cr_fs_is_file(path) ? strrchr(from, '/') : NULL; /* a checkpoint in a run folder */
    if (slash) *slash = 0;
    if (cr_fs_is_same(from, output)) return CR_OK;
    return cr_args_fail(args,
                        "--resume %s continues in the run folder %s, not in %s: leave -o (train.output) out, or copy "
                        "the run with cp -a and give --resume auto",
                        resume, from, output);
}

/* Runs the training. The run applies the overrides of the command line to the files of its configuration; --gpus adds
 * one. */
static cr_status train(const struct cr_args *args, const struct cr_config *config, struct cr_ranks *ranks,
                       int *signal_taken) {
    const char **override = cr_alloc((size_t)args->overrides + 1, sizeof *override);
    if (!override) return CR_NO_MEMORY(((size_t)args->overrides + 1) * sizeof *override);
    if (args->overrides) memcpy(override, args->override, (size_t)args->overrides * sizeof *override);
    override[args->overrides] = "train.device=cuda";

    struct cr_train_options options = {.resume         = args->value[CR_OPT_RESUME],
                                       .force          = cr_args_has(args, CR_OPT_FORCE),
                                       .overrides      = override,
                                       .override_count = args->overrides + cr_args_has(args, CR_OPT_GPUS),
                                       .comm           = ranks->comm};
    cr_status               status  = cr_train(config, &options, signal_taken);
    cr_free(override);
    return status;
}

cr_status cr_cmd_train(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config *config;
    struct cr_ranks         ranks;
    CR_TRY(cr_args_max_operands(args, 1));
    if (cr_args_has(args, CR_OPT_FORCE) && !cr_args_has(args, CR_OPT_RESUME))
        return cr_args_fail(args, "--force needs --resume auto or --resume PATH: it resumes a run whose model or data "
                                  "changed, and overwrites nothing");
    if (args->operands && cr_fs_is_dir(args->operand[0]))
        return cr_args_fail(
            args,
            "%s: is a folder; training needs a configuration file (for a folder of images: cresnet finetune %s; to "
            "continue a run: cresnet train --resume %s)",
            args->operand[0], args->operand[0], args->operand[0]);
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status = check_output(args, config);
    if (status != CR_OK) goto end;
    status = cr_cmd_ranks_open(args, &config, &ranks);
    if (ranks.parent)
        out->signal = ranks.signal;
    else if (status == CR_OK)
        status = cr_ranks_close(&ranks, train(args, config, &ranks, &out->signal));
end:
    cr_config_close(config);
    return status;
}

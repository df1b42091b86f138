/* cli/commands/train.c: cresnet train. The work is cr_train's. */
#include "cli/command.h"
#include "core/files.h"
#include "session/session.h"

#include <string.h>

/* The run reads its configuration again, with the command line's overrides; --gpus is one more. */
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

cr_status cr_cmd_train(const struct cr_args *args, int *signal_taken) {
    struct cr_config config;
    struct cr_ranks  ranks;
    CR_TRY(cr_args_most(args, 1));
    if (args->operands && cr_fs_is_dir(args->operand[0]))
        return cr_args_fail(
            args,
            "%s: is a folder; training takes a configuration file (for a folder of pictures: cresnet train "
            "finetune-folder.ini data.root=%s; to go on with a run: cresnet train CONFIG --resume %s)",
            args->operand[0], args->operand[0], args->operand[0]);
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status = cr_cmd_ranks_open(args, &config, &ranks);
    if (ranks.parent)
        *signal_taken = ranks.signal;
    else if (status == CR_OK)
        status = cr_ranks_close(&ranks, train(args, &config, &ranks, signal_taken));
    cr_config_close(&config);
    return status;
}

/* cmd_export.c: cresnet export: the weights of a run as one file for other programs. */
#include "cmd.h"

#include "checkpoint.h"

cr_status cr_cmd_export(const struct cr_args *args, int *signal_taken) {
    const char *file = args->value[CR_OPT_EXPORT_FILE];
    char       *path = NULL;
    (void)signal_taken;
    if (!args->operands) return cr_args_fail(args, "which weights? Give a run folder, or a safetensors file");
    CR_TRY(cr_args_most(args, 1));
    if (!file) return cr_args_fail(args, "where to? Give -o FILE, which is not there yet");
    CR_TRY(cr_ckpt_model_path(args->operand[0], &path));
    cr_status status = cr_ckpt_export_dense(path, file);
    cr_free(path);
    CR_TRY(status);
    cr_log(CR_LOG_INFO, "exported to %s", file);
    return CR_OK;
}

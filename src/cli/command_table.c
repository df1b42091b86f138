/* cli/command_table.c: the function of each command, for main. Commands do not use this table: their descriptions are
 * in cli/common/command_help.c. */
#include "cli/common/command.h"

static cr_command_fn *const functions[CR_CMD_COUNT] = {
    [CR_CMD_LR_FIND] = cr_cmd_lr_find,    [CR_CMD_FINETUNE] = cr_cmd_finetune, [CR_CMD_TRAIN] = cr_cmd_train,
    [CR_CMD_EVAL] = cr_cmd_eval,          [CR_CMD_PREDICT] = cr_cmd_predict,   [CR_CMD_EXPLAIN] = cr_cmd_explain,
    [CR_CMD_REPORT] = cr_cmd_report,      [CR_CMD_PLAN] = cr_cmd_plan,         [CR_CMD_CHECK] = cr_cmd_check,
    [CR_CMD_BENCH] = cr_cmd_bench,        [CR_CMD_PROFILE] = cr_cmd_profile,   [CR_CMD_PRUNE] = cr_cmd_prune,
    [CR_CMD_QUANTIZE] = cr_cmd_quantize,  [CR_CMD_EXPORT] = cr_cmd_export,     [CR_CMD_DATA] = cr_cmd_data,
    [CR_CMD_CONFIG] = cr_cmd_config_copy, [CR_CMD_HELP] = cr_cmd_help,         [CR_CMD_SWEEP] = cr_cmd_sweep,
    [CR_CMD_COMPRESS] = cr_cmd_compress,  [CR_CMD_FEATURES] = cr_cmd_features,
};

cr_status cr_command_run(const struct cr_args *args, int *signal_taken) {
    struct cr_result result = {0};
    cr_status        status = functions[args->command](args, &result);
    if (status == CR_OK) status = cr_cmd_print(&result.text);
    cr_text_free(&result.text);
    *signal_taken = result.signal;
    return status;
}

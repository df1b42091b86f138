/* cli/command_table.c: the function of each command, for main. Commands do not use this table: their descriptions are
 * in cli/common/command_help.c. */
#include "cli/common/command.h"

#define COMMAND(id, function, ...) cr_cmd_##function,
static cr_command_fn *const functions[] = {
#include "cli/common/commands.def"
};
#undef COMMAND

cr_status cr_command_run(const struct cr_args *args, int *signal_taken) {
    struct cr_result result = {0};
    cr_status        status = functions[args->command](args, &result);
    if (status == CR_OK) status = cr_cmd_print(&result.text);
    cr_text_free(&result.text);
    *signal_taken = result.signal;
    return status;
}

/* cli/common/new_run.c: the run folder that prune and quantize write: see cli/common/command.h. */
#include "checkpoint/checkpoint.h"
#include "cli/common/command.h"

#include <unistd.h>

cr_status cr_cmd_check_new_run(const char *folder) {
    if (!cr_ckpt_dir_in_use(folder)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s is not empty: choose another folder with -o", folder);
}

cr_status cr_cmd_write_new_run(const char *folder, const struct cr_config                    *config,
                               cr_status (*write)(void *self, const char *config_text), void *self) {
    struct cr_text text = {0};
    const bool     made = !cr_fs_is_dir(folder);
    int            lock = -1;
    cr_status      status;
    cr_config_dump_for_run(config, &text);
    if (text.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing the configuration");
    CR_TRY_OUT(cr_ckpt_prepare_dir(folder));
    CR_TRY_OUT(cr_ckpt_lock(folder, &lock));
    CR_TRY_OUT(cr_cmd_check_new_run(folder)); /* again: another process may have written there meanwhile */
    cr_ckpt_sweep(folder);
    CR_TRY_OUT(write(self, text.data));
out:
    if (status != CR_OK && made && lock >= 0) cr_ckpt_remove_empty(folder);
    if (lock >= 0) close(lock);
    cr_text_free(&text);
    return status;
}

/* cli/common/installed.c: finds the configurations that are installed with the program, relative to the folder of the
 * program. No absolute path is compiled in, so an unpacked archive, a package and `cmake --install` into any folder
 * work. */
#include "cli/common/command.h"
#include "core/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef CR_DATA_FROM_BIN /* set by CMake: path from the folder of programs to the folder of data */
#define CR_DATA_FROM_BIN "../share"
#endif

/* Stores the folder of the running program; false when the system does not provide it. */
static bool program_folder(char out[CR_PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", out, CR_PATH_MAX - 1);
    if (length <= 0) return false;
    out[length] = 0;
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    *slash = 0;
    return true;
}

cr_status cr_cmd_installed_configs(char out[CR_PATH_MAX]) {
    char folder[CR_PATH_MAX];
    if (!program_folder(folder))
        return CR_FAIL(CR_ERR_IO, "the system does not say where this program is: is /proc mounted?");
    CR_TRY(cr_path_join(out, folder, "%s", CR_DATA_FROM_BIN "/cresnet/configs"));
    if (cr_fs_is_dir(out)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG,
                   "no configurations are installed with this program: there is no folder %s; those of the source tree "
                   "are in its folder configs",
                   out);
}

cr_status cr_cmd_installed_config(const char *name, char out[CR_PATH_MAX]) {
    static const char prefix[] = "configs/";
    char              folder[CR_PATH_MAX], path[CR_PATH_MAX];
    *out = 0;
    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    if (!*name || strchr(name, '/') || !program_folder(folder)) return CR_OK;
    CR_TRY(cr_path_join(path, folder, "%s/cresnet/configs/%s", CR_DATA_FROM_BIN, name));
    if (cr_fs_is_file(path) && !realpath(path, out)) strcpy(out, path);
    return CR_OK;
}

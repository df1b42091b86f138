/* config/loader.h: the state of a config while its INI files are read, with includes. Internal to config/. */
#ifndef CR_CONFIG_LOADER_H
#define CR_CONFIG_LOADER_H

#include "config/keys.h"

enum { CR_INCLUDE_DEPTH_MAX = 8 };

struct cr_config_loader {
    struct cr_config     *config;
    struct cr_config_src *src; /* config->src */
    struct cr_arena      *arena;
    struct cr_complaints  complaints;
    struct cr_ini        *file; /* [CR_INCLUDE_DEPTH_MAX]: file[i + 1] is included by file[i] */
    int                   files;
};

/* config/files.c: `text`, or the path in the user's home folder that "~/" begins: a shell does not replace the ~ of
 * data.root=~/photos. Texts of a run's own configuration stay as they are. NULL when out of memory. */
const char *cr_config_home_path(struct cr_config_loader *loader, const char *text);

/* config/files.c: reads `path` and the files that it includes into loader->file, which the config keeps. */
CR_MUST cr_status cr_config_files_read(struct cr_config_loader *loader, const char *path);

#endif

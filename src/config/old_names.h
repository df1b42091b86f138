/* config/old_names.h: names of older versions that this version no longer has: keys of the configuration, values of
 * keys, and kernels.
 *
 * A configuration that the user gives must have today's names: an old name is an error that says what to write. The
 * configuration and the kernel times of a run folder were written by the program, so a run folder of an older version
 * is read with its old names. Both use the same table (config/old_names.c).
 *
 * Internal to config/, except for cr_old_kernel_now. */
#ifndef CR_CONFIG_OLD_NAMES_H
#define CR_CONFIG_OLD_NAMES_H

#include "core/base.h"

struct cr_old_name {
    const char *section, *key;
    const char *value;           /* the old value; NULL: the key itself is old, whatever its value */
    const char *instead_section; /* key to write instead; NULL: no key has replaced this one */
    const char *instead_key;
    const char *instead_value; /* NULL: the value stays */
    const char *advice;        /* for a key that nothing has replaced: what to do now */
};

/* The entry of a key and value that this version does not accept; NULL when no older version accepted them either. */
const struct cr_old_name *cr_old_name_find(const char *section, const char *key, const char *value);
/* Writes what the user should write instead, the end of an error message. */
void cr_old_name_explain(const struct cr_old_name *old, char *out, size_t bytes);
/* The present name of a kernel that an older version stored as `name`; `name` itself when it was not renamed. */
const char *cr_old_kernel_now(const char *name);

#endif

/* data/source/pack_map.h: a packed file or an archive, mapped into memory. Private to data/source/. */
#ifndef CR_PACK_MAP_H
#define CR_PACK_MAP_H

#include "core/base.h"

#include <stdatomic.h>

struct cr_pack_map {
    const uint8_t *bytes; /* NULL for an empty file */
    size_t         count;
    int            fd;
    atomic_bool    cut; /* lost pages were replaced by zeros */
};
/* The caller closes *out with cr_pack_map_close. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_pack_map_open(const char *path, struct cr_pack_map **out);
/* Was the file shortened since it was opened? What was read since then may have been zeros. */
bool cr_pack_map_is_cut(const struct cr_pack_map *map);
/* The bytes at `offset`. Those that are not in memory are requested at once: page faults would request too few or too
 * many pages. */
const uint8_t *cr_pack_map_at(const struct cr_pack_map *map, uint64_t offset, size_t count);
void           cr_pack_map_close(struct cr_pack_map *map); /* NULL is allowed */

#endif

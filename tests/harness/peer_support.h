/* tests/harness/peer_support.h: what the tests beside Python's packages share: the folder in the build where the peers
 * of tools/ leave their files. */
#ifndef CR_TEST_PEER_SUPPORT_H
#define CR_TEST_PEER_SUPPORT_H

#include "tests/harness/test.h"

static char folder[256];

/* The first `bytes` bytes of folder/name.suffix; false: there are not so many. */
static inline bool read_file(const char *name, const char *suffix, void *dst, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, suffix);
    FILE  *f    = fopen(path, "rb");
    size_t read = f ? fread(dst, 1, bytes, f) : 0;
    if (f) fclose(f);
    return read == bytes;
}

#endif

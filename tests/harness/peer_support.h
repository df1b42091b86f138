/* tests/harness/peer_support.h: reads the files that the comparison tools of tools/ leave in the build folder. */
#ifndef CR_TEST_PEER_SUPPORT_H
#define CR_TEST_PEER_SUPPORT_H

#include "tests/harness/test.h"

static char folder[256];

/* Reads the first `bytes` bytes of folder/name.suffix; false when the file is shorter. */
static inline bool read_file(const char *name, const char *suffix, void *dst, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, suffix);
    FILE  *f    = fopen(path, "rb");
    size_t read = f ? fread(dst, 1, bytes, f) : 0;
    if (f) fclose(f);
    return read == bytes;
}

#endif

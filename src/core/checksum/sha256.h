/* core/checksum/sha256.h: the hash SHA-256 (FIPS 180-4), for files that are compared with a published hash. */
#ifndef CR_SHA256_H
#define CR_SHA256_H

#include "core/base.h"

enum { CR_SHA256_BYTES = 32 };

struct cr_sha256 {
    uint32_t      state[8];
    uint64_t      length; /* bytes so far */
    unsigned char block[64];
};
void cr_sha256_start(struct cr_sha256 *s);
void cr_sha256_add(struct cr_sha256 *s, const void *bytes, size_t count);
/* Writes the hash as 64 hexadecimal digits. */
void cr_sha256_hex(struct cr_sha256 *s, char out[2 * CR_SHA256_BYTES + 1]);
/* The same for the content of an open file, from its begin. `path` is for messages. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_sha256_file(int fd, const char *path, char out[2 * CR_SHA256_BYTES + 1]);

#endif

/* core/checksum/crc32c.h: CRC-32C (Castagnoli), the checksum of packed datasets, checkpoints and TensorBoard files. */
#ifndef CR_CRC32C_H
#define CR_CRC32C_H

#include "core/base.h"

enum { CR_CRC32C_DIGITS = 8 }; /* of a sum in a text, as "%08x" writes it */

/* CRC-32C of the bytes, continued from `crc`; the first call passes 0. */
uint32_t cr_crc32c(uint32_t crc, const void *bytes, size_t count);
uint32_t cr_crc32c_plain(uint32_t crc, const void *bytes, size_t count); /* the same without special instructions */
/* Reads CR_CRC32C_DIGITS digits; what follows does not matter. False when "%08x" would not write them like this. */
bool cr_crc32c_parse(const char *text, uint32_t *out);

#endif

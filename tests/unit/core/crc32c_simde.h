/* tests/unit/core/crc32c_simde.h: see crc32c_simde.c. */
#ifndef CRC32C_SIMDE_H
#define CRC32C_SIMDE_H

#include "core/checksum/crc32c.h"

bool     crc32c_has_simde(void); /* false: libsimde-dev is not installed, or this is not x86-64 */
bool     simde_has_avx512(void);
uint32_t simde_crc32c_avx512(uint32_t crc, const uint8_t *bytes, size_t blocks);

#endif

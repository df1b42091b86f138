/* data/source/hash.c: hashes of file names and of dataset contents. */
#include "core/checksum/crc32c.h"
#include "data/pack.h"
#include "data/source.h"

uint64_t cr_hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ b[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The high bits of FNV are weak for short names; this function spreads every input bit over all output bits. */
uint64_t cr_hash_mix(uint64_t hash) {
    hash ^= hash >> 33;
    hash *= UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 33;
    hash *= UINT64_C(0xc4ceb9fe1a85ec53);
    return hash ^ hash >> 33;
}

/* CRC-32C reads 8 bytes at a time; FNV reads one. */
uint64_t cr_hash_sample(uint64_t size, int32_t label, const void *head, size_t count) {
    const uint64_t hash = cr_hash_mix(size ^ (uint64_t)(uint32_t)label << 32);
    const uint64_t all  = cr_hash_mix(hash ^ cr_crc32c(0, head, count));
    return all ? all : 1;
}

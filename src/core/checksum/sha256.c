/* core/checksum/sha256.c: the hash SHA-256, with the names of FIPS 180-4; see core/checksum/sha256.h. */
#include "core/checksum/sha256.h"

#include "core/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20 };

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
                    h = state[7];
    for (int i = 0; i < 16; i++, block += 4)
        w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
    for (int i = 16; i < 64; i++) {
        const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;

        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    for (int i = 0; i < 64; i++) {
        const uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));

        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t out[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += out[i];
}

void cr_sha256_start(struct cr_sha256 *s) {
    *s = (struct cr_sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void cr_sha256_add(struct cr_sha256 *s, const void *bytes, size_t count) {
    const unsigned char *from = bytes;
    while (count) {
        const size_t used = (size_t)(s->length % 64), now = CR_MIN(count, 64 - used);
        if (!used && count >= 64) {
            compress(s->state, from);
        } else {
            memcpy(s->block + used, from, now);
            if (used + now == 64) compress(s->state, s->block);
        }
        s->length += now;
        from += now;
        count -= now;
    }
}

void cr_sha256_hex(struct cr_sha256 *s, char out[2 * CR_SHA256_BYTES + 1]) {
    const uint64_t      bits    = s->length * 8;
    const unsigned char pad[64] = {0x80};
    unsigned char       length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    cr_sha256_add(s, pad, 1 + (119 - (size_t)(s->length % 64)) % 64);
    cr_sha256_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", (unsigned)s->state[i]);
}

cr_status cr_sha256_file(int fd, const char *path, char out[2 * CR_SHA256_BYTES + 1]) {
    struct cr_sha256 s;
    char            *chunk = cr_alloc(CHUNK_BYTES, 1);
    ssize_t          got;
    off_t            at = 0;
    if (!chunk) return CR_NO_MEMORY(CHUNK_BYTES);
    cr_sha256_start(&s);
    do {
        got = pread(fd, chunk, CHUNK_BYTES, at);
        if (got > 0) cr_sha256_add(&s, chunk, (size_t)got);
        if (got > 0) at += got;
    } while (got > 0 || (got < 0 && errno == EINTR));
    const int error = errno;
    cr_free(chunk);
    if (got < 0) return cr_fs_refused(path, "read", error);
    cr_sha256_hex(&s, out);
    return CR_OK;
}

/* tests/fuzz/fuzz_tar.c: reads any bytes as a tar archive of samples: listing them may refuse the archive, but what is
 * listed must be valid: each image lies inside the archive, names are sorted and different, labels are texts. Checksums
 * of headers stop mutations, so the same bytes are read again with correct checksums. */
#include "data/source/tar/tar.h"
#include "tests/fuzz/memory_file.h"

#include <string.h>

static void check_samples(const struct cr_tar_shard *shard, bool several) {
    static struct cr_tar_sample sample;
    char                        before[PATH_MAX] = "";
    int64_t                     count            = 0;
    struct cr_list_reader       list             = shard->list;
    for (sample.name[0] = 0; list.at < list.end; count++) {
        CR_ASSERT(cr_tar_take_sample(shard, &list, &sample) == CR_OK);
        CR_ASSERT(sample.offset <= shard->bytes && sample.bytes <= shard->bytes - sample.offset);
        CR_ASSERT(strcmp(before, sample.name) < 0);
        CR_ASSERT(several || (*sample.label && !strchr(sample.label, '\n')));
        memcpy(before, sample.name, sizeof before);
    }
    CR_ASSERT(count == shard->samples);
}

static void try_bytes(const uint8_t *bytes, size_t count, bool several) {
    static const char          *labels[] = {"first", "second"};
    const struct cr_tar_options options  = {several ? "label" : "", several, {.label = labels, .count = 2}};
    char                        path[64];
    const int64_t               live   = cr_alloc_live();
    const int                   fd     = memory_file(bytes, count, path);
    struct cr_tar_shard         shard  = {.path = path, .bytes = count};
    const cr_status             status = cr_tar_index_shard(&shard, &options);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status == CR_OK)
        check_samples(&shard, several);
    else
        CR_ASSERT(strstr(cr_error_message(), path));
    cr_error_clear();
    cr_text_free(&shard.block);
    CR_ASSERT(cr_alloc_live() == live);
    close(fd);
}

/* A header is mended where its magic word stands. */
static void mend(uint8_t *bytes, size_t count) {
    for (size_t at = 0; at + CR_TAR_BLOCK <= count; at += CR_TAR_BLOCK) {
        uint8_t *b   = bytes + at;
        uint32_t sum = 0;
        if (memcmp(b + 257, "ustar", 5) != 0) continue;
        memset(b + 148, ' ', 8);
        for (int i = 0; i < CR_TAR_BLOCK; i++) sum += b[i];
        for (int i = 5; i >= 0; i--, sum >>= 3) b[148 + i] = (uint8_t)('0' + (sum & 7));
        b[154] = 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    uint8_t *mended = cr_alloc(count, 1);
    CR_ASSERT(mended);
    memcpy(mended, bytes, count);
    try_bytes(bytes, count, false);
    mend(mended, count);
    try_bytes(mended, count, false);
    try_bytes(mended, count, true);
    cr_free(mended);
    return 0;
}

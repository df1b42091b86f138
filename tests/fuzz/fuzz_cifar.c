/* tests/fuzz/fuzz_cifar.c: reads CIFAR records of both forms: the first byte chooses the form, the other bytes are
 * records. Accepted records have labels in range and every pixel in its place. */
#include "data/source.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    uint8_t pixels[RECORDS_MAX * CR_CIFAR_PIXEL_BYTES];
    int32_t labels[RECORDS_MAX];
    if (count < 1) return 0;
    int    label_bytes = bytes[0] & 1 ? 2 : 1, limit = label_bytes == 1 ? 10 : 100;
    size_t record = (size_t)label_bytes + CR_CIFAR_PIXEL_BYTES, records = (count - 1) / record;
    if (records > RECORDS_MAX) return 0;
    if (cr_cifar_parse(bytes + 1, count - 1, label_bytes, "fuzz.bin", 0, pixels, labels) != CR_OK) return 0;
    CR_ASSERT((count - 1) % record == 0);
    for (size_t i = 0; i < records; i++) {
        const uint8_t *channel = bytes + 1 + i * record + label_bytes;
        CR_ASSERT(labels[i] >= 0 && labels[i] < limit);
        for (size_t p = 0; p < 1024; p++)
            for (size_t c = 0; c < 3; c++)
                CR_ASSERT(pixels[i * CR_CIFAR_PIXEL_BYTES + 3 * p + c] == channel[c * 1024 + p]);
    }
    return 0;
}

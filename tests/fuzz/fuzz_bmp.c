/* tests/fuzz/fuzz_bmp.c: reads any bytes as a BMP: an image or a clean refusal. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    if (cr_bmp_magic(bytes, count)) fuzz_image(bytes, count, "fuzz.bmp");
    return 0;
}

/* tests/fuzz/fuzz_tiff.c: reads any bytes as a TIFF: an image or a clean refusal, and a number of pages. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    if (!cr_tiff_magic(bytes, count)) return 0;
    CR_ASSERT(cr_tiff_pages(bytes, count) >= 1);
    fuzz_image(bytes, count, "fuzz.tif");
    return 0;
}

/* tests/fuzz/fuzz_webp.c: reads any chunks after WebP's head: an image or a clean refusal. The length in the head
 * is set to that of the input. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image_file.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    enum { HEAD = 12 };
    uint8_t     *file  = malloc(count + HEAD);
    const size_t whole = count + 4;
    if (!file) return 0;
    memcpy(file, "RIFF....WEBP", HEAD);
    for (int k = 0; k < 4; k++) file[4 + k] = (uint8_t)(whole >> 8 * k);
    memcpy(file + HEAD, bytes, count);
    fuzz_image(file, count + HEAD, "fuzz.webp");
    free(file);
    return 0;
}

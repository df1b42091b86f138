/* Any bytes behind JPEG's magic: a picture or a clean refusal; what is decoded is prepared for evaluation too. */
#include "data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    static const struct cr_prepare prep = {.size = 9, .eval_resize = 11};
    struct cr_image                image;
    if (count < 2 || bytes[0] != 0xff || bytes[1] != 0xd8) return 0;
    int64_t live = cr_alloc_live();
    if (cr_image_decode(bytes, count, "fuzz.jpg", &image) == CR_OK) {
        uint8_t small[9 * 9 * 3];
        CR_ASSERT(cr_prepare_eval(&prep, &image, small) == CR_OK);
        cr_image_free(&image);
    }
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

/* data/image/buffer.c: functions that all decoders share: buffers that grow, and the limits of an image. */
#include "data/decode.h"
#include "data/scratch.h"

cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count) {
    if (count <= buffer->capacity && buffer->bytes) return CR_OK;
    size_t capacity =
        buffer->capacity ? count + count / 4 : count; /* a buffer that grows a second time will probably grow again */
    cr_free(buffer->bytes);
    buffer->capacity = 0;
    buffer->bytes    = cr_alloc(capacity, 1);
    if (!buffer->bytes) return CR_NO_MEMORY(capacity);
    buffer->capacity = capacity;
    return CR_OK;
}

cr_status cr_image_check_size(int64_t width, int64_t height, const char *name) {
    if (width < 1 || height < 1) return CR_FAIL(CR_ERR_FORMAT, "%s: an image without pixels", name);
    if (width > CR_IMAGE_SIDE_MAX || height > CR_IMAGE_SIDE_MAX || width * height > CR_IMAGE_PIXELS_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: %lld x %lld pixels are too many: at most %d per side and %d in total", name,
                       (long long)width, (long long)height, CR_IMAGE_SIDE_MAX, CR_IMAGE_PIXELS_MAX);
    return CR_OK;
}

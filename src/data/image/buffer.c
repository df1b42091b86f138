/* data/image/buffer.c: functions that all decoders share: buffers that grow, and the limits of an image. */
#include "data/decode.h"
#include "data/scratch.h"

#include <pthread.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

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

/* Memory for an image, at most: MEMORY_MAX, or MEMORY_PER_FILE_BYTE for each byte of its file. */
enum { MEMORY_MAX = 256 << 20, MEMORY_SHARED = 32 << 20, MEMORY_PER_FILE_BYTE = 256 };

static pthread_mutex_t                        turn = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local const struct cr_scratch *holder; /* with which this thread has the turn */

static void take_turn(const struct cr_scratch *scratch) {
    CR_ASSERT(!holder);
    pthread_mutex_lock(&turn);
    holder = scratch;
}

void cr_image_abandon_turn(void) {
    if (holder) pthread_mutex_unlock(&turn);
    holder = NULL;
}

static void drop(struct cr_buffer *buffer) {
    cr_free(buffer->bytes);
    *buffer = (struct cr_buffer){0};
}

void cr_scratch_release(struct cr_scratch *scratch) {
    if (holder != scratch) return;
    drop(&scratch->pixels);
    drop(&scratch->oriented);
    drop(&scratch->planes);
#ifdef __GLIBC__
    malloc_trim(0); /* otherwise glibc keeps up to 64 MiB of a decoder's memory for each thread */
#endif
    cr_image_abandon_turn();
}

cr_status cr_image_check_sides(const struct cr_stored *stored, int64_t width, int64_t height, const char *name) {
    const int64_t allowed = stored->max_pixels ? stored->max_pixels : CR_IMAGE_PIXELS_MAX;
    if (width < 1 || height < 1) return CR_FAIL(CR_ERR_FORMAT, "%s: an image without pixels", name);
    if (width > CR_IMAGE_SIDE_MAX || height > CR_IMAGE_SIDE_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %lld x %lld pixels; at most %d per side can be read", name,
                       (long long)width, (long long)height, CR_IMAGE_SIDE_MAX);
    if (width * height > allowed)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %lld x %lld = %lld pixels; data.max_pixels allows %lld", name,
                       (long long)width, (long long)height, (long long)(width * height), (long long)allowed);
    return CR_OK;
}

cr_status cr_image_admit(const struct cr_stored *stored, int64_t width, int64_t height, enum cr_pixel_format decoded,
                         size_t work_bytes, const char *name, struct cr_scratch *scratch) {
    CR_TRY(cr_image_check_sides(stored, width, height, name));
    const size_t pixels = (size_t)(width * height), converted = pixels * cr_format_bytes(stored->format);
    const size_t free_bytes = stored->count * MEMORY_PER_FILE_BYTE;
    size_t       bytes      = pixels * cr_format_bytes(decoded) + work_bytes;
    if (decoded != stored->format) bytes += converted;
    if (bytes + converted <= CR_MAX(free_bytes, (size_t)MEMORY_SHARED)) return CR_OK; /* whatever its orientation is */
    if (stored->exif && cr_exif_orientation(stored->bytes, stored->count) != 1) bytes += converted;
    if (bytes <= CR_MAX(free_bytes, (size_t)MEMORY_SHARED)) return CR_OK;
    if (bytes > MEMORY_MAX)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: a file of %zu bytes with %lld x %lld pixels, which takes %zu MiB to decode; files may take "
                       "%d MiB, or %d bytes for each of their bytes: reduce the image",
                       name, stored->count, (long long)width, (long long)height, bytes >> 20, MEMORY_MAX >> 20,
                       MEMORY_PER_FILE_BYTE);
    take_turn(scratch);
    return CR_OK;
}

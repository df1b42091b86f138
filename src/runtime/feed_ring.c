/* runtime/feed_ring.c: copies batches (images) to a GPU while it works, from page-locked (pinned) memory.
 *
 * A slot has page-locked host memory. The host fills one slot while the batch of the other slot is copied. Images that
 * are in page-locked memory already, as those of the loader in training, are copied from there.
 * Images go directly to the INPUT region, whose address the captured graph contains, as soon as the run before has read
 * its images. A run reads its images at the beginning, so the copy overlaps with the run, and the device holds the
 * images only once. Labels, boxes and mixes are read later in a run. They are copied to a small buffer on the device,
 * and the compute stream moves them to the INPUT region. */
#include "device/jpeg_decoder.h"
#include "runtime/executor.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { SLOTS = 2, PIECE_BYTES = 1 << 20, COPY_THREADS = 4 };

struct slot {
    void *images;  /* page-locked host memory: images that come from ordinary memory; NULL before the first */
    void *host;    /* page-locked host memory: labels, boxes, mixes */
    void *small;   /* device memory: labels, boxes, mixes; NULL when the programs have none */
    void *arrived; /* event: the copies to the device are done, so the host may fill the slot again */
    void *moved;   /* event: `small` has been moved to the INPUT region, so it may be overwritten */
};

struct cr_feed_ring {
    struct slot slot[SLOTS];
    void       *images_read; /* event: the latest run has read its images */
    size_t      image_bytes; /* of the latest batch; 0 before the first */
    size_t      room;        /* bytes of images that a slot may hold */
    int64_t     sent;        /* number of batches so far */
};

/* ---- host memory ---- */

static void copy_piece(unsigned char *to, const unsigned char *from, size_t bytes, size_t piece) {
    const size_t at = piece * PIECE_BYTES;
    memcpy(to + at, from + at, CR_MIN(bytes - at, (size_t)PIECE_BYTES));
}

void cr_feed_copy(void *to, const void *from, size_t bytes) {
    const int64_t pieces = (int64_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
#ifdef _OPENMP
    const int threads = pieces < COPY_THREADS ? 1 : CR_MIN(omp_get_max_threads(), COPY_THREADS);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (int64_t i = 0; i < pieces; i++) copy_piece(to, from, bytes, (size_t)i);
}

/* ---- slots ---- */

size_t cr_feed_small_bytes(const struct cr_program *p) {
    if (p->images == CR_NONE || p->tensors == 0) return 0;
    const struct cr_tensor *images = &p->tensor[p->images];
    CR_ASSERT(images->offset == 0);
    return p->region_bytes[CR_REGION_INPUT] - images->bytes;
}

size_t cr_feed_need(const struct cr_device *device, size_t small_bytes) {
    return device->backend->async ? SLOTS * small_bytes : 0;
}

cr_status cr_feed_event(struct cr_device *device, void **event) {
    const struct cr_async *async = device->backend->async;
    return async->event_create_untimed ? async->event_create_untimed(device, event)
                                       : async->event_create(device, event);
}

static cr_status slot_open(struct cr_device *device, size_t small_bytes, struct slot *s) {
    const struct cr_async *async = device->backend->async;
    if (small_bytes) CR_TRY(async->host_reserve(device, small_bytes, &s->host));
    if (small_bytes) CR_TRY(device->backend->reserve(device, small_bytes, &s->small));
    CR_TRY(cr_feed_event(device, &s->arrived));
    return cr_feed_event(device, &s->moved);
}

cr_status cr_feed_open(struct cr_device *device, size_t bytes, size_t small_bytes, struct cr_feed_ring **out) {
    cr_status            status = CR_OK;
    struct cr_feed_ring *ring;
    *out = NULL;
    if (!device->backend->async) return CR_OK;
    CR_ALLOC(ring, 1);
    CR_TRY_OUT(cr_feed_event(device, &ring->images_read));
    for (int i = 0; i < SLOTS; i++) CR_TRY_OUT(slot_open(device, small_bytes, &ring->slot[i]));
    ring->room = bytes;
    *out       = ring;
    return CR_OK;
out:
    cr_feed_close(device, ring);
    return status;
}

void cr_feed_close(struct cr_device *device, struct cr_feed_ring *ring) {
    if (!ring) return;
    const struct cr_async *async = device->backend->async;
    async->event_destroy(device, ring->images_read);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &ring->slot[i];
        async->event_destroy(device, s->arrived);
        async->event_destroy(device, s->moved);
        if (s->small) device->backend->release(device, s->small);
        if (s->host) async->host_release(device, s->host);
        if (s->images) async->host_release(device, s->images);
    }
    cr_free(ring);
}

cr_status cr_feed_slot(struct cr_device *device, struct cr_feed_ring *ring, const void **images, size_t bytes,
                       void **host) {
    struct slot *s = &ring->slot[ring->sent % SLOTS];
    CR_TRY(device->backend->async->host_wait(device, s->arrived));
    *host = s->host;
    if (!images) return CR_OK;
    CR_ASSERT(bytes <= ring->room);
    if (!s->images) CR_TRY(device->backend->async->host_reserve(device, ring->room, &s->images));
    cr_feed_copy(s->images, *images, bytes);
    *images = s->images;
    return CR_OK;
}

/* Neighbouring places that come from the same memory are copied together. */
static cr_status send_images(struct cr_device *device, const struct cr_feed *feed, const unsigned char *images,
                             size_t bytes, unsigned char *input) {
    const struct cr_async *async = device->backend->async;
    if (!feed->decoder) return async->put(device, CR_STREAM_TO_DEVICE, input, images, bytes);
    const struct cr_jpeg_scan *scan = feed->scan;
    const size_t               each = bytes / (size_t)feed->places;
    for (int first = 0, next; first < feed->places; first = next) {
        const bool   here = scan[first].bytes != 0;
        const size_t at   = (size_t)first * each;
        for (next = first + 1; next < feed->places && (scan[next].bytes != 0) == here;) next++;
        CR_TRY(here ? device->backend->jpeg->copy(feed->decoder, CR_STREAM_TO_DEVICE, first, next - first, input + at)
                    : async->put(device, CR_STREAM_TO_DEVICE, input + at, images + at, (size_t)(next - first) * each));
    }
    return CR_OK;
}

cr_status cr_feed_send(struct cr_device *device, struct cr_feed_ring *ring, const struct cr_program *p,
                       const void *images, const struct cr_feed *feed, void *input) {
    const struct cr_async *async = device->backend->async;
    struct slot           *s     = &ring->slot[ring->sent++ % SLOTS];
    const size_t           small = cr_feed_small_bytes(p), image_bytes = p->region_bytes[CR_REGION_INPUT] - small;
    unsigned char         *small_input = (unsigned char *)input + image_bytes;
    /* Larger images (of another program) overlap the labels of the run before, which are read until its end. The copy
     * then waits for the whole run. */
    if (image_bytes > ring->image_bytes && ring->image_bytes)
        CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, ring->images_read));
    ring->image_bytes = image_bytes;
    CR_TRY(async->stream_wait_event(device, CR_STREAM_TO_DEVICE, ring->images_read));
    CR_TRY(send_images(device, feed, images, image_bytes, input));
    CR_TRY(async->stream_wait_event(device, CR_STREAM_TO_DEVICE, s->moved));
    if (small) CR_TRY(async->put(device, CR_STREAM_TO_DEVICE, s->small, s->host, small));
    CR_TRY(async->event_record(device, CR_STREAM_TO_DEVICE, s->arrived));
    CR_TRY(async->stream_wait_event(device, CR_STREAM_COMPUTE, s->arrived));
    if (small) CR_TRY(async->move(device, CR_STREAM_COMPUTE, small_input, s->small, small));
    return async->event_record(device, CR_STREAM_COMPUTE, s->moved);
}

cr_status cr_feed_consumed(struct cr_device *device, struct cr_feed_ring *ring) {
    return device->backend->async->event_record_external(device, CR_STREAM_COMPUTE, ring->images_read);
}

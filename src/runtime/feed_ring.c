/* runtime/feed_ring.c: how batches reach a device that works beside the host. A slot is a piece of page-locked host
 * memory, which the host fills while the batch before travels. Pictures go from there straight to the INPUT region,
 * whose address recordings know, as soon as the run before has read its own: that is at its beginning, so they come
 * beside the rest of it, and the device has them once. Labels, boxes and mixes, which runs read later, wait in a small
 * piece of device memory, and the compute lane moves them. */
#include "runtime/executor.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { SLOTS = 2, PIECE_BYTES = 1 << 20, COPY_THREADS = 4 };

struct slot {
    void *host, *small;
    void *arrived; /* the copies to the device are done: the host may fill the slot again */
    void *moved;   /* labels and boxes have left for the INPUT region: others may come */
};

struct cr_feed_ring {
    struct slot slot[SLOTS];
    void       *taken;    /* the latest run has read its pictures */
    size_t      pictures; /* bytes of the latest batch's; 0: none yet */
    int64_t     sent;
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

static cr_status slot_open(struct cr_device *device, size_t bytes, size_t small_bytes, struct slot *s) {
    const struct cr_async *async = device->backend->async;
    CR_TRY(async->host_reserve(device, bytes, &s->host));
    if (small_bytes) CR_TRY(device->backend->reserve(device, small_bytes, &s->small));
    CR_TRY(async->event_create(device, &s->arrived));
    return async->event_create(device, &s->moved);
}

cr_status cr_feed_open(struct cr_device *device, size_t bytes, size_t small_bytes, struct cr_feed_ring **out) {
    cr_status            status = CR_OK;
    struct cr_feed_ring *ring;
    *out = NULL;
    if (!device->backend->async) return CR_OK;
    CR_ALLOC(ring, 1);
    CR_TRY_OUT(device->backend->async->event_create(device, &ring->taken));
    for (int i = 0; i < SLOTS; i++) CR_TRY_OUT(slot_open(device, bytes, small_bytes, &ring->slot[i]));
    *out = ring;
    return CR_OK;
out:
    cr_feed_close(device, ring);
    return status;
}

void cr_feed_close(struct cr_device *device, struct cr_feed_ring *ring) {
    if (!ring) return;
    const struct cr_async *async = device->backend->async;
    async->event_destroy(device, ring->taken);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &ring->slot[i];
        async->event_destroy(device, s->arrived);
        async->event_destroy(device, s->moved);
        if (s->small) device->backend->release(device, s->small);
        if (s->host) async->host_release(device, s->host);
    }
    cr_free(ring);
}

cr_status cr_feed_slot(struct cr_device *device, struct cr_feed_ring *ring, void **host) {
    struct slot *s = &ring->slot[ring->sent % SLOTS];
    CR_TRY(device->backend->async->host_wait(device, s->arrived));
    *host = s->host;
    return CR_OK;
}

cr_status cr_feed_send(struct cr_device *device, struct cr_feed_ring *ring, const struct cr_program *p, void *input) {
    const struct cr_async *async = device->backend->async;
    struct slot           *s     = &ring->slot[ring->sent++ % SLOTS];
    const size_t           small = cr_feed_small_bytes(p), pictures = p->region_bytes[CR_REGION_INPUT] - small;
    unsigned char         *rest = (unsigned char *)input + pictures;
    /* Larger pictures, another program's, lie where the run before has its labels and reads them to its end: they wait
     * for all of it. */
    if (pictures > ring->pictures && ring->pictures)
        CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, ring->taken));
    ring->pictures = pictures;
    CR_TRY(async->stream_wait_event(device, CR_STREAM_TO_DEVICE, ring->taken));
    CR_TRY(async->put(device, CR_STREAM_TO_DEVICE, input, s->host, pictures));
    CR_TRY(async->stream_wait_event(device, CR_STREAM_TO_DEVICE, s->moved));
    if (small)
        CR_TRY(async->put(device, CR_STREAM_TO_DEVICE, s->small, (const unsigned char *)s->host + pictures, small));
    CR_TRY(async->event_record(device, CR_STREAM_TO_DEVICE, s->arrived));
    CR_TRY(async->stream_wait_event(device, CR_STREAM_COMPUTE, s->arrived));
    if (small) CR_TRY(async->move(device, CR_STREAM_COMPUTE, rest, s->small, small));
    return async->event_record(device, CR_STREAM_COMPUTE, s->moved);
}

cr_status cr_feed_consumed(struct cr_device *device, struct cr_feed_ring *ring) {
    return device->backend->async->event_record_external(device, CR_STREAM_COMPUTE, ring->taken);
}

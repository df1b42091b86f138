/* exec_feed.c: how batches reach a device that works beside the host. A slot is a piece of page-locked host memory and a piece
 * of device memory of the INPUT region's size. The host fills a slot, the TO_DEVICE lane copies it over while the compute lane
 * is still busy with the batch before, and the compute lane moves it to the INPUT region, whose address recordings know. That
 * move costs a thousandth of a step and saves a recording a slot. */
#include "exec.h"

enum { SLOTS = 2 };

struct slot {
    void *host, *device;
    void *arrived; /* the copy to the device is done: the host may fill the slot again */
    void *taken;   /* the move to INPUT is done: the device half may be overwritten */
};

struct cr_feed_ring {
    struct slot slot[SLOTS];
    int64_t     sent;
};

size_t cr_feed_need(const struct cr_device *device, size_t bytes) { return device->backend->async ? SLOTS * bytes : 0; }

static cr_status slot_open(struct cr_device *device, size_t bytes, struct slot *s) {
    const struct cr_async *async = device->backend->async;
    CR_TRY(async->host_reserve(device, bytes, &s->host));
    CR_TRY(device->backend->reserve(device, bytes, &s->device));
    CR_TRY(async->mark_open(device, &s->arrived));
    return async->mark_open(device, &s->taken);
}

cr_status cr_feed_open(struct cr_device *device, size_t bytes, struct cr_feed_ring **out) {
    cr_status            status = CR_OK;
    struct cr_feed_ring *ring;
    *out = NULL;
    if (!device->backend->async) return CR_OK;
    CR_ALLOC(ring, 1);
    for (int i = 0; i < SLOTS; i++) CR_TRY_OUT(slot_open(device, bytes, &ring->slot[i]));
    *out = ring;
    return CR_OK;
out:
    cr_feed_close(device, ring);
    return status;
}

void cr_feed_close(struct cr_device *device, struct cr_feed_ring *ring) {
    if (!ring) return;
    const struct cr_async *async = device->backend->async;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &ring->slot[i];
        async->mark_close(device, s->arrived);
        async->mark_close(device, s->taken);
        if (s->device) device->backend->release(device, s->device);
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

cr_status cr_feed_send(struct cr_device *device, struct cr_feed_ring *ring, void *input, size_t bytes) {
    const struct cr_async *async = device->backend->async;
    struct slot           *s     = &ring->slot[ring->sent++ % SLOTS];
    CR_TRY(async->lane_wait(device, CR_LANE_TO_DEVICE, s->taken));
    CR_TRY(async->put(device, CR_LANE_TO_DEVICE, s->device, s->host, bytes));
    CR_TRY(async->mark_set(device, CR_LANE_TO_DEVICE, s->arrived));
    CR_TRY(async->lane_wait(device, CR_LANE_COMPUTE, s->arrived));
    CR_TRY(async->move(device, CR_LANE_COMPUTE, input, s->device, bytes));
    return async->mark_set(device, CR_LANE_COMPUTE, s->taken);
}

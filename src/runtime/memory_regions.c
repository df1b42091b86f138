/* runtime/memory_regions.c: allocates the memory regions that all programs of a process share. */
#include "runtime/executor.h"

#include <string.h>

/* ---- memory ---- */

/* Bytes of each region: the maximum over the programs. Regions other than HOST have at least 256 bytes, because a
 * kernel may receive their address. */
static void region_sizes(const struct cr_param_store *store, const struct cr_program *const *programs, int count,
                         size_t bytes[CR_REGIONS]) {
    memset(bytes, 0, CR_REGIONS * sizeof *bytes);
    bytes[CR_REGION_STORE] = cr_param_store_bytes(store);
    for (int i = 0; i < count; i++)
        for (int r = CR_REGION_POOL; r < CR_REGIONS; r++) bytes[r] = CR_MAX(bytes[r], programs[i]->region_bytes[r]);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) bytes[r] = CR_MAX(bytes[r], (size_t)256);
}

static size_t small_bytes(const struct cr_program *const *programs, int count) {
    size_t max = 0;
    for (int i = 0; i < count; i++) max = CR_MAX(max, cr_feed_small_bytes(programs[i]));
    return max;
}

size_t cr_memory_need(const struct cr_device *device, const struct cr_param_store *store,
                      const struct cr_program *const *programs, int count) {
    size_t bytes[CR_REGIONS], sum = 0;
    region_sizes(store, programs, count, bytes);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) sum += bytes[r];
    sum += (size_t)((double)bytes[CR_REGION_HOST] * device->caps.host_memory_overhead);
    return sum + cr_feed_need(device, small_bytes(programs, count));
}

/* The HOST region is page-locked host memory on a device with async, else ordinary device memory. */
static cr_status reserve_host(struct cr_memory *m) {
    const struct cr_async *async = m->device->backend->async;
    const size_t           bytes = m->bytes[CR_REGION_HOST];
    if (!bytes) return CR_OK;
    if (!async) return m->device->backend->reserve(m->device, bytes, &m->region[CR_REGION_HOST]);
    const cr_status status = async->host_reserve(m->device, bytes, &m->region[CR_REGION_HOST]);
    return status != CR_ERR_MEMORY
               ? status
               : CR_FAIL(status, "the host cannot provide %.0f MiB of page-locked memory for offloaded tensors",
                         (double)bytes / (1 << 20));
}

static void release_host(struct cr_memory *m) {
    const struct cr_async *async = m->device->backend->async;
    if (!m->region[CR_REGION_HOST]) return;
    if (async)
        async->host_release(m->device, m->region[CR_REGION_HOST]);
    else
        m->device->backend->release(m->device, m->region[CR_REGION_HOST]);
}

cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_param_store *store,
                         const struct cr_program *const *programs, int count) {
    struct cr_memory m      = {.device = device};
    cr_status        status = CR_OK;
    region_sizes(store, programs, count, m.bytes);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) CR_TRY_OUT(device->backend->reserve(device, m.bytes[r], &m.region[r]));
    CR_TRY_OUT(reserve_host(&m));
    CR_TRY_OUT(cr_feed_open(device, m.bytes[CR_REGION_INPUT], small_bytes(programs, count), &m.ring));
    if (device->backend->share)
        CR_TRY_OUT(device->backend->share(
            device, m.region[CR_REGION_STORE])); /* last, so that no rank waits for one that failed above */
    *memory = m;
    return CR_OK;
out:
    cr_memory_close(&m);
    return status;
}

void cr_memory_close(struct cr_memory *memory) {
    cr_feed_close(memory->device, memory->ring);
    release_host(memory);
    if (memory->device->backend->unshare) memory->device->backend->unshare(memory->device);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST && memory->region[r])
            memory->device->backend->release(memory->device, memory->region[r]);
    *memory = (struct cr_memory){0};
}

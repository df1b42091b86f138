/* tests/gpu/test_cuda_memset_nodes.c: fills in a captured graph, whose memset nodes become kernel nodes, write exactly
 * their bytes, in the order of the stream: of any length and at any address. */
#include "tests/harness/test_gpu.h"

enum { BYTES = 1 << 16, FILLS = 40 };

struct fill {
    size_t at, bytes;
    int    value;
};

/* Overlapping fills; every third one is at an address that is no multiple of 16. */
static struct fill fill_number(int i) {
    const size_t at = (size_t)(i * 1504 % (BYTES / 2)) + (i % 3 ? 0 : (size_t)(i % 16));
    return (struct fill){.at = at, .bytes = i % 4 ? (size_t)(i * i * 17 % 9001 + 2) : (size_t)(i % 40 + 1), .value = i};
}

static void fills_write_their_bytes(void) {
    NEED_GPU();
    static unsigned char           expected[BYTES], found[BYTES];
    const struct cr_device_options options = {.deterministic = true};
    struct cr_device              *device  = NULL;
    void                          *memory = NULL, *graph = NULL;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    const struct cr_async *async = device->backend->async;
    REQUIRE_OK(device->backend->reserve(device, BYTES, &memory)); /* zeroed */
    REQUIRE_OK(async->capture_begin(device));
    for (int i = 0; i < FILLS; i++) {
        const struct fill f = fill_number(i);
        REQUIRE_OK(async->fill(device, CR_STREAM_COMPUTE, (char *)memory + f.at, f.value, f.bytes));
        memset(expected + f.at, f.value, f.bytes);
    }
    REQUIRE_OK(async->capture_end(device, &graph));
    for (int run = 0; run < 2; run++) REQUIRE_OK(async->graph_launch(device, graph));
    REQUIRE_OK(device->backend->get(device, found, memory, BYTES));
    CHECK(memcmp(found, expected, BYTES) == 0);
    async->graph_destroy(device, graph);
    device->backend->release(device, memory);
    cr_device_close(device);
}

TESTS(CASE(fills_write_their_bytes))

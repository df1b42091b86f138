/* tests/gpu/test_cuda_memset_nodes.c: fills in a captured graph, whose memset nodes become kernel nodes, write exactly
 * their bytes, in the order of the stream: of any length and at any address, and beside the nodes of
 * cuStreamBatchMemOp, by which GPUs of one host wait for each other (cuda/collectives/peer_copy.c). */
#include "cuda/common/driver.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "tests/harness/test_gpu.h"

#include <cuda.h>

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

TEST(fills_write_their_bytes) {
    NEED_GPU();
    static unsigned char           expected[BYTES], found[BYTES];
    const struct cr_device_options options = {.deterministic = true};
    OWNED(device)                  device  = NULL;
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
}

typedef CUresult (*batch_mem_op)(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags);

enum { WORDS = 8, WRITTEN = 3 }; /* the word that the memory operation writes */

static cudaError_t capture_fills_around_an_operation(uint32_t *words, batch_mem_op run, cudaGraph_t *graph) {
    CUstreamBatchMemOpParams op = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                  .address   = (CUdeviceptr)(uintptr_t)(words + WRITTEN),
                                                  .value     = 7}};
    cudaStream_t             stream;
    cudaError_t              error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (error == cudaSuccess) error = cudaMemsetAsync(words, 1, WORDS * sizeof *words, stream);
    if (error == cudaSuccess && run(stream, 1, &op, 0) != CUDA_SUCCESS) error = cudaErrorNotSupported;
    if (error == cudaSuccess) error = cudaMemsetAsync(words + 4, 2, 4 * sizeof *words, stream);
    if (error == cudaSuccess) error = cudaStreamEndCapture(stream, graph);
    (void)cudaStreamDestroy(stream);
    return error;
}

TEST(memory_operations_stay) {
    NEED_GPU();
    const uint32_t                 expected[WORDS] = {0x01010101, 0x01010101, 0x01010101, 7,
                                                      0x02020202, 0x02020202, 0x02020202, 0x02020202};
    const struct cr_device_options options         = {.deterministic = true};
    OWNED(device)                  device          = NULL;
    uint32_t                       found[WORDS], *words = NULL;
    batch_mem_op                   run;
    cudaGraph_t                    graph = NULL;
    cudaGraphExec_t                exec  = NULL;
    *(void **)(void *)&run               = ck_driver_function("cuStreamBatchMemOp");
    if (!run) SKIP("the driver has no cuStreamBatchMemOp");
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    REQUIRE(cudaMalloc((void **)&words, sizeof found) == cudaSuccess);
    REQUIRE(capture_fills_around_an_operation(words, run, &graph) == cudaSuccess);
    REQUIRE_OK(cr_cuda_replace_memset_nodes(graph));
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(exec, NULL) == cudaSuccess);
    REQUIRE(cudaMemcpy(found, words, sizeof found, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(found, expected, sizeof found) == 0);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaFree(words);
}

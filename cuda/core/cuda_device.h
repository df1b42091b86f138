/* cuda/core/cuda_device.h: the GPU device: its state, its libraries, checked calls. Private to cuda/. No other folder
 * includes CUDA's headers.
 *
 * Entries of the kernel tables are in C files (*_kernels.c, cuda/dense/dense_cublas.c, cuda/collectives). They read
 * shapes and slots and call a launcher from cuda/common/launchers.h, cuDNN or cuBLAS. Device code is in .cu files,
 * which depend neither on programs nor on ops.
 *
 * Invariants
 *   - Every CUDA, cuDNN and cuBLAS call is checked: CUDA_TRY, CUDNN_TRY, CUBLAS_TRY.
 *   - A kernel launches on cr_cuda_stream(device, call). Muon launches on more streams: each of them waits for an event
 *     of that stream, and that stream waits for an event of each. A launch function neither allocates memory nor blocks
 *     the host.
 *   - Kernels named cuda.* are cresnet's own code. A kernel accepts f32, f16 and bf16 programs unless its name ends in
 *     a type. Parameters of BN, statistics, biases, gradients of parameters and sums are f32 in all of them.
 *   - cresnet's own kernels are deterministic: no floating-point atomics. They index with 64 bits; a kernel that
 *     indexes with 32 bits has an `accepts` function that refuses larger shapes. */
#ifndef CR_CUDA_DEVICE_H
#define CR_CUDA_DEVICE_H

#include "device/device.h"
#include "device/kernel.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

enum { CR_CUDA_ALIGN = 256, CR_CUDA_BLAS_BYTES = 8 << 20 };

struct cudnn_cache;      /* cache of built plans: cuda/conv/cudnn/cudnn_conv.c */
struct cuda_filter;      /* the pruned filter used last: cuda/sparse/sparse_filter_cache.c */
struct ck_conv_families; /* cuda/common/conv_family.h */
struct cuda_comm;        /* NCCL: cuda/collectives/nccl.c */
struct cuda_peers;       /* GPUs of one host that access each other's memory: cuda/collectives/peer_copy.c */

struct cuda_device {
    struct cr_device        base; /* first member: a cr_device pointer is a cuda_device pointer */
    int                     index, multiprocessors;
    int                     cc;                   /* compute capability that the kernels see: 90 for 9.0 */
    int                     block_bytes;          /* most shared memory of a thread block */
    int                     multiprocessor_bytes; /* shared memory of a multiprocessor */
    int64_t                 l2_bytes;             /* L2 cache */
    const char             *emulated;             /* value of CRESNET_CAPABILITY; NULL: the GPU as it is */
    cudaStream_t            stream[CR_STREAMS];
    cudnnHandle_t           cudnn;
    cublasHandle_t          cublas;
    void                   *blas_workspace;
    struct ck_step         *step;    /* device memory: the step block that kernels read */
    void                   *ring[2]; /* page-locked buffers for put and get */
    cudaEvent_t             ring_done[2];
    struct cr_kernel_list   kernels;
    struct cudnn_cache     *plans;
    struct cuda_filter     *filter;      /* NULL until the first use */
    struct cuda_host_block *host_blocks; /* list of cuda/core/pinned_memory.c */
    struct cuda_comm       *comm;        /* NULL with one rank */
    struct cuda_peers      *peers;       /* NULL when gradients are summed by NCCL */
    size_t                  comm_bytes;  /* GPU memory that comm and peers allocated when they were opened */
    void                   *unreleased;  /* a region that another rank may still have mapped; it is not freed */
    /* Offline device: kernels answer queries, nothing is allocated or run. NULL for a real GPU. */
    const struct cr_gpu *offline;
    /* The convolution kernels of this capability, chosen when the device is opened. */
    const struct ck_conv_families *families;
};

static inline struct cuda_device *cuda_of(const struct cr_device *device) {
    return (struct cuda_device *)(uintptr_t)device;
}
static inline cudaStream_t cr_cuda_stream(struct cr_device *device, const struct cr_call *call) {
    return cuda_of(device)->stream[call->op->stream];
}

/* Return the library's handle and create it at first use. The stream of cuBLAS is CR_STREAM_COMPUTE, and it has a
 * workspace of its own; a caller that launches kernels of cuDNN sets the stream. The device owns the handle. */
cr_status cr_cuda_cudnn(struct cuda_device *device, cudnnHandle_t *out);
cr_status cr_cuda_cublas(struct cuda_device *device, cublasHandle_t *out);

/* Set the error of a failed library call and return its status: CR_ERR_MEMORY when CUDA is out of memory, else
 * CR_ERR_DEVICE. `what`: the text of the call. */
cr_status cr_cuda_fail(cudaError_t error, const char *what, const char *file, int line);
cr_status cr_cudnn_fail(cudnnStatus_t error, const char *what, const char *file, int line);
cr_status cr_cublas_fail(cublasStatus_t error, const char *what, const char *file, int line);

/* The same for a call that may have succeeded: CR_OK. */
static inline cr_status cuda_status(cudaError_t error, const char *what, const char *file, int line) {
    return error == cudaSuccess ? CR_OK : cr_cuda_fail(error, what, file, line);
}
#define CUDA_STATUS(call) cuda_status((call), #call, __FILE__, __LINE__)
#define CUDA_TRY(call) CR_TRY(CUDA_STATUS(call))
#define CUDNN_TRY(call)                                                                                                \
    do {                                                                                                               \
        cudnnStatus_t cudnn_error_ = (call);                                                                           \
        if (cudnn_error_ != CUDNN_STATUS_SUCCESS) return cr_cudnn_fail(cudnn_error_, #call, __FILE__, __LINE__);       \
    } while (0)
#define CUBLAS_TRY(call)                                                                                               \
    do {                                                                                                               \
        cublasStatus_t cublas_error_ = (call);                                                                         \
        if (cublas_error_ != CUBLAS_STATUS_SUCCESS) return cr_cublas_fail(cublas_error_, #call, __FILE__, __LINE__);   \
    } while (0)

#endif

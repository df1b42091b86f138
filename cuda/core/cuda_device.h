/* cuda/core/cuda_device.h: types and functions that the files of the GPU device share; private to cuda/. Only cuda/
 * includes CUDA's headers.
 *
 * Entries of the kernel tables are in C files (*_kernels.c, cuda/dense/dense_cublas.c, cuda/collectives). They read
 * shapes and slots and call a launcher from cuda/common/launchers.h, cuDNN or cuBLAS. Device code is in .cu files,
 * which depend neither on programs nor on ops.
 *
 * Invariants
 *   - Every CUDA, cuDNN and cuBLAS call is checked: CUDA_TRY, CUDNN_TRY, CUBLAS_TRY.
 *   - A kernel launches on cr_cuda_stream(device, call) only. Its launch function neither allocates nor waits.
 *   - Kernels named cuda.* are cresnet's own code. A kernel accepts f32, f16 and bf16 programs unless its name ends in
 *     a type. Parameters of BN, statistics, biases, gradients of parameters and sums are f32 in all of them.
 *   - cresnet's own kernels are deterministic: no floating-point atomics. They index with 64 bits. */
#ifndef CR_CUDA_DEVICE_H
#define CR_CUDA_DEVICE_H

#include "cuda/common/launchers.h"
#include "device/benchmarks.h"
#include "device/device.h"
#include "device/kernel.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

enum { CR_CUDA_ALIGN = 256, CR_CUDA_BLAS_BYTES = 8 << 20, CR_CUDA_KERNELS_MAX = 256 };

struct cudnn_cache; /* cache of built plans: cuda/conv/cudnn/cudnn_conv.c */
struct cuda_filter; /* the pruned filter used last: cuda/sparse/sparse_filter_cache.c */
struct cuda_comm;   /* NCCL: cuda/collectives/nccl.c */
struct cuda_peers;  /* GPUs of one host that access each other's memory: cuda/collectives/peer_copy.c */

struct cuda_device {
    struct cr_device        base; /* first member: a cr_device pointer is a cuda_device pointer */
    int                     index, cc /* compute capability: 90 for 9.0 */, multiprocessors;
    cudaStream_t            stream[CR_STREAMS];
    cudnnHandle_t           cudnn;
    cublasHandle_t          cublas;
    void                   *blas_workspace;
    struct ck_step         *step;    /* device memory: the step block that kernels read */
    void                   *ring[2]; /* page-locked buffers for put and get */
    cudaEvent_t             ring_done[2];
    const struct cr_kernel *kernels[CR_CUDA_KERNELS_MAX + 1];
    struct cudnn_cache     *plans;
    struct cuda_filter     *filter;      /* NULL until the first use */
    struct cuda_host_block *host_blocks; /* list of cuda/core/pinned_memory.c */
    struct cuda_comm       *comm;        /* NULL with one rank */
    struct cuda_peers      *peers;       /* NULL when gradients are summed by NCCL */
    size_t                  comm_bytes;  /* GPU memory that comm and peers allocated when they were opened */
    void                   *unreleased;  /* a region that another rank may still have mapped; it is not freed */
    /* Offline device: kernels answer queries, nothing is allocated or run. NULL for a real GPU. */
    const struct cr_gpu *offline;
};

static inline struct cuda_device *cuda_of(const struct cr_device *device) {
    return (struct cuda_device *)(uintptr_t)device;
}
static inline cudaStream_t cr_cuda_stream(struct cr_device *device, const struct cr_call *call) {
    return cuda_of(device)->stream[call->op->stream];
}

/* Return the library's handle and create it at first use. Its stream is CR_STREAM_COMPUTE; cuBLAS gets a workspace of
 * its own. The device owns the handle. */
cr_status cr_cuda_cudnn(struct cuda_device *device, cudnnHandle_t *out);
cr_status cr_cuda_cublas(struct cuda_device *device, cublasHandle_t *out);

/* Set the error of a failed library call and return its status: CR_ERR_MEMORY when CUDA is out of memory, else
 * CR_ERR_DEVICE. `what`: the text of the call. */
cr_status cr_cuda_fail(cudaError_t error, const char *what, const char *file, int line);
cr_status cr_cudnn_fail(cudnnStatus_t error, const char *what, const char *file, int line);
cr_status cr_cublas_fail(cublasStatus_t error, const char *what, const char *file, int line);
#define CUDA_TRY(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t cuda_error_ = (call);                                                                              \
        if (cuda_error_ != cudaSuccess) return cr_cuda_fail(cuda_error_, #call, __FILE__, __LINE__);                   \
    } while (0)
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

/* ---- helpers for kernel tables ---- */

static inline const struct cr_tensor *cuda_in(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->in[slot] >= 0 ? &p->tensor[op->in[slot]] : NULL;
}
static inline const struct cr_tensor *cuda_out(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->out[slot] >= 0 ? &p->tensor[op->out[slot]] : NULL;
}
/* Returns whether the tensor has a type that cresnet's own kernels accept for data. */
static inline bool cuda_is_data(const struct cr_tensor *t) {
    return t && (t->dtype == CR_F32 || t->dtype == CR_F16 || t->dtype == CR_BF16);
}
static inline enum ck_type cuda_type(const struct cr_tensor *t) {
    return t->dtype == CR_F16 ? CK_F16 : t->dtype == CR_BF16 ? CK_BF16 : CK_F32;
}
/* Number of pixels of an image tensor: elements of all dimensions but the last. */
static inline int64_t cuda_pixels(const struct cr_tensor *t) {
    return t->dim[0] * t->dim[1] * t->dim[2];
}

/* Shape of a convolution, from x, w and y of its forward form. Each of them may be the gradient instead. */
static inline struct ck_conv cuda_conv_shape(const struct cr_op *op, const struct cr_tensor *x,
                                             const struct cr_tensor *w, const struct cr_tensor *y) {
    return (struct ck_conv){.type   = cuda_type(x),
                            .R      = (int)w->dim[1],
                            .S      = (int)w->dim[2],
                            .stride = op->attr.conv.stride,
                            .pad    = op->attr.conv.pad,
                            .N      = x->dim[0],
                            .H      = x->dim[1],
                            .W      = x->dim[2],
                            .C      = x->dim[3],
                            .K      = y->dim[3],
                            .P      = y->dim[1],
                            .Q      = y->dim[2]};
}

/* Shape of the convolution of a sparse_filter op, from the filter and the image size in the op's attributes. */
static inline struct ck_conv cuda_filter_shape(const struct cr_op *op, const struct cr_tensor *w) {
    const int64_t *image = op->attr.conv.pattern.image;
    struct ck_conv c     = {.type   = cuda_type(w),
                            .R      = (int)w->dim[1],
                            .S      = (int)w->dim[2],
                            .stride = op->attr.conv.stride,
                            .pad    = op->attr.conv.pad,
                            .N      = image[0],
                            .H      = image[1],
                            .W      = image[2],
                            .C      = w->dim[3],
                            .K      = w->dim[0]};
    c.P                  = (c.H + 2 * c.pad - c.R) / c.stride + 1;
    c.Q                  = (c.W + 2 * c.pad - c.S) / c.stride + 1;
    return c;
}

/* ---- kernel tables, best first; each ends with NULL; cuda/registry.c collects them ---- */

/* cuda/conv/cudnn/cudnn_kernels.c */
extern const struct cr_kernel *const cr_cudnn_conv_kernels[];
/* cuda/conv/generic/conv_kernels.c: convolutions that cuDNN does not support */
extern const struct cr_kernel *const cr_cuda_conv_kernels[];
/* cuda/dense/dense_cublas.c */
extern const struct cr_kernel *const cr_cuda_dense_kernels[];
/* cuda/norm/bn_kernels.c */
extern const struct cr_kernel *const cr_cuda_bn_kernels[];
/* cuda/norm/pool_bn_kernels.c */
extern const struct cr_kernel *const cr_cuda_pool_bn_kernels[];
/* cuda/conv/pointwise/point_conv_kernels.c */
extern const struct cr_kernel *const cr_cuda_point_conv_kernels[];
/* cuda/conv/cifar/cifar_kernels.c */
extern const struct cr_kernel *const cr_cuda_cifar_kernels[];
/* cuda/conv/pointwise/point_grad_kernels.c */
extern const struct cr_kernel *const cr_cuda_point_grad_kernels[];
/* cuda/conv/stem/stem_kernels.c */
extern const struct cr_kernel *const cr_cuda_stem_kernels[];
/* cuda/norm/fold_bn_kernels.c */
extern const struct cr_kernel *const cr_cuda_fold_bn_kernels[];
/* cuda/elementwise/pointwise_kernels.c: input, relu, add, pooling, shortcut, cast, zero */
extern const struct cr_kernel *const cr_cuda_pointwise_kernels[];
/* cuda/elementwise/host_copy_kernels.c: copies to host memory and back */
extern const struct cr_kernel *const cr_cuda_host_copy_kernels[];
/* cuda/collectives/nccl.c: sums over ranks */
extern const struct cr_kernel *const cr_cuda_nccl_kernels[];
/* cuda/collectives/peer_copy.c: sums of gradients over ranks by copy engines */
extern const struct cr_kernel *const cr_cuda_peer_copy_kernels[];
/* cuda/train/loss_kernels.c: loss, gradient norm */
extern const struct cr_kernel *const cr_cuda_loss_kernels[];
/* cuda/elementwise/squeeze_excite_kernels.c: squeeze-and-excitation scale, 2x2 average pooling */
extern const struct cr_kernel *const cr_cuda_squeeze_excite_kernels[];
/* cuda/train/optimizer_kernels.c: sgd, adamw, lars, norms of parameters, moving averages */
extern const struct cr_kernel *const cr_cuda_optimizer_kernels[];
/* cuda/sparse/direct/direct_kernels.c: convolutions with a sparsity pattern */
extern const struct cr_kernel *const cr_cuda_direct_kernels[];
/* cuda/sparse/two_four/two_four_kernels.c: 2:4 patterns on the sparse tensor cores */
extern const struct cr_kernel *const cr_cuda_two_four_kernels[];
/* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: f32 on Hopper's sparse tensor cores */
extern const struct cr_kernel *const cr_cuda_wgmma_sp_kernels[];
/* cuda/sparse/mma_sp/mma_sp_kernels.c: any pattern on the sparse tensor cores */
extern const struct cr_kernel *const cr_cuda_mma_sp_kernels[];
/* cuda/sparse/direct/direct_grad_kernels.c: gradients of convolutions with a sparsity pattern */
extern const struct cr_kernel *const cr_cuda_direct_grad_kernels[];
/* cuda/baseline/im2col_kernels.c: benchmark baselines */
extern const struct cr_kernel *const cr_cuda_baseline_kernels[];
/* cuda/sparse/block/block_sparse_kernels.c: patterns of whole blocks of channels */
extern const struct cr_kernel *const cr_cuda_block_sparse_kernels[];

/* Size of a packed filter in f32 elements, in the op's weight format (attr.conv.pattern); 0 when the family does not
 * support the format for this convolution. cr_cuda_packed_elems (cr_backend.packed_elems) calls the family of the
 * format. */
int64_t cr_cuda_two_four_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_mma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* cuda/sparse/direct/direct_kernels.c: the convolution of a conv or sparse_filter op with a sparsity pattern; and
 * whether the sparse kernels accept the operands of a conv. */
struct ck_conv cuda_sparse_conv_shape(const struct cr_program *program, const struct cr_op *op);
bool           cuda_sparse_operands_fit(const struct cr_program *program, const struct cr_op *op);
/* cuda/norm/bn_kernels.c: the ReLU mask and BN gradient sums of a conv_dgrad that runs as a second kernel behind the
 * convolution (ck_bn_relu_grad). The first function returns the bytes of workspace, 0 when the op has no ReLU mask. The
 * second runs the kernel with the workspace that starts at byte relu_mask_at of the op's workspace. */
size_t    cr_cuda_bn_relu_grad_workspace(const struct cr_device *device, const struct cr_program *program,
                                         const struct cr_op *op);
cr_status cr_cuda_bn_relu_grad(struct cr_device *device, const struct cr_call *call, size_t relu_mask_at);
void      cr_cuda_collect_kernels(struct cuda_device *device); /* cuda/registry.c: fills device->kernels */

extern const struct cr_backend cr_backend_cuda;
extern const struct cr_async   cr_cuda_async; /* cuda/core/streams.c */
/* cuda/core/pinned_memory.c: see cr_async.host_reserve and host_release. */
cr_status                   cr_cuda_host_reserve(struct cr_device *device, size_t bytes, void **out);
void                        cr_cuda_host_release(struct cr_device *device, void *host);
extern const struct cr_pool cr_cuda_pools[]; /* cuda/core/allocators.c */
/* cuda/spdnn/spdnn_cuda.c */
cr_status cr_cuda_spdnn(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                        const struct cr_spdnn_options *options, struct cr_spdnn_result *out);
cr_status cr_cuda_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                               struct cr_device **out); /* cuda/offline_device.c */

/* cuda/train/init_kernels.c */
cr_status cr_cuda_init_params(struct cr_device *device, const struct cr_param_store *store,
                              const struct cr_config *config, void *region);
/* cuda/collectives/nccl.c. comm_open joins the other ranks of the device's options. comm_wait waits for an event and
 * returns an error when a rank is lost. */
cr_status cr_cuda_comm_open(struct cuda_device *device);
void      cr_cuda_comm_close(struct cuda_device *device); /* after all captured graphs are destroyed */
cr_status cr_cuda_comm_wait(struct cuda_device *device, cudaEvent_t event);
/* cuda/collectives/peer_copy.c. peers_open finds out together with all ranks whether the GPUs can access each other's
 * memory. *out and device->peers stay NULL when they cannot or when NCCL is configured. */
cr_status cr_cuda_peers_open(struct cuda_device *device, struct cuda_peers **out);
/* From any thread; NULL is allowed. Afterwards no stream waits for other ranks. */
void cr_cuda_peers_abort(struct cuda_peers *peers);
void cr_cuda_peers_close(struct cuda_device *device, bool failed);
/* Size of memory to share, rounded up to whole pages of the driver: other allocations of the same page would be shared,
 * too. */
size_t cr_cuda_peers_bytes(size_t bytes);
/* See cr_backend.share and unshare. */
cr_status cr_cuda_peers_share(struct cr_device *device, void *region);
void      cr_cuda_peers_unshare(struct cr_device *device);
/* cuda/conv/cudnn/cudnn_conv.c */
void cr_cudnn_cache_close(struct cudnn_cache *cache);  /* NULL is allowed */
void cr_cuda_filter_close(struct cuda_filter *filter); /* cuda/sparse/sparse_filter_cache.c; NULL is allowed */

#endif

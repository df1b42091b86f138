/* cuda/core/cuda_device.h: what the files of the GPU device share; private to cuda/. Only this folder sees CUDA's
 * headers.
 *
 * Rows are in C files (rows_*.c, cuda/conv/cudnn/cudnn_kernels.c, cuda/dense/dense_cublas.c): they read shapes and
 * slots and call a launcher from cuda/common/launchers.h, cuDNN or cuBLAS. Kernels are in .cu files, which know neither
 * programs nor ops.
 *
 * Laws
 *   - Every CUDA, cuDNN and cuBLAS call is checked: CUDA_TRY, CUDNN_TRY, CUBLAS_TRY.
 *   - A row launches on cr_cuda_stream(device, call) only, and neither allocates nor waits in launch.
 *   - Rows named cuda.* use own kernels. A row takes f32, f16 and bf16 programs unless its name ends in a type;
 * parameters of BN, statistics, biases, gradients of parameters and sums are f32 in all of them.
 *   - Own kernels are deterministic: no floating-point atomics. They index in 64 bits. */
#ifndef CR_CUDA_H
#define CR_CUDA_H

#include "cuda/common/launchers.h"
#include "device/device.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

enum { CR_CUDA_ALIGN = 256, CR_CUDA_BLAS_BYTES = 8 << 20, CR_CUDA_KERNELS_MAX = 256 };

struct cudnn_cache; /* of built plans: cuda/conv/cudnn/cudnn_conv.c */
struct cuda_filter; /* the pruned filter that was asked about last: cuda/sparse/sparse_filter_cache.c */
struct cuda_comm;   /* NCCL: cuda/collectives/nccl.c */
struct cuda_peers;  /* GPUs of one host that reach each other's memory: cuda/collectives/peer_copy.c */

struct cuda_device {
    struct cr_device        base; /* first: a cr_device pointer is a cuda_device pointer */
    int                     index, cc /* 90 for 9.0 */, multiprocessors;
    cudaStream_t            stream[CR_STREAMS];
    cudnnHandle_t           cudnn;
    cublasHandle_t          cublas;
    void                   *blas_workspace;
    struct ck_step         *step;    /* device memory: the step block that kernels read */
    void                   *ring[2]; /* page-locked pieces that put and get pass through */
    cudaEvent_t             ring_done[2];
    const struct cr_kernel *kernels[CR_CUDA_KERNELS_MAX + 1];
    struct cudnn_cache     *plans;
    struct cuda_filter     *filter;      /* NULL: none yet */
    struct cuda_host_block *host_blocks; /* cuda/core/pinned_memory.c */
    struct cuda_comm       *comm;        /* NULL: one rank */
    struct cuda_peers      *peers;       /* NULL: gradients go by NCCL */
    size_t                  comm_bytes;  /* what both took of the GPU when they were opened */
    void                   *unreleased;  /* a region that another rank may still have mapped: not freed */
    const struct cr_gpu
        *offline; /* a GPU that is not there: rows answer questions, nothing is allocated or run; else NULL */
};

static inline struct cuda_device *cuda_of(const struct cr_device *device) {
    return (struct cuda_device *)(uintptr_t)device;
}
static inline cudaStream_t cr_cuda_stream(struct cr_device *device, const struct cr_call *call) {
    return cuda_of(device)->stream[call->op->stream];
}

/* The library's handle, made at first use: its stream is lane COMPUTE, cuBLAS has a workspace of its own. */
cr_status cr_cuda_cudnn(struct cuda_device *device, cudnnHandle_t *out);
cr_status cr_cuda_cublas(struct cuda_device *device, cublasHandle_t *out);

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

/* ---- for rows ---- */

static inline const struct cr_tensor *cuda_in(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->in[slot] >= 0 ? &p->tensor[op->in[slot]] : NULL;
}
static inline const struct cr_tensor *cuda_out(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->out[slot] >= 0 ? &p->tensor[op->out[slot]] : NULL;
}
/* Is it a type that own kernels take for data? */
static inline bool cuda_is_data(const struct cr_tensor *t) {
    return t && (t->dtype == CR_F32 || t->dtype == CR_F16 || t->dtype == CR_BF16);
}
static inline enum ck_type cuda_type(const struct cr_tensor *t) {
    return t->dtype == CR_F16 ? CK_F16 : t->dtype == CR_BF16 ? CK_BF16 : CK_F32;
}
/* Rows (elements of all dimensions but the last) of an image tensor. */
static inline int64_t cuda_pixels(const struct cr_tensor *t) {
    return t->dim[0] * t->dim[1] * t->dim[2];
}

/* A convolution by the x, w and y of its forward form; any of them may be the gradient instead. */
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

/* The same of a sparse_filter, by the filter and the picture that its attributes know. */
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

/* ---- tables of rows, best first; each ends with NULL; cuda/registry.c puts them together ---- */

extern const struct cr_kernel *const cr_cudnn_conv_kernels[]; /* cuda/conv/cudnn/cudnn_kernels.c */
extern const struct cr_kernel
    *const cr_cuda_conv_kernels[]; /* cuda/conv/generic/conv_kernels.c: own, for what cuDNN does not take */
extern const struct cr_kernel *const cr_cuda_dense_kernels[];      /* cuda/dense/dense_cublas.c */
extern const struct cr_kernel *const cr_cuda_bn_kernels[];         /* cuda/norm/bn_kernels.c */
extern const struct cr_kernel *const cr_cuda_point_conv_kernels[]; /* cuda/conv/pointwise/point_conv_kernels.c */
extern const struct cr_kernel *const cr_cuda_cifar_kernels[];      /* cuda/conv/cifar/cifar_kernels.c */
extern const struct cr_kernel *const cr_cuda_point_grad_kernels[]; /* cuda/conv/pointwise/point_grad_kernels.c */
extern const struct cr_kernel *const cr_cuda_stem_kernels[];       /* cuda/conv/stem/stem_kernels.c */
extern const struct cr_kernel *const cr_cuda_fold_bn_kernels[];    /* cuda/norm/fold_bn_kernels.c */
extern const struct cr_kernel *const cr_cuda_pointwise_kernels[];  /* cuda/elementwise/pointwise_kernels.c: normalize,
                                                                      relu, add, pooling, shortcut, cast, zero */
extern const struct cr_kernel
    *const cr_cuda_host_copy_kernels[]; /* cuda/elementwise/host_copy_kernels.c: copies to the host's memory and back */
extern const struct cr_kernel *const cr_cuda_nccl_kernels[]; /* cuda/collectives/nccl.c: sums over ranks */
extern const struct cr_kernel
    *const cr_cuda_peer_copy_kernels[]; /* cuda/collectives/peer_copy.c: the same for gradients, by copy engines */
extern const struct cr_kernel *const cr_cuda_loss_kernels[]; /* cuda/train/loss_kernels.c: loss, gradient check */
extern const struct cr_kernel *const cr_cuda_squeeze_excite_kernels[]; /* cuda/elementwise/squeeze_excite_kernels.c:
                                                                          squeeze and excitation's gate, 2x2 means */
extern const struct cr_kernel
    *const cr_cuda_optimizer_kernels[]; /* cuda/train/optimizer_kernels.c: sgd, adamw, lars and its norms, averages */
extern const struct cr_kernel
    *const cr_cuda_direct_kernels[]; /* cuda/sparse/direct/direct_kernels.c: convolutions with a pattern */
extern const struct cr_kernel *const cr_cuda_two_four_kernels[]; /* cuda/sparse/two_four/two_four_kernels.c: ... that is
                                                                    2:4, on the sparse tensor cores */
extern const struct cr_kernel
    *const cr_cuda_wgmma_sp_kernels[]; /* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: ... on Hopper's, in f32 */
extern const struct cr_kernel
    *const cr_cuda_mma_sp_kernels[]; /* cuda/sparse/mma_sp/mma_sp_kernels.c: ... on the sparse tensor cores */
extern const struct cr_kernel
    *const cr_cuda_direct_grad_kernels[]; /* cuda/sparse/direct/direct_grad_kernels.c: their gradients */
extern const struct cr_kernel *const cr_cuda_im2col_kernels[];       /* cuda/baseline/im2col_kernels.c: baselines */
extern const struct cr_kernel *const cr_cuda_block_sparse_kernels[]; /* cuda/sparse/block/block_sparse_kernels.c: ...
                                                                        that keeps whole blocks of channels */
/* Layouts of kept weights (cr_pattern_attr) from these on are those of cuda/sparse/two_four/two_four_kernels.c,
 * cuda/sparse/wgmma_sp/wgmma_sp_kernels.c and cuda/sparse/block/block_sparse_kernels.c. */
enum { CUDA_FORMAT_TWO_FOUR = 48, CUDA_FORMAT_WGMMA_SP = 52, CUDA_FORMAT_BLOCK_SPARSE = 64 };
int64_t cr_cuda_two_four_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_mma_sp_elems(struct cr_device *device, const struct cr_program *program,
                             const struct cr_op *op); /* of layouts of cuda/sparse/mma_sp/mma_sp_kernels.c */
/* Of a conv or sparse_filter with a pattern: the convolution; are a conv's operands such as these rows take?
 * (cuda/sparse/direct/direct_kernels.c) */
struct ck_conv cuda_sparse_conv_shape(const struct cr_program *program, const struct cr_op *op);
bool           cuda_sparse_operands_fit(const struct cr_program *program, const struct cr_op *op);
/* A conv_dgrad's gate behind its convolution (ck_bn_relu_grad), from byte relu_mask_at of its workspace on; the bytes
 * that it wants there, 0 without a gate (cuda/norm/bn_kernels.c). */
size_t    cr_cuda_bn_relu_grad_workspace(const struct cr_device *device, const struct cr_program *program,
                                         const struct cr_op *op);
cr_status cr_cuda_bn_relu_grad(struct cr_device *device, const struct cr_call *call, size_t relu_mask_at);
void      cr_cuda_collect_kernels(struct cuda_device *device); /* cuda/registry.c: into device->kernels */

extern const struct cr_backend cr_backend_cuda;
extern const struct cr_async   cr_cuda_async; /* cuda/core/streams.c */
/* cuda/core/pinned_memory.c: as cr_async.host_reserve and host_release. */
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
/* cuda/collectives/nccl.c: joins the other ranks that the device's options name; waits for an event as long as they
 * live */
cr_status cr_cuda_comm_open(struct cuda_device *device);
void      cr_cuda_comm_close(struct cuda_device *device); /* behind all recordings */
cr_status cr_cuda_comm_wait(struct cuda_device *device, cudaEvent_t event);
/* cuda/collectives/peer_copy.c: asks all ranks whether they can reach each other's memory; *out and device->peers stay
 * NULL where they cannot, or where NCCL is wanted */
cr_status cr_cuda_peers_open(struct cuda_device *device, struct cuda_peers **out);
void      cr_cuda_peers_abort(
         struct cuda_peers *peers); /* from any thread, NULL is fine: nothing waits for other ranks any more */
void   cr_cuda_peers_close(struct cuda_device *device, bool failed);
size_t cr_cuda_peers_bytes(
    size_t bytes); /* of memory to share: whole pages of the driver, or it would share its neighbours as well */
cr_status cr_cuda_peers_share(struct cr_device *device, void *region);
void      cr_cuda_peers_unshare(struct cr_device *device);
/* cuda/conv/cudnn/cudnn_conv.c */
void cr_cudnn_cache_close(struct cudnn_cache *cache);  /* NULL is fine */
void cr_cuda_filter_close(struct cuda_filter *filter); /* cuda/sparse/sparse_filter_cache.c; NULL is fine */

#endif

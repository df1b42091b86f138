/* cuda/common/launchers.h: the functions that launch kernels; each takes device pointers, sizes and a stream.
 *
 * C files include this header to launch kernels. A .cu file includes no other header of cresnet. The launchers of a
 * family are in a header of their own; those of the remaining files are below.
 *
 * Conventions
 *   - Images are [N,H,W,C], fully packed; `pixels` = N*H*W. Filters are [K,R,S,C]. Vectors with one value for each
 *     channel are float[C]; `scale_bias` and `mean_rstd` are float[2][C], coefficients float[3][C], one row after the
 *     other.
 *   - `type` is the type of the const void * and void * data. Sums are computed in float or double.
 *   - Data pointers are device memory, aligned to 256 bytes unless the prototype says otherwise. Slices of the
 *     parameter buffers are aligned to 256 bytes in f32 and to 128 bytes in 16-bit types.
 *   - An output may be the same memory as an input where graph/ops.def says INPLACE.
 *   - A launcher neither allocates nor waits. The caller owns all memory.
 *   - A *_workspace function returns the bytes of workspace that the launcher needs. The contents need no
 *     initialisation.
 *   - A launcher returns the error of the launch; cudaSuccess when the kernel is enqueued on the stream.
 *   - `multiprocessors` is the number of the device's multiprocessors; it sizes the grid. */
#ifndef CR_LAUNCHERS_H
#define CR_LAUNCHERS_H

#include "cuda/common/elementwise_launchers.h"
#include "cuda/common/launch_types.h"
#include "cuda/common/norm_launchers.h"
#include "cuda/common/train_launchers.h"

CK_C_BEGIN

/* ---- cuda/core/delay.cu, step_block.cu, gather_pieces.cu, reference_work.cu: test delays, separation of launches,
 * inputs and results of a step, copies ---- */

/* Keeps the stream busy for about `ns` nanoseconds, 1 ms at most. For tests. */
cudaError_t ck_delay(int64_t ns, cudaStream_t stream);
/* All launches before are complete when those behind begin, also kernels that begin before their wait (ck_launch). */
cudaError_t ck_separate(cudaStream_t stream);
/* Copies *step to `to` in device memory. The caller may change *step as soon as the function returns. */
cudaError_t ck_set_step(struct ck_step *to, const struct ck_step *step, cudaStream_t stream);
/* The virtual architecture of the code that this GPU runs: 80 for code of compute_80. */
cudaError_t ck_ptx_version(int *version);
/* CRESNET_CAPABILITY: from now on launches that need more shared memory a block than `bytes` fail. ck_shared_limit
 * returns this limit, or 0 when only the GPU's own limit holds. */
void ck_limit_shared(int bytes);
int  ck_shared_limit(void);

enum { CK_FETCH_PIECES = 4 };
struct ck_fetch {
    const uint32_t *from[CK_FETCH_PIECES];          /* device memory */
    uint32_t       *to[CK_FETCH_PIECES];            /* page-locked host memory */
    int             words[CK_FETCH_PIECES], pieces; /* words: length of each piece in words of 4 bytes */
};
/* Copies up to CK_FETCH_PIECES small pieces from the device to the host with one kernel. */
cudaError_t ck_fetch(const struct ck_fetch *fetch, cudaStream_t stream);

enum { CK_GATHER_PIECES = 256 }; /* 2 KiB of the 4 KiB that a kernel's arguments may have */
struct ck_gather {
    const void *from[CK_GATHER_PIECES]; /* device memory, any alignment */
    void       *to;                     /* [pieces][bytes], any alignment */
    int64_t     bytes;                  /* of each piece */
    int         pieces;
};
/* Copies up to CK_GATHER_PIECES pieces of equal size within the device with one kernel. */
cudaError_t ck_gather(const struct ck_gather *gather, cudaStream_t stream);
/* One block of a fixed amount of arithmetic for each multiprocessor. ticks: see cr_async.reference_work; `most`: the
 * number of blocks that it has room for. */
cudaError_t ck_reference_work(int multiprocessors, int most, uint64_t *ticks, cudaStream_t stream);

/* ---- cuda/core/fill_node.cu ---- */

/* Adds to the graph, behind the nodes `before`, a kernel node that does the work of a memset node with these
 * parameters. *node: NULL when there is no kernel for them (several rows, or an address that is no multiple of 16). */
cudaError_t ck_add_fill_node(cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                             const struct cudaMemsetParams *memset, cudaGraphNode_t *node);

/* ---- cuda/conv/generic/conv.cu: convolutions of any shape ---- */

/* y[i] = x[i], with `add` y[i] + x[i]; i < n. */
cudaError_t ck_convert_add(enum ck_type type, const void *x, float *y, int64_t n, bool add, cudaStream_t stream);
/* y = x * w. */
/* cuda/conv/generic/group_conv.cu: as ck_conv_forward and the next two, with C / D groups: filters are K,R,S,D. The
 * gradient of the filters is f32 and needs no workspace. */
cudaError_t ck_group_conv_forward(const struct ck_conv *conv, int64_t D, const void *x, const void *w, void *y,
                                  cudaStream_t stream);
cudaError_t ck_group_conv_dgrad(const struct ck_conv *conv, int64_t D, const void *dy, const void *w, void *dx,
                                cudaStream_t stream);
cudaError_t ck_group_conv_wgrad(const struct ck_conv *conv, int64_t D, const void *x, const void *dy, float *dw,
                                bool accumulate, cudaStream_t stream);
cudaError_t ck_conv_forward(const struct ck_conv *conv, const void *x, const void *w, void *y, cudaStream_t stream);
/* dx from dy and w. */
cudaError_t ck_conv_dgrad(const struct ck_conv *conv, const void *dy, const void *w, void *dx, cudaStream_t stream);
/* Workspace of ck_conv_wgrad in bytes. */
size_t ck_conv_wgrad_workspace(const struct ck_conv *conv, int multiprocessors);
/* dw [K,R,S,C] in f32 from x and dy; adds to dw with `accumulate`. */
cudaError_t ck_conv_wgrad(const struct ck_conv *conv, const void *x, const void *dy, float *dw, bool accumulate,
                          void *workspace, int multiprocessors, cudaStream_t stream);

/* ---- cuda/dense/dense.cu: bias of the classifier ---- */

/* y[rows][columns] = product + bias[column], rounded once. y may be the product when type is f32. */
cudaError_t ck_dense_bias(enum ck_type type, const float *product, const float *bias, void *y, int64_t rows,
                          int64_t columns, cudaStream_t stream);
/* db[column] = sum of dy[rows][column] over the rows; adds to db with `accumulate`. */
cudaError_t ck_dense_bgrad(enum ck_type type, const void *dy, float *db, int64_t rows, int64_t columns, bool accumulate,
                           cudaStream_t stream);

/* ---- cuda/dense/dense_few.cu: the classifier for a few images ---- */

enum { CK_DENSE_FEW_ROWS = 8 };
/* y [rows][classes] = x [rows][depth] w' [depth][classes] + bias, summed in f32, rounded once. w is [classes][depth].
 * rows is at most CK_DENSE_FEW_ROWS; depth is a multiple of the elements in 16 bytes. */
cudaError_t ck_dense_few(enum ck_type type, const void *x, const void *w, const float *bias, void *y, int rows,
                         int64_t classes, int64_t depth, cudaStream_t stream);

/* ---- cuda/collectives/reduce.cu: sums over ranks whose GPUs access each other's memory ---- */

enum { CK_PEERS = 8 }; /* maximum number of ranks */
struct ck_sum_ranks {
    const float *part[CK_PEERS]; /* aligned to 16 bytes */
    float       *to;             /* aligned to 16 bytes; may be one of the parts */
    int          ranks;          /* 2 to CK_PEERS */
    int64_t      elems;
};
/* to[i] = (part[0][i] + part[1][i]) + ... of `ranks` parts, in this order. */
cudaError_t ck_sum_ranks(const struct ck_sum_ranks *sum, int multiprocessors, cudaStream_t stream);

enum { CK_SUM_BLOCKS = 16, CK_SUM_LINES = 4096, CK_SUM_ELEMS = 8192 }; /* of a small sum at most */
struct ck_sum_small {
    const float    *x;
    float          *y; /* may be x */
    int64_t         elems;
    int             rank, ranks;
    uint4          *lines[CK_PEERS]; /* by rank: [2][ranks][CK_SUM_LINES] in the memory of that rank, zeroed at first */
    unsigned       *round;           /* [CK_SUM_BLOCKS], zeroed at first: number of sums of each thread block so far */
    const unsigned *aborted;         /* a value that is not 0 ends the waiting for other ranks */
};
/* y[i] = (x[i] of rank 0 + x[i] of rank 1) + ...: the same bits on all ranks, which launch the same sums in the same
 * order. The kernels write into each other's memory. No line is overwritten before it is read: a rank writes to a half
 * of the lines again two rounds later, and the round between ended after every rank had ended the one before it. */
cudaError_t ck_sum_small(const struct ck_sum_small *sum, cudaStream_t stream);

CK_C_END

#endif

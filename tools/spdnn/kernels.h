/* tools/spdnn/kernels.h: launchers for the layers of a sparse deep network. The conventions of
 * cuda/common/launchers.h hold. */
#ifndef CR_SPDNN_KERNEL_H
#define CR_SPDNN_KERNEL_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CK_SPDNN_CHUNK  = 128, /* inputs that a warp processes together; strides are multiples of it */
    CK_SPDNN_BLOCKS = 4    /* thread blocks per multiprocessor */
};

/* Which inputs are live, that is, have a nonzero activation. All members are device memory that the caller allocates
 * and ck_spdnn_start initialises. */
struct ck_spdnn_state {
    int32_t *live; /* [layers + 1]: number of live inputs before the first layer and after each layer */
    /* [stride]: the live columns of the last layer's result, ascending; read only when that layer removed an input */
    int32_t  *list;
    int32_t  *origin[2]; /* [stride]: the input that each column holds */
    int32_t  *current;   /* which of the two `origin` arrays is current */
    uint8_t  *alive;     /* [stride]: one flag per column; zero between launches */
    uint32_t *blocks_done;
};

/* One layer: groups of `rows` rows that have the same columns. tools/spdnn/spdnn.h describes the arrays. */
struct ck_spdnn_layer {
    int             rows, groups;
    enum ck_type    weights; /* CK_F32 or CK_F16 */
    const uint32_t *start;
    const uint16_t *row, *column;
    const void     *weight;
    float           bias, ceiling;
};

/* Expands bit [neurons][words] to x [neurons][stride], zeros and ones, and initialises the state for `count` inputs. */
cudaError_t ck_spdnn_start(const uint32_t *bit, int64_t words, int64_t neurons, int64_t count, float *x, int64_t stride,
                           const struct ck_spdnn_state *state, cudaStream_t stream);
/* y = clip(W x + bias, 0, ceiling) for the live inputs, stored contiguously. Inputs that the layer before removed are
 * skipped. Afterwards live[index + 1] and the list describe y. `flags` are bits of enum ck_spdnn_flags. */
enum ck_spdnn_flags {
    CK_SPDNN_KEEP = 1 << 0, /* every input counts as live */
    /* the kernel before this one in the stream is the layer before: its end and the start of this kernel may overlap */
    CK_SPDNN_OVERLAP = 1 << 1
};
struct ck_spdnn_chip {
    int multiprocessors;
    /* a larger result is not expected to be in the L2 cache when the next layer reads it */
    int64_t cache_bytes;
};
cudaError_t ck_spdnn_layer(const struct ck_spdnn_layer *layer, int index, unsigned flags, const float *x, float *y,
                           int64_t stride, const struct ck_spdnn_state *state, const struct ck_spdnn_chip *chip,
                           cudaStream_t stream);
/* Call after the last of `layers` layers. Gives category [live], the live inputs. When `packed` is not NULL, packed
 * [neurons][stride] gets their values, stored contiguously. */
cudaError_t ck_spdnn_finish(int layers, const float *y, int64_t neurons, int64_t stride,
                            const struct ck_spdnn_state *state, int32_t *category, float *packed, cudaStream_t stream);

/* ---- tools/spdnn/deep.cu: several layers in one launch, when the shared memory of a thread block holds a tile of
 * inputs ---- */

enum {
    CK_SPDNN_DEEP_ROWS   = 16,
    CK_SPDNN_DEEP_GROUPS = 64, /* maximum groups of a layer */
    CK_SPDNN_DEEP_TILE   = 32, /* inputs per tile */
    CK_SPDNN_DEEP_LAYERS = 56  /* maximum layers per launch */
};
struct ck_spdnn_deep_state {
    int32_t  *live;      /* [layers + 1], as in struct ck_spdnn_state */
    int32_t  *origin[2]; /* [stride]: the input that each column of the tiles holds */
    int32_t  *place;     /* [stride]: column of each live input after the last layer */
    uint8_t  *alive;     /* [stride]: per input, 1 when it is live after the last layer */
    float    *handoff;   /* [blocks][neurons][32]: tiles that one thread block passes to another */
    uint32_t *ready;     /* [blocks]: set to launch + 1 when the block's tile in `handoff` is complete */
};
struct ck_spdnn_deep {
    int             count, index; /* number of layers; index of the first layer in the network */
    int             neurons, blocks;
    uint32_t        launch;     /* index of the launch within the run, from 0 */
    bool            keep, last; /* keep: every input counts as live; last: the run ends here */
    const float    *x;          /* input, in tiles */
    const uint32_t *bit;        /* first launch only, else NULL: the input bits that replace x, as for ck_spdnn_start */
    int64_t         words;
    float          *y;
};
/* Returns whether the shared memory of a thread block (`shared_bytes`) holds a tile of `neurons` neurons. */
bool        ck_spdnn_deep_fits(int64_t neurons, int shared_bytes);
cudaError_t ck_spdnn_deep_start(int layers, int64_t count, int64_t stride, int blocks,
                                const struct ck_spdnn_deep_state *state, cudaStream_t stream);
/* layer[deep->count]: each has 16 rows per group and at most 64 groups; all have weights of one type. */
cudaError_t ck_spdnn_deep(const struct ck_spdnn_layer *layer, const struct ck_spdnn_deep *deep,
                          const struct ck_spdnn_deep_state *state, cudaStream_t stream);
cudaError_t ck_spdnn_deep_finish(int layers, int64_t launches, int64_t count, const float *y, int64_t neurons,
                                 int64_t stride, const struct ck_spdnn_deep_state *state, int32_t *category,
                                 float *packed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

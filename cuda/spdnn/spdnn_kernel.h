/* cuda/spdnn/spdnn_kernel.h: launchers of cuda/spdnn/spdnn_layer.cu: layers of a sparse deep network. Conventions as in
 * cuda/common/launchers.h. */
#ifndef CR_SPDNN_KERNEL_H
#define CR_SPDNN_KERNEL_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CK_SPDNN_CHUNK  = 128 /* inputs that a warp takes at once: strides are multiples */,
    CK_SPDNN_BLOCKS = 4 /* a multiprocessor */
};

/* What tells the living inputs apart; all of it device memory, set by ck_spdnn_start. */
struct ck_spdnn_state {
    int32_t *live; /* [layers + 1]: inputs before the first layer, after each */
    int32_t
        *list; /* [stride]: which columns of the last layer's result live, ascending; read only where some died there */
    int32_t  *origin[2]; /* [stride]: the input that a column was at first */
    int32_t  *current;   /* which of the two is current */
    uint8_t  *alive;     /* [stride]: zero between launches */
    uint32_t *blocks_done;
};

/* Groups of `rows` rows which have the same columns; see spdnn/spdnn.h. */
struct ck_spdnn_layer {
    int             rows, groups;
    enum ck_type    weights; /* CK_F32 or CK_F16 */
    const uint32_t *start;
    const uint16_t *row, *column;
    const void     *weight;
    float           bias, ceiling;
};

/* bit[neurons][words] from `bit` on becomes x[neurons][stride], zeros and ones; all of the state for `count` inputs. */
cudaError_t ck_spdnn_start(const uint32_t *bit, int64_t words, int64_t neurons, int64_t count, float *x, int64_t stride,
                           const struct ck_spdnn_state *state, cudaStream_t stream);
/* y <- clip(W x + bias, 0, ceiling) for the inputs that live, side by side; what died in the layer before is left out.
 * Afterwards live[index + 1] and the list are those of y. how: bits of enum ck_spdnn_how. */
enum ck_spdnn_how {
    CK_SPDNN_KEEP = 1 << 0, /* all count as living */
    CK_SPDNN_OVERLAP =
        1 << 1 /* what is before it in the stream is the layer before: its end and our begin may overlap */
};
struct ck_spdnn_chip {
    int     multiprocessors;
    int64_t cache_bytes; /* a result that is larger will not be found in L2 by the next layer */
};
cudaError_t ck_spdnn_layer(const struct ck_spdnn_layer *layer, int index, unsigned how, const float *x, float *y,
                           int64_t stride, const struct ck_spdnn_state *state, const struct ck_spdnn_chip *chip,
                           cudaStream_t stream);
/* After the last of `layers`: category[live]; with packed, packed[neurons][stride] has their values side by side. */
cudaError_t ck_spdnn_finish(int layers, const float *y, int64_t neurons, int64_t stride,
                            const struct ck_spdnn_state *state, int32_t *category, float *packed, cudaStream_t stream);

/* ---- cuda/spdnn/spdnn_deep.cu: several layers a launch, for networks of which a block can hold a tile of inputs ----
 */

enum {
    CK_SPDNN_DEEP_ROWS   = 16,
    CK_SPDNN_DEEP_GROUPS = 64, /* of a layer at most */
    CK_SPDNN_DEEP_TILE   = 32, /* inputs */
    CK_SPDNN_DEEP_LAYERS = 56  /* of a launch at most */
};
struct ck_spdnn_deep_state {
    int32_t  *live;      /* [layers + 1], as above */
    int32_t  *origin[2]; /* [stride]: the input that is in a place of a tile */
    int32_t  *place;     /* [stride]: where an input is at the end, if it is alive */
    uint8_t  *alive;     /* [stride]: by input, at the end */
    float    *handed;    /* [blocks][neurons][32]: tiles between two blocks */
    uint32_t *ready;     /* [blocks] */
};
struct ck_spdnn_deep {
    int             count, index; /* of layers; the first one's in the network */
    int             neurons, blocks;
    uint32_t        launch;     /* 0 for the first of a run */
    bool            keep, last; /* all count as living; the run ends here */
    const float    *x;          /* tiles */
    const uint32_t *bit;        /* first launch: instead of x, as ck_spdnn_start takes them */
    int64_t         words;
    float          *y;
};
/* Can a block of so much shared memory hold a tile of so many neurons? */
bool        ck_spdnn_deep_fits(int64_t neurons, int shared_bytes);
cudaError_t ck_spdnn_deep_start(int layers, int64_t count, int64_t stride, int blocks,
                                const struct ck_spdnn_deep_state *state, cudaStream_t stream);
/* layer[deep->count], all with 16 rows a group, 64 groups at most and weights of one type. */
cudaError_t ck_spdnn_deep(const struct ck_spdnn_layer *layer, const struct ck_spdnn_deep *deep,
                          const struct ck_spdnn_deep_state *state, cudaStream_t stream);
cudaError_t ck_spdnn_deep_finish(int layers, int64_t launches, int64_t count, const float *y, int64_t neurons,
                                 int64_t stride, const struct ck_spdnn_deep_state *state, int32_t *category,
                                 float *packed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

/* sparse_nm.h: convolutions with a 2:4 sparse filter on the sparse tensor cores. Conventions of kernels.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; 16-bit data, sums in f32, one rounding.
 *
 * Of any 4 neighbouring input channels of a filter's tap at most 2 are kept. The filter is operand A (rows are output channels), pixels
 * are operand B. It is packed on the host for one plan; the packed values can be filled again from a dense filter with the same kept
 * places on the device. */
#ifndef CK_SPARSE_NM_H
#define CK_SPARSE_NM_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CK_NM_ROWS  = 64,                     /* output channels of a block */
    CK_NM_STEP  = 32,                     /* input channels of a step: one instruction's */
    CK_NM_UNIT  = 2 * CK_NM_ROWS * CK_NM_STEP / 2, /* kept values of a unit: two steps of a block */
    CK_NM_WORDS = 128,                    /* words of metadata of a unit */
    CK_NM_STEPS = 64,                     /* steps of a chunk, at most */
    CK_NM_BYTES = CK_NM_UNIT * 2 + CK_NM_WORDS * 4
};

/* How the work is cut. Input channels pass in chunks; a chunk's steps are its taps, in the order R,S, times its groups of 32 channels.
 * wgmma: a tile is some whole rows of an image, or whole images, whose inputs lie in shared memory once for all taps; or, of 1x1
 * filters, any pixels one after the other. Else: tiles of 128 pixels. */
struct ck_nm_plan {
    bool    wgmma;
    int     chunk, chunks, steps, units;  /* steps of a chunk; units of all chunks: their steps in pairs */
    int64_t blocks;                       /* of output channels */
    int     columns;                      /* of an instruction: positions of a tile */
    int     down, across;                 /* blocks, tiles that a thread block's warpgroups have; one of them each */
    int     stages, ring;                 /* chunks of input, units of filter in shared memory */
    bool    linear;
    int     images, TP, pitch, image_rows; /* of a tile: images, rows of y of each; positions a row, rows from image to image */
    int     strips;                       /* tiles of an image's rows */
    int     phase_s, positions;           /* phases of the stride across; positions staged for a phase */
    int     staged, plane;                /* positions of all phases; from 8 channels to the next 8, positions */
    int64_t tiles;                        /* of positions */
    int     shared_bytes;
    double  cycles;                       /* of a launch, as foreseen */
    int     at[CK_NM_STEPS];              /* first position of a step's operand B */
};

struct ck_nm_args {
    struct ck_conv conv;    /* f16 or bf16 */
    const void    *x;
    const void    *filter;  /* packed */
    const float   *bias;    /* [K] or NULL */
    const void    *add;     /* like y, or NULL; y may be add */
    bool           relu;
    void          *y;
};

/* Ways of cutting: 1..ck_nm_ways() force one each, the first being mma.sp's (compute capability 8.0 and up; the others 9.0 alone); way 0
 * is the one with the fewest cycles by arithmetic. false: not with this way. C and K are multiples of 8. */
int         ck_nm_ways(void);
bool        ck_nm_make(const struct ck_conv *conv, int way, int capability, int multiprocessors, struct ck_nm_plan *plan);
/* Bytes of the packed filter, and elements of its list of places. */
size_t      ck_nm_packed_bytes(const struct ck_nm_plan *plan);
int64_t     ck_nm_packed_values(const struct ck_nm_plan *plan);
/* On the host. values[K][R*S*C16/2] and places[K][R*S*C16/16] as of cr_sparse_24_encode of a filter K,R,S,C16, whose C is filled up with
 * zeros to a multiple of 16, C16. `from` may be NULL: from[i] is then the element of the dense filter K,R,S,C that is packed value i;
 * UINT32_MAX: none, it is 0. */
void        ck_nm_pack(const struct ck_conv *conv, const struct ck_nm_plan *plan, const uint16_t *values, const uint16_t *places,
                       void *packed, uint32_t *from);
/* Values of `packed` from the dense filter: the same kept places, new values. */
cudaError_t ck_nm_refresh(const struct ck_nm_plan *plan, const void *dense, const uint32_t *from, void *packed, cudaStream_t stream);
cudaError_t ck_nm_conv(const struct ck_nm_args *args, const struct ck_nm_plan *plan, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

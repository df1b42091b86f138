/* cuda/train/muon.h: launchers of cuda/train/muon.cu: Muon, and its direction but for the matrix products, which are
 * cuBLAS's. Conventions: cuda/common/launchers.h. */
#ifndef CK_MUON_H
#define CK_MUON_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

struct ck_muon {
    struct ck_rule rule;      /* owner and norms are not read */
    const float   *direction; /* [elems] */
    const float   *factor;    /* [elems / CK_SGD_BLOCK], factor of the direction; 0: the block has AdamW's rule */
};
/* Same effect on parameters and state as ck_adamw, with Muon's rule for the blocks that have a factor. */
cudaError_t ck_muon(const struct ck_muon *args, cudaStream_t stream);

struct ck_muon_input {
    const float               *grad, *momentum, *norm; /* as in ck_sgd */
    const double              *state;
    const uint8_t             *mask;       /* as in ck_sgd; or NULL */
    const struct ck_step      *step;       /* device memory */
    const struct ck_norm_tile *tile;       /* [tiles], device memory: the elements of all filters */
    const int32_t             *first_tile; /* [filters + 1], device memory */
    float                     *y;          /* [elems] */
    int64_t                    elems;
    double                     least; /* of the norms */
    int                        tiles, filters;
    bool                       nesterov;
};
/* Workspace of ck_muon_input in bytes. */
size_t ck_muon_input_workspace(int tiles);
/* y = the momentum after the update, or Nesterov's; 0 where the mask is 0, outside the tiles, and everywhere when
 * norm[1] is not 0. inverse[filter] = 1 / max(root of the sum of its squares, least). Tiles as in ck_param_norms. */
cudaError_t ck_muon_input(const struct ck_muon_input *args, double *inverse, void *workspace, cudaStream_t stream);

/* Filters of the same shape: filter f is y[offset[f]..] and x[f * elems..]. */
struct ck_muon_group {
    enum ck_type   type;    /* of x */
    const int64_t *offset;  /* [filters], device memory */
    const double  *inverse; /* [filters], device memory */
    int64_t        elems;
    int            filters;
};
/* x = y * inverse */
cudaError_t ck_muon_load(const struct ck_muon_group *group, const float *y, void *x, cudaStream_t stream);
/* y = x */
cudaError_t ck_muon_store(const struct ck_muon_group *group, const void *x, float *y, cudaStream_t stream);

/* p = a I + b from + c square for `count` matrices of rows x rows elements; p may be `from`. */
struct ck_muon_polynomial {
    enum ck_type type; /* of p and from */
    const void  *from;
    const float *square;
    void        *p;
    int64_t      rows;
    int          count;
    float        a, b, c;
};
cudaError_t ck_muon_polynomial(const struct ck_muon_polynomial *args, cudaStream_t stream);

CK_C_END

#endif

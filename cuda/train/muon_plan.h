/* cuda/train/muon_plan.h: which filters Muon's direction multiplies together, on which stream, and where their matrices
 * are in the workspace. */
#ifndef CR_MUON_PLAN_H
#define CR_MUON_PLAN_H

#include "cuda/core/cuda_device.h"
#include "cuda/train/muon.h"
#include "graph/muon.h"

enum { MUON_BRANCHES = 4 };

/* Filters of the same shape. */
struct muon_group {
    int64_t rows, columns; /* of a filter, not transposed */
    int     first, count;  /* filters */
    int     branch;
    bool    joins; /* two iterations are done together */
};

struct muon_plan {
    struct muon_group   *group;
    int                 *param; /* [filters], sorted by group; indices into the parameter store */
    int                  groups, filters, tiles;
    struct ck_norm_tile *tile; /* device memory, like the next two; NULL on an offline device */
    int32_t             *first_tile;
    int64_t             *offset;                /* [filters] */
    cudaStream_t         stream[MUON_BRANCHES]; /* NULL for branch 0, which uses the op's, and on offline devices */
    cudaEvent_t          ready, done[MUON_BRANCHES];
};

/* Bytes from the start of a branch, which begins with the workspace of cuBLAS: the matrices of struct work
 * (cuda/train/muon_kernels.c). */
struct muon_layout {
    size_t x, next, a, p, q, t, square, end;
};

static inline int64_t muon_smaller(const struct muon_group *g) {
    return CR_MIN(g->rows, g->columns);
}

/* Makes the plan of the store's filters, with device memory, streams and events unless the device is offline. The
 * caller closes *out with cr_muon_plan_close. */
CR_MUST cr_status cr_muon_plan_open(struct cr_device *device, const struct cr_param_store *store,
                                    struct muon_plan **out);
void              cr_muon_plan_close(void *plan);
/* The workspace: inverse norms (from byte 0), sums of tiles (from cr_muon_part_start), then the branches. `elem`: bytes
 * of an element. Branch MUON_BRANCHES starts where the workspace ends. */
size_t             cr_muon_part_start(const struct muon_plan *plan);
size_t             cr_muon_branch_start(const struct muon_plan *plan, int branch, size_t elem);
struct muon_layout cr_muon_layout(const struct muon_group *group, size_t elem);

#endif

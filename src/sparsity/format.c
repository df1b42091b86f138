/* sparsity/format.c: the numbers of the sparse weight formats and their tile configs; see sparsity/format.h. */
#include "sparsity/format.h"

#include "core/base.h"

/* The tests of the GPU kernels compare `tiles` with the kernels' own numbers of tile configs. */
static const struct {
    int first; /* number of tile config 0 */
    int tiles;
} kernels[CR_SPARSE_KERNELS] = {
    [CR_SPARSE_ROWS] = {.first = 0, .tiles = 1},       [CR_SPARSE_DIRECT] = {.first = 1, .tiles = 14},
    [CR_SPARSE_MMA_SP] = {.first = 15, .tiles = 24},   [CR_SPARSE_TWO_FOUR] = {.first = 48, .tiles = 4},
    [CR_SPARSE_WGMMA_SP] = {.first = 52, .tiles = 10}, [CR_SPARSE_BLOCK] = {.first = 64, .tiles = 13},
};

int cr_sparse_tiles(enum cr_sparse_kernel kernel) {
    CR_ASSERT((unsigned)kernel < CR_SPARSE_KERNELS);
    return kernels[kernel].tiles;
}

struct cr_sparse_format cr_sparse_format_at(int index) {
    struct cr_sparse_format format = {.kernel = CR_SPARSE_ROWS, .tile = index};
    CR_ASSERT(index >= 0 && index < CR_SPARSE_FORMATS);
    while (format.tile >= kernels[format.kernel].tiles) format.tile -= kernels[format.kernel++].tiles;
    return format;
}

int cr_sparse_format_number(struct cr_sparse_format format) {
    CR_ASSERT((unsigned)format.kernel < CR_SPARSE_KERNELS && format.tile >= 0);
    return kernels[format.kernel].first + format.tile;
}

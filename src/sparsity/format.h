/* sparsity/format.h: weight formats of sparse convolutions.
 *
 * A weight format is one of the device's packed forms of the nonzero weights, together with the kernel that reads this
 * form: a kernel and one of its tile configs. This header does not depend on devices: a device may have all formats, a
 * few or none. */
#ifndef CR_SPARSITY_FORMAT_H
#define CR_SPARSITY_FORMAT_H

enum cr_sparse_kernel {
    CR_SPARSE_ROWS,     /* the nonzeros of each row, without tiles: SELL slices on a GPU, linearised offsets on a CPU */
    CR_SPARSE_DIRECT,   /* linearised offsets, the input in shared memory */
    CR_SPARSE_MMA_SP,   /* sparse tensor cores, any pattern */
    CR_SPARSE_TWO_FOUR, /* sparse tensor cores, 2:4 patterns, 16 bits */
    CR_SPARSE_WGMMA_SP, /* sparse tensor cores of compute capability 9.0, any pattern, FP32 */
    CR_SPARSE_BLOCK,    /* tensor cores, dense blocks of 64 x 64 channels, 16 bits */
    CR_SPARSE_KERNELS
};
struct cr_sparse_format {
    enum cr_sparse_kernel kernel;
    int                   tile; /* tile config, from 0 */
};

/* The number of formats of all kernels. */
enum { CR_SPARSE_FORMATS = 66 };

/* Returns the number of tile configs of a kernel, at least 1. */
int cr_sparse_tiles(enum cr_sparse_kernel kernel);
/* Returns the format at `index` in [0, CR_SPARSE_FORMATS). Formats are in the order of their numbers. */
struct cr_sparse_format cr_sparse_format_at(int index);
/* Returns the number of a format in stored kernel times ("format18") and reports. The numbers of formats in files must
 * not change, so a kernel may have unused numbers after its last tile config. */
int cr_sparse_format_number(struct cr_sparse_format format);

#endif

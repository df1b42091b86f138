/* cuda/conv/mma/mma_gpu.h: what the kernels in cuda/conv/mma/ need to know of the GPU. They run on all GPUs from
 * compute capability 8.0 on; sizes of tiles and stages follow from its shared memory. */
#ifndef CK_MMA_GPU_H
#define CK_MMA_GPU_H

struct ck_mma_gpu {
    int multiprocessors;
    int block_bytes;          /* most shared memory of a thread block */
    int multiprocessor_bytes; /* shared memory of a multiprocessor */
};

#endif

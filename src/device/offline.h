/* device/offline.h: offline devices: GPUs that are not in this machine, for plans (device/gpu_table.c, offline.c).
 * And the memory of a GPU that programs do not count. */
#ifndef CR_DEVICE_OFFLINE_H
#define CR_DEVICE_OFFLINE_H

#include "device/device.h"

/* Device memory that programs do not count.
 * CR_GPU_OVERHEAD_BYTES: CUDA, cuDNN, cuBLAS, loaded kernels and a graph on one GPU; 90 to 106 MiB for all networks
 * tried on an H200 with CUDA 13.0.
 * CR_GPU_CONTEXT_BYTES: CUDA's context, for GPUs that are not open; about 500 MiB on an H200.
 * CR_GPU_HOST_PAGES: bytes of page-locked memory for each byte of page tables on the GPU (8 bytes for 4 KiB).
 * CR_GPU_NCCL_BYTES: NCCL in plans for several ranks; 850 MiB were measured between two H200s. */
enum {
    CR_GPU_OVERHEAD_BYTES = 112 << 20,
    CR_GPU_CONTEXT_BYTES  = 512 << 20,
    CR_GPU_HOST_PAGES     = 512,
    CR_GPU_NCCL_BYTES     = 864 << 20
};

/* A GPU by its data sheet. Rates are those that large dense kernels reach. */
struct cr_gpu {
    const char *name;                        /* value of --target: "h200" */
    const char *text;                        /* "NVIDIA H200" */
    int         cc;                          /* compute capability times 10: 90 for 9.0 */
    int         multiprocessors;             /* number of streaming multiprocessors */
    size_t      memory_bytes;                /* as the driver reports it */
    double      bytes_per_s;                 /* memory bandwidth */
    double      flops_per_s;                 /* dense 16-bit matrix products with sums in f32 */
    double      f32_fraction, tf32_fraction; /* rates in F32 and TF32 as a fraction of flops_per_s */
    double      copy_bytes_per_s;            /* copies from or to page-locked host memory, each direction */
    int         clock_khz, memory_khz; /* highest clock rates of multiprocessors and memory, as the driver has them */
    size_t      l2_bytes;
};
/* Returns the GPU of this name, or NULL. */
const struct cr_gpu *cr_gpu_find(const char *name);
/* Bytes of memory of the GPU, or of the smaller one that options->card_bytes describes. */
size_t cr_gpu_memory(const struct cr_gpu *gpu, const struct cr_device_options *options);
/* Appends all names, with `separator` between them. */
void cr_gpu_names(const char *separator, struct cr_text *out);
/* Opens a device that can be queried (kernels, accepts, workspace sizes) but cannot reserve memory or launch. The
 * answers come from the kernels that would run on the GPU: CR_ERR_DEVICE when this build has no CUDA, or this machine
 * lacks a library that they need. No GPU is needed. The process must not open a GPU, before or later: the GPUs of this
 * machine are hidden, because cuDNN's answers depend on them. The device keeps the pointer `gpu`. */
CR_MUST cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                      struct cr_device **out);

#endif

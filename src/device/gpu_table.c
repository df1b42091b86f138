/* device/gpu_table.c: data sheets of GPUs (memory bandwidth, TFLOP/s, L2) for offline plans. */
#include "device/device.h"
#include "device/offline.h"

#include <string.h>
#include <strings.h>

/* Sources: NVIDIA's data sheets and architecture papers, dense rates with sums in f32; clock rates and L2 as the driver
 * reports them.
 *   H200 SXM          4.8  TB/s, 989 TFLOP/s in 16 bits, 495 in TF32, 67 in f32
 *   H100 SXM          3.35 TB/s, the same TFLOP/s
 *   A100 SXM 80 GB    2.04 TB/s, 312, 156, 19.5
 *   L40S              0.864 TB/s, 362, 183, 91.6
 *   L4                0.3  TB/s, 121, 60, 30.3
 *   GeForce RTX 5090  1.79 TB/s, 209.5, 104.8, 104.8 (RTX Blackwell architecture paper)
 *   GeForce RTX 4090  1.01 TB/s, 165, 83, 83 (Ada architecture paper)
 *   GeForce RTX 3090  0.936 TB/s, 71, 35.6, 35.6 (GA102 architecture paper)
 *   GeForce RTX 3060  0.36 TB/s, 25.5, 12.7, 12.7, 12 GB
 * Kernels reach 0.875 of the memory bandwidth and 0.8 of the FLOP/s; the CUDA backend assumes the same for a GPU that
 * is present. memory_bytes is the total that nvidia-smi shows. PCIe 5.0 x16 (H200, H100, RTX 5090) and 4.0 x16 carry
 * 63 and 31.5 GB/s in each direction. Copies of page-locked memory reach 0.86 of that. */
#define MIB ((size_t)1 << 20)
#define REACHED_BANDWIDTH(tb_per_s) (0.875 * 1e12 * (tb_per_s))
#define REACHED_FLOPS(tflop_per_s) (0.8 * 1e12 * (tflop_per_s))
static const struct cr_gpu gpus[] = {
    {"h200", "NVIDIA H200", 90, 132, 143771 * MIB, REACHED_BANDWIDTH(4.8), REACHED_FLOPS(989), 67.0 / 989, 0.5, 54e9,
     1980000, 3201000, 50 * MIB},
    {"h100", "NVIDIA H100", 90, 132, 81559 * MIB, REACHED_BANDWIDTH(3.35), REACHED_FLOPS(989), 67.0 / 989, 0.5, 54e9,
     1980000, 2619000, 50 * MIB},
    {"a100", "NVIDIA A100", 80, 108, 81920 * MIB, REACHED_BANDWIDTH(2.04), REACHED_FLOPS(312), 19.5 / 312, 0.5, 27e9,
     1410000, 1593000, 40 * MIB},
    {"l40s", "NVIDIA L40S", 89, 142, 46068 * MIB, REACHED_BANDWIDTH(0.864), REACHED_FLOPS(362), 91.6 / 362, 0.5, 27e9,
     2520000, 9001000, 96 * MIB},
    {"l4", "NVIDIA L4", 89, 58, 23034 * MIB, REACHED_BANDWIDTH(0.3), REACHED_FLOPS(121), 0.25, 0.5, 27e9, 2040000,
     6251000, 48 * MIB},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 32607 * MIB, REACHED_BANDWIDTH(1.79), REACHED_FLOPS(209.5), 0.5,
     0.5, 54e9, 2407000, 14001000, 96 * MIB},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 24564 * MIB, REACHED_BANDWIDTH(1.01), REACHED_FLOPS(165), 0.5, 0.5,
     27e9, 2520000, 10501000, 72 * MIB},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 24576 * MIB, REACHED_BANDWIDTH(0.936), REACHED_FLOPS(71), 0.5, 0.5,
     27e9, 1695000, 9751000, 6 * MIB},
    {"rtx3060", "NVIDIA GeForce RTX 3060", 86, 28, 12288 * MIB, REACHED_BANDWIDTH(0.36), REACHED_FLOPS(25.5), 0.5, 0.5,
     27e9, 1777000, 7501000, 9 * MIB / 4},
};

const struct cr_gpu *cr_gpu_find(const char *name) {
    for (size_t i = 0; i < CR_COUNT(gpus); i++)
        if (strcasecmp(gpus[i].name, name) == 0) return &gpus[i];
    return NULL;
}

void cr_gpu_names(const char *separator, struct cr_text *out) {
    for (size_t i = 0; i < CR_COUNT(gpus); i++) cr_text_add(out, "%s%s", i ? separator : "", gpus[i].name);
}

size_t cr_gpu_memory(const struct cr_gpu *gpu, const struct cr_device_options *options) {
    return options->card_bytes ? CR_MIN(options->card_bytes, gpu->memory_bytes) : gpu->memory_bytes;
}

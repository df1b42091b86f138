/* device/offline.c: opens offline devices: GPUs that are not in this machine. See device/offline.h. */
#include "device/offline.h"

#include <stdio.h>

enum { ALIGNMENT = 256 };
/* Copies in both directions at once reach this part of the rate of one direction (measured on an H200). */
#define DUPLEX_FRACTION 0.86

static void set_caps(const struct cr_gpu *gpu, struct cr_device_caps *caps) {
    caps->alignment            = ALIGNMENT;
    caps->bytes_per_s          = gpu->bytes_per_s;
    caps->flops_per_s          = gpu->flops_per_s;
    caps->f32_fraction         = gpu->f32_fraction;
    caps->tf32_fraction        = gpu->tf32_fraction;
    caps->half                 = true;
    caps->concurrent_kernels   = true;
    caps->overhead_bytes       = CR_GPU_OVERHEAD_BYTES;
    caps->context_bytes        = CR_GPU_CONTEXT_BYTES;
    caps->host_memory_overhead = 1.0 / CR_GPU_HOST_PAGES;
    caps->to_host_bytes_per_s = caps->to_device_bytes_per_s = DUPLEX_FRACTION * gpu->copy_bytes_per_s;
    caps->copy_latency_s                                    = 10e-6;
    caps->duplex_speedup                                    = 1 / DUPLEX_FRACTION;
    if (snprintf(caps->text, sizeof caps->text,
                 "%s, %.0f GiB, compute capability %d.%d, from its data sheet; kernels queried", gpu->text,
                 (double)gpu->memory_bytes / (1 << 30), gpu->cc / 10, gpu->cc % 10) < 0)
        caps->text[0] = 0;
}

cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                              struct cr_device **out) {
    *out = NULL;
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        if (!(*b)->open_offline) continue;
        CR_TRY((*b)->open_offline(gpu, options, out));
        set_caps(gpu, &(*out)->caps);
        return CR_OK;
    }
    return CR_FAIL(CR_ERR_DEVICE,
                   "a plan for the %s asks the kernels for that GPU, and this build has none: build cresnet with CUDA "
                   "(cmake -DCRESNET_WITH_CUDA=ON); a GPU is not needed",
                   gpu->text);
}

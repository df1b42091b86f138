/* cuda/offline_device.c: an offline device: a GPU that is not in this machine, opened for planning only.
 * Its kernels report which ops they accept and how much workspace they need. cuDNN gets a description of the GPU. The
 * libraries are required; a driver and a GPU are not. */
#include "cuda/common/conv_family.h"
#include "cuda/conv/cudnn/cudnn_graph.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/libraries.h"
#include "device/capability.h"
#include "device/offline.h"

static void offline_close(struct cr_device *base) {
    struct cuda_device *d = cuda_of(base);
    cr_cudnn_cache_close(d->plans);
    cr_cuda_filter_close(d->filter);
    cr_free(d);
}

static size_t offline_memory(struct cr_device *base) {
    return cr_gpu_memory(cuda_of(base)->offline, &base->options);
}

static const struct cr_backend offline_backend = {.name        = "cuda",
                                                  .close       = offline_close,
                                                  .memory_free = offline_memory,
                                                  .async       = &cr_cuda_async,
                                                  .jpeg        = &cr_cuda_jpeg};

cr_status cr_cuda_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                               struct cr_device **out) {
    if (cr_cuda_libs_missing()) return CR_FAIL(CR_ERR_DEVICE, "%s", cr_cuda_libs_missing());
    if (cr_cudnn_offline_unsupported()) return CR_FAIL(CR_ERR_DEVICE, "%s", cr_cudnn_offline_unsupported());
    return cr_cuda_open_offline_kernels(gpu, options, out);
}

cr_status cr_cuda_open_offline_kernels(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                       struct cr_device **out) {
    struct cuda_device *d;
    if (cr_cuda_libs_missing()) return CR_FAIL(CR_ERR_DEVICE, "%s", cr_cuda_libs_missing());
    CR_ALLOC(d, 1);
    d->base.backend                   = &offline_backend;
    d->base.options                   = *options;
    d->cc                             = gpu->cc;
    d->families                       = ck_families_of(gpu->cc);
    d->multiprocessors                = gpu->multiprocessors;
    d->offline                        = gpu;
    d->l2_bytes                       = (int64_t)gpu->l2_bytes;
    const struct cr_capability limits = cr_capability_of(gpu->cc);
    d->block_bytes                    = (int)limits.block_bytes;
    d->multiprocessor_bytes           = (int)limits.multiprocessor_bytes;
    cr_cuda_collect_kernels(d);
    d->base.kernels = d->kernels.kernel;
    *out            = &d->base;
    return CR_OK;
}

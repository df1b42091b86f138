/* cuda/core/family_kernels.c: kernels of the kernel table whose host half is a family of convolutions; see
 * cuda/core/family_kernels.h. */
#include "cuda/core/family_kernels.h"

#include <stddef.h>

union args {
    max_align_t   align;
    unsigned char bytes[CUDA_FAMILY_ARGS_BYTES];
};

/* NULL: this GPU has no such family. */
static const struct ck_conv_family *family_of(const struct cr_device *device, const struct cuda_family_kernel *kernel) {
    const char *families = (const char *)cuda_of(device)->families;
    return *(const struct ck_conv_family *const *)(const void *)(families + kernel->family);
}

static struct ck_gpu gpu_of(const struct cr_device *device) {
    const struct cuda_device *d = cuda_of(device);
    return (struct ck_gpu){.multiprocessors      = d->multiprocessors,
                           .block_bytes          = d->block_bytes,
                           .multiprocessor_bytes = d->multiprocessor_bytes};
}

int cuda_family_configs(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        const struct cuda_family_kernel *kernel) {
    const struct ck_conv_family *family = family_of(device, kernel);
    const struct ck_gpu          gpu    = gpu_of(device);
    union args                   args;
    return family && kernel->args(p, op, NULL, &args) ? family->configs(&args, &gpu) : 0;
}

size_t cuda_family_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             const struct cuda_family_kernel *kernel) {
    const struct ck_gpu gpu = gpu_of(device);
    union args          args;
    if (!kernel->args(p, op, NULL, &args)) CR_ASSERT(!"accepts rejects this op");
    return family_of(device, kernel)->workspace(&args, &gpu);
}

cr_status cuda_family_launch(struct cr_device *device, const struct cr_call *call,
                             const struct cuda_family_kernel *kernel) {
    const struct ck_gpu gpu = gpu_of(device);
    union args          args;
    if (!kernel->args(call->program, call->op, call, &args)) CR_ASSERT(!"accepts rejects this op");
    return CUDA_STATUS(family_of(device, kernel)->launch(&args, call->workspace, &gpu, cr_cuda_stream(device, call)));
}

/* device/cpu/registry.c: the table of the CPU's kernels. The ref kernels are last and accept every op. */
#include "device/cpu/cpu.h"

static void ref_release(void *prepared) {
    (void)prepared;
}

/* One ref kernel for each op of graph/ops.def. It sums in FP64 and rounds outputs once, so its math is F64. */
#define OP(kind, what)                                                                                                 \
    static const struct cr_kernel ref_##kind = {CR_KERNEL("ref." #kind, kind, CR_MATH_F64), .reference = true,         \
                                                .prepare = cr_ref_prepare, .release = ref_release,                     \
                                                .launch = cr_ref_##kind};
#include "graph/ops.def"

const struct cr_kernel *const cr_cpu_ref_kernels[] = {
#define OP(kind, what) &ref_##kind,
#include "graph/ops.def"
    NULL};

static int append(struct cpu_device *device, int count, const struct cr_kernel *const *kernels) {
    for (; *kernels; kernels++) {
        CR_ASSERT(count < CR_CPU_KERNELS_MAX);
        device->kernels[count++] = *kernels;
    }
    device->kernels[count] = NULL;
    return count;
}

void cr_cpu_collect_kernels(struct cpu_device *device) {
    int count = 0;
    if (!device->base.options.ref_only) {
#ifdef CR_WITH_ONEDNN
        count = append(device, count, cr_cpu_dnnl_kernels);
        if (cr_cpu_dnnl_has_exact_int8()) count = append(device, count, cr_cpu_dnnl_int8_kernels);
#endif
        count = append(device, count, cr_cpu_fast_kernels);
    }
    append(device, count, cr_cpu_ref_kernels);
}

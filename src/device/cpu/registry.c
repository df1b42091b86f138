/* device/cpu/registry.c: the table of the CPU's kernels. The ref kernels are last and accept every op. */
#include "device/cpu/cpu.h"

/* One ref kernel for each op of graph/ops.def. It sums in FP64 and rounds outputs once, so its math is F64. */
const struct cr_kernel cr_cpu_ref_kernels[] = {
#define OP(kind, what)                                                                                                 \
    {CR_KERNEL("ref." #kind, kind, CR_MATH_F64), .reference = true, .workspace = cr_ref_workspace,                     \
     .launch = cr_ref_##kind},
#include "graph/ops.def"
    {0}};

static void append(struct cpu_device *device, const struct cr_kernel *const *rows) {
    for (; *rows; rows++) cr_kernel_list_add_row(&device->kernels, *rows);
}

void cr_cpu_collect_kernels(struct cpu_device *device) {
    if (!device->base.options.ref_only) {
#ifdef CR_WITH_ONEDNN
        append(device, cr_cpu_dnnl_kernels);
        if (cr_cpu_dnnl_has_exact_int8()) append(device, cr_cpu_dnnl_int8_kernels);
#endif
        append(device, cr_cpu_fast_kernels);
    }
    cr_kernel_list_add(&device->kernels, cr_cpu_ref_kernels);
}

/* device/cpu/registry.c: the table of the CPU's kernels. The ref kernels are last and accept every op. */
#include "device/cpu/cpu.h"

/* One ref kernel for each op of graph/ops.def. It sums in FP64 and rounds outputs once, so its math is F64. */
const struct cr_kernel cr_cpu_ref_kernels[] = {
#define OP(kind, what)                                                                                                 \
    {CR_KERNEL("ref." #kind, kind, CR_MATH_F64), .reference = true, .workspace = cr_ref_workspace,                     \
     .launch = cr_ref_##kind},
#include "graph/ops.def"
    {0}};

/* The function of the reference kernel, under a name that says how the sum is computed. */
static const struct cr_kernel shm_kernels[] = {
    {CR_KERNEL("shm.all_reduce", all_reduce, CR_MATH_EXACT), .dtypes = CR_TYPES_F32, .launch = cr_ref_all_reduce}, {0}};

/* No op has two of these kernels, so their order does not matter. */
static const struct cr_kernel *const tuned[] = {cr_cpu_bn_kernels,    cr_cpu_bn_apply_kernels, cr_cpu_pointwise_kernels,
                                                cr_cpu_drop_kernels,  cr_cpu_pool_kernels,     cr_cpu_optim_kernels,
                                                cr_cpu_muon_kernels,  cr_cpu_dense_kernels,    cr_cpu_sparse_kernels,
                                                cr_cpu_quant_kernels, cr_cpu_qconv_kernels,    shm_kernels};

void cr_cpu_collect_kernels(struct cpu_device *device) {
    struct cr_kernel_list *list = &device->kernels;
    if (!device->base.options.ref_only) {
#if defined(__x86_64__)
        if (device->base.options.bf16 && cr_cpu_has(CR_CPU_AMX_BF16)) {
            cr_kernel_list_add(list, cr_cpu_conv_bf16_kernels);
            cr_kernel_list_add(list, cr_cpu_conv_wgrad_bf16_kernels);
        }
#endif
        if (cr_cpu_level() == CR_CPU_AVX512) {
            cr_kernel_list_add(list, cr_cpu_conv3_kernels);
            cr_kernel_list_add(list, cr_cpu_conv3_wgrad_kernels);
        }
        cr_kernel_list_add(list, cr_cpu_conv_kernels);
        cr_kernel_list_add(list, cr_cpu_conv_wgrad_kernels);
#ifdef CR_WITH_ONEDNN
        cr_kernel_list_add(list, cr_cpu_dnnl_kernels);
        if (cr_cpu_dnnl_is_best_int8()) cr_kernel_list_add(list, cr_cpu_dnnl_int8_kernels);
#endif
        for (size_t t = 0; t < CR_COUNT(tuned); t++) cr_kernel_list_add(list, tuned[t]);
    }
    cr_kernel_list_add(list, cr_cpu_ref_kernels);
}

/* device/cpu/onednn/dnnl_kernels.c: the tables of the oneDNN kernels. */
#include "device/cpu/onednn/dnnl.h"

const struct cr_kernel *const cr_cpu_dnnl_kernels[]      = {&cr_dnnl_conv,
                                                            &cr_dnnl_conv_dgrad,
                                                            &cr_dnnl_conv_wgrad,
                                                            &cr_dnnl_group_conv,
                                                            &cr_dnnl_group_conv_dgrad,
                                                            &cr_dnnl_group_conv_wgrad,
                                                            NULL};
const struct cr_kernel *const cr_cpu_dnnl_int8_kernels[] = {&cr_dnnl_qconv, &cr_dnnl_pack_filter, NULL};

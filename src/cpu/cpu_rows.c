/* cpu_rows.c: the table of the tuned rows. */
#include "cpu_lanes.h"

const struct cr_kernel *const cr_cpu_fast_rows[] = {
    &cr_cpu_bn_stats, &cr_cpu_bn_apply, &cr_cpu_bn_grad_stats, &cr_cpu_bn_grad_apply, &cr_cpu_relu, &cr_cpu_relu_grad,
    &cr_cpu_add, &cr_cpu_channel_scale, &cr_cpu_normalize, &cr_cpu_pad_shortcut, &cr_cpu_pad_shortcut_grad, &cr_cpu_maxpool,
    &cr_cpu_maxpool_grad, &cr_cpu_avgpool, &cr_cpu_avgpool_grad, &cr_cpu_grad_check, &cr_cpu_sgd,
    &cr_cpu_dense, &cr_cpu_dense_dgrad, &cr_cpu_dense_wgrad, &cr_cpu_conv3, &cr_cpu_conv3_dgrad,
    &cr_cpu_conv3_wgrad, NULL};

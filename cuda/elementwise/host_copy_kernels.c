/* cuda/elementwise/host_copy_kernels.c: kernels that copy tensors to host memory and back. They are copies on the
 * op's stream; the GPU's copy engines run them concurrently with compute. The executor orders them and inserts their
 * waits. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* The addresses give the direction, so that a test may offload to another place of the device. */
static cr_status copy(struct cr_device *device, const struct cr_call *call, int in, int out) {
    return CUDA_STATUS(cudaMemcpyAsync(call->out[out], call->in[in], cuda_out(call->program, call->op, out)->bytes,
                                       cudaMemcpyDefault, cr_cuda_stream(device, call)));
}

static cr_status offload_launch(struct cr_device *device, const struct cr_call *call) {
    return copy(device, call, CR_IN_offload_x, CR_OUT_offload_y);
}

static cr_status prefetch_launch(struct cr_device *device, const struct cr_call *call) {
    return copy(device, call, CR_IN_prefetch_x, CR_OUT_prefetch_y);
}

/* The op consists of its waits and its event only. */
static cr_status barrier_launch(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    (void)call;
    return CR_OK;
}

/* They copy bytes of any type. */
#define HOST_COPY_KERNEL(kind)                                                                                         \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_EXACT), .launch = kind##_launch }
const struct cr_kernel cr_cuda_host_copy_kernels[] = {
    HOST_COPY_KERNEL(offload), HOST_COPY_KERNEL(prefetch), HOST_COPY_KERNEL(barrier), {0}};

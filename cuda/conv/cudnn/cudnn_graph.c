/* cuda/conv/cudnn/cudnn_graph.c: builds operation graphs of cuDNN, and describes offline GPUs to it. */
#include "cuda/conv/cudnn/cudnn_descriptor.h"

#include "cuda/core/cuda_device.h"
#include "cuda/core/libraries.h"
#include "device/capability.h"
#include "device/offline.h"
#include "formats/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDNN_VERSION < 90800
#error "cresnet needs cuDNN 9.8 or later: older versions cannot build plans without a GPU"
#endif

enum { ALIGNMENT = 16, OFFLINE_VERSION = 91200 };

static void set_ints(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int64_t count,
                     const int64_t *values) {
    cudnn_set(g, d, name, CUDNN_TYPE_INT64, count, values);
}

static void set_type(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t type) {
    cudnn_set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

/* ---- devices ---- */

/* Writes cuDNN's own serialised description of a device. Properties that are equal on all GPUs are constants. */
static void describe(const struct cr_gpu *gpu, struct cr_text *json) {
    static const int           grid[3] = {2147483647, 65535, 65535}, block[3] = {1024, 1024, 64};
    const struct cr_capability limits = cr_capability_of(gpu->cc);
    struct cr_json_writer      w      = cr_json_writer(json, CR_JSON_COMPACT);
    cr_json_open_object(&w, NULL);
    cr_json_open_array(&w, "maxGridSize");
    for (int d = 0; d < 3; d++) cr_json_put_int(&w, NULL, grid[d]);
    cr_json_close_array(&w);
    cr_json_open_array(&w, "maxBlockSize");
    for (int d = 0; d < 3; d++) cr_json_put_int(&w, NULL, block[d]);
    cr_json_close_array(&w);
    cr_json_put_int(&w, "regsPerBlock", 65536);
    cr_json_put_int(&w, "multiProcessorCount", gpu->multiprocessors);
    cr_json_put_int(&w, "warpSize", 32);
    cr_json_put_int(&w, "maxSharedMemoryPerBlock", 49152);
    cr_json_put_int(&w, "maxSharedMemoryPerBlockOptin", (int64_t)limits.block_bytes);
    cr_json_put_int(&w, "reservedSharedMemoryPerBlock", 1024);
    cr_json_put_int(&w, "maxRegistersPerSM", 65536);
    cr_json_put_int(&w, "maxCtasPerSM", limits.blocks);
    cr_json_put_int(&w, "maxThreadsPerBlock", 1024);
    cr_json_put_int(&w, "maxThreadsPerSM", limits.threads);
    cr_json_put_int(&w, "pciDeviceId", 0);
    cr_json_put_int(&w, "isTccDriver", 0);
    cr_json_put_int(&w, "supportCoopLaunch", 1);
    cr_json_put_int(&w, "totalGlobalMem", (int64_t)gpu->memory_bytes);
    cr_json_put_int(&w, "smClockRateKHz", gpu->clock_khz);
    cr_json_put_int(&w, "memClockRateKHz", gpu->memory_khz);
    cr_json_put_int(&w, "l2CacheSize", (int64_t)gpu->l2_bytes);
    cr_json_put_int(&w, "cudaDeviceId", 0);
    cr_json_put_int(&w, "deviceVer", gpu->cc * 10);
    cr_json_put_int(&w, "driverVer", 13000);
    cr_json_put_string(&w, "deviceName", gpu->text);
    cr_json_close_object(&w);
}

/* cuDNN also queries the GPUs of this machine when it decides about an offline device: with an H200 in the machine,
 * cuDNN 9.19 supports no convolution with a fused prologue (act+conv) for compute capability 8.0, without a GPU it
 * does. The driver reads this variable when CUDA is first used. */
static void hide_gpus(void) {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}

/* Engines of older versions query how many blocks the GPU of this machine can hold, and divide by the answer, 0:
 * queries for ResNet-50's shapes ended with SIGFPE in 9.8.0 and 9.10.2. */
const char *cr_cudnn_offline_unsupported(void) {
    return cudnnGetVersion() < OFFLINE_VERSION ? "queries for a GPU that is not there need cuDNN 9.12 or newer" : NULL;
}

cr_status cr_cudnn_device_open_offline(const struct cr_gpu *gpu, struct cudnn_device *out) {
    struct cr_text json = {0};
    if (cr_cudnn_offline_unsupported()) return CR_FAIL(CR_ERR_DEVICE, "%s", cr_cudnn_offline_unsupported());
    hide_gpus();
    cudnnBackendDescriptor_t d = NULL;
    CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d));
    describe(gpu, &json);
    if (json.failed) {
        cudnn_destroy(d);
        cr_text_free(&json);
        return CR_NO_MEMORY(0);
    }
    cudnnStatus_t status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                    (int64_t)json.length + 1, json.data);
    cr_text_free(&json);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS) cudnn_destroy(d);
    CUDNN_TRY(status);
    *out = (struct cudnn_device){.offline = d};
    return CR_OK;
}

void cr_cudnn_device_close(struct cudnn_device *gpu) {
    cudnn_destroy(gpu->offline);
    *gpu = (struct cudnn_device){0};
}

/* ---- building ---- */

void cr_cudnn_graph_init(struct cudnn_graph *g, struct cudnn_device gpu) {
    cr_cuda_keep_nvrtc();
    *g = (struct cudnn_graph){.gpu = gpu, .refused = CUDNN_STATUS_SUCCESS, .broken = CUDNN_STATUS_SUCCESS};
}

void cr_cudnn_graph_close(struct cudnn_graph *g) {
    /* in reverse order of creation: a descriptor before those that it refers to */
    while (g->made_count) cudnn_destroy(g->made[--g->made_count]);
    *g = (struct cudnn_graph){0};
}

int cr_cudnn_tensor(struct cudnn_graph *g, cudnnDataType_t type, const int64_t dim[4], bool is_virtual) {
    /* cuDNN orders dimensions N,C,H,W for every layout; the strides give the layout. */
    const int64_t N = dim[0], H = dim[1], W = dim[2], C = dim[3];
    const int64_t dims[4] = {N, C, H, W}, strides[4] = {H * W * C, 1, W * C, C}, alignment = ALIGNMENT,
                  id           = g->tensors + 1;
    cudnnBackendDescriptor_t d = cudnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_ints(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &id);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set_ints(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dims);
    set_ints(g, d, CUDNN_ATTR_TENSOR_STRIDES, 4, strides);
    set_ints(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment);
    cudnn_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    cudnn_finalize(g, d);
    CR_ASSERT(g->tensors < CR_CUDNN_TENSORS);
    g->tensor[g->tensors] = d;
    return g->tensors++;
}

static void add_op(struct cudnn_graph *g, cudnnBackendDescriptor_t d) {
    CR_ASSERT(g->ops < CR_CUDNN_OPS);
    cudnn_finalize(g, d);
    g->op[g->ops++] = d;
}

static cudnnBackendDescriptor_t describe_window(struct cudnn_graph *g, const struct cudnn_window *w) {
    const int64_t axes = 2, pad[2] = {w->pad, w->pad}, stride[2] = {w->stride, w->stride}, dilation[2] = {1, 1};
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t     d    = cudnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &axes);
    set_type(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pad);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pad);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, stride);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilation);
    cudnn_finalize(g, d);
    return d;
}

void cr_cudnn_conv(struct cudnn_graph *g, enum cudnn_conv_kind kind, const struct cudnn_window *window, int x, int w,
                   int y, bool accumulate) {
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t  window, x, w, y, alpha, beta;
    } names[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    const float              alpha = 1, beta = accumulate ? 1 : 0;
    cudnnBackendDescriptor_t d = cudnn_make(g, names[kind].type);
    cudnn_set_descriptor(g, d, names[kind].window, describe_window(g, window));
    cudnn_set_descriptor(g, d, names[kind].x, g->tensor[x]);
    cudnn_set_descriptor(g, d, names[kind].w, g->tensor[w]);
    cudnn_set_descriptor(g, d, names[kind].y, g->tensor[y]);
    cudnn_set(g, d, names[kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    cudnn_set(g, d, names[kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    add_op(g, d);
}

/* Sums and products are computed in f32. */
static cudnnBackendDescriptor_t describe_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode) {
    cudnnBackendDescriptor_t d = cudnn_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    cudnn_finalize(g, d);
    return d;
}

void cr_cudnn_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, int a, int b, int y) {
    cudnnBackendDescriptor_t how = describe_pointwise(g, mode),
                             d   = cudnn_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    const bool backward          = mode == CUDNN_POINTWISE_RELU_BWD;
    cudnn_set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    cudnn_set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, g->tensor[a]);
    if (b >= 0)
        cudnn_set_descriptor(g, d,
                             backward ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                             g->tensor[b]);
    cudnn_set_descriptor(g, d, backward ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                         g->tensor[y]);
    add_op(g, d);
}

void cr_cudnn_sums(struct cudnn_graph *g, int x, int sum, int squares) {
    const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnBackendDescriptor_t  d    = cudnn_make(g, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    cudnn_set(g, d, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    set_type(g, d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
    cudnn_set_descriptor(g, d, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, g->tensor[x]);
    cudnn_set_descriptor(g, d, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, g->tensor[sum]);
    cudnn_set_descriptor(g, d, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, g->tensor[squares]);
    add_op(g, d);
}

/* device/cpu/onednn/dnnl.h: declarations that the oneDNN kernels share; private to device/cpu/onednn/.
 *
 * The C API of oneDNN 2.x and 3.x is supported. The differences are in device/cpu/onednn/dnnl_util.c and in the types
 * below. Tensors between ops are [N, H, W, C] and filters [K, R, S, C]; blocked filters exist within a launch only. The
 * scratchpad is part of the workspace (user mode), so a launch does not allocate. */
#ifndef CR_DNNL_H
#define CR_DNNL_H

#include "device/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>

/* Memory descriptors. own: created by cr_dnnl_md, freed by cr_dnnl_md_free. ref: an argument, or a descriptor that
 * oneDNN owns. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t       cr_dnnl_md_own;
typedef const_dnnl_memory_desc_t cr_dnnl_md_ref;
#define CR_DNNL_MD(own) (own)
#define CR_DNNL_ARG_FILTER_SCALES (DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS)
#define CR_DNNL_APPEND_SUM(ops) dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef)
#else
typedef dnnl_memory_desc_t        cr_dnnl_md_own;
typedef const dnnl_memory_desc_t *cr_dnnl_md_ref;
#define CR_DNNL_MD(own) (&(own))
#define CR_DNNL_ARG_FILTER_SCALES DNNL_ARG_ATTR_OUTPUT_SCALES
#define CR_DNNL_APPEND_SUM(ops) dnnl_post_ops_append_sum(ops, 1.0f)
#endif

struct cr_dnnl_layout; /* device/cpu/onednn/dnnl_layouts.c */
struct dnnl_handles {
    dnnl_engine_t          engine;
    dnnl_stream_t          stream;
    struct cr_dnnl_layout *layout; /* [layouts] of the 8-bit convolutions so far */
    int                    layouts, layout_capacity;
};
/* Returns the engine and stream of the device, which are created on first use. The device owns them. */
CR_MUST cr_status cr_dnnl_open(struct cr_device *device, struct dnnl_handles **out);

/* Converts a oneDNN status: CR_ERR_MEMORY or CR_ERR_DEVICE; `what` names the call in the message. */
CR_MUST cr_status cr_dnnl_check(dnnl_status_t status, const char *what);
#define DNNL_TRY_OUT(call) CR_TRY_OUT(cr_dnnl_check((call), #call))

/* dnnl_primitive_create, which crashes when there is no memory for its code; dnnl_out_of_memory then. */
dnnl_status_t cr_dnnl_primitive_create(dnnl_primitive_t *out, const_dnnl_primitive_desc_t desc);

/* Creates the descriptor of a tensor with `count` dimensions, of images in the order N, C, H, W, and this layout. */
CR_MUST cr_status cr_dnnl_md(cr_dnnl_md_own *md, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                             dnnl_format_tag_t tag);
void              cr_dnnl_md_free(cr_dnnl_md_own *md); /* accepts a zeroed descriptor */
/* Bytes of a tensor in the workspace. */
static inline size_t cr_dnnl_bytes(cr_dnnl_md_ref md) {
    return (size_t)cr_rounded_up((int64_t)dnnl_memory_desc_get_size(md), CR_CPU_ALIGN);
}

/* Operands of the forward convolution. */
struct cr_dnnl_conv_shape {
    cr_dnnl_md_ref x, w, y;
    dnnl_dims_t    strides, pads;
};
/* Creates the primitive descriptor of the forward convolution (CR_OP_group_conv) or one of its gradients; the caller
 * destroys it. */
CR_MUST cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *shape,
                                    dnnl_primitive_attr_t attr, dnnl_engine_t engine, dnnl_primitive_desc_t *out);
/* The 8-bit convolution. scale: factor of each output channel; add: the destination's previous value times add_scale is
 * added (types.has_add). The numbers are part of the primitive in oneDNN 2 and of the sum in oneDNN 3. */
struct cr_dnnl_qconv {
    struct cr_qconv_types types;
    int64_t               x[4], w[4], y[4]; /* N,H,W,C and K,R,S,C */
    int                   stride, pad;
    bool                  relu;
    const float          *scale; /* [K] */
    float                 add_scale;
};
/* Creates the primitive descriptor; the caller destroys it. */
CR_MUST cr_status cr_dnnl_qconv_desc(const struct cr_dnnl_qconv *conv, dnnl_engine_t engine,
                                     dnnl_primitive_desc_t *out);
/* Returns a descriptor of the same convolution with factors of 1, for its layouts and sizes. The device owns it. */
CR_MUST cr_status cr_dnnl_qconv_layout(struct cr_device *device, const struct cr_dnnl_qconv *conv,
                                       const_dnnl_primitive_desc_t *out);
void              cr_dnnl_layouts_free(struct dnnl_handles *handles);
#endif

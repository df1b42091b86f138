/* device/cpu/onednn/dnnl.h: what the oneDNN rows share. Private to src/cpu/dnnl_*.c.
 * oneDNN's C API, 2.x and 3.x: what differs between them stands in device/cpu/onednn/dnnl_util.c and in the three lines
 * below. NHWC and K,R,S,C cross op borders; blocked filters stay inside a launch. Scratchpads are ours (user mode), so
 * a launch allocates nothing. */
#ifndef CR_DNNL_H
#define CR_DNNL_H

#include "device/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>

/* A descriptor of memory: ours, made by cr_dnnl_md and ended by cr_dnnl_md_free; and one that oneDNN lends, or ours as
 * an argument. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t       cr_dnnl_md_own;
typedef const_dnnl_memory_desc_t cr_dnnl_md_ref;
#define CR_DNNL_MD(own) (own)
#else
typedef dnnl_memory_desc_t        cr_dnnl_md_own;
typedef const dnnl_memory_desc_t *cr_dnnl_md_ref;
#define CR_DNNL_MD(own) (&(own))
#endif

struct dnnl_handles {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};
/* The device's engine and stream, made on first use. */
CR_MUST cr_status cr_dnnl_open(struct cr_device *device, struct dnnl_handles **out);

/* Turns a oneDNN status into ours; `what` names the call. */
CR_MUST cr_status cr_dnnl_check(dnnl_status_t status, const char *what);
#define DNNL_TRY_OUT(call) CR_TRY_OUT(cr_dnnl_check((call), #call))

/* A tensor of four f32 dimensions (N,C,H,W) in this layout. */
CR_MUST cr_status cr_dnnl_md(cr_dnnl_md_own *md, const dnnl_dims_t dims, dnnl_format_tag_t tag);
void              cr_dnnl_md_free(cr_dnnl_md_own *md); /* one that is all zero is fine */

/* The forward convolution (kind CR_OP_conv) or one of its gradients; y is its result, x what it reads, seen forward. */
struct cr_dnnl_conv_shape {
    cr_dnnl_md_ref x, w, y;
    dnnl_dims_t    strides, pads;
};
CR_MUST cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *shape,
                                    dnnl_primitive_attr_t attr, dnnl_engine_t engine, dnnl_primitive_desc_t *out);
/* Results are added to what is there. */
CR_MUST cr_status cr_dnnl_append_sum(dnnl_post_ops_t ops);

/* Rows (see device/cpu/onednn/dnnl_kernels.c). */
extern const struct cr_kernel cr_dnnl_conv, cr_dnnl_conv_dgrad, cr_dnnl_conv_wgrad;

#endif

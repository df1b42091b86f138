/* dnnl.h: what the oneDNN rows share. Private to src/cpu/dnnl_*.c.
 * oneDNN 2.x C API. NHWC and K,R,S,C cross op borders; blocked filters stay inside a launch. Scratchpads are ours (user
 * mode), so a launch allocates nothing. */
#ifndef CR_DNNL_H
#define CR_DNNL_H

#include "cpu.h"

#include <oneapi/dnnl/dnnl.h>

struct dnnl_handles {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};
/* The device's engine and stream, made on first use. */
CR_MUST cr_status cr_dnnl_open(struct cr_device *device, struct dnnl_handles **out);

/* Turns a oneDNN status into ours; `what` names the call. */
CR_MUST cr_status cr_dnnl_check(dnnl_status_t status, const char *what);
#define DNNL_TRY_OUT(call) CR_TRY_OUT(cr_dnnl_check((call), #call))

/* Rows (see dnnl_rows.c). */
extern const struct cr_kernel cr_dnnl_conv, cr_dnnl_conv_dgrad, cr_dnnl_conv_wgrad;

#endif

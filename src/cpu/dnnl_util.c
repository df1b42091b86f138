/* dnnl_util.c: engine, stream, errors. See dnnl.h. */
#include "dnnl.h"

static void handles_close(void *opaque) {
    struct dnnl_handles *h = opaque;
    if (h->stream) dnnl_stream_destroy(h->stream);
    if (h->engine) dnnl_engine_destroy(h->engine);
    cr_free(h);
}

cr_status cr_dnnl_check(dnnl_status_t status, const char *what) {
    static const char *const names[] = {"success", "out of memory", "invalid arguments", "unimplemented",
                                        "iterator ends", "runtime error", "not required"};
    if (status == dnnl_success) return CR_OK;
    const char *name = (size_t)status < CR_COUNT(names) ? names[status] : "unknown";
    return CR_FAIL(status == dnnl_out_of_memory ? CR_ERR_MEMORY : CR_ERR_DEVICE, "oneDNN: %s (%s)", name, what);
}

cr_status cr_dnnl_open(struct cr_device *device, struct dnnl_handles **out) {
    struct cpu_device   *cpu = cpu_of(device);
    struct dnnl_handles *h   = cpu->dnnl;
    cr_status            status = CR_OK;
    if (h) {
        *out = h;
        return CR_OK;
    }
    CR_ALLOC(h, 1);
    DNNL_TRY_OUT(dnnl_engine_create(&h->engine, dnnl_cpu, 0));
    DNNL_TRY_OUT(dnnl_stream_create(&h->stream, h->engine, dnnl_stream_default_flags));
    cpu->dnnl       = h;
    cpu->dnnl_close = handles_close;
    *out            = h;
    return CR_OK;
out:
    handles_close(h);
    return status;
}

/* api/dlpack.c: images and logits as the tensors of other libraries (PyTorch, CuPy, JAX, NumPy), by the structures of
 * DLPack. See include/cresnet.h.
 *
 * Each call that returns logits on a GPU needs memory for them. cudaMalloc and cudaFree synchronise the GPU, so the
 * memory of deleted logits is reused by a later call on the same stream, which runs after all earlier work of this
 * stream that reads the old logits. Memory that another stream may read is not reused: it is freed, and cudaFree waits.
 */
#include "api/model.h"

#include <limits.h>
#include <stdio.h>

/* ---- the structures of DLPack (version 0 and the unversioned ones of version 1) ---- */

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2, DEVICE_CUDA_HOST = 3, DEVICE_CUDA_MANAGED = 13 };
enum { CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4 };

struct dl_tensor {
    void          *data;
    int32_t        device, device_index;
    int32_t        dims;
    uint8_t        code, bits; /* of the type of an element */
    uint16_t       lanes;
    const int64_t *dim;
    const int64_t *stride; /* in elements; NULL: without gaps */
    uint64_t       offset; /* bytes from `data` to the first element */
};

struct dl_managed_tensor {
    struct dl_tensor tensor;
    void            *context;
    void (*deleter)(struct dl_managed_tensor *self);
};

/* ---- logits ---- */

enum { DATA_ALIGNMENT = 256, SPARE_MAX = 4 };

struct cr_api_logits {
    struct dl_managed_tensor managed; /* what other libraries see: the first member */
    int64_t                  dim[2], stride[2];
    atomic_int               owners;
    struct cresnet_model    *model; /* of logits on a device; NULL: `data` belongs to this block */
    size_t                   bytes; /* that were reserved for `data` */
    void                    *stream;
    atomic_bool              elsewhere; /* another stream may read them: the memory is not reused */
    struct cr_api_logits    *next;      /* of those that have been returned */
};

static void return_logits(struct dl_managed_tensor *managed) {
    struct cr_api_logits *l = (struct cr_api_logits *)(void *)managed;
    struct cresnet_model *m = l->model;
    if (atomic_fetch_sub(&l->owners, 1) != 1) return;
    if (!m) {
        cr_free(l);
        return;
    }
    for (l->next = atomic_load(&m->returned); !atomic_compare_exchange_weak(&m->returned, &l->next, l);) {
    }
    cr_api_leave(m);
}

void cresnet_logits_retain(void *logits, void *stream) {
    struct cr_api_logits *l = logits;
    if (!l) return;
    atomic_fetch_add(&l->owners, 1);
    if (stream != l->stream) l->elsewhere = true;
}

static void describe(struct cr_api_logits *l, const cresnet_model *m, int images, enum cr_dtype type) {
    const int64_t classes = m->session.model.classes;
    l->dim[0]             = images;
    l->dim[1]             = classes;
    l->stride[0]          = classes;
    l->stride[1]          = 1;
    l->owners             = 1;
    l->managed.deleter    = return_logits;
    l->managed.context    = l;
    l->managed.tensor     = (struct dl_tensor){.data         = l->managed.tensor.data,
                                               .device       = l->model ? DEVICE_CUDA : DEVICE_CPU,
                                               .device_index = l->model ? m->session.device->options.index : 0,
                                               .dims         = 2,
                                               .code         = type == CR_BF16 ? CODE_BFLOAT : CODE_FLOAT,
                                               .bits         = (uint8_t)(8 * cr_dtype_bytes(type)),
                                               .lanes        = 1,
                                               .dim          = l->dim,
                                               .stride       = l->stride};
}

static cresnet_status host_logits(const cresnet_model *m, int images, struct cr_api_logits **out,
                                  cresnet_error *error) {
    const size_t          bytes = (size_t)images * (size_t)m->session.model.classes * sizeof(float);
    struct cr_api_logits *l     = cr_alloc(1, sizeof *l + DATA_ALIGNMENT + bytes);
    if (!l) return cr_api_fail(error, CRESNET_ERROR_MEMORY, "out of memory: logits of %d images", images);
    l->managed.tensor.data = (void *)(((uintptr_t)(l + 1) + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT);
    describe(l, m, images, CR_F32);
    *out = l;
    return CRESNET_OK;
}

/* ---- logits on a device: by the thread of the model ---- */

void cr_api_free_logits(struct cresnet_model *m) {
    struct cr_api_logits *lists[] = {m->spare, atomic_exchange(&m->returned, NULL)};
    m->spare                      = NULL;
    for (size_t i = 0; i < CR_COUNT(lists); i++)
        for (struct cr_api_logits *l = lists[i], *next; l; l = next) {
            next = l->next;
            m->session.device->backend->release(m->session.device, l->managed.tensor.data);
            cr_free(l);
        }
}

/* Removes the first spare logits of this stream that have so many bytes. */
static struct cr_api_logits *take_spare(struct cresnet_model *m, size_t bytes, const void *stream) {
    int spares = 0;
    for (struct cr_api_logits *l = atomic_exchange(&m->returned, NULL), *next; l; l = next) {
        next     = l->next;
        l->next  = m->spare;
        m->spare = l;
    }
    for (struct cr_api_logits **at = &m->spare; *at; at = &(*at)->next, spares++)
        if ((*at)->bytes >= bytes && (*at)->stream == stream && !(*at)->elsewhere) {
            struct cr_api_logits *found = *at;
            *at                         = found->next;
            return found;
        }
    if (spares >= SPARE_MAX) cr_api_free_logits(m);
    return NULL;
}

static cr_status device_logits(struct cresnet_model *m, int images, void *stream, struct cr_api_logits **out) {
    const struct cr_tensor *t     = &m->session.eval.tensor[m->session.eval.logits];
    const int64_t           batch = m->session.state.eval_batch;
    const size_t            bytes = t->bytes * (size_t)((images + batch - 1) / batch);
    struct cr_api_logits   *l     = take_spare(m, bytes, stream);
    if (!l) {
        cr_status status;
        CR_ALLOC(l, 1);
        status =
            m->session.device->backend->reserve(m->session.device, CR_MAX(bytes, (size_t)1), &l->managed.tensor.data);
        if (status != CR_OK) {
            cr_free(l);
            return cr_error_forward(status, __FILE__, __LINE__);
        }
        l->model  = m;
        l->bytes  = bytes;
        l->stream = stream;
    }
    describe(l, m, images, t->dtype);
    atomic_fetch_add(&m->owners, 1);
    *out = l;
    return CR_OK;
}

/* ---- calls ---- */

struct device_call {
    struct cr_api_images  images;
    struct cr_api_logits *logits;
};

static cr_status enqueue_batches(struct cresnet_model *m, struct device_call *call) {
    const struct cr_step_block step  = {0};
    struct cr_exec            *exec  = m->session.eval_exec;
    const struct cr_tensor    *t     = &m->session.eval.tensor[m->session.eval.logits];
    const int                  batch = (int)m->session.state.eval_batch;
    for (int first = 0; first < call->images.count; first += batch) {
        const int    count = CR_MIN(batch, call->images.count - first);
        const size_t row   = t->bytes / (size_t)batch;
        CR_TRY(cr_api_feed_tensors(m, &call->images, count));
        CR_TRY(cr_exec_run(exec, &step));
        CR_TRY(cr_exec_copy_on_device(exec, m->session.eval.logits,
                                      (char *)call->logits->managed.tensor.data + (size_t)first * row,
                                      (size_t)count * row));
    }
    return cr_exec_foreign_waits(exec, call->images.tensors->stream);
}

static cr_status enqueue(struct cresnet_model *m, void *argument) {
    struct device_call   *call   = argument;
    const cresnet_tensor *tensor = call->images.tensors;
    CR_TRY(cr_exec_wait_for_foreign(m->session.eval_exec, tensor->stream)); /* also for memory that is used again */
    CR_TRY(device_logits(m, call->images.count, tensor->stream, &call->logits));
    const cr_status status = enqueue_batches(m, call);
    if (status == CR_OK) return CR_OK;
    call->logits->managed.deleter(&call->logits->managed); /* the caller is the other owner of the model */
    return cr_error_forward(status, __FILE__, __LINE__);
}

static cr_status synchronize(struct cresnet_model *m, void *unused) {
    (void)unused;
    return m->session.device->backend->sync ? m->session.device->backend->sync(m->session.device) : CR_OK;
}

cresnet_status cresnet_synchronize(cresnet_model *m, cresnet_error *error) {
    const cresnet_status status = cr_api_check_call(m, "model", m, 0, error);
    return status == CRESNET_OK ? cr_api_call(m, synchronize, NULL, error) : status;
}

/* ---- images ---- */

static cresnet_status check_device(const cresnet_model *m, const struct dl_tensor *t, cresnet_error *error) {
    const struct cr_device *device = m->session.device;
    const bool              cuda   = t->device == DEVICE_CUDA || t->device == DEVICE_CUDA_MANAGED;
    if (t->device == DEVICE_CPU || t->device == DEVICE_CUDA_HOST) return CRESNET_OK;
    if (!cuda)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "the images are on a device of type %d of DLPack: they must be in host memory or on a CUDA "
                           "device",
                           (int)t->device);
    if (!device->backend->async)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "the images are on a GPU, but the model is on the CPU (%s): copy them to the host",
                           device->caps.text);
    if (t->device_index >= 0 && t->device_index != device->options.index) /* -1: the caller does not know it */
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "the images are on GPU %d, but the model is on GPU %d",
                           (int)t->device_index, device->options.index);
    return CRESNET_OK;
}

static cresnet_status check_type(const struct dl_tensor *t, cresnet_tensor_type *type, cresnet_error *error) {
    static const char *const codes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    if (t->lanes == 1 && t->code == CODE_UINT && (t->bits == 8 || t->bits == 16)) {
        *type = t->bits == 8 ? CRESNET_U8 : CRESNET_U16;
        return CRESNET_OK;
    }
    *type = CRESNET_F32;
    if (t->lanes == 1 && t->code == CODE_FLOAT && t->bits == 32) return CRESNET_OK;
    return cr_api_fail(
        error, CRESNET_ERROR_ARGUMENT, "the images are of the type %s%d%s: they must be uint8, uint16 or float32",
        t->code < CR_COUNT(codes) ? codes[t->code] : "unknown ", t->bits, t->lanes == 1 ? "" : " in vectors");
}

/* Whether the elements are those of an array without gaps whose dimensions follow each other in this order. The stride
 * of a dimension of one element says nothing. */
static bool in_order(const struct dl_tensor *t, const int order[4]) {
    int64_t compact[4] = {0, t->dim[2] * t->dim[3], t->dim[3], 1}, expected = 1;
    compact[0] = t->dim[1] * compact[1];
    for (int i = 3; i >= 0; i--) {
        const int d = order[i];
        if (t->dim[d] != 1 && (t->stride ? t->stride[d] : compact[d]) != expected) return false;
        expected *= t->dim[d];
    }
    return true;
}

static bool has_shape(const struct dl_tensor *t, int64_t a, int64_t b, int64_t c) {
    return t->dims == 4 && t->dim[1] == a && t->dim[2] == b && t->dim[3] == c;
}

static cresnet_status fail_shape(const cresnet_model *m, const struct dl_tensor *t, cresnet_error *error) {
    const int h = m->info.image_size, w = m->info.image_width, c = m->info.channels;
    char      shape[128] = "";
    size_t    used       = 0;
    for (int d = 0; d < t->dims && used < sizeof shape - 24; d++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "the images must be [N, %d, %d, %d] or [N, %d, %d, %d], not [%s]",
                       h, w, c, c, h, w, shape);
}

static cresnet_status check_shape(const cresnet_model *m, const struct dl_tensor *t, cresnet_layout *layout,
                                  cresnet_error *error) {
    static const int plain[4] = {0, 1, 2, 3}, channels_last[4] = {0, 2, 3, 1};
    const bool       nhwc = has_shape(t, m->info.image_size, m->info.image_width, m->info.channels);
    const bool       nchw = has_shape(t, m->info.channels, m->info.image_size, m->info.image_width);
    if (!(nhwc || nchw) || t->dim[0] < 0 || t->dim[0] > INT_MAX) return fail_shape(m, t, error);
    *layout = CRESNET_NHWC;
    if (t->dim[0] == 0 || (nhwc && in_order(t, plain)) || (nchw && in_order(t, channels_last))) return CRESNET_OK;
    *layout = CRESNET_NCHW;
    if (nchw && in_order(t, plain)) return CRESNET_OK;
    return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                       "the images are not contiguous in the order N, H, W, C or N, C, H, W: copy them");
}

static cresnet_status read_images(const cresnet_model *m, const struct dl_tensor *t, void *stream, cresnet_tensor *out,
                                  cresnet_error *error) {
    *out                  = (cresnet_tensor){.stream = stream};
    cresnet_status status = check_device(m, t, error);
    if (status == CRESNET_OK) status = check_type(t, &out->type, error);
    if (status == CRESNET_OK) status = check_shape(m, t, &out->layout, error);
    if (status != CRESNET_OK) return status;
    out->count     = (int)t->dim[0];
    out->data      = t->data ? (const char *)t->data + t->offset : NULL;
    out->on_device = t->device == DEVICE_CUDA || t->device == DEVICE_CUDA_MANAGED;
    if ((uintptr_t)out->data % (t->bits / 8))
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "the images begin at an address that is no multiple of %d bytes", t->bits / 8);
    return cr_api_check_tensor(m, out, out, error);
}

cresnet_status cresnet_classify_dlpack(cresnet_model *m, const void *images, void *stream, void **logits,
                                       cresnet_error *error) {
    cresnet_tensor        tensor;
    cresnet_output        output;
    struct cr_api_logits *host = NULL;
    if (logits) *logits = NULL;
    cresnet_status status = cr_api_check_call(m, "images", images, 1, error);
    if (status == CRESNET_OK && !logits) status = cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "logits is NULL");
    if (status == CRESNET_OK) status = read_images(m, images, stream, &tensor, error);
    if (status != CRESNET_OK) return status;
    if (tensor.on_device) {
        struct device_call call = {.images = {.tensors = &tensor, .count = tensor.count}};
        status                  = cr_api_call(m, enqueue, &call, error);
        if (status == CRESNET_OK) *logits = call.logits;
        return status;
    }
    status = host_logits(m, tensor.count, &host, error);
    if (status != CRESNET_OK) return status;
    cresnet_output_init(&output);
    output.logits = host->managed.tensor.data;
    status        = cresnet_classify_tensor(m, &tensor, &output, error);
    if (status == CRESNET_OK)
        *logits = host;
    else
        cr_free(host);
    return status;
}

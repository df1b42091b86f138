/* api/tensors.c: classifies prepared images. See include/cresnet.h. */
#include "api/model.h"

#include <limits.h>
#include <string.h>

/* The values that the op normalize computes from bytes. */
void cr_api_normalize(struct cresnet_model *m, int count) {
    const struct cr_config *c = &m->config;
    float                   scale[3], shift[3];
    for (int k = 0; k < 3; k++) {
        scale[k] = 1 / (255 * (float)c->data.std.at[k]);
        shift[k] = -(float)c->data.mean.at[k] / (float)c->data.std.at[k];
    }
    const size_t values = (size_t)count * cr_api_image_bytes(m);
    for (size_t i = 0; i < values; i += 3)
        for (size_t k = 0; k < 3; k++) m->values[i + k] = (float)m->images[i + k] * scale[k] + shift[k];
}

/* ---- host memory ---- */

/* Copies an image from the layout C,H,W to H,W,C. */
static void interleave_u8(const uint8_t *from, size_t pixels, uint8_t *to) {
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < 3; k++) to[3 * i + k] = from[k * pixels + i];
}
static void interleave_f32(const float *from, size_t pixels, float *to) {
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < 3; k++) to[3 * i + k] = from[k * pixels + i];
}

/* Writes images first to first + count of a host tensor to the batch, from image `at` of the batch on. */
static void copy_tensor(struct cresnet_model *m, const cresnet_tensor *t, int first, int at, int count) {
    const size_t   pixels = cr_api_image_bytes(m), values = (size_t)count * pixels;
    const uint8_t *bytes = (const uint8_t *)t->data + (size_t)first * pixels;
    const float   *reals = (const float *)t->data + (size_t)first * pixels;
    uint8_t       *to    = m->images + (size_t)at * pixels;
    float         *value = m->f32_input ? m->values + (size_t)at * pixels : NULL;
    if (t->layout == CRESNET_NHWC && t->type == CRESNET_F32)
        memcpy(value, reals, values * sizeof *value);
    else if (t->layout == CRESNET_NHWC)
        memcpy(to, bytes, values);
    else if (t->type == CRESNET_F32)
        for (size_t i = 0; i < values; i += pixels) interleave_f32(reals + i, pixels / 3, value + i);
    else
        for (size_t i = 0; i < values; i += pixels) interleave_u8(bytes + i, pixels / 3, to + i);
}

/* ---- batches ---- */

/* Goes on to the tensor of the next image, and returns how many images it still has, `most` at most. */
static int next_images(struct cr_api_images *job, int most) {
    while (job->tensor_image == job->tensors[job->tensor].count) {
        job->tensor++;
        job->tensor_image = 0;
    }
    return CR_MIN(most, job->tensors[job->tensor].count - job->tensor_image);
}

static cr_status feed_from_host(struct cresnet_model *m, struct cr_api_images *job, int count) {
    for (int at = 0, images; at < count; at += images) {
        images = next_images(job, count - at);
        copy_tensor(m, &job->tensors[job->tensor], job->tensor_image, at, images);
        job->tensor_image += images;
    }
    if (m->f32_input && job->tensors->type == CRESNET_U8) cr_api_normalize(m, count);
    return cr_exec_feed(m->session.eval_exec, m->f32_input ? (const uint8_t *)m->values : m->images, NULL, NULL);
}

/* The device waits for the stream of each tensor, and copies the images. */
static cr_status feed_from_device(struct cresnet_model *m, struct cr_api_images *job, int count) {
    const size_t image      = cr_api_image_bytes(m) * (job->tensors->type == CRESNET_F32 ? sizeof(float) : 1);
    const void  *waited_for = NULL;
    for (int at = 0, images; at < count; at += images) {
        images                     = next_images(job, count - at);
        const cresnet_tensor *t    = &job->tensors[job->tensor];
        const char           *data = (const char *)t->data + (size_t)job->tensor_image * image;
        if (at == 0 || t->stream != waited_for) CR_TRY(cr_exec_wait_for_foreign(m->session.eval_exec, t->stream));
        waited_for = t->stream;
        job->tensor_image += images;
        if (images == count) return cr_exec_feed_from_device(m->session.eval_exec, data, (size_t)count * image);
        for (int i = 0; i < images; i++) m->addresses[at + i] = data + (size_t)i * image;
    }
    return cr_exec_gather_from_device(m->session.eval_exec, m->addresses, count, image);
}

cr_status cr_api_feed_tensors(struct cresnet_model *m, struct cr_api_images *job, int count) {
    return job->tensors->on_device ? feed_from_device(m, job, count) : feed_from_host(m, job, count);
}

/* ---- public functions ---- */

static cresnet_status check_tensor(const cresnet_model *m, const cresnet_tensor *t, const cresnet_tensor *first,
                                   cresnet_error *error) {
    const cresnet_status status = cr_api_check_call(m, t->data, t->count, error);
    if (status != CRESNET_OK) return status;
    if (t->type != CRESNET_U8 && t->type != CRESNET_F32)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "tensor.type = %d is neither CRESNET_U8 nor CRESNET_F32",
                           (int)t->type);
    if (t->layout != CRESNET_NHWC && t->layout != CRESNET_NCHW)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "tensor.layout = %d is neither CRESNET_NHWC nor CRESNET_NCHW",
                           (int)t->layout);
    if (t->type == CRESNET_F32 && !m->f32_input)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "an f32 tensor: open the model with options.f32_tensors = 1 to use f32 tensors");
    if (t->type != first->type || !t->on_device != !first->on_device)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "tensors[0] and tensors[%td] differ in type or on_device: use one call for each kind",
                           t - first);
    if (!t->on_device) return CRESNET_OK;
    if (!m->session.device->backend->async)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "tensor.on_device: the model is on the CPU (%s)",
                           m->session.device->caps.text);
    if (t->layout != CRESNET_NHWC || (t->type == CRESNET_U8) == m->f32_input)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "a tensor on the GPU must be in the form that the network reads: CRESNET_NHWC and %s",
                           m->f32_input ? "CRESNET_F32 (options.f32_tensors)" : "CRESNET_U8");
    return CRESNET_OK;
}

cresnet_status cresnet_classify_tensors(cresnet_model *m, const cresnet_tensor *tensors, int tensor_count,
                                        const cresnet_output *output, cresnet_error *error) {
    struct cr_api_images job    = {.tensors = tensors, .output = output};
    cresnet_status       status = cr_api_check_call(m, tensors, tensor_count, error);
    int64_t              images = 0;
    for (int i = 0; status == CRESNET_OK && i < tensor_count; i++) {
        status = check_tensor(m, &tensors[i], tensors, error);
        images += tensors[i].count;
    }
    if (status != CRESNET_OK) return status;
    if (images > INT_MAX)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "%lld images in one call: give %d at most", (long long)images,
                           INT_MAX);
    job.count = (int)images;
    return cr_api_classify(m, &job, error);
}

cresnet_status cresnet_classify_tensor(cresnet_model *m, const cresnet_tensor *t, const cresnet_output *output,
                                       cresnet_error *error) {
    return cresnet_classify_tensors(m, t, 1, output, error);
}

/* api/tensors.c: C API: classifies preprocessed images (tensors). See include/cresnet.h. */
#include "api/model.h"

#include <limits.h>
#include <string.h>

/* The values that the op normalize computes. */
void cr_api_normalize(struct cresnet_model *m, int count) {
    const int       channels = (int)m->config->data.channels;
    const bool      wide     = m->config->data.bits == 16;
    const uint16_t *words    = (const uint16_t *)(const void *)m->images;
    float           scale[4], shift[4];
    for (int k = 0; k < channels; k++) {
        const float std = (float)cr_config_std(m->config, k);
        scale[k]        = 1 / ((wide ? 65535 : 255) * std);
        shift[k]        = -(float)cr_config_mean(m->config, k) / std;
    }
    const size_t values = (size_t)count * cr_api_image_samples(m), step = (size_t)channels;
    for (size_t i = 0; i < values; i += step)
        for (size_t k = 0; k < step; k++)
            m->values[i + k] = (float)(wide ? words[i + k] : m->images[i + k]) * scale[k] + shift[k];
}

/* ---- host memory ---- */

/* Copies an image from the layout C,H,W, at any address, to H,W,C. */
#define INTERLEAVE(type)                                                                                               \
    do {                                                                                                               \
        type *to_ = (type *)to;                                                                                        \
        for (size_t i = 0; i < pixels; i++)                                                                            \
            for (size_t k = 0; k < channels; k++)                                                                      \
                memcpy(&to_[channels * i + k], (const char *)from + (k * pixels + i) * sizeof(type), sizeof(type));    \
    } while (0)

static void interleave(const void *from, size_t pixels, size_t channels, size_t sample_bytes, void *to) {
    if (sample_bytes == sizeof(float))
        INTERLEAVE(float);
    else if (sample_bytes == sizeof(uint16_t))
        INTERLEAVE(uint16_t);
    else
        INTERLEAVE(uint8_t);
}

static size_t sample_bytes(const cresnet_tensor *t) {
    return t->type == CRESNET_F32 ? sizeof(float) : t->type == CRESNET_U16 ? sizeof(uint16_t) : 1;
}

/* Writes images first to first + count of a host tensor to the batch, from image `at` of the batch on. */
static void copy_tensor(struct cresnet_model *m, const cresnet_tensor *t, int first, int at, int count) {
    const size_t samples = cr_api_image_samples(m), image = samples * sample_bytes(t);
    const size_t channels = (size_t)m->config->data.channels;
    const char  *from     = (const char *)t->data + (size_t)first * image;
    char        *to       = (t->type == CRESNET_F32 ? (char *)m->values : (char *)m->images) + (size_t)at * image;
    if (t->layout == CRESNET_NHWC)
        memcpy(to, from, (size_t)count * image);
    else
        for (int i = 0; i < count; i++)
            interleave(from + (size_t)i * image, samples / channels, channels, sample_bytes(t), to + (size_t)i * image);
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
    if (m->f32_input && job->tensors->type != CRESNET_F32) cr_api_normalize(m, count);
    return cr_exec_feed(m->session.eval_exec, m->f32_input ? (const uint8_t *)m->values : m->images, NULL, NULL);
}

/* The device waits for the stream of each tensor, and copies the images. */
static cr_status feed_from_device(struct cresnet_model *m, struct cr_api_images *job, int count) {
    const size_t image      = cr_api_image_samples(m) * sample_bytes(job->tensors);
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

cresnet_status cr_api_check_tensor(const cresnet_model *m, const cresnet_tensor *t, const cresnet_tensor *first,
                                   cresnet_error *error) {
    const cresnet_status status = cr_api_check_call(m, "tensor.data", t->data, t->count, error);
    if (status != CRESNET_OK) return status;
    const cresnet_tensor_type integers = m->config->data.bits == 16 ? CRESNET_U16 : CRESNET_U8;
    if (t->type != integers && (t->type == CRESNET_U8 || t->type == CRESNET_U16))
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "tensor.type = CRESNET_%s: the images of this network have %d bits: use CRESNET_%s",
                           t->type == CRESNET_U8 ? "U8" : "U16", integers == CRESNET_U8 ? 8 : 16,
                           integers == CRESNET_U8 ? "U8" : "U16");
    if (t->type != integers && t->type != CRESNET_F32)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "tensor.type = %d is neither CRESNET_%s nor CRESNET_F32",
                           (int)t->type, integers == CRESNET_U8 ? "U8" : "U16");
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
    if (t->layout != CRESNET_NHWC || (t->type != CRESNET_F32) == m->f32_input)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "a tensor on the GPU must be in the form that the network reads: CRESNET_NHWC and %s",
                           m->f32_input             ? "CRESNET_F32 (options.f32_tensors)"
                           : integers == CRESNET_U8 ? "CRESNET_U8"
                                                    : "CRESNET_U16");
    return CRESNET_OK;
}

cresnet_status cresnet_classify_tensors(cresnet_model *m, const cresnet_tensor *tensors, int tensor_count,
                                        const cresnet_output *output, cresnet_error *error) {
    struct cr_api_images job    = {.tensors = tensors, .output = output};
    cresnet_status       status = cr_api_check_call(m, "tensors", tensors, tensor_count, error);
    int64_t              images = 0;
    for (int i = 0; status == CRESNET_OK && i < tensor_count; i++) {
        status = cr_api_check_tensor(m, &tensors[i], tensors, error);
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
    if (m && !t) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "tensor is NULL");
    return cresnet_classify_tensors(m, t, 1, output, error);
}

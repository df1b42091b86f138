/* session/jpeg_decoder.c: decodes JPEG images of training batches on the device. See session/session.h.
 *
 * The loader leaves the images of some places of a batch to the device: it reads their headers, draws their crops and
 * copies their entropy-coded data to page-locked memory. The device decodes them while it computes the step before. An
 * image that the device cannot decode comes back to the loader. The pixels are equal in any case. */
#include "device/jpeg_decoder.h"
#include "data/augment.h"
#include "session/session.h"

#include <string.h>

/* Room for entropy-coded data, for each image of a batch: ImageNet's photos have 110 KB. Images for which no room is
 * left are decoded by the loader. */
enum { DATA_AN_IMAGE = 160 << 10, DATA_MAX = 64 << 20 };

const char *cr_session_jpeg_obstacle(const struct cr_session *s) {
    const struct cr_config *c = s->config;
    if (!s->device->backend->jpeg) return "the device decodes no images";
    if (c->data.kind != CR_DATA_FOLDER && c->data.kind != CR_DATA_CSV && c->data.kind != CR_DATA_PACKED)
        return "the images of data.kind are no JPEG files";
    if (s->prepare_train.format != CR_RGB8) return "data.channels is not 3, or data.bits not 8";
    if (s->prepare_train.crop != CR_CROP_RANDOM_RESIZED) return "data.crop is not random_resized";
    if (cr_prepare_colours(&s->prepare_train)) return "data.augment and data.jitter change pixels on the CPU";
    return NULL;
}

static bool wanted(const struct cr_session *s) {
    if (s->config->data.decode == CR_DECODE_CPU || cr_session_jpeg_obstacle(s)) return false;
    /* A limit means that the step needs the memory. */
    return s->config->data.decode == CR_DECODE_GPU || strcmp(s->config->memory.limit, "auto") == 0;
}

static struct cr_jpeg_limits limits_of(const struct cr_session *s) {
    const size_t images = (size_t)CR_MAX(s->state.batch, 1);
    size_t       bytes  = cr_prepare_bytes(&s->prepare_train);
    for (int k = 0; k < s->state.sizes.count; k++) bytes = CR_MAX(bytes, cr_prepare_bytes(&s->prepare_sizes[k]));
    return (struct cr_jpeg_limits){.images       = (int)images,
                                   .result_bytes = images * bytes,
                                   .data_bytes   = CR_MIN(images * DATA_AN_IMAGE, (size_t)DATA_MAX)};
}

size_t cr_session_jpeg_bytes(const struct cr_session *s) {
    if (!wanted(s)) return 0;
    const struct cr_jpeg_limits limits = limits_of(s);
    return s->device->backend->jpeg->device_bytes(&limits);
}

cr_status cr_session_jpeg_open(struct cr_session *s, struct cr_loader_options *options) {
    const struct cr_jpeg_limits limits = limits_of(s);
    const bool                  gpu    = s->config->data.decode == CR_DECODE_GPU;
    const char                 *why    = cr_session_jpeg_obstacle(s);
    if (gpu && why) return cr_config_fail(s->config, "data.decode", "%s: set it to cpu or auto", why);
    if (!wanted(s)) return CR_OK;
    CR_ALLOC(s->jpeg_failed, (size_t)limits.images);
    const cr_status status = s->device->backend->jpeg->open(s->device, &limits, &s->jpeg);
    if (status == CR_ERR_MEMORY && !gpu) {
        cr_log(CR_LOG_WARN, "the CPU decodes all images: no device memory is left for data.decode = auto");
        return CR_OK;
    }
    CR_TRY(status);
    cr_log(CR_LOG_INFO, "decode  the GPU decodes JPEG images%s (%.0f MiB of its memory)",
           gpu ? "" : ", as many as the CPU cannot decode in time",
           cr_mib(s->device->backend->jpeg->device_bytes(&limits)));
    options->jpeg_bytes  = limits.data_bytes;
    options->jpeg_shared = !gpu;
    return CR_OK;
}

void cr_session_jpeg_close(struct cr_session *s) {
    if (s->jpeg) s->device->backend->jpeg->close(s->jpeg);
    cr_free(s->jpeg_failed);
    s->jpeg        = NULL;
    s->jpeg_failed = NULL;
}

cr_status cr_session_jpeg_decode(struct cr_session *s, struct cr_loader *loader, struct cr_batch *b) {
    CR_ASSERT(s->jpeg && b->count <= s->state.batch);
    CR_TRY(s->device->backend->jpeg->decode(s->jpeg, b->scans, (int)b->count, b->jpeg_data, b->jpeg_bytes, b->width,
                                            b->height, s->jpeg_failed));
    return cr_loader_decode_failed(loader, b, s->jpeg_failed);
}

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
    if (!cr_config_has_image_files(c)) return "the images of data.kind are no JPEG files";
    if (s->prepare_train.format != CR_RGB8) return "data.channels is not 3, or data.bits not 8";
    if (s->prepare_train.crop != CR_CROP_RANDOM_RESIZED) return "data.crop is not random_resized";
    if (cr_prepare_colours(&s->prepare_train)) return "data.augment and data.jitter change pixels on the CPU";
    return NULL;
}

/* `auto` uses only memory that the programs leave: they are the same with and without it. */
enum { LEFT_FOR_OTHERS = 512 << 20 }; /* libraries, graphs and kernels that are loaded later */

static struct cr_jpeg_limits limits_of(const struct cr_session *s, int64_t batch) {
    const size_t images = (size_t)CR_MAX(batch, 1);
    size_t       bytes  = cr_prepare_bytes(&s->prepare_train);
    for (int k = 0; k < s->state.sizes.count; k++) bytes = CR_MAX(bytes, cr_prepare_bytes(&s->prepare_sizes[k]));
    return (struct cr_jpeg_limits){.images       = (int)images,
                                   .result_bytes = images * bytes,
                                   .data_bytes   = CR_MIN(images * DATA_AN_IMAGE, (size_t)DATA_MAX)};
}

/* While the batch is searched, it is not known: BATCH_AUTO is a large one. */
size_t cr_session_jpeg_bytes(const struct cr_session *s) {
    enum { BATCH_AUTO = 512 };
    if (s->config->data.decode != CR_DECODE_GPU || cr_session_jpeg_obstacle(s)) return 0;
    const struct cr_jpeg_limits limits = limits_of(s, s->config->train.batch ? s->config->train.batch : BATCH_AUTO);
    return s->device->backend->jpeg->device_bytes(&limits);
}

/* With `auto`: is there so much memory that nothing else will lack it? A limit means that the step needs the memory. */
static bool is_affordable(const struct cr_session *s, const struct cr_jpeg_limits *limits) {
    const size_t need = s->device->backend->jpeg->device_bytes(limits) + LEFT_FOR_OTHERS;
    return strcmp(s->config->memory.limit, "auto") == 0 && !s->need_without_limit &&
           s->device->backend->memory_free(s->device) >= need;
}

cr_status cr_session_jpeg_open(struct cr_session *s, const struct cr_dataset *train,
                               struct cr_loader_options *options) {
    const struct cr_jpeg_limits limits = limits_of(s, options->batch);
    const bool                  gpu    = s->config->data.decode == CR_DECODE_GPU;
    const char                 *why    = cr_session_jpeg_obstacle(s);
    if (s->config->data.decode == CR_DECODE_CPU) return CR_OK;
    if (!why && !cr_dataset_has_jpegs(train)) why = "the images are no JPEG files";
    if (gpu && why) return cr_config_fail(s->config, "data.decode", "%s: set it to cpu or auto", why);
    if (why || (!gpu && !is_affordable(s, &limits))) return CR_OK;
    CR_ALLOC(s->jpeg_failed, (size_t)limits.images);
    CR_TRY(s->device->backend->jpeg->open(s->device, &limits, &s->jpeg));
    cr_log(CR_LOG_INFO, "decode  the GPU decodes JPEG images%s (%.0f MiB of its memory)",
           gpu ? "" : ", as many as the CPU cannot decode in time",
           cr_mib(s->device->backend->jpeg->device_bytes(&limits)));
    options->jpeg_bytes = limits.data_bytes;
    options->jpeg_auto  = !gpu;
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

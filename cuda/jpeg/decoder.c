/* cuda/jpeg/decoder.c: decodes JPEG images on the GPU, during the step of the network: see device/jpeg_decoder.h. The
 * kernels run in a stream of high priority: they are short, and the host waits for them. A batch is decoded in as many
 * groups of images as the work area has room for. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/jpeg/jpeg_launchers.h"
#include "device/jpeg_decoder.h"

#include <string.h>

enum { ALIGN = 256, COLUMNS_MAX = 4000, GROUP_MAX = 65535 };
/* Of the work area for each image of a batch: a crop of an ImageNet photo takes 1 MB on average, in 4:4:4. The area has
 * room for an image of 16 megapixels. */
enum { WORK_AN_IMAGE = 1 << 20, WORK_MIN = 96 << 20, WORK_MAX = 256 << 20 };

struct cr_jpeg_decoder {
    struct cr_device     *device;
    struct cr_jpeg_limits limits;
    size_t                work_bytes, image_bytes; /* image_bytes: of a result in the latest batch */
    cudaStream_t          stream;
    cudaEvent_t           done, copied;              /* copied: the latest results have left */
    uint8_t              *data, *work, *result;      /* device memory */
    struct ck_jpeg_image *images;                    /* device memory, [limits.images] */
    int32_t              *failed;                    /* device memory, [limits.images] */
    void                 *host_images, *host_failed; /* page-locked copies */
};

static size_t work_bytes(const struct cr_jpeg_limits *limits) {
    const size_t wanted = (size_t)limits->images * WORK_AN_IMAGE;
    return CR_MIN(CR_MAX(wanted, (size_t)WORK_MIN), (size_t)WORK_MAX);
}

static size_t device_bytes(const struct cr_jpeg_limits *limits) {
    return limits->data_bytes + work_bytes(limits) + limits->result_bytes +
           (size_t)limits->images * (sizeof(struct ck_jpeg_image) + sizeof(int32_t));
}

static void decoder_close(struct cr_jpeg_decoder *d) {
    if (!d) return;
    if (d->stream) (void)cudaStreamSynchronize(d->stream); /* the call that failed has reported the error */
    const struct cr_backend *backend  = d->device->backend;
    void *const              region[] = {d->data, d->work, d->result, d->images, d->failed};
    for (size_t i = 0; i < CR_COUNT(region); i++)
        if (region[i]) backend->release(d->device, region[i]);
    if (d->host_images) backend->async->host_release(d->device, d->host_images);
    if (d->host_failed) backend->async->host_release(d->device, d->host_failed);
    if (d->done) (void)cudaEventDestroy(d->done);
    if (d->copied) (void)cudaEventDestroy(d->copied);
    if (d->stream) (void)cudaStreamDestroy(d->stream);
    cr_free(d);
}

static cr_status reserve_all(struct cr_jpeg_decoder *d) {
    const struct cr_backend *b      = d->device->backend;
    const size_t             images = (size_t)d->limits.images, failed = images * sizeof *d->failed;
    int                      least, greatest;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_TRY(cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, greatest));
    /* With one rank, a thread that waits leaves its core to the loader. */
    CUDA_TRY(cudaEventCreateWithFlags(&d->done, cudaEventDisableTiming | cudaEventBlockingSync));
    CUDA_TRY(cudaEventCreateWithFlags(&d->copied, cudaEventDisableTiming));
    CR_TRY(b->reserve(d->device, d->limits.data_bytes, (void **)&d->data));
    CR_TRY(b->reserve(d->device, d->work_bytes, (void **)&d->work));
    CR_TRY(b->reserve(d->device, d->limits.result_bytes, (void **)&d->result));
    CR_TRY(b->reserve(d->device, images * sizeof *d->images, (void **)&d->images));
    CR_TRY(b->reserve(d->device, failed, (void **)&d->failed));
    CR_TRY(b->async->host_reserve(d->device, images * sizeof *d->images, &d->host_images));
    return b->async->host_reserve(d->device, failed, &d->host_failed);
}

static cr_status decoder_open(struct cr_device *device, const struct cr_jpeg_limits *limits,
                              struct cr_jpeg_decoder **out) {
    struct cr_jpeg_decoder *d;
    CR_ALLOC(d, 1);
    d->device        = device;
    d->limits        = *limits;
    d->work_bytes    = work_bytes(limits);
    cr_status status = reserve_all(d);
    if (status != CR_OK)
        decoder_close(d);
    else
        *out = d;
    return status;
}

/* ---- the work area ---- */

static int64_t place(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return (int64_t)at;
}

/* The MCUs around the crop, with the two pixels beyond it that the upsampling reads. */
static void set_window(struct ck_jpeg_image *im) {
    enum { MARGIN = 2 };
    const struct cr_jpeg_scan *s     = &im->scan;
    const int                  mcu_w = 8 * s->h, mcu_h = 8 * s->v;
    im->x0 = CR_MAX(s->box[0] - MARGIN, 0) / mcu_w;
    im->y0 = CR_MAX(s->box[1] - MARGIN, 0) / mcu_h;
    im->x1 = (CR_MIN(s->box[0] + s->box[2] + MARGIN, s->width) + mcu_w - 1) / mcu_w;
    im->y1 = (CR_MIN(s->box[1] + s->box[3] + MARGIN, s->height) + mcu_h - 1) / mcu_h;
}

static void set_axis(struct ck_jpeg_axis *axis, int size, int result, size_t *used) {
    const int reduction = (size + result - 1) / result; /* rounded up */
    axis->size          = size;
    axis->stride        = CR_MAX(reduction, 1) * 2 + 1;
    axis->at            = place(used, (size_t)result * (2 + (size_t)axis->stride) * sizeof(int32_t));
}

/* Lays out what the image needs from *used on. Returns false if it does not fit into an empty work area. */
static bool lay_out(const struct cr_jpeg_decoder *d, struct ck_jpeg_image *im, int width, int height, size_t *used) {
    const struct cr_jpeg_scan *s = &im->scan;
    set_window(im);
    const int across = (s->width + 8 * s->h - 1) / (8 * s->h), per_mcu = s->components == 1 ? 1 : s->h * s->v + 2;
    im->first_block  = im->y0 * across * per_mcu;
    im->blocks       = (im->y1 - im->y0) * across * per_mcu;
    im->coefficients = place(used, (size_t)im->blocks * CR_JPEG_BLOCK * sizeof(int16_t));
    for (int c = 0; c < s->components; c++) {
        im->columns[c] = (im->x1 - im->x0) * (c ? 1 : s->h);
        im->rows[c]    = (im->y1 - im->y0) * (c ? 1 : s->v);
        im->samples[c] = place(used, (size_t)im->columns[c] * (size_t)im->rows[c] * CR_JPEG_BLOCK);
    }
    im->differences =
        place(used, (size_t)(across * per_mcu * ((s->height + 8 * s->v - 1) / (8 * s->v))) * sizeof(int16_t));
    im->middle = place(used, (size_t)s->box[3] * (size_t)width * 3);
    set_axis(&im->across, s->box[2], width, used);
    set_axis(&im->down, s->box[3], height, used);
    return *used <= d->work_bytes;
}

static void add_to_group(struct ck_jpeg_batch *group, const struct ck_jpeg_image *im) {
    group->images++;
    group->rows    = CR_MAX(group->rows, im->scan.box[3]);
    group->columns = CR_MAX(group->columns, im->scan.box[2]);
    int blocks     = 0;
    for (int c = 0; c < im->scan.components; c++) blocks += im->columns[c] * im->rows[c];
    group->blocks = CR_MAX(group->blocks, blocks);
}

/* The first group begins while the results of the batch before may not have left. */
static cr_status launch(struct cr_jpeg_decoder *d, struct ck_jpeg_batch *group) {
    if (!group->images) return CR_OK;
    const size_t bytes = (size_t)group->images * sizeof *d->images, first = (size_t)(group->image - d->images);
    CUDA_TRY(cudaMemcpyAsync(d->images + first, (struct ck_jpeg_image *)d->host_images + first, bytes,
                             cudaMemcpyHostToDevice, d->stream));
    CUDA_TRY(ck_jpeg_coefficients(group, d->stream));
    CUDA_TRY(ck_jpeg_samples(group, d->stream));
    CUDA_TRY(cudaStreamWaitEvent(d->stream, d->copied, 0));
    CUDA_TRY(ck_jpeg_resize(group, d->stream));
    group->image += group->images;
    group->images = group->rows = group->columns = group->blocks = 0;
    return CR_OK;
}

static cr_status decode(struct cr_jpeg_decoder *d, const struct cr_jpeg_scan *scan, int places, const uint8_t *data,
                        size_t data_bytes, int width, int height, uint8_t *failed) {
    struct ck_jpeg_image *next  = d->host_images;
    int32_t              *flags = d->host_failed;
    size_t                used  = 0;
    struct ck_jpeg_batch  group = {.image  = d->images,
                                   .data   = d->data,
                                   .work   = d->work,
                                   .failed = d->failed,
                                   .result = d->result,
                                   .width  = width,
                                   .height = height};
    d->image_bytes              = (size_t)width * (size_t)height * 3;
    CR_ASSERT(places <= d->limits.images && data_bytes <= d->limits.data_bytes);
    CR_ASSERT((size_t)places * d->image_bytes <= d->limits.result_bytes);
    CUDA_TRY(cudaMemcpyAsync(d->data, data, data_bytes, cudaMemcpyHostToDevice, d->stream));
    CUDA_TRY(cudaMemsetAsync(d->failed, 0, (size_t)places * sizeof *flags, d->stream));
    memset(failed, 0, (size_t)places);
    for (int i = 0; i < places; i++) {
        if (!scan[i].bytes) continue;
        size_t alone = 0;
        next->scan   = scan[i];
        next->place  = i;
        failed[i]    = scan[i].box[2] > COLUMNS_MAX || !lay_out(d, next, width, height, &alone);
        if (failed[i]) continue;
        if (!lay_out(d, next, width, height, &used) || group.images == GROUP_MAX) {
            CR_TRY(launch(d, &group));
            used = 0;
            (void)lay_out(d, next, width, height, &used);
        }
        add_to_group(&group, next++);
    }
    CR_TRY(launch(d, &group));
    CUDA_TRY(cudaMemcpyAsync(flags, d->failed, (size_t)places * sizeof *flags, cudaMemcpyDeviceToHost, d->stream));
    CUDA_TRY(cudaEventRecord(d->done, d->stream));
    CR_TRY(d->device->backend->async->host_wait(d->device, d->done));
    for (int i = 0; i < places; i++) failed[i] |= flags[i] != 0;
    return CR_OK;
}

static cr_status copy(struct cr_jpeg_decoder *d, enum cr_stream stream, int first, int count, void *dst) {
    CR_TRY(d->device->backend->async->move(d->device, stream, dst, d->result + (size_t)first * d->image_bytes,
                                           (size_t)count * d->image_bytes));
    return CUDA_STATUS(cudaEventRecord(d->copied, cuda_of(d->device)->stream[stream]));
}

const struct cr_jpeg_ops cr_cuda_jpeg = {
    .device_bytes = device_bytes, .open = decoder_open, .close = decoder_close, .decode = decode, .copy = copy};

/* api/classify.c: C API: prepares images and files, and classifies images, files and tensors in batches. See
 * include/cresnet.h. */
#include "api/model.h"
#include "data/decode.h"
#include "data/scratch.h"

#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* Of a prepared image that is not normalised. */
static size_t image_bytes(const struct cresnet_model *m) {
    return cr_prepare_bytes(&m->session.prepare_eval);
}

size_t cr_api_image_samples(const struct cresnet_model *m) {
    return image_bytes(m) / ((size_t)cr_format_bits(m->session.prepare_eval.format) / 8);
}

int cr_api_views(const struct cresnet_model *m) {
    return cr_prepare_views(m->session.prepare_eval.tta);
}

/* ---- preparing images ---- */

static cr_status prepare_pixels(const struct cr_prepare *prep, const cresnet_image *image, struct cr_scratch *scratch,
                                uint8_t *out) {
    const size_t    row    = (size_t)image->width * cr_format_bytes(prep->format);
    const size_t    stride = image->stride ? image->stride : row;
    struct cr_image view   = {.width = image->width, .height = image->height, .format = prep->format};
    if (stride == row) {
        view.rgb = (uint8_t *)(uintptr_t)image->pixels; /* is only read */
        return cr_prepare_eval(prep, &view, out);
    }
    CR_TRY(cr_buffer_reserve(&scratch->pixels, row * (size_t)image->height));
    for (int y = 0; y < image->height; y++)
        memcpy(scratch->pixels.bytes + (size_t)y * row, image->pixels + (size_t)y * stride, row);
    view.rgb = scratch->pixels.bytes;
    return cr_prepare_eval(prep, &view, out);
}

static cr_status decode(struct cresnet_model *m, const void *bytes, size_t count, const char *name,
                        struct cr_scratch *scratch, struct cr_image *view) {
    const struct cr_stored stored = {.bytes      = bytes,
                                     .count      = count,
                                     .exif       = m->config->data.exif,
                                     .format     = m->session.prepare_eval.format,
                                     .max_pixels = m->config->data.max_pixels};
    struct cr_lazy_image   lazy;
    if (count == 0) return CR_FAIL(CR_ERR_FORMAT, "%s: the file is empty", name); /* bytes may be NULL then */
    CR_TRY(cr_lazy_image_open(&stored, name, scratch, &lazy));
    return cr_lazy_image_whole(&lazy, scratch, view);
}

static cr_status prepare_encoded(struct cresnet_model *m, const struct cr_prepare *prep, const cresnet_encoded *file,
                                 int index, struct cr_scratch *scratch, uint8_t *out) {
    struct cr_image view;
    char            name[32];
    snprintf(name, sizeof name, "image %d", index);
    CR_TRY(decode(m, file->bytes, file->count, name, scratch, &view));
    return cr_prepare_eval(prep, &view, out);
}

static cr_status prepare_file(struct cresnet_model *m, const struct cr_prepare *prep, const char *path,
                              struct cr_scratch *scratch, uint8_t *out) {
    struct cr_image view;
    size_t          bytes;
    CR_TRY(cr_image_file_read(path, scratch, &bytes));
    CR_TRY(decode(m, scratch->file.bytes, bytes, path, scratch, &view));
    return cr_prepare_eval(prep, &view, out);
}

static cr_status prepare_image(struct cresnet_model *m, const struct cr_api_images *job, int index, uint8_t *out,
                               struct cr_scratch *scratch) {
    struct cr_prepare prep = m->session.prepare_eval;
    prep.view              = job->view;
    if (job->prepared) prep.tta = CR_TTA_NONE;
    if (job->images) return prepare_pixels(&prep, &job->images[index], scratch, out);
    if (job->paths) return prepare_file(m, &prep, job->paths[index], scratch, out);
    return prepare_encoded(m, &prep, &job->encoded[index], index, scratch, out);
}

/* Keeps the error of one image. With image_errors the other images of the call are classified nevertheless. */
static void note_error(const struct cr_api_images *job, int index, cr_status status, struct cr_first_error *first) {
    cresnet_error *errors = job->output->image_errors;
    const bool     own    = errors && (status == CR_ERR_FORMAT || status == CR_ERR_IO);
    if (errors)
        cr_api_fail(&errors[index],
                    !own                  ? CRESNET_OK
                    : status == CR_ERR_IO ? CRESNET_ERROR_IO
                                          : CRESNET_ERROR_FORMAT,
                    "%s", own ? cr_error_message() : "");
    if (own)
        cr_error_clear();
    else
        cr_first_error_note(first, status, index);
}

/* Prepares an image of the call. The threads of the team use memory of the caller here, nowhere else. */
static void prepare_one(struct cresnet_model *m, const struct cr_api_images *job, int index, uint8_t *out,
                        struct cr_scratch *scratch, struct cr_first_error *error) {
    cr_api_use_begin(m);
    note_error(job, index, prepare_image(m, job, index, out, scratch), error);
    cr_scratch_release(scratch);
    cr_api_use_end(m);
}

/* Prepares images first to first + count of the call; they are written to `out`, one after the other. */
static cr_status prepare_batch(struct cresnet_model *m, const struct cr_api_images *job, int first, int count,
                               uint8_t *out) {
    struct cr_first_error error = {.status = CR_OK};
    const size_t          bytes = image_bytes(m);
#ifdef _OPENMP
    const int threads = CR_MIN(m->decoders, count);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct cr_scratch *scratch = &m->scratch[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < count; i++) prepare_one(m, job, first + i, out + (size_t)i * bytes, scratch, &error);
    }
#else
    for (int i = 0; i < count; i++) prepare_one(m, job, first + i, out + (size_t)i * bytes, &m->scratch[0], &error);
#endif
    return CR_FAIL_FIRST(&error);
}

/* ---- batches ---- */

static cr_status feed(struct cresnet_model *m, struct cr_api_images *job, int first, int count) {
    if (job->tensors) return cr_api_feed_tensors(m, job, count);
    CR_TRY(prepare_batch(m, job, first, count, m->images));
    if (m->f32_input) cr_api_normalize(m, count);
    return cr_exec_feed(m->session.eval_exec, m->f32_input ? (const uint8_t *)m->values : m->images, NULL, NULL);
}

static cr_status classify(struct cresnet_model *m, void *argument) {
    struct cr_api_images      *job   = argument;
    const struct cr_step_block step  = {0};
    const int                  batch = (int)m->session.state.eval_batch, views = job->tensors ? 1 : cr_api_views(m);
    for (int first = 0; first < job->count; first += batch) {
        const int count = CR_MIN(batch, job->count - first);
        for (job->view = 0; job->view < views; job->view++) {
            CR_TRY(feed(m, job, first, count));
            CR_TRY(cr_exec_run(m->session.eval_exec, &step));
            CR_TRY(cr_api_read_results(m, job->output, job->view, views));
        }
        CR_TRY(cr_api_write_results(m, job->output, first, count));
    }
    return CR_OK;
}

static cr_status prepare(struct cresnet_model *m, void *argument) {
    const struct cr_api_images *job = argument;
    CR_TRY(prepare_batch(m, job, 0, job->count, job->prepared));
    for (int i = 0; job->output->image_errors && i < job->count; i++)
        if (job->output->image_errors[i].status != CRESNET_OK)
            memset(job->prepared + (size_t)i * image_bytes(m), 0, image_bytes(m));
    return CR_OK;
}

static void clear_errors(const struct cr_api_images *job) {
    for (int i = 0; job->output->image_errors && i < job->count; i++) job->output->image_errors[i] = (cresnet_error){0};
}

cresnet_status cr_api_classify(cresnet_model *m, struct cr_api_images *job, cresnet_error *error) {
    cresnet_output       output; /* until the call has ended */
    const cresnet_status status = cr_api_read_output(m, job->output, &output, error);
    if (status != CRESNET_OK) return status;
    job->output = &output;
    clear_errors(job);
    if (!cr_api_can_overlap(m, job)) return cr_api_call(m, classify, job, error);
    struct cr_api_job overlapped = {
        .begin = cr_api_overlap_begin, .end = cr_api_overlap_end, .ready = cr_api_overlap_ready, .argument = job};
    return cr_api_call_job(m, &overlapped, error);
}

/* ---- public functions ---- */

cresnet_status cr_api_check_call(const cresnet_model *m, const char *name, const void *images, int count,
                                 cresnet_error *error) {
    if (error) *error = (cresnet_error){0};
    if (!m) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "model is NULL");
    if (count < 0) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "count = %d is negative", count);
    if (count && !images)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "%s is NULL, but its count is %d", name, count);
    return CRESNET_OK;
}

static cresnet_status check_paths(const char *const *paths, int count, cresnet_error *error) {
    for (int i = 0; i < count; i++)
        if (!paths[i]) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "path %d is NULL", i);
    return CRESNET_OK;
}

static cresnet_status check_image(const cresnet_model *m, const cresnet_image *image, int index, cresnet_error *error) {
    const size_t row = (size_t)image->width * cr_format_bytes(m->session.prepare_eval.format);
    if (!image->pixels) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "image %d: pixels is NULL", index);
    if (image->width < 1 || image->height < 1 || image->width > CR_IMAGE_SIDE_MAX || image->height > CR_IMAGE_SIDE_MAX)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "image %d: %d x %d pixels: sides of 1 to %d are allowed",
                           index, image->width, image->height, (int)CR_IMAGE_SIDE_MAX);
    if (image->stride && image->stride < row)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "image %d: stride = %zu is less than a row of %zu bytes",
                           index, image->stride, row);
    return CRESNET_OK;
}

cresnet_status cresnet_classify_images(cresnet_model *m, const cresnet_image *images, int count,
                                       const cresnet_output *output, cresnet_error *error) {
    struct cr_api_images job    = {.images = images, .count = count, .output = output};
    cresnet_status       status = cr_api_check_call(m, "images", images, count, error);
    for (int i = 0; status == CRESNET_OK && i < count; i++) status = check_image(m, &images[i], i, error);
    return status == CRESNET_OK ? cr_api_classify(m, &job, error) : status;
}

cresnet_status cresnet_classify_encoded(cresnet_model *m, const cresnet_encoded *images, int count,
                                        const cresnet_output *output, cresnet_error *error) {
    struct cr_api_images job    = {.encoded = images, .count = count, .output = output};
    cresnet_status       status = cr_api_check_call(m, "images", images, count, error);
    for (int i = 0; status == CRESNET_OK && i < count; i++)
        if (!images[i].bytes && images[i].count)
            status = cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "image %d: bytes is NULL", i);
    return status == CRESNET_OK ? cr_api_classify(m, &job, error) : status;
}

cresnet_status cresnet_classify_files(cresnet_model *m, const char *const *paths, int count,
                                      const cresnet_output *output, cresnet_error *error) {
    struct cr_api_images job    = {.paths = paths, .count = count, .output = output};
    cresnet_status       status = cr_api_check_call(m, "paths", paths, count, error);
    if (status == CRESNET_OK) status = check_paths(paths, count, error);
    return status == CRESNET_OK ? cr_api_classify(m, &job, error) : status;
}

cresnet_status cresnet_prepare_files(cresnet_model *m, const char *const *paths, int count, uint8_t *out,
                                     cresnet_error *image_errors, cresnet_error *error) {
    const cresnet_output output = {.image_errors = image_errors};
    struct cr_api_images job    = {.paths = paths, .count = count, .prepared = out, .output = &output};
    cresnet_status       status = cr_api_check_call(m, "paths", paths, count, error);
    if (status == CRESNET_OK) status = check_paths(paths, count, error);
    if (status == CRESNET_OK && count && !out)
        status = cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "cresnet_prepare_files: out is NULL");
    if (status != CRESNET_OK) return status;
    clear_errors(&job);
    return cr_api_call(m, prepare, &job, error);
}

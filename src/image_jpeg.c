/* image_jpeg.c: JPEG through libjpeg-turbo: grey, YCbCr, RGB, CMYK and YCCK, baseline or progressive, to RGB8.
 * The slow integer transform and smooth upsampling make the pixels those of PIL. Four-component files are taken as
 * inverted, as Adobe writes them and PIL assumes. libjpeg reports errors by longjmp, so all that lives across it stands
 * in a struct. Data that ends early or breaks off inside a scan is an error here: half a picture is not a sample. */
#include "data_impl.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* A Huffman-coded block takes at least a bit, and covers 64 to 1024 pixels: more pixels a byte than this means that the
 * file is cut off. Arithmetic coding has no such bound; it gets a generous one. */
enum { PIXELS_PER_BYTE_MAX = 8192, PIXELS_PER_BYTE_ARITH_MAX = 1 << 17, SCANS_MAX = 500 };

struct jpeg_job {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr         errors;
    struct jpeg_source_mgr        source;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       jump;
    size_t                        count;
    const char                   *name;
    struct cr_buffer             *pixels;
    bool                          out_of_memory;
    char                          message[JMSG_LENGTH_MAX];
};

static void jpeg_give_up(struct jpeg_job *job, const char *message) {
    snprintf(job->message, sizeof job->message, "%s", message);
    longjmp(job->jump, 1);
}

static void jpeg_on_error(j_common_ptr jpeg) {
    struct jpeg_job *job = jpeg->client_data;
    job->out_of_memory   = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
    jpeg->err->format_message(jpeg, job->message);
    longjmp(job->jump, 1);
}

/* Warnings that mean lost pixels end the decoding; the others (stray bytes, odd versions) are forgiven. */
static void jpeg_on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;
    switch (jpeg->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_JPEG_EOF: jpeg_on_error(jpeg); break;
    default: break;
    }
}

static void jpeg_start_source(j_decompress_ptr jpeg) {
    (void)jpeg;
}

static boolean jpeg_want_more(j_decompress_ptr jpeg) {
    jpeg_give_up(jpeg->client_data, "the file is cut off");
    return FALSE;
}

static void jpeg_skip(j_decompress_ptr jpeg, long count) {
    if (count <= 0) return;
    if ((size_t)count > jpeg->src->bytes_in_buffer) jpeg_give_up(jpeg->client_data, "the file is cut off");
    jpeg->src->next_input_byte += count;
    jpeg->src->bytes_in_buffer -= (size_t)count;
}

/* A small file can hold thousands of scans over a large picture: hours of work that add nothing. */
static void jpeg_watch(j_common_ptr jpeg) {
    struct jpeg_job *job = jpeg->client_data;
    if (job->jpeg.input_scan_number > SCANS_MAX) jpeg_give_up(job, "too many scans");
}

/* PIL's rounding of a*b/255. */
static inline int mul_div_255(int a, int b) {
    int t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}

/* Four inverted bytes a pixel to three; `to` may be the start of `from`'s row, since it never overtakes it. */
static void cmyk_to_rgb(const uint8_t *from, uint8_t *to, int width) {
    for (int x = 0; x < width; x++, from += 4, to += 3) {
        int key = from[3];
        for (int c = 0; c < 3; c++) {
            int value = key - mul_div_255(255 - from[c], key);
            to[c]     = (uint8_t)CR_MAX(value, 0);
        }
    }
}

static cr_status jpeg_read_picture(struct jpeg_job *job) {
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg->src      = &job->source;
    jpeg->progress = &job->progress;
    jpeg_read_header(jpeg, TRUE);
    CR_TRY(cr_image_check_size(jpeg->image_width, jpeg->image_height, job->name));
    size_t pixels = (size_t)jpeg->image_width * jpeg->image_height;
    size_t most   = jpeg->arith_code ? PIXELS_PER_BYTE_ARITH_MAX : PIXELS_PER_BYTE_MAX;
    if (pixels / most > job->count) jpeg_give_up(job, "the file is cut off");
    int channels = jpeg->num_components;
    if (channels != 1 && channels != 3 && channels != 4)
        return CR_FAIL(CR_ERR_FORMAT, "%s: a JPEG with %d colour components; 1, 3 or 4 can be read", job->name,
                       channels);
    jpeg->out_color_space = channels == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->dct_method      = JDCT_ISLOW;
    jpeg_start_decompress(jpeg);

    size_t   stride = (size_t)jpeg->output_width * 3, tail = channels == 4 ? (size_t)jpeg->output_width * 4 : 0;
    uint32_t height = jpeg->output_height;
    CR_TRY(cr_buffer_reserve(job->pixels, stride * height + tail)); /* tail: one row of four components */
    uint8_t *four = job->pixels->bytes + stride * height;
    while (jpeg->output_scanline < height) {
        uint8_t *row    = job->pixels->bytes + stride * jpeg->output_scanline;
        JSAMPROW target = channels == 4 ? four : row;
        jpeg_read_scanlines(jpeg, &target, 1);
        if (channels == 4) cmyk_to_rgb(four, row, (int)jpeg->output_width);
    }
    return CR_OK; /* the end marker is not asked for: all pixels are here */
}

static cr_status jpeg_read_guarded(struct jpeg_job *job) {
    if (setjmp(job->jump)) {
        if (job->out_of_memory) return CR_NO_MEMORY(job->count);
        return CR_FAIL(CR_ERR_FORMAT, "%s: broken JPEG: %s", job->name, job->message);
    }
    return jpeg_read_picture(job);
}

cr_status cr_jpeg_decode(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                         struct cr_image *view) {
    struct jpeg_job job           = {.count = count, .name = name, .pixels = pixels};
    job.jpeg.err                  = jpeg_std_error(&job.errors);
    job.jpeg.client_data          = &job;
    job.errors.error_exit         = jpeg_on_error;
    job.errors.emit_message       = jpeg_on_message;
    job.progress.progress_monitor = jpeg_watch;
    job.source.next_input_byte    = bytes;
    job.source.bytes_in_buffer    = count;
    job.source.init_source        = jpeg_start_source;
    job.source.fill_input_buffer  = jpeg_want_more;
    job.source.skip_input_data    = jpeg_skip;
    job.source.resync_to_restart  = jpeg_resync_to_restart;
    job.source.term_source        = jpeg_start_source;
    cr_status status              = jpeg_read_guarded(&job);
    int       width = (int)job.jpeg.output_width, height = (int)job.jpeg.output_height;
    jpeg_destroy_decompress(&job.jpeg); /* fine also when it was never created: the struct is zero then */
    CR_TRY(status);
    *view = (struct cr_image){.width = width, .height = height, .rgb = pixels->bytes};
    return CR_OK;
}

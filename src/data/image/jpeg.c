/* data/image/jpeg.c: decodes JPEG with libjpeg-turbo: grey, YCbCr, RGB, CMYK and YCCK, baseline or progressive, to
 * RGB8, as a whole or in part. data/image/image.c makes other formats of it.
 *   - The blocks outside a box are only entropy-decoded (each block begins where the one before ends). With
 *     libjpeg-turbo this saves the transform, the upsampling and the colour conversion of everything that a crop
 *     discards.
 *   - The slow integer transform and smooth upsampling give the same pixels as PIL.
 *   - Files of four components are read as inverted, as Adobe writes them and PIL assumes.
 *   - libjpeg reports errors by longjmp, so all data that must survive the jump is in a struct.
 *   - Data that ends early or breaks off inside a scan is an error: half an image is not a sample. */
#include "data/image/jpeg.h"
#include "data/decode.h"
#include "data/scratch.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* A Huffman-coded block has at least one bit and covers 64 to 1024 pixels: more pixels per byte than this mean that
 * the file is cut off. Arithmetic coding has no such bound; a generous one is used. */
enum { PIXELS_PER_BYTE_MAX = 8192, PIXELS_PER_BYTE_ARITH_MAX = 1 << 17 };

/* A scan may have a few bytes and still visits every block of the image. The largest photos, as progressive files of
 * the lowest quality, visit about 10 blocks for each byte; half of these are free. Visiting one takes about 10 ns. */
enum { BLOCKS_FREE = 1 << 25, BLOCKS_PER_BYTE = 8, BLOCKS_PER_CALL = 16 };

/* Upsampling reads the neighbours of a pixel and treats the edge of a cut as the edge of the image. A cut is
 * therefore made a little wider than its box, and the pixels of the box are those of the whole image. */
enum { CUT_MARGIN = 2, ROWS = 8 };

#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2001000
enum { CAN_CUT = 1 };
#else /* plain libjpeg, and versions with faulty cuts: decode whole rows from the top */
enum { CAN_CUT = 0 };
#define jpeg_crop_scanline(jpeg, x, width) ((void)0)
#define jpeg_skip_scanlines(jpeg, count) ((void)0)
#endif

struct cr_jpeg {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr         errors;
    struct jpeg_source_mgr        source;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       jump;
    size_t                        count;
    int64_t                       blocks; /* that scans have visited */
    const char                   *name;
    bool                          open, out_of_memory;
    char                          message[JMSG_LENGTH_MAX];
};

static void jpeg_fail(struct cr_jpeg *job, const char *message) {
    snprintf(job->message, sizeof job->message, "%s", message);
    longjmp(job->jump, 1);
}

static void jpeg_on_error(j_common_ptr jpeg) {
    struct cr_jpeg *job = jpeg->client_data;
    job->out_of_memory  = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
    jpeg->err->format_message(jpeg, job->message);
    longjmp(job->jump, 1);
}

/* Warnings about lost pixels end the decoding; all other warnings (stray bytes, unusual versions) are ignored. */
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

static boolean jpeg_fill_input(j_decompress_ptr jpeg) {
    jpeg_fail(jpeg->client_data, "the file is cut off");
    return FALSE;
}

static void jpeg_skip(j_decompress_ptr jpeg, long count) {
    if (count <= 0) return;
    if ((size_t)count > jpeg->src->bytes_in_buffer) jpeg_fail(jpeg->client_data, "the file is cut off");
    jpeg->src->next_input_byte += count;
    jpeg->src->bytes_in_buffer -= (size_t)count;
}

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* A small file can contain thousands of scans of a large image, which cost hours and add nothing. libjpeg calls this
 * before it reads a row of MCUs of one of several scans. */
static void jpeg_on_progress(j_common_ptr common) {
    struct cr_jpeg                      *job  = common->client_data;
    const struct jpeg_decompress_struct *jpeg = &job->jpeg;
    if (!jpeg_has_multiple_scans(&job->jpeg) || jpeg_input_complete(&job->jpeg)) return;
    job->blocks += BLOCKS_PER_CALL; /* setting up a scan takes as long as a few blocks */
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *c = jpeg->cur_comp_info[i];
        job->blocks += round_up(c->width_in_blocks, c->h_samp_factor) * c->v_samp_factor;
    }
    if (job->blocks > BLOCKS_FREE && (size_t)(job->blocks - BLOCKS_FREE) / BLOCKS_PER_BYTE > job->count)
        jpeg_fail(job, "too many scans for a file of its size");
}

/* Converts four inverted bytes per pixel to three. `to` may be the start of the row `from`, because writing never
 * overtakes reading. */
static void cmyk_to_rgb(const uint8_t *from, uint8_t *to, int width) {
    for (int x = 0; x < width; x++, from += 4, to += 3) {
        int key = from[3];
        for (int c = 0; c < 3; c++) {
            int value = key - cr_mul_div_255(255 - from[c], key);
            to[c]     = (uint8_t)CR_MAX(value, 0);
        }
    }
}

/* ---- the header ---- */

/* What the decoders keep of the whole image in addition to its pixels: the coefficients of a file with several scans,
 * else at most the samples. */
static size_t jpeg_work_bytes(struct jpeg_decompress_struct *jpeg) {
    int64_t blocks = 0;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *c = &jpeg->comp_info[i];
        blocks += round_up(c->width_in_blocks, c->h_samp_factor) * round_up(c->height_in_blocks, c->v_samp_factor);
    }
    return (size_t)blocks * (jpeg_has_multiple_scans(jpeg) ? sizeof(JBLOCK) : DCTSIZE2);
}

static cr_status jpeg_read_head(struct cr_jpeg *job, const struct cr_stored *stored, struct cr_scratch *scratch) {
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg->src      = &job->source;
    jpeg->progress = &job->progress;
    jpeg_read_header(jpeg, TRUE);
    CR_TRY(cr_image_admit(stored, jpeg->image_width, jpeg->image_height, CR_RGB8, jpeg_work_bytes(jpeg), job->name,
                          scratch));
    size_t pixels = (size_t)jpeg->image_width * jpeg->image_height;
    size_t limit  = jpeg->arith_code ? PIXELS_PER_BYTE_ARITH_MAX : PIXELS_PER_BYTE_MAX;
    if (pixels / limit > job->count) jpeg_fail(job, "the file is cut off");
    int channels = jpeg->num_components;
    if (channels != 1 && channels != 3 && channels != 4)
        return CR_FAIL(CR_ERR_FORMAT, "%s: a JPEG with %d colour components; 1, 3 or 4 can be read", job->name,
                       channels);
    return CR_OK;
}

/* ---- which decoder ---- */

enum { PLAIN_PIXELS_MAX = 1 << 26 }; /* for larger images libjpeg needs less memory */

bool cr_jpeg_is_plain(const struct jpeg_decompress_struct *jpeg) {
    if (!jpeg || !CAN_CUT) return false;
    if ((uint64_t)jpeg->image_width * jpeg->image_height > PLAIN_PIXELS_MAX) return false;
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg->restart_interval) return false;
    if (jpeg->comps_in_scan != jpeg->num_components || jpeg->Ss != 0 || jpeg->Se != 63 || jpeg->Ah || jpeg->Al)
        return false;
    const jpeg_component_info *c = jpeg->comp_info;
    if (jpeg->num_components == 1) return jpeg->jpeg_color_space == JCS_GRAYSCALE;
    if (jpeg->num_components != 3 || jpeg->jpeg_color_space != JCS_YCbCr) return false;
    for (int i = 0; i < 3; i++)
        if (jpeg->cur_comp_info[i] != &c[i]) return false;
    if (c[0].h_samp_factor > 2 || c[0].v_samp_factor > 2) return false;
    for (int i = 1; i < 3; i++)
        if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return false;
    return c[0].h_samp_factor == 1 || jpeg->image_width > 4; /* libjpeg does not filter narrower chroma */
}

const struct jpeg_decompress_struct *cr_jpeg_opened(const struct cr_scratch *scratch) {
    return scratch->jpeg && scratch->jpeg->open ? &scratch->jpeg->jpeg : NULL;
}

/* ---- decoding a part of the image ---- */

struct span { /* a range along one axis, in pixels of the scaled image */
    int at, length;
};

/* The pixels of the scaled image that the box from `at` on covers. */
static struct span scaled_span(int at, int length, int scale, int whole) {
    int from = at / scale, to = (at + length + scale - 1) / scale;
    return (struct span){from, CR_MIN(to, whole) - from};
}

int cr_jpeg_scale(const int box[4], int min_side) {
    int scale = 1;
    while (min_side > 0 && scale < 8 && box[2] / (2 * scale) >= min_side && box[3] / (2 * scale) >= min_side)
        scale *= 2;
    return scale;
}

/* Reads `rows` rows to dst; an image of four components is read through the row buffer `cmyk_row`. */
static void jpeg_read_rows(struct jpeg_decompress_struct *jpeg, int rows, uint8_t *dst, size_t stride,
                           uint8_t *cmyk_row) {
    JSAMPROW target[ROWS];
    for (int done = 0; done < rows;) {
        int want = CR_MIN(rows - done, ROWS);
        for (int r = 0; r < want; r++) target[r] = dst + stride * (size_t)(done + r);
        if (cmyk_row) target[0] = cmyk_row;
        int rows_read = (int)jpeg_read_scanlines(jpeg, target, cmyk_row ? 1 : (JDIMENSION)want);
        if (cmyk_row && rows_read) cmyk_to_rgb(cmyk_row, dst + stride * (size_t)done, (int)jpeg->output_width);
        done += rows_read;
    }
}

/* Decodes the remaining rows only to find damage. All rows except the last are decoded without producing pixels. */
static void jpeg_read_rest(struct jpeg_decompress_struct *jpeg, uint8_t *row, uint8_t *cmyk_row) {
    int left = (int)(jpeg->output_height - jpeg->output_scanline);
    if (left == 0 || jpeg_has_multiple_scans(jpeg))
        return; /* with several scans all data was read before the first row */
    if (CAN_CUT && left > 1) jpeg_skip_scanlines(jpeg, (JDIMENSION)left - 1);
    while (jpeg->output_scanline < jpeg->output_height) jpeg_read_rows(jpeg, 1, row, 0, cmyk_row);
}

static bool only_libjpeg;

void cr_jpeg_only_libjpeg(bool only) {
    only_libjpeg = only;
}

static cr_status jpeg_read_part(struct cr_jpeg *job, const struct cr_jpeg_part *part, struct cr_scratch *scratch,
                                struct cr_window *out) {
    struct jpeg_decompress_struct *jpeg   = &job->jpeg;
    struct cr_buffer              *pixels = &scratch->pixels;
    int                            scale = cr_jpeg_scale(part->box, part->min_side), channels = jpeg->num_components;
    bool                           done = false;
    if (scale == 1 && !only_libjpeg) CR_TRY(cr_jpeg_decode_baseline(jpeg, part, scratch, out, &done));
    if (done) return CR_OK;
    jpeg->out_color_space = channels == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->dct_method      = JDCT_ISLOW;
    jpeg->scale_num       = 1;
    jpeg->scale_denom     = (unsigned)scale;
    jpeg_start_decompress(jpeg);

    struct span across = scaled_span(part->box[0], part->box[2], scale, (int)jpeg->output_width);
    struct span down   = scaled_span(part->box[1], part->box[3], scale, (int)jpeg->output_height);
    JDIMENSION  from   = 0;
    int         first  = CAN_CUT ? down.at : 0; /* first row that is decoded */
    if (CAN_CUT && across.length < (int)jpeg->output_width) {
        from             = (JDIMENSION)CR_MAX(across.at - CUT_MARGIN, 0);
        JDIMENSION width = (JDIMENSION)CR_MIN(across.at + across.length + CUT_MARGIN, (int)jpeg->output_width) - from;
        jpeg_crop_scanline(jpeg, &from, &width); /* extends both to whole blocks */
    }
    size_t stride = (size_t)jpeg->output_width * 3, rows = (size_t)(down.at - first + down.length);
    size_t tail = stride / 3 * 4; /* for a row of four components, or a row that is read only to find damage */
    CR_TRY(cr_buffer_reserve(pixels, stride * rows + tail));
    uint8_t *row_buffer = pixels->bytes + stride * rows, *cmyk_row = channels == 4 ? row_buffer : NULL;
    if (first > 0) jpeg_skip_scanlines(jpeg, (JDIMENSION)first);
    jpeg_read_rows(jpeg, (int)rows, pixels->bytes, stride, cmyk_row);

    *out = (struct cr_window){
        .rgb    = pixels->bytes + stride * (size_t)(down.at - first) + (size_t)(across.at - (int)from) * 3,
        .width  = across.length,
        .height = down.length,
        .stride = stride,
        .x      = (double)part->box[0] / scale - across.at,
        .y      = (double)part->box[1] / scale - down.at,
    };
    /* An image whose side is no multiple of the scale ends within the last scaled pixel. */
    out->w = CR_MIN((double)part->box[2] / scale, across.length - out->x);
    out->h = CR_MIN((double)part->box[3] / scale, down.length - out->y);
    if (part->whole) jpeg_read_rest(jpeg, row_buffer, cmyk_row);
    return CR_OK; /* the end marker is not required: all pixels are complete */
}

/* ---- public functions ---- */

static cr_status jpeg_failed(const struct cr_jpeg *job) {
    if (job->out_of_memory) return CR_NO_MEMORY(job->count);
    return CR_FAIL(CR_ERR_FORMAT, "%s: broken JPEG: %s", job->name, job->message);
}

static cr_status jpeg_head_guarded(struct cr_jpeg *job, const struct cr_stored *stored, struct cr_scratch *scratch) {
    if (setjmp(job->jump)) return jpeg_failed(job);
    return jpeg_read_head(job, stored, scratch);
}

static cr_status jpeg_part_guarded(struct cr_jpeg *job, const struct cr_jpeg_part *part, struct cr_scratch *scratch,
                                   struct cr_window *out) {
    if (setjmp(job->jump)) return jpeg_failed(job);
    return jpeg_read_part(job, part, scratch, out);
}

static void jpeg_release(struct cr_jpeg *job) {
    if (job->open)
        jpeg_destroy_decompress(&job->jpeg); /* also allowed before jpeg_create_decompress: the struct is zero then */
    job->open = false;
}

void cr_jpeg_close(struct cr_jpeg *jpeg) {
    if (!jpeg) return;
    jpeg_release(jpeg);
    cr_free(jpeg);
}

/* The state of libjpeg is created anew for each image: it would keep the tables of the previous image, and an image
 * without tables would be decoded with them. */
cr_status cr_jpeg_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch, int *width,
                       int *height) {
    if (!scratch->jpeg) CR_ALLOC(scratch->jpeg, 1);
    struct cr_jpeg *job = scratch->jpeg;
    jpeg_release(job);
    memset(job, 0, sizeof *job);
    job->open                      = true;
    job->count                     = stored->count;
    job->name                      = name;
    job->jpeg.err                  = jpeg_std_error(&job->errors);
    job->jpeg.client_data          = job;
    job->errors.error_exit         = jpeg_on_error;
    job->errors.emit_message       = jpeg_on_message;
    job->progress.progress_monitor = jpeg_on_progress;
    job->source.next_input_byte    = stored->bytes;
    job->source.bytes_in_buffer    = stored->count;
    job->source.init_source        = jpeg_start_source;
    job->source.fill_input_buffer  = jpeg_fill_input;
    job->source.skip_input_data    = jpeg_skip;
    job->source.resync_to_restart  = jpeg_resync_to_restart;
    job->source.term_source        = jpeg_start_source;
    cr_status status               = jpeg_head_guarded(job, stored, scratch);
    *width                         = (int)job->jpeg.image_width;
    *height                        = (int)job->jpeg.image_height;
    if (status != CR_OK) jpeg_release(job);
    return status;
}

cr_status cr_jpeg_read(const struct cr_jpeg_part *part, struct cr_scratch *scratch, struct cr_window *out) {
    struct cr_jpeg *job = scratch->jpeg;
    CR_ASSERT(job && job->open);
    cr_status status = jpeg_part_guarded(job, part, scratch, out);
    jpeg_release(job);
    return status;
}

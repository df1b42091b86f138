/* data/source/pack_jpeg.c: writes the JPEG files of packed datasets, and tells which files may stay as they are. Every
 * decoder reads these files at its full speed: baseline, 8 bits, one Huffman-coded scan, no restarts.
 *   - The bytes depend on pixels and quality only: the slow integer transform is the same on all processors.
 *   - libjpeg reports errors by longjmp, so all data that must survive the jump is in a struct. */
#include "data/source.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

enum { HEAD_BYTES = 1024 }; /* more than the tables before the scan */

struct writer {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr       errors;
    struct jpeg_destination_mgr destination;
    jmp_buf                     jump;
    struct cr_buffer           *out;
    size_t                      refused; /* bytes that could not be allocated; 0: another error */
    char                        message[JMSG_LENGTH_MAX];
};

static void write_on_error(j_common_ptr jpeg) {
    struct writer *w = jpeg->client_data;
    if (jpeg->err->msg_code == JERR_OUT_OF_MEMORY) w->refused = HEAD_BYTES;
    jpeg->err->format_message(jpeg, w->message);
    longjmp(w->jump, 1);
}

static void write_on_message(j_common_ptr jpeg, int level) {
    (void)jpeg, (void)level;
}

static void write_start(j_compress_ptr jpeg) {
    struct writer *w                = jpeg->client_data;
    w->destination.next_output_byte = w->out->bytes;
    w->destination.free_in_buffer   = w->out->capacity;
}

/* libjpeg has filled the buffer to its end. */
static boolean write_grow(j_compress_ptr jpeg) {
    struct writer *w    = jpeg->client_data;
    const size_t   used = w->out->capacity;
    uint8_t       *more = cr_realloc(w->out->bytes, 2 * used, 1);
    if (!more) {
        w->refused = 2 * used;
        longjmp(w->jump, 1);
    }
    *w->out                         = (struct cr_buffer){more, 2 * used};
    w->destination.next_output_byte = more + used;
    w->destination.free_in_buffer   = used;
    return TRUE;
}

static void write_end(j_compress_ptr jpeg) {
    (void)jpeg;
}

static bool is_grey(const struct cr_image *image) {
    const size_t pixels = (size_t)image->width * image->height;
    for (size_t i = 0; image->format != CR_GREY8 && i < pixels; i++) {
        const uint8_t *p = image->rgb + 3 * i;
        if (p[0] != p[1] || p[1] != p[2]) return false;
    }
    return true;
}

static cr_status write_guarded(struct writer *w, const struct cr_image *image, int quality, const char *name) {
    struct jpeg_compress_struct *jpeg = &w->jpeg;
    if (setjmp(w->jump))
        return w->refused ? CR_NO_MEMORY(w->refused)
                          : CR_FAIL(CR_ERR_FORMAT, "%s: cannot be written as a JPEG: %s", name, w->message);
    jpeg_create_compress(jpeg);
    jpeg->dest             = &w->destination;
    jpeg->image_width      = (JDIMENSION)image->width;
    jpeg->image_height     = (JDIMENSION)image->height;
    jpeg->input_components = cr_format_channels(image->format);
    jpeg->in_color_space   = image->format == CR_GREY8 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(jpeg);
    jpeg_set_colorspace(jpeg, is_grey(image) ? JCS_GRAYSCALE : JCS_YCbCr); /* chroma 4:2:0 */
    jpeg_set_quality(jpeg, quality, TRUE);
    jpeg->dct_method      = JDCT_ISLOW;
    jpeg->arith_code      = FALSE;
    jpeg->optimize_coding = FALSE; /* decoders keep the standard tables from image to image */
    jpeg->num_scans       = 0;     /* one; some libjpegs make progressive files by default */
    jpeg->scan_info       = NULL;
    jpeg_start_compress(jpeg, TRUE);
    for (size_t stride = (size_t)image->width * (size_t)jpeg->input_components;
         jpeg->next_scanline < jpeg->image_height;) {
        JSAMPROW row = image->rgb + stride * jpeg->next_scanline;
        jpeg_write_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_compress(jpeg);
    return CR_OK;
}

cr_status cr_jpeg_write(const struct cr_image *image, int quality, const char *name, struct cr_buffer *out,
                        size_t *count) {
    struct writer w = {.out = out};
    CR_ASSERT(image->format == CR_RGB8 || image->format == CR_GREY8);
    CR_TRY(cr_buffer_reserve(out, (size_t)image->width * image->height / 4 + HEAD_BYTES));
    w.jpeg.err                        = jpeg_std_error(&w.errors);
    w.jpeg.client_data                = &w;
    w.errors.error_exit               = write_on_error;
    w.errors.emit_message             = write_on_message;
    w.destination.init_destination    = write_start;
    w.destination.empty_output_buffer = write_grow;
    w.destination.term_destination    = write_end;
    const cr_status status            = write_guarded(&w, image, quality, name);
    jpeg_destroy_compress(&w.jpeg); /* also allowed before jpeg_create_compress: the struct is zero then */
    if (status == CR_OK) *count = (size_t)(w.destination.next_output_byte - out->bytes);
    return status;
}

/* ---- files that stay as they are ---- */

/* The frame: 8 bits, grey or YCbCr with chroma of one block. Returns the number of components, or 0. */
static int plain_frame(const uint8_t *frame, size_t length) {
    if (length < 6 || frame[0] != 8 || length < 6 + 3 * (size_t)frame[5]) return 0;
    const uint8_t *c = frame + 6; /* of each component: name, blocks across and down, table */
    if (frame[5] == 1) return 1;
    const bool luma   = c[1] == 0x11 || c[1] == 0x12 || c[1] == 0x21 || c[1] == 0x22;
    const bool chroma = c[4] == 0x11 && c[7] == 0x11;
    return frame[5] == 3 && c[0] == 1 && c[3] == 2 && c[6] == 3 && luma && chroma ? 3 : 0;
}

int cr_jpeg_plain_components(const void *bytes, size_t count) {
    enum { ADOBE_TRANSFORM = 11 }; /* place in the segment */
    struct cr_jpeg_segment s;
    int                    components = 0;
    if (count < 2 || memcmp(bytes, "\xff\xd8", 2) != 0) return 0;
    for (size_t at = 2; cr_jpeg_segment(bytes, count, &at, &s);) {
        if (s.marker == CR_JPEG_SOF0) components = plain_frame(s.data, s.length);
        if (s.marker == CR_JPEG_DRI && s.length >= 2 && (s.data[0] || s.data[1])) return 0;
        /* without a transform the components are red, green and blue */
        if (s.marker == CR_JPEG_APP14 && s.length > ADOBE_TRANSFORM && !memcmp(s.data, "Adobe", 5) &&
            !s.data[ADOBE_TRANSFORM])
            return 0;
        if (s.marker == CR_JPEG_SOS) return s.length >= 1 && s.data[0] == components ? components : 0;
    }
    return 0;
}

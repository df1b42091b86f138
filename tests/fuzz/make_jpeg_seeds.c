/* tests/fuzz/make_jpeg_seeds.c: writes the files seed-*.jpg of tests/fuzz/corpus/fuzz_jpeg, of computed pixels, with
 * libjpeg-turbo 2.1:
 *     cc -O1 tests/fuzz/make_jpeg_seeds.c -ljpeg -o make_jpeg_seeds && ./make_jpeg_seeds tests/fuzz/corpus/fuzz_jpeg
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

struct seed {
    const char *name;
    int         width, height, components; /* 1 grey, 3 colour, 4 CMYK */
    int         h, v;                      /* sampling factors of the first component */
    int         blue_h, blue_v;            /* of the second, if they are not 1 x 1 */
    int         restart, progressive, arithmetic;
    int         orientation; /* EXIF; 0: no block; 9: a damaged block */
    int         big;         /* byte order of the block */
    int         cut;         /* percent of the file that stays; 0: all */
    int         bits;        /* written to the frame header in place of 8; 0: 8 */
};

static const struct seed seeds[] = {
    {.name = "progressive-odd", .width = 33, .height = 19, .components = 3, .h = 2, .v = 2, .progressive = 1},
    {.name        = "progressive-restart",
     .width       = 30,
     .height      = 17,
     .components  = 3,
     .h           = 2,
     .v           = 1,
     .progressive = 1,
     .restart     = 2},
    {.name = "restart-1", .width = 40, .height = 24, .components = 3, .h = 2, .v = 2, .restart = 1},
    {.name = "restart-3-444", .width = 35, .height = 21, .components = 3, .h = 1, .v = 1, .restart = 3},
    {.name = "411", .width = 45, .height = 13, .components = 3, .h = 4, .v = 1},
    {.name = "440", .width = 21, .height = 27, .components = 3, .h = 1, .v = 2},
    {.name = "410", .width = 37, .height = 18, .components = 3, .h = 4, .v = 2},
    {.name = "422-odd", .width = 31, .height = 11, .components = 3, .h = 2, .v = 1},
    {.name = "420-odd", .width = 17, .height = 17, .components = 3, .h = 2, .v = 2},
    {.name = "one-pixel", .width = 1, .height = 1, .components = 3, .h = 2, .v = 2},
    {.name = "3x1", .width = 50, .height = 9, .components = 3, .h = 3, .v = 1},
    {.name = "blue-2x1", .width = 29, .height = 16, .components = 3, .h = 2, .v = 2, .blue_h = 2, .blue_v = 1},
    {.name = "cut-scan", .width = 40, .height = 40, .components = 3, .h = 2, .v = 2, .cut = 80},
    {.name = "cut-restart", .width = 40, .height = 40, .components = 3, .h = 2, .v = 1, .restart = 4, .cut = 85},
    {.name        = "cut-progressive",
     .width       = 40,
     .height      = 40,
     .components  = 3,
     .h           = 2,
     .v           = 2,
     .progressive = 1,
     .cut         = 90},
    {.name = "exif-6", .width = 27, .height = 14, .components = 3, .h = 2, .v = 2, .orientation = 6},
    {.name = "exif-8-big", .width = 27, .height = 14, .components = 3, .h = 1, .v = 1, .orientation = 8, .big = 1},
    {.name        = "exif-3-progressive",
     .width       = 19,
     .height      = 23,
     .components  = 3,
     .h           = 2,
     .v           = 1,
     .progressive = 1,
     .orientation = 3},
    {.name = "exif-5-grey", .width = 19, .height = 12, .components = 1, .h = 1, .v = 1, .orientation = 5, .big = 1},
    {.name = "exif-damaged", .width = 27, .height = 14, .components = 3, .h = 2, .v = 2, .orientation = 9},
    {.name = "cmyk-restart", .width = 18, .height = 15, .components = 4, .h = 1, .v = 1, .restart = 2},
    {.name = "cmyk-2x2", .width = 23, .height = 15, .components = 4, .h = 2, .v = 2},
    {.name = "grey-progressive", .width = 23, .height = 15, .components = 1, .h = 1, .v = 1, .progressive = 1},
    {.name = "grey-2x2-restart", .width = 23, .height = 25, .components = 1, .h = 2, .v = 2, .restart = 2},
    {.name = "arithmetic", .width = 25, .height = 18, .components = 3, .h = 2, .v = 2, .arithmetic = 1},
    {.name = "12-bit", .width = 16, .height = 16, .components = 3, .h = 1, .v = 1, .bits = 12},
};

static void fill(const struct seed *s, unsigned char *line, int y) {
    for (int x = 0; x < s->width; x++)
        for (int c = 0; c < s->components; c++)
            line[x * s->components + c] = (unsigned char)((x * (7 + c) + y * (5 - c) + x * y / 3) * (x % 5 ? 1 : 29));
}

/* A TIFF block with one entry. */
static void write_exif(struct jpeg_compress_struct *jpeg, const struct seed *s) {
    unsigned char little[] = "Exif\0\0II*\0\10\0\0\0\1\0\x12\1\3\0\1\0\0\0\0\0\0\0\0\0\0",
                  big[]    = "Exif\0\0MM\0*\0\0\0\10\0\1\1\x12\0\3\0\0\0\1\0\0\0\0\0\0\0";
    little[6 + 18]         = (unsigned char)s->orientation;
    big[6 + 19]            = (unsigned char)s->orientation;
    if (s->orientation == 9) little[6 + 4] = 0xf0; /* the directory is outside the block */
    jpeg_write_marker(jpeg, JPEG_APP0 + 1, s->big ? big : little, sizeof little - 1);
}

static unsigned char *encode(const struct seed *s, unsigned long *size) {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr       errors;
    unsigned char              *bytes = NULL, line[4 * 64];
    jpeg.err                          = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, size);
    jpeg.image_width      = (JDIMENSION)s->width;
    jpeg.image_height     = (JDIMENSION)s->height;
    jpeg.input_components = s->components;
    jpeg.in_color_space   = s->components == 1 ? JCS_GRAYSCALE : s->components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 60, TRUE);
    jpeg.comp_info[0].h_samp_factor = s->h;
    jpeg.comp_info[0].v_samp_factor = s->v;
    if (s->blue_h) jpeg.comp_info[1].h_samp_factor = s->blue_h;
    if (s->blue_v) jpeg.comp_info[1].v_samp_factor = s->blue_v;
    jpeg.restart_interval = (unsigned)s->restart;
    jpeg.optimize_coding  = s->arithmetic ? FALSE : TRUE; /* small tables */
    jpeg.arith_code       = s->arithmetic ? TRUE : FALSE;
    if (s->progressive) jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    if (s->orientation) write_exif(&jpeg, s);
    for (int y = 0; y < s->height; y++) {
        JSAMPROW at = line;
        fill(s, line, y);
        jpeg_write_scanlines(&jpeg, &at, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return bytes;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        const struct seed *s = &seeds[i];
        char               path[4096];
        unsigned long      size  = 0;
        unsigned char     *bytes = encode(s, &size);
        for (unsigned long k = 0; s->bits && k + 4 < size; k++) /* the frame header: marker, length, bits */
            if (bytes[k] == 0xff && bytes[k + 1] == 0xc0) bytes[k + 1] = 0xc1, bytes[k + 4] = (unsigned char)s->bits;
        if (s->cut) size = size * (unsigned long)s->cut / 100;
        snprintf(path, sizeof path, "%s/seed-%s.jpg", argv[1], s->name);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) return 1;
        free(bytes);
    }
    return 0;
}

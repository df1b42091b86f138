/* cli/commands/data_show.c: cresnet data show: a page of the first images that a training sees, with their classes. The
 * loader and the order of training make them; the reference kernel of the op mix applies what the device would. */
#include "cli/commands/data_show_font.h"
#include "cli/common/command.h"
#include "core/output_file.h"
#include "data/data.h"
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { IMAGES_MAX = 64, COLUMNS_MAX = 8, PAGE_SIDE = 4096, SMALL = 128, LARGE = 192, GAP = 8, PAPER = 255, INK = 24 };

struct page {
    int      columns, zoom, scale; /* zoom: of images; scale: of letters */
    int      cell_w, cell_h;       /* an image and its label; a gap follows */
    int      width, height;
    uint8_t *rgb;
};

/* As many images as a page of PAGE_SIDE pixels has room for; small images are drawn larger. */
static int64_t lay_out(struct page *p, const struct cr_prepare *prep, int64_t images) {
    const int width = cr_prepare_width(prep), side = CR_MAX(width, prep->size);
    p->zoom          = CR_MAX(SMALL / side, 1);
    p->scale         = width * p->zoom >= LARGE ? 2 : 1;
    p->cell_w        = width * p->zoom;
    p->cell_h        = prep->size * p->zoom + (FONT_HEIGHT + 4) * p->scale;
    const int across = CR_MAX(PAGE_SIDE / (p->cell_w + GAP), 1), down = CR_MAX(PAGE_SIDE / (p->cell_h + GAP), 1);
    images     = CR_MIN(images, (int64_t)CR_MIN(across, COLUMNS_MAX) * CR_MIN(down, COLUMNS_MAX));
    p->columns = 1;
    while (p->columns < across && p->columns * p->columns < images) p->columns++;
    p->width  = p->columns * (p->cell_w + GAP) + GAP;
    p->height = (int)((images + p->columns - 1) / p->columns) * (p->cell_h + GAP) + GAP;
    return images;
}

/* Fills a square of `side` pixels. */
static void fill_square(const struct page *p, int x, int y, int side, const uint8_t rgb[3]) {
    for (int v = y; v < y + side; v++)
        for (int u = x; u < x + side; u++) memcpy(p->rgb + 3 * ((size_t)v * (size_t)p->width + (size_t)u), rgb, 3);
}

static int hex_digit(char c) {
    return c <= '9' ? c - '0' : c - 'A' + 10;
}

static void draw_letter(const struct page *p, int x, int y, unsigned char letter) {
    static const uint8_t ink[3] = {INK, INK, INK};
    const char          *columns =
        font + 2 * FONT_WIDTH * ((letter < FONT_FIRST || letter > FONT_LAST ? '?' : letter) - FONT_FIRST);
    for (int u = 0; u < FONT_WIDTH; u++, columns += 2)
        for (int v = 0; v < FONT_HEIGHT; v++)
            if ((hex_digit(columns[0]) << 4 | hex_digit(columns[1])) >> v & 1)
                fill_square(p, x + u * p->scale, y + v * p->scale, p->scale, ink);
}

/* As much of the text as the cell has room for; a character that is not ASCII becomes one question mark. */
static void draw_text(const struct page *p, int x, int y, const char *text) {
    const int step = (FONT_WIDTH + 1) * p->scale, room = (p->cell_w + p->scale) / step;
    int       count = 0;
    for (const char *c = text; *c; c++) count += ((unsigned char)*c & 0xc0) != 0x80;
    for (int at = 0; *text && at < room; text++) {
        if (((unsigned char)*text & 0xc0) == 0x80) continue;
        draw_letter(p, x + step * at, y, count > room && at >= room - 2 ? '.' : (unsigned char)*text);
        at++;
    }
}

/* The classes of image n of the batch; with mixup or cutmix the two images' classes and their percentages. */
static void describe(const struct cr_dataset *set, const struct cr_batch *b, int64_t n, struct cr_text *out) {
    const int      words = cr_dataset_label_words(set);
    const int32_t *label = b->labels + n * words, *mix = b->mixes ? b->mixes + n * CR_MIX_NUMBERS : NULL;
    const bool     several = cr_dataset_labels(set, 0) != NULL;
    for (int k = 0, first = 1; several && k < set->classes; k++) {
        if (!cr_dataset_row_has(label, k)) continue;
        cr_text_add(out, "%s%s", first ? "" : ", ", set->class_names[k]);
        first = 0;
    }
    if (several) return;
    const int32_t other = mix ? b->labels[(int64_t)mix[CR_MIX_PARTNER] * words] : *label;
    const int     part  = mix ? (int)((int64_t)mix[CR_MIX_LABEL_WEIGHT] * 100 / CR_MIX_ONE) : 100;
    cr_text_add(out, "%s", set->class_names[*label]);
    if (other != *label && part < 100) cr_text_add(out, " %d%%, %s", part, set->class_names[other]);
}

/* The pixels of a batch after crop, flip, erasing and mixing; the caller frees *out. */
static cr_status see_batch(const struct cr_config *c, const struct cr_prepare *prep, const struct cr_batch *b,
                           int64_t images, uint8_t **out) {
    struct cr_mixing m    = {.images = b->images,
                             .boxes  = b->boxes,
                             .mixes  = b->mixes,
                             .N      = images,
                             .H      = prep->size,
                             .W      = cr_prepare_width(prep),
                             .C      = cr_format_channels(prep->format),
                             .wide   = cr_format_bits(prep->format) == 16};
    const double     most = m.wide ? 65535 : 255;
    int32_t         *none;
    CR_ALLOC(none, (size_t)(images * CR_MIX_NUMBERS));
    for (int64_t n = 0; n < images; n++) {
        none[n * CR_MIX_NUMBERS + CR_MIX_PARTNER] = (int32_t)n;
        none[n * CR_MIX_NUMBERS + CR_MIX_WEIGHT]  = CR_MIX_ONE;
    }
    if (!m.mixes) m.mixes = none;
    for (int k = 0; k < m.C; k++)
        m.fill[k] = (int64_t)rint(fmin(fmax(most * (double)(float)cr_config_mean(c, k), 0), most));
    *out = cr_alloc((size_t)images, cr_prepare_bytes(prep));
    for (int64_t row = 0; *out && row < m.N * m.H; row++) cr_ref_mix_row(&m, row / m.H, row % m.H, *out);
    cr_free(none);
    return *out ? CR_OK : CR_NO_MEMORY((size_t)images * cr_prepare_bytes(prep));
}

static cr_status draw_image(const struct page *p, const struct cr_prepare *prep, const uint8_t *pixels, int x, int y) {
    const size_t    bytes = cr_prepare_bytes(prep);
    struct cr_image image = {cr_prepare_width(prep), prep->size, cr_alloc(bytes, 1), prep->format};
    if (!image.rgb) return CR_NO_MEMORY(bytes);
    memcpy(image.rgb, pixels, bytes);
    const cr_status status = cr_image_to_rgb(&image);
    for (int v = 0; status == CR_OK && v < image.height; v++)
        for (int u = 0; u < image.width; u++)
            fill_square(p, x + u * p->zoom, y + v * p->zoom, p->zoom,
                        image.rgb + 3 * ((size_t)v * (size_t)image.width + (size_t)u));
    cr_image_free(&image);
    return status;
}

static cr_status draw_page(struct page *p, const struct cr_dataset *set, const struct cr_prepare *prep,
                           const struct cr_batch *b, int64_t images, const uint8_t *pixels) {
    CR_ALLOC(p->rgb, (size_t)p->width * (size_t)p->height * 3);
    memset(p->rgb, PAPER, (size_t)p->width * (size_t)p->height * 3);
    for (int n = 0; n < images; n++) {
        const int      x = GAP + n % p->columns * (p->cell_w + GAP), y = GAP + n / p->columns * (p->cell_h + GAP);
        struct cr_text text = {0};
        CR_TRY(draw_image(p, prep, pixels + (size_t)n * cr_prepare_bytes(prep), x, y));
        describe(set, b, n, &text);
        if (text.data) draw_text(p, x, y + prep->size * p->zoom + 2 * p->scale, text.data);
        cr_text_free(&text);
    }
    return CR_OK;
}

static cr_status write_page(const struct cr_args *args, const struct page *p) {
    const char    *file   = args->value[CR_OPT_OVERLAY];
    struct cr_text png    = {0};
    cr_status      status = cr_image_encode_png(CR_OUTPUT_SHOW_SOFTWARE, p->rgb, p->width, p->height, &png);
    if (status == CR_OK) status = cr_cmd_write_file(args, file, CR_OUTPUT_SHOW_PNG, &png);
    cr_text_free(&png);
    return status;
}

/* Of the images of the first epoch. */
static cr_status prepare_first(const struct cr_config *c, struct cr_prepare *out) {
    struct cr_size_schedule sizes;
    if (cr_config_sizes(c, &sizes) && sizes.count) return cr_prepare_of_size(c, sizes.size[0], out);
    return cr_prepare_from_config(c, CR_SPLIT_TRAIN, out);
}

static cr_status show(const struct cr_args *args, const struct cr_config *c, const struct cr_dataset *set) {
    struct cr_prepare prep;
    struct page       page   = {0};
    struct cr_loader *loader = NULL;
    struct cr_batch   batch  = {0};
    uint8_t          *pixels = NULL;
    cr_status         status;
    CR_TRY(prepare_first(c, &prep));
    /* The images of a batch do not depend on its size, but for those that are mixed with the image beside them. */
    const int64_t                  size    = CR_MIN(c->train.batch ? c->train.batch : IMAGES_MAX, set->count);
    const int64_t                  images  = lay_out(&page, &prep, CR_MIN(size, (int64_t)IMAGES_MAX));
    const struct cr_loader_options options = cr_loader_options_of_training(c, &prep, CR_MIN(size, images + images % 2));
    CR_TRY(cr_loader_open(set, &options, &loader));
    CR_TRY_OUT(cr_loader_next(loader, &batch));
    CR_TRY_OUT(see_batch(c, &prep, &batch, options.batch, &pixels));
    CR_TRY_OUT(draw_page(&page, set, &prep, &batch, images, pixels));
    CR_TRY_OUT(write_page(args, &page));
    cr_log(CR_LOG_INFO, "%lld images as training sees them first, in rows of %d (train.seed = %lld)", (long long)images,
           page.columns, (long long)c->train.seed);
out:
    cr_free(page.rgb);
    cr_free(pixels);
    if (batch.images) cr_loader_release(loader, &batch);
    cr_loader_close(loader);
    return status;
}

cr_status cr_data_show(const struct cr_args *args) {
    const char             *file = args->value[CR_OPT_OVERLAY];
    const struct cr_config *config;
    struct cr_dataset      *set = NULL;
    if (!args->operands) return cr_args_fail(args, "no dataset given: cresnet data show CONFIG|DIR -o PAGE.png");
    CR_TRY(cr_args_max_operands(args, 1));
    if (!file) return cr_args_fail(args, "no output named: add -o PAGE.png");
    if (cr_cmd_is_stdout(file) && isatty(STDOUT_FILENO))
        return cr_args_fail(args, "standard output is a terminal: redirect it (> FILE), or name a file instead of -");
    CR_TRY(cr_cmd_output_check(args, file, CR_OUTPUT_SHOW_PNG));
    CR_TRY(cr_cmd_data_config(args, &config));
    cr_status status = cr_dataset_open(config, CR_SPLIT_TRAIN, &set);
    if (status == CR_OK) status = show(args, config, set);
    cr_dataset_close(set);
    cr_config_close(config);
    return status;
}

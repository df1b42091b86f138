/* data/augment/pixel_ops.c: operations on the colours and the shape of an RGB or grey image of 8 bits. The results are
 * bitwise identical to PIL's (Image.blend, ImageEnhance, ImageOps, transform with NEAREST), so recipes made for
 * torchvision have the same meaning here. Most operations use a table of 256 entries. */
#include "core/cpu.h"
#include "data/augment.h"

#include <math.h>
#include <string.h>

/* ---- operations on single values, by tables ---- */

static void map_all(uint8_t *rgb, size_t bytes, const uint8_t table[256]) {
    for (size_t i = 0; i < bytes; i++) rgb[i] = table[rgb[i]];
}

/* Computed in single precision and truncated. The function has no branches, so that loops over it are vectorised. */
static inline uint8_t blend(int from, int to, float fraction) {
    float x = (float)from + fraction * (float)(to - from);
    x       = x > 0 ? x : 0;
    x       = x < 255 ? x : 255;
    return (uint8_t)(int)x;
}

static void blend_with(uint8_t *rgb, size_t bytes, int from, float fraction) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = blend(from, i, fraction);
    map_all(rgb, bytes, table);
}

/* ITU-R 601-2 luma in 16 bits. */
static int grey_of(const uint8_t *p) {
    return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16;
}

static int mean_grey(const uint8_t *rgb, size_t pixels, int channels) {
    int64_t sum = 0;
    for (size_t i = 0; i < pixels; i++) sum += channels == 1 ? rgb[i] : grey_of(rgb + 3 * i);
    return (int)((double)sum / (double)pixels + 0.5);
}

static void posterize(uint8_t *rgb, size_t bytes, int bits) {
    const uint8_t mask = (uint8_t)(0xff << (8 - bits));
    for (size_t i = 0; i < bytes; i++) rgb[i] &= mask;
}

static void solarize(uint8_t *rgb, size_t bytes, double threshold) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < threshold ? i : 255 - i);
    map_all(rgb, bytes, table);
}

static void invert(uint8_t *rgb, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) rgb[i] = (uint8_t)(255 - rgb[i]);
}

/* ---- operations by the histogram of each channel ---- */

/* Of every `step`-th byte. */
static void histogram(const uint8_t *rgb, size_t bytes, size_t step, int64_t count[256]) {
    memset(count, 0, 256 * sizeof *count);
    for (size_t i = 0; i < bytes; i += step) count[rgb[i]]++;
}

static bool stretch_table(const int64_t count[256], uint8_t table[256]) {
    int low = 0, high = 255;
    while (low < 255 && !count[low]) low++;
    while (high > 0 && !count[high]) high--;
    if (high <= low) return false;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int i = 0; i < 256; i++) {
        const int x = (int)(i * scale + offset);
        table[i]    = (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
    }
    return true;
}

static bool equal_table(const int64_t count[256], uint8_t table[256]) {
    int64_t sum = 0, last = 0, n;
    for (int i = 0; i < 256; i++) {
        sum += count[i];
        if (count[i]) last = count[i];
    }
    const int64_t step = (sum - last) / 255;
    if (step == 0) return false;
    n = step / 2;
    for (int i = 0; i < 256; i++) {
        table[i] = (uint8_t)CR_MIN(n / step, (int64_t)255);
        n += count[i];
    }
    return true;
}

static void by_histogram(uint8_t *rgb, size_t bytes, size_t channels,
                         bool (*table_of)(const int64_t count[256], uint8_t table[256])) {
    for (size_t c = 0; c < channels; c++) {
        int64_t count[256];
        uint8_t table[256];
        histogram(rgb + c, bytes - c, channels, count);
        if (!table_of(count, table)) continue;
        for (size_t i = c; i < bytes; i += channels) rgb[i] = table[rgb[i]];
    }
}

/* ---- operations on single pixels ---- */

/* Blends each byte with the byte at the same index of `from`. */
CR_BY_LEVEL_AVX2(void, blend_bytes, (uint8_t *restrict rgb, const uint8_t *restrict from, size_t bytes, float fraction),
                 (rgb, from, bytes, fraction)) {
    for (size_t i = 0; i < bytes; i++) rgb[i] = blend(from[i], rgb[i], fraction);
}

static void saturate(uint8_t *rgb, size_t pixels, float fraction, uint8_t *copy) {
    for (size_t i = 0; i < pixels; i++) memset(copy + 3 * i, grey_of(rgb + 3 * i), 3);
    blend_bytes(rgb, copy, 3 * pixels, fraction);
}

/* Rounds a number from 0 to 255. */
static uint8_t nearest(double x) {
    return (uint8_t)(int)(x + 0.5);
}

/* The position of each 8-bit hue on the colour circle: its sector of six, and the fraction within the sector. */
struct hues {
    int   sector[256];
    float within[256];
};

/* Rotates the hue by `steps` of 256 steps, in PIL's HSV of bytes. */
static void rotate_pixel_hue(uint8_t *p, int steps, const struct hues *hues) {
    const int   max = CR_MAX(p[0], CR_MAX(p[1], p[2])), min = CR_MIN(p[0], CR_MIN(p[1], p[2]));
    const float range = (float)(max - min);
    if (max == min) return; /* grey */
    const float red = (float)(max - p[0]) / range, green = (float)(max - p[1]) / range,
                blue     = (float)(max - p[2]) / range;
    double h             = p[0] == max   ? (double)(blue - green)
                           : p[1] == max ? 2.0 + (double)red - (double)blue
                                         : 4.0 + (double)green - (double)red;
    h                    = (double)(float)h / 6.0 + 1.0;
    h                    = h >= 1 ? h - 1 : h;
    const int hue        = ((int)((double)(float)h * 255.0) + steps) & 255,
              saturation = (int)((double)(range / (float)max) * 255.0);
    if (saturation == 0) {
        p[0] = p[1] = p[2] = (uint8_t)max;
        return;
    }
    const float   f = hues->within[hue], s = (float)saturation / 255.0f;
    const double  v    = max;
    const uint8_t down = nearest(v * (1.0 - (double)s)), falling = nearest(v * (1.0 - (double)(s * f))),
                  rising = nearest(v * (1.0 - (double)s * (1.0 - (double)f))), up = (uint8_t)max;
    switch (hues->sector[hue]) {
    case 0: p[0] = up, p[1] = rising, p[2] = down; return;
    case 1: p[0] = falling, p[1] = up, p[2] = down; return;
    case 2: p[0] = down, p[1] = up, p[2] = rising; return;
    case 3: p[0] = down, p[1] = falling, p[2] = up; return;
    case 4: p[0] = rising, p[1] = down, p[2] = up; return;
    default: p[0] = up, p[1] = down, p[2] = falling;
    }
}

static void rotate_hue(uint8_t *rgb, size_t pixels, double fraction) {
    const int   steps = (int)(fraction * 255) & 255;
    struct hues hues;
    for (int i = 0; i < 256; i++) {
        const float at     = (float)i * 6.0f / 255.0f;
        const int   sector = (int)at;
        hues.sector[i]     = sector % 6;
        hues.within[i]     = at - (float)sector;
    }
    for (size_t i = 0; i < pixels; i++) rotate_pixel_hue(rgb + 3 * i, steps, &hues);
}

/* ---- operations on neighbourhoods and geometry ---- */

/* Smooths the bytes of a row, whose pixels are `step` bytes apart, with the weights 1 1 1, 1 5 1, 1 1 1, rounded to
 * nearest. For sums up to 3315 the division by 13 is exact as a multiplication and a shift. */
CR_BY_LEVEL_AVX2(void, smooth_row,
                 (const uint8_t *restrict up, const uint8_t *restrict at, const uint8_t *restrict down,
                  uint8_t *restrict to, size_t bytes, size_t step),
                 (up, at, down, to, bytes, step)) {
    for (size_t i = step; i < bytes - step; i++) {
        const int sum = up[i - step] + up[i] + up[i + step] + at[i - step] + 5 * at[i] + at[i + step] + down[i - step] +
                        down[i] + down[i + step];
        to[i] = (uint8_t)(((2 * sum + 13) * 20165) >> 19);
    }
}

/* Blends the image with its smoothed copy, whose border is that of the image. */
static void sharpen(const struct cr_pixels *p, float fraction) {
    const size_t step = (size_t)p->channels, row = (size_t)p->width * step, bytes = row * (size_t)p->height;
    memcpy(p->copy, p->rgb, bytes);
    for (int y = 1; y < p->height - 1 && p->width > 2; y++) {
        const uint8_t *at = p->rgb + (size_t)y * row;
        smooth_row(at - row, at, at + row, p->copy + (size_t)y * row, row, step);
    }
    blend_bytes(p->rgb, p->copy, bytes, fraction);
}

static int64_t fixed(double x) {
    return (int64_t)floor(x * 65536.0 + 0.5);
}

/* Pixel (x, y) becomes pixel (m0 x + m1 y + m2, m3 x + m4 y + m5) of the image, sampled at pixel centres in 16.16
 * fixed point; the fill colour outside the image. */
static inline __attribute__((always_inline)) void transform_pixels(const struct cr_pixels *p, const double m[6],
                                                                   const size_t step) {
    const size_t  row = (size_t)p->width * step;
    const int64_t dx = fixed(m[0]), dy = fixed(m[3]), down_x = fixed(m[1]), down_y = fixed(m[4]);
    int64_t       first_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), first_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    memcpy(p->copy, p->rgb, row * (size_t)p->height);
    for (int y = 0; y < p->height; y++, first_x += down_x, first_y += down_y) {
        int64_t  at_x = first_x, at_y = first_y;
        uint8_t *to = p->rgb + (size_t)y * row;
        for (int x = 0; x < p->width; x++, at_x += dx, at_y += dy, to += step) {
            const int64_t  from_x = at_x >> 16, from_y = at_y >> 16;
            const bool     inside = from_x >= 0 && from_x < p->width && from_y >= 0 && from_y < p->height;
            const uint8_t *from   = inside ? p->copy + (size_t)from_y * row + (size_t)from_x * step : p->fill;
            memcpy(to, from, step);
        }
    }
}

/* A loop for each number of channels. */
static void transform(const struct cr_pixels *p, const double m[6]) {
    if (p->channels == 1)
        transform_pixels(p, m, 1);
    else
        transform_pixels(p, m, 3);
}

static void move(const struct cr_pixels *p, double shear_x, double shift_x, double shear_y, double shift_y) {
    transform(p, (const double[6]){1, shear_x, shift_x, shear_y, 1, shift_y});
}

static double round15(double x) {
    return rint(x * 1e15) / 1e15;
}

/* Rotates counter-clockwise about the centre. */
static void rotate(const struct cr_pixels *p, double degrees) {
    const double angle = -degrees * (3.14159265358979323846 / 180), cx = p->width / 2.0, cy = p->height / 2.0;
    double       m[6] = {round15(cos(angle)), round15(sin(angle)), 0, round15(-sin(angle)), round15(cos(angle)), 0};
    m[2]              = m[0] * -cx + m[1] * -cy + cx;
    m[5]              = m[3] * -cx + m[4] * -cy + cy;
    transform(p, m);
}

/* ---- one operation ---- */

void cr_pixels_apply(enum cr_pixel_op op, double amount, const struct cr_pixels *p) {
    const size_t pixels = (size_t)p->width * (size_t)p->height, channels = (size_t)p->channels,
                 bytes = channels * pixels;
    const bool grey    = channels == 1; /* which has no saturation and no hue to change */
    uint8_t   *rgb     = p->rgb;
    CR_ASSERT(grey || channels == 3);
    switch (op) {
    case CR_PIXELS_IDENTITY: return;
    case CR_PIXELS_SHEAR_X: move(p, amount, 0, 0, 0); return;
    case CR_PIXELS_SHEAR_Y: move(p, 0, 0, amount, 0); return;
    case CR_PIXELS_TRANSLATE_X: move(p, 0, -trunc(amount), 0, 0); return;
    case CR_PIXELS_TRANSLATE_Y: move(p, 0, 0, 0, -trunc(amount)); return;
    case CR_PIXELS_ROTATE: rotate(p, amount); return;
    case CR_PIXELS_BRIGHTNESS: blend_with(rgb, bytes, 0, (float)amount); return;
    case CR_PIXELS_COLOUR:
        if (!grey) saturate(rgb, pixels, (float)amount, p->copy);
        return;
    case CR_PIXELS_CONTRAST: blend_with(rgb, bytes, mean_grey(rgb, pixels, p->channels), (float)amount); return;
    case CR_PIXELS_SHARPNESS: sharpen(p, (float)amount); return;
    case CR_PIXELS_POSTERIZE: posterize(rgb, bytes, (int)amount); return;
    case CR_PIXELS_SOLARIZE: solarize(rgb, bytes, amount); return;
    case CR_PIXELS_AUTO_CONTRAST: by_histogram(rgb, bytes, channels, stretch_table); return;
    case CR_PIXELS_EQUALIZE: by_histogram(rgb, bytes, channels, equal_table); return;
    case CR_PIXELS_HUE:
        if (!grey) rotate_hue(rgb, pixels, amount);
        return;
    case CR_PIXELS_INVERT: invert(rgb, bytes); return;
    }
}

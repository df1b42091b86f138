/* cli/explain/overlay.c: draws the heat map of a class over its image; see cli/explain/overlay.h. */
#include "cli/explain/overlay.h"

#include <math.h>

/* The colour map inferno of matplotlib (CC0) at 16 equal steps: its lightness grows with the value, also for people who
 * do not distinguish red and green, and in print. */
static const uint8_t inferno[][3] = {
    {0, 0, 4},      {11, 7, 36},    {33, 12, 74},   {61, 9, 101},    {87, 16, 110},   {113, 25, 110},
    {138, 34, 106}, {163, 44, 97},  {188, 55, 84},  {210, 70, 68},   {228, 90, 49},   {241, 115, 29},
    {249, 142, 9},  {252, 172, 17}, {249, 203, 53}, {242, 234, 105}, {252, 255, 164},
};
enum { STEPS = CR_COUNT(inferno) - 1 };
#define MOST_COLOUR 0.75 /* part of the colour where the map is largest */
#define IMAGE_GREY 0.5   /* part of the image's own colour that is replaced by its grey */

static void colour_of(double value, double out[3]) {
    const double at   = value * STEPS;
    const int    step = CR_MIN((int)at, STEPS - 1);
    for (int c = 0; c < 3; c++)
        out[c] = inferno[step][c] + (at - step) * ((double)inferno[step + 1][c] - inferno[step][c]);
}

/* Splits a place on one axis of the map into the position before it and the distance to that; beyond the centres of the
 * outer positions their values go on. */
static int split(double at, int count, double *rest) {
    const double inside = CR_MAX(0.0, CR_MIN(at, count - 1.0));
    const int    before = CR_MIN((int)inside, CR_MAX(count - 2, 0));
    *rest               = inside - before;
    return before;
}

/* The interpolated value at the centre of a pixel; 0 outside of the box. */
static double value_at(const struct cr_heat *h, int x, int y) {
    const double u = (x + 0.5 - h->box[0]) / h->box[2], v = (y + 0.5 - h->box[1]) / h->box[3];
    double       right, down;
    if (u < 0 || u > 1 || v < 0 || v > 1) return 0;
    const int column = split(u * h->width - 0.5, h->width, &right), row = split(v * h->height - 0.5, h->height, &down);
    const int next_column = CR_MIN(column + 1, h->width - 1), next_row = CR_MIN(row + 1, h->height - 1);
    const float *above = h->value + (size_t)row * (size_t)h->width,
                *below = h->value + (size_t)next_row * (size_t)h->width;
    return (1 - down) * ((1 - right) * (double)above[column] + right * (double)above[next_column]) +
           down * ((1 - right) * (double)below[column] + right * (double)below[next_column]);
}

static void draw_pixel(double value, uint8_t rgb[3]) {
    const double grey  = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
    const double alpha = MOST_COLOUR * value;
    double       colour[3];
    colour_of(value, colour);
    for (int c = 0; c < 3; c++) {
        const double image = rgb[c] + IMAGE_GREY * (grey - rgb[c]);
        rgb[c]             = (uint8_t)lrint(image + alpha * (colour[c] - image));
    }
}

void cr_overlay_draw(const struct cr_heat *heat, struct cr_image *image) {
    double largest = 0;
    for (int i = 0; i < heat->height * heat->width; i++) largest = CR_MAX(largest, (double)heat->value[i]);
    for (int y = 0; y < image->height; y++)
        for (int x = 0; x < image->width; x++) {
            const double value = largest > 0 ? value_at(heat, x, y) / largest : 0;
            draw_pixel(CR_MIN(value, 1.0), image->rgb + ((size_t)y * (size_t)image->width + (size_t)x) * 3);
        }
}

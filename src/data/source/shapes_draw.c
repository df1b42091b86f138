/* data/source/shapes_draw.c: draws an image of the shapes dataset: one of ten figures, given as a distance from its
 * outline, rotated, scaled and coloured, on a shaded, noisy background with a few specks. The coverage of a pixel
 * follows from its distance to the outline, which smooths the edges. Only + - * / and sqrt are used, so every
 * machine draws the same pixels. */
#include "core/rng.h"
#include "data/source.h"

#include <math.h>

enum { SPECKS_MAX = 3 };

struct point {
    double x, y;
};

/* All properties of one image except its class. */
struct scene {
    struct point center, rotation; /* rotation = (cos, sin) */
    double       radius;
    double       ink[3], background[3], shade[3], noise;
    struct point slope; /* direction of the shading */
    int          specks;
    struct {
        struct point at;
        double       radius, colour[3];
    } speck[SPECKS_MAX];
};

static double between(struct cr_rng *rng, double low, double high) {
    return low + (high - low) * cr_rng_real(rng);
}
static double length_of(double x, double y) {
    return sqrt(x * x + y * y);
}
static double clamp(double v, double low, double high) {
    return v < low ? low : v > high ? high : v;
}

/* ---- figures: distance to the outline in units of the radius, negative inside ---- */

static double box(double x, double y, double half_w, double half_h) {
    double dx = fabs(x) - half_w, dy = fabs(y) - half_h;
    return length_of(fmax(dx, 0), fmax(dy, 0)) + fmin(fmax(dx, dy), 0);
}

/* The distance to a closed polygon: the nearest edge gives the distance, the number of crossings of a ray gives the
 * sign. */
static double polygon(double x, double y, const struct point *p, int count) {
    double nearest = 1e9;
    bool   inside  = false;
    for (int i = 0, j = count - 1; i < count; j = i++) {
        double ex = p[j].x - p[i].x, ey = p[j].y - p[i].y, wx = x - p[i].x, wy = y - p[i].y;
        double along = clamp((wx * ex + wy * ey) / (ex * ex + ey * ey), 0, 1);
        nearest      = fmin(nearest, length_of(wx - ex * along, wy - ey * along));
        if ((p[i].y > y) != (p[j].y > y) && x < (p[j].x - p[i].x) * (y - p[i].y) / (p[j].y - p[i].y) + p[i].x)
            inside = !inside;
    }
    return inside ? -nearest : nearest;
}

static double figure_checker(double x, double y) { /* nine cells of a square, five of them filled */
    double nearest = 1e9, side = 0.6;
    for (int i = -1; i <= 1; i++)
        for (int j = -1; j <= 1; j++)
            if ((i + j) % 2 == 0) nearest = fmin(nearest, box(x - i * side, y - j * side, side / 2, side / 2));
    return nearest;
}

static double figure_circle(double x, double y) {
    return length_of(x, y) - 0.85;
}

static double figure_crescent(double x, double y) {
    return fmax(length_of(x, y) - 0.95, 0.72 - length_of(x - 0.42, y));
}

static double figure_cross(double x, double y) {
    return fmin(box(x, y, 0.95, 0.27), box(x, y, 0.27, 0.95));
}

static double figure_heart(double x, double y) { /* two discs over a square rotated by 45 degrees */
    double d = 0.7071067811865476, u = (x + (y - 0.05)) * d, v = ((y - 0.05) - x) * d;
    double discs = fmin(length_of(x - 0.39, y + 0.34), length_of(x + 0.39, y + 0.34)) - 0.55;
    return fmin(discs, box(u, v, 0.55, 0.55));
}

static double figure_ring(double x, double y) {
    return fabs(length_of(x, y) - 0.7) - 0.2;
}

static double figure_square(double x, double y) {
    return box(x, y, 0.76, 0.76);
}

static double figure_star(double x, double y) { /* cos and sin of 36 degrees and their multiples */
    static const struct point corners[10] = {
        {0, -1},   {0.2468, -0.3398}, {0.9511, -0.3090}, {0.3994, 0.1298},   {0.5878, 0.8090},
        {0, 0.42}, {-0.5878, 0.8090}, {-0.3994, 0.1298}, {-0.9511, -0.3090}, {-0.2468, -0.3398},
    };
    return polygon(x, y, corners, 10);
}

static double figure_stripes(double x, double y) {
    return fmin(box(x, y, 0.85, 0.17), fmin(box(x, y - 0.66, 0.85, 0.17), box(x, y + 0.66, 0.85, 0.17)));
}

static double figure_triangle(double x, double y) {
    static const struct point corners[3] = {{0, -1}, {0.8660, 0.5}, {-0.8660, 0.5}};
    return polygon(x, y - 0.1, corners, 3);
}

static const struct {
    const char *name;
    double (*distance)(double x, double y);
} figures[CR_SHAPES_CLASSES] = {
    {"checker", figure_checker}, {"circle", figure_circle},     {"crescent", figure_crescent}, {"cross", figure_cross},
    {"heart", figure_heart},     {"ring", figure_ring},         {"square", figure_square},     {"star", figure_star},
    {"stripes", figure_stripes}, {"triangle", figure_triangle},
};

const char *cr_shapes_class(int label) {
    return figures[label].name;
}

/* ---- scenes ---- */

static double luma(const double colour[3]) {
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2];
}

static void draw_colour(struct cr_rng *rng, double darkest, double lightest, double out[3]) {
    do
        for (int c = 0; c < 3; c++) out[c] = between(rng, 0, 255);
    while (luma(out) < darkest || luma(out) > lightest);
}

/* A direction from the rational parametrisation of the circle, which needs no sine. */
static struct point draw_rotation(struct cr_rng *rng) {
    double t = between(rng, -1, 1), scale = 1 / (1 + t * t), c = (1 - t * t) * scale, s = 2 * t * scale;
    return cr_rng_u32(rng) & 1 ? (struct point){c, s} : (struct point){-c, -s};
}

static void draw_scene(struct cr_rng *rng, struct scene *scene) {
    scene->radius    = between(rng, 7.5, 14);
    double max_shift = CR_SHAPES_SIDE / 2.0 - 0.8 * scene->radius; /* at most a corner may be cut off */
    scene->center.x  = CR_SHAPES_SIDE / 2.0 + between(rng, -max_shift, max_shift);
    scene->center.y  = CR_SHAPES_SIDE / 2.0 + between(rng, -max_shift, max_shift);
    scene->rotation  = draw_rotation(rng);
    scene->slope     = draw_rotation(rng);
    scene->noise     = between(rng, 2, 12);
    /* All hues are possible, but the figure is always lighter than the background: otherwise a small network would
     * need most of its few epochs to separate them. */
    draw_colour(rng, 0, 120, scene->background);
    for (int c = 0; c < 3; c++) scene->shade[c] = between(rng, -25, 25);
    draw_colour(rng, luma(scene->background) + 60, 255, scene->ink);
    scene->specks = (int)cr_rng_below(rng, SPECKS_MAX + 1);
    for (int i = 0; i < scene->specks; i++) {
        scene->speck[i].at     = (struct point){between(rng, 0, CR_SHAPES_SIDE), between(rng, 0, CR_SHAPES_SIDE)};
        scene->speck[i].radius = between(rng, 0.7, 1.8);
        draw_colour(rng, 0, 255, scene->speck[i].colour);
    }
}

/* The fraction of a pixel inside an outline at `distance` pixels from the centre of the pixel. */
static double coverage(double distance) {
    return clamp(0.5 - distance, 0, 1);
}

/* The centred sum of the four bytes of a word: approximately normal with standard deviation 1. */
static double normal_noise(uint32_t word) {
    int sum = (int)(word & 255) + (int)(word >> 8 & 255) + (int)(word >> 16 & 255) + (int)(word >> 24);
    return (sum - 510) / 147.8;
}

void cr_shapes_draw(enum cr_split split, int64_t index, uint8_t rgb[CR_SHAPES_SIDE * CR_SHAPES_SIDE * 3]) {
    struct cr_rng rng = cr_rng_make(0, CR_RNG_SHAPES, (uint64_t)index, (uint32_t)split);
    struct scene  s;
    draw_scene(&rng, &s);
    for (int i = 0; i < CR_SHAPES_SIDE * CR_SHAPES_SIDE; i++) {
        double px = i % CR_SHAPES_SIDE + 0.5, py = i / CR_SHAPES_SIDE + 0.5;
        double dx = (px - s.center.x) / s.radius, dy = (py - s.center.y) / s.radius;
        double x = dx * s.rotation.x + dy * s.rotation.y, y = dy * s.rotation.x - dx * s.rotation.y;
        double ink   = coverage(figures[index % CR_SHAPES_CLASSES].distance(x, y) * s.radius);
        double shade = ((px - 16) * s.slope.x + (py - 16) * s.slope.y) / 16;
        for (int c = 0; c < 3; c++) {
            double value = s.background[c] + s.shade[c] * shade;
            for (int k = 0; k < s.specks; k++) {
                double fraction = coverage(length_of(px - s.speck[k].at.x, py - s.speck[k].at.y) - s.speck[k].radius);
                value += (s.speck[k].colour[c] - value) * fraction;
            }
            value += (s.ink[c] - value) * ink + normal_noise(cr_rng_u32(&rng)) * s.noise;
            rgb[3 * i + c] = (uint8_t)(clamp(value, 0, 255) + 0.5);
        }
    }
}

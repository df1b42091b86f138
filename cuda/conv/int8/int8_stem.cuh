/* cuda/conv/int8/int8_stem.cuh: what the two kernels of the 8-bit stem share (cuda/conv/int8/int8_stem_sm90a.cu,
 * cuda/conv/int8/int8_stem_mma.cu): the division into bands and the conversion of pixels.
 *
 * The image is used in space-to-depth form: 2x2 pixels are one pixel of 16 channels, four of them zero, and the 7x7
 * filter of stride 2 is a 4x4 filter of stride 1. One row of such pixels takes 16 bytes a pixel in shared memory, so 8
 * neighbouring pixels are an 8x8 matrix of 128 bytes at any starting pixel. */
#ifndef CK_INT8_STEM_CUH
#define CK_INT8_STEM_CUH

#include "cuda/common/conv_family.cuh"
#include "cuda/common/shared.cuh"
#include "cuda/conv/int8/int8_stem.h"

namespace {

enum {
    TAPS        = 4,   /* the filter is 4 x 4 */
    LINE        = 112, /* pixels of a row of the convolution that are computed together */
    SPAN        = LINE + TAPS - 1,
    ROW_BYTES   = SPAN * 16,
    COLUMNS     = 64, /* channels of a block */
    TABLE_BYTES = 3 * 256
};

struct shape {
    int N, H, W, P, Q, PP, PQ, K; /* P, Q: of the convolution; PP, PQ: of y */
    int segments, bands, work;    /* of a row of y; of an image; bands of all images */
    int band;                     /* rows of y in a band */
};
struct params {
    struct shape   shape;
    float          value[TABLE_BYTES]; /* (byte/255 - mean) / std: 256 for each colour */
    const uint8_t *images;
    const float   *scale, *coeffs;
    const int8_t  *w;
    uint8_t       *y;
};

/* Rows and pixels of a band. */
struct band {
    int        n, row, rows;     /* image; first row of y and their number */
    int        left, from, most; /* first pixel of the convolution; first pixel of y that is stored; their number */
    __device__ band(const shape &s, int index) {
        const int segment = index % s.segments, rest = index / s.segments,
                  first = segment ? 56 + 55 * (segment - 1) : 0;
        n               = rest / s.bands;
        row             = rest % s.bands * s.band;
        rows            = min(s.band, s.PP - row);
        left            = segment ? 2 * first - 2 : 0;
        from            = first;
        most            = min(segment ? 55 : 56, s.PQ - first);
    }
    /* rows of the convolution: first (may be -1) and number */
    __device__ __forceinline__ int top() const { return 2 * row - 1; }
    __device__ __forceinline__ int count() const { return 2 * rows + 1; }
};

/* The quantised value of each byte of each colour, by `threads` threads. */
__device__ __forceinline__ void make_table(const params &p, int8_t *table, int thread, int threads) {
    const float scale = *p.scale;
    for (int i = thread; i < TABLE_BYTES; i += threads) {
        const float q = rintf(__fdiv_rn(p.value[i], scale));
        table[i]      = q == q ? (int8_t)fminf(fmaxf(q, -127.0f), 127.0f) : (int8_t)0;
    }
}

/* The six bytes of two neighbouring image pixels; 0 in `valid`: outside the image. */
struct two_pixels {
    uint16_t                        part[3];
    bool                            valid;
    __device__ __forceinline__ void load(const params &p, int n, int h, int w) {
        valid = h >= 0 && h < p.shape.H && w >= 0 && w < p.shape.W;
        if (!valid) return;
        const uint16_t *from =
            reinterpret_cast<const uint16_t *>(p.images + (((int64_t)n * p.shape.H + h) * p.shape.W + w) * 3);
        part[0] = __ldg(from);
        part[1] = __ldg(from + 1);
        part[2] = __ldg(from + 2);
    }
    /* converted byte i */
    __device__ __forceinline__ uint32_t byte(const uint8_t *table, int i) const {
        return table[i % 3 * 256 + (part[i / 2] >> i % 2 * 8 & 255)];
    }
};

/* The pixel of a row in space-to-depth form from two rows of the image. */
__device__ __forceinline__ uint4 convert(const uint8_t *table, const two_pixels &above, const two_pixels &below) {
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 6; i++) {
        if (above.valid) word[i / 4] |= above.byte(table, i) << i % 4 * 8;
        if (below.valid) word[(i + 6) / 4] |= below.byte(table, i) << (i + 6) % 4 * 8;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* ---- host side ---- */

/* Bands have at most `band_max` rows, and fewer where there are less than `workers` of them. */
inline params params_of(const struct ck_int8_stem *a, int band_max, int workers) {
    params        p = {};
    struct shape *s = &p.shape;
    s->N            = (int)a->N;
    s->H            = (int)a->H;
    s->W            = (int)a->W;
    s->P            = s->H / 2;
    s->Q            = s->W / 2;
    s->PP           = (s->P - 1) / 2 + 1;
    s->PQ           = (s->Q - 1) / 2 + 1;
    s->K            = (int)a->K;
    s->segments     = s->PQ <= 56 ? 1 : 1 + (s->PQ - 56 + 54) / 55;
    s->band         = band_max;
    while (s->band > 1 && (int64_t)s->N * s->segments * ((s->PP + s->band - 1) / s->band) < workers)
        s->band = (s->band + 1) / 2;
    s->bands = (s->PP + s->band - 1) / s->band;
    s->work  = s->N * s->bands * s->segments;
    for (int i = 0; i < TABLE_BYTES; i++) /* here, because a division in double takes a thread of the GPU 0.3 us */
        p.value[i] = (float)(((double)(i % 256) / 255.0 - (double)a->mean[i / 256]) / (double)a->std[i / 256]);
    p.images = a->images;
    p.scale  = a->scale;
    p.coeffs = a->coeffs;
    p.w      = a->w;
    p.y      = a->y;
    return p;
}

} // namespace

#endif

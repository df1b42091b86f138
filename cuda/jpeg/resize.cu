/* cuda/jpeg/resize.cu: from samples to the pixels of a batch: upsampling of the chroma, RGB, the crop, and PIL's
 * antialiased bilinear resize. All arithmetic is that of the CPU (data/image/jpeg_pixels_avx2.c, data/image/resize.c),
 * so the bytes are equal: integers, and for the weights of the resize doubles without fused multiply-add.
 *   axis_kernel    the weights of both axes of each image
 *   across_kernel  for each row of the crop: RGB in shared memory, then the horizontal pass
 *   down_kernel    the vertical pass, to the image's place in the batch
 * Limiter: across_kernel arithmetic, down_kernel memory. */
#include "cuda/common/common.cuh"
#include "cuda/jpeg/jpeg_launchers.h"

enum { WEIGHT_BITS = 22, THREADS = 256, ROWS = 4, CHANNELS = 3 };

/* ---- weights ---- */

/* As axis_fill in data/image/resize.c, for one pixel of the result. */
__device__ void fill_axis(const ck_jpeg_axis &axis, uint8_t *work, int result, int i) {
    int32_t     *to    = (int32_t *)(work + axis.at) + (int64_t)i * (2 + axis.stride);
    const double scale = __ddiv_rn((double)(float)axis.size, result), reduction = scale > 1 ? scale : 1;
    const double center = __dmul_rn(i + 0.5, scale), inverse = __ddiv_rn(1.0, reduction);
    const int    first = max((int)__dadd_rn(__dsub_rn(center, reduction), 0.5), 0);
    const int    taps  = min((int)__dadd_rn(__dadd_rn(center, reduction), 0.5), axis.size) - first;
    double       sum   = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < taps; t++) {
            const double distance = fabs(__dmul_rn(__dadd_rn(__dsub_rn(t + first, center), 0.5), inverse));
            const double raw      = distance < 1 ? __dsub_rn(1.0, distance) : 0;
            if (pass == 0)
                sum = __dadd_rn(sum, raw);
            else
                to[2 + t] = (int32_t)__dadd_rn(0.5, __dmul_rn(sum != 0 ? __ddiv_rn(raw, sum) : raw, 1 << WEIGHT_BITS));
        }
    to[0] = first;
    to[1] = taps;
}

__global__ void __launch_bounds__(THREADS) axis_kernel(const ck_jpeg_batch batch) {
    const ck_jpeg_image &im = batch.image[blockIdx.x];
    for (int i = threadIdx.x; i < batch.width + batch.height; i += THREADS)
        if (i < batch.width)
            fill_axis(im.across, batch.work, batch.width, i);
        else
            fill_axis(im.down, batch.work, batch.height, i - batch.width);
}

/* ---- pixels of the crop ---- */

struct plane {                               /* the samples of a component */
    const uint8_t *at;                       /* of the first decoded MCU */
    int            stride, first_x, first_y; /* position of these samples in the component, in samples */
    int            width, height;            /* samples of the whole component */
};
__device__ plane plane_of(const ck_jpeg_image &im, const uint8_t *work, int c) {
    const int h = c ? 1 : im.scan.h, v = c ? 1 : im.scan.v;
    return {work + im.samples[c],
            im.columns[c] * 8,
            im.x0 * h * 8,
            im.y0 * v * 8,
            (im.scan.width * h + im.scan.h - 1) / im.scan.h,
            (im.scan.height * v + im.scan.v - 1) / im.scan.v};
}
/* A sample; positions outside of the component show its border. */
__device__ __forceinline__ int sample(const plane &p, int x, int y) {
    x = min(max(x, 0), p.width - 1);
    y = min(max(y, 0), p.height - 1);
    return p.at[(y - p.first_y) * p.stride + (x - p.first_x)];
}
/* The sample of a chroma component for pixel (x, y), with libjpeg's triangle filters and their rounding. */
__device__ __forceinline__ int upsampled(const plane &p, bool across, bool down, int x, int y) {
    if (!across && !down) return sample(p, x, y);
    const int cx = across ? x / 2 : x, cy = down ? y / 2 : y;
    const int other_x = x % 2 ? cx + 1 : cx - 1, far = y % 2 ? cy + 1 : cy - 1;
    if (across && down) {
        const int here  = 3 * sample(p, cx, cy) + sample(p, cx, far);
        const int other = 3 * sample(p, other_x, cy) + sample(p, other_x, far);
        return (3 * here + other + (x % 2 ? 7 : 8)) >> 4;
    }
    if (across) return (3 * sample(p, cx, cy) + sample(p, other_x, cy) + (x % 2 ? 2 : 1)) >> 2;
    return (3 * sample(p, cx, cy) + sample(p, cx, far) + (y % 2 ? 2 : 1)) >> 2;
}

/* YCbCr to RGB with factors of 16 fractional bits. */
__device__ __forceinline__ void store_rgb(int y, int cb, int cr, uint8_t *to) {
    const int half = 1 << 15;
    cb -= 128;
    cr -= 128;
    to[0] = (uint8_t)min(max(y + ((91881 * cr + half) >> 16), 0), 255);
    to[1] = (uint8_t)min(max(y + ((-22554 * cb - 46802 * cr + half) >> 16), 0), 255);
    to[2] = (uint8_t)min(max(y + ((116130 * cb + half) >> 16), 0), 255);
}

__device__ __forceinline__ uint8_t clip(int sum) {
    return (uint8_t)min(max(sum >> WEIGHT_BITS, 0), 255);
}

__global__ void __launch_bounds__(THREADS) across_kernel(const ck_jpeg_batch batch) {
    extern __shared__ uint8_t row[]; /* [ROWS][box width][3] */
    const ck_jpeg_image      &im = batch.image[blockIdx.y];
    const int width = im.scan.box[2], first = blockIdx.x * ROWS, rows = min(ROWS, im.scan.box[3] - first);
    if (rows <= 0) return;
    const bool  colour = im.scan.components == 3, half_x = im.scan.h == 2 && colour, half_y = im.scan.v == 2 && colour;
    const plane luma = plane_of(im, batch.work, 0), blue = plane_of(im, batch.work, colour ? 1 : 0),
                red = plane_of(im, batch.work, colour ? 2 : 0);
    for (int i = threadIdx.x; i < rows * width; i += THREADS) {
        const int r = i / width, x = im.scan.box[0] + i - r * width, y = im.scan.box[1] + first + r;
        const int cb = colour ? upsampled(blue, half_x, half_y, x, y) : 128;
        const int cr = colour ? upsampled(red, half_x, half_y, x, y) : 128;
        store_rgb(sample(luma, x, y), cb, cr, row + CHANNELS * i);
    }
    __syncthreads();
    const int      stride = 2 + im.across.stride;
    const int32_t *axis   = (const int32_t *)(batch.work + im.across.at);
    uint8_t       *middle = batch.work + im.middle + (int64_t)first * batch.width * CHANNELS;
    for (int i = threadIdx.x; i < rows * batch.width; i += THREADS) {
        const int      r = i / batch.width, x = i - r * batch.width;
        const int32_t *a    = axis + (int64_t)x * stride;
        const uint8_t *from = row + CHANNELS * (r * width + a[0]);
        int            sum[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) sum[c] = 1 << (WEIGHT_BITS - 1);
        for (int t = 0; t < a[1]; t++, from += CHANNELS)
            for (int c = 0; c < CHANNELS; c++) sum[c] += a[2 + t] * from[c];
        for (int c = 0; c < CHANNELS; c++) middle[CHANNELS * i + c] = clip(sum[c]);
    }
}

/* A thread computes the bytes of a Word: four where rows are a whole number of words. */
template <typename Word> __global__ void __launch_bounds__(THREADS) down_kernel(const ck_jpeg_batch batch) {
    constexpr int        BYTES  = sizeof(Word);
    const ck_jpeg_image &im     = batch.image[blockIdx.y];
    const int            words  = batch.width * CHANNELS / BYTES;
    const int32_t       *axis   = (const int32_t *)(batch.work + im.down.at);
    const Word          *middle = (const Word *)(batch.work + im.middle);
    Word                *result = (Word *)batch.result + (int64_t)im.place * batch.height * words;
    const int            first = blockIdx.x * ROWS, rows = min(ROWS, batch.height - first);
    for (int i = threadIdx.x; i < rows * words; i += THREADS) {
        const int      r = i / words, x = i - r * words;
        const int32_t *a    = axis + (int64_t)(first + r) * (2 + im.down.stride);
        const Word    *from = middle + (int64_t)a[0] * words + x;
        int            sum[BYTES];
        for (int k = 0; k < BYTES; k++) sum[k] = 1 << (WEIGHT_BITS - 1);
        for (int t = 0; t < a[1]; t++, from += words) {
            const Word word = *from;
            for (int k = 0; k < BYTES; k++) sum[k] += a[2 + t] * (int)(word >> 8 * k & 255);
        }
        Word out = 0;
        for (int k = 0; k < BYTES; k++) out |= (Word)((Word)clip(sum[k]) << 8 * k);
        result[(int64_t)first * words + i] = out;
    }
}

cudaError_t ck_jpeg_resize(const struct ck_jpeg_batch *b, cudaStream_t stream) {
    const unsigned images = (unsigned)b->images;
    axis_kernel<<<images, THREADS, 0, stream>>>(*b);
    across_kernel<<<dim3((unsigned)(b->rows + ROWS - 1) / ROWS, images), THREADS, (size_t)ROWS * b->columns * CHANNELS,
                    stream>>>(*b);
    const dim3 grid((unsigned)(b->height + ROWS - 1) / ROWS, images);
    if (b->width % 4 == 0)
        down_kernel<uint32_t><<<grid, THREADS, 0, stream>>>(*b);
    else
        down_kernel<uint8_t><<<grid, THREADS, 0, stream>>>(*b);
    return cudaGetLastError();
}

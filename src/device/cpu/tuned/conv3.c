/* device/cpu/tuned/conv3.c: 3x3 convolutions with 16 or 32 channels (networks for CIFAR), stride 1, padding 1, and
 * their input gradients.
 *
 * 16 filters are one AVX-512 vector. With so few filters a general kernel loads one value for almost every
 * multiply-add. This kernel uses each loaded input value for three filter columns. The sums of a tile (16 output pixels
 * of 16 filters, or 8 of 32) stay in registers, and input pixel j contributes to outputs j-2, j-1 and j. Pixels outside
 * the image are skipped and not multiplied by zero, because a weight may be infinite. The kernel is limited by
 * arithmetic. */
#include "device/cpu/tuned/conv3.h"

/* ---- supported shapes ---- */

/* Other instruction sets have too few registers for a tile. With 64 channels Winograd's algorithm is faster (cpu.conv,
 * cpu.conv_wgrad). A sum has 9*C terms; a longer sum would have to be split for accuracy. */
static bool is_supported(int64_t channels) {
    return channels == 16 || channels == 32;
}

static bool fits(const struct cr_program *p, const struct cr_op *op, int image, int filter, int64_t outputs) {
    const struct cr_tensor *x = &p->tensor[image], *w = &p->tensor[filter];
    return cr_cpu_level() == CR_CPU_AVX512 && w->dim[1] == TAPS && w->dim[2] == TAPS && op->attr.conv.stride == 1 &&
           op->attr.conv.pad == 1 && is_supported(w->dim[3]) && is_supported(w->dim[0]) &&
           x->dim[2] % (outputs % (2 * LANES) ? WIDE : NARROW) == 0;
}

bool cr_cpu_conv3_is_best(const struct cr_program *p, const struct cr_op *op) {
    const int w = op->kind == CR_OP_conv         ? op->in[CR_IN_conv_w]
                  : op->kind == CR_OP_conv_dgrad ? op->in[CR_IN_conv_dgrad_w]
                                                 : op->out[CR_OUT_conv_wgrad_dw];
    const int x = op->in[op->kind == CR_OP_conv         ? CR_IN_conv_x
                         : op->kind == CR_OP_conv_dgrad ? CR_IN_conv_dgrad_dy
                                                        : CR_IN_conv_wgrad_x];
    return fits(p, op, x, w, p->tensor[w].dim[op->kind == CR_OP_conv_dgrad ? 3 : 0]);
}

bool cr_cpu_conv3_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return !op->attr.conv.relu && cr_cpu_conv3_is_best(p, op);
}

/* ---- packing the filter in the order in which a tile reads it: packed[block][r][c][s][filter in block] ---- */

/* For the input gradient the outputs are the C channels of the filter, and the filter is rotated by 180 degrees. */
struct filter {
    const float *w;              /* K,3,3,C */
    int64_t      in, out, block; /* channels read, channels written, channels written in a block */
    bool         rotated;
};

static float weight_at(const struct filter *f, int64_t out, int r, int s, int64_t in) {
    return f->rotated ? f->w[((in * TAPS + 2 - r) * TAPS + 2 - s) * f->out + out]
                      : f->w[((out * TAPS + r) * TAPS + s) * f->in + in];
}

static void pack(const struct filter *f, float *packed, int threads) {
    const int64_t runs = f->out / f->block * TAPS;
    CR_PARALLEL_FOR(threads)
    for (int64_t run = 0; run < runs; run++) {
        float *to = packed + run * f->in * TAPS * f->block;
        for (int64_t c = 0; c < f->in; c++)
            for (int s = 0; s < TAPS; s++)
                for (int64_t k = 0; k < f->block; k++)
                    *to++ = weight_at(f, run / TAPS * f->block + k, (int)(run % TAPS), s, c);
    }
}

/* ---- a tile: PIXELS output pixels of BLOCKS vectors of filters ---- */

/* row[r] points to the pixel left of the tile in input row r; NULL if the row is outside the image. left, right: the
 * pixel next to the tile is inside the image. */
static inline __attribute__((always_inline)) void tile(const float *const row[TAPS], const float *packed, int64_t C,
                                                       bool left, bool right, const int pixels, const int blocks,
                                                       f32x16 *sum) {
    for (int i = 0; i < pixels * blocks; i++) sum[i] = (f32x16){0};
    for (int r = 0; r < TAPS; r++, packed += C * TAPS * blocks * LANES) {
        if (!row[r]) continue;
        const f32x16 *w = (const f32x16 *)packed;
        for (int64_t c = 0; c < C; c++, w += TAPS * blocks) {
            const float *x = row[r] + c;
            if (left)
                for (int b = 0; b < blocks; b++) sum[b] += x[0] * w[b];
#pragma GCC unroll 16
            for (int j = 1; j <= pixels; j++) {
                const float v = x[j * C];
#pragma GCC unroll 2
                for (int b = 0; b < blocks; b++) {
                    if (j < pixels) sum[j * blocks + b] += v * w[b];
                    sum[(j - 1) * blocks + b] += v * w[blocks + b];
                    if (j > 1) sum[(j - 2) * blocks + b] += v * w[2 * blocks + b];
                }
            }
            if (right)
                for (int b = 0; b < blocks; b++)
                    sum[(pixels - 1) * blocks + b] += x[(pixels + 1) * C] * w[2 * blocks + b];
        }
    }
}

/* One output row: all tiles of one block of filters, then of the next block. */
struct row_call {
    const float *row[TAPS], *packed;
    float       *y;
    int64_t      W, in, out;
};

static inline __attribute__((always_inline)) void output_row(const struct row_call *v, const int pixels,
                                                             const int blocks, const int64_t in) {
    for (int64_t k = 0; k < v->out; k += blocks * LANES)
        for (int64_t q = 0; q < v->W; q += pixels) {
            f32x16             sum[WIDE];
            const int64_t      skip     = (q - 1) * in;
            const float *const at[TAPS] = {v->row[0] ? v->row[0] + skip : NULL, v->row[1] + skip,
                                           v->row[2] ? v->row[2] + skip : NULL};
            for (int i = 0; i < pixels; i++) { /* prefetch AHEAD rows; beyond the end of a tensor it has no effect */
                __builtin_prefetch(v->row[1] + (q + i + AHEAD * v->W) * in + k % in);
                for (int b = 0; b < blocks; b++)
                    __builtin_prefetch(v->y + (q + i + AHEAD * v->W) * v->out + k + b * LANES, 1);
            }
            tile(at, v->packed + k * TAPS * TAPS * in, in, q > 0, q + pixels < v->W, pixels, blocks, sum);
            for (int i = 0; i < pixels; i++)
                for (int b = 0; b < blocks; b++)
                    *(f32x16 *)(v->y + (q + i) * v->out + k + b * LANES) = sum[i * blocks + b];
        }
}

typedef void row_function(const struct row_call *v);
#define ROW(name, pixels, blocks, in)                                                                                  \
    CR_BY_LEVEL(void, name, (const struct row_call *v), (v)) {                                                         \
        output_row(v, pixels, blocks, in);                                                                             \
    }
ROW(wide16, WIDE, 1, 16)
ROW(wide32, WIDE, 1, 32)
ROW(narrow16, NARROW, 2, 16)
ROW(narrow32, NARROW, 2, 32)

static row_function *choose(bool wide, int64_t in) {
    if (wide) return in == 16 ? wide16 : wide32;
    return in == 16 ? narrow16 : narrow32;
}

/* ---- kernels ---- */

static cr_status forward(struct cr_device *device, const struct cr_tensor *image, struct filter f, const float *x,
                         float *y, float *packed) {
    const int64_t H = image->dim[1], W = image->dim[2], rows = image->dim[0] * H;
    const bool    wide = f.out % (2 * LANES) != 0;
    f.block            = wide ? LANES : 2 * LANES;
    row_function *run  = choose(wide, f.in);
    pack(&f, packed, cr_cpu_threads(device));
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < rows; i++) {
        const float    *at = x + i * W * f.in;
        struct row_call v  = {.row    = {i % H ? at - W * f.in : NULL, at, i % H + 1 < H ? at + W * f.in : NULL},
                              .packed = packed,
                              .y      = y + i * W * f.out,
                              .W      = W,
                              .in     = f.in,
                              .out    = f.out};
        run(&v);
    }
    return CR_OK;
}

/* The filter in the order in which tiles read it. */
static size_t packed_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->tensor[op->in[op->kind == CR_OP_conv ? CR_IN_conv_w : CR_IN_conv_dgrad_w]].bytes;
}

static cr_status conv3_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t = call->program->tensor, *w = &t[call->op->in[CR_IN_conv_w]];
    struct filter           f = {.w = call->in[CR_IN_conv_w], .in = w->dim[3], .out = w->dim[0]};
    return forward(device, &t[call->op->in[CR_IN_conv_x]], f, call->in[CR_IN_conv_x], call->out[CR_OUT_conv_y],
                   call->workspace);
}

static cr_status conv3_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t = call->program->tensor, *w = &t[call->op->in[CR_IN_conv_dgrad_w]];
    struct filter           f = {.w = call->in[CR_IN_conv_dgrad_w], .in = w->dim[0], .out = w->dim[3], .rotated = true};
    return forward(device, &t[call->op->in[CR_IN_conv_dgrad_dy]], f, call->in[CR_IN_conv_dgrad_dy],
                   call->out[CR_OUT_conv_dgrad_dx], call->workspace);
}

#define CONV3_KERNEL(name, kind)                                                                                       \
    {                                                                                                                  \
        CR_KERNEL("cpu." #name, kind, CR_MATH_F32), .dtypes = CR_TYPES_F32, .accepts = cr_cpu_conv3_accepts,           \
                                                    .workspace = packed_bytes, .launch = name##_launch                 \
    }
const struct cr_kernel cr_cpu_conv3_kernels[] = {CONV3_KERNEL(conv3, conv), CONV3_KERNEL(conv3_dgrad, conv_dgrad), {0}};

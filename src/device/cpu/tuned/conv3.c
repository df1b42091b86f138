/* device/cpu/tuned/conv3.c: 3x3 convolutions with 16 channels (the first stage of networks for CIFAR), stride 1,
 * padding 1, and their input gradients.
 *
 * 16 filters are one AVX-512 vector. With so few filters a general kernel loads one value for almost every
 * multiply-add. This kernel uses each loaded input value for three filter columns. The sums of a tile of 16 output
 * pixels stay in registers, and input pixel j contributes to outputs j-2, j-1 and j. Pixels outside the image are
 * skipped and not multiplied by zero, because a weight may be infinite. The kernel is limited by arithmetic. */
#include "device/cpu/tuned/conv3.h"

/* ---- supported shapes ---- */

/* Other instruction sets have too few registers for a tile. With 32 channels Winograd's algorithm is faster (cpu.conv,
 * cpu.conv_wgrad). */
static bool fits(const struct cr_program *p, const struct cr_op *op, int image, int filter) {
    const struct cr_tensor *x = &p->tensor[image], *w = &p->tensor[filter];
    return cr_cpu_level() == CR_CPU_AVX512 && w->dim[1] == TAPS && w->dim[2] == TAPS && op->attr.conv.stride == 1 &&
           op->attr.conv.pad == 1 && w->dim[3] == CHANNELS && w->dim[0] == CHANNELS && x->dim[2] % PIXELS == 0;
}

bool cr_cpu_conv3_is_best(const struct cr_program *p, const struct cr_op *op) {
    const int w = op->kind == CR_OP_conv         ? op->in[CR_IN_conv_w]
                  : op->kind == CR_OP_conv_dgrad ? op->in[CR_IN_conv_dgrad_w]
                                                 : op->out[CR_OUT_conv_wgrad_dw];
    const int x = op->in[op->kind == CR_OP_conv         ? CR_IN_conv_x
                         : op->kind == CR_OP_conv_dgrad ? CR_IN_conv_dgrad_dy
                                                        : CR_IN_conv_wgrad_x];
    return fits(p, op, x, w);
}

bool cr_cpu_conv3_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return !op->attr.conv.relu && cr_cpu_conv3_is_best(p, op);
}

/* ---- packing the filter in the order in which a tile reads it: packed[r][input channel][s][output channel] ---- */

/* For the input gradient the outputs are the channels of x, and the filter is rotated by 180 degrees. */
static float weight_at(const float *w, bool rotated, int out, int r, int s, int in) {
    return rotated ? w[((in * TAPS + 2 - r) * TAPS + 2 - s) * CHANNELS + out]
                   : w[((out * TAPS + r) * TAPS + s) * CHANNELS + in];
}

static void pack(const float *w, bool rotated, float *packed) {
    for (int r = 0; r < TAPS; r++)
        for (int c = 0; c < CHANNELS; c++)
            for (int s = 0; s < TAPS; s++)
                for (int k = 0; k < CHANNELS; k++) *packed++ = weight_at(w, rotated, k, r, s, c);
}

/* ---- a tile of PIXELS output pixels ---- */

/* row[r] points to the pixel left of the tile in input row r; NULL if the row is outside the image. left, right: the
 * pixel next to the tile is inside the image. */
static inline __attribute__((always_inline)) void tile(const float *const row[TAPS], const float *packed, bool left,
                                                       bool right, f32x16 sum[PIXELS]) {
    for (int i = 0; i < PIXELS; i++) sum[i] = (f32x16){0};
    for (int r = 0; r < TAPS; r++, packed += CHANNELS * TAPS * CHANNELS) {
        if (!row[r]) continue;
        const f32x16 *w = (const f32x16 *)packed;
        for (int c = 0; c < CHANNELS; c++, w += TAPS) {
            const float *x = row[r] + c;
            if (left) sum[0] += x[0] * w[0];
#pragma GCC unroll 16
            for (int j = 1; j <= PIXELS; j++) {
                const float v = x[j * CHANNELS];
                if (j < PIXELS) sum[j] += v * w[0];
                sum[j - 1] += v * w[1];
                if (j > 1) sum[j - 2] += v * w[2];
            }
            if (right) sum[PIXELS - 1] += x[(PIXELS + 1) * CHANNELS] * w[2];
        }
    }
}

struct row_call {
    const float *row[TAPS], *packed; /* input rows; NULL outside the image */
    float       *y;
    int64_t      W;
};

CR_BY_LEVEL(void, output_row, (const struct row_call *v), (v)) {
    for (int64_t q = 0; q < v->W; q += PIXELS) {
        f32x16             sum[PIXELS];
        const int64_t      skip     = (q - 1) * CHANNELS;
        const float *const at[TAPS] = {v->row[0] ? v->row[0] + skip : NULL, v->row[1] + skip,
                                       v->row[2] ? v->row[2] + skip : NULL};
        for (int i = 0; i < PIXELS; i++) { /* prefetch AHEAD rows; beyond the end of a tensor it has no effect */
            __builtin_prefetch(v->row[1] + (q + i + AHEAD * v->W) * CHANNELS);
            __builtin_prefetch(v->y + (q + i + AHEAD * v->W) * CHANNELS, 1);
        }
        tile(at, v->packed, q > 0, q + PIXELS < v->W, sum);
        for (int i = 0; i < PIXELS; i++) *(f32x16 *)(v->y + (q + i) * CHANNELS) = sum[i];
    }
}

/* ---- kernels ---- */

static void run(struct cr_device *device, const struct cr_tensor *image, const float *x, const float *packed,
                float *y) {
    const int64_t H = image->dim[1], W = image->dim[2], rows = image->dim[0] * H, by = W * CHANNELS;
    CR_PARALLEL(i, rows) {
        const float    *at = x + i * by;
        struct row_call v  = {.row    = {i % H ? at - by : NULL, at, i % H + 1 < H ? at + by : NULL},
                              .packed = packed,
                              .y      = y + i * by,
                              .W      = W};
        output_row(&v);
    }
}

/* The filter in the order in which tiles read it. */
CR_CPU_WORKSPACE(packed_bytes) {
    return p->tensor[op->in[op->kind == CR_OP_conv ? CR_IN_conv_w : CR_IN_conv_dgrad_w]].bytes;
}

CR_CPU_LAUNCH(conv3_launch) {
    pack(call->in[CR_IN_conv_w], false, call->workspace);
    run(device, &call->program->tensor[call->op->in[CR_IN_conv_x]], call->in[CR_IN_conv_x], call->workspace,
        call->out[CR_OUT_conv_y]);
}

CR_CPU_LAUNCH(conv3_dgrad_launch) {
    pack(call->in[CR_IN_conv_dgrad_w], true, call->workspace);
    run(device, &call->program->tensor[call->op->in[CR_IN_conv_dgrad_dy]], call->in[CR_IN_conv_dgrad_dy],
        call->workspace, call->out[CR_OUT_conv_dgrad_dx]);
}

#define CONV3_KERNEL(name, kind)                                                                                       \
    {                                                                                                                  \
        CR_KERNEL("cpu." #name, kind, CR_MATH_F32), .dtypes = CR_TYPES_F32, .accepts = cr_cpu_conv3_accepts,           \
                                                    .workspace = packed_bytes, .launch = name##_launch                 \
    }
const struct cr_kernel cr_cpu_conv3_kernels[] = {CONV3_KERNEL(conv3, conv), CONV3_KERNEL(conv3_dgrad, conv_dgrad), {0}};

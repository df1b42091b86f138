/* tests/checkops/checkops_operands.c: draws the numbers of an operand, by its meaning and the family of the draw. */
#include "tests/checkops/checkops_operands.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- numbers ---- */

static double normal(struct checkops_drawing *d) {
    return (double)cr_rng_normal(&d->rng);
}
static double between(struct checkops_drawing *d, double low, double high) {
    return low + (high - low) * cr_rng_real(&d->rng);
}

static bool is_half(enum cr_dtype dtype) {
    return dtype == CR_F16 || dtype == CR_BF16;
}

/* 16-bit results may overflow to infinity, and must if they are too large; with f32 sums some do and some do not. */
static double huge_half(const struct checkops_unit *unit, double top, double n) {
    if (unit->op->kind == CR_OP_cast) return unit->c.real == CR_F16 ? 4 * top : (double)FLT_MAX;
    if (unit->c.real == CR_F16) return checkops_has_products(unit) ? top / (2 * sqrt(CR_MAX(n, 1))) : top;
    return n > 8 ? top / (64 * n) : top / 4; /* bf16 has the range of f32, the type of the sums */
}

static double most_terms(const struct checkops_unit *unit) {
    double most = 0;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (unit->op->out[s] >= 0) most = fmax(most, cr_verify_terms(&unit->program, unit->op, s));
    return most;
}

double checkops_huge_limit(const struct checkops_unit *unit) {
    const struct cr_op *op  = unit->op;
    const double        top = cr_verify_largest(unit->c.real), n = most_terms(unit);
    if (cr_verify_is_exact(op) && op->kind != CR_OP_cast) return top;
    if (op->kind >= CR_OP_gram && op->kind <= CR_OP_gram_bn_sums) return fmin(top / 4, pow((double)FLT_MAX, 0.25) / n);
    if (op->kind >= CR_OP_gram_bn_grad_sums && op->kind <= CR_OP_gram_bn_grad)
        return fmin(top / 4, pow((double)FLT_MAX, 0.125) / n);
    if (is_half(unit->c.real)) {
        const double squares = sqrt((double)FLT_MAX / (8 * n));
        return op->kind == CR_OP_bn_sums && squares < top ? squares : huge_half(unit, top, n);
    }
    switch (op->kind) {
    case CR_OP_add: return top / 8;
    case CR_OP_bn_sums:
    case CR_OP_adamw:
    case CR_OP_lamb:
    case CR_OP_muon:
    case CR_OP_param_norms:
    case CR_OP_grad_norm: return sqrt(top / (8 * n));
    case CR_OP_lamb_norms: return sqrt(top / (8 * n)) * op->attr.sgd.eps; /* a second moment may be 0 */
    case CR_OP_bn_finalize: return sqrt(top / (8 * (double)op->attr.bn.count));
    default: return top / (64 * CR_MAX(n, 1));
    }
}

/* Terms that are equal, or nearly equal compared with their sum, all round in the same direction; an error bound
 * that grows with sqrt(n) excludes this. Sums over pixels must be accurate even so, because they determine BN
 * statistics: their number has many bits, with a spread of 1e-5 of the mean. Dot products get a number of few bits,
 * so that their sums are exact and a lost or doubled term is detected, and a spread that makes the rounding errors
 * independent. 16-bit types have no room for a small spread around a large mean: the spread is a few units in the
 * last place, around a mean that is large compared with it; terms of dot products are so small that sums of
 * thousands fit f16. */
static double equal_number(const struct checkops_unit *unit) {
    return checkops_has_products(unit) ? 0.75 : 0.7;
}
static double large_mean(const struct checkops_unit *unit) {
    if (is_half(unit->c.real)) return checkops_has_products(unit) ? 1 : unit->c.real == CR_F16 ? 16 : 4;
    return 1000;
}
static double large_mean_spread(const struct checkops_unit *unit) {
    if (is_half(unit->c.real)) return checkops_has_products(unit) ? 0.3 : unit->c.real == CR_F16 ? 0.05 : 0.1;
    return checkops_has_products(unit) ? 300 : 0.01;
}

/* Halfway between two 16-bit numbers: shows whether ties are rounded to even. */
static double tie(struct checkops_drawing *d) {
    const int steps = d->unit->c.real == CR_F16 ? 1024 : 128;
    return ((double)cr_rng_below(&d->rng, (uint64_t)steps) + 0.5) / steps + 1;
}

static double number(struct checkops_drawing *d, enum checkops_family family) {
    switch (family) {
    case FAMILY_HALF_ZERO: return cr_rng_below(&d->rng, 2) ? normal(d) : cr_rng_below(&d->rng, 4) ? 0.0 : -0.0;
    case FAMILY_LARGE_MEAN:
        if (d->unit->op->kind == CR_OP_cast) return tie(d);
        return large_mean(d->unit) + large_mean_spread(d->unit) * normal(d);
    case FAMILY_EQUAL: return equal_number(d->unit);
    case FAMILY_HUGE: {
        const double sign = cr_rng_below(&d->rng, 2) ? 1 : -1;
        return sign * d->limit * (cr_rng_below(&d->rng, 4) ? between(d, 0.25, 1) : 1);
    }
    case FAMILY_DENORMAL: return (d->unit->c.real == CR_F16 ? 1e-6 : 1e-40) * normal(d);
    default: return normal(d);
    }
}

/* The family of slot `s`: HUGE, DENORMAL and NONFINITE apply to one slot only. */
static enum checkops_family family_of(const struct checkops_drawing *d, int s) {
    return d->draw.target == CR_NONE || d->draw.target == s ? d->draw.family : FAMILY_NORMAL;
}

static void spoil(struct checkops_drawing *d, enum cr_dtype dtype, void *data, int64_t n) {
    const double bad[] = {NAN, INFINITY, -INFINITY};
    const int    count = n < 8 ? 1 : 3;
    const int    first = (int)cr_rng_below(&d->rng, 3);
    for (int i = 0; i < count; i++)
        cr_number_store(dtype, data, (int64_t)cr_rng_below(&d->rng, (uint64_t)n), bad[(first + i) % 3]);
}

/* ---- operands ---- */

/* The number of random elements among n; `repeat` copies them to the rest. It is prime, so that rows of pixels,
 * filters and channels all differ. */
static int64_t drawn(const struct checkops_drawing *d, int64_t n) {
    return d->unit->c.big ? CR_MIN(n, (int64_t)200003) : n;
}
static void repeat(enum cr_dtype dtype, void *data, int64_t first, int64_t n) {
    const size_t size = cr_dtype_bytes(dtype);
    for (int64_t i = first; i < n; i += first)
        memcpy((char *)data + (size_t)i * size, data, (size_t)CR_MIN(first, n - i) * size);
}

static void draw_data(struct checkops_drawing *d, int s, const struct cr_tensor *t, void *data) {
    const enum checkops_family family = family_of(d, s);
    const int64_t              n = cr_tensor_elems(t), first = drawn(d, n);
    for (int64_t i = 0; i < first; i++) cr_number_store(t->dtype, data, i, number(d, family));
    repeat(t->dtype, data, first, n);
    if (family == FAMILY_NONFINITE) spoil(d, t->dtype, data, n);
}

/* Sums over M numbers of the family; a few numbers are drawn and scaled up. */
static void draw_sums(struct checkops_drawing *d, int s, const struct cr_tensor *t, void *data) {
    const enum checkops_family family = family_of(d, s);
    const int64_t              C = t->dim[3], M = d->unit->op->attr.bn.count, few = CR_MIN(M, 64);
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, squares = 0;
        for (int64_t m = 0; m < few; m++) {
            const double x = number(d, family);
            sum += x;
            squares += x * x;
        }
        cr_number_store(t->dtype, data, c, sum * (double)M / (double)few);
        cr_number_store(t->dtype, data, C + c, squares * (double)M / (double)few);
    }
    if (family == FAMILY_NONFINITE) spoil(d, t->dtype, data, 2 * C);
}

/* A value of the input of a convolution. A large mean is 100 deviations: the shift keeps the digits of the rest. */
static double gram_number(struct checkops_drawing *d, enum checkops_family family) {
    return family == FAMILY_LARGE_MEAN ? 100 + normal(d) : number(d, family);
}

/* Gram matrix, sums and shift of P pixels of the family; a few pixels are drawn and their sums scaled up. */
static void draw_gram(struct checkops_drawing *d, int s, const struct cr_tensor *t, void *data) {
    const enum checkops_family family = family_of(d, s);
    const struct cr_bn_attr   *attr   = &d->unit->op->attr.bn;
    const int64_t              C = t->dim[3], P = attr->count / CR_MAX(attr->ranks, 1), few = CR_MIN(P, (int64_t)5);
    double                    *a = cr_alloc((size_t)((few + 1) * C), sizeof *a);
    for (int64_t i = 0; a && i < (few + 1) * C; i++) a[i] = gram_number(d, family);
    const double *shift = a ? a + few * C : NULL, factor = (double)P / (double)few;
    for (int64_t i = 0; a && i < C; i++) {
        double sum = 0;
        for (int64_t p = 0; p < few; p++) sum += a[p * C + i] - shift[i];
        cr_number_store(t->dtype, data, C * C + i, sum * factor);
        cr_number_store(t->dtype, data, (C + 1) * C + i, shift[i]);
        for (int64_t j = 0; j < C; j++) {
            double dot = 0;
            for (int64_t p = 0; p < few; p++) dot += (a[p * C + i] - shift[i]) * (a[p * C + j] - shift[j]);
            cr_number_store(t->dtype, data, i * C + j, dot * factor);
        }
    }
    cr_free(a);
}

/* Padding between parameters is 0 in every buffer. */
static void draw_buffer(struct checkops_drawing *d, int s, const struct cr_tensor *t, void *data) {
    const enum checkops_family   family = family_of(d, s);
    const struct cr_param_store *store  = &d->unit->store;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (cr_param_is_running(q->role)) continue;
        const int64_t first = drawn(d, q->elems);
        for (int64_t i = 0; i < first; i++) cr_number_store(t->dtype, data, q->offset + i, number(d, family));
        repeat(t->dtype, (char *)data + (size_t)q->offset * cr_dtype_bytes(t->dtype), first, q->elems);
        if (family == FAMILY_NONFINITE && !q->frozen) {
            cr_number_store(t->dtype, data, q->offset + (int64_t)cr_rng_below(&d->rng, (uint64_t)q->elems),
                            k % 2 ? NAN : INFINITY);
            return; /* the rest of the buffer is 0 */
        }
    }
}

/* Mean squared gradients: not negative, as large as the squares of gradients of this family. */
static void draw_second(struct checkops_drawing *d, int s, const struct cr_tensor *t, void *data) {
    draw_buffer(d, s, t, data);
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) {
        const double x = cr_number_load(t->dtype, data, i);
        cr_number_store(t->dtype, data, i, x * x);
    }
}

/* 0 for some parameters, as after initialisation with 0. */
static void draw_norms(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) {
        const double x = normal(d);
        cr_number_store(t->dtype, data, i, i % 7 == 5 ? 0 : 100 * x * x);
    }
}

/* (mean, rstd) of numbers of the family. */
static void draw_mean_rstd(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    const int64_t C     = t->dim[3];
    uint64_t      equal = 0; /* one element */
    cr_number_store(d->unit->c.real, &equal, 0, equal_number(d->unit));
    for (int64_t c = 0; c < C; c++) {
        double mean = 0.1 * normal(d), rstd = between(d, 0.5, 1.5);
        if (d->draw.family == FAMILY_LARGE_MEAN) {
            mean += large_mean(d->unit) - 0.1;
            rstd = between(d, 0.8, 1.1) / large_mean_spread(d->unit);
        } else if (d->draw.family == FAMILY_EQUAL) {
            mean = cr_number_load(d->unit->c.real, &equal, 0);
            rstd = 316.2;
        } else if (d->draw.family == FAMILY_HALF_ZERO && c % 2) {
            mean = 0; /* as offset_is_zero */
        }
        cr_number_store(t->dtype, data, c, mean);
        cr_number_store(t->dtype, data, C + c, rstd);
    }
}

/* Bits for several labels per sample: also a number of labels that is not theirs, which no kernel reads. */
static void draw_label_bits(struct checkops_drawing *d, const struct cr_tensor *t, int32_t *data) {
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) {
        data[i] = (int32_t)cr_rng_u32(&d->rng);
        if (i % t->dim[3] == 0) data[i] = cr_rng_below(&d->rng, 5) == 0 ? -1 : (int32_t)cr_rng_below(&d->rng, 9);
    }
}

static void draw_labels(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    const int64_t K = d->unit->c.K;
    if (d->unit->c.flags & CHECKOPS_SEVERAL) {
        draw_label_bits(d, t, data);
        return;
    }
    for (int64_t i = 0; i < t->dim[0]; i++) {
        const bool none = cr_rng_below(&d->rng, 5) == 0 || d->draw.family == FAMILY_DENORMAL;
        cr_number_store(t->dtype, data, i, none ? -1 : (double)cr_rng_below(&d->rng, (uint64_t)K));
    }
}

/* A position of each window that is inside the image. */
static void draw_index(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    const struct checkops_case *c = &d->unit->c;
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) {
        const int64_t q = i / t->dim[3] % t->dim[2], p = i / t->dim[3] / t->dim[2] % t->dim[1];
        int64_t       r, s, h, w;
        do {
            r = (int64_t)cr_rng_below(&d->rng, (uint64_t)c->window);
            s = (int64_t)cr_rng_below(&d->rng, (uint64_t)c->window);
            h = p * c->stride - c->pad + r;
            w = q * c->stride - c->pad + s;
        } while (h < 0 || h >= c->H || w < 0 || w >= c->W);
        cr_number_store(t->dtype, data, i, (double)(r * c->window + s));
    }
}

/* Shifts by a few pixels, by the size of the image, and by more. */
static void draw_boxes(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    const struct checkops_case *c = &d->unit->c;
    for (int64_t n = 0; n < t->dim[0]; n++) {
        const int64_t most[2] = {cr_rng_below(&d->rng, 4) ? 4 : c->H + 1, cr_rng_below(&d->rng, 4) ? 4 : c->W + 1};
        for (int i = 0; i < 2; i++)
            cr_number_store(t->dtype, data, 4 * n + i,
                            (double)cr_rng_below(&d->rng, 2 * (uint64_t)most[i] + 1) - (double)most[i]);
        cr_number_store(t->dtype, data, 4 * n + 2, (double)cr_rng_below(&d->rng, 2));
        cr_number_store(t->dtype, data, 4 * n + 3, 0);
    }
}

/* Rectangles inside the image, at its border, and empty ones; partners in the batch, including the image itself. */
static void draw_mixes(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    const struct checkops_case *c   = &d->unit->c;
    int32_t                    *mix = data;
    for (int64_t n = 0; n < t->dim[0]; n++, mix += CR_MIX_NUMBERS) {
        memset(mix, 0, CR_MIX_NUMBERS * sizeof *mix);
        mix[CR_MIX_PARTNER] = (int32_t)cr_rng_below(&d->rng, (uint64_t)t->dim[0]);
        for (int i = 0; i < 2; i++)
            mix[CR_MIX_LABEL_WEIGHT + i] = cr_rng_below(&d->rng, 3)   ? (int32_t)cr_rng_below(&d->rng, CR_MIX_ONE + 1)
                                           : cr_rng_below(&d->rng, 2) ? CR_MIX_ONE
                                                                      : 0;
        for (int k = CR_MIX_CUT; k < CR_MIX_ERASE + 4; k += 4) {
            if (cr_rng_below(&d->rng, 3) == 0) continue;
            mix[k]     = (int32_t)cr_rng_below(&d->rng, (uint64_t)c->H + 1);
            mix[k + 1] = (int32_t)cr_rng_below(&d->rng, (uint64_t)c->W + 1);
            mix[k + 2] = mix[k] + (int32_t)cr_rng_below(&d->rng, (uint64_t)c->H + 1);
            mix[k + 3] = mix[k + 1] + (int32_t)cr_rng_below(&d->rng, (uint64_t)c->W + 1);
        }
    }
}

static void draw_list(const struct cr_tensor *t, void *data, const double *values) {
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) cr_number_store(t->dtype, data, i, values[i]);
}

/* Odd channels have an offset of 0, and half of the numbers are 0: there the pre-activation is exactly 0, where the
 * gradient of a ReLU is 0. */
static bool offset_is_zero(const struct checkops_drawing *d, char meaning_of, const struct cr_tensor *t, int64_t i) {
    const int64_t row = i / t->dim[3];
    if (d->draw.family != FAMILY_HALF_ZERO || i % t->dim[3] % 2 == 0) return false;
    return meaning_of == 'b' || (meaning_of == 'c' && row == 1);
}

static void draw_bits(struct checkops_drawing *d, const struct cr_tensor *t, void *data) {
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) ((uint8_t *)data)[i] = (uint8_t)cr_rng_below(&d->rng, 256);
}

static void draw_parameter(struct checkops_drawing *d, char meaning_of, const struct cr_tensor *t, void *data) {
    const int64_t n = cr_tensor_elems(t), first = drawn(d, n);
    for (int64_t i = 0; i < first; i++) {
        double x = normal(d);
        switch (meaning_of) {
        case 'g': x = cr_rng_below(&d->rng, 8) ? 1 + 0.5 * x : 0; break;
        case 'v': x = x * x + 1e-3; break;
        case 'W': x = cr_rng_below(&d->rng, 8) ? x * x : 0; break;
        case 'y': x = x > 0 ? x : 0; break;
        case 'q': x = floor(t->dtype == CR_U8 ? between(d, 0, 256) : between(d, -127, 128)); break;
        case 'z': x = i < t->dim[3] ? x * 0x1p-11 : i < 2 * t->dim[3] ? 16 * x : 0.375; break;
        case 'u': x = d->draw.family == FAMILY_EQUAL ? 255 : floor(between(d, 0, 256)); break;
        default: break; /* b, m, c, k */
        }
        cr_number_store(t->dtype, data, i, offset_is_zero(d, meaning_of, t, i) ? 0 : x);
    }
    repeat(t->dtype, data, first, n);
}

void checkops_draw_operand(struct checkops_drawing *d, char meaning, int s, const struct cr_tensor *t, void *data) {
    const bool   spoilt     = d->draw.family == FAMILY_NONFINITE && d->draw.target == s;
    const double scale      = d->unit->c.flags & CHECKOPS_SCALED ? 1024 : 1;
    const double metrics[4] = {spoilt ? NAN : 12.5, 9, 3, 5}, norm[2] = {spoilt ? INFINITY : 2.25 * scale, spoilt};
    const double state[CR_STATE_COUNT] = {scale, 1999, 11, 40, 0, 2, 0, 0};
    switch (meaning) {
    case 'x':
        if (t->dtype == CR_U8 || t->dtype == CR_I8)
            draw_parameter(d, 'q', t, data);
        else
            draw_data(d, s, t, data);
        return;
    case 'S': draw_sums(d, s, t, data); return;
    case 'R': draw_gram(d, s, t, data); return;
    case 'p':
    case 'G': draw_buffer(d, s, t, data); return;
    case 's': draw_second(d, s, t, data); return;
    case 'n': draw_norms(d, t, data); return;
    case 'r': draw_data(d, s, t, data); return;
    case 'h': draw_mean_rstd(d, t, data); return;
    case '.': draw_bits(d, t, data); return;
    case 'y':
        if (t->dtype == CR_U8)
            draw_bits(d, t, data);
        else
            draw_parameter(d, 'y', t, data);
        return;
    case 'K': draw_bits(d, t, data); return;
    case 'L': draw_labels(d, t, data); return;
    case 'I': draw_index(d, t, data); return;
    case 'B': draw_boxes(d, t, data); return;
    case 'X': draw_mixes(d, t, data); return;
    case 'M': draw_list(t, data, metrics); return;
    case 'T': draw_list(t, data, state); return;
    case 'Q': draw_list(t, data, norm); return;
    default: draw_parameter(d, meaning, t, data);
    }
}

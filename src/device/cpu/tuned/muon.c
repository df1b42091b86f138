/* device/cpu/tuned/muon.c: tuned CPU kernel for the optimizer Muon's direction, in f32. Limiter: arithmetic.
 *
 * A filter with more rows than columns is transposed, so X has at most as many rows as columns. All matrices are padded
 * with zeros: rows to multiples of ROWS, the length of rows to multiples of WIDTH. The products keep the padding 0, but
 * for the diagonal of P and its products, which only multiplies zeros.
 *
 * The matrices A = X X' of later iterations need no product with X: with P = a I + b A + c A A the next A is P A P, and
 * X after both is P2 P1 X. The first three and the last two iterations are done together, so there are four products
 * with X instead of ten. In f16 this would lose accuracy: the product of three P has large elements, which cancel for a
 * filter with one dominating direction. */
#include "graph/muon.h"
#include "device/cpu/tuned/buffers.h"

#include <math.h>

enum { LANES = 16, ROWS = 4, WIDTH = 2 * LANES };

struct matrix {
    int64_t rows, length, square;     /* with padding; square: length of a row of A and P */
    float  *x, *next, *a, *p, *q, *t; /* q: the product of all P; t: scratch */
};

static struct matrix matrix_of(const struct cr_param *q, float *memory) {
    const int64_t K = q->dim[0], N = cr_muon_columns(q), rows = cr_rounded_up(CR_MIN(K, N), ROWS);
    struct matrix x = {
        .rows = rows, .length = cr_rounded_up(CR_MAX(K, N), WIDTH), .square = cr_rounded_up(rows, WIDTH)};
    if (!memory) return x;
    x.x    = memory;
    x.next = x.x + x.rows * x.length;
    x.a    = x.next + x.rows * x.length;
    x.p    = x.a + x.rows * x.square;
    x.q    = x.p + x.rows * x.square;
    x.t    = x.q + x.rows * x.square;
    return x;
}

static int64_t floats_of(const struct cr_param *q) {
    const struct matrix x = matrix_of(q, NULL);
    return 2 * x.rows * (x.length + 2 * x.square);
}

CR_CPU_WORKSPACE(workspace) {
    int64_t most = 0;
    for (int k = 0; k < p->store->params; k++)
        if (cr_muon_has_direction(&p->store->param[k])) most = CR_MAX(most, floats_of(&p->store->param[k]));
    return (size_t)most * sizeof(float);
}

/* ---- products ---- */

static inline float lane_sum(const f32x16 *v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += (*v)[i];
    return sum;
}

/* ROWS x ROWS elements of X X', which has rows of `square` elements. */
CR_BY_LEVEL(void, dots, (const float *x, const float *y, int64_t length, float *to, int64_t square),
            (x, y, length, to, square)) {
    f32x16 sum[ROWS][ROWS] = {{{0}}};
    for (int64_t k = 0; k < length; k += LANES)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++)
                sum[i][j] += *(const f32x16 *)(x + i * length + k) * *(const f32x16 *)(y + j * length + k);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) to[i * square + j] = lane_sum(&sum[i][j]);
}

/* ROWS x WIDTH elements of P X; X has `depth` rows. */
CR_BY_LEVEL(void, tile, (const float *p, int64_t square, const float *x, int64_t length, int64_t depth, float *to),
            (p, square, x, length, depth, to)) {
    f32x16 sum[ROWS][2] = {{{0}}};
    for (int64_t k = 0; k < depth; k++) {
        const f32x16 low = *(const f32x16 *)(x + k * length), high = *(const f32x16 *)(x + k * length + LANES);
        for (int i = 0; i < ROWS; i++) {
            sum[i][0] += p[i * square + k] * low;
            sum[i][1] += p[i * square + k] * high;
        }
    }
    for (int i = 0; i < ROWS; i++) {
        *(f32x16 *)(to + i * length)         = sum[i][0];
        *(f32x16 *)(to + i * length + LANES) = sum[i][1];
    }
}

/* to = P X; the rows of X, as of `to`, have `length` elements. */
static void multiply(int threads, const struct matrix *m, const float *p, const float *x, int64_t length, float *to) {
    const int64_t columns = length / WIDTH, tiles = columns * (m->rows / ROWS);
    CR_PARALLEL_BY(threads, int64_t, t, tiles) {
        const int64_t i = t % (m->rows / ROWS) * ROWS, j = t / (m->rows / ROWS) * WIDTH;
        tile(p + i * m->square, m->square, x + j, length, m->rows, to + i * length + j);
    }
}

/* A = X X', of which the upper half is computed. */
static void square(int threads, const struct matrix *m) {
    const int64_t blocks = m->rows / ROWS;
    CR_PARALLEL_BY(threads, int64_t, t, blocks * blocks) {
        const int64_t i = t / blocks * ROWS, j = t % blocks * ROWS;
        if (j < i) continue;
        float *to = m->a + i * m->square + j;
        dots(m->x + i * m->length, m->x + j * m->length, m->length, to, m->square);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < ROWS; c++) m->a[(j + c) * m->square + i + r] = to[r * m->square + c];
    }
}

/* p = a I + b A + c p, where p is A A. */
CR_BY_LEVEL(void, polynomial, (const struct matrix *m, float *p), (m, p)) {
    for (int64_t i = 0; i < m->rows * m->square; i++) p[i] = (float)CR_MUON_B * m->a[i] + (float)CR_MUON_C * p[i];
    for (int64_t i = 0; i < m->rows; i++) p[i * m->square + i] += (float)CR_MUON_A;
}

static void exchange(float **a, float **b) {
    float *old = *a;
    *a = *b, *b = old;
}

/* `count` iterations: A = P A P after each but the last, and X = q X at the end. */
static void iterate(int threads, struct matrix *m, int count) {
    square(threads, m);
    for (int i = 0; i < count; i++) {
        float *const p = i ? m->p : m->q;
        multiply(threads, m, m->a, m->a, m->square, p);
        polynomial(m, p);
        if (i) {
            multiply(threads, m, p, m->q, m->square, m->t);
            exchange(&m->q, &m->t);
        }
        if (i + 1 == count) break;
        multiply(threads, m, p, m->a, m->square, m->t);
        multiply(threads, m, m->t, p, m->square, m->a);
    }
    multiply(threads, m, m->q, m->x, m->length, m->next);
    exchange(&m->x, &m->next);
}

/* A matrix that is nearly square has no gain from fewer products with X. */
static void iterate_all(int threads, struct matrix *m) {
    const int together = m->length < 2 * m->rows ? 1 : 3;
    for (int done = 0; done < CR_MUON_ITERATIONS; done += together)
        iterate(threads, m, CR_MIN(together, CR_MUON_ITERATIONS - done));
}

/* ---- the input and the result ---- */

struct input {
    const float   *grad, *momentum;
    const uint8_t *mask; /* NULL: none */
    float          factor, mu;
    bool           nesterov;
};

CR_BY_LEVEL(void, input_run, (const struct input *in, int64_t at, int64_t count, float *restrict d),
            (in, at, count, d)) {
    const float *restrict g = in->grad + at, *restrict m = in->momentum + at;
    const float mu = in->mu, rest = (float)(1 - (double)in->mu), factor = in->factor, back = in->nesterov ? mu : 1;
    for (int64_t i = 0; i < count; i++) {
        const float grad = factor * g[i], mean = mu * m[i] + rest * grad;
        d[i] = grad + back * (mean - grad);
    }
}

/* Returns 1 / max(|d|, CR_MUON_EPS). */
static double inverse_norm(const float *d, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)d[i] * (double)d[i];
    return 1 / fmax(sqrt(sum), CR_MUON_EPS);
}

/* Element i of the filter is element place_of(q, m, i) of X. */
static inline int64_t place_of(const struct cr_param *q, const struct matrix *m, int64_t i) {
    const int64_t N = cr_muon_columns(q), row = i / N, column = i % N;
    return N < q->dim[0] ? column * m->length + row : row * m->length + column;
}

static void direction_of(int threads, const struct input *in, const struct cr_param *q, float *memory, float *y) {
    struct matrix m = matrix_of(q, memory);
    memset(memory, 0, (size_t)floats_of(q) * sizeof *memory);
    input_run(in, q->offset, q->elems, y);
    if (in->mask) cr_mask_run(y, in->mask + q->offset / 8, q->elems);
    const double inverse = inverse_norm(y, q->elems);
    CR_PARALLEL_BY(threads, int64_t, i, q->elems) m.x[place_of(q, &m, i)] = (float)((double)y[i] * inverse);
    iterate_all(threads, &m);
    CR_PARALLEL_BY(threads, int64_t, i, q->elems) y[i] = m.x[place_of(q, &m, i)];
}

CR_CPU_LAUNCH(launch) {
    const struct cr_param_store *store = call->program->store;
    const struct cr_step_block  *step  = call->step;
    const float                 *norm  = call->in[CR_IN_muon_direction_norm];
    const double                *state = call->in[CR_IN_muon_direction_state];
    float                       *y     = call->out[CR_OUT_muon_direction_y];
    double                       clip  = 1;
    memset(y, 0, (size_t)store->value_elems * sizeof *y);
    if (norm[1] != 0) return;
    if (step->clip_norm > 0) clip = fmin(1, (double)step->clip_norm / (sqrt((double)norm[0]) + 1e-6));
    const struct input in = {.grad     = call->in[CR_IN_muon_direction_grad],
                             .momentum = call->in[CR_IN_muon_direction_momentum],
                             .mask     = call->in[CR_IN_muon_direction_mask],
                             .factor   = (float)(clip / state[CR_STATE_LOSS_SCALE]),
                             .mu       = step->momentum,
                             .nesterov = call->op->attr.sgd.nesterov};
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (cr_muon_has_direction(q)) direction_of(cr_cpu_threads(device), &in, q, call->workspace, y + q->offset);
    }
}

CR_CPU_ACCEPTS(accepts) {
    const struct cr_tensor *grad = &p->tensor[op->in[CR_IN_muon_direction_grad]];
    return p->store && p->store->real == CR_F32 && grad->buffer == CR_BUFFER_GRAD &&
           cr_tensor_elems(grad) == p->store->value_elems;
}

const struct cr_kernel cr_cpu_muon_kernels[] = {{CR_KERNEL("cpu.muon_direction", muon_direction, CR_MATH_F32),
                                                 .dtypes = CR_TYPES_F32, .optional_in = CR_IN_BIT(muon_direction, mask),
                                                 .accepts = accepts, .workspace = workspace, .launch = launch},
                                                {0}};

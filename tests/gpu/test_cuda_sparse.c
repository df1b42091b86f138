/* tests/gpu/test_cuda_sparse.c: convolutions with sparse filters on the GPU against a loop over all weights in
 * double: every tile config, odd shapes, three types, guard zones around the output. The indices of the plans are
 * also verified on the host, without a GPU: the input that each entry of the filter finds in the staged tile. */
#include "cuda/sparse/sparse_launchers.h"
#include "sparsity/sparsity.h"
#include "tests/harness/conv_problem.h"
#include "tests/harness/sparse_support.h"
#include "tests/harness/test_gpu.h"

enum { MULTIPROCESSORS = 132, SHARED = 233472, CONFIG_PLAIN = -1 };

static const struct {
    int64_t N, H, W, C, K;
    int     R, S, stride, pad;
} shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0},    {2, 9, 11, 5, 7, 3, 3, 1, 1},   {3, 14, 14, 40, 33, 3, 3, 2, 1},
    {5, 7, 7, 64, 17, 3, 3, 1, 1},  {2, 15, 13, 8, 9, 1, 1, 2, 0},  {1, 32, 32, 3, 16, 7, 7, 2, 3},
    {4, 7, 7, 100, 64, 1, 1, 1, 0}, {1, 10, 6, 4, 4, 5, 3, 3, 2},   {2, 4, 90, 6, 12, 3, 5, 1, 0},
    {1, 8, 8, 12, 5, 1, 1, 1, 2},   {1, 5, 9, 7, 6, 2, 2, 3, 1},    {7, 8, 8, 260, 18, 3, 3, 1, 1},
    {1, 2, 300, 9, 5, 3, 3, 1, 1},  {33, 6, 5, 24, 70, 3, 3, 1, 1},
};

/* A problem with a filter in which a fraction of about `density` is nonzero; one output channel is empty. */
struct pruned {
    struct problem   p;
    struct cr_sparse sparse;
};

static void pruned_close(struct pruned *s) {
    cr_sparse_free(&s->sparse);
    problem_close(&s->p);
}

static bool pruned_open(struct pruned *s, size_t shape, enum ck_type type, float density, bool fused) {
    const struct ck_conv c = conv_sized((struct ck_conv){.type   = type,
                                                         .N      = shapes[shape].N,
                                                         .H      = shapes[shape].H,
                                                         .W      = shapes[shape].W,
                                                         .C      = shapes[shape].C,
                                                         .K      = shapes[shape].K,
                                                         .R      = shapes[shape].R,
                                                         .S      = shapes[shape].S,
                                                         .stride = shapes[shape].stride,
                                                         .pad    = shapes[shape].pad});
    *s                     = (struct pruned){0};
    if (!problem_open(&s->p, &c, CR_F32, fused)) return false;
    float *w = s->p.w;
    for (int64_t i = 0; i < s->p.weights; i++) {
        const double value = draw();
        if (fabs(draw()) < (double)density && i / (s->p.weights / c.K) != 2) w[i] = (float)value;
    }
    problem_expect(&s->p);
    return sparse_encode(w, NULL, c.K, c.R, c.S, c.C, &s->sparse) == CR_OK;
}

static cr_status linearise(const struct pruned *p, const struct ck_sparse_plan *plan, struct cr_linear_filter *to) {
    const struct ck_sparse_steps  steps = ck_sparse_conv_steps(&p->p.conv, plan);
    const struct cr_linear_layout how   = {.stride   = p->p.conv.stride,
                                           .chunk    = plan->chunk,
                                           .c_step   = steps.c_step,
                                           .r_phase  = steps.r_step,
                                           .r_step   = steps.r_step * p->p.conv.stride,
                                           .s_phase  = steps.s_phase,
                                           .s_step   = steps.s_step,
                                           .rows     = plan->k_blocks * plan->channels,
                                           .multiple = CK_SPARSE_PAIR};
    CR_TRY(cr_sparse_linearize(&p->sparse, &how, to));
    sparse_fill(p->p.w, to);
    return CR_OK;
}

/* ---- the plan on the host ---- */

/* Input pixel in slot `slot` for `member` of its quad, or -1; as in the kernel's header. */
static int64_t staged(const struct ck_conv *c, const struct ck_sparse_plan *p, int64_t tile, int64_t slot,
                      int64_t member) {
    const int64_t row = slot / p->pitch, column = slot % p->pitch,
                  patch = (tile * p->groups + row / p->IH) * 4 + member;
    const int64_t n = patch / (p->patches_p * p->patches_q), rest = patch % (p->patches_p * p->patches_q);
    const int64_t h = rest / p->patches_q * p->TP * c->stride - c->pad + row % p->IH;
    const int64_t w =
        rest % p->patches_q * p->TQ * c->stride - c->pad + column % p->columns * c->stride + column / p->columns;
    return n < c->N && h >= 0 && h < c->H && w >= 0 && w < c->W ? (n * c->H + h) * c->W + w : -1;
}

/* Output of channel k at slot `base`: the sum of the kernel's warp. */
static double summed(const struct problem *p, const struct ck_sparse_plan *plan, const struct cr_linear_filter *f,
                     int64_t tile, int64_t base, int64_t member, int64_t k) {
    const int64_t plane = ck_sparse_conv_steps(&p->conv, plan).c_step, slots = plan->groups * plan->IH * plan->pitch;
    double        sum = 0;
    for (int64_t chunk = 0; chunk < plan->chunks; chunk++)
        for (uint32_t e = f->start[chunk * f->rows + k]; e < f->start[chunk * f->rows + k + 1]; e++) {
            const int64_t at = base * 16 + f->entry[e].offset, c = at / plane, slot = at % plane / 16;
            CHECK(at % 16 == 0 && c < plan->chunk && slot < slots);
            const int64_t pixel = staged(&p->conv, plan, tile, slot, member);
            if (pixel >= 0)
                sum += (double)f->entry[e].value *
                       cr_number_load(p->dtype, p->x, pixel * p->conv.C + chunk * plan->chunk + c);
        }
    return sum;
}

/* All channels of one item of a tile, for its four patches. */
static void follow_item(const struct problem *p, const struct ck_sparse_plan *plan, const struct cr_linear_filter *f,
                        int64_t tile, int64_t item, uint8_t *seen) {
    const struct ck_conv *c    = &p->conv;
    const int64_t         size = plan->TP * plan->TQ, row = item % size / plan->TQ, column = item % size % plan->TQ;
    const int64_t         base = (item / size * plan->IH + row * c->stride) * plan->pitch + column;
    for (int64_t member = 0; member < 4; member++) {
        const int64_t patch = (tile * plan->groups + item / size) * 4 + member,
                      rest  = patch % (plan->patches_p * plan->patches_q);
        const int64_t n     = patch / (plan->patches_p * plan->patches_q);
        const int64_t P = rest / plan->patches_q * plan->TP + row, Q = rest % plan->patches_q * plan->TQ + column;
        for (int64_t k = 0; n < c->N && P < c->P && Q < c->Q && k < c->K; k++) {
            const int64_t o = ((n * c->P + P) * c->Q + Q) * c->K + k;
            CHECK_NEAR(summed(p, plan, f, tile, base, member, k), p->want[o], 1e-6 * (p->size[o] + 1e-3));
            seen[o]++;
        }
    }
}

static void plans_find_every_input(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct pruned s;
        REQUIRE(pruned_open(&s, i, CK_F32, 0.2f, false));
        for (int config = 0; config <= ck_sparse_conv_configs(); config++) {
            struct ck_sparse_plan   plan;
            struct cr_linear_filter f;
            const bool              is =
                ck_sparse_conv_plan(&s.p.conv, cr_sparse_nnz(&s.sparse), config, MULTIPROCESSORS, SHARED, &plan);
            CHECK(is || config);
            if (!is) continue;
            REQUIRE(linearise(&s, &plan, &f) == CR_OK);
            CHECK_INT(f.chunks, plan.chunks);
            uint8_t *seen = cr_alloc((size_t)s.p.outputs, 1);
            REQUIRE(seen);
            for (int64_t tile = 0; tile < plan.tiles; tile++)
                for (int j = 0; j < plan.quads * 32; j++)
                    if (plan.order[j] != 0xffff) follow_item(&s.p, &plan, &f, tile, plan.order[j], seen);
            for (int64_t o = 0; o < s.p.outputs; o++) CHECK_INT(seen[o], 1);
            cr_free(seen);
            cr_linear_filter_free(&f);
        }
        pruned_close(&s);
    }
}

/* ---- the kernels ---- */

static void *offsets_of(const struct cr_linear_filter *f) {
    uint32_t *offset = cr_alloc((size_t)f->entries, sizeof *offset);
    for (int64_t i = 0; offset && i < f->entries; i++) offset[i] = f->entry[i].offset;
    void *device = offset ? up(offset, f->entries * (int64_t)sizeof *offset) : NULL;
    cr_free(offset);
    return device;
}

/* Runs one tile config, if it has a plan. */
static void run_config(const struct pruned *s, int config) {
    const struct problem   *p    = &s->p;
    const int64_t           each = (int64_t)cr_dtype_bytes(p->dtype);
    struct cudaDeviceProp   device;
    struct ck_sparse_plan   plan;
    struct cr_linear_filter f;
    OK(cudaGetDeviceProperties(&device, 0));
    if (config == CONFIG_PLAIN)
        REQUIRE(cr_sparse_sell(&s->sparse, 32, &f) == CR_OK);
    else {
        if (!ck_sparse_conv_plan(&p->conv, cr_sparse_nnz(&s->sparse), config, device.multiProcessorCount,
                                 (int)device.sharedMemPerMultiprocessor, &plan))
            return;
        REQUIRE(linearise(s, &plan, &f) == CR_OK);
    }
    void *x = up(p->x, p->inputs * each), *add = up(p->add, p->outputs * each),
         *bias   = up(p->bias, p->conv.K * (int64_t)sizeof *p->bias);
    void *filter = up(p->w, p->weights * (int64_t)sizeof(float)),
         *from   = up(f.from, f.entries * (int64_t)sizeof *f.from);
    void *values = NULL, *offsets = offsets_of(&f),
         *start = up(f.start, (f.chunks * f.rows + 1) * (int64_t)sizeof *f.start);
    void *y     = up_guarded(p->outputs, p->dtype);
    OK(cudaMalloc(&values, (size_t)CR_MAX(1, f.entries) * sizeof(float)));
    OK(ck_sparse_gather(filter, CK_F32, from, f.entries, values, NULL));
    const struct ck_sparse_args args = {.conv    = p->conv,
                                        .x       = x,
                                        .values  = values,
                                        .offsets = offsets,
                                        .start   = start,
                                        .bias    = p->fused ? bias : NULL,
                                        .add     = p->fused ? add : NULL,
                                        .relu    = p->fused,
                                        .y       = behind_guard(y, p->dtype)};
    OK(config == CONFIG_PLAIN ? ck_sell_conv(&args, NULL) : ck_sparse_conv(&args, &plan, NULL));
    problem_check(p, y, 2e-6, config);
    void *const memory[] = {x, add, y, bias, filter, from, values, offsets, start};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cudaFree(memory[i]);
    cr_linear_filter_free(&f);
}

static void kernels_equal_the_reference(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (enum ck_type type = CK_F32; type <= CK_BF16; type++)
            for (int fused = 0; fused < 2; fused++) {
                struct pruned s;
                REQUIRE(pruned_open(&s, i, type, fused ? 0.4f : 0.1f, fused));
                for (int config = CONFIG_PLAIN; config <= ck_sparse_conv_configs(); config++) run_config(&s, config);
                pruned_close(&s);
            }
}

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(plans_find_every_input), CASE(kernels_equal_the_reference), CASE(nothing_leaks))

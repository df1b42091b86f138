/* cuda/sparse/two_four/two_four_kernels.c: kernels of convolutions with a 2:4 sparsity pattern on the sparse tensor
 * cores, in FP16 and BF16.
 *
 * Tile i of weight format CR_SPARSE_TWO_FOUR is tile config i + 1 of cuda/sparse/two_four/two_four.h. A filter with
 * another sparsity pattern has none of these formats. The input `packed` has the values, two per FP32 element, which
 * sparse_filter gathers. The metadata do not change; prepare() packs them once. */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/sparse/two_four/two_four.h"

struct prepared {
    struct ck_conv          conv;
    struct ck_two_four_plan plan;
    /* device memory: the metadata; the index in the filter of each packed value */
    uint32_t *words, *from;
};

enum { CHANNEL_MULTIPLE = 16 /* input channels are padded to a multiple of it */ };

/* ---- shapes, plans, patterns ---- */

static int64_t first_bit(const struct cr_program *p, const struct cr_op *op) {
    return p->store->param[op->attr.conv.pattern.param].offset;
}

/* Without memory for the cache the pattern is checked at each call. */
static bool is_two_of_four(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                           const struct ck_conv *c) {
    struct cuda_filter *filter;
    if (cr_cuda_filter_of(device, p, op, c, &filter) == CR_OK) return cr_cuda_filter_is_24(filter);
    cr_error_clear();
    return cr_sparse_is_24(p->store->pattern, first_bit(p, op), c->K * c->R * c->S, c->C);
}

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_conv *conv, struct ck_two_four_plan *plan) {
    const int config = cuda_sparse_tile(op, CR_SPARSE_TWO_FOUR) + 1;
    *conv            = cuda_sparse_conv_shape(p, op);
    return config >= 1 && config <= ck_two_four_configs() && p->store->pattern &&
           ck_two_four_make_plan(conv, config, cuda_of(device)->cc, cuda_of(device)->multiprocessors, plan) &&
           is_two_of_four(device, p, op, conv);
}

int64_t cr_cuda_two_four_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv          conv;
    struct ck_two_four_plan plan;
    return plan_of(device, p, op, &conv, &plan) ? ck_two_four_units(&plan) * CK_TWO_FOUR_UNIT / 2 : 0;
}

static bool has_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv          conv;
    struct ck_two_four_plan plan;
    return plan_of(device, p, op, &conv, &plan);
}

/* ---- estimates and names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv          conv;
    struct ck_two_four_plan plan;
    return plan_of(device, p, op, &conv, &plan) ? cr_cuda_cycles_to_seconds(device, plan.cycles) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int tile[2];
    ck_two_four_tile(cuda_sparse_format(op).tile + 1, tile);
    cr_text_add(out, "2:4 %dx%d", tile[0], tile[1]);
}

/* ---- device memory ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    (void)cudaFree(s->words);
    (void)cudaFree(s->from);
    cr_free(s);
}

/* Encodes the positions of the nonzeros, as cr_sparse_24_encode writes them. The caller frees `places`. */
static cr_status encode(const struct cr_program *p, const struct cr_op *op, const struct ck_conv *c,
                        uint16_t **places) {
    const int64_t taps     = c->K * c->R * c->S,
                  padded_C = (c->C + CHANNEL_MULTIPLE - 1) / CHANNEL_MULTIPLE * CHANNEL_MULTIPLE,
                  first    = first_bit(p, op);
    uint16_t *dense, *values = NULL;
    cr_status status = CR_OK;
    *places          = NULL;
    CR_ALLOC(dense, (size_t)(taps * padded_C));
    for (int64_t i = 0; i < taps * c->C; i++)
        dense[i / c->C * padded_C + i % c->C] = p->store->pattern[(first + i) / 8] >> ((first + i) % 8) & 1;
    values  = cr_alloc((size_t)(taps * padded_C / 2), sizeof *values);
    *places = cr_alloc((size_t)(taps * padded_C / CHANNEL_MULTIPLE), sizeof **places);
    if (!values || !*places)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the sparsity pattern of a filter of %lld weights",
                    (long long)(taps * c->C));
    CR_ASSERT(cr_sparse_24_encode(dense, taps, padded_C, values, *places)); /* the accepts function has checked this */
out:
    cr_free(dense);
    cr_free(values);
    return status;
}

static cr_status upload_filter(const struct cr_program *p, const struct cr_op *op, bool gathers, bool convolves,
                               struct prepared *s) {
    const int64_t units = ck_two_four_units(&s->plan);
    uint16_t     *places;
    uint32_t     *words = NULL, *from = NULL;
    cr_status     status = CR_OK;
    CR_TRY(encode(p, op, &s->conv, &places));
    words = cr_alloc((size_t)(units * CK_TWO_FOUR_WORDS), sizeof *words);
    from  = cr_alloc((size_t)(units * CK_TWO_FOUR_UNIT), sizeof *from);
    if (!words || !from)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for a packed filter of %lld units", (long long)units);
    ck_two_four_pack(&s->conv, &s->plan, places, words, from);
    if (gathers) CR_TRY_OUT(cr_cuda_sparse_upload(from, units * CK_TWO_FOUR_UNIT, &s->from));
    if (convolves) CR_TRY_OUT(cr_cuda_sparse_upload(words, units * CK_TWO_FOUR_WORDS, &s->words));
out:
    cr_free(places);
    cr_free(words);
    cr_free(from);
    return status;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool       convolves = op->kind == CR_OP_conv, gathers = !convolves || op->in[CR_IN_conv_packed] < 0;
    struct prepared *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_of(device, p, op, &s->conv, &s->plan)); /* the accepts function has checked this */
    CR_TRY(upload_filter(p, op, gathers, convolves, s));
    *workspace_bytes = convolves && gathers ? (size_t)(ck_two_four_units(&s->plan) * CK_TWO_FOUR_UNIT) * 2 : 0;
    return CR_OK;
}

static cr_status gather(struct cr_device *device, const struct cr_call *call, const void *w, void *values) {
    const struct prepared *s = call->prepared;
    return CUDA_STATUS(ck_two_four_gather(w, s->from, ck_two_four_units(&s->plan) * CK_TWO_FOUR_UNIT, values,
                                          cr_cuda_stream(device, call)));
}

/* ---- sparse_filter ---- */

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    return gather(device, call, call->in[CR_IN_sparse_filter_w], call->out[CR_OUT_sparse_filter_y]);
}

/* ---- convolutions ---- */

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared  *s    = call->prepared;
    struct ck_two_four_args args = {.conv   = s->conv,
                                    .x      = call->in[CR_IN_conv_x],
                                    .values = call->in[CR_IN_conv_packed],
                                    .places = s->words,
                                    .bias   = call->in[CR_IN_conv_bias],
                                    .add    = call->in[CR_IN_conv_add],
                                    .relu   = call->op->attr.conv.relu,
                                    .y      = call->out[CR_OUT_conv_y]};
    if (!args.values) {
        CR_TRY(gather(device, call, call->in[CR_IN_conv_w], call->workspace));
        args.values = call->workspace;
    }
    return CUDA_STATUS(
        ck_two_four_conv(&args, &s->plan, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- kernels ---- */

const struct cr_kernel cr_cuda_two_four_kernels[] = {{CUDA_SPARSE_CONV("cuda.two_four.*", CR_MATH_DATA, CR_TYPES_HALF),
                                                      .traits.sparse_cores = true, .accepts = has_format,
                                                      .estimate = estimate, .launch = conv_launch},
                                                     CUDA_SPARSE_FILTER("cuda.two_four_filter", CR_TYPES_FLOAT),
                                                     {0}};

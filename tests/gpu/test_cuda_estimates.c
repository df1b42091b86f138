/* tests/gpu/test_cuda_estimates.c: the rule that prunes weight formats by estimate instead of measuring them
 * (CR_ESTIMATE_MARGIN) never prunes the fastest format. All formats are measured, and the estimate of the fastest
 * format is compared with its time. The names of formats are tested without a GPU. */
#include "autotune/cost_table.h"
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/sparse/block/block_sparse.h"
#include "cuda/sparse/mma_sp/mma_sp.h"
#include "cuda/sparse/sparse_launchers.h"
#include "cuda/sparse/two_four/two_four.h"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"
#include "runtime/executor.h"
#include "tests/harness/test_gpu.h"

/* ---- names ---- */

enum { NAME_ROOM = 32 };

static const struct cr_kernel *const *const tables[] = {
    [CR_SPARSE_ROWS] = cr_cuda_direct_kernels,       [CR_SPARSE_DIRECT] = cr_cuda_direct_kernels,
    [CR_SPARSE_MMA_SP] = cr_cuda_mma_sp_kernels,     [CR_SPARSE_TWO_FOUR] = cr_cuda_two_four_kernels,
    [CR_SPARSE_WGMMA_SP] = cr_cuda_wgmma_sp_kernels, [CR_SPARSE_BLOCK] = cr_cuda_block_sparse_kernels};
static const struct {
    struct cr_sparse_format format;
    const char             *name;
} names[] = {{{CR_SPARSE_ROWS, 0}, "sell"},
             {{CR_SPARSE_DIRECT, 0}, "direct 4x4/16"},
             {{CR_SPARSE_DIRECT, 13}, "direct 1x1/8"},
             {{CR_SPARSE_MMA_SP, 0}, "mma_sp 1x4"},
             {{CR_SPARSE_MMA_SP, 23}, "mma_sp 1x2/8"},
             {{CR_SPARSE_TWO_FOUR, 0}, "2:4 2x256"},
             {{CR_SPARSE_TWO_FOUR, 3}, "2:4 1x128"},
             {{CR_SPARSE_BLOCK, 0}, "block_sparse 2x1x256 patch"},
             {{CR_SPARSE_BLOCK, 12}, "block_sparse 1x1x64"}};

static void name_of(const struct cr_kernel *kernel, struct cr_sparse_format format, char name[NAME_ROOM]) {
    struct cr_op   op           = cr_op_make(kernel->op, CR_NONE);
    struct cr_text out          = {0};
    op.attr.conv.pattern.format = format;
    kernel->algo_name(&op, &out);
    snprintf(name, NAME_ROOM, "%s", out.data ? out.data : "");
    cr_text_free(&out);
}

/* Every kernel for sparsity patterns has format names, the same for convolutions and filters; all names of formats
 * differ. */
static void formats_have_names(void) {
    char seen[CR_SPARSE_FORMATS][NAME_ROOM], name[NAME_ROOM];
    for (size_t i = 0; i < CR_COUNT(names); i++)
        for (const struct cr_kernel *const *kernel = tables[names[i].format.kernel]; *kernel; kernel++) {
            const bool sell = strcmp((*kernel)->name, "cuda.sparse_sell") == 0;
            REQUIRE((*kernel)->algo_name);
            if (sell && names[i].format.kernel != CR_SPARSE_ROWS) continue;
            name_of(*kernel, names[i].format, name);
            CHECK_STR(name, names[i].name);
        }
    for (int i = 0; i < CR_SPARSE_FORMATS; i++) {
        const struct cr_sparse_format format = cr_sparse_format_at(i);
        name_of(tables[format.kernel][1], format, seen[i]);
        if (format.kernel == CR_SPARSE_WGMMA_SP) continue; /* two blocks of 1 worker have the name of 2 workers */
        for (int j = 0; j < i; j++) CHECK(strcmp(seen[j], seen[i]) != 0);
    }
    for (const struct cr_kernel *const *kernel = cr_cuda_direct_grad_kernels; *kernel; kernel++)
        CHECK((*kernel)->algo_name != NULL);
}

/* The table of formats has every tile config of every kernel. */
static void all_tile_configs_are_formats(void) {
    CHECK_INT(cr_sparse_tiles(CR_SPARSE_DIRECT), ck_sparse_conv_configs());
    CHECK_INT(cr_sparse_tiles(CR_SPARSE_MMA_SP), ck_mma_sp_conv_configs());
    CHECK_INT(cr_sparse_tiles(CR_SPARSE_TWO_FOUR), ck_two_four_configs());
    CHECK_INT(cr_sparse_tiles(CR_SPARSE_WGMMA_SP), ck_wgmma_sp_configs());
    CHECK_INT(cr_sparse_tiles(CR_SPARSE_BLOCK), ck_block_sparse_conv_configs());
}

/* ---- estimates ---- */

static const struct {
    enum cr_dtype type;
    int64_t       N, side, C, K, R;
    int           stride;
    bool          two_of_four;
} layers[] = {
    {CR_F32, 32, 56, 64, 64, 3, 1, false},   {CR_F32, 32, 28, 512, 128, 1, 1, false},
    {CR_F32, 32, 28, 256, 256, 3, 2, false}, {CR_F32, 32, 14, 512, 512, 3, 2, false},
    {CR_F32, 32, 7, 2048, 512, 1, 1, false}, {CR_F32, 1, 14, 1024, 512, 1, 1, false},
    {CR_F16, 32, 14, 256, 256, 3, 1, false}, {CR_F16, 256, 14, 256, 256, 3, 1, true},
    {CR_F16, 32, 14, 512, 512, 3, 2, true},  {CR_F16, 32, 7, 512, 512, 3, 1, true},
};

/* 10 % nonzeros, or 50 %: the first and third, or the second and fourth, of four. */
static void draw_pattern(uint8_t *bits, int64_t count, bool two_of_four) {
    uint32_t seed = 7;
    for (int64_t i = 0; i < count; i++) {
        seed            = seed * 1664525u + 1013904223u;
        const bool kept = two_of_four ? (i / 4 * 5 + i) % 2 == 0 : (seed >> 8) % 10 == 0;
        if (kept) bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << i % 8);
    }
}

static double one(struct cr_device *device, struct cr_cost_table *costs, size_t i) {
    const int64_t dim[4]          = {layers[i].K, layers[i].R, layers[i].R, layers[i].C},
                  count           = dim[0] * dim[1] * dim[2] * dim[3];
    const bool            is_half = layers[i].type != CR_F32;
    struct cr_cost_model  target  = cr_cost_table_model(costs);
    struct cr_param_store store   = {.real = CR_F32, .half = layers[i].type};
    uint8_t              *bits    = cr_alloc((size_t)count / 8 + 64, 1);
    struct cr_program     p;
    struct cr_sparse_cost price;
    const int             param = cr_param_store_add(&store, "w", CR_ROLE_CONV, dim, CR_NONE);
    draw_pattern(bits, count, layers[i].two_of_four);
    store.pattern = bits;
    cr_program_init(&p, "eval", &store);
    p.real                = layers[i].type;
    struct cr_op conv     = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x] = cr_tensor_add(&p, "x", layers[i].type, CR_REGION_POOL, layers[i].N, layers[i].side,
                                          layers[i].side, layers[i].C);
    conv.in[CR_IN_conv_w] = cr_tensor_store(&p, is_half ? CR_BUFFER_HALF : CR_BUFFER_VALUE, param);
    conv.attr.conv.stride = layers[i].stride;
    conv.attr.conv.pad    = (int)layers[i].R / 2;
    cr_emit(&p, &conv, "y");
    target.estimate = NULL; /* all formats are measured */
    double ratio    = 0;
    CHECK(cr_sparsify_cost(&p, &target, 0, &price) == CR_OK && price.formats > 0);
    if (price.formats) {
        char           name[NAME_ROOM] = "";
        struct cr_text out             = {0};
        cr_device_algo_name(device, &p, &price.op, &out);
        snprintf(name, sizeof name, "%s", out.data ? out.data : "");
        cr_text_free(&out);
        ratio = cr_device_estimate(device, &p, &price.op) / price.sparse_s;
        printf("     %s N%lld %lldx%lld %lld>%lld %lldx%lld/%d: %s, %.1f us, fastest of %d; estimate %.2f of it; "
               "dense %.1f us\n",
               cr_dtype_name(layers[i].type), (long long)layers[i].N, (long long)layers[i].side,
               (long long)layers[i].side, (long long)layers[i].C, (long long)layers[i].K, (long long)layers[i].R,
               (long long)layers[i].R, layers[i].stride, name, 1e6 * price.sparse_s, price.formats, ratio,
               1e6 * price.dense_s);
    }
    cr_program_free(&p);
    cr_param_store_free(&store);
    cr_free(bits);
    return ratio;
}

static void fastest_formats_are_not_pruned(void) {
    const struct cr_device_options options = {.deterministic = true};
    struct cr_device              *device  = NULL;
    struct cr_cost_table          *costs   = NULL;
    NEED_GPU();
    if (getenv("CRESNET_CAPABILITY")) SKIP("estimates are those of the GPU as it is");
    REQUIRE(cr_device_open(CR_DEVICE_CUDA, &options, &device) == CR_OK);
    REQUIRE(cr_cost_table_open(device, "", &costs) == CR_OK);
    for (size_t i = 0; i < CR_COUNT(layers); i++) CHECK(one(device, costs, i) <= CR_ESTIMATE_MARGIN);
    cr_cost_table_close(costs);
    cr_device_close(device);
}

TESTS(CASE(formats_have_names), CASE(all_tile_configs_are_formats), CASE(fastest_formats_are_not_pruned))

/* tests/unit/device/test_kernel_list.c: kernels as data: what the types and the slots of a row admit, and the list of
 * kernels of a device. */
#include "device/kernel.h"
#include "tests/harness/offline_gpu.h"

static cr_status launch_nothing(struct cr_device *device, const struct cr_call *call) {
    return CR_OK;
}

/* A bn_apply of x [1,1,1,8] in a program of one type; `x`, `y`: types of these tensors. */
struct fixture {
    struct cr_device  device;
    struct cr_program p;
    struct cr_op      op;
};

static void fixture_open(struct fixture *f, enum cr_dtype x, enum cr_dtype scale_bias, enum cr_dtype y) {
    *f = (struct fixture){.op = cr_op_make(CR_OP_bn_apply, CR_NONE)};
    cr_program_init(&f->p, "p", NULL);
    f->op.in[CR_IN_bn_apply_x]          = cr_tensor_add(&f->p, "x", x, CR_REGION_POOL, 1, 1, 1, 8);
    f->op.in[CR_IN_bn_apply_scale_bias] = cr_tensor_add(&f->p, "s", scale_bias, CR_REGION_POOL, 2, 1, 1, 8);
    f->op.out[CR_OUT_bn_apply_y]        = cr_tensor_add(&f->p, "y", y, CR_REGION_POOL, 1, 1, 1, 8);
}

static bool accepts(const struct cr_kernel *kernel, enum cr_dtype x, enum cr_dtype scale_bias, enum cr_dtype y) {
    struct fixture f;
    fixture_open(&f, x, scale_bias, y);
    const bool yes = cr_kernel_accepts(&f.device, kernel, &f.p, &f.op);
    cr_program_free(&f.p);
    return yes;
}

TEST(types_of_data_and_of_sums) {
    const struct cr_kernel half = {CR_KERNEL("half", bn_apply, CR_MATH_F32), .dtypes = CR_TYPES_HALF},
                           f32  = {CR_KERNEL("f32", bn_apply, CR_MATH_F32), .dtypes = CR_TYPES_F32},
                           f64  = {CR_KERNEL("f64", bn_apply, CR_MATH_F64), .dtypes = 1u << CR_F64};
    CHECK(accepts(&half, CR_F16, CR_F32, CR_F16) && accepts(&half, CR_BF16, CR_F32, CR_BF16));
    CHECK(!accepts(&half, CR_F32, CR_F32, CR_F32));
    CHECK(!accepts(&half, CR_F16, CR_F32, CR_BF16)); /* two types of data */
    CHECK(!accepts(&half, CR_F16, CR_F16, CR_F16));  /* coefficients are in f32 */
    CHECK(accepts(&f32, CR_F32, CR_F32, CR_F32) && !accepts(&f32, CR_F32, CR_F64, CR_F32));
    CHECK(accepts(&f64, CR_F64, CR_F64, CR_F64) && !accepts(&f64, CR_F64, CR_F32, CR_F64)); /* f64 in f64 programs */
}

/* An optional slot that a row does not name is refused, so that a new slot breaks no kernel. */
TEST(optional_slots) {
    struct cr_kernel kernel = {CR_KERNEL("k", bn_apply, CR_MATH_F32), .dtypes = CR_TYPES_F32};
    struct fixture   f;
    fixture_open(&f, CR_F32, CR_F32, CR_F32);
    CHECK(cr_kernel_accepts(&f.device, &kernel, &f.p, &f.op));
    f.op.in[CR_IN_bn_apply_add] = f.op.in[CR_IN_bn_apply_x];
    CHECK(!cr_kernel_accepts(&f.device, &kernel, &f.p, &f.op));
    kernel.optional_in = CR_IN_BIT(bn_apply, add);
    CHECK(cr_kernel_accepts(&f.device, &kernel, &f.p, &f.op));
    f.op.out[CR_OUT_bn_apply_mask] = cr_tensor_add(&f.p, "mask", CR_U8, CR_REGION_POOL, 1, 1, 1, 1);
    CHECK(!cr_kernel_accepts(&f.device, &kernel, &f.p, &f.op));
    kernel.optional_out = CR_OUT_BIT(bn_apply, mask);
    CHECK(cr_kernel_accepts(&f.device, &kernel, &f.p, &f.op));
    cr_program_free(&f.p);
}

/* A bn_finalize, whose data are sums, and the conv behind it. Only the first part may be in f32 in 16-bit programs. */
static bool accepts_chain(const struct cr_kernel *kernel, enum cr_dtype sums, enum cr_dtype x, enum cr_dtype y) {
    struct cr_device device = {0};
    OWNED(program)   p      = {0};
    struct cr_op     part[] = {cr_op_make(CR_OP_bn_finalize, CR_NONE), cr_op_make(CR_OP_conv, CR_NONE)};
    cr_program_init(&p, "p", NULL);
    for (int s = CR_IN_bn_finalize_sums; s <= CR_IN_bn_finalize_running_var; s++)
        part[0].in[s] = cr_tensor_add(&p, "s", sums, CR_REGION_POOL, 2, 1, 1, 8);
    for (int s = CR_OUT_bn_finalize_scale_bias; s <= CR_OUT_bn_finalize_running_var; s++)
        part[0].out[s] = cr_tensor_add(&p, "b", sums, CR_REGION_POOL, 2, 1, 1, 8);
    part[1].in[CR_IN_conv_x]   = cr_tensor_add(&p, "x", x, CR_REGION_POOL, 1, 1, 1, 8);
    part[1].in[CR_IN_conv_w]   = cr_tensor_add(&p, "w", x, CR_REGION_POOL, 8, 1, 1, 8);
    part[1].out[CR_OUT_conv_y] = cr_tensor_add(&p, "y", y, CR_REGION_POOL, 1, 1, 1, 8);
    const struct cr_op fused   = cr_op_fuse(&p, part, CR_COUNT(part));
    return cr_kernel_accepts(&device, kernel, &p, &fused);
}

TEST(types_of_parts) {
    const struct cr_kernel f16 = {CR_KERNEL("f16", fused, CR_MATH_F16), .dtypes = 1u << CR_F16},
                           f32 = {CR_KERNEL("f32", fused, CR_MATH_F32), .dtypes = CR_TYPES_F32};
    CHECK(accepts_chain(&f16, CR_F32, CR_F16, CR_F16) && accepts_chain(&f32, CR_F32, CR_F32, CR_F32));
    CHECK(!accepts_chain(&f16, CR_F32, CR_F32, CR_F32) && !accepts_chain(&f32, CR_F32, CR_F16, CR_F16));
    CHECK(!accepts_chain(&f16, CR_F32, CR_BF16, CR_BF16) && !accepts_chain(&f16, CR_F32, CR_F16, CR_F32));
    CHECK(!accepts_chain(&f16, CR_F64, CR_F16, CR_F16) && !accepts_chain(&f16, CR_BF16, CR_F16, CR_F16));
}

/* A row with a star in its name is one kernel for each type, in the place of the row. Its arithmetic is that of its
 * data, or the one that it names. */
TEST(a_row_for_several_types) {
    static const struct cr_kernel rows[] = {
        {CR_KERNEL("a", relu, CR_MATH_EXACT), .dtypes = CR_TYPES_FLOAT, .launch = launch_nothing},
        {CR_KERNEL("b.*_relu", relu, CR_MATH_DATA), .dtypes = CR_TYPES_FLOAT, .launch = launch_nothing},
        {CR_KERNEL("c.*", relu, CR_MATH_DATA), .dtypes = CR_TYPES_HALF, .launch = launch_nothing},
        {CR_KERNEL("d.*", relu, CR_MATH_F32), .dtypes = CR_TYPES_HALF, .launch = launch_nothing},
        {0}};
    static const struct {
        const char  *name;
        enum cr_math math;
        unsigned     dtypes;
    } want[] = {{"a", CR_MATH_EXACT, CR_TYPES_FLOAT},      {"b.f32_relu", CR_MATH_F32, 1u << CR_F32},
                {"b.f16_relu", CR_MATH_F16, 1u << CR_F16}, {"b.bf16_relu", CR_MATH_BF16, 1u << CR_BF16},
                {"c.f16", CR_MATH_F16, 1u << CR_F16},      {"c.bf16", CR_MATH_BF16, 1u << CR_BF16},
                {"d.f16", CR_MATH_F32, 1u << CR_F16},      {"d.bf16", CR_MATH_F32, 1u << CR_BF16}};
    static struct cr_kernel_list list;
    cr_kernel_list_add(&list, rows);
    CHECK_INT(list.count, CR_COUNT(want));
    for (size_t i = 0; i < CR_COUNT(want); i++) {
        REQUIRE(list.kernel[i]);
        CHECK_STR(list.kernel[i]->name, want[i].name);
        CHECK_INT(list.kernel[i]->math, want[i].math);
        CHECK_INT(list.kernel[i]->dtypes, want[i].dtypes);
        CHECK(list.kernel[i]->launch == launch_nothing);
    }
    CHECK(!list.kernel[CR_COUNT(want)]);
}

/* Every kernel but the reference kernels says which types it takes, except for copies and for those of 8-bit
 * convolutions, whose operands may each have another type. */
static void name_their_types(const struct cr_device *device) {
    static const enum cr_op_kind any[] = {CR_OP_qconv, CR_OP_qconv_pair, CR_OP_qstem,    CR_OP_pack_filter,
                                          CR_OP_zero,  CR_OP_offload,    CR_OP_prefetch, CR_OP_barrier};
    for (int i = 0; device->kernels[i]; i++) {
        const struct cr_kernel *k     = device->kernels[i];
        bool                    typed = k->dtypes || k->reference;
        for (size_t a = 0; a < CR_COUNT(any); a++) typed |= k->op == any[a];
        if (!typed) TEST_FAIL_("%s has no types", k->name);
    }
}

TEST(kernels_of_the_cpu_name_their_types) {
    const struct cr_device_options options = {.threads = 1};
    OWNED(device)                  device  = NULL;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
    name_their_types(device);
}

TEST(kernels_of_gpus_name_their_types) {
    OWNED(device) device = open_gpu("h200", false);
    if (!device) SKIP(no_kernels_for_gpus);
    name_their_types(device);
}

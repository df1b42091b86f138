/* tests/unit/device/test_kernel_list.c: kernels as data: what the types and the slots of a row admit, and the list of
 * kernels of a device. */
#include "device/device.h"
#include "device/kernel.h"
#include "tests/harness/test.h"

#include <string.h>

static cr_status launch_nothing(struct cr_device *device, const struct cr_call *call) {
    return (void)device, (void)call, CR_OK;
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

static void types_of_data_and_of_sums(void) {
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
static void optional_slots(void) {
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

/* A row whose arithmetic is that of its data is one kernel for each type, in the place of the row. */
static void a_row_for_several_types(void) {
    static const struct cr_kernel rows[] = {
        {CR_KERNEL("a", relu, CR_MATH_EXACT), .dtypes = CR_TYPES_FLOAT, .launch = launch_nothing},
        {CR_KERNEL("b.*_relu", relu, CR_MATH_DATA), .dtypes = CR_TYPES_FLOAT, .launch = launch_nothing},
        {CR_KERNEL("c.*", relu, CR_MATH_DATA), .dtypes = CR_TYPES_HALF, .launch = launch_nothing},
        {0}};
    static const struct {
        const char  *name;
        enum cr_math math;
        unsigned     dtypes;
    } want[] = {{"a", CR_MATH_EXACT, CR_TYPES_FLOAT},      {"b.f32_relu", CR_MATH_F32, 1u << CR_F32},
                {"b.f16_relu", CR_MATH_F16, 1u << CR_F16}, {"b.bf16_relu", CR_MATH_BF16, 1u << CR_BF16},
                {"c.f16", CR_MATH_F16, 1u << CR_F16},      {"c.bf16", CR_MATH_BF16, 1u << CR_BF16}};
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

/* Every kernel of the CPU but the reference kernels says which types it takes, except for those of 8-bit convolutions,
 * whose operands may each have another type. */
static void kernels_of_the_cpu_name_their_types(void) {
    const struct cr_device_options options = {.threads = 1};
    struct cr_device              *device;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
    for (int i = 0; device->kernels[i]; i++) {
        const struct cr_kernel *k = device->kernels[i];
        if (!k->dtypes && !k->reference && k->op != CR_OP_qconv && k->op != CR_OP_pack_filter)
            TEST_FAIL_("%s has no types", k->name);
    }
    cr_device_close(device);
}

TESTS(CASE(types_of_data_and_of_sums), CASE(optional_slots), CASE(a_row_for_several_types),
      CASE(kernels_of_the_cpu_name_their_types))

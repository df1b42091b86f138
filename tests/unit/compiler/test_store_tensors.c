/* tests/unit/compiler/test_store_tensors.c: cr_program_check compares the tensors of the parameter store with the store
 * itself: the program of a changed store is refused. */
#include "tests/harness/compiler_support.h"

/* A parameter that is added after the tensors of a program moves the 16-bit weights: the program is refused. */
TEST(a_late_parameter_is_an_error) {
    const char *const  overrides[] = {"model.arch=resnet20"};
    const int64_t      dim[4]      = {1, 1, 1, 1};
    OWNED(bench_model) b           = {0};
    OWNED(program)     p           = {0};
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    cr_model_set_real(&b.model, CR_F16);
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_EVAL, 2, &p));
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    (void)cr_param_store_add(&b.model.store, "late.scale", CR_ROLE_SCALE, dim, CR_NONE);
    CHECK_STATUS(cr_program_check(&p), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "of the parameter store");
}

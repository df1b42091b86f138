/* tests/unit/autotune/test_old_names.c: kernel times that version 0.1 stored in checkpoints are translated. */
#include "tests/harness/cost_table_support.h"

static void check_signature(const char *old, const char *want) {
    struct cr_text now = {0};
    cr_cost_signature_now(old, &now);
    CHECK_STR(now.data, want);
    cr_text_free(&now);
}

static void old_names_are_translated(void) {
    CHECK_STR(cr_cost_kernel_now("cuda.sparse_walks"), "cuda.wgmma_sp");
    CHECK_STR(cr_cost_kernel_now("cudnn.conv_dgrad.f16_gate"), "cudnn.conv_dgrad.f16_relu_mask");
    CHECK_STR(cr_cost_kernel_now("cudnn.conv.f16"), "cudnn.conv.f16");
    check_signature("conv s1 p1 relu x=f16[2,8,8,16] w=f16[8,3,3,16] coef=f32[2,1,1,16] kept -> y=f16[2,8,8,8] "
                    "stats=f32[2,1,1,8] saved=f32[2,1,1,8]",
                    "conv s1 p1 relu x=f16[2,8,8,16] w=f16[8,3,3,16] scale_bias=f32[2,1,1,16] packed -> y=f16[2,8,8,8] "
                    "sums=f32[2,1,1,8] mean_rstd=f32[2,1,1,8]");
    check_signature("any tf32 conv s1 p1 w3 kept0.1 layout4 stored0.2 x=f32[1,1,1,1]",
                    "any tf32 conv s1 p1 w3 nnz0.1 format4 stored0.2 x=f32[1,1,1,1]");
    check_signature(
        "bn_grad_apply dy=f32[1,1,1,1] x=f32[1,1,1,1] coef=f32[3,1,1,1] act=f32[2,1,1,1] -> dx=f32[1,1,1,1]",
        "bn_grad_apply dy=f32[1,1,1,1] x=f32[1,1,1,1] coeffs=f32[3,1,1,1] scale_bias=f32[2,1,1,1] -> "
        "dx=f32[1,1,1,1]");
    check_signature("gate x=f16[1,2,2,8] gate=f16[1,1,1,8] -> y=f16[1,2,2,8]",
                    "se_scale x=f16[1,2,2,8] logit=f16[1,1,1,8] -> y=f16[1,2,2,8]");
    check_signature("swap_out beside swap_in, 64 MiB", "offload during prefetch, 64 MiB");
}

/* A text of version 0.1: another first line, another version and another hash of the kernels. */
static void old_checkpoint_is_accepted(void) {
    static const char header[] = "cresnet costs 5\tGPU A, driver 1; cresnet 0.1.0, rows 0123456789abcdef\n";
    struct fixture    s;
    struct cr_text    old = {0};
    char              dir[SUPPORT_PATH], *text = NULL;
    make_folder(dir);
    fixture_open(&s, dir, "GPU A, driver 1");
    best(&s);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    fixture_close(&s);
    const char *lines = strchr(text, '\n') + 1, *sum = strstr(text, "\nsum\t") + 1;
    cr_text_add(&old, "%s%.*s", header, (int)(sum - lines), lines);
    cr_text_add(&old, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(old.data));
    fixture_open(&s, "", "GPU A, driver 1");
    CHECK_STATUS(cr_cost_table_load_fixed(s.table, old.data, old.length, "step-1/costs.txt"), CR_OK);
    CHECK(best(&s).algo == 1 && measured(&s) == 0);
    fixture_close(&s);
    fixture_open(&s, "", "GPU A, driver 2");
    CHECK_STATUS(cr_cost_table_load_fixed(s.table, old.data, old.length, "step-1/costs.txt"), CR_ERR_DEVICE);
    fixture_close(&s);
    cr_text_free(&old);
    cr_free(text);
    drop_folder(dir);
}

TESTS(CASE(old_names_are_translated), CASE(old_checkpoint_is_accepted))

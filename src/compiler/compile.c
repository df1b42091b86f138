/* compiler/compile.c: runs all compiler passes of a program (the pass pipeline), in order, with a check after each. */
#include "compiler/compiler.h"
#include "compiler/cost_model.h"
#include "compiler/passes.h"

#include <string.h>

static const char *const pass_names[] = {"grad", "fuse", "select", "insert_waits", "plan"};

enum pass { PASS_GRAD, PASS_FUSE, PASS_SELECT, PASS_INSERT_WAITS, PASS_PLAN };

static cr_status find_last_pass(const char *until, enum pass *last_pass) {
    *last_pass = PASS_PLAN;
    if (!until) return CR_OK;
    for (size_t i = 0; i < CR_COUNT(pass_names); i++) {
        if (strcmp(until, pass_names[i]) != 0) continue;
        *last_pass = (enum pass)i;
        return CR_OK;
    }
    return CR_FAIL(CR_ERR_USAGE, "unknown pass \"%s\": use grad, fuse, select, insert_waits or plan", until);
}

cr_status cr_compile(struct cr_program *program, const struct cr_cost_model *cost_model,
                     const struct cr_compile_options *options) {
    struct cr_fit_report unread;
    enum pass            last_pass;
    CR_TRY(find_last_pass(options->until, &last_pass));
    CR_TRY(cr_program_check(program)); /* the emitted program, with gradients and updates */
    if (last_pass == PASS_GRAD) return CR_OK;

    if (options->fuse) {
        CR_TRY(cr_pass_quantize(program, cost_model));
        CR_TRY(cr_pass_fold(program, cost_model));
        CR_TRY(cr_pass_hoist(program));
        CR_TRY(cr_pass_gram(program, cost_model, options->gram));
        CR_TRY(cr_program_check(program));
        CR_TRY(cr_pass_fuse(program, cost_model));
        if (options->sparse) {
            CR_TRY(cr_pass_sparsify(program, cost_model, options->sparse_filter_grads, NULL));
            CR_TRY(cr_pass_fold(program, cost_model)); /* folds adds and ReLUs that the dense kernel did not accept */
        }
        CR_TRY(cr_pass_conv_pool(program, cost_model));
        CR_TRY(cr_pass_conv_pairs(program, cost_model));
        CR_TRY(cr_pass_head(program, cost_model));
        CR_TRY(cr_pass_hoist(program)); /* ops that fuse and sparsify have added */
        CR_TRY(cr_program_check(program));
    }
    if (last_pass == PASS_FUSE) return CR_OK;

    CR_TRY(cr_pass_select(program, cost_model));
    CR_TRY(cr_program_check(program));
    if (options->pool_limit) {
        CR_TRY(cr_pass_fit(program, cost_model, options, options->report ? options->report : &unread));
        CR_TRY(cr_program_check(program));
    }
    if (last_pass == PASS_SELECT) return CR_OK;

    if (options->bucket_bytes) {
        CR_TRY(cr_pass_buckets(program, cost_model, options->bucket_bytes, options->wire));
        CR_TRY(cr_program_check(program));
    }
    CR_TRY(cr_pass_bn_chains(program, cost_model, options->pool_limit ? options->pool_limit : SIZE_MAX));
    CR_TRY(cr_pass_side_stream(program, cost_model, options));
    CR_TRY(cr_program_check(program));
    CR_TRY(cr_pass_insert_waits(program));
    CR_TRY(cr_waits_check(program));
    if (last_pass == PASS_INSERT_WAITS) return CR_OK;

    CR_TRY(cr_pass_plan(program, cost_model->alignment, options->reuse));
    CR_TRY(cr_plan_check(program, cost_model->alignment));
    return cr_waits_check(program); /* again: reused memory adds hazards */
}

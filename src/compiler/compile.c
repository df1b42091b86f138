/* compiler/compile.c: the passes in their order, and after each the proof of its law. */
#include "compiler/compiler.h"

#include <string.h>

static const char *const pass_names[] = {"grad", "fuse", "select", "order", "plan"};

enum pass { PASS_GRAD, PASS_FUSE, PASS_SELECT, PASS_ORDER, PASS_PLAN };

static cr_status find_last(const char *until, enum pass *last) {
    *last = PASS_PLAN;
    if (!until) return CR_OK;
    for (size_t i = 0; i < CR_COUNT(pass_names); i++) {
        if (strcmp(until, pass_names[i]) != 0) continue;
        *last = (enum pass)i;
        return CR_OK;
    }
    return CR_FAIL(CR_ERR_USAGE, "there is no pass \"%s\": use grad, fuse, select, order or plan", until);
}

static cr_status fit(struct cr_program *program, const struct cr_cost_model *target,
                     const struct cr_compile_options *options) {
    struct cr_fit_report report;
    CR_TRY(cr_pass_fit(program, target, options, &report));
    if (options->report) *options->report = report;
    return cr_program_check(program);
}

cr_status cr_compile(struct cr_program *program, const struct cr_cost_model *target,
                     const struct cr_compile_options *options) {
    enum pass last;
    CR_TRY(find_last(options->until, &last));
    CR_TRY(cr_program_check(program)); /* as emitted, with gradients and updates */
    if (last == PASS_GRAD) return CR_OK;

    if (options->fuse) {
        CR_TRY(cr_pass_fold(program, target));
        CR_TRY(cr_pass_hoist(program));
        CR_TRY(cr_program_check(program));
        CR_TRY(cr_pass_fuse(program, target));
        if (options->sparse) {
            CR_TRY(cr_pass_sparsify(program, target, options->sparse_filter_grads, NULL));
            CR_TRY(cr_pass_fold(program, target)); /* sums and ReLUs that a dense row would not take */
        }
        CR_TRY(cr_pass_hoist(program)); /* what fusing made */
        CR_TRY(cr_program_check(program));
    }
    if (last == PASS_FUSE) return CR_OK;

    CR_TRY(cr_pass_select(program, target));
    CR_TRY(cr_program_check(program));
    if (options->pool_limit) CR_TRY(fit(program, target, options));
    if (last == PASS_SELECT) return CR_OK;

    if (options->bucket_bytes) {
        CR_TRY(cr_pass_buckets(program, target, options->bucket_bytes, options->wire));
        CR_TRY(cr_program_check(program));
    }
    CR_TRY(cr_pass_insert_waits(program));
    CR_TRY(cr_waits_check(program));
    if (last == PASS_ORDER) return CR_OK;

    CR_TRY(cr_pass_plan(program, target->alignment, options->reuse));
    CR_TRY(cr_plan_check(program, target->alignment));
    return cr_waits_check(program); /* once more: memory that is used again makes new hazards */
}

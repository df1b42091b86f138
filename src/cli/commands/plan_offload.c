/* cli/commands/plan_offload.c: cresnet plan --curve: predicted slowdown against memory when tensors are only offloaded
 * to host memory, for each rule that selects the tensors. */
#include "cli/common/command.h"
#include "compiler/compiler.h"
#include "compiler/passes.h"

#include <stdio.h>

enum { HIGHEST = 95, LOWEST = 40, STEP = 5 }; /* memory limits in percent of the pool without offloading */

static cr_status measure(const struct cr_program *selected, const struct cr_cost_model *model, size_t limit,
                         enum cr_offload_mode use, bool zero_copy, struct cr_fit_report *out) {
    const struct cr_compile_options options = {
        .reuse = true, .pool_limit = limit, .offload = use, .zero_copy = zero_copy};
    struct cr_program p;
    CR_TRY(cr_program_copy(selected, &p));
    const cr_status status = cr_pass_fit(&p, model, &options, out);
    cr_program_free(&p);
    return status;
}

cr_status cr_plan_offload_curve(const struct cr_program *selected, const struct cr_cost_model *model, bool zero_copy,
                                struct cr_text *out) {
    struct cr_fit_report base, at; /* base: without offloading */
    CR_TRY(measure(selected, model, SIZE_MAX, CR_OFFLOAD_MODE_BEST, false, &base));
    if (model->to_host_bytes_per_s <= 0 || model->to_device_bytes_per_s <= 0)
        return CR_FAIL(CR_ERR_DEVICE,
                       "this device cannot copy to host memory while it computes: there is no offloading");
    cr_text_add(out, "program %s: pool %.1f MiB, %.3f ms; copies: %.1f GB/s to host, %.1f GB/s to device\n",
                selected->name, cr_mib(base.before), base.seconds * 1e3, model->to_host_bytes_per_s * 1e-9,
                model->to_device_bytes_per_s * 1e-9);
    cr_text_add(out,
                "predicted slowdown in %%; in parentheses the pool in %% when it exceeds the limit; MiB offloaded\n\n"
                "%6s %10s",
                "limit", "MiB");
    for (int k = 0; k < CR_OFFLOAD_SCORES; k++)
        cr_text_add(out, " %-26s", cr_offload_score_name((enum cr_offload_score)k));
    for (int percent = HIGHEST; percent >= LOWEST; percent -= STEP) {
        const size_t limit = base.before / 100 * (size_t)percent;
        cr_text_add(out, "\n%5d%% %10.1f", percent, cr_mib(limit));
        for (int k = 0; k < CR_OFFLOAD_SCORES; k++) {
            char cell[64];
            CR_TRY(measure(selected, model, limit, (enum cr_offload_mode)(CR_OFFLOAD_MODE_BEST + k), zero_copy, &at));
            int used = snprintf(cell, sizeof cell, "%7.2f %%", 100 * (at.seconds / base.seconds - 1));
            if (at.after > limit)
                used += snprintf(cell + used, sizeof cell - (size_t)used, " (%.1f)",
                                 100 * (double)at.after / (double)base.before);
            snprintf(cell + used, sizeof cell - (size_t)used, " %.0f", cr_mib(at.offload_bytes));
            cr_text_add(out, " %-26s", cell);
        }
    }
    cr_text_add(out, "\n");
    return CR_OK;
}

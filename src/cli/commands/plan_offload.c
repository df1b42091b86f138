/* cli/commands/plan_offload.c: cresnet plan --curve: what less memory costs, by swapping alone, for each way of
 * choosing. */
#include "cli/command.h"

#include <stdio.h>

enum { HIGHEST = 95, LOWEST = 40, STEP = 5 }; /* percent of the pool without swapping */

static cr_status measure(const struct cr_program *selected, const struct cr_cost_model *target, size_t limit,
                         enum cr_swap_use swap, bool zero_copy, struct cr_fit_report *out) {
    const struct cr_compile_options options = {
        .reuse = true, .pool_limit = limit, .offload = swap, .zero_copy = zero_copy};
    struct cr_program p;
    CR_TRY(cr_program_copy(selected, &p));
    const cr_status status = cr_pass_fit(&p, target, &options, out);
    cr_program_free(&p);
    return status;
}

cr_status cr_plan_offload_curve(const struct cr_program *selected, const struct cr_cost_model *target, bool zero_copy,
                                struct cr_text *out) {
    struct cr_fit_report plain, at;
    CR_TRY(measure(selected, target, SIZE_MAX, CR_SWAP_USE_BEST, false, &plain));
    if (target->to_host_bytes_per_s <= 0 || target->to_device_bytes_per_s <= 0)
        return CR_FAIL(CR_ERR_DEVICE, "this device copies nothing to the host beside its work: there is no swapping");
    cr_text_add(out, "program %s: pool %.1f MiB, %.3f ms; copies %.1f GB/s out, %.1f in\n", selected->name,
                cr_mib(plain.before), plain.seconds * 1e3, target->to_host_bytes_per_s * 1e-9,
                target->to_device_bytes_per_s * 1e-9);
    cr_text_add(out,
                "predicted slowdown in %% (pool in %% of the plain one where it is above the limit; MiB moved each "
                "way)\n\n%6s %10s",
                "limit", "MiB");
    for (int k = 0; k < CR_OFFLOAD_SCORES; k++)
        cr_text_add(out, " %-26s", cr_offload_score_name((enum cr_offload_score)k));
    for (int percent = HIGHEST; percent >= LOWEST; percent -= STEP) {
        const size_t limit = plain.before / 100 * (size_t)percent;
        cr_text_add(out, "\n%5d%% %10.1f", percent, cr_mib(limit));
        for (int k = 0; k < CR_OFFLOAD_SCORES; k++) {
            char cell[64];
            CR_TRY(measure(selected, target, limit, (enum cr_swap_use)(CR_SWAP_USE_BEST + k), zero_copy, &at));
            int used = snprintf(cell, sizeof cell, "%7.2f %%", 100 * (at.seconds / plain.seconds - 1));
            if (at.after > limit)
                used += snprintf(cell + used, sizeof cell - (size_t)used, " (%.1f)",
                                 100 * (double)at.after / (double)plain.before);
            snprintf(cell + used, sizeof cell - (size_t)used, " %.0f", cr_mib(at.offload_bytes));
            cr_text_add(out, " %-26s", cell);
        }
    }
    cr_text_add(out, "\n");
    return CR_OK;
}

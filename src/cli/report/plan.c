/* cli/report/plan.c: sections of the report: the memory plan, the sparsity of each layer. */
#include "cli/report/report.h"
#include "session/checkpoint_tensors.h"

/* ---- the plan ---- */

void cr_report_plan(struct cr_text *out, const struct cr_program *p, const struct cr_param_store *store) {
    cr_text_add(
        out, "<div class=\"wide\"><table><tr><th class=\"l\">memory of the program <i>%s</i></th><th>MiB</th></tr>\n",
        p->name);
    cr_text_add(
        out,
        "<tr><td class=\"l\">pool: activations, gradients, workspaces (lower bound %.2f MiB)</td><td>%.2f</td></tr>\n",
        cr_mib(p->bound_bytes), cr_mib(p->region_bytes[CR_REGION_POOL]));
    for (int k = 0; k < CR_BUFFERS; k++) {
        const size_t bytes = cr_param_store_buffer_bytes(store, (enum cr_param_buffer)k);
        if (bytes)
            cr_text_add(out, "<tr><td class=\"l\">parameter store: %s</td><td>%.2f</td></tr>\n",
                        cr_param_buffer_name((enum cr_param_buffer)k), cr_mib(bytes));
    }
    cr_text_add(out, "<tr><td class=\"l\">input: one batch</td><td>%.2f</td></tr>\n",
                cr_mib(p->region_bytes[CR_REGION_INPUT]));
    if (p->region_bytes[CR_REGION_HOST])
        cr_text_add(out, "<tr><td class=\"l\">host: offloaded tensors</td><td>%.2f</td></tr>\n",
                    cr_mib(p->region_bytes[CR_REGION_HOST]));
    cr_text_add(out, "</table></div>\n");
    if (p->region_bytes[CR_REGION_POOL] && p->ops) {
        cr_text_add(out, "<figure><figcaption>Memory pool over one step</figcaption>\n<div class=\"wide\">\n");
        cr_pool_svg(out, p, false);
        cr_text_add(out, "</div></figure>\n");
    }
}

/* ---- sparsity ---- */

cr_status cr_report_sparsity(struct cr_text *out, struct cr_session *session) {
    const struct cr_param_store *store = &session->model.store;
    float                       *value = NULL;
    struct cr_arena              arena = {0};
    struct cr_bar               *bars  = NULL;
    int                          count = 0;
    int64_t                      zeros = 0, elems = 0;
    cr_status                    status = CR_OK;
    CR_TRY(cr_state_buffer_copy(session, CR_BUFFER_VALUE, &value));
    CR_ALLOC_OUT(bars, (size_t)store->params + 1);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) continue;
        int64_t count_zero = 0;
        for (int64_t k = 0; k < q->elems; k++) count_zero += value[q->offset + k] == 0;
        zeros += count_zero;
        elems += q->elems;
        bars[count]      = (struct cr_bar){.name = q->name, .fraction = (double)count_zero / (double)q->elems};
        bars[count].text = cr_arena_printf(&arena, "%.2f %%", 100 * bars[count].fraction);
        bars[count].title =
            cr_arena_printf(&arena, "%lld of %lld weights are 0", (long long)count_zero, (long long)q->elems);
        if (!bars[count].text || !bars[count].title) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
        count++;
    }
    /* A few weights may be 0 by chance. */
    if ((double)zeros < 1e-3 * (double)elems)
        cr_page_note(out, "The network is dense: %lld of its %lld weights are 0.", (long long)zeros, (long long)elems);
    else {
        cr_page_note(out, "%.2f %% of the weights of convolutions and classifier are 0 (%lld of %lld).",
                     100 * (double)zeros / (double)elems, (long long)zeros, (long long)elems);
        cr_page_bars(out, "fraction of weights that are 0", bars, count);
    }
out:
    cr_free(bars);
    cr_arena_free(&arena);
    cr_free(value);
    return status;
}

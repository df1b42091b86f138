/* session/costs.c: which table of costs a session's kernels are chosen by. See session/session.h and
 * autotune/cost_table.h. */
#include "session/session.h"

#include <stdio.h>
#include <unistd.h>

enum { COSTS_BYTES_MAX = 64 << 20 };

/* A run that goes on computes the same bits only with the same kernels. */
static cr_status refuse(const char *why) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "%s: results could not be equal to the bit; resume with --force, or with train.deterministic=no, to "
                   "choose anew",
                   why);
}

/* The error at hand says why the kernels of that run cannot be chosen again. */
static cr_status misfit(struct cr_session *s, bool anew) {
    char why[512];
    snprintf(why, sizeof why, "%.500s", cr_error_message());
    if (s->config->train.deterministic && !anew) return refuse(why);
    cr_error_clear();
    cr_log(CR_LOG_WARN, "%s: chosen anew", why);
    return CR_OK;
}

static cr_status pin(struct cr_session *s, const char *path, bool anew) {
    char     *text   = NULL;
    size_t    length = 0;
    cr_status status = CR_OK;
    if (s->cost_table) {
        status = cr_file_read(path, COSTS_BYTES_MAX, &text, &length);
        if (status == CR_OK) status = cr_cost_table_load_fixed(s->cost_table, text, length, path);
        cr_free(text);
        if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    } else {
        (void)CR_FAIL(CR_ERR_DEVICE, "%s: kernels were chosen by their measured times there, here they are not (%s)",
                      path, s->device->backend->name);
    }
    return misfit(s, anew);
}

cr_status cr_session_open_cost_table(struct cr_session *s, const struct cr_session_options *o) {
    char      path[CR_PATH_MAX], *file = NULL;
    cr_status status = CR_OK;
    if (s->device->backend->async && s->config->train.measure) {
        const bool leads = cr_comm_rank(s->comm) == 0; /* the others get its table */
        if (leads) CR_TRY(cr_cost_table_path(s->device, &file));
        status = cr_cost_table_open(s->device, leads ? file : "", &s->cost_table);
        cr_free(file);
        CR_TRY(status);
        if (!leads) return CR_OK;
    }
    if (!o->costs_from) return CR_OK;
    CR_TRY(cr_path_join(path, o->costs_from, "kernel_times.txt"));
    if (access(path, F_OK) != 0) CR_TRY(cr_path_join(path, o->costs_from, "costs.txt")); /* the name in version 0.1 */
    if (access(path, F_OK) == 0) return pin(s, path, o->retune);
    if (!s->cost_table || !o->costs_unmeasured) return CR_OK;
    (void)CR_FAIL(CR_ERR_DEVICE,
                  "%s: kernels were chosen by their order there (train.measure = no), here by their measured times",
                  o->costs_from);
    return misfit(s, o->retune);
}

struct cr_cost_model cr_session_cost_model(struct cr_session *s) {
    struct cr_cost_model t = s->cost_table ? cr_cost_table_model(s->cost_table) : cr_device_cost_model(s->device);
    if (s->model.real == CR_F32)
        t.flops_per_s = cr_device_flops(s->device, s->device->options.tf32 ? CR_MATH_TF32 : CR_MATH_F32);
    return t;
}

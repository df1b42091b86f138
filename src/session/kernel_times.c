/* session/kernel_times.c: opens the autotuning table of kernel times, by which a session chooses its kernels. See
 * session/session.h and autotune/cost_table.h. */
#include "session/session.h"

#include <unistd.h>

enum { TABLE_BYTES_MAX = 64 << 20 };

/* A resumed run is bitwise identical only with the same kernels. */
static cr_status reject(const char *why) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "%s: the resumed run would not be bitwise identical; resume with --force, or with "
                   "train.deterministic=no, to choose kernels anew",
                   why);
}

/* Called with an error set, which says why the kernels of the resumed run cannot be used. The error is returned when
 * results must stay bitwise identical, and becomes a warning otherwise. */
static cr_status handle_mismatch(struct cr_session *s, bool retune) {
    char why[512];
    cr_error_copy(why, sizeof why);
    if (s->config->train.deterministic && !retune) return reject(why);
    cr_error_clear();
    cr_log(CR_LOG_WARN, "%s: kernels are chosen anew", why);
    return CR_OK;
}

/* Loads the kernel times of the resumed run, so that the same kernels are chosen. */
static cr_status load_fixed(struct cr_session *s, const char *path, bool retune) {
    char     *text   = NULL;
    size_t    length = 0;
    cr_status status = CR_OK;
    if (s->cost_table) {
        status = cr_file_read(path, TABLE_BYTES_MAX, &text, &length);
        if (status == CR_OK) status = cr_cost_table_load_fixed(s->cost_table, text, length, path);
        cr_free(text);
        if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    } else {
        (void)CR_FAIL(CR_ERR_DEVICE,
                      "%s: the run chose kernels by measured times, this device (%s) does not measure them", path,
                      s->device->backend->name);
    }
    return handle_mismatch(s, retune);
}

cr_status cr_session_open_cost_table(struct cr_session *s, const struct cr_session_options *o) {
    char      path[CR_PATH_MAX], *file = NULL;
    cr_status status = CR_OK;
    if (s->device->backend->async && s->config->train.measure) {
        const bool first = cr_comm_rank(s->comm) == 0; /* the other ranks receive its table */
        if (first) CR_TRY(cr_cost_table_path(s->device, &file));
        status = cr_cost_table_open(s->device, first ? file : "", &s->cost_table);
        cr_free(file);
        CR_TRY(status);
        if (!first) return CR_OK;
    }
    if (!o->kernel_times_from) return CR_OK;
    CR_TRY(cr_path_join(path, o->kernel_times_from, "kernel_times.txt"));
    if (access(path, F_OK) == 0) return load_fixed(s, path, o->retune);
    CR_TRY(cr_path_join(path, o->kernel_times_from, "costs.txt"));
    if (access(path, F_OK) == 0) {
        (void)CR_FAIL(CR_ERR_FORMAT, "%s: version 0.1 wrote these kernel times, which this version does not read",
                      path);
        return handle_mismatch(s, o->retune);
    }
    if (!s->cost_table || !o->kernel_times_unmeasured) return CR_OK;
    (void)CR_FAIL(
        CR_ERR_DEVICE,
        "%s: the run chose kernels without measuring (train.measure = no), now they are chosen by measured times",
        o->kernel_times_from);
    return handle_mismatch(s, o->retune);
}

struct cr_cost_model cr_session_cost_model(struct cr_session *s) {
    struct cr_cost_model model = s->cost_table ? cr_cost_table_model(s->cost_table) : cr_device_cost_model(s->device);
    if (s->model.real == CR_F32)
        model.flops_per_s = cr_device_flops(s->device, s->device->options.tf32 ? CR_MATH_TF32 : CR_MATH_F32);
    return model;
}

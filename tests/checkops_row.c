/* checkops_row.c: runs one row on one unit, between guard zones. Memory goes through the backend only, so a device without
 * host memory is tested by the same lines. */
#include "checkops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GUARD = 512, FILL_BYTE = 0xff /* NaN in every real type */ };

/* Guards are NaN too, in every real type, but another one: what is read there spoils the result, what is written shows. */
static unsigned char guard_byte(size_t i) { return i % 2 ? 0xff : 0xf5; }

struct buffer {
    char  *region; /* device memory: guard, data, guard */
    size_t front, bytes;
};

struct site {
    struct cr_device             *device;
    const struct cr_kernel       *row;
    const struct checkops_unit   *unit;
    const struct checkops_inputs *inputs;
    struct checkops_verdict      *verdict;
    struct buffer                 in[CR_OP_IN_MAX], out[CR_OP_OUT_MAX], work;
    struct buffer                *result[CR_OP_OUT_MAX]; /* where outputs stand in this run */
    void                         *prepared;
    unsigned char                *image; /* host copy of a buffer with its guards */
    size_t                        image_bytes;
};

__attribute__((format(printf, 2, 3))) static void blame(struct site *site, const char *fmt, ...) {
    if (!site->verdict->ok) return;
    site->verdict->ok = false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(site->verdict->why, sizeof site->verdict->why, fmt, args);
    va_end(args);
}

/* ---- buffers ---- */

/* As badly aligned as the device allows: a multiple of its alignment and of nothing larger. */
static cr_status buffer_open(struct site *site, size_t bytes, struct buffer *b) {
    void *region;
    b->front = GUARD + site->device->caps.alignment;
    b->bytes = bytes;
    CR_TRY(site->device->backend->reserve(site->device, b->front + bytes + GUARD, &region));
    b->region         = region;
    site->image_bytes = CR_MAX(site->image_bytes, b->front + bytes + GUARD);
    return CR_OK;
}

static void buffer_close(struct site *site, struct buffer *b) {
    if (b->region) site->device->backend->release(site->device, b->region);
}

static void *buffer_data(const struct buffer *b) { return b->region ? b->region + b->front : NULL; }

static cr_status buffer_fill(struct site *site, const struct buffer *b, const void *data) {
    for (size_t i = 0; i < b->front + b->bytes + GUARD; i++) site->image[i] = guard_byte(i);
    if (data) memcpy(site->image + b->front, data, b->bytes);
    else memset(site->image + b->front, FILL_BYTE, b->bytes);
    return site->device->backend->put(site->device, b->region, site->image, b->front + b->bytes + GUARD);
}

/* Leaves the buffer in site->image and looks at its guards. */
static cr_status buffer_read(struct site *site, const struct buffer *b, const char *name) {
    const size_t end = b->front + b->bytes + GUARD;
    CR_TRY(site->device->backend->get(site->device, site->image, b->region, end));
    for (size_t i = 0; i < end; i++) {
        if (i == b->front) i += b->bytes;
        if (site->image[i] == guard_byte(i)) continue;
        blame(site, "wrote outside %s: byte %lld of %llu", name, (long long)i - (long long)b->front, (unsigned long long)b->bytes);
        break;
    }
    return CR_OK;
}

/* ---- site ---- */

static cr_status site_open(struct site *site) {
    const struct cr_op      *op   = site->unit->op;
    const struct cr_program *p    = &site->unit->program;
    size_t                   work = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) CR_TRY(buffer_open(site, p->tensor[op->in[s]].bytes, &site->in[s]));
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (op->out[s] < 0) continue;
        for (int i = 0; i < CR_OP_IN_MAX; i++)
            if (op->in[i] == op->out[s]) site->result[s] = &site->in[i];
        if (site->result[s]) continue;
        CR_TRY(buffer_open(site, p->tensor[op->out[s]].bytes, &site->out[s]));
        site->result[s] = &site->out[s];
    }
    if (site->row->prepare) CR_TRY(site->row->prepare(site->device, p, op, &site->prepared, &work));
    if (work) CR_TRY(buffer_open(site, work, &site->work));
    CR_ALLOC(site->image, site->image_bytes);
    return CR_OK;
}

static void site_close(struct site *site) {
    if (site->prepared && site->row->release) site->row->release(site->prepared);
    for (int s = 0; s < CR_OP_IN_MAX; s++) buffer_close(site, &site->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) buffer_close(site, &site->out[s]);
    buffer_close(site, &site->work);
    cr_free(site->image);
}

static cr_status fill_all(struct site *site) {
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (site->in[s].region) CR_TRY(buffer_fill(site, &site->in[s], site->inputs->in[s]));
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->out[s].region) CR_TRY(buffer_fill(site, &site->out[s], site->inputs->before[s]));
    if (site->work.region) CR_TRY(buffer_fill(site, &site->work, NULL));
    return CR_OK;
}

static struct cr_call call_of(const struct site *site) {
    struct cr_call call = {.program = &site->unit->program, .op = site->unit->op, .step = &site->unit->step,
                           .prepared = site->prepared, .workspace = buffer_data(&site->work)};
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = buffer_data(&site->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) call.out[s] = site->result[s] ? buffer_data(site->result[s]) : NULL;
    return call;
}

static bool is_result(const struct site *site, const struct buffer *b) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s] == b) return true;
    return false;
}

static cr_status inspect(struct site *site, void *const outs[]) {
    const struct cr_op_info *info = cr_op_info(site->unit->op->kind);
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        const struct buffer *b = &site->in[s];
        if (!b->region) continue;
        CR_TRY(buffer_read(site, b, info->in_name[s]));
        if (!is_result(site, b) && memcmp(site->image + b->front, site->inputs->in[s], b->bytes) != 0)
            blame(site, "changed its input %s", info->in_name[s]);
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (!site->result[s]) continue;
        CR_TRY(buffer_read(site, site->result[s], info->out_name[s]));
        memcpy(outs[s], site->image + site->result[s]->front, site->result[s]->bytes);
    }
    if (site->work.region) CR_TRY(buffer_read(site, &site->work, "workspace"));
    return CR_OK;
}

/* One run from fresh buffers; outs[slot] get the outputs. */
static cr_status run(struct site *site, void *const outs[]) {
    CR_TRY(fill_all(site));
    const struct cr_call call   = call_of(site);
    cr_status            status = site->row->launch(site->device, &call);
    if (status == CR_OK) status = site->device->backend->sync(site->device);
    if (status != CR_OK) {
        blame(site, "launch: %s", cr_error_message());
        return CR_OK;
    }
    return inspect(site, outs);
}

/* ---- judgement ---- */

static void judge_outputs(struct site *site, const struct cr_verify_truth *truth, void *const outs[], const char *what) {
    struct cr_verify_result r;
    cr_verify_compare(truth, (const void *const *)outs, &r);
    if (isfinite(r.worst)) site->verdict->worst = CR_MAX(site->verdict->worst, r.worst);
    if (!r.ok)
        blame(site, "%s%s[%lld] = %.9g, want %.9g within %.3g", what, cr_op_info(site->unit->op->kind)->out_name[r.slot],
              (long long)r.index, r.got, r.want, r.bound);
}

static bool same(const struct site *site, void *const a[], void *const b[]) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s] && memcmp(a[s], b[s], site->result[s]->bytes) != 0) return false;
    return true;
}

/* Every input whose storage output `slot` may take over, one after the other. */
static cr_status run_in_place(struct site *site, int slot, const struct cr_verify_truth *truth, void *const first[],
                              void *const outs[]) {
    const unsigned allowed = cr_op_inplace(site->unit->op->kind, slot);
    struct buffer *own     = site->result[slot];
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!(allowed & 1u << s) || !site->in[s].region || own != &site->out[slot] || site->in[s].bytes != own->bytes) continue;
        site->result[slot] = &site->in[s];
        cr_status status   = run(site, outs);
        site->result[slot] = own;
        CR_TRY(status);
        char what[64];
        snprintf(what, sizeof what, "in place of %s: ", cr_op_info(site->unit->op->kind)->in_name[s]);
        if (!same(site, first, outs)) judge_outputs(site, truth, outs, what);
    }
    return CR_OK;
}

static cr_status run_all(struct site *site, const struct cr_verify_truth *truth, void *const first[], void *const second[]) {
    CR_TRY(run(site, first));
    judge_outputs(site, truth, first, "");
    CR_TRY(run(site, second));
    if (!same(site, first, second)) {
        if (site->row->deterministic) blame(site, "two runs differ, yet the row says that it is deterministic");
        judge_outputs(site, truth, second, "second run: ");
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s]) CR_TRY(run_in_place(site, s, truth, first, second));
    return CR_OK;
}

cr_status checkops_row(struct cr_device *device, const struct cr_kernel *row, const struct checkops_unit *unit,
                       const struct checkops_inputs *inputs, const struct cr_verify_truth *truth,
                       struct checkops_verdict *verdict) {
    struct site site   = {.device = device, .row = row, .unit = unit, .inputs = inputs, .verdict = verdict};
    void       *outs[2][CR_OP_OUT_MAX] = {{0}};
    cr_status   status                 = CR_OK;
    *verdict = (struct checkops_verdict){.ok = true};
    CR_TRY_OUT(site_open(&site));
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < CR_OP_OUT_MAX; s++) {
            if (!site.result[s]) continue;
            outs[i][s] = cr_alloc(site.result[s]->bytes, 1);
            if (!outs[i][s]) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for outputs");
        }
    CR_TRY_OUT(run_all(&site, truth, outs[0], outs[1]));
out:
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < CR_OP_OUT_MAX; s++) cr_free(outs[i][s]);
    site_close(&site);
    return status;
}

cr_status checkops_time(struct cr_device *device, const struct cr_kernel *row, const struct checkops_unit *unit,
                        const struct checkops_inputs *inputs, double *seconds) {
    struct checkops_verdict verdict = {.ok = true};
    struct site             site    = {.device = device, .row = row, .unit = unit, .inputs = inputs, .verdict = &verdict};
    cr_status               status  = CR_OK;
    int64_t                 best = INT64_MAX, start = cr_time_ns();
    CR_TRY_OUT(site_open(&site));
    CR_TRY_OUT(fill_all(&site));
    const struct cr_call call = call_of(&site);
    for (int i = 0; i < 1000 && (i < 3 || cr_time_ns() - start < 50 * 1000 * 1000); i++) {
        const int64_t before = cr_time_ns();
        CR_TRY_OUT(row->launch(device, &call));
        CR_TRY_OUT(device->backend->sync(device));
        best = CR_MIN(best, cr_time_ns() - before);
    }
    *seconds = (double)best * 1e-9;
out:
    site_close(&site);
    return status;
}

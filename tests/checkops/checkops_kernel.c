/* tests/checkops/checkops_kernel.c: runs one row on one unit, between guard zones. Memory goes through the backend
 * only, so a device without host memory is tested by the same lines. All buffers of a run lie in one piece of memory,
 * which goes to the device at once and comes back at once: copies to a GPU cost more than small kernels. */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GUARD = 512, FILL_BYTE = 0xff /* NaN in every real type */, ARENA_BYTES = 16 << 20 };

/* Guards are NaN too, in every real type, but another one: what is read there spoils the result, what is written shows.
 */
static unsigned char guard_byte(size_t i) {
    return i % 2 ? 0xff : 0xf5;
}

struct buffer {
    const char *name;
    size_t      at, bytes; /* from the start of the region */
    bool        there;
};

struct site {
    struct checkops_arena        *arena;
    struct cr_device             *device;
    const struct cr_kernel       *row;
    const struct checkops_unit   *unit;
    const struct checkops_inputs *inputs;
    struct checkops_verdict      *verdict;
    struct buffer                 in[CR_OP_IN_MAX], out[CR_OP_OUT_MAX], work;
    struct buffer                *order[CR_OP_IN_MAX + CR_OP_OUT_MAX + 1]; /* as they lie in the region */
    int                           buffers;
    struct buffer                *result[CR_OP_OUT_MAX]; /* where outputs stand in this run */
    void                         *prepared;
    size_t                        end; /* of the last guard */
};

__attribute__((format(printf, 2, 3))) static void blame(struct site *site, const char *fmt, ...) {
    if (!site->verdict->ok) return;
    site->verdict->ok = false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(site->verdict->why, sizeof site->verdict->why, fmt, args);
    va_end(args);
}

/* ---- memory ---- */

void checkops_arena_close(struct checkops_arena *arena) {
    if (arena->region) arena->device->backend->release(arena->device, arena->region);
    cr_free(arena->before);
    for (int i = 0; i < 2; i++) cr_free(arena->after[i]);
    *arena = (struct checkops_arena){0};
}

static cr_status arena_fit_host(unsigned char **image, size_t bytes) {
    cr_free(*image);
    CR_ALLOC(*image, bytes);
    return CR_OK;
}

static cr_status arena_fit(struct checkops_arena *arena, size_t bytes) {
    void *region;
    if (bytes > arena->bytes) {
        if (arena->region) arena->device->backend->release(arena->device, arena->region);
        arena->region = NULL;
        arena->bytes  = 0;
        bytes         = CR_MAX(bytes + bytes / 2, (size_t)ARENA_BYTES);
        CR_TRY(arena->device->backend->reserve(arena->device, bytes, &region));
        arena->region = region;
        arena->bytes  = bytes;
    }
    if (arena->bytes > arena->before_bytes) {
        arena->before_bytes = 0;
        CR_TRY(arena_fit_host(&arena->before, arena->bytes));
        arena->before_bytes = arena->bytes;
    }
    return CR_OK;
}

static cr_status arena_fit_after(struct checkops_arena *arena) {
    if (arena->bytes <= arena->after_bytes) return CR_OK;
    arena->after_bytes = 0;
    for (int i = 0; i < 2; i++) CR_TRY(arena_fit_host(&arena->after[i], arena->bytes));
    arena->after_bytes = arena->bytes;
    return CR_OK;
}

/* ---- buffers ---- */

static void buffer_add(struct site *site, struct buffer *b, const char *name, size_t bytes) {
    *b                           = (struct buffer){.name = name, .bytes = bytes, .there = true};
    site->order[site->buffers++] = b;
}

/* Tensors stand at multiples of the device's alignment. In 16-bit programs filters are slices of a plane, which begin
 * at multiples of 64 elements: 128 bytes. */
static size_t alignment_of(const struct site *site, const struct buffer *b) {
    const size_t most = site->device->caps.alignment;
    if (b->name[0] == 'w' && !b->name[1] && (site->unit->c.real == CR_F16 || site->unit->c.real == CR_BF16))
        return CR_MIN(most, (size_t)128);
    return most;
}

/* As badly aligned as tensors are: a multiple of the alignment and of nothing larger. */
static cr_status place_buffers(struct site *site) {
    size_t at = GUARD, room = GUARD;
    for (int i = 0; i < site->buffers; i++) room += site->order[i]->bytes + GUARD + 2 * site->device->caps.alignment;
    CR_TRY(arena_fit(site->arena, room));
    const uintptr_t base = (uintptr_t)site->arena->region;
    for (int i = 0; i < site->buffers; i++) {
        struct buffer *b     = site->order[i];
        const size_t   align = alignment_of(site, b);
        at += (3 * align - (base + at) % (2 * align)) % (2 * align);
        CR_ASSERT((base + at) % (2 * align) == align);
        b->at = at;
        at += b->bytes + GUARD;
    }
    site->end = at;
    return CR_OK;
}

static void *buffer_data(const struct site *site, const struct buffer *b) {
    return b->there ? site->arena->region + b->at : NULL;
}

static void image_fill(struct site *site, const struct buffer *b, const void *data) {
    unsigned char *to = site->arena->before + b->at;
    if (data)
        memcpy(to, data, b->bytes);
    else
        memset(to, FILL_BYTE, b->bytes);
}

/* What the region holds before a run. */
static void image_make(struct site *site) {
    size_t at = 0;
    for (int i = 0; i <= site->buffers; i++) {
        const size_t end = i < site->buffers ? site->order[i]->at : site->end;
        for (; at < end; at++) site->arena->before[at] = guard_byte(at);
        if (i < site->buffers) at = end + site->order[i]->bytes;
    }
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (site->in[s].there) image_fill(site, &site->in[s], site->inputs->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->out[s].there) image_fill(site, &site->out[s], site->inputs->before[s]);
    if (site->work.there) image_fill(site, &site->work, NULL);
}

/* ---- site ---- */

static cr_status site_open(struct site *site) {
    const struct cr_op      *op   = site->unit->op;
    const struct cr_op_info *info = cr_op_info(op->kind);
    const struct cr_program *p    = &site->unit->program;
    size_t                   work = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) buffer_add(site, &site->in[s], info->in_name[s], p->tensor[op->in[s]].bytes);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (op->out[s] < 0) continue;
        for (int i = 0; i < CR_OP_IN_MAX; i++)
            if (op->in[i] == op->out[s]) site->result[s] = &site->in[i];
        if (site->result[s]) continue;
        buffer_add(site, &site->out[s], info->out_name[s], p->tensor[op->out[s]].bytes);
        site->result[s] = &site->out[s];
    }
    if (site->row->prepare && site->row->prepare(site->device, p, op, &site->prepared, &work) != CR_OK) {
        blame(site, "accepted, but prepare: %s", cr_error_message());
        return CR_OK;
    }
    if (work) buffer_add(site, &site->work, "workspace", work);
    CR_TRY(place_buffers(site));
    image_make(site);
    return CR_OK;
}

static void site_close(struct site *site) {
    if (site->prepared && site->row->release) site->row->release(site->prepared);
}

static struct cr_call call_of(const struct site *site) {
    struct cr_call call = {.program   = &site->unit->program,
                           .op        = site->unit->op,
                           .step      = &site->unit->step,
                           .prepared  = site->prepared,
                           .workspace = buffer_data(site, &site->work)};
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = buffer_data(site, &site->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) call.out[s] = site->result[s] ? buffer_data(site, site->result[s]) : NULL;
    return call;
}

static cr_status send(struct site *site) {
    const struct cr_backend *backend = site->device->backend;
    CR_TRY(backend->put(site->device, site->arena->region, site->arena->before, site->end));
    if (backend->set_step) CR_TRY(backend->set_step(site->device, &site->unit->step));
    return CR_OK;
}

/* ---- what a run left behind ---- */

static bool is_result(const struct site *site, const struct buffer *b) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s] == b) return true;
    return false;
}

static void look_at_guard(struct site *site, const unsigned char *after, size_t from, size_t to,
                          const struct buffer *left, const struct buffer *right) {
    const unsigned char *before = site->arena->before;
    if (memcmp(before + from, after + from, to - from) == 0) return;
    size_t i = from;
    while (before[i] == after[i]) i++;
    const bool           behind = left && (!right || i - from <= to - i);
    const struct buffer *b      = behind ? left : right;
    blame(site, "wrote outside %s: byte %lld of %llu", b->name, (long long)i - (long long)b->at,
          (unsigned long long)b->bytes);
}

/* Results and workspace may have changed, nothing else. */
static void inspect(struct site *site, const unsigned char *after) {
    size_t               at   = 0;
    const struct buffer *left = NULL;
    for (int i = 0; i < site->buffers; i++) {
        const struct buffer *b = site->order[i];
        look_at_guard(site, after, at, b->at, left, b);
        if (b != &site->work && !is_result(site, b) &&
            memcmp(after + b->at, site->arena->before + b->at, b->bytes) != 0)
            blame(site, "changed %s, where no output stands", b->name);
        at   = b->at + b->bytes;
        left = b;
    }
    look_at_guard(site, after, at, site->end, left, NULL);
}

/* One run from fresh buffers; outs[slot] point into after[which]. */
static cr_status run(struct site *site, int which, const void *outs[]) {
    const struct cr_backend *backend = site->device->backend;
    unsigned char           *after   = site->arena->after[which];
    CR_TRY(send(site));
    const struct cr_call call   = call_of(site);
    cr_status            status = site->row->launch(site->device, &call);
    if (status == CR_OK) status = backend->sync(site->device);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) outs[s] = site->result[s] ? after + site->result[s]->at : NULL;
    if (status != CR_OK) {
        blame(site, "launch: %s", cr_error_message());
        memcpy(after, site->arena->before, site->end);
        return CR_OK;
    }
    CR_TRY(backend->get(site->device, after, site->arena->region, site->end));
    inspect(site, after);
    return CR_OK;
}

/* ---- judgement ---- */

static void judge_outputs(struct site *site, const struct cr_verify_expected *truth, const void *const outs[],
                          const char *what) {
    struct cr_verify_result r;
    cr_verify_compare(truth, outs, &r);
    if (isfinite(r.worst)) site->verdict->worst = CR_MAX(site->verdict->worst, r.worst);
    if (!r.ok)
        blame(site, "%s%s[%lld] = %.9g, want %.9g within %.3g", what,
              cr_op_info(site->unit->op->kind)->out_name[r.slot], (long long)r.index, r.got, r.want, r.bound);
}

static bool same(const struct site *site, const void *const a[], const void *const b[]) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s] && memcmp(a[s], b[s], site->result[s]->bytes) != 0) return false;
    return true;
}

/* Every input whose storage output `slot` may take over, one after the other. */
static cr_status run_in_place(struct site *site, int slot, const struct cr_verify_expected *truth,
                              const void *const first[]) {
    const unsigned allowed = cr_op_inplace(site->unit->op->kind, slot);
    struct buffer *own     = site->result[slot];
    const void    *outs[CR_OP_OUT_MAX];
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!(allowed & 1u << s) || !site->in[s].there || own != &site->out[slot] || site->in[s].bytes != own->bytes)
            continue;
        site->result[slot] = &site->in[s];
        cr_status status   = run(site, 1, outs);
        site->result[slot] = own;
        CR_TRY(status);
        char what[64];
        snprintf(what, sizeof what, "in place of %s: ", site->in[s].name);
        if (!same(site, first, outs)) judge_outputs(site, truth, outs, what);
    }
    return CR_OK;
}

static cr_status run_all(struct site *site, const struct cr_verify_expected *truth) {
    const void *first[CR_OP_OUT_MAX], *second[CR_OP_OUT_MAX];
    CR_TRY(run(site, 0, first));
    judge_outputs(site, truth, first, "");
    CR_TRY(run(site, 1, second));
    if (!same(site, first, second)) {
        if (site->row->deterministic) blame(site, "two runs differ, yet the row says that it is deterministic");
        judge_outputs(site, truth, second, "second run: ");
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (site->result[s]) CR_TRY(run_in_place(site, s, truth, first));
    return CR_OK;
}

cr_status checkops_kernel(struct checkops_arena *arena, const struct cr_kernel *row, const struct checkops_unit *unit,
                          const struct checkops_inputs *inputs, const struct cr_verify_expected *truth,
                          struct checkops_verdict *verdict) {
    struct site site = {
        .arena = arena, .device = arena->device, .row = row, .unit = unit, .inputs = inputs, .verdict = verdict};
    cr_status status;
    CR_ASSERT(truth->math == row->math);
    *verdict = (struct checkops_verdict){.ok = true};
    CR_TRY_OUT(site_open(&site));
    CR_TRY_OUT(arena_fit_after(arena));
    if (verdict->ok) CR_TRY_OUT(run_all(&site, truth));
out:
    site_close(&site);
    return status;
}

/* ---- time ---- */

static const double measured_seconds = 0.05;

static cr_status time_on_host(struct site *site, const struct cr_call *call, double *seconds) {
    int64_t best = INT64_MAX, start = cr_time_ns();
    for (int i = 0; i < 1000 && (i < 3 || (double)(cr_time_ns() - start) < measured_seconds * 1e9); i++) {
        const int64_t before = cr_time_ns();
        CR_TRY(site->row->launch(site->device, call));
        CR_TRY(site->device->backend->sync(site->device));
        best = CR_MIN(best, cr_time_ns() - before);
    }
    *seconds = (double)best * 1e-9;
    return CR_OK;
}

static cr_status time_launches(struct site *site, const struct cr_call *call, void *const mark[2], int launches,
                               double *seconds) {
    const struct cr_async *async = site->device->backend->async;
    CR_TRY(async->event_record(site->device, call->op->stream, mark[0]));
    for (int i = 0; i < launches; i++) CR_TRY(site->row->launch(site->device, call));
    CR_TRY(async->event_record(site->device, call->op->stream, mark[1]));
    CR_TRY(async->host_wait(site->device, mark[1]));
    CR_TRY(async->elapsed(site->device, mark[0], mark[1], seconds));
    *seconds /= launches;
    return CR_OK;
}

/* Launches one behind the other, so that what the host needs for each is hidden where the device needs longer. */
static cr_status time_on_device(struct site *site, const struct cr_call *call, double *seconds) {
    const struct cr_async *async   = site->device->backend->async;
    void                  *mark[2] = {NULL, NULL};
    double                 once;
    cr_status              status;
    for (int i = 0; i < 2; i++) CR_TRY_OUT(async->event_create(site->device, &mark[i]));
    CR_TRY_OUT(time_launches(site, call, mark, 3, &once)); /* warms up */
    CR_TRY_OUT(time_launches(site, call, mark, 3, &once));
    const double wanted   = measured_seconds / 3 / (once > 1e-6 ? once : 1e-6);
    const int    launches = wanted > 1000 ? 1000 : wanted < 3 ? 3 : (int)wanted;
    *seconds              = INFINITY;
    for (int i = 0; i < 3; i++) {
        CR_TRY_OUT(time_launches(site, call, mark, launches, &once));
        *seconds = once < *seconds ? once : *seconds;
    }
out:
    for (int i = 0; i < 2; i++) async->event_destroy(site->device, mark[i]);
    return status;
}

cr_status checkops_time(struct checkops_arena *arena, const struct cr_kernel *row, const struct checkops_unit *unit,
                        const struct checkops_inputs *inputs, double *seconds) {
    struct checkops_verdict verdict = {.ok = true};
    struct site             site    = {
                       .arena = arena, .device = arena->device, .row = row, .unit = unit, .inputs = inputs, .verdict = &verdict};
    cr_status status;
    CR_TRY_OUT(site_open(&site));
    if (!verdict.ok) CR_FAIL_OUT(CR_ERR_DEVICE, "%s %s", row->name, verdict.why);
    CR_TRY_OUT(send(&site));
    const struct cr_call call = call_of(&site);
    if (site.device->backend->async)
        CR_TRY_OUT(time_on_device(&site, &call, seconds));
    else
        CR_TRY_OUT(time_on_host(&site, &call, seconds));
    CR_TRY_OUT(site.device->backend->sync(site.device));
out:
    site_close(&site);
    return status;
}

/* tests/checkops/checkops_kernel.c: runs one kernel on one unit, between guard zones. All memory is accessed through
 * the backend, so the same code tests devices whose memory the host cannot access. On the CPU the zones of two in three
 * runs are pages without access: a load that vector instructions make outside of a tensor ends the test, even if the
 * result does not depend on it. All buffers of a run are in one
 * region, which is copied to the device and back as a whole: copies to a GPU take longer than small kernels. */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 512, PAGE = 4096, FILL_BYTE = 0xff /* NaN in every real type */, ARENA_BYTES = 16 << 20 };

/* Guard bytes are another NaN in every real type: reading a guard makes the result NaN, and writing to it is
 * detected. */
static unsigned char guard_byte(size_t i) {
    return i % 2 ? 0xff : 0xf5;
}

struct buffer {
    const char *name;
    size_t      at, bytes; /* offset from the start of the region */
    bool        present;
};

/* Between buffers there are GUARD bytes, or at least one page without access. */
enum guards { BYTES, PAGES_AFTER, PAGES_BEFORE };

struct trial {
    struct checkops_arena        *arena;
    struct cr_device             *device;
    const struct cr_kernel       *kernel;
    const struct checkops_unit   *unit;
    const struct checkops_inputs *inputs;
    struct checkops_verdict      *verdict;
    struct buffer                 in[CR_OP_IN_MAX], out[CR_OP_OUT_MAX], work;
    struct buffer                *order[CR_OP_IN_MAX + CR_OP_OUT_MAX + 1]; /* in the order of their offsets */
    int                           buffers;
    struct buffer                *result[CR_OP_OUT_MAX]; /* buffers of the outputs in this run */
    void                         *prepared;
    size_t                        end; /* end of the last guard */
    enum guards                   guards;
};

__attribute__((format(printf, 2, 3))) static void report_error(struct trial *trial, const char *fmt, ...) {
    if (!trial->verdict->ok) return;
    trial->verdict->ok = false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(trial->verdict->why, sizeof trial->verdict->why, fmt, args);
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

static void buffer_add(struct trial *trial, struct buffer *b, const char *name, size_t bytes) {
    *b                             = (struct buffer){.name = name, .bytes = bytes, .present = true};
    trial->order[trial->buffers++] = b;
}

/* Tensors are aligned to the alignment of the device. In 16-bit programs filters are slices of a buffer and are
 * aligned to 64 elements: 128 bytes. */
static size_t alignment_of(const struct trial *trial, const struct buffer *b) {
    const size_t most = trial->device->caps.alignment;
    if (b->name[0] == 'w' && !b->name[1] && (trial->unit->c.real == CR_F16 || trial->unit->c.real == CR_BF16))
        return CR_MIN(most, (size_t)128);
    return most;
}

/* Returns the first address from `from` on where the buffer begins. With guards of bytes it has the smallest alignment
 * that tensors have: an odd multiple of the alignment. With guard pages it begins at one, or ends at one but for
 * the bytes that are missing to a multiple of the alignment. */
static uintptr_t address_of(const struct trial *trial, const struct buffer *b, uintptr_t from) {
    const size_t align = alignment_of(trial, b), bytes = (b->bytes + align - 1) / align * align;
    if (trial->guards == PAGES_AFTER) return (from + bytes + PAGE - 1) / PAGE * PAGE - bytes;
    if (trial->guards == PAGES_BEFORE) return (from + PAGE - 1) / PAGE * PAGE;
    return from + (3 * align - from % (2 * align)) % (2 * align);
}

/* Allows or forbids accesses to the whole pages between buffers. */
static void protect_guards(const struct trial *trial, int access) {
    const uintptr_t base = (uintptr_t)trial->arena->region;
    uintptr_t       from = base;
    for (int i = 0; i <= trial->buffers && trial->guards != BYTES; i++) {
        const uintptr_t to    = base + (i < trial->buffers ? trial->order[i]->at : trial->end);
        const uintptr_t first = (from + PAGE - 1) / PAGE * PAGE, last = to / PAGE * PAGE;
        if (first < last) CR_ASSERT(mprotect((void *)first, last - first, access) == 0);
        from = i < trial->buffers ? to + trial->order[i]->bytes : to;
    }
}

static cr_status place_buffers(struct trial *trial) {
    const size_t gap = trial->guards == BYTES ? GUARD : 2 * PAGE, most = trial->guards == BYTES ? 0 : PAGE;
    size_t       at = gap, size = gap;
    for (int i = 0; i < trial->buffers; i++)
        size += trial->order[i]->bytes + gap + 2 * trial->device->caps.alignment + most;
    CR_TRY(arena_fit(trial->arena, size));
    const uintptr_t base = (uintptr_t)trial->arena->region;
    for (int i = 0; i < trial->buffers; i++) {
        struct buffer *b = trial->order[i];
        b->at            = address_of(trial, b, base + at) - base;
        at               = b->at + b->bytes + gap;
    }
    trial->end = at;
    return CR_OK;
}

static void *buffer_data(const struct trial *trial, const struct buffer *b) {
    return b->present ? trial->arena->region + b->at : NULL;
}

static void fill_buffer(struct trial *trial, const struct buffer *b, const void *data) {
    unsigned char *to = trial->arena->before + b->at;
    if (data)
        memcpy(to, data, b->bytes);
    else
        memset(to, FILL_BYTE, b->bytes);
}

/* Writes the contents of the region before a run. */
static void make_contents(struct trial *trial) {
    size_t at = 0;
    for (int i = 0; i <= trial->buffers; i++) {
        const size_t end = i < trial->buffers ? trial->order[i]->at : trial->end;
        for (; at < end; at++) trial->arena->before[at] = guard_byte(at);
        if (i < trial->buffers) at = end + trial->order[i]->bytes;
    }
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (trial->in[s].present) fill_buffer(trial, &trial->in[s], trial->inputs->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (trial->out[s].present) fill_buffer(trial, &trial->out[s], trial->inputs->before[s]);
    if (trial->work.present) fill_buffer(trial, &trial->work, NULL);
}

/* ---- one kernel on one unit ---- */

static cr_status trial_open(struct trial *trial) {
    const struct cr_op      *op   = trial->unit->op;
    const struct cr_op_info *info = cr_op_info(op->kind);
    const struct cr_program *p    = &trial->unit->program;
    size_t                   work = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) buffer_add(trial, &trial->in[s], info->in_name[s], p->tensor[op->in[s]].bytes);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (op->out[s] < 0) continue;
        for (int i = 0; i < CR_OP_IN_MAX; i++)
            if (op->in[i] == op->out[s]) trial->result[s] = &trial->in[i];
        if (trial->result[s]) continue;
        buffer_add(trial, &trial->out[s], info->out_name[s], p->tensor[op->out[s]].bytes);
        trial->result[s] = &trial->out[s];
    }
    if (cr_kernel_prepare(trial->device, trial->kernel, p, op, &trial->prepared, &work) != CR_OK) {
        report_error(trial, "the kernel accepted the op, but prepare failed: %s", cr_error_message());
        return CR_OK;
    }
    if (work) buffer_add(trial, &trial->work, "workspace", work);
    CR_TRY(place_buffers(trial));
    make_contents(trial);
    return CR_OK;
}

static void trial_close(struct trial *trial) {
    cr_kernel_release(trial->kernel, trial->prepared);
}

static struct cr_call call_of(const struct trial *trial) {
    struct cr_call call = {.program   = &trial->unit->program,
                           .op        = trial->unit->op,
                           .step      = &trial->unit->step,
                           .prepared  = trial->prepared,
                           .workspace = buffer_data(trial, &trial->work)};
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = buffer_data(trial, &trial->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        call.out[s] = trial->result[s] ? buffer_data(trial, trial->result[s]) : NULL;
    return call;
}

static cr_status send(struct trial *trial) {
    const struct cr_backend *backend = trial->device->backend;
    CR_TRY(backend->put(trial->device, trial->arena->region, trial->arena->before, trial->end));
    if (backend->set_step) CR_TRY(backend->set_step(trial->device, &trial->unit->step));
    return CR_OK;
}

/* ---- memory after a run ---- */

static bool is_result(const struct trial *trial, const struct buffer *b) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (trial->result[s] == b) return true;
    return false;
}

static void check_guard(struct trial *trial, const unsigned char *after, size_t from, size_t to,
                        const struct buffer *left, const struct buffer *right) {
    const unsigned char *before = trial->arena->before;
    if (memcmp(before + from, after + from, to - from) == 0) return;
    size_t i = from;
    while (before[i] == after[i]) i++;
    const bool           after_left = left && (!right || i - from <= to - i);
    const struct buffer *b          = after_left ? left : right;
    report_error(trial, "wrote outside %s: byte %lld of %llu", b->name, (long long)i - (long long)b->at,
                 (unsigned long long)b->bytes);
}

/* Only results and the workspace may have changed. */
static void inspect(struct trial *trial, const unsigned char *after) {
    size_t               at   = 0;
    const struct buffer *left = NULL;
    for (int i = 0; i < trial->buffers; i++) {
        const struct buffer *b = trial->order[i];
        check_guard(trial, after, at, b->at, left, b);
        if (b != &trial->work && !is_result(trial, b) &&
            memcmp(after + b->at, trial->arena->before + b->at, b->bytes) != 0)
            report_error(trial, "changed %s, which is not an output", b->name);
        at   = b->at + b->bytes;
        left = b;
    }
    check_guard(trial, after, at, trial->end, left, NULL);
}

/* One run with new contents of the buffers; outs[slot] points into after[which]. */
static cr_status run(struct trial *trial, int which, const void *outs[]) {
    const struct cr_backend *backend = trial->device->backend;
    unsigned char           *after   = trial->arena->after[which];
    CR_TRY(send(trial));
    const struct cr_call call = call_of(trial);
    protect_guards(trial, PROT_NONE);
    cr_status status = trial->kernel->launch(trial->device, &call);
    if (status == CR_OK) status = backend->sync(trial->device);
    protect_guards(trial, PROT_READ | PROT_WRITE);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) outs[s] = trial->result[s] ? after + trial->result[s]->at : NULL;
    if (status != CR_OK) {
        report_error(trial, "launch: %s", cr_error_message());
        memcpy(after, trial->arena->before, trial->end);
        return CR_OK;
    }
    CR_TRY(backend->get(trial->device, after, trial->arena->region, trial->end));
    inspect(trial, after);
    return CR_OK;
}

/* ---- comparison ---- */

static void compare_outputs(struct trial *trial, const struct cr_verify_expected *truth, const void *const outs[],
                            const char *what) {
    struct cr_verify_result r;
    cr_verify_compare(truth, outs, &r);
    if (isfinite(r.worst)) trial->verdict->worst = CR_MAX(trial->verdict->worst, r.worst);
    if (!r.ok)
        report_error(trial, "%s%s[%lld] = %.9g, expected %.9g within %.3g", what,
                     cr_op_info(trial->unit->op->kind)->out_name[r.slot], (long long)r.index, r.got, r.want, r.bound);
}

static bool same(const struct trial *trial, const void *const a[], const void *const b[]) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (trial->result[s] && memcmp(a[s], b[s], trial->result[s]->bytes) != 0) return false;
    return true;
}

/* Runs with output `slot` in the storage of each input that allows this. */
static cr_status run_in_place(struct trial *trial, int slot, const struct cr_verify_expected *truth,
                              const void *const first[]) {
    const unsigned allowed = cr_op_inplace(trial->unit->op->kind, slot);
    struct buffer *own     = trial->result[slot];
    const void    *outs[CR_OP_OUT_MAX];
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!(allowed & 1u << s) || !trial->in[s].present || own != &trial->out[slot] ||
            trial->in[s].bytes != own->bytes)
            continue;
        trial->result[slot] = &trial->in[s];
        cr_status status    = run(trial, 1, outs);
        trial->result[slot] = own;
        CR_TRY(status);
        char what[64];
        snprintf(what, sizeof what, "in place of %s: ", trial->in[s].name);
        if (!same(trial, first, outs)) compare_outputs(trial, truth, outs, what);
    }
    return CR_OK;
}

static cr_status run_all(struct trial *trial, const struct cr_verify_expected *truth) {
    const void *first[CR_OP_OUT_MAX], *second[CR_OP_OUT_MAX];
    CR_TRY(run(trial, 0, first));
    compare_outputs(trial, truth, first, "");
    CR_TRY(run(trial, 1, second));
    if (!same(trial, first, second)) {
        if (trial->kernel->deterministic)
            report_error(trial, "two runs differ, although the kernel is declared deterministic");
        compare_outputs(trial, truth, second, "second run: ");
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (trial->result[s]) CR_TRY(run_in_place(trial, s, truth, first));
    return CR_OK;
}

cr_status checkops_kernel(struct checkops_arena *arena, const struct cr_kernel *kernel,
                          const struct checkops_unit *unit, const struct checkops_inputs *inputs,
                          const struct cr_verify_expected *truth, struct checkops_verdict *verdict) {
    struct trial trial = {
        .arena = arena, .device = arena->device, .kernel = kernel, .unit = unit, .inputs = inputs, .verdict = verdict};
    cr_status status;
    CR_ASSERT(truth->math == kernel->math);
    if (arena->guard_pages) trial.guards = arena->runs++ % 3;
    *verdict = (struct checkops_verdict){.ok = true};
    CR_TRY_OUT(trial_open(&trial));
    CR_TRY_OUT(arena_fit_after(arena));
    if (verdict->ok) CR_TRY_OUT(run_all(&trial, truth));
out:
    trial_close(&trial);
    return status;
}

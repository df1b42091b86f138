/* device/registry.c: lists the backends (cpu, cuda) and selects the device (train.device). It is the only source file
 * that depends on whether the build has CUDA. */
#include "device/device.h"
#include "device/kernel.h"
#include "device/libraries.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

extern const struct cr_backend cr_backend_cpu;
#ifdef CR_WITH_CUDA
extern const struct cr_backend cr_backend_cuda;
void                           cr_cuda_libs_list(struct cr_text *out); /* cuda/core/libraries.h */
#endif

const struct cr_backend *const *cr_backends(void) {
    static const struct cr_backend *const list[] = {
#ifdef CR_WITH_CUDA
        &cr_backend_cuda,
#endif
        &cr_backend_cpu,
        NULL,
    };
    return list;
}

void cr_device_list_libraries(struct cr_text *out) {
#ifdef CR_WITH_CUDA
    cr_cuda_libs_list(out);
#else
    (void)out;
#endif
}

static const struct cr_backend *backend_find(const char *name) {
    for (const struct cr_backend *const *b = cr_backends(); *b; b++)
        if (strcmp((*b)->name, name) == 0) return *b;
    return NULL;
}

static cr_status choose_auto(const struct cr_backend **out) {
    static atomic_bool reported; /* once a process: a command may open several devices */
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if ((*b)->available(&why)) {
            *out     = *b;
            reported = true;
            return CR_OK;
        }
        if (!reported) cr_log(CR_LOG_INFO, "device %s is not used: %s", (*b)->name, why ? why : "not available");
    }
    return CR_FAIL(CR_ERR_DEVICE, "no device of any kind is available");
}

static cr_status choose_named(const char *name, const char *option, const struct cr_backend **out) {
    const struct cr_backend *found = backend_find(name);
    const char              *why   = NULL;
    if (!found) return CR_FAIL(CR_ERR_DEVICE, "device %s: this build has no CUDA; use %scpu", name, option);
    if (!found->available(&why))
        return CR_FAIL(CR_ERR_DEVICE, "device %s: %s; use %scpu or auto", name, why ? why : "not available", option);
    *out = found;
    return CR_OK;
}

cr_status cr_device_check(enum cr_device_kind kind) {
    const struct cr_backend *backend;
    return kind == CR_DEVICE_CUDA ? choose_named("cuda", "--device ", &backend) : CR_OK;
}

int cr_device_count(enum cr_device_kind kind) {
    const struct cr_backend *found = backend_find(kind == CR_DEVICE_CUDA ? "cuda" : "cpu");
    const char              *why;
    if (!found || !found->available(&why)) return 0;
    return found->count ? found->count() : 1;
}

cr_status cr_device_open(enum cr_device_kind kind, const struct cr_device_options *options, struct cr_device **out) {
    const struct cr_backend *backend;
    const char              *option = options->option ? options->option : "--device ";
    CR_TRY(kind == CR_DEVICE_AUTO ? choose_auto(&backend)
                                  : choose_named(kind == CR_DEVICE_CUDA ? "cuda" : "cpu", option, &backend));
    return backend->open(options, out);
}

void cr_device_close(struct cr_device *device) {
    if (device) device->backend->close(device);
}

double cr_device_flops(const struct cr_device *device, enum cr_math math) {
    const struct cr_device_caps *caps = &device->caps;
    const double fraction = math == CR_MATH_TF32 ? caps->tf32_fraction : math == CR_MATH_F32 ? caps->f32_fraction : 0;
    return fraction > 0 ? fraction * caps->flops_per_s : caps->flops_per_s;
}

static bool pattern_fits(const struct cr_kernel *kernel, const struct cr_op *op) {
    return cr_op_has_sparsity_pattern(op) ? kernel->sparse || kernel->reference : !kernel->sparse;
}

/* Required slots are always there; only optional ones are compared. */
static bool implements_slots(const struct cr_kernel *kernel, const struct cr_op *op) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins; s++)
        if (op->in[s] >= 0 && info->in_optional[s] && !(kernel->optional_in >> s & 1)) return false;
    for (int s = 0; s < info->outs; s++)
        if (op->out[s] >= 0 && info->out_optional[s] && !(kernel->optional_out >> s & 1)) return false;
    return true;
}

bool cr_kernel_accepts(const struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *program,
                       const struct cr_op *op) {
    return kernel->op == op->kind && pattern_fits(kernel, op) &&
           (!kernel->dtypes || (implements_slots(kernel, op) && cr_op_has_types(program, op, kernel->dtypes))) &&
           (!kernel->accepts || kernel->accepts(device, program, op));
}

const struct cr_kernel *cr_kernel_find(const struct cr_device *device, const struct cr_program *program,
                                       const struct cr_op *op, int from, int *index) {
    const struct cr_kernel *const *kernels = device->kernels;
    for (int i = 0; kernels[i]; i++) {
        if (i < from || kernels[i]->op != op->kind) continue;
        if (device->options.deterministic && !kernels[i]->deterministic) continue;
        if (!cr_kernel_accepts(device, kernels[i], program, op)) continue;
        *index = i;
        return kernels[i];
    }
    return NULL;
}

void cr_kernel_release(const struct cr_kernel *kernel, void *prepared) {
    if (kernel->release) kernel->release(prepared);
}

cr_status cr_kernel_prepare(struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *program,
                            const struct cr_op *op, void **prepared, size_t *workspace_bytes) {
    *prepared              = NULL;
    *workspace_bytes       = kernel->workspace ? kernel->workspace(device, program, op) : 0;
    const cr_status status = kernel->prepare ? kernel->prepare(device, program, op, prepared, workspace_bytes) : CR_OK;
    if (status == CR_OK || !*prepared) return status;
    cr_kernel_release(kernel, *prepared);
    *prepared = NULL;
    return status;
}

/* ---- the table of a device ---- */

static const struct cr_kernel *typed_kernel(struct cr_kernel_list *list, const struct cr_kernel *row,
                                            enum cr_dtype dtype) {
    static const enum cr_math maths[] = {
        [CR_F32] = CR_MATH_F32, [CR_F64] = CR_MATH_F64, [CR_F16] = CR_MATH_F16, [CR_BF16] = CR_MATH_BF16};
    const char *star = strchr(row->name, '*');
    CR_ASSERT((size_t)dtype < CR_COUNT(maths) && list->typed_count < CR_TYPED_KERNELS_MAX);
    struct cr_kernel *kernel = &list->typed[list->typed_count];
    char             *name   = list->typed_name[list->typed_count++];
    const int         length = snprintf(name, CR_KERNEL_NAME_MAX, "%.*s%s%s", (int)(star - row->name), row->name,
                                        cr_dtype_name(dtype), star + 1);
    CR_ASSERT(length < CR_KERNEL_NAME_MAX);
    *kernel        = *row;
    kernel->name   = name;
    kernel->dtypes = 1u << dtype;
    if (row->math == CR_MATH_DATA) kernel->math = maths[dtype];
    return kernel;
}

static void append(struct cr_kernel_list *list, const struct cr_kernel *kernel) {
    CR_ASSERT(list->count < CR_KERNELS_MAX);
    list->kernel[list->count++] = kernel;
}

void cr_kernel_list_add(struct cr_kernel_list *list, const struct cr_kernel *rows) {
    for (const struct cr_kernel *row = rows; row->name; row++) {
        const bool typed = strchr(row->name, '*') != NULL;
        CR_ASSERT(typed || row->math != CR_MATH_DATA);
        if (!typed) append(list, row);
        for (int t = CR_F32; typed && t <= CR_BF16; t++)
            if (row->dtypes >> t & 1) append(list, typed_kernel(list, row, (enum cr_dtype)t));
    }
}

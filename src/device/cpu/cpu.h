/* device/cpu/cpu.h: what the files of the CPU device share; private to src/cpu.
 *
 * Three tables of rows make the device, best first: dnnl.* (oneDNN, when built in), cpu.* (ours, tuned), ref.* (ours,
 * plain loops, the truth). graph/ops.def demands a ref row for every op: leave one out and the link fails.
 *
 * Laws
 *   - A row works with cr_cpu_threads(device) threads and gives the same bits for the same number of threads; a ref row
 *     gives the same bits for any number.
 *   - Threads come from OpenMP. Without it the macros below vanish and everything runs on the caller's thread. */
#ifndef CR_CPU_H
#define CR_CPU_H

#include "device/device.h"

enum { CR_CPU_KERNELS_MAX = 256, CR_CPU_ALIGN = 64 };

struct cpu_device {
    struct cr_device base;    /* first: a cr_device pointer is a cpu_device pointer */
    int              threads; /* at least 1 */
    const struct cr_kernel
        *kernels[CR_CPU_KERNELS_MAX + 1]; /* base.rows: dnnl, cpu, ref; only ref with options.ref_only */
    /* Engine and stream of oneDNN, made by its rows when they are first prepared; closed with the device. */
    void *dnnl;
    void (*dnnl_close)(void *dnnl);
};

static inline struct cpu_device *cpu_of(struct cr_device *device) {
    return (struct cpu_device *)device;
}
static inline int cr_cpu_threads(const struct cr_device *device) {
    return ((const struct cpu_device *)device)->threads;
}

/* ---- tables of rows; each ends with NULL ---- */

extern const struct cr_kernel *const cr_cpu_ref_kernels[];
extern const struct cr_kernel *const cr_cpu_fast_kernels[];
#ifdef CR_WITH_ONEDNN
extern const struct cr_kernel *const cr_cpu_dnnl_kernels[];
#endif
/* Puts the device's rows into device->kernels. */
void cr_cpu_collect_kernels(struct cpu_device *device);

extern const struct cr_pool cr_cpu_pools[]; /* device/cpu/allocators.c */
/* device/cpu/tuned/sparse_kernels.c */
int64_t cr_cpu_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* device/cpu/spdnn.c */
cr_status cr_cpu_spdnn(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                       const struct cr_spdnn_options *options, struct cr_spdnn_result *out);

#define OP(op, what) cr_status cr_ref_##op(struct cr_device *device, const struct cr_call *call);
#include "graph/ops.def"
/* Scratch memory that an op's reference row wants. */
cr_status cr_ref_prepare(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                         void **prepared, size_t *workspace_bytes);

/* What an update leaves in the device-owned state (CR_STATE_*): counters, the non-finite flag, a moving loss scale. */
void cr_cpu_count_update(double *state, bool good, const struct cr_sgd_attr *attr);

/* Does the op use only what the tuned rows and oneDNN's know? Fused slots are for other devices and for the ref rows.
 */
bool cr_cpu_supports(const struct cr_op *op);

/* Is cpu.conv3 the fastest row for this convolution (or gradient of one) on this machine? oneDNN's rows then stand
 * back. */
bool cr_cpu_conv3_is_best(const struct cr_program *program, const struct cr_op *op);

/* ---- threads and vectors ---- */

#ifdef _OPENMP
#define CR_OMP_(text) _Pragma(#text)
/* Spreads the `for` that follows over the device's threads in equal runs: CR_PARALLEL_FOR(cr_cpu_threads(device)). */
#define CR_PARALLEL_FOR(count) CR_OMP_(omp parallel for schedule(static) num_threads(count))
/* The turns of the `for` that follows do not depend on each other and may share vector instructions. */
#define CR_SIMD CR_OMP_(omp simd)
#else
#define CR_PARALLEL_FOR(count) (void)(count);
#define CR_SIMD
#endif

/* CR_CLONES: the function is compiled for several vector widths and the best is taken at load time, so that a plain
 * x86-64 build runs well everywhere. Not under sanitizers and not with clang: the resolvers run before an instrumented
 * program is ready for them. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&                           \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CR_CLONES
#endif

#endif

/* device/cpu/cpu.h: declarations that the files of the CPU device share; private to device/cpu/.
 *
 * The device has three tables of kernels, best first: dnnl.* (oneDNN, if built in), cpu.* (tuned kernels of this
 * project) and ref.* (plain loops in FP64, the reference). Every op of graph/ops.def must have a ref kernel; linking
 * fails otherwise.
 *
 * Invariants
 *   - A kernel uses cr_cpu_threads(device) threads. Its results are bitwise identical for the same number of threads.
 *     The results of a ref kernel are bitwise identical for any number of threads.
 *   - Threads come from OpenMP. Without OpenMP the macros below are empty and everything runs on the caller's thread.
 */
#ifndef CR_CPU_H
#define CR_CPU_H

#include "core/cpu.h"
#include "device/device.h"
#include "device/kernel.h"

enum { CR_CPU_ALIGN = 64 };

struct cpu_device {
    struct cr_device      base;    /* first member, so that a cr_device pointer converts to a cpu_device pointer */
    int                   threads; /* at least 1 */
    struct cr_kernel_list kernels; /* dnnl, cpu, ref; only ref with options.ref_only */
    /* Engine and stream of oneDNN; created when the first oneDNN kernel is prepared, closed with the device. */
    void *dnnl;
    void (*dnnl_close)(void *dnnl);
};

static inline struct cpu_device *cpu_of(struct cr_device *device) {
    return (struct cpu_device *)device;
}
static inline int cr_cpu_threads(const struct cr_device *device) {
    return ((const struct cpu_device *)device)->threads;
}

/* ---- tables of kernels ---- */

extern const struct cr_kernel cr_cpu_ref_kernels[]; /* device/cpu/registry.c */
/* device/cpu/tuned/, device/cpu/tuned/int8/, device/cpu/onednn/ */
extern const struct cr_kernel cr_cpu_bn_kernels[], cr_cpu_bn_apply_kernels[], cr_cpu_pointwise_kernels[],
    cr_cpu_drop_kernels[], cr_cpu_pool_kernels[], cr_cpu_optim_kernels[], cr_cpu_muon_kernels[], cr_cpu_dense_kernels[],
    cr_cpu_conv_kernels[], cr_cpu_conv_wgrad_kernels[], cr_cpu_conv3_kernels[], cr_cpu_conv3_wgrad_kernels[],
    cr_cpu_sparse_kernels[];
extern const struct cr_kernel cr_cpu_conv_bf16_kernels[], cr_cpu_conv_wgrad_bf16_kernels[]; /* with CR_CPU_AMX_BF16 */
extern const struct cr_kernel cr_cpu_quant_kernels[], cr_cpu_qconv_kernels[];
#ifdef CR_WITH_ONEDNN
extern const struct cr_kernel cr_cpu_dnnl_kernels[];
extern const struct cr_kernel cr_cpu_dnnl_int8_kernels[]; /* only with cr_cpu_dnnl_is_best_int8 */
#endif
/* device/cpu/device.c: give memory to the pages that lie wholly in this range, with one call instead of an interrupt at
 * the first write to each, or take it from them; their contents are then zeros. Both are hints. */
void cr_cpu_populate_pages(void *begin, size_t bytes);
void cr_cpu_drop_pages(void *begin, size_t bytes);
/* Fills device->kernels. */
void cr_cpu_collect_kernels(struct cpu_device *device);

extern const struct cr_backend cr_backend_cpu; /* device/cpu/device.c; others get it from cr_backends */
/* device/cpu/tuned/sparse_kernels.c */
int64_t cr_cpu_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* Bytes of the packed filter of a qconv: device/cpu/onednn/dnnl_qconv.c (0: no layout of its own; -1: oneDNN does not
 * compute this op here), and device/cpu/tuned/int8/qconv.c. */
int64_t cr_cpu_qconv_packed_bytes(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* Limits oneDNN to the level in use if that is lower than the processor's. Must come before oneDNN's first use. */
void cr_cpu_dnnl_lower(void);
/* Returns whether oneDNN's 8-bit convolutions are exact sums, and faster than cpu.qconv, on this processor. */
bool    cr_cpu_dnnl_is_best_int8(void);
int64_t cr_cpu_qconv_own_bytes(const struct cr_program *program, const struct cr_op *op);

#define OP(op, what) cr_status cr_ref_##op(struct cr_device *device, const struct cr_call *call);
#include "graph/ops.def"
/* cr_kernel.workspace of all ref kernels. */
size_t cr_ref_workspace(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);

/* device/cpu/reference/ref_optim.c: updates the state buffer (CR_STATE_*) after an optimizer step: counters, the
 * non-finite flag, the loss scale. `good`: the parameters were updated. */
void cr_cpu_count_update(double *state, bool good, const struct cr_sgd_attr *attr);

/* Returns whether cpu.conv3 is the fastest kernel for this convolution (or gradient) on this machine, apart from bias,
 * add and ReLU, which it does not implement. */
bool cr_cpu_conv3_is_best(const struct cr_program *program, const struct cr_op *op);

/* ---- functions of kernels; not all use each of their arguments ---- */

#define CR_UNUSED __attribute__((unused))
/* cr_kernel.launch of a kernel that cannot fail. */
#define CR_CPU_LAUNCH(name) CR_CPU_LAUNCH_(static, name)
#define CR_CPU_LAUNCH_(linkage, name)                                                                                  \
    static void       name##_run_(struct cr_device *device, const struct cr_call *call);                               \
    linkage cr_status name(struct cr_device *device, const struct cr_call *call) {                                     \
        name##_run_(device, call);                                                                                     \
        return CR_OK;                                                                                                  \
    }                                                                                                                  \
    static void name##_run_(CR_UNUSED struct cr_device *device, CR_UNUSED const struct cr_call *call)
/* cr_kernel.accepts, and cr_kernel.workspace. */
#define CR_CPU_ACCEPTS(name) static inline bool name CR_CPU_OP_
#define CR_CPU_WORKSPACE(name) static size_t name CR_CPU_OP_
#define CR_CPU_OP_                                                                                                     \
    (CR_UNUSED const struct cr_device *device, CR_UNUSED const struct cr_program *p, CR_UNUSED const struct cr_op *op)

/* ---- threads and vectors ---- */

typedef float f32x16 __attribute__((vector_size(64), aligned(4), may_alias)); /* 16 floats at any address */

#ifdef _OPENMP
#define CR_OMP_(text) _Pragma(#text)
/* Divides the iterations of the following `for` equally among threads. */
#define CR_PARALLEL_FOR(count) CR_OMP_(omp parallel for schedule(static) num_threads(count))
/* The iterations of the following `for` are independent and may use vector instructions. */
#define CR_SIMD CR_OMP_(omp simd)
#else
#define CR_PARALLEL_FOR(count) (void)(count);
#define CR_SIMD
#endif

/* The smallest multiple of `unit` from `n` on. */
static inline int64_t cr_rounded_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* for (type i = 0; i < count; i++), whose iterations are divided equally among threads: */
#define CR_PARALLEL_BY(threads, type, i, count) CR_PARALLEL_FOR(threads) for (type i = 0; i < (count); i++)
/* among those of `device`, */
#define CR_PARALLEL(i, count) CR_PARALLEL_BY(cr_cpu_threads(device), int64_t, i, count)
/* or one iteration for each thread. */
#define CR_THREADS(t, threads) CR_PARALLEL_BY(threads, int, t, threads)

/* device/cpu/reference/ref_mix.c: what the network sees of a batch before it is normalised: crops, flips, erased
 * rectangles, mixed images. `cresnet data show` draws it. */
enum { CR_MIXING_CHANNELS = 4 };
struct cr_mixing {
    const void    *images; /* [N][H][W][C] uint8_t, or with `wide` uint16_t */
    const int32_t *boxes;  /* [N][4] */
    const int32_t *mixes;  /* [N][CR_MIX_NUMBERS] */
    int64_t        N, H, W, C;
    bool           wide;
    int64_t        fill[CR_MIXING_CHANNELS]; /* of erased rectangles */
};
/* Writes row h of image n into its place of y, which is laid out as `images`. */
void cr_ref_mix_row(const struct cr_mixing *m, int64_t n, int64_t h, void *y);

#endif

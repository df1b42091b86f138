/* compiler/cost_model.h: what the passes know about a device: kernels, times, bandwidth. A pass sees a device as a
 * struct cr_cost_model only, so a test can pass a cost model without a device.
 *
 * Units: seconds, bytes, bytes per second, unless a comment names another unit. */
#ifndef CR_COST_MODEL_H
#define CR_COST_MODEL_H

#include "graph/graph.h"

/* What the kernels of a device say about an op: the same whether times are measured or computed. Each callback gets
 * `self`; NULL: see its comment. */
struct cr_device_view {
    void *self;
    /* Length in f32 elements of the packed weights of a sparse convolution in the op's weight format; 0 when the format
     * does not suit the op. For qconv: length in bytes of the packed filter; 0 when the device's kernel reads the
     * filter itself. NULL: the device has no such kernels. */
    int64_t (*packed_elems)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Estimated seconds of a sparse convolution in the op's weight format; 0 when unknown. A format whose estimate
     * exceeds CR_ESTIMATE_MARGIN times the best known time is not measured. NULL: no format has an estimate. */
    double (*estimate)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Appends a readable name of the op's weight format to `out`; appends nothing to a format that has a number only.
     * NULL: no format has a name. */
    void (*algo_name)(void *self, const struct cr_program *program, const struct cr_op *op, struct cr_text *out);
    /* Returns what the op's kernel states about itself. NULL: nothing. */
    struct cr_kernel_traits (*traits)(void *self, const struct cr_op *op);
    /* Number of rows in which the op's kernel can store sums: see struct cr_kernel. NULL: CR_NONE. */
    int (*sum_rows)(void *self, const struct cr_program *program, const struct cr_op *op);
};

/* Rates, factors and costs of a device. The owner keeps `self` alive while a pass runs. Each callback gets `self`.
 * A callback may be NULL; the comment of the callback says what the passes assume then. */
struct cr_cost_model {
    struct cr_device_view device;
    void                 *self;
    size_t                alignment;                /* bytes; each planned offset is a multiple */
    double                bytes_per_s, flops_per_s; /* roofline: device memory bandwidth, arithmetic; 0 when unknown */

    /* Copies between device and host memory. The rates hold while copies run in both directions at once and no kernel
     * runs. A rate of 0: the device cannot offload. */
    double to_host_bytes_per_s, to_device_bytes_per_s;
    double copy_latency_s;       /* fixed time of each copy */
    double duplex_speedup;       /* speedup of a copy while the other direction is idle; clamped to 1 ... 2 */
    double host_memory_overhead; /* bytes of device memory per byte of the HOST region; counted against a limit */
    double loaded_copy_slowdown; /* slowdown of a copy to the host while kernels run; values below 1 count as 1 */
    double contention_out, contention_in; /* slowdown of a memory-bound kernel while a copy to the host (out) or to the
                                             device (in) runs, as a fraction: 0.1 means 10 % longer */

    bool   concurrent_kernels; /* kernels of CR_STREAM_SIDE run while those of CR_STREAM_COMPUTE run */
    double sparse_density_max; /* see cr_device_caps in device/device.h */

    /* Returns true when a kernel exists for the op. NULL: every op is accepted. */
    bool (*accepts)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Sets op->kernel and op->algo to the fastest kernel and *workspace to the bytes that the kernel needs. Returns
     * CR_ERR_DEVICE when no kernel exists; the message names op, layer, shapes and type. NULL: kernel 0, no workspace.
     */
    cr_status (*select)(void *self, const struct cr_program *program, struct cr_op *op, size_t *workspace);
    /* Seconds of the fastest kernel for an accepted op; may measure. The op's tensors are in the program; the op itself
     * need not be. NULL: the passes use the roofline (cr_op_seconds). */
    cr_status (*cost)(void *self, const struct cr_program *program, const struct cr_op *op, double *seconds);
};

/* Returns whether a kernel exists for the op. */
static inline bool cr_accepts(const struct cr_cost_model *cost_model, const struct cr_program *program,
                              const struct cr_op *op) {
    return !cost_model->accepts || cost_model->accepts(cost_model->self, program, op);
}
/* Roofline time of one op: the longer of its memory traffic and its arithmetic. For offload and prefetch: the
 * time of the copy alone. */
double cr_op_seconds(const struct cr_cost_model *cost_model, const struct cr_program *program, const struct cr_op *op);

#endif

/* device/device.h: the interface between the compiler and a device: memory regions, copies and a table of kernels.
 *
 * Terms
 *   - A backend (struct cr_backend) is a kind of device: "cpu" or "cuda". A device (struct cr_device) is one opened CPU
 *     or GPU. All state belongs to the device; there are no globals.
 *   - A kernel (struct cr_kernel) implements one op kind. It states which ops it supports (accepts) and runs them
 *     (launch). An algorithm (op->algo) is one of several implementations within a kernel, for example a cuDNN engine
 *     or a tile configuration.
 *   - A stream is a queue of work of the device: one for compute and one for each direction of copies. Work in one
 *     stream runs in order. Events order work of different streams.
 *
 * Invariants
 *   - The kernels of an op kind are listed best first. The `ref.*` kernels of the CPU accept every op in f32 and f64.
 *     All other kernels are tested against them.
 *   - launch only enqueues work on the stream of its op. It does not allocate and does not wait, so that a whole
 *     program can be captured into a graph. A condition that accepts or prepare can test must not make launch fail.
 *   - There is no fallback to another device: compilation fails when no kernel accepts an op.
 *
 * All functions that return cr_status return CR_OK on success and set the message of cr_error_message otherwise. Memory
 * sizes are in bytes and times in seconds unless a name says otherwise. Shapes are [N, H, W, C] for images and
 * [K, R, S, C] for filters. This header depends on graph/graph.h and core/ only. */
#ifndef CR_DEVICE_H
#define CR_DEVICE_H

#include "graph/graph.h"

/* Values that the host sets before each step and that kernels read while they run. */
struct cr_step_block {
    float    lr, momentum, weight_decay;
    float    clip_norm; /* largest norm of the gradient; 0 disables clipping */
    int64_t  step;
    uint64_t seed;
};

/* Arithmetic of a kernel. It decides the tolerance of the comparison with the reference (verification/verify.h).
 * CR_MATH_EXACT: the kernel only moves values or computes integers. */
enum cr_math { CR_MATH_F32, CR_MATH_F64, CR_MATH_TF32, CR_MATH_BF16, CR_MATH_F16, CR_MATH_EXACT };

/* Deviations from the definition of an op that kernels of libraries make. Kernels of this project make none.
 * verification/verify.h allows exactly the deviations that a kernel declares. */
enum cr_relaxation {
    CR_RELAXED_HALF_BIAS     = 1 << 0, /* the bias is rounded to the type of the program before it is added */
    CR_RELAXED_ROUNDED_SUM   = 1 << 1, /* the sum of products is rounded to that type before `add` is added */
    CR_RELAXED_ZERO_GRADIENT = 1 << 2, /* the gradient passes a ReLU whose pre-activation is exactly 0 or NaN */
    CR_RELAXED_NAN_RELU      = 1 << 3  /* a ReLU of NaN gives 0 */
};

struct cr_device;

/* Arguments of one launch. Pointers are device addresses, indexed by the slots of graph/ops.def; an absent operand is
 * NULL. */
struct cr_call {
    const struct cr_program    *program;
    const struct cr_op         *op;
    const void                 *in[CR_OP_IN_MAX];
    void                       *out[CR_OP_OUT_MAX];
    void                       *workspace; /* scratch memory of the size that prepare returned, for this launch only */
    void                       *prepared;  /* result of prepare; NULL when the kernel has no prepare */
    const struct cr_step_block *step; /* host memory; a kernel of a GPU reads the copy that set_step made instead */
};

/* A kernel: one implementation of one op kind. All instances are constants with static lifetime. */
struct cr_kernel {
    const char     *name; /* "dnnl.conv": printed by plan and profile, stored with kernel times */
    enum cr_op_kind op;
    enum cr_math    math;
    bool            deterministic; /* two runs with the same number of threads are bitwise identical */
    unsigned        relaxations;   /* bits of enum cr_relaxation */
    bool            collective;    /* accepts only ops of several ranks; tests with several ranks verify it */
    bool            sparse;        /* accepts exactly the convolutions with a sparsity pattern */
    bool            reference;     /* defines the op: accepts every op of its kind in f32 and f64; named ref.* */
    bool            sparse_cores;  /* uses sparse tensor cores: see cr_cost_table_has_lasting_effect */
    unsigned        host_slots;    /* bit s is set when input s may lie in the HOST region (each value is read once) */

    /* Returns whether the kernel supports this op: shapes, types, attributes, absent slots. NULL: every op of `op`. */
    bool (*accepts)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Returns the number of algorithms for this accepted op, at least 1. Algorithms are listed in the kernel's own
     * order of preference; op->algo in [0, count) selects one. NULL: one algorithm. */
    int (*algo_count)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Appends a short name of the op's algorithm or weight format to `out`: "mma_sp 2x3/2". NULL: they have numbers
     * only. */
    void (*algo_name)(const struct cr_op *op, struct cr_text *out);
    /* Returns an estimate of the seconds that this accepted op takes, computed on the host, or 0 when there is no
     * estimate. For a good algorithm the estimate is at most CR_ESTIMATE_MARGIN times the measured time. So a candidate
     * whose estimate is more than CR_ESTIMATE_MARGIN times the time of another one is pruned: it is not prepared and
     * not measured. NULL: no estimates. */
    double (*estimate)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Prepares the op for launches: creates descriptors, selects the algorithm op->algo and allocates device memory
     * that the op needs in addition to its tensors. *prepared receives an object that `release` frees.
     * *workspace_bytes receives the size of the scratch memory, which the caller provides with the alignment of
     * tensors. CR_ERR_MEMORY when an allocation fails; CR_ERR_DEVICE when the library fails. NULL: nothing to prepare,
     * no workspace. */
    cr_status (*prepare)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                         void **prepared, size_t *workspace_bytes);
    /* Enqueues the op on its stream. CR_ERR_DEVICE when the device reports an error. */
    cr_status (*launch)(struct cr_device *device, const struct cr_call *call);
    /* Frees what prepare returned; accepts NULL. NULL when prepare is NULL. */
    void (*release)(void *prepared);
};

/* The first members of a deterministic kernel. `kind` is the op kind without CR_OP_. */
#define CR_KERNEL(kernel_name, kind, kernel_math)                                                                      \
    .name = kernel_name, .op = CR_OP_##kind, .math = kernel_math, .deterministic = true

struct cr_comm; /* comm/comm.h */

/* Options of cr_device_open. */
struct cr_device_options {
    int               threads;       /* CPU: number of threads; 0 uses all processors that the process may use */
    bool              deterministic; /* select only deterministic kernels */
    bool              ref_only;      /* CPU: only the ref.* kernels, for verify and tests */
    bool              tf32;        /* GPU: convolutions and matrix products of f32 tensors may round operands to TF32 */
    int               index;       /* GPU: index among the GPUs of this host */
    struct cr_comm   *comm;        /* the other ranks, for all_reduce; NULL for one rank. It must outlive the device */
    int               comm_blocks; /* GPU: maximum of thread blocks of a collective; 0 lets the library choose */
    enum cr_transport transport;   /* GPU: how gradients are exchanged with the other ranks */
};

/* Properties of a device that the compiler's cost model uses. */
struct cr_device_caps {
    size_t alignment;                   /* of tensors, bytes */
    double bytes_per_s;                 /* memory bandwidth that kernels reach */
    double flops_per_s;                 /* highest arithmetic rate that kernels reach: 16-bit on a GPU */
    double f32_fraction, tf32_fraction; /* rate of F32 and TF32 kernels as a fraction of flops_per_s, in (0, 1] */
    bool   typical_rates;               /* the two rates are not those of this machine: they only order alternatives */
    bool   half;                        /* there are kernels for 16-bit programs */
    /* Largest density of a convolution (nonzeros / weights) at which CR_SPARSE_ROWS is expected to be faster than
     * dense kernels, for filters larger than 1x1. Used where kernel times are not measured; 0 means never. */
    double sparse_density_max;
    /* Copies between host and device while the device computes: rate of each direction when both are busy, and the
     * fixed time of one copy. The values are estimates; autotune/cost_table.h measures them. All are 0 when the device
     * has no copy streams. */
    double to_host_bytes_per_s, to_device_bytes_per_s, copy_latency_s;
    double duplex_speedup; /* factor by which a copy is faster while the other direction is idle, at least 1 */
    /* Estimate of the device memory that libraries, loaded kernels and graphs occupy, without the driver's context.
     * 0 when the device has no memory of its own. */
    size_t overhead_bytes;
    double host_memory_overhead; /* bytes of device memory (page tables) for each byte of the HOST region */
    bool   host_memory;          /* device memory is host memory: every kernel may read the HOST region */
    char   text[160];            /* description for people: "CPU, 2 threads, oneDNN 2.6.3" */
};

/* Functions of a device that works asynchronously to the host (a GPU). An event is a point in the work of a stream (a
 * CUDA event); a graph is a captured sequence of launches (a CUDA graph). All functions with a stream argument only
 * enqueue. They return CR_ERR_DEVICE when the device reports an error. */
struct cr_async {
    /* Allocates page-locked host memory, zeroed, for put and get; host_release frees it. CR_ERR_MEMORY when there is
     * not enough. */
    cr_status (*host_reserve)(struct cr_device *device, size_t bytes, void **out);
    void (*host_release)(struct cr_device *device, void *host);

    /* Copy from the host, to the host and within the device. `host` must come from host_reserve and stays in use until
     * the stream has finished the copy. */
    cr_status (*put)(struct cr_device *device, enum cr_stream stream, void *dst, const void *host, size_t bytes);
    cr_status (*get)(struct cr_device *device, enum cr_stream stream, void *host, const void *src, size_t bytes);
    cr_status (*move)(struct cr_device *device, enum cr_stream stream, void *dst, const void *src, size_t bytes);
    /* Copies `pieces` small arrays to the host with one launch. host, src and bytes have `pieces` elements; each
     * bytes[i] is a multiple of 4. */
    cr_status (*get_small)(struct cr_device *device, enum cr_stream stream, void *const *host, const void *const *src,
                           const size_t *bytes, int pieces);

    /* fill sets each of `bytes` bytes to `byte`. delay, for tests, keeps the stream busy for about `ns` nanoseconds. */
    cr_status (*fill)(struct cr_device *device, enum cr_stream stream, void *dst, int byte, size_t bytes);
    cr_status (*delay)(struct cr_device *device, enum cr_stream stream, int64_t ns);

    cr_status (*event_create)(struct cr_device *device, void **event);
    void (*event_destroy)(struct cr_device *device, void *event); /* accepts NULL */
    cr_status (*event_record)(struct cr_device *device, enum cr_stream stream, void *event);
    /* As event_record, for an event that work outside the captured graph waits for: each graph launch records it. */
    cr_status (*event_record_external)(struct cr_device *device, enum cr_stream stream, void *event);
    /* Later work of the stream waits for the event. An event that was never recorded does not block. */
    cr_status (*stream_wait_event)(struct cr_device *device, enum cr_stream stream, void *event);
    /* Later work of the stream waits for the work that `foreign` has so far, a stream of the caller (cudaStream_t) of
     * the same device; NULL is the default stream. */
    cr_status (*wait_for_foreign)(struct cr_device *device, enum cr_stream stream, void *foreign);
    /* Blocks the host until the event has been reached. */
    cr_status (*host_wait)(struct cr_device *device, void *event);
    /* Seconds between two events, both recorded and reached. */
    cr_status (*elapsed)(struct cr_device *device, void *from, void *to, double *seconds);

    /* Between capture_begin and capture_end launches are captured instead of run. Other streams take part as far as
     * events connect them to the compute stream. capture_end returns the graph; graph_destroy frees it. */
    cr_status (*capture_begin)(struct cr_device *device);
    cr_status (*capture_end)(struct cr_device *device, void **graph);
    cr_status (*graph_launch)(struct cr_device *device, void *graph); /* on the compute stream */
    void (*graph_destroy)(struct cr_device *device, void *graph);     /* accepts NULL */

    /* Begins and ends a named range of host work in the timeline of a profiler (NVTX). Ranges nest. */
    void (*range_push)(const char *name);
    void (*range_pop)(void);
};

struct cr_gpu;
struct cr_benchmarks;

/* A kind of device. */
struct cr_backend {
    const char *name; /* "cpu", "cuda" */

    /* Returns whether a device of this kind can be used. If not, *why receives a static text that says what is missing;
     * otherwise *why is NULL. */
    bool (*available)(const char **why);
    int (*count)(void); /* number of devices of an available kind; NULL: 1 */
    /* Opens a device; close frees it. CR_ERR_DEVICE when the device cannot be used. */
    cr_status (*open)(const struct cr_device_options *options, struct cr_device **out);
    void (*close)(struct cr_device *device);

    /* Allocates a memory region, zeroed and aligned to 256 bytes; release frees it. CR_ERR_MEMORY when there is not
     * enough. */
    cr_status (*reserve)(struct cr_device *device, size_t bytes, void **out);
    void (*release)(struct cr_device *device, void *region);
    /* With several ranks: share lets all ranks read and write this region of each other; all ranks must call it.
     * unshare ends the sharing and waits for the other ranks. It must be called before the region is released, also
     * when share failed or was not called. A rank that stops after an error aborts its comm first. Both are NULL when
     * the device has no use for sharing. */
    cr_status (*share)(struct cr_device *device, void *region);
    void (*unshare)(struct cr_device *device);
    /* Synchronous copies to and from the device: they return when `host` may be reused or has been filled. */
    cr_status (*put)(struct cr_device *device, void *dst, const void *host, size_t bytes);
    cr_status (*get)(struct cr_device *device, void *host, const void *src, size_t bytes);
    /* Waits for the work of all streams and reports errors of earlier launches. */
    cr_status (*sync)(struct cr_device *device);
    /* Bytes that can still be reserved; 0 when unknown. */
    size_t (*memory_free)(struct cr_device *device);
    /* Measures caps.overhead_bytes as far as possible before programs are compiled: loads libraries and counts the
     * buffers of the transport between ranks. NULL: callers use caps.overhead_bytes. */
    size_t (*memory_overhead)(struct cr_device *device);
    /* Copies the step block to the memory that kernels read, in order with the compute stream. NULL: kernels read
     * call->step. */
    cr_status (*set_step)(struct cr_device *device, const struct cr_step_block *step);
    /* NULL: a launch is complete when it returns, and copies cannot overlap with compute. */
    const struct cr_async *async;
    /* Initialises the value and running buffers of the parameter store at `region` (weights by He initialisation). On a
     * GPU this needs no host memory. */
    cr_status (*init_store)(struct cr_device *device, const struct cr_param_store *store,
                            const struct cr_config *config, void *region);
    const struct cr_benchmarks *benchmarks; /* device/benchmarks.h; NULL: none */
    /* Returns the number of f32 elements that the packed nonzeros of a sparse convolution occupy in the op's weight
     * format (attr.conv.pattern.format), or 0 when the device does not support the format for this convolution. NULL:
     * the device has no sparse kernels. */
    int64_t (*packed_elems)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Opens an offline device: see cr_gpu_open_offline. CR_ERR_DEVICE when this machine or build lacks something; the
     * message names it. NULL: not supported. */
    cr_status (*open_offline)(const struct cr_gpu *gpu, const struct cr_device_options *options,
                              struct cr_device **out);
};

/* An open device. The device structure of every backend begins with this one. */
struct cr_device {
    const struct cr_backend       *backend;
    const struct cr_kernel *const *kernels; /* best first within an op kind; ends with NULL */
    struct cr_device_options       options;
    struct cr_device_caps          caps;
    size_t                         free_at_start; /* free device memory before anything was reserved; 0 when unknown */
};

/* Device memory that programs do not count.
 * CR_GPU_OVERHEAD_BYTES: CUDA, cuDNN, cuBLAS, loaded kernels and a graph on one GPU; 90 to 106 MiB for all networks
 * tried on an H200 with CUDA 13.0.
 * CR_GPU_HOST_PAGES: bytes of page-locked memory for each byte of page tables on the GPU (8 bytes for 4 KiB).
 * CR_GPU_NCCL_BYTES: NCCL in plans for several ranks; 850 MiB were measured between two H200s. */
enum { CR_GPU_OVERHEAD_BYTES = 112 << 20, CR_GPU_HOST_PAGES = 512, CR_GPU_NCCL_BYTES = 864 << 20 };

extern const struct cr_backend cr_backend_cpu;

/* All backends of this build, best first; ends with NULL. */
const struct cr_backend *const *cr_backends(void);

/* ---- offline devices: GPUs that are not in this machine, for plans (device/gpu_specs.c) ---- */

/* A GPU by its data sheet. Rates are those that large dense kernels reach. */
struct cr_gpu {
    const char *name;                        /* value of --target: "h200" */
    const char *text;                        /* "NVIDIA H200" */
    int         cc;                          /* compute capability times 10: 90 for 9.0 */
    int         multiprocessors;             /* number of streaming multiprocessors */
    size_t      memory_bytes;                /* as the driver reports it */
    double      bytes_per_s;                 /* memory bandwidth */
    double      flops_per_s;                 /* dense 16-bit matrix products with sums in f32 */
    double      f32_fraction, tf32_fraction; /* rates in F32 and TF32 as a fraction of flops_per_s */
    double      copy_bytes_per_s;            /* copies from or to page-locked host memory, each direction */
};
/* Returns the GPU of this name, or NULL. */
const struct cr_gpu *cr_gpu_find(const char *name);
/* Appends all names: "h200, h100, ...". */
void cr_gpu_names(struct cr_text *out);
/* Opens a device that can be queried (kernels, accepts, workspace sizes) but cannot reserve memory or launch.
 * *kernels_queried becomes true when the answers come from the kernels that would run on the GPU. It becomes false when
 * this build or machine lacks something that they need; the device is then that of cr_gpu_open_from_list. The process
 * must not open a GPU, before or later: the GPUs of this machine are hidden, because cuDNN's answers depend on them. */
CR_MUST cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                      struct cr_device **out, bool *kernels_queried);
/* As cr_gpu_open_offline, but answers come from a built-in list of supported fusions, and workspace sizes are 0. It
 * works on every machine. `why` says why the kernels cannot be queried; it becomes part of caps.text. */
CR_MUST cr_status cr_gpu_open_from_list(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                        const char *why, struct cr_device **out);

/* ---- opening a device ---- */

/* Checks that a device of the kind that [train] device names is available, without opening one. CR_ERR_DEVICE says what
 * is missing. */
CR_MUST cr_status cr_device_check(enum cr_device_kind kind);
/* Returns the number of devices of this kind; 0 when none can be used (cr_device_check says why). The call initialises
 * the driver: the process must not fork ranks afterwards. */
int cr_device_count(enum cr_device_kind kind);
/* Opens a device; cr_device_close frees it. CR_DEVICE_AUTO opens the first available kind. CR_ERR_DEVICE when no such
 * device is available. */
CR_MUST cr_status cr_device_open(enum cr_device_kind kind, const struct cr_device_options *options,
                                 struct cr_device **out);
void              cr_device_close(struct cr_device *device); /* accepts NULL */

/* FLOP/s that a kernel with this arithmetic can reach. */
double cr_device_flops(const struct cr_device *device, enum cr_math math);

/* ---- finding a kernel ---- */

/* Returns whether input `slot` of the kernel may lie in the HOST region. */
bool cr_kernel_reads_host(const struct cr_device *device, const struct cr_kernel *kernel, int slot);
/* Returns whether the kernel supports the op, including its sparsity pattern and the regions of its inputs. */
bool cr_kernel_accepts(const struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *program,
                       const struct cr_op *op);
/* Returns the first kernel at index `from` or later that accepts the op (and is deterministic if the device must be),
 * or NULL. *index receives its index in device->kernels. */
const struct cr_kernel *cr_kernel_find(const struct cr_device *device, const struct cr_program *program,
                                       const struct cr_op *op, int from, int *index);

#endif

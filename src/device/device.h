/* device/device.h: the interface between the compiler and a device: memory regions, copies and a table of kernels.
 *
 * Terms
 *   - A backend (struct cr_backend) is a kind of device: "cpu" or "cuda". A device (struct cr_device) is one opened CPU
 *     or GPU. All state belongs to the device; there are no globals. Its kernels: device/kernel.h.
 *   - A stream is a queue of work of the device: one for compute and one for each direction of copies. Work in one
 *     stream runs in order. Events order work of different streams.
 *
 * Invariant: there is no fallback to another device: compilation fails when no kernel accepts an op.
 *
 * All functions that return cr_status return CR_OK on success and set the message of cr_error_message otherwise. Memory
 * sizes are in bytes and times in seconds unless a name says otherwise. Shapes are [N, H, W, C] for images and
 * [K, R, S, C] for filters. This header depends on graph/graph.h and core/ only. */
#ifndef CR_DEVICE_H
#define CR_DEVICE_H

#include "config/config.h"
#include "graph/graph.h"

struct cr_comm; /* comm/comm.h */
struct cr_device;

/* Options of cr_device_open. */
struct cr_device_options {
    int               threads;       /* CPU: number of threads; 0 uses all processors that the process may use */
    bool              deterministic; /* select only deterministic kernels */
    bool              ref_only;      /* CPU: only the ref.* kernels, for verify and tests */
    bool              tf32;        /* GPU: convolutions and matrix products of f32 tensors may round operands to TF32 */
    bool              bf16;        /* CPU: convolutions of f32 tensors round operands to bf16, if caps.bf16_products */
    int               index;       /* GPU: index among the GPUs of this host */
    struct cr_comm   *comm;        /* the other ranks, for all_reduce; NULL for one rank. It must outlive the device */
    int               comm_blocks; /* GPU: maximum of thread blocks of a collective; 0 lets the library choose */
    size_t            card_bytes;  /* memory that the device seems to have, its context included; 0: as it is */
    enum cr_transport transport;   /* GPU: how gradients are exchanged with the other ranks */
    const char       *option;      /* that chooses a device, for messages; NULL: "--device " */
};

/* Properties of a device that the compiler's cost model uses. */
struct cr_device_caps {
    size_t alignment;                   /* of tensors, bytes */
    double bytes_per_s;                 /* memory bandwidth that kernels reach */
    double flops_per_s;                 /* highest arithmetic rate that kernels reach: 16-bit on a GPU */
    double f32_fraction, tf32_fraction; /* rate of F32 and TF32 kernels as a fraction of flops_per_s, in (0, 1] */
    bool   typical_rates;               /* the two rates are not those of this machine: they only order alternatives */
    bool   half;                        /* there are kernels for 16-bit programs */
    bool   concurrent_kernels;          /* kernels of several streams run at the same time */
    bool   bf16_products;               /* there are kernels that round operands of f32 tensors to bf16 */
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
    size_t context_bytes;        /* device memory of the driver's context, while the device is not open; else 0 */
    double host_memory_overhead; /* bytes of device memory (page tables) for each byte of the HOST region */
    bool   host_memory;          /* device memory is host memory */
    char   text[160];            /* description for people: "CPU, 2 threads, avx512, oneDNN 2.6.3" */
};

enum { CR_REFERENCE_BLOCKS = 1024 };

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
    /* Copies `pieces` arrays of `bytes` bytes each within the device: src[i] to dst + i * bytes. */
    cr_status (*gather)(struct cr_device *device, enum cr_stream stream, void *dst, const void *const *src, int pieces,
                        size_t bytes);
    /* Copies `pieces` small arrays to the host with one launch. host, src and bytes have `pieces` elements; each
     * bytes[i] is a multiple of 4. */
    cr_status (*get_small)(struct cr_device *device, enum cr_stream stream, void *const *host, const void *const *src,
                           const size_t *bytes, int pieces);

    /* fill sets each of `bytes` bytes to `byte`. delay keeps the stream busy for about `ns` ns, at most for 1 ms. */
    cr_status (*fill)(struct cr_device *device, enum cr_stream stream, void *dst, int byte, size_t bytes);
    cr_status (*delay)(struct cr_device *device, enum cr_stream stream, int64_t ns);
    /* A fixed amount of arithmetic on all multiprocessors, in pieces of the same number of clock cycles. Its time shows
     * whether other processes use the device (autotune/sharing.c). ticks: device memory, [CR_REFERENCE_BLOCKS][3],
     * zeroed before the first launch. Each launch adds its pieces to the sum of cycles and to the number of pieces, and
     * lowers the cycles of the shortest piece, for each of the first blocks. NULL: the device has no such work. */
    cr_status (*reference_work)(struct cr_device *device, enum cr_stream stream, uint64_t *ticks);

    /* Later work of the stream begins only when all its earlier work is complete. Otherwise a kernel may begin before
     * and read some of its inputs (runtime/launch_overlap.c). NULL: no kernel of the device does so. */
    cr_status (*separate)(struct cr_device *device, enum cr_stream stream);

    cr_status (*event_create)(struct cr_device *device, void **event);
    /* The same for an event that `elapsed` does not get, which takes the device less time. NULL: event_create. */
    cr_status (*event_create_untimed)(struct cr_device *device, void **event);
    void (*event_destroy)(struct cr_device *device, void *event); /* accepts NULL */
    cr_status (*event_record)(struct cr_device *device, enum cr_stream stream, void *event);
    /* As event_record, for an event that work outside the captured graph waits for: each graph launch records it. */
    cr_status (*event_record_external)(struct cr_device *device, enum cr_stream stream, void *event);
    /* Later work of the stream waits for the event. An event that was never recorded does not block. */
    cr_status (*stream_wait_event)(struct cr_device *device, enum cr_stream stream, void *event);
    /* Later work of the stream waits for the work that `foreign` has so far, a stream of the caller (cudaStream_t) of
     * the same device; NULL is the default stream. CR_ERR_CONFIG when it is no such stream. */
    cr_status (*wait_for_foreign)(struct cr_device *device, enum cr_stream stream, void *foreign);
    /* Later work of `foreign` waits for the work that the stream has so far. */
    cr_status (*foreign_waits)(struct cr_device *device, enum cr_stream stream, void *foreign);
    /* Blocks the host until the event has been reached. */
    cr_status (*host_wait)(struct cr_device *device, void *event);
    /* *reached: whether a recorded event has been reached. Does not wait. */
    cr_status (*event_reached)(struct cr_device *device, void *event, bool *reached);
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

struct cr_kernel; /* device/kernel.h */
struct cr_step_block;
struct cr_gpu;      /* device/offline.h */
struct cr_jpeg_ops; /* device/jpeg_decoder.h */

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
    /* Decodes JPEG images. NULL: the device does not. */
    const struct cr_jpeg_ops *jpeg;
    /* Initialises the value and running buffers of the parameter store at `region` (weights by He initialisation). On a
     * GPU this needs no host memory. */
    cr_status (*init_store)(struct cr_device *device, const struct cr_param_store *store,
                            const struct cr_config *config, void *region);
    /* Calls job(context, i) for each i in [0, count), in any order, the CPU on all its threads; returns when all calls
     * have returned. NULL: the kernels of the device have no `complete`. */
    void (*for_each)(struct cr_device *device, int count, void (*job)(void *context, int i), void *context);
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

/* All backends of this build, best first; ends with NULL. */
const struct cr_backend *const *cr_backends(void);

/* device/host_threads.c, for backends: chooses the number of threads on the host (options->threads; 0: as many as
 * OpenMP says, within the cores that this process may use) and sets it for the calling thread: omp_get_max_threads then
 * returns as many as the system can start. Returns 1 without OpenMP. Only the thread that opens a device starts OpenMP
 * threads for it. */
int cr_device_host_threads(const struct cr_device_options *options);

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

#endif

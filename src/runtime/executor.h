/* runtime/executor.h: binds a compiled program to a device (memory regions, addresses, prepared kernels) and runs it
 * repeatedly.
 *
 * Invariants
 *   - cr_exec_open and the first run allocate everything. Later runs do not allocate.
 *   - The programs of a process share the STORE region and one POOL region, whose size is the maximum of their needs.
 *   - On a device with async (a GPU) feed and run return when the work is enqueued. The host prepares the next batch
 *     meanwhile and requests the results later. The first run launches op by op and then captures the launches into a
 *     graph; later runs launch the graph.
 *   - CRESNET_SYNC=1 makes the executor wait after every op, so that an error of the device names its op. No graph is
 *     captured then.
 *
 * Functions return the status of the device when it reports an error: CR_ERR_DEVICE, or CR_ERR_PEER for an error of
 * another rank. */
#ifndef CR_EXECUTOR_H
#define CR_EXECUTOR_H

#include "compiler/cost_model.h"
#include "device/device.h"
#include "device/kernel.h"

/* ---- the device as passes see it: runtime/device_view.c ---- */

/* Returns the cost model of the device with roofline times. It refers to the device and must not outlive it. */
struct cr_cost_model cr_device_cost_model(struct cr_device *device);
/* Returns whether a fusion may create this op: reference kernels do not count unless all kernels are reference
 * kernels. */
bool cr_device_accepts(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* Appends the name of the op's algorithm or weight format by the first kernel that accepts it, if it has one. */
void cr_device_algo_name(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                         struct cr_text *out);
/* Sets op->kernel to the first kernel that accepts the op and op->algo to 0, and returns its workspace size in bytes.
 * CR_ERR_DEVICE when there is none; the message names op, layer and shapes. */
CR_MUST cr_status cr_device_select(struct cr_device *device, const struct cr_program *program, struct cr_op *op,
                                   size_t *workspace);
/* Workspace size in bytes of op->kernel with op->algo. */
CR_MUST cr_status cr_device_workspace(struct cr_device *device, const struct cr_program *program,
                                      const struct cr_op *op, size_t *workspace);

/* ---- memory: runtime/memory_regions.c ---- */

struct cr_feed_ring; /* runtime/feed_ring.c */

/* The memory that the programs of a process share. */
struct cr_memory {
    struct cr_device    *device;
    void                *region[CR_REGIONS]; /* address of each region; the HOST region is page-locked host memory */
    size_t               bytes[CR_REGIONS];
    struct cr_feed_ring *ring; /* slots for batches; NULL: batches are copied directly to the INPUT region */
};
/* Bytes of device memory that cr_memory_open reserves, including the slots for batches. */
size_t cr_memory_need(const struct cr_device *device, const struct cr_param_store *store,
                      const struct cr_program *const *programs, int count);
/* Reserves the memory for `count` planned programs; cr_memory_close releases it. CR_ERR_MEMORY when there is not
 * enough. */
CR_MUST cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_param_store *store,
                                 const struct cr_program *const *programs, int count);
void              cr_memory_close(struct cr_memory *memory);

/* ---- a bound program ---- */

struct cr_exec;
/* Binds a compiled program. The program and the memory must outlive the exec. cr_exec_close waits for its work and
 * frees it. */
CR_MUST cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out);
void              cr_exec_close(struct cr_exec *exec); /* accepts NULL */

/* One batch of a program. All arrays are the caller's. */
struct cr_feed {
    const uint8_t *images; /* u8 [N,H,W,3] */
    const int32_t *labels; /* i32 [N]; NULL: -1 for all */
    const int32_t *boxes;  /* i32 [N,4], ignored by a program without boxes; NULL: 0 for all */
    const int32_t *mixes;  /* i32 [N,CR_MIX_NUMBERS]; NULL: no image is mixed or erased */
    /* True: images is page-locked memory of async->host_reserve, from which the device copies. It must not change until
     * the second feed after this one has returned, or until the device has finished its work. All other arrays, and
     * with false also images, may be reused as soon as the feed has returned. */
    bool in_place;
    /* NULL, or (only with in_place) the GPU decoder that has decoded some of the images: image i comes from the decoder
     * if scan[i].bytes is not 0, else from `images`. scan has one entry for each image, [places]. */
    struct cr_jpeg_decoder    *decoder;
    const struct cr_jpeg_scan *scan;
    int                        places;
};
/* Copies a batch to the INPUT region, in order with the runs. cr_exec_feed is for images in pageable memory, without
 * mixing. */
CR_MUST cr_status cr_exec_feed_batch(struct cr_exec *exec, const struct cr_feed *feed);
CR_MUST cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels,
                               const int32_t *boxes);

/* The next four functions need a device with async. Later feeds and runs wait for the earlier work of `stream`, a
 * stream of the caller (a cudaStream_t; NULL: the default stream). */
CR_MUST cr_status cr_exec_wait_for_foreign(struct cr_exec *exec, void *stream);
/* Later work of `stream` waits for the feeds, runs and copies so far. */
CR_MUST cr_status cr_exec_foreign_waits(struct cr_exec *exec, void *stream);
/* Copies `bytes` bytes of images, at most the images of the program, from the memory of the device, in order with the
 * runs. No image has a label. `images` may be reused after the next wait for a result. */
CR_MUST cr_status cr_exec_feed_from_device(struct cr_exec *exec, const void *images, size_t bytes);
/* The same for `count` images of `bytes` bytes each at different addresses. The array itself may be reused at once. */
CR_MUST cr_status cr_exec_gather_from_device(struct cr_exec *exec, const void *const *images, int count, size_t bytes);

/* Runs the program once. The first program->hoisted ops depend on parameters only; they run in the first run and in the
 * first run after cr_exec_refresh. */
CR_MUST cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step);
/* Call when the parameters have changed, or when another program has used the pool: the results of the hoisted ops are
 * no longer valid. */
void cr_exec_refresh(struct cr_exec *exec);
/* Runs ops first to last (inclusive) without the graph; for verify and profile. */
CR_MUST cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last);
/* Work that a profiler or a test adds around the launch of every op, on the stream of the op. Each function may be NULL
 * and returns the status of the device. */
struct cr_launch_hook {
    cr_status (*before)(void *context, int op); /* after the op's waits, before its launch */
    cr_status (*after)(void *context, int op);  /* after the launch, before the event that other streams wait for */
    cr_status (*end)(void *context);            /* after the last op, when the compute stream waits for all streams */
    void (*close)(void *context);               /* cr_exec_close calls it: frees the context */
    void *context;
    /* The functions add other work in each run: the graph is captured again after so many runs. 0: they do not. */
    int recapture_runs;
};
/* Adds a hook to all later runs; the graph is captured again, with the hook's work. `before` functions run in the order
 * in which the hooks were added, `after` functions in reverse order. On failure the hook is closed. */
CR_MUST cr_status cr_exec_add_hook(struct cr_exec *exec, const struct cr_launch_hook *hook);
/* Runs all ops without the graph and records event before[i] before op i and after[i] after it, on its stream. For
 * profile, on devices with async. The results of this run are not fetched: cr_exec_result does not count it. */
CR_MUST cr_status cr_exec_run_timed(struct cr_exec *exec, const struct cr_step_block *step, void *const *before,
                                    void *const *after);

/* Results of a run: sums over the batch, and the state of the update in training programs. */
struct cr_exec_result {
    double  loss_sum, valid;    /* sum of the losses over the images with a label, and their number */
    double  correct1, correct5; /* number of images whose label is the first / among the first five */
    double  norm_squared;       /* of the gradient without the loss scale */
    double  loss_scale;
    bool    nonfinite; /* a gradient or the loss was not finite: parameters were not updated */
    int64_t skipped;   /* number of updates skipped so far */
};
enum { CR_EXEC_RESULTS = 4 };
/* Number of runs so far. */
int64_t cr_exec_runs(const struct cr_exec *exec);
/* Waits for run number `run` (1 for the first) and returns its results. Only the last CR_EXEC_RESULTS runs are
 * available. */
CR_MUST cr_status cr_exec_result(struct cr_exec *exec, int64_t run, struct cr_exec_result *out);

/* Copies a tensor to the host, or from the host; waits for earlier runs. After a whole run this is useful for tensors
 * in the STORE region and tensors with `keep`; the bytes of other tensors are reused. */
CR_MUST cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host);
/* Copies a tensor in device memory to memory of async->host_reserve after the runs so far, and records `event`. For a
 * device with async. */
CR_MUST cr_status cr_exec_get_later(struct cr_exec *exec, int tensor, void *host, void *event);
/* Copies the first `bytes` bytes of a tensor to other memory of the device, after the runs so far. For a device with
 * async. */
CR_MUST cr_status cr_exec_copy_on_device(struct cr_exec *exec, int tensor, void *to, size_t bytes);
CR_MUST cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host);

/* ---- runtime/feed_ring.c: for the executor ---- */

/* Bytes of the INPUT region after the images, which come first: labels, boxes, mixes. */
size_t cr_feed_small_bytes(const struct cr_program *program);
/* Creates slots for batches of up to `bytes`, of which at most `small_bytes` are no images. *out is NULL on a device
 * without async. cr_feed_close frees them. */
CR_MUST cr_status cr_feed_open(struct cr_device *device, size_t bytes, size_t small_bytes, struct cr_feed_ring **out);
void              cr_feed_close(struct cr_device *device, struct cr_feed_ring *ring);
/* Bytes of device memory that the slots occupy. */
size_t cr_feed_need(const struct cr_device *device, size_t small_bytes);
/* memcpy with several threads for large arrays: one thread copies 256 images of 224 x 224 in 4 ms, and a GPU evaluates
 * them in 5.5 ms. */
void cr_feed_copy(void *to, const void *from, size_t bytes);
/* Waits for the next slot and returns its host memory for all but the images. The copies of the batch before the last
 * one have ended then. images: NULL, or images in pageable memory, which this function copies to page-locked memory of
 * the slot; *images becomes the address of the copy. CR_ERR_MEMORY is possible for the first batches only. */
CR_MUST cr_status cr_feed_slot(struct cr_device *device, struct cr_feed_ring *ring, const void **images, size_t bytes,
                               void **host);
/* Enqueues the copy of page-locked images, or of those that the decoder of `feed` has decoded, and of that slot to
 * `input`, the INPUT region of this program, in order with the runs. */
CR_MUST cr_status cr_feed_send(struct cr_device *device, struct cr_feed_ring *ring, const struct cr_program *program,
                               const void *images, const struct cr_feed *feed, void *input);
/* Creates an event of a device with async, whose time nobody needs. */
CR_MUST cr_status cr_feed_event(struct cr_device *device, void **event);
/* Call after the last op of a program that reads its images: the next batch may overwrite them. */
CR_MUST cr_status cr_feed_consumed(struct cr_device *device, struct cr_feed_ring *ring);

#endif

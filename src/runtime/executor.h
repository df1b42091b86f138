/* runtime/executor.h: a program bound to a device: regions reserved, pointers resolved, kernels prepared; then run,
 * again and again.
 *
 * Laws
 *   - Everything is allocated by open and by the first run; no later run allocates.
 *   - Programs of one run share the store region and one pool region (the maximum of their needs, not the sum).
 *   - On a device that works beside the host (backend->async), feed and run return when the work is enqueued: the host
 *     prepares the next batch meanwhile and asks for results afterwards. The first run launches op by op and records
 * the program; all later ones replay the recording (a CUDA graph).
 *   - CRESNET_SYNC=1 waits after every op, so that a fault names its op; nothing is recorded then. */
#ifndef CR_EXEC_H
#define CR_EXEC_H

#include "compiler/compiler.h"
#include "device/device.h"

/* How passes see this device. The target refers to the device and must not outlive it. */
struct cr_cost_model cr_device_cost_model(struct cr_device *device);
/* Is there a row that the op should be rewritten into? */
bool    cr_device_accepts(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_device_packed_elems(struct cr_device *device, const struct cr_program *program,
                               const struct cr_op *op); /* cr_cost_model.packed_elems */
/* As the first row that takes the op foresees it (cr_kernel.estimate), and calls its way; 0, nothing: it does not say.
 */
double cr_device_estimate(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
void   cr_device_algo_name(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                           struct cr_text *out);
bool   cr_device_reads_host(const struct cr_device *device, const struct cr_op *op,
                            int slot); /* cr_cost_model.reads_host */
/* The first row that takes the op, its own favourite way; CR_ERR_DEVICE names the op when there is none. */
CR_MUST cr_status cr_device_select(struct cr_device *device, const struct cr_program *program, struct cr_op *op,
                                   size_t *workspace);
/* Workspace bytes of the row and way that the op names. */
CR_MUST cr_status cr_device_workspace(struct cr_device *device, const struct cr_program *program,
                                      const struct cr_op *op, size_t *workspace);

struct cr_feed_ring; /* slots that batches travel through: runtime/feed_ring.c */

/* The memory that the programs of a run share. */
struct cr_memory {
    struct cr_device    *device;
    void                *region[CR_REGIONS];
    size_t               bytes[CR_REGIONS];
    struct cr_feed_ring *ring; /* NULL: batches are copied straight into the INPUT region */
};
/* Bytes of device memory that cr_memory_open will take, slots of the ring included. */
size_t cr_memory_need(const struct cr_device *device, const struct cr_param_store *store,
                      const struct cr_program *const *programs, int count);
/* Bytes of the host's memory that it will take for the HOST region. */
size_t            cr_memory_host_need(const struct cr_program *const *programs, int count);
CR_MUST cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_param_store *store,
                                 const struct cr_program *const *programs, int count);
void              cr_memory_close(struct cr_memory *memory);

struct cr_exec;
/* Binds a compiled program. The program and memory must outlive the exec. */
CR_MUST cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out);
void              cr_exec_close(struct cr_exec *exec); /* waits for what is under way; NULL is fine */
/* Brings a batch to the INPUT region, in order with the runs: images u8 [N,H,W,3], labels i32 [N] (NULL: -1), boxes i32
 * [N,4] (NULL: 0; ignored by a program without them). The arrays may be reused at once. */
CR_MUST cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels,
                               const int32_t *boxes);
/* ... and `mixes`, i32 [N,CR_MIX_NUMBERS], of a program that mixes pictures (NULL: nothing is mixed or erased). */
CR_MUST cr_status cr_exec_feed_mixed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels,
                                     const int32_t *boxes, const int32_t *mixes);
/* The store has changed: the next run does the program's first `once` ops again. A new exec's first run does them
 * anyway, and so does a run after another program has used the pool they live in: who runs programs in turn says so. */
void              cr_exec_refresh(struct cr_exec *exec);
CR_MUST cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step);
/* Runs ops [first, last] only, never from the recording; for verify and profile. */
CR_MUST cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last);
/* All ops, never from the recording, with before[i] set in front of op i on its lane and after[i] behind it. For
 * profile, on devices with async. Nothing is fetched: cr_exec_result knows nothing of this run. */
CR_MUST cr_status cr_exec_run_timed(struct cr_exec *exec, const struct cr_step_block *step, void *const *before,
                                    void *const *after);

/* What a run left for the host: sums over the batch, and for programs that update, how that went. */
struct cr_exec_result {
    double  loss_sum, valid, correct1, correct5;
    double  norm_squared, loss_scale;
    bool    nonfinite; /* a gradient or the loss was not finite: no update */
    int64_t skipped;   /* updates suppressed so far */
};
enum { CR_EXEC_RESULTS = 4 };
/* Number of runs so far. The newest CR_EXEC_RESULTS of them can be asked about: run = 1 for the first. Waits for it. */
int64_t           cr_exec_runs(const struct cr_exec *exec);
CR_MUST cr_status cr_exec_result(struct cr_exec *exec, int64_t run, struct cr_exec_result *out);

/* From now on each pool range is filled with NaN bytes when its tensor dies: a result that changes read memory that was
 * no longer its own. On a device with async the device does so, in the compute lane's order, where that lane knows
 * every other one to have left the range (cr_fills_make). For tests. */
CR_MUST cr_status cr_exec_poison(struct cr_exec *exec);
/* From now on, on a device with async, a quarter of the ops begin up to 50 us late, by chance: what order is missing
 * between lanes comes to light. Most runs replay a recording, delays included, as without; every few runs one is
 * launched op by op and recorded anew with other delays. For tests. */
CR_MUST cr_status cr_exec_jitter(struct cr_exec *exec, uint64_t seed);
const char       *cr_exec_kernel_name(const struct cr_exec *exec, int op);
/* Reads a tensor (of the store, or kept) to the host / writes one; waits for the runs before. */
CR_MUST cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host);
CR_MUST cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host);

/* ---- runtime/executor_poison.c, for runtime/executor.c and its tests ---- */

/* A range of the pool that nothing lives in from here on. */
struct cr_fill {
    int    op;           /* of the compute lane; program.ops: at the end, when all lanes are done */
    bool   after_launch; /* behind the op's launch, but before its mark; else in front of it, behind its waits */
    size_t begin, end;   /* bytes of the pool */
};
enum { CR_POISON_BYTE = 0xff }; /* NaN in every type of numbers with a point */
/* The ranges of all tensors that die in a planned program, in the order of ops; cr_free them. Left out are those whose
 * bytes go to another lane at once: see runtime/executor_poison.c. */
CR_MUST cr_status cr_fills_make(const struct cr_program *program, struct cr_fill **out, int *count);

/* ---- runtime/feed_ring.c, for runtime/executor.c ---- */
/* What an INPUT region holds besides pictures, which stand first in it: labels, boxes, mixes. */
size_t cr_feed_small_bytes(const struct cr_program *program);
/* Slots for INPUT regions of up to `bytes`, of which at most `small_bytes` besides pictures; NULL on a device without
 * async. */
CR_MUST cr_status cr_feed_open(struct cr_device *device, size_t bytes, size_t small_bytes, struct cr_feed_ring **out);
void              cr_feed_close(struct cr_device *device, struct cr_feed_ring *ring);
size_t            cr_feed_need(const struct cr_device *device, size_t small_bytes); /* device bytes of the ring */
/* memcpy, by some threads where it is much: one copies 256 pictures of 224 x 224 in 4 ms, and a GPU evaluates them
 * in 5.5. */
void cr_feed_copy(void *to, const void *from, size_t bytes);
/* Host memory of the next slot; cr_feed_send brings it to `input`, the INPUT region of this program, in order with the
 * runs. */
CR_MUST cr_status cr_feed_slot(struct cr_device *device, struct cr_feed_ring *ring, void **host);
CR_MUST cr_status cr_feed_send(struct cr_device *device, struct cr_feed_ring *ring, const struct cr_program *program,
                               void *input);
/* To be called behind the last op of a program that reads its pictures: others may come. */
CR_MUST cr_status cr_feed_consumed(struct cr_device *device, struct cr_feed_ring *ring);

#endif

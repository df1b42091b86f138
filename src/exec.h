/* exec.h: a program bound to a device: regions reserved, pointers resolved, kernels prepared; then run, again and again.
 *
 * Laws
 *   - Everything is allocated by open; cr_exec_run allocates nothing.
 *   - Programs of one run share the store region and one pool region (the maximum of their needs, not the sum). */
#ifndef CR_EXEC_H
#define CR_EXEC_H

#include "backend.h"
#include "passes.h"

/* How passes see this device. The target refers to the device and must not outlive it. */
struct cr_target cr_device_target(struct cr_device *device);

/* The memory that the programs of a run share. */
struct cr_memory {
    struct cr_device *device;
    void             *region[CR_REGIONS];
    size_t            bytes[CR_REGIONS];
};
CR_MUST cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_store *store,
                                 const struct cr_program *const *programs, int count);
void              cr_memory_close(struct cr_memory *memory);

struct cr_exec;
/* Binds a compiled program. The program and memory must outlive the exec. */
CR_MUST cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out);
void              cr_exec_close(struct cr_exec *exec); /* NULL is fine */
/* Copies a batch into the input region: images u8 [N,H,W,3], labels i32 [N] (NULL: -1). */
CR_MUST cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels);
CR_MUST cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step);
/* Runs ops [first, last] only; for verify and profile. */
CR_MUST cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last);
/* From now on each pool range is filled with NaN bytes when its tensor dies: a result that changes read memory that was no
 * longer its own. For tests. */
CR_MUST cr_status cr_exec_poison(struct cr_exec *exec);
const char       *cr_exec_row_name(const struct cr_exec *exec, int op);
/* Reads a tensor (of the store, or kept) to the host / writes one. */
CR_MUST cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host);
CR_MUST cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host);

#endif

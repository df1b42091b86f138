/* autotune/cost_table.h: autotuning: measures how long kernels take on a device and stores the times in a table.
 *
 * The passes query the time of an op to choose among fusions, and query the fastest kernel of an op to select a kernel.
 * The table stores nanoseconds, not decisions: the passes decide each time, and the same table gives the same program.
 *
 * The key of an op is its signature: kind, attributes, and the type and shape of each slot. A candidate is a kernel and
 * one of its algorithms (op->algo). The time of a signature is the time of its fastest candidate. A measurement runs
 * the candidate on scratch memory of the device that is filled with random numbers.
 *
 * Invariants
 *   - A signature that the table contains is not measured again. The table is stored in one file for each device name.
 *     The first line of the file names the device, the driver, the libraries and the kernels for which it was made. A
 *     file with another first line or with damage is dropped with a log line. An error of the file never stops a run.
 *   - A checkpoint stores the entries that its run used (cr_cost_table_text). cr_cost_table_load_fixed loads them, and
 *     the signatures in them then use no other entry. So a resumed run is bitwise identical. These entries are never
 *     written to the file.
 *   - Writing the file merges the new entries with the present contents of the file, so that several processes may
 *     write it in turn.
 *   - Times that were measured while other processes used the device are valid for this run and its checkpoints only.
 *     They are never written to the file (autotune/sharing.c). Processes that share a file measure one after another.
 *   - Scratch memory is reserved by measurements and released by cr_cost_table_flush.
 *
 * `costs` is the table in all functions. Functions return CR_ERR_MEMORY when an allocation fails. */
#ifndef CR_COST_TABLE_H
#define CR_COST_TABLE_H

#include "compiler/cost_model.h"
#include "device/device.h"
#include "device/kernel.h"

struct cr_cost_table;

/* Opens the table for a device and reads the file at `path` if it exists; "" means no file. cr_cost_table_flush creates
 * the file. The device must outlive the table. cr_cost_table_close frees the table. */
CR_MUST cr_status cr_cost_table_open(struct cr_device *device, const char *path, struct cr_cost_table **out);
/* Loads the file of another machine for plans of an offline device (cr_gpu_open_offline). Nothing is measured or
 * written: a signature that is not in the file gets its roofline time. CR_ERR_FORMAT when the file has another version
 * or is damaged; CR_ERR_IO when it cannot be read. */
CR_MUST cr_status cr_cost_table_load(struct cr_device *device, const char *path, struct cr_cost_table **out);
void              cr_cost_table_close(struct cr_cost_table *costs); /* accepts NULL */

/* Returns the path of the file for this device, which the caller frees with cr_free. The folder is CRESNET_CACHE,
 * XDG_CACHE_HOME/cresnet or HOME/.cache/cresnet, the first that is set. The path is "" when none is set or when
 * CRESNET_CACHE is "off". */
CR_MUST cr_status cr_cost_table_path(const struct cr_device *device, char **out);

/* Returns the cost model of the device with the times of this table. The model refers to the table. */
struct cr_cost_model cr_cost_table_model(struct cr_cost_table *costs);

/* Sets the copy rates of `model`, a cost model of this table, for programs that offload tensors. The rates come from
 * the table. If the table lacks them, they are measured, which takes about 0.1 s and happens once for a device. If
 * there is not enough memory to measure, the device's estimates stay. */
CR_MUST cr_status cr_cost_table_copy_rates(struct cr_cost_table *costs, struct cr_cost_model *model);

/* The fastest candidate of an op. */
struct cr_cost {
    int    kernel; /* index in device->kernels; CR_NONE when no kernel accepts the op */
    int    algo;
    double seconds;
};
/* Finds the fastest candidate for the op. Measures all candidates if the table does not contain the signature. */
CR_MUST cr_status cr_cost_table_best(struct cr_cost_table *costs, const struct cr_program *program,
                                     const struct cr_op *op, struct cr_cost *out);

/* Call after compiling: releases the scratch memory, writes the file if there are new entries, and logs the number of
 * measured kernels if there are any. Errors are logged as warnings. */
void cr_cost_table_flush(struct cr_cost_table *costs);

/* Returns whether the measurements used sparse tensor cores although none of the programs does. Such a process should
 * be restarted: after the first instruction of the sparse tensor cores, dense work draws more power until the process
 * ends. On one H200 a single launch of mma.sp had this effect, and 4 s of rest did not end it. At the power limit,
 * evaluation of ResNet-50 (fp16, batch 256) took 6 % longer. */
bool cr_cost_table_has_lasting_effect(const struct cr_cost_table *costs, const struct cr_program *const *program,
                                      int programs);

/* Returns the entries that this run has used, as text for a checkpoint. The caller frees it with cr_free. */
CR_MUST cr_status cr_cost_table_text(const struct cr_cost_table *costs, char **out);
/* Loads the entries of a checkpoint. Must be called before the first query. `from` names the checkpoint in messages.
 * CR_ERR_FORMAT when the text is damaged; CR_ERR_DEVICE when it was made for another device, driver or library. No
 * entry is loaded then. */
CR_MUST cr_status cr_cost_table_load_fixed(struct cr_cost_table *costs, const char *text, size_t length,
                                           const char *from);

/* ---- autotune/measure.c ---- */

/* Scratch memory for measurements. A zeroed struct is empty. */
struct cr_measure_memory {
    void  *noise; /* device memory: finite random values; also holds outputs and workspace */
    void  *zeros; /* device memory: zeros, for inputs that may be indices */
    void  *piece; /* device memory that is never written again: the source of the random values */
    size_t noise_bytes, zero_bytes;
    size_t clean_bytes;   /* of `noise`, from its beginning: bytes that no op has overwritten */
    double gap_s[8];      /* [n - 1]: seconds between two launches in a graph of n launches; 0 when not measured yet */
    bool   shared_device; /* other processes use the device: each time is measured more often */
};
/* Measures the seconds of one launch of `kernel`, which accepts the op, with algorithm op->algo: the minimum of several
 * launches after a warm-up. `best` is the time of another candidate in seconds, 0 when there is none; a candidate that
 * is clearly slower is launched only once more. CR_ERR_MEMORY when the scratch memory cannot be reserved. */
CR_MUST cr_status cr_cost_measure(struct cr_device *device, struct cr_measure_memory *scratch,
                                  const struct cr_kernel *kernel, const struct cr_program *program,
                                  const struct cr_op *op, double best, double *seconds);
/* Points the operands and the workspace of *call to scratch memory: inputs to finite random values, or to zeros where
 * they may be indices. CR_ERR_MEMORY. */
CR_MUST cr_status cr_measure_place(struct cr_device *device, struct cr_measure_memory *scratch,
                                   const struct cr_program *program, const struct cr_op *op, size_t workspace,
                                   struct cr_call *call);
void              cr_measure_memory_release(struct cr_device *device, struct cr_measure_memory *scratch);

#endif

/* autotune/cost_table.h: how long ops take on a device, measured once and remembered: what the choice among fusions and
 * kernel rows rests on. The table holds nanoseconds, not decisions: the passes decide anew each time, and the same
 * table gives the same program.
 *
 * An op is known by its signature: kind, attributes, and type and shape of each slot. A candidate is a row and one of
 * its ways (op->way); a signature's cost is that of its fastest candidate. Measuring runs the candidate on scratch
 * memory of the device, filled with noise.
 *
 * Laws
 *   - What the table knows is never measured again. It is kept in a file, one a device's name, whose first line says
 * for which device, driver, libraries and rows it was made: a file that says something else is dropped with a line in
 * the log, and so is one that cannot be read. No trouble with the file stops a run.
 *   - A checkpoint carries the entries that its run used. For their signatures nothing else is asked (pin), so that a
 * run that goes on computes the same bits; they never get into the file. When they do not fit this device, pin fails
 * and says so.
 *   - What was measured goes into the file as it is then: processes that write it in turn lose nothing.
 *   - Scratch memory is taken while measuring and given back by cr_cost_table_flush.
 * Knows devices and ops; nothing of sessions. */
#ifndef CR_COSTS_H
#define CR_COSTS_H

#include "compiler/compiler.h"
#include "device/device.h"

struct cr_cost_table;

/* `path`: the file, "" for none; a file that is not there yet is made by cr_cost_table_flush. The device must outlive
 * the table. */
CR_MUST cr_status cr_cost_table_open(struct cr_device *device, const char *path, struct cr_cost_table **out);
/* A file that a run on a device left, for plans of that device where it is not: `device` only answers questions (see
 * cr_gpu_open_offline). Nothing is measured: what the file does not know costs what the roofline says. CR_ERR_FORMAT:
 * no such file, or another version's. */
CR_MUST cr_status cr_cost_table_load(struct cr_device *device, const char *path, struct cr_cost_table **out);
void              cr_cost_table_close(struct cr_cost_table *costs); /* NULL is fine */

/* Where the table of this device is kept: CRESNET_CACHE, or XDG_CACHE_HOME/cresnet, or HOME/.cache/cresnet; "" when
 * there is no such place or CRESNET_CACHE is "off". */
CR_MUST cr_status cr_cost_table_path(const struct cr_device *device, char **out); /* cr_free it */

/* The device as passes see it, with costs from this table. It refers to the table. */
struct cr_cost_model cr_cost_table_model(struct cr_cost_table *costs);

/* Rates of the copies of programs that swap, into this table's target: from the table, or measured now: a tenth of a
 * second, once a device. Where nothing could be measured the device's round figures stand. */
CR_MUST cr_status cr_cost_table_copy_rates(struct cr_cost_table *costs, struct cr_cost_model *target);

/* The fastest candidate for the op, measuring what is not known. */
struct cr_cost {
    int         kernel, algo;
    double      seconds;
    const char *source; /* of the seconds, in a word: measured (now), file, checkpoint, "measured in part" (memory was
                           short), roofline */
};
CR_MUST cr_status cr_cost_table_best(struct cr_cost_table *costs, const struct cr_program *program,
                                     const struct cr_op *op, struct cr_cost *out);

/* After compiling: gives scratch memory back and writes the file when there is something new; one line in the log when
 * something was measured. */
void cr_cost_table_flush(struct cr_cost_table *costs);

/* Whether what was measured has an effect that lasts, since none of these programs has it by itself: once a process has
 * run an instruction of the sparse tensor cores, dense work draws more power until it ends. On one H200 one launch of
 * mma.sp was enough; 4 seconds of rest undid nothing; at the GPU's power limit ResNet-50's evaluation (fp16, batch 256)
 * took 6 % longer. */
bool cr_cost_table_has_lasting_effect(const struct cr_cost_table *costs, const struct cr_program *const *program,
                                      int programs);

/* The entries asked for so far, as text, for a checkpoint; cr_free it. */
CR_MUST cr_status cr_cost_table_text(const struct cr_cost_table *costs, char **out);
/* Takes the entries of a checkpoint, before the first question. CR_ERR_FORMAT when the text is none of ours;
 * CR_ERR_DEVICE when it was made for another device, driver, library or set of rows. Nothing is taken then. `from` is
 * for messages. */
CR_MUST cr_status cr_cost_table_load_fixed(struct cr_cost_table *costs, const char *text, size_t length,
                                           const char *from);

/* Measured so far: candidates, and the seconds that took. */
void cr_cost_table_effort(const struct cr_cost_table *costs, int64_t *measured, double *seconds);

/* ---- autotune/measure.c ---- */

struct cr_scratch {
    void  *noise, *zeros; /* device memory: finite values; zeros, for what may be an index */
    void  *piece;         /* what noise is made of; nothing is ever written there */
    size_t noise_bytes, zero_bytes, clean_bytes /* of the noise, from its begin on, that no op has written to */;
    double gap_s[8]; /* what stands between recorded launches takes, a launch, in recordings of 1 to 8; 0: not measured
                        yet */
};
/* Seconds that one launch of device->rows[op->row] in its way op->way takes: the least of some, after one to warm up;
 * of one where that is far beyond `best`, what another candidate takes (0: none yet). CR_ERR_MEMORY when the scratch
 * memory is not to be had. */
CR_MUST cr_status cr_cost_measure(struct cr_device *device, struct cr_scratch *scratch,
                                  const struct cr_program *program, const struct cr_op *op, double best,
                                  double *seconds);
void              cr_scratch_release(struct cr_device *device, struct cr_scratch *scratch);

#endif

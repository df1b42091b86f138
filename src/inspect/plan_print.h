/* inspect/plan_print.h: what `cresnet plan` shows of a planned program: the pool as an image, bytes by kind, the
 * largest tensors at the fullest op, a table for other planners, one line of JSON.
 *
 * Laws
 *   - Only reads the program; draws what it finds, also of a program that was not planned.
 *   - Out of memory is sticky in the text (cr_text.failed).
 * Knows nothing of devices. */
#ifndef CR_PLAN_PRINT_H
#define CR_PLAN_PRINT_H

#include "compiler/compiler.h"

enum cr_plan_kind {
    CR_PLAN_ACTIVATION,
    CR_PLAN_GRADIENT,
    CR_PLAN_STATISTICS,
    CR_PLAN_WORKSPACE,
    CR_PLAN_OFFLOADED,
    CR_PLAN_KINDS
};

/* What each tensor of the program is; `out` has room for one a tensor. */
void cr_plan_kinds(const struct cr_program *program, enum cr_plan_kind *out);
/* Peak, bound, their ratio; bytes by kind; the five largest tensors at the fullest op; the image: time to the right,
 * one column a group of ops, addresses upwards, a letter for the kind that holds most of a cell. */
void cr_plan_print_summary(const struct cr_program *program, struct cr_text *out);
/* CSV "id,lower,upper,size,offset", a line a life: tensors that take over each other's storage in place are one life,
 * named by the id of the first; lower and upper are op indices, half open; sizes and offsets in bytes. */
void cr_plan_print_csv(const struct cr_program *program, struct cr_text *out);
/* A line for each large transient: where it lives while nothing uses it (on the device, computed twice, swapped, or
 * zero-copy: on the host to the end, where the op that wants it reads it), and why: how long it is idle, what copies
 * out and back would take, what making it takes. Of a program that is planned. */
CR_MUST cr_status cr_plan_print_lifetimes(const struct cr_program *program, const struct cr_cost_model *target,
                                          struct cr_text *out);
/* The tensor that compute reads on the host instead of a copy back, by the input slot of an op; CR_NONE: it does not.
 */
int cr_plan_mapped_reads(const struct cr_program *program, const struct cr_op *op, int slot);
/* One JSON object on one line. `device`: its description. `batch`: images a run of the program. `plan_ms`: how long
 * the planner took; `online_bytes`: what a best-fit pool would need that does not know the future. */
void cr_plan_print_json(const struct cr_program *program, const struct cr_config *config, const char *device,
                        int64_t batch, double plan_ms, size_t online_bytes, struct cr_text *out);

#endif

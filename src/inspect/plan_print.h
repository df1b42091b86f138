/* inspect/plan_print.h: text output of `cresnet plan` for a planned program: a map of the pool, bytes by kind, the
 * largest tensors at the peak op, a table for other planners, and one line of JSON.
 *
 * Invariants
 *   - The functions only read the program. They also print programs that have no plan.
 *   - A failed allocation sets cr_text.failed; the functions report no other error.
 *   - This header depends on no device. */
#ifndef CR_PLAN_PRINT_H
#define CR_PLAN_PRINT_H

#include "compiler/cost_model.h"

/* The use of a tensor of the pool. */
enum cr_plan_kind {
    CR_PLAN_ACTIVATION,
    CR_PLAN_GRADIENT,
    CR_PLAN_STATISTICS,
    CR_PLAN_WORKSPACE,
    CR_PLAN_OFFLOADED,
    CR_PLAN_KINDS
};

/* Fills out[tensor] with the kind of each tensor of the program. */
void cr_plan_kinds(const struct cr_program *program, enum cr_plan_kind *out);
/* Prints the peak, the lower bound and their ratio; bytes by kind; the five largest tensors at the peak op; and the
 * map of the pool: time to the right with one column per group of ops, addresses upwards, and in each cell the
 * letter of the kind that fills most of it. */
void cr_plan_print_summary(const struct cr_program *program, struct cr_text *out);
/* Prints CSV "id,lower,upper,size,offset", one line per lifetime. Tensors that reuse each other's storage in place
 * have one common lifetime, whose id is that of the first tensor. lower and upper are op indices, half open; sizes
 * and offsets are in bytes. */
void cr_plan_print_csv(const struct cr_program *program, struct cr_text *out);
/* Prints a line for each large transient: where it is while no op uses it (on the device, recomputed or offloaded), and
 * the times behind this decision: the longest idle time, the time of both copies, the time of the op that computes it.
 * The program must be planned. CR_ERR_MEMORY. */
CR_MUST cr_status cr_plan_print_lifetimes(const struct cr_program *program, const struct cr_cost_model *model,
                                          struct cr_text *out);
/* The program of one size of data.image_sizes. Memory in bytes. */
struct cr_plan_size {
    int     image_size; /* pixels */
    int64_t from_epoch; /* number of epochs before the first one with this size, as in data.image_sizes */
    size_t  peak_bytes, bound_bytes;
    int     ops;
};

/* Numbers for cr_plan_print_json that are not in the program. */
struct cr_plan_numbers {
    const char                *device;  /* description of the device */
    int64_t                    batch;   /* images per run of the program */
    double                     plan_ms; /* time of the planner in milliseconds */
    const struct cr_plan_size *size;    /* [sizes] all sizes of data.image_sizes */
    int                        sizes;   /* fewer than 2: not printed */
};

/* Prints one JSON object on one line. */
void cr_plan_print_json(const struct cr_program *program, const struct cr_config *config,
                        const struct cr_plan_numbers *numbers, struct cr_text *out);

#endif

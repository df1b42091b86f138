/* autotune/host_times.h: measured times of ops on a device without asynchronous work (the CPU). Kernels are not chosen
 * by time there: the time of an op is that of the first kernel that accepts it, which is the one that runs.
 *
 * An op is measured once and remembered by its signature while the table is open. Nothing is stored. */
#ifndef CR_HOST_TIMES_H
#define CR_HOST_TIMES_H

#include "device/device.h"

struct cr_host_times;

/* The caller frees *out with cr_host_times_close, before the device. CR_ERR_MEMORY. */
CR_MUST cr_status cr_host_times_open(struct cr_device *device, struct cr_host_times **out);
void              cr_host_times_close(struct cr_host_times *times); /* accepts NULL */
/* Sets *seconds to the least time of several launches on random values; 0 when no kernel accepts the op. A convolution
 * with a sparsity pattern gathers its weights in each launch. CR_ERR_MEMORY, and the errors of kernels. */
CR_MUST cr_status cr_host_times_of(struct cr_host_times *times, const struct cr_program *program,
                                   const struct cr_op *op, double *seconds);

#endif

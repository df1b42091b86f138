/* device/capability.h: what a GPU of a compute capability offers to kernels of this project, and CRESNET_CAPABILITY,
 * which makes a newer GPU offer only what another capability has. */
#ifndef CR_DEVICE_CAPABILITY_H
#define CR_DEVICE_CAPABILITY_H

#include "core/base.h"

struct cr_capability {
    int    cc;                   /* compute capability times 10: 80 for 8.0 */
    size_t block_bytes;          /* most shared memory of a thread block */
    size_t multiprocessor_bytes; /* shared memory of a multiprocessor */
    int    threads, blocks;      /* most that a multiprocessor runs at once */
};

/* Returns the limits of compute capability cc (times 10). An unknown capability gets the smallest limits. */
struct cr_capability cr_capability_of(int cc);
/* Reads the value of CRESNET_CAPABILITY: "8.0", "8.6", "8.9" or "12.0". CR_ERR_CONFIG for every other text. */
CR_MUST cr_status cr_capability_read(const char *text, struct cr_capability *out);
/* Returns the rate of dense 16-bit matrix products with sums in f32: FLOPs of a multiprocessor in a cycle. name: the
 * driver's name of the GPU; GeForce cards have half the rate of the professional cards of the same capability. */
double cr_capability_matrix_rate(int cc, const char *name);
/* FLOPs of a multiprocessor in a cycle, in f32 without tensor cores. */
double cr_capability_f32_rate(int cc);

#endif

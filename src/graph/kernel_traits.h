/* graph/kernel_traits.h: what a kernel states about itself in plain data. Passes, which know no devices, read it too.
 *
 * A new property is a member here, a value in the rows of the kernels that have it, and a line in the pass that asks
 * cr_device_view.traits for it. */
#ifndef CR_KERNEL_TRAITS_H
#define CR_KERNEL_TRAITS_H

#include <stdbool.h>

struct cr_kernel_traits {
    bool any_stream;   /* a collective that may run on the compute stream */
    bool sparse_cores; /* uses sparse tensor cores: see cr_cost_table_has_lasting_effect */
};

#endif

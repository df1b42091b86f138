/* formats/npy.h: writes an array of numpy, float32 [rows][columns] in C order, row by row: numpy.load reads it, also
 * with mmap_mode. The number of rows is known at the end only.
 *
 * Invariants
 *   - The file gets its name when it is complete.
 *   - Memory does not depend on the number of rows. */
#ifndef CR_NPY_H
#define CR_NPY_H

#include "core/temporary.h"

struct cr_npy {
    struct cr_temporary temporary;
    int64_t             rows;
    int                 columns;
};

/* Creates the file. The caller ends with cr_npy_close, also after a failure. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_npy_open(struct cr_npy *npy, const char *path, int columns);
/* Adds a row, [columns]. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_npy_add(struct cr_npy *npy, const float *row);
/* Writes the number of rows and gives the file its name. CR_ERR_IO. */
CR_MUST cr_status cr_npy_finish(struct cr_npy *npy);
/* Removes a file that was not finished. A zeroed struct is allowed. */
void cr_npy_close(struct cr_npy *npy);

#endif

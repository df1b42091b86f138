/* inspect/plan_png.h: draws the pool of a planned program as a PNG: time to the right, addresses upwards, one
 * rectangle per tensor, coloured by kind. The program is only read. */
#ifndef CR_PLAN_PNG_H
#define CR_PLAN_PNG_H

#include "graph/graph.h"

/* Draws to `path`; the file is replaced atomically. The time axis is the op index, or seconds if `seconds` (one per
 * op) is not NULL. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_plan_png_write(const struct cr_program *program, const double *seconds, const char *path);

#endif

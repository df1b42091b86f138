/* inspect/plan_png.h: the pool of a planned program as an image: time goes right, addresses go up, a rectangle a
 * tensor, coloured by kind. Reads the program only. */
#ifndef CR_PLAN_PNG_H
#define CR_PLAN_PNG_H

#include "graph/graph.h"

/* Draws to PATH, at once: readers see the old file or the whole new one. Time is the op's index, or seconds when
 * `seconds` (one an op) is there. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_plan_png_write(const struct cr_program *program, const double *seconds, const char *path);

#endif

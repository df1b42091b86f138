/* cli/svg/svg.h: helpers of SVG drawings (charts), and the drawing of the memory pool. */
#ifndef CR_CMD_SVG_H
#define CR_CMD_SVG_H

#include "graph/graph.h"

/* Adds text between tags or in quotes: escapes special characters and replaces invalid UTF-8. */
void cr_page_escape(struct cr_text *out, const char *s);
/* Distance of axis ticks: 1, 2 or 5 times a power of ten, such that `range` > 0 has at most `ticks` of them. */
double cr_chart_step(double range, int ticks);

/* cli/svg/pool.c: adds the memory pool of a planned program: ops to the right, addresses upwards, each rectangle a
 * tensor. alone: as a file of its own, not a part of a page. */
void cr_pool_svg(struct cr_text *out, const struct cr_program *program, bool alone);

#endif

/* cli/common/lr_svg.h: the plot of cresnet lr-find. */
#ifndef CR_LR_SVG_H
#define CR_LR_SVG_H

#include "training/lr_find.h"

/* Adds an SVG file: the loss of each step and the smoothed loss over the learning rate, on a logarithmic scale, and a
 * line at the suggested rate. The curve has at least one step. */
void cr_lr_svg(const struct cr_lr_curve *curve, struct cr_text *out);

#endif

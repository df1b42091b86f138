/* session/labels/outputs.h: the network's outputs for all images of an evaluation, where scores need all of them at
 * once: images x classes floats in host memory. */
#ifndef CR_OUTPUTS_H
#define CR_OUTPUTS_H

#include "core/base.h"

/* Called before `bytes` are taken for the outputs of `images` images. CR_ERR_MEMORY when less memory is free, since the
 * system would kill the process; `advice` ends the message. */
CR_MUST cr_status cr_outputs_check(int64_t images, int classes, size_t bytes, const char *advice);

#endif

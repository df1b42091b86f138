/* model/channels.h: model.channels, the channels of every layer of a network whose widths are not those of its
 * architecture.
 *
 * The text has one part for the stem and one for each stage, with "/" between the parts and "," between numbers:
 *   stem   channels of its convolution; for a deep stem, of its three convolutions
 *   stage  channels of its output; then for each residual block the channels of conv1, in a bottleneck of conv2, and
 *          with squeeze and excitation of se.fc1 */
#ifndef CR_MODEL_CHANNELS_H
#define CR_MODEL_CHANNELS_H

#include "model/model.h"

/* Sets stem_width, widths and block_widths of a model whose other members are resolved, except for the shortcut. Does
 * nothing without model.channels. CR_ERR_CONFIG, CR_ERR_MEMORY. */
CR_MUST cr_status cr_channels_resolve(const struct cr_config *config, struct cr_model *model);
/* Channels of convolution `i` of a deep stem; `i` is CR_STEM_CONVS - 1 for the output of any stem. */
int64_t cr_stem_channels(const struct cr_model *model, int i);
/* Appends the text for widths that the function `channels` gives for the name of a layer, e.g. "layer1.0.conv1". */
void cr_channels_text(const struct cr_model *model, const struct cr_config     *config,
                      int64_t (*channels)(void *self, const char *layer), void *self, struct cr_text *out);

#endif

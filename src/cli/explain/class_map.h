/* cli/explain/class_map.h: Grad-CAM (Selvaraju et al. 2017): where in an image the last stage found evidence for a
 * class. Channels of that stage's output are weighted by the mean gradient of the class's logit over the positions, and
 * summed; negative sums become 0. */
#ifndef CR_CLASS_MAP_H
#define CR_CLASS_MAP_H

#include "session/session.h"

struct cr_class_map {
    int             height, width; /* of the last stage's output */
    float          *value;         /* [height][width], at least 0 */
    float          *logits;        /* [model.classes] */
    int             predicted;     /* class with the largest logit */
    int             label;         /* class of the map */
    struct cr_arena arena;
};
/* The map of class `label`, or with -1 of the predicted class, for one prepared image u8 [size][size][3]. The session
 * has an evaluation program with keep_maps and eval_batch 1, and loaded weights; the network is not quantised. The
 * caller frees out->arena, also after a failure. CR_ERR_NUMERIC when the logits are not finite; CR_ERR_MEMORY. */
CR_MUST cr_status cr_class_map_compute(struct cr_session *session, const uint8_t *image, int label,
                                       struct cr_class_map *out);

#endif

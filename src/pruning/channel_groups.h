/* pruning/channel_groups.h: which channels of a network can only be removed together, found by tracing a program.
 *
 * A unit is a set of slices: one channel of some tensors, and one index of an axis of some parameters. Removing a slice
 * makes shapes or values inconsistent unless all slices of its unit are removed. Units come from the ops: the output
 * channel of a convolution is an index of its filter's axis K and a channel of the batch norm after it, a sum has the
 * channels of both summands, and so on; no architecture is listed. A group is a list of units that lie in the same
 * tensors and axes: its units can be exchanged for each other, and a network has a width for each group.
 *
 * Some units stay: the channels of images and logits; those of grouped convolutions, because their kernels need groups
 * of equal size; those under efficient channel attention, which mixes neighbouring channels; those of ops that the
 * trace does not know. They belong to no group. */
#ifndef CR_CHANNEL_GROUPS_H
#define CR_CHANNEL_GROUPS_H

#include "graph/graph.h"

/* Axes of a tensor that have channels: K of filters and dense weights, and the last one of every tensor. */
enum cr_channel_axis { CR_AXIS_K, CR_AXIS_C, CR_CHANNEL_AXES };

struct cr_channel_group {
    const char *name;   /* the first layer whose outputs are the units; borrowed from the program */
    int         units;  /* number of units, at least 1 */
    bool        halves; /* pad_shortcut adds these units, half of them before the channels of its input, half behind:
                         * both sides must lose the same number */
};
struct cr_channel_groups {
    const struct cr_program *program; /* borrowed */
    struct cr_channel_group *group;
    int                      groups, units;
    int                     *group_of; /* [units] CR_NONE: cannot be removed */
    bool                    *behind;   /* [units] in a group with halves: on the far side */
    int                     *slice;    /* [slices] unit of each slice */
    int                     *first;    /* [tensors][CR_CHANNEL_AXES] first slice; CR_NONE: the axis has no channels */
    struct cr_arena          arena;    /* holds the arrays */
};
/* Traces a forward program before compiler passes; the caller frees *out with cr_channel_groups_free. Equal programs
 * give equal groups, in the order of the first tensors. CR_ERR_MEMORY. */
CR_MUST cr_status cr_channel_groups_trace(const struct cr_program *program, struct cr_channel_groups *out);
void              cr_channel_groups_free(struct cr_channel_groups *groups);
/* The unit at `index` of an axis of a tensor, or CR_NONE when the axis has no channels. */
int cr_channel_unit(const struct cr_channel_groups *groups, int tensor, enum cr_channel_axis axis, int64_t index);

#endif

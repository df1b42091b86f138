/* pruning/shrink.h: channel pruning that makes a network smaller: chooses units of channels to remove
 * (pruning/channel_groups.h), and copies the parameters of the others.
 *
 * The importance of a unit is computed from all its slices; in a group it is divided by the mean of the group, so that
 * groups can be compared. Channels are removed in steps: the group goes to the next lower multiple of prune.multiple.
 * The step with the smallest mean importance comes first, until the multiply-adds are few enough; then steps that are
 * not needed any more are undone, the last one first. Steps that save less than 1/10000 of the multiply-adds are left
 * out. Equal buffers give equal choices. */
#ifndef CR_SHRINK_H
#define CR_SHRINK_H

#include "config/config.h"
#include "pruning/channel_groups.h"

struct cr_shrink {
    const struct cr_channel_groups *groups;     /* borrowed */
    double                         *importance; /* [units] */
    bool                           *removed;    /* [units] */
    int                            *width;      /* [groups] units that are left */
    bool                           *keeps; /* [groups] all units are left: an exempt group, or one without importance */
    double                          macs, macs_before; /* multiply-adds of one image; batch of the program is 1 */
};
/* Sets importance; the caller frees *out with cr_shrink_free. Nothing is removed yet. l2: norm of all weights; bn: sum
 * of the magnitudes of the BN scales; both from `value`, a host copy of VALUE. taylor: the square root of `taylor`
 * [units], the sums of cr_shrink_add_taylor; NULL for the other kinds. CR_ERR_MEMORY. */
CR_MUST cr_status cr_shrink_open(const struct cr_channel_groups *groups, const struct cr_param_store *store,
                                 enum cr_prune_importance importance, const float *value, const double *taylor,
                                 struct cr_shrink *out);
/* pruning/taylor.c: adds, for one batch, the square of the first-order estimate of how the loss changes without the
 * unit (Molchanov et al. 2019): the sum of value times gradient over the scales and shifts of its BNs, or of the
 * weights and biases of a dense layer without BN. Host copies of VALUE and GRAD. CR_ERR_MEMORY. */
CR_MUST cr_status cr_shrink_add_taylor(const struct cr_channel_groups *groups, const float *value, const float *grad,
                                       double *sum);
void              cr_shrink_free(struct cr_shrink *shrink);
struct cr_ranked_unit {
    int    unit;
    double importance;
};
/* Lists the units of a group in ascending order of importance, equal ones by number; returns their count. list: [units]
 * of all groups. */
int cr_shrink_rank(const struct cr_shrink *shrink, int group, struct cr_ranked_unit *list);

/* pruning/exempt_channels.c: keeps the channels of the layers that prune.exempt names and of frozen layers; auto names
 * none, because the first convolution and the classifier share their channels with other layers. The word `residual`
 * names the channels that blocks add. CR_ERR_CONFIG: no such layer. */
CR_MUST cr_status cr_shrink_keep_exempt(struct cr_shrink *shrink, const struct cr_param_store *store,
                                        const struct cr_config *config);

/* Numbers of channels are multiples of `narrow`; in a network with a group of at least 2 * `wide` units, those of
 * groups with at least `wide` units are multiples of `wide`. */
struct cr_multiples {
    int64_t narrow, wide;
};
enum { CR_MULTIPLE = 8, CR_MULTIPLE_WIDE = 64 };
/* prune.multiple; without it CR_MULTIPLE, and CR_MULTIPLE_WIDE for wide groups when `tensor_cores`: GPU kernels in
 * 16 and 8 bits are fast at such widths. */
struct cr_multiples cr_multiples_of(const struct cr_config *config, bool tensor_cores);
/* The multiple of a group; even where channels are removed on two sides. */
int64_t cr_multiple_of_group(const struct cr_multiples *multiples, const struct cr_channel_groups *groups, int group);

/* Removes units until macs <= macs_before / factor. Each width is a multiple of that of the group, at least 1 time, or
 * unchanged. CR_ERR_CONFIG when the factor cannot be reached; the message gives the largest
 * factor. */
CR_MUST cr_status cr_shrink_choose(struct cr_shrink *shrink, const struct cr_multiples *multiples, double factor);
/* Output channels that are left of a layer with weights, e.g. "layer1.0.conv1". */
int64_t cr_shrink_width(const struct cr_shrink *shrink, const struct cr_param_store *store, const char *layer);
/* Copies the elements that are left: host buffers `from` and `to` with the layouts VALUE, RUNNING and MASK of both
 * parameter stores. The mask may be NULL. */
struct cr_shrink_buffers {
    float   *value, *running;
    uint8_t *mask;
};
void cr_shrink_copy(const struct cr_shrink *shrink, const struct cr_param_store *store,
                    const struct cr_shrink_buffers *from, const struct cr_param_store *small,
                    const struct cr_shrink_buffers *to);
/* Sets the elements that are not left to 0, in VALUE and RUNNING: the layers of a removed channel have the output 0 and
 * all gradients of its parameters are 0. */
void cr_shrink_zero(const struct cr_shrink *shrink, const struct cr_param_store *store, float *value, float *running);

#endif

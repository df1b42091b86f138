/* pruning/widths.h: the widths that a search may give to the groups of channels of a network, and what each filter
 * loses with them. Level 0 of a group is its full width; each further level has fewer of its most important units. */
#ifndef CR_WIDTHS_H
#define CR_WIDTHS_H

#include "pruning/shrink.h"

struct cr_widths {
    const struct cr_channel_groups *groups; /* borrowed */
    int                            *levels; /* [groups] at least 1 */
    int                            *width;  /* [groups][most] units that are left */
    int                            *last;   /* [units] the last level at which the unit is left */
    int                             most;   /* levels that a group has at most */
};
/* Levels of multiples of that of each group, at most `most` of a group, about equally far apart. rounded: they are
 * multiples of the multiple times a power of 2, for which devices have the fastest kernels, such as 64 and 32 of 256.
 * Groups that the shrink keeps have one level. Borrows the groups; the caller frees *out with cr_widths_free.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_widths_open(const struct cr_shrink *shrink, const struct cr_multiples *multiples, bool rounded,
                                 int most, struct cr_widths *out);
void              cr_widths_free(struct cr_widths *widths);
/* Sets width and removed of the shrink to these levels: level[groups]. */
void cr_widths_apply(const struct cr_widths *widths, const int *level, struct cr_shrink *shrink);

/* The channels of an axis of a tensor, as classes of those that leave at the same level of the same group. */
struct cr_width_bin {
    int     group, last; /* left up to this level; group CR_NONE: always left */
    int64_t channels;
};
struct cr_width_bins {
    struct cr_width_bin *bin;
    int                  bins;
};
/* The caller frees out->bin with cr_free. An axis without channels has no bin. CR_ERR_MEMORY. */
CR_MUST cr_status cr_width_bins_of(const struct cr_widths *widths, int tensor, enum cr_channel_axis axis,
                                   struct cr_width_bins *out);
/* Channels that are left at these levels. */
int64_t cr_width_of(const struct cr_width_bins *bins, const int *level);

/* What a filter has in each pair of bins of its axes K and C: energy[K bins][C bins]. l2: squares of the weights; the
 * other kinds: products of the squared importance of both channels. The caller frees *energy. CR_ERR_MEMORY. */
CR_MUST cr_status cr_width_energy(const struct cr_widths *widths, const struct cr_shrink *shrink,
                                  enum cr_prune_importance importance, const struct cr_param *param, int tensor,
                                  const float *value, const struct cr_width_bins bins[CR_CHANNEL_AXES],
                                  double **energy);
/* Fraction of the energy that is left at these levels; 1 when there is none. */
double cr_width_left(const struct cr_width_bins bins[CR_CHANNEL_AXES], const double *energy, const int *level);

#endif

/* compiler/intervals.h: the memory planner: offsets of intervals, independent of programs. Sizes are in bytes. */
#ifndef CR_INTERVALS_H
#define CR_INTERVALS_H

#include "core/base.h"

/* One allocation: live in [lower, upper), in any unit of time. */
struct cr_interval {
    int64_t lower, upper;
    size_t  size;   /* bytes */
    size_t  offset; /* output, bytes; 0 when the interval or the size is empty */
};
/* Sets the offsets so that intervals which overlap in time share no byte: greedy by size into the smallest gap, in
 * several orders, then improved. *peak: bytes that the plan needs. *bound: largest sum of live sizes, each rounded up
 * to `alignment`; no plan needs fewer bytes. Equal inputs give equal plans. Returns CR_ERR_MEMORY when the sizes
 * overflow. */
CR_MUST cr_status cr_plan_intervals(struct cr_interval *interval, int count, size_t alignment, size_t *peak,
                                    size_t *bound);
/* Computes *bound only. CR_ERR_MEMORY as cr_plan_intervals. */
CR_MUST cr_status cr_plan_bound(const struct cr_interval *interval, int count, size_t alignment, size_t *bound);

/* Both planners count time in ranks. Sorts the ends of intervals, keeps one of equal ones and returns their number. */
int cr_times_sort(int64_t *time, int times);
/* The rank of a time that is among the `count` sorted ones. */
int cr_time_rank(const int64_t *times, int count, int64_t time);

struct cr_plan_effort {
    size_t  alignment;
    size_t  capacity; /* the search stops at a plan of this many bytes; 0: it looks for the smallest plan */
    double  enough;   /* no search when the greedy plan is at most this many times the bound; 0: every such plan */
    int64_t visits;   /* budget of search steps, about 2 ns each; 0 or less: no search */
    int64_t limit_ns; /* time limit; INT64_MAX: none. With a time limit the plan may differ from run to run */
};
struct cr_plan_found {
    size_t peak;        /* bytes of the plan */
    size_t greedy;      /* bytes of the plan of cr_plan_intervals */
    size_t bound;       /* largest sum of live sizes */
    size_t lower_bound; /* no plan needs fewer bytes, as far as the search has proved */
};
/* cr_plan_intervals, then a branch-and-bound search when the greedy plan exceeds the bound and the capacity. The plan
 * is never larger than the greedy plan. */
CR_MUST cr_status cr_plan_search(struct cr_interval *interval, int count, const struct cr_plan_effort *effort,
                                 struct cr_plan_found *found);

#endif

/* compiler/intervals.h: the memory planner (allocator): offsets of live intervals in bytes, independent of programs. */
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

/* Planners count time in ranks. Sorts the ends of intervals, keeps one of equal ones and returns their number. */
int cr_times_sort(int64_t *time, int times);
/* The rank of a time that is among the `count` sorted ones. */
int cr_time_rank(const int64_t *times, int count, int64_t time);

#endif

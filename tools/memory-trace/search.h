/* tools/memory-trace/search.h: a search for plans that are smaller than the greedy one of compiler/intervals.h. Sizes
 * are in bytes. */
#ifndef CR_TRACE_SEARCH_H
#define CR_TRACE_SEARCH_H

#include "compiler/intervals.h"

struct cr_plan_effort {
    size_t  alignment;
    size_t  capacity; /* the search stops at a plan of this many bytes; 0: it looks for the smallest plan */
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

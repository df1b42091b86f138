/* tools/memory-trace/trace/best_fit.h: an online best-fit allocator, the baseline that offline plans are compared with.
 *
 * The allocator serves one request after the other without knowing later ones. Each request gets the smallest free
 * range that holds it. Adjacent free ranges are merged. The pool grows at its end when no range is large enough. */
#ifndef CR_BEST_FIT_H
#define CR_BEST_FIT_H

#include "core/base.h"

struct cr_best_fit_range {
    size_t offset, size; /* bytes */
    bool   free;
};
/* {0} is an empty pool. */
struct cr_best_fit {
    struct cr_best_fit_range *range; /* [ranges], sorted by offset, without gaps, from offset 0 */
    int                       ranges, capacity;
    size_t                    top, peak; /* present and largest size of the pool, bytes */
};

/* Sets *offset to `size` free bytes, size > 0. Returns CR_ERR_MEMORY when the list of ranges cannot grow. */
CR_MUST cr_status cr_best_fit_alloc(struct cr_best_fit *pool, size_t size, size_t *offset);
/* Frees the allocation at `offset`, which cr_best_fit_alloc has returned. */
void cr_best_fit_release(struct cr_best_fit *pool, size_t offset);
/* Frees the allocator itself. */
void cr_best_fit_free(struct cr_best_fit *pool);

#endif

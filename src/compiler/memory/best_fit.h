/* compiler/memory/best_fit.h: a pool that does not know the future: one request after the other, each in the smallest
 * free range that holds it, free neighbours joined, and grown at its end where none does. What plans are compared with.
 */
#ifndef CR_BEST_FIT_H
#define CR_BEST_FIT_H

#include "core/base.h"

struct cr_best_fit_range {
    size_t offset, size;
    bool   free;
};
struct cr_best_fit {                 /* {0} is an empty pool */
    struct cr_best_fit_range *range; /* by offset, without gaps from 0 */
    int                       ranges, capacity;
    size_t                    top, peak;
};

/* size > 0. */
CR_MUST cr_status cr_best_fit_alloc(struct cr_best_fit *pool, size_t size, size_t *offset);
void              cr_best_fit_release(struct cr_best_fit *pool, size_t offset); /* one that was taken */
void              cr_best_fit_free(struct cr_best_fit *pool);

#endif

/* costs_parts.h: what the files of the cost table share; private to costs*.c. */
#ifndef CR_COSTS_PARTS_H
#define CR_COSTS_PARTS_H

#include "costs.h"

struct cr_cost_entry { /* one candidate of one signature */
    uint64_t    hash; /* of the signature */
    const char *signature, *row;
    int         way;
    int64_t     ns;
    bool        used; /* an answer of this run rested on it */
};

struct cr_cost_answer { /* given before: the same question gets the same answer */
    uint64_t       hash;
    const char    *signature;
    struct cr_cost cost;
};

struct cr_costs {
    struct cr_device      *device;
    const char            *path, *identity;
    struct cr_cost_entry  *entry;
    int                    entries, capacity;
    int                    pinned; /* the first so many are a checkpoint's */
    struct cr_cost_answer *best;
    int                    bests, best_capacity;
    bool                   asked;
    struct cr_scratch      scratch;
    int64_t                measured, told, measure_ns;
    bool                   news; /* the file lacks something, even if nothing was measured */
    struct cr_arena        arena;
};

extern const char     cr_cost_nobody[]; /* the row of an entry that says: no row takes this */
uint64_t              cr_cost_hash(const char *text);
CR_MUST cr_status     cr_cost_signature(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                        struct cr_text *out);
struct cr_cost_entry *cr_cost_find(struct cr_costs *costs, const char *signature, const char *row, int way);
bool                  cr_cost_is_pinned(const struct cr_costs *costs, const char *signature);
CR_MUST cr_status     cr_cost_add(struct cr_costs *costs, const char *signature, const char *row, int way, int64_t ns,
                                  struct cr_cost_entry **out);

#endif

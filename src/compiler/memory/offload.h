/* compiler/memory/offload.h: internal parts of cr_pass_offload: candidates, the schedule of their copies, the choice.
 *
 * A candidate is a POOL tensor with a gap between two consecutive uses, the ops `early` and `late`. When the candidate
 * is chosen, its tensor is copied to host memory as soon as its writer has finished. Its device memory is free from
 * some op behind `early` (release_at) to some op up to `late` (prefetch_at), where the copy back starts.
 *
 * Op indices refer to the program before the pass; cr_pass_offload inserts the copies at the end. Only src/compiler and
 * its tests use this header. */
#ifndef CR_OFFLOAD_H
#define CR_OFFLOAD_H

#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "compiler/simulate.h"

struct cr_offload_candidate {
    int    tensor, writer, early, late; /* tensor id; op indices */
    size_t bytes;                       /* rounded up to the alignment */
    double out_s, in_s;                 /* seconds of the copy to the host and of the copy back */
    double doa, aoa, wdoa;              /* scores: compiler/memory/offload_choose.c */
    size_t at_writer, at_last; /* extra bytes at its writer and at its last reader, because the tensor's storage
                                  is no longer reused in place there */
    int    last;               /* op index of its last use */
};

/* Everything that is known before a choice. */
struct cr_offload_work {
    const struct cr_program     *p; /* borrowed */
    size_t                       alignment, limit;
    struct cr_contention         contention;
    double                      *seconds, *memory_busy; /* [ops]; see cr_program_seconds */
    double                      *begin;                 /* [ops + 1] start times without offloading */
    size_t                      *load;                  /* [ops] live bytes without offloading */
    struct cr_offload_candidate *c;                     /* [count], sorted by writer */
    int                          count;
    int                         *by_late; /* [count] candidates sorted by `late` */
    int64_t                      visits;  /* number of schedules computed so far */
    struct cr_arena              arena;   /* holds the arrays */
};

/* Finds the candidates whose gap contains an op above the limit, and the lifetimes of all tensors. The program must be
 * selected. Returns CR_ERR_MEMORY or an error of cost_model->cost. The caller frees out->arena, also after a
 * failure. */
CR_MUST cr_status cr_offload_work_open(struct cr_program *program, const struct cr_cost_model *cost_model, size_t limit,
                                       struct cr_offload_work *out);
/* The largest of the live bytes load[ops]. */
static inline size_t cr_offload_peak(const struct cr_offload_work *w, const size_t *load) {
    size_t peak = 0;
    for (int i = 0; i < w->p->ops; i++) peak = CR_MAX(peak, load[i]);
    return peak;
}
/* The candidates in the order of `compare`, which gets pointers to pointers to candidates: order[count] are indices. */
CR_MUST cr_status cr_offload_sort(const struct cr_offload_work *w, int (*compare)(const void *, const void *),
                                  int                          *order);

/* When the copies of the chosen candidates run. */
struct cr_offload_schedule {
    int   *release_at;     /* [count] op before which the memory becomes free; CR_NONE: not offloaded */
    int   *prefetch_at;    /* [count] op before which the copy back starts; CR_NONE: not offloaded */
    double total, stalled; /* seconds of the program; part in which compute waits for copies */
    size_t peak;           /* most live bytes at an op */
    size_t bytes;          /* bytes of the offloaded tensors */
    int    tensors;
    /* scratch */
    double         *begin, *out_end;
    int            *planned, *offloaded;
    size_t         *room;
    struct cr_arena arena; /* holds the arrays */
};
/* CR_ERR_MEMORY. The caller frees out->arena, also after a failure. */
CR_MUST cr_status cr_offload_schedule_open(const struct cr_offload_work *work, struct cr_offload_schedule *out);
/* Computes the schedule of the candidates that chosen[count] names, with the least total time below the limit. Compute
 * waits where memory is not free yet or a tensor is not back yet. peak > limit: these candidates do not free enough
 * memory. */
void cr_offload_schedule_make(struct cr_offload_work *work, const bool *chosen, struct cr_offload_schedule *schedule);

/* Fills the scores doa, aoa and wdoa of the candidates. */
void cr_offload_score_set(struct cr_offload_work *work);
/* Chooses candidates by `score`: sets chosen[count] and *schedule. */
CR_MUST cr_status cr_offload_choose(struct cr_offload_work *work, enum cr_offload_score score, bool *chosen,
                                    struct cr_offload_schedule *schedule);

#endif

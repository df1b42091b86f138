/* compiler/memory/offload.h: the parts of cr_pass_offload: the simulation, what could be swapped, when its copies run,
 * which of it is taken.
 *
 * A candidate is a pool tensor and a gap between two consecutive uses, `early` and `late`, of the plain program. Taken,
 * it is copied out from its writer on, its place is free from some op behind `early` (`sync`) to some op up to `late`
 * (`go`), where the copy back begins. Or the uses from `late` on, where their rows can, read the copy where it is: it
 * is never back. Ops are those of the plain program throughout: cr_pass_offload puts the copies into the list at the
 * end. Internal to src/passes and its tests. */
#ifndef CR_SWAP_H
#define CR_SWAP_H

#include "compiler/compiler.h"

enum cr_offload_action { CR_OFFLOAD_NOT, CR_OFFLOAD_PREFETCHED, CR_OFFLOAD_MAPPED };

struct cr_offload_candidate {
    int    tensor, writer, early, late;
    size_t bytes;          /* as the pool counts them */
    double out_s, in_s;    /* of its copies */
    double doa, aoa, wdoa; /* scores: see compiler/memory/offload_choose.c */
    size_t at_writer,
        at_last; /* bytes that its writer, its last reader need besides: no storage is handed over there any more */
    int  last;
    bool mappable;    /* CR_OFFLOAD_MAPPED is possible */
    bool mapped_only; /* nothing is above the limit before `late`, only then: back on the device by then it is of no use
                       */
    double read_s;    /* ... and what each reader adds to what the device reads of the host */
    int    reader, readers; /* ... which are work.reader[reader] and so on; once a slot */
};

struct cr_offload_work {
    const struct cr_program     *p;
    size_t                       alignment, limit;
    struct cr_contention         contention;
    double                      *seconds, *memory_busy; /* by op: see cr_program_seconds */
    double                      *begin;                 /* by op, and the end: when nothing is swapped */
    size_t                      *load;                  /* by op: bytes live when nothing is swapped */
    struct cr_offload_candidate *c;                     /* by writer */
    int                          count;
    int                         *reader;  /* of the candidates, in order: ops */
    int                         *by_late; /* candidates in the order of their late use */
    int64_t                      visits;  /* schedules made so far */
};

/* The program must be selected. Candidates are those whose gap holds an op that is above the limit. */
CR_MUST cr_status cr_offload_work_open(const struct cr_program *program, const struct cr_cost_model *target,
                                       size_t limit, struct cr_offload_work *out);
void              cr_offload_work_close(struct cr_offload_work *work);

/* When the copies of a set of candidates run. */
struct cr_offload_schedule {
    int *release_at, *prefetch_at; /* by candidate: in front of which op; CR_NONE: not taken; go alone: read in place */
    double total, stalled;
    size_t peak;  /* bytes live at the fullest op */
    size_t bytes; /* moved each way */
    int    tensors, mapped;
    /* for the making */
    double *begin, *out_end, *reading;
    int    *planned, *offloaded;
    size_t *room;
};
CR_MUST cr_status cr_offload_schedule_open(const struct cr_offload_work *work, struct cr_offload_schedule *out);
void              cr_offload_schedule_close(struct cr_offload_schedule *schedule);
/* Least total that this set allows below the limit: compute waits where memory is wanted that is not free yet, or a
 * tensor that is not back. peak > limit: the set is not enough. */
void cr_offload_schedule_make(struct cr_offload_work *work, const enum cr_offload_action *taken,
                              struct cr_offload_schedule *schedule);

/* Which candidates `score` takes: taken[count]. cr_offload_score_set fills the scores by themselves. */
void              cr_offload_score_set(struct cr_offload_work *work);
CR_MUST cr_status cr_offload_choose(struct cr_offload_work *work, enum cr_offload_score score,
                                    enum cr_offload_action *taken, struct cr_offload_schedule *schedule,
                                    enum cr_offload_score *won);

#endif

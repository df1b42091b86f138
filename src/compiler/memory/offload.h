/* compiler/memory/offload.h: the parts of cr_pass_swap: the simulation, what could be swapped, when its copies run, which of it is taken.
 *
 * A candidate is a pool tensor and a gap between two consecutive uses, `early` and `late`, of the plain program. Taken, it is
 * copied out from its writer on, its place is free from some op behind `early` (`sync`) to some op up to `late` (`go`), where
 * the copy back begins. Or the uses from `late` on, where their rows can, read the copy where it is: it is never back. Ops are those of the plain
 * program throughout: cr_pass_swap puts the copies into the list at the end.
 * Internal to src/passes and its tests. */
#ifndef CR_SWAP_H
#define CR_SWAP_H

#include "compiler/compiler.h"

enum cr_swap_take { CR_TAKE_NOT, CR_TAKE_BACK, CR_TAKE_READ };

struct cr_swap_candidate {
    int    tensor, writer, early, late;
    size_t bytes;                /* as the pool counts them */
    double out_s, in_s;          /* of its copies */
    double doa, aoa, wdoa;       /* scores: see compiler/memory/offload_choose.c */
    size_t at_writer, at_last;   /* bytes that its writer, its last reader need besides: no storage is handed over there any more */
    int    last;
    bool   readable;             /* CR_TAKE_READ is possible */
    bool   only_so;              /* nothing is above the limit before `late`, only then: back on the device by then it is of no use */
    double read_s;               /* ... and what each reader adds to what the device reads of the host */
    int    reader, readers;      /* ... which are work.reader[reader] and so on; once a slot */
};

struct cr_swap_work {
    const struct cr_program  *p;
    size_t                    alignment, limit;
    struct cr_beside          beside;
    double                   *seconds, *moving; /* by op: see cr_program_seconds */
    double                   *begin;   /* by op, and the end: when nothing is swapped */
    size_t                   *load;    /* by op: bytes live when nothing is swapped */
    struct cr_swap_candidate *c;       /* by writer */
    int                       count;
    int                      *reader;  /* of the candidates, in order: ops */
    int                      *by_late; /* candidates in the order of their late use */
    int64_t                   visits;  /* schedules made so far */
};

/* The program must be selected. Candidates are those whose gap holds an op that is above the limit. */
CR_MUST cr_status cr_swap_work_open(const struct cr_program *program, const struct cr_target *target, size_t limit,
                                    struct cr_swap_work *out);
void              cr_swap_work_close(struct cr_swap_work *work);

/* When the copies of a set of candidates run. */
struct cr_swap_schedule {
    int    *sync, *go; /* by candidate: in front of which op; CR_NONE: not taken; go alone: read in place */
    double  total, stalled;
    size_t  peak;  /* bytes live at the fullest op */
    size_t  bytes; /* moved each way */
    int     tensors, read_there;
    /* for the making */
    double *begin, *out_end, *reading;
    int    *planned, *away;
    size_t *room;
};
CR_MUST cr_status cr_swap_schedule_open(const struct cr_swap_work *work, struct cr_swap_schedule *out);
void              cr_swap_schedule_close(struct cr_swap_schedule *schedule);
/* Least total that this set allows below the limit: compute waits where memory is wanted that is not free yet, or a tensor that is not
 * back. peak > limit: the set is not enough. */
void cr_swap_schedule_make(struct cr_swap_work *work, const enum cr_swap_take *taken, struct cr_swap_schedule *schedule);

/* Which candidates `score` takes: taken[count]. cr_swap_score_set fills the scores by themselves. */
void              cr_swap_score_set(struct cr_swap_work *work);
CR_MUST cr_status cr_swap_choose(struct cr_swap_work *work, enum cr_swap_score score, enum cr_swap_take *taken, struct cr_swap_schedule *schedule,
                                 enum cr_swap_score *won);

#endif

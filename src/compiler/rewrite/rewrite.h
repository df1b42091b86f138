/* compiler/rewrite/rewrite.h: how a pass replaces and removes ops without losing count of who writes and reads what.
 *
 * Laws
 *   - Between open and finish op indices and tensor ids stay as they were: removed ops are only marked. finish closes
 *     the gaps: ids and indices change, and so do the program's own references to them.
 *   - Waits, aliases and offsets belong to later passes: finish drops them.
 * Knows nothing of patterns or devices. */
#ifndef CR_REWRITE_H
#define CR_REWRITE_H

#include "graph/graph.h"

struct cr_edit {
    struct cr_program *program;
    int               *writer;   /* by tensor: the op that writes it first, or CR_NONE */
    int               *reads;    /* by tensor: input slots that hold it */
    int               *writes;   /* by tensor: output slots that hold it */
    int                capacity; /* of these three */
    bool              *removed;  /* by op */
    cr_status          failure;  /* of a question asked while deciding (a cost); finish returns it */
};
CR_MUST cr_status cr_edit_open(struct cr_edit *edit, struct cr_program *program);
void              cr_edit_close(struct cr_edit *edit); /* frees the edit, not the program; fine after a failed open */
void              cr_edit_remove(struct cr_edit *edit, int op);
void              cr_edit_replace(struct cr_edit *edit, int op, const struct cr_op *fresh);
/* A new transient, for an output that the plain ops did not have. One that nothing writes or reads in the end is
 * dropped again, so it may be made to ask about an op. CR_NONE: out of memory, which finish reports. */
int cr_edit_tensor(struct cr_edit *edit, const char *name, enum cr_dtype dtype, const int64_t dim[4]);
/* Closes the gaps: drops removed ops and the POOL tensors that nothing touches any more. */
CR_MUST cr_status cr_edit_finish(struct cr_edit *edit);

/* The op that writes `tensor` when it is of this kind, writes nothing else twice and `tensor` is a transient that
 * exactly one slot reads and nobody outside: then the two ops may be joined. CR_NONE otherwise. */
int cr_edit_private_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind);
/* The next op after `from` that reads `tensor`; CR_NONE: none. */
int cr_edit_next_reader(const struct cr_edit *edit, int tensor, int from);
/* A transient of this program that nobody outside reads. */
bool cr_edit_is_private(const struct cr_edit *edit, int tensor);
/* May the work of op `from` be done at the later place `to`: nothing between them writes what it reads. */
bool cr_edit_can_move(const struct cr_edit *edit, int from, int to);
/* May the work of op `from` be done right behind the earlier op `to`: nothing between them writes what it reads, and
 * nothing there reads or writes what it writes. */
bool cr_edit_can_move_up(const struct cr_edit *edit, int from, int to);

#endif

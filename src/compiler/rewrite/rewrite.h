/* compiler/rewrite/rewrite.h: replaces and removes ops of a program and counts the readers and writers of each tensor.
 *
 * Op indices and tensor ids stay valid between open and finish: a removed op is only marked. finish compacts the
 * program: indices, ids and the program's own references change. finish also clears waits, aliases and offsets, which
 * later passes set. */
#ifndef CR_REWRITE_H
#define CR_REWRITE_H

#include "compiler/cost_model.h"

struct cr_edit {
    struct cr_program          *program;    /* borrowed */
    const struct cr_cost_model *cost_model; /* borrowed */
    int                        *writer;     /* [tensors] first op that writes the tensor, or CR_NONE */
    int                        *reads;      /* [tensors] number of input slots that hold the tensor */
    int                        *writes;     /* [tensors] number of output slots that hold the tensor */
    int                         capacity;   /* length of these three arrays */
    bool                       *removed;    /* [ops] */
    cr_status                   failure;    /* first error of cost_model->cost inside a pattern; finish returns it */
};
/* Returns CR_ERR_MEMORY. close frees the edit but not the program, and accepts an edit whose open has failed. */
CR_MUST cr_status cr_edit_open(struct cr_edit *edit, struct cr_program *program,
                               const struct cr_cost_model *cost_model);
void              cr_edit_close(struct cr_edit *edit);
void              cr_edit_remove(struct cr_edit *edit, int op);
void              cr_edit_replace(struct cr_edit *edit, int op, const struct cr_op *fresh);
/* Adds a transient. finish drops it when no op reads or writes it, so a caller may add one to query the device about an
 * op. Returns its id; CR_NONE when an allocation fails; finish then returns CR_ERR_MEMORY. */
int cr_edit_tensor(struct cr_edit *edit, const char *name, enum cr_dtype dtype, const int64_t dim[4]);
/* Removes the marked ops, and the POOL tensors that no op uses. Returns `failure` or CR_ERR_MEMORY. */
CR_MUST cr_status cr_edit_finish(struct cr_edit *edit);

/* Index of the op that writes `tensor`, when that op is of this kind and the tensor is inner with one reading slot: the
 * op can be fused with its reader. CR_NONE otherwise. */
int cr_edit_private_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind);
/* Index of the first op behind `from` that reads `tensor`; CR_NONE: none. */
int cr_edit_next_reader(const struct cr_edit *edit, int tensor, int from);
/* Returns whether the tensor is a transient that only this program reads. */
bool cr_edit_is_private(const struct cr_edit *edit, int tensor);
/* Returns whether the tensor is private, with one writer and `reads` reading slots. */
bool cr_edit_is_inner(const struct cr_edit *edit, int tensor, int reads);
/* Returns whether op `from` can run at the later place `to`: no op between them writes a tensor that `from` reads. */
bool cr_edit_can_move(const struct cr_edit *edit, int from, int to);
/* Returns whether op `from` can run directly after the earlier op `to`: no op between them writes a tensor that `from`
 * reads, or reads or writes a tensor that `from` writes. */
bool cr_edit_can_move_up(const struct cr_edit *edit, int from, int to);

#endif

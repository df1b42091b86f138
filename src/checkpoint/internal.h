/* checkpoint/internal.h: what the files of checkpoint/checkpoint.h share among themselves; for nobody else. */
#ifndef CR_CHECKPOINT_PARTS_H
#define CR_CHECKPOINT_PARTS_H

#include "checkpoint/checkpoint.h"

/* ---- checkpoint/stream.c ---- */

/* Two buffers between file and store. */
struct cr_ckpt_stage {
    unsigned char *a, *b;
    size_t         bytes; /* of each */
};
/* Large enough for any of the tensors: a chunk, or a filter's K row where that is larger. */
CR_MUST cr_status cr_ckpt_stage_open(const struct cr_ckpt_tensor *tensors, int count, struct cr_ckpt_stage *stage);
void              cr_ckpt_stage_close(struct cr_ckpt_stage *stage);
CR_MUST cr_status cr_ckpt_tensor_out(struct cr_st_writer *writer, const struct cr_ckpt_tensor *tensor,
                                     const struct cr_ckpt_stage *stage, const struct cr_ckpt_io *io);
/* The shapes were checked; the entry's type may differ from the tensor's where it can be converted. */
CR_MUST cr_status cr_ckpt_tensor_in(struct cr_st_file *file, const struct cr_st_entry *entry,
                                    const struct cr_ckpt_tensor *tensor, const struct cr_ckpt_stage *stage,
                                    const struct cr_ckpt_io *io);
bool              cr_ckpt_can_convert(enum cr_dtype from, enum cr_dtype to);

/* ---- checkpoint/directory.c ---- */

int64_t           cr_ckpt_step_of(const char *name); /* "step-12" -> 12; anything else: -1 */
CR_MUST cr_status cr_ckpt_point(const char *run_dir, const char *link, int64_t step);
void              cr_ckpt_prune(const char *run_dir, int keep); /* failures are warnings */

#endif

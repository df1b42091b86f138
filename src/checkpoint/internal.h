/* checkpoint/internal.h: declarations that only the files of checkpoint/ share (stream, read, checksums). */
#ifndef CR_CHECKPOINT_INTERNAL_H
#define CR_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

/* ---- checkpoint/stream.c ---- */

/* Two host buffers for copies between file and store. Those of CR_CKPT_CACHED_BYTES stay in a second level cache. */
enum { CR_CKPT_CACHED_BYTES = 256 << 10 };
struct cr_ckpt_stage {
    unsigned char *a, *b;
    size_t         bytes; /* of each */
};
/* Allocates buffers that are large enough for all listed tensors: one chunk of at most `most` bytes, or one output
 * channel of a filter if this is larger. CR_ERR_MEMORY. */
CR_MUST cr_status cr_ckpt_stage_open(const struct cr_ckpt_tensor *tensors, int count, size_t most,
                                     struct cr_ckpt_stage *stage);
void              cr_ckpt_stage_close(struct cr_ckpt_stage *stage);
/* Copies one tensor from the parameter store to the file. */
CR_MUST cr_status cr_ckpt_tensor_out(struct cr_st_writer *writer, const struct cr_ckpt_tensor *tensor,
                                     const struct cr_ckpt_stage *stage, const struct cr_ckpt_io *io);
/* Copies one tensor from the file to the parameter store. The caller has checked the shape. The type in the file may
 * differ from the type in the parameter store when cr_ckpt_can_convert. */
CR_MUST cr_status cr_ckpt_tensor_in(struct cr_st_file *file, const struct cr_st_entry *entry,
                                    const struct cr_ckpt_tensor *tensor, const struct cr_ckpt_stage *stage,
                                    const struct cr_ckpt_io *io);
bool              cr_ckpt_can_convert(enum cr_dtype from, enum cr_dtype to);

/* ---- checkpoint/read.c ---- */

/* Reads all tensors of a file that has sums, with several threads, and checks them. CR_ERR_FORMAT names the first
 * damaged one in file order. */
CR_MUST cr_status cr_ckpt_verify_tensors(struct cr_st_file *file);

/* ---- checkpoint/checksums.c ---- */

/* Writes checksums.txt for the files of a new step folder. */
CR_MUST cr_status cr_ckpt_list_write(const char *folder);
/* Checks the files that checksums.txt lists, of .safetensors the headers. CR_OK for a folder without this list. With
 * `all`, also files that only a resumed run needs must exist. CR_ERR_FORMAT names the file. */
CR_MUST cr_status cr_ckpt_check_files(const char *folder, bool all);

/* ---- checkpoint/directory.c ---- */

/* Removes old checkpoints except the newest `keep` and the targets of the links. Failures cause warnings. */
void cr_ckpt_prune(const char *run_dir, int keep);

#endif

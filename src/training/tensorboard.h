/* training/tensorboard.h: the scalars of log.jsonl once more, as an event file that TensorBoard reads.
 *
 * Format: TFRecord (u64 length, masked CRC-32C of it, the bytes, their masked CRC-32C; little-endian) of protocol
 * buffers tensorflow.Event { 1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary, 7: SessionLog }
 * with Summary { 1: Value { 1: string tag, 2: float simple_value } } (tensorflow/core/util/event.proto,
 * framework/summary.proto). A run that goes on appends a file of its own; its first event says from which step on older
 * files count no more.
 *
 * Laws
 *   - Every number of a logged line becomes a scalar: the two logs cannot differ but in rounding to 32 bits.
 *   - Nothing is allocated after open. An event is written whole and at once: a reader sees whole records.
 * Knows nothing of runs. */
#ifndef CR_TENSORBOARD_H
#define CR_TENSORBOARD_H

#include "core/base.h"

struct cr_tensorboard;
/* Creates folder/events.out.tfevents.<seconds>.<host>.<pid>, named to sort behind those that are there. `first_step`:
 * what older files have from this step on is void; 0 or less: nothing is. CR_ERR_IO. */
CR_MUST cr_status cr_tensorboard_open(const char *folder, int64_t first_step, struct cr_tensorboard **out);
void              cr_tensorboard_close(struct cr_tensorboard *tensorboard); /* NULL is fine */
/* One event from the members of a JSON object ("\"step\":3,\"loss\":0.5"): the member "step" is the step, every other
 * number the scalar `group`/name; what is no number is left out. CR_ERR_IO when it cannot be written. */
CR_MUST cr_status cr_tensorboard_add(struct cr_tensorboard *tensorboard, const char *group, const char *members);

#endif

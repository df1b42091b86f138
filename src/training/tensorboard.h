/* training/tensorboard.h: writes the scalars of log.jsonl to an event file for TensorBoard.
 *
 * Format: TFRecord (u64 length, masked CRC-32C of it, the bytes, their masked CRC-32C; little-endian) of protocol
 * buffers tensorflow.Event { 1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary, 7: SessionLog }
 * with Summary { 1: Value { 1: string tag, 2: float simple_value } } (tensorflow/core/util/event.proto,
 * framework/summary.proto). A resumed run writes a new file. The first event of the new file names
 * the first step at which the events of older files are no longer valid.
 *
 * Invariants
 *   - Every number of a logged line becomes a scalar, rounded to 32 bits.
 *   - Nothing is allocated after open. Each event is written with one call, so that readers see complete records. */
#ifndef CR_TENSORBOARD_H
#define CR_TENSORBOARD_H

#include "core/base.h"

struct cr_tensorboard;
/* Creates folder/events.out.tfevents.<seconds>.<host>.<pid>; the name sorts after those of existing event files.
 * `first_step` > 0: events of older files at this step and later are no longer valid. CR_ERR_IO. */
CR_MUST cr_status cr_tensorboard_open(const char *folder, int64_t first_step, struct cr_tensorboard **out);
void              cr_tensorboard_close(struct cr_tensorboard *tensorboard); /* accepts NULL */
/* Writes one event from a line of log.jsonl, a JSON object. The member "step" is the step; every other number becomes
 * the scalar `group`/name; members that are not numbers are ignored. CR_ERR_IO. */
CR_MUST cr_status cr_tensorboard_add(struct cr_tensorboard *tensorboard, const char *group, const char *line);

#endif

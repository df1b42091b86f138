/* formats/protobuf.h: writes protocol buffers (used by ONNX files and TensorBoard event files) into a text.
 *
 * A message is a sequence of fields; a field is a key (number and wire type) and a value; a nested message is encoded
 * as its bytes. Encoding: https://protobuf.dev/programming-guides/encoding. An allocation failure sets `failed` of the
 * text permanently. */
#ifndef CR_PROTOBUF_H
#define CR_PROTOBUF_H

#include "core/base.h"

/* Adds the low `count` bytes of a number, little-endian, without a field key: for the framing around messages. */
void cr_pb_add_little(struct cr_text *out, uint64_t value, int count);

void cr_pb_add_int(struct cr_text *out, int field, int64_t value); /* int32, int64, uint64, enum */
void cr_pb_add_float(struct cr_text *out, int field, float value);
void cr_pb_add_double(struct cr_text *out, int field, double value);
void cr_pb_add_bytes(struct cr_text *out, int field, const void *bytes, size_t count);
void cr_pb_add_string(struct cr_text *out, int field, const char *s);
/* Adds `message` as a field of `out` and frees `message`. A failed message makes `out` failed. */
void cr_pb_add_message(struct cr_text *out, int field, struct cr_text *message);

#endif

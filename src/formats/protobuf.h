/* formats/protobuf.h: protocol buffers, written into a text: ONNX files and TensorBoard's events are made of them.
 *
 * A message is a sequence of fields, each a key (number and wire type) and a value; a message within another is its
 * bytes. The encoding: https://protobuf.dev/programming-guides/encoding. Out of memory is sticky in the text
 * (`failed`). */
#ifndef CR_PROTOBUF_H
#define CR_PROTOBUF_H

#include "core/base.h"

/* The low `count` bytes of a number, the lowest first. No field: for what surrounds messages. */
void cr_pb_add_little(struct cr_text *out, uint64_t value, int count);

void cr_pb_add_int(struct cr_text *out, int field, int64_t value); /* int32, int64, uint64, enum */
void cr_pb_add_float(struct cr_text *out, int field, float value);
void cr_pb_add_double(struct cr_text *out, int field, double value);
void cr_pb_add_bytes(struct cr_text *out, int field, const void *bytes, size_t count);
void cr_pb_add_string(struct cr_text *out, int field, const char *s);
/* A message as a field of another; it is freed, and a failure of it is one of `out`. */
void cr_pb_add_message(struct cr_text *out, int field, struct cr_text *message);

#endif

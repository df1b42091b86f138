/* formats/protobuf.c: encodes protobuf fields; see formats/protobuf.h. */
#include "formats/protobuf.h"

#include <string.h>

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void add_varint(struct cr_text *out, uint64_t value) {
    uint8_t bytes[10];
    size_t  count = 0;
    do {
        bytes[count] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        count++;
        value >>= 7;
    } while (value);
    cr_text_add_bytes(out, bytes, count);
}

static void add_key(struct cr_text *out, int field, enum wire wire) {
    add_varint(out, (uint64_t)field << 3 | (uint64_t)wire);
}

void cr_pb_add_little(struct cr_text *out, uint64_t value, int count) {
    uint8_t bytes[8];
    CR_ASSERT(count >= 0 && count <= 8);
    for (int i = 0; i < count; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    cr_text_add_bytes(out, bytes, (size_t)count);
}

void cr_pb_add_int(struct cr_text *out, int field, int64_t value) {
    add_key(out, field, WIRE_VARINT);
    add_varint(out, (uint64_t)value);
}

void cr_pb_add_float(struct cr_text *out, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(out, field, WIRE_32);
    cr_pb_add_little(out, bits, 4);
}

void cr_pb_add_double(struct cr_text *out, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(out, field, WIRE_64);
    cr_pb_add_little(out, bits, 8);
}

void cr_pb_add_bytes(struct cr_text *out, int field, const void *bytes, size_t count) {
    add_key(out, field, WIRE_BYTES);
    add_varint(out, count);
    if (count) cr_text_add_bytes(out, bytes, count);
}

void cr_pb_add_string(struct cr_text *out, int field, const char *s) {
    cr_pb_add_bytes(out, field, s, strlen(s));
}

void cr_pb_add_message(struct cr_text *out, int field, struct cr_text *message) {
    cr_pb_add_bytes(out, field, message->data, message->length);
    out->failed |= message->failed;
    cr_text_free(message);
}

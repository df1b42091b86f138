/* formats/torch/pickle_machine.c: the stack, the memo and the bytes of a running pickle. See
 * formats/torch/pickle_machine.h. */
#include "formats/torch/pickle_machine.h"

#include "core/files.h"

#include <string.h>

/* Python's names of the opcodes: one for each of the characters, and those from 0x80 on. */
static const char text_codes[] = "().012BCFGIJKLMNPQRSTUVX]abcdeghijlopqrstu}";
static const char text_names[] =
    "MARK\0EMPTY_TUPLE\0STOP\0POP\0POP_MARK\0DUP\0BINBYTES\0SHORT_BINBYTES\0FLOAT\0BINFLOAT\0INT\0BININT\0BININT1\0"
    "LONG\0BININT2\0NONE\0PERSID\0BINPERSID\0REDUCE\0STRING\0BINSTRING\0SHORT_BINSTRING\0UNICODE\0BINUNICODE\0"
    "EMPTY_LIST\0APPEND\0BUILD\0GLOBAL\0DICT\0APPENDS\0GET\0BINGET\0INST\0LONG_BINGET\0LIST\0OBJ\0PUT\0BINPUT\0"
    "LONG_BINPUT\0SETITEM\0TUPLE\0SETITEMS\0EMPTY_DICT\0";
static const char high_names[] =
    "PROTO\0NEWOBJ\0EXT1\0EXT2\0EXT4\0TUPLE1\0TUPLE2\0TUPLE3\0NEWTRUE\0NEWFALSE\0LONG1\0LONG4\0SHORT_BINUNICODE\0"
    "BINUNICODE8\0BINBYTES8\0EMPTY_SET\0ADDITEMS\0FROZENSET\0NEWOBJ_EX\0STACK_GLOBAL\0MEMOIZE\0FRAME\0BYTEARRAY8\0"
    "NEXT_BUFFER\0READONLY_BUFFER\0";

/* NULL for a byte that is no opcode. */
const char *cr_pickle_opcode(unsigned char code) {
    const char *name = code < 0x80 ? text_names : high_names;
    const char *text = code && code < 0x80 ? strchr(text_codes, code) : NULL;
    if (code < 0x80 && !text) return NULL;
    for (int left = text ? (int)(text - text_codes) : code - 0x80; left && *name; left--) name += strlen(name) + 1;
    return *name ? name : NULL;
}

/* ---- bytes ---- */

static cr_status fill_window(struct cr_pickle_machine *m) {
    struct cr_pickle *p    = m->pickle;
    const size_t      more = (size_t)CR_MIN(p->end - p->at, (uint64_t)CR_PICKLE_WINDOW);
    if (!more) return CR_PICKLE_BAD(p, "it is truncated: the pickle has no end");
    CR_TRY(cr_fs_read_at(p->fd, p->path, m->window, more, p->at));
    m->window_at    = p->at;
    m->window_bytes = more;
    return CR_OK;
}

cr_status cr_pickle_take_bytes(struct cr_pickle_machine *m, void *out, size_t count) {
    struct cr_pickle *p  = m->pickle;
    unsigned char    *to = out;
    p->bytes_read += (int64_t)count;
    if (p->bytes_read > CR_PICKLE_BYTES_MAX)
        return CR_PICKLE_BAD(p, "its pickle has more than %d MiB", CR_PICKLE_BYTES_MAX >> 20);
    while (count) {
        if (p->at < m->window_at || p->at >= m->window_at + m->window_bytes) CR_TRY(fill_window(m));
        const size_t from = (size_t)(p->at - m->window_at), now = CR_MIN(count, m->window_bytes - from);
        memcpy(to, m->window + from, now);
        to += now;
        count -= now;
        p->at += now;
    }
    return CR_OK;
}

/* A little-endian number of 1 to 8 bytes. */
cr_status cr_pickle_take_number(struct cr_pickle_machine *m, int bytes, uint64_t *out) {
    unsigned char raw[8] = {0};
    CR_TRY(cr_pickle_take_bytes(m, raw, (size_t)bytes));
    *out = 0;
    for (int i = bytes - 1; i >= 0; i--) *out = *out << 8 | raw[i];
    return CR_OK;
}

/* Reads `length` bytes into the arena and appends a 0. */
cr_status cr_pickle_take_text(struct cr_pickle_machine *m, uint64_t length, char **out) {
    struct cr_pickle *p = m->pickle;
    if (length > p->end - p->at) return CR_PICKLE_DAMAGED(m, "its text reaches beyond the end");
    if (length > CR_PICKLE_BYTES_MAX) return CR_PICKLE_DAMAGED(m, "its text is too long");
    *out = cr_arena_alloc(&p->arena, (size_t)length + 1);
    if (!*out) return CR_NO_MEMORY((size_t)length + 1);
    return cr_pickle_take_bytes(m, *out, (size_t)length);
}

/* A name of GLOBAL: ends with a newline. */
cr_status cr_pickle_take_line(struct cr_pickle_machine *m, char *out, size_t size) {
    for (size_t used = 0; used < size; used++) {
        CR_TRY(cr_pickle_take_bytes(m, &out[used], 1));
        if (out[used] != '\n') continue;
        out[used] = 0;
        return CR_OK;
    }
    return CR_PICKLE_DAMAGED(m, "its name is too long");
}

/* ---- the stack ---- */

enum { LEAST_CAPACITY = 256 };

cr_status cr_pickle_push(struct cr_pickle_machine *m, struct cr_pickle_value *value) {
    if (m->depth >= CR_PICKLE_VALUES_MAX) return CR_PICKLE_DAMAGED(m, "the stack is too deep");
    CR_GROW(m->stack, m->depth, m->stack_capacity, LEAST_CAPACITY);
    m->stack[m->depth++] = value;
    return CR_OK;
}

cr_status cr_pickle_push_new(struct cr_pickle_machine *m, enum cr_pickle_kind kind, struct cr_pickle_value **out) {
    CR_TRY(cr_pickle_new(m->pickle, kind, out));
    return cr_pickle_push(m, *out);
}

cr_status cr_pickle_push_integer(struct cr_pickle_machine *m, enum cr_pickle_kind kind, int64_t integer) {
    struct cr_pickle_value *v;
    CR_TRY(cr_pickle_push_new(m, kind, &v));
    v->integer = integer;
    return CR_OK;
}

/* Pops a value that lies above the last mark. */
cr_status cr_pickle_pop(struct cr_pickle_machine *m, struct cr_pickle_value **out) {
    if (m->depth <= (m->marks ? m->mark[m->marks - 1] : 0)) return CR_PICKLE_DAMAGED(m, "the stack is empty");
    *out = m->stack[--m->depth];
    return CR_OK;
}

cr_status cr_pickle_top(struct cr_pickle_machine *m, struct cr_pickle_value **out) {
    CR_TRY(cr_pickle_pop(m, out));
    m->depth++;
    return CR_OK;
}

cr_status cr_pickle_set_mark(struct cr_pickle_machine *m) {
    if (m->marks >= CR_PICKLE_VALUES_MAX) return CR_PICKLE_DAMAGED(m, "too many marks");
    CR_GROW(m->mark, m->marks, m->marks_capacity, LEAST_CAPACITY);
    m->mark[m->marks++] = m->depth;
    return CR_OK;
}

/* Removes the last mark: *from is the first stack position above it. */
cr_status cr_pickle_pop_mark(struct cr_pickle_machine *m, uint32_t *from) {
    if (!m->marks) return CR_PICKLE_DAMAGED(m, "there is no MARK before it");
    *from = m->mark[--m->marks];
    return CR_OK;
}

/* ---- the memo ---- */

cr_status cr_pickle_memo_put(struct cr_pickle_machine *m, uint64_t index) {
    struct cr_pickle_value *v;
    CR_TRY(cr_pickle_top(m, &v));
    if (index >= CR_PICKLE_VALUES_MAX) return CR_PICKLE_DAMAGED(m, "its index is too large");
    CR_GROW(m->memo, index, m->memo_capacity, LEAST_CAPACITY);
    m->memo[index] = v;
    m->memo_used   = CR_MAX(m->memo_used, (uint32_t)index + 1);
    return CR_OK;
}

cr_status cr_pickle_memo_get(struct cr_pickle_machine *m, uint64_t index) {
    if (index >= m->memo_used || !m->memo[index]) return CR_PICKLE_DAMAGED(m, "nothing was stored under its index");
    return cr_pickle_push(m, m->memo[index]);
}

/* formats/torch/pickle.c: the opcodes of pickles, restricted to plain values and tensors. See
 * formats/torch/pickle.h. */
#include "formats/torch/pickle_machine.h"

#include <string.h>

enum { PROTOCOL_MAX = 5 };

static cr_status refuse_opcode(const struct cr_pickle_machine *m) {
    const char *name = cr_pickle_opcode(m->opcode);
    if (!name)
        return CR_PICKLE_BAD(m->pickle, "it is damaged: byte 0x%02x at %" PRIu64 " is no opcode", m->opcode,
                             m->opcode_at);
    return CR_PICKLE_BAD(m->pickle,
                         "its pickle has the opcode %s at byte %" PRIu64 ", which torch.save does not write for "
                         "tensors: save it again with torch.save(model.state_dict(), FILE)",
                         name, m->opcode_at);
}

/* ---- containers ---- */

/* Moves what lies above the mark, or the last `count` values, into a new tuple or list. */
static cr_status collect(struct cr_pickle_machine *m, enum cr_pickle_kind kind, uint32_t from) {
    struct cr_pickle_value *v;
    CR_TRY(cr_pickle_new(m->pickle, kind, &v));
    if (kind == CR_PICKLE_DICT && (m->depth - from) % 2) return CR_PICKLE_DAMAGED(m, "a key has no value");
    for (uint32_t i = from; i < m->depth; i++) CR_TRY(cr_pickle_append(m->pickle, v, m->stack[i]));
    m->depth = from;
    return cr_pickle_push(m, v);
}

static cr_status collect_last(struct cr_pickle_machine *m, uint32_t count) {
    struct cr_pickle_value *v;
    const uint32_t          depth = m->depth;
    for (uint32_t i = 0; i < count; i++) CR_TRY(cr_pickle_pop(m, &v));
    m->depth = depth;
    return collect(m, CR_PICKLE_TUPLE, depth - count);
}

/* Appends the values from stack position `from` on to the list or dictionary below them. */
static cr_status extend(struct cr_pickle_machine *m, enum cr_pickle_kind kind, uint32_t from) {
    struct cr_pickle_value *v;
    if (from == 0 || from <= (m->marks ? m->mark[m->marks - 1] : 0)) return CR_PICKLE_DAMAGED(m, "the stack is empty");
    v = m->stack[from - 1];
    if (v->kind == CR_PICKLE_NOTHING) { /* a set or the like */
        m->depth = from;
        return CR_OK;
    }
    if (v->kind != kind) return CR_PICKLE_DAMAGED(m, kind == CR_PICKLE_LIST ? "not on a list" : "not on a dictionary");
    if (kind == CR_PICKLE_DICT && (m->depth - from) % 2) return CR_PICKLE_DAMAGED(m, "a key has no value");
    for (uint32_t i = from; i < m->depth; i++) CR_TRY(cr_pickle_append(m->pickle, v, m->stack[i]));
    m->depth = from;
    return CR_OK;
}

static cr_status extend_from_mark(struct cr_pickle_machine *m, enum cr_pickle_kind kind) {
    uint32_t from;
    CR_TRY(cr_pickle_pop_mark(m, &from));
    return extend(m, kind, from);
}

static cr_status extend_last(struct cr_pickle_machine *m, enum cr_pickle_kind kind, uint32_t count) {
    if (m->depth < count) return CR_PICKLE_DAMAGED(m, "the stack is empty");
    return extend(m, kind, m->depth - count);
}

/* ---- opcodes ---- */

static cr_status push_text(struct cr_pickle_machine *m, int length_bytes) {
    struct cr_pickle_value *v;
    uint64_t                length;
    char                   *data;
    CR_TRY(cr_pickle_take_number(m, length_bytes, &length));
    CR_TRY(cr_pickle_take_text(m, length, &data));
    CR_TRY(cr_pickle_push_new(m, CR_PICKLE_TEXT, &v));
    v->text.data   = data;
    v->text.length = (size_t)length;
    return CR_OK;
}

/* An integer of any length: two's complement, little-endian. */
static cr_status push_long(struct cr_pickle_machine *m, int length_bytes) {
    struct cr_pickle_value *v;
    uint64_t                length, integer = 0;
    char                   *data;
    CR_TRY(cr_pickle_take_number(m, length_bytes, &length));
    CR_TRY(cr_pickle_take_text(m, length, &data));
    if (length > sizeof integer) {
        CR_TRY(cr_pickle_push_new(m, CR_PICKLE_LONG, &v));
        v->text.data   = data;
        v->text.length = (size_t)length;
        return CR_OK;
    }
    memcpy(&integer, data, (size_t)length);
    if (length && length < sizeof integer && (data[length - 1] & 0x80)) integer |= ~UINT64_C(0) << (8 * length);
    return cr_pickle_push_integer(m, CR_PICKLE_INT, (int64_t)integer);
}

static cr_status push_global(struct cr_pickle_machine *m, const char *module, const char *name) {
    struct cr_pickle_value        *v;
    const struct cr_pickle_global *global;
    CR_TRY(cr_pickle_global(m->pickle, module, name, cr_pickle_opcode(m->opcode), m->opcode_at, &global));
    CR_TRY(cr_pickle_push_new(m, CR_PICKLE_FUNCTION, &v));
    v->global = global;
    return CR_OK;
}

static cr_status do_global(struct cr_pickle_machine *m) {
    char module[256], name[256];
    CR_TRY(cr_pickle_take_line(m, module, sizeof module));
    CR_TRY(cr_pickle_take_line(m, name, sizeof name));
    return push_global(m, module, name);
}

static cr_status do_stack_global(struct cr_pickle_machine *m) {
    struct cr_pickle_value *module, *name;
    CR_TRY(cr_pickle_pop(m, &name));
    CR_TRY(cr_pickle_pop(m, &module));
    if (module->kind != CR_PICKLE_TEXT || name->kind != CR_PICKLE_TEXT)
        return CR_PICKLE_DAMAGED(m, "its name is no text");
    return push_global(m, module->text.data, name->text.data);
}

static cr_status do_reduce(struct cr_pickle_machine *m) {
    struct cr_pickle_value *function, *arguments, *result;
    CR_TRY(cr_pickle_pop(m, &arguments));
    CR_TRY(cr_pickle_pop(m, &function));
    if (function->kind != CR_PICKLE_FUNCTION || arguments->kind != CR_PICKLE_TUPLE)
        return CR_PICKLE_DAMAGED(m, "it calls what is no function");
    CR_TRY(cr_pickle_call(m->pickle, function, arguments, &result));
    return cr_pickle_push(m, result);
}

static cr_status do_persistent(struct cr_pickle_machine *m) {
    struct cr_pickle_value *id, *storage;
    CR_TRY(cr_pickle_pop(m, &id));
    CR_TRY(cr_pickle_persistent(m->pickle, id, &storage));
    return cr_pickle_push(m, storage);
}

/* Attributes of a dictionary (the versions of modules in a state dict) have no meaning here. */
static cr_status do_build(struct cr_pickle_machine *m) {
    struct cr_pickle_value *state, *object;
    CR_TRY(cr_pickle_pop(m, &state));
    CR_TRY(cr_pickle_top(m, &object));
    if (object->kind == CR_PICKLE_DICT || object->kind == CR_PICKLE_NOTHING || object->kind == CR_PICKLE_TENSOR)
        return CR_OK;
    return CR_PICKLE_DAMAGED(m, "it sets attributes of what has none");
}

static cr_status do_frame(struct cr_pickle_machine *m) {
    uint64_t bytes;
    CR_TRY(cr_pickle_take_number(m, 8, &bytes));
    return bytes <= m->pickle->end - m->pickle->at ? CR_OK : CR_PICKLE_DAMAGED(m, "the frame reaches beyond the end");
}

static cr_status do_protocol(struct cr_pickle_machine *m) {
    uint64_t version;
    CR_TRY(cr_pickle_take_number(m, 1, &version));
    return version <= PROTOCOL_MAX ? CR_OK : CR_PICKLE_DAMAGED(m, "its version is not known");
}

static cr_status push_number(struct cr_pickle_machine *m, int bytes) {
    uint64_t n;
    CR_TRY(cr_pickle_take_number(m, bytes, &n));
    return cr_pickle_push_integer(m, CR_PICKLE_INT, bytes == 4 ? (int64_t)(int32_t)(uint32_t)n : (int64_t)n);
}

static cr_status push_float(struct cr_pickle_machine *m) {
    struct cr_pickle_value *v;
    uint64_t                bits;
    CR_TRY(cr_pickle_take_number(m, 8, &bits));
    return cr_pickle_push_new(m, CR_PICKLE_NOTHING, &v);
}

static cr_status from_memo(struct cr_pickle_machine *m, int bytes, bool put) {
    uint64_t index;
    CR_TRY(cr_pickle_take_number(m, bytes, &index));
    return put ? cr_pickle_memo_put(m, index) : cr_pickle_memo_get(m, index);
}

/* Containers and calls. */
static cr_status run_structure(struct cr_pickle_machine *m) {
    struct cr_pickle_value *v;
    uint32_t                from;
    switch (m->opcode) {
    case '(': return cr_pickle_set_mark(m);
    case '}': return cr_pickle_push_new(m, CR_PICKLE_DICT, &v);
    case ']': return cr_pickle_push_new(m, CR_PICKLE_LIST, &v);
    case ')': return cr_pickle_push_new(m, CR_PICKLE_TUPLE, &v);
    case 't':
    case 'l':
    case 'd':
        CR_TRY(cr_pickle_pop_mark(m, &from));
        return collect(m,
                       m->opcode == 't'   ? CR_PICKLE_TUPLE
                       : m->opcode == 'l' ? CR_PICKLE_LIST
                                          : CR_PICKLE_DICT,
                       from);
    case 0x85: return collect_last(m, 1);
    case 0x86: return collect_last(m, 2);
    case 0x87: return collect_last(m, 3);
    case 'a': return extend_last(m, CR_PICKLE_LIST, 1);
    case 'e': return extend_from_mark(m, CR_PICKLE_LIST);
    case 's': return extend_last(m, CR_PICKLE_DICT, 2);
    case 'u': return extend_from_mark(m, CR_PICKLE_DICT);
    case 'c': return do_global(m);
    case 0x93: return do_stack_global(m);
    case 'R': return do_reduce(m);
    case 'Q': return do_persistent(m);
    case 'b': return do_build(m);
    default: return refuse_opcode(m);
    }
}

/* Plain values and the memo. */
static cr_status run_opcode(struct cr_pickle_machine *m) {
    struct cr_pickle_value *v;
    switch (m->opcode) {
    case 0x80: return do_protocol(m);
    case 0x95: return do_frame(m);
    case 'N': return cr_pickle_push_new(m, CR_PICKLE_NOTHING, &v);
    case 0x88: return cr_pickle_push_integer(m, CR_PICKLE_BOOL, 1);
    case 0x89: return cr_pickle_push_integer(m, CR_PICKLE_BOOL, 0);
    case 'K': return push_number(m, 1);
    case 'M': return push_number(m, 2);
    case 'J': return push_number(m, 4);
    case 0x8a: return push_long(m, 1);
    case 0x8b: return push_long(m, 4);
    case 'G': return push_float(m);
    case 'U':
    case 'C':
    case 0x8c: return push_text(m, 1);
    case 'T':
    case 'B':
    case 'X': return push_text(m, 4);
    case 0x8d:
    case 0x8e: return push_text(m, 8);
    case 'q': return from_memo(m, 1, true);
    case 'r': return from_memo(m, 4, true);
    case 'h': return from_memo(m, 1, false);
    case 'j': return from_memo(m, 4, false);
    case 0x94: return cr_pickle_memo_put(m, m->memo_used);
    default: return run_structure(m);
    }
}

static cr_status run(struct cr_pickle_machine *m, struct cr_pickle_value **out) {
    m->window = cr_alloc(CR_PICKLE_WINDOW, 1);
    if (!m->window) return CR_NO_MEMORY(CR_PICKLE_WINDOW);
    for (;;) {
        unsigned char opcode;
        m->opcode_at = m->pickle->at;
        CR_TRY(cr_pickle_take_bytes(m, &opcode, 1));
        m->opcode = opcode;
        if (opcode == '.') break;
        CR_TRY(run_opcode(m));
    }
    CR_TRY(cr_pickle_pop(m, out));
    return m->depth || m->marks ? CR_PICKLE_DAMAGED(m, "values are left on the stack") : CR_OK;
}

cr_status cr_pickle_read(struct cr_pickle *pickle, struct cr_pickle_value **out) {
    struct cr_pickle_machine m      = {.pickle = pickle};
    const cr_status          status = run(&m, out);
    cr_free(m.stack);
    cr_free(m.memo);
    cr_free(m.mark);
    cr_free(m.window);
    return status == CR_OK ? CR_OK : cr_error_forward(status, __FILE__, __LINE__);
}

void cr_pickle_free(struct cr_pickle *pickle) {
    cr_free(pickle->storage);
    pickle->storage = NULL;
    cr_arena_free(&pickle->arena);
}

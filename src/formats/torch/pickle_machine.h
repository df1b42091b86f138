/* formats/torch/pickle_machine.h: the stack, the memo and the bytes of a running pickle. For pickle.c and
 * pickle_machine.c only. */
#ifndef CR_PICKLE_MACHINE_H
#define CR_PICKLE_MACHINE_H

#include "formats/torch/pickle.h"

#include <inttypes.h>

enum { CR_PICKLE_WINDOW = 64 << 10 };

struct cr_pickle_machine {
    struct cr_pickle        *pickle;
    struct cr_pickle_value **stack, **memo;
    uint32_t                 depth, stack_capacity, memo_capacity;
    uint32_t                 memo_used; /* highest index + 1 */
    uint32_t                *mark;      /* stack depths at MARK */
    uint32_t                 marks, marks_capacity;
    unsigned char           *window; /* bytes of the file from window_at on */
    uint64_t                 window_at;
    size_t                   window_bytes;
    unsigned char            opcode; /* the running one, and its offset in the file */
    uint64_t                 opcode_at;
};

/* Python's name of an opcode; NULL for a byte that is none. */
const char *cr_pickle_opcode(unsigned char code);
/* A damaged pickle: the running opcode cannot do its work. */
#define CR_PICKLE_DAMAGED(m, why)                                                                                      \
    CR_PICKLE_BAD((m)->pickle, "it is damaged: opcode %s at byte %" PRIu64 ": %s", cr_pickle_opcode((m)->opcode),      \
                  (m)->opcode_at, (why))

/* Reads bytes of the pickle. */
CR_MUST cr_status cr_pickle_take_bytes(struct cr_pickle_machine *m, void *out, size_t count);
/* Reads a little-endian number of 1 to 8 bytes. */
CR_MUST cr_status cr_pickle_take_number(struct cr_pickle_machine *m, int bytes, uint64_t *out);
/* Reads `length` bytes into the arena and appends a 0. */
CR_MUST cr_status cr_pickle_take_text(struct cr_pickle_machine *m, uint64_t length, char **out);
/* Reads a name of GLOBAL, which ends with a newline. */
CR_MUST cr_status cr_pickle_take_line(struct cr_pickle_machine *m, char *out, size_t size);
CR_MUST cr_status cr_pickle_push(struct cr_pickle_machine *m, struct cr_pickle_value *value);
/* Pushes a new value. */
CR_MUST cr_status cr_pickle_push_new(struct cr_pickle_machine *m, enum cr_pickle_kind kind,
                                     struct cr_pickle_value **out);
CR_MUST cr_status cr_pickle_push_integer(struct cr_pickle_machine *m, enum cr_pickle_kind kind, int64_t integer);
/* Pops a value that lies above the last mark. */
CR_MUST cr_status cr_pickle_pop(struct cr_pickle_machine *m, struct cr_pickle_value **out);
/* The same; the value stays on the stack. */
CR_MUST cr_status cr_pickle_top(struct cr_pickle_machine *m, struct cr_pickle_value **out);
CR_MUST cr_status cr_pickle_set_mark(struct cr_pickle_machine *m);
/* Removes the last mark: *from is the first stack position above it. */
CR_MUST cr_status cr_pickle_pop_mark(struct cr_pickle_machine *m, uint32_t *from);
/* Stores the top of the stack under an index. */
CR_MUST cr_status cr_pickle_memo_put(struct cr_pickle_machine *m, uint64_t index);
/* Pushes what was stored. */
CR_MUST cr_status cr_pickle_memo_get(struct cr_pickle_machine *m, uint64_t index);

#endif

/* inspect/lifetimes_csv.h: a memory-planning instance as CSV: columns id,lower,upper,size, lives half open; the plan adds offset.
 *
 * Laws
 *   - Columns come in any order; a column `offset` is an older plan and ignored; any other is refused, since it may
 * hold a demand (an alignment, a fixed place) that the plan would not meet.
 *   - Numbers are whole, up to 2^62; what is wrong is told as file:line.
 *   - cr_lives_check shares no code with any planner.
 * Knows nothing of programs or devices. */
#ifndef CR_LIVES_CSV_H
#define CR_LIVES_CSV_H

#include "compiler/compiler.h"

struct cr_lives {
    struct cr_life *life;
    const char    **id; /* parts of `text` */
    int            *line;
    int             count;
    char           *text;
};

CR_MUST cr_status cr_lives_read(const char *path, struct cr_lives *out);
/* The same from memory; `name` stands for the file in messages. The bytes are copied. */
CR_MUST cr_status cr_lives_parse(const char *name, const char *bytes, size_t count, struct cr_lives *out);
void              cr_lives_free(struct cr_lives *lives);
/* Rows in the order of the file: id,lower,upper,size,offset. */
void cr_lives_print(const struct cr_lives *lives, struct cr_text *out);
/* CR_ERR_FORMAT, and which, when two lives share a place at one time or one ends above the capacity. */
CR_MUST cr_status cr_lives_check(const struct cr_lives *lives, size_t capacity);

#endif

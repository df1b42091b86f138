/* harness/guard_pages.h: buffers next to a page without access. A load or store beyond the buffer ends the test program
 * with SIGSEGV, also one of vector instructions, whose accesses the address sanitizer does not see when they are
 * intrinsics, and also a load whose value is not used. */
#ifndef GUARD_PAGES_H
#define GUARD_PAGES_H

#include "tests/harness/test.h"

#include <sys/mman.h>

enum guard_side { GUARD_AFTER, GUARD_BEFORE, GUARD_SIDES };
enum { GUARD_PAGE = 4096 };

struct guarded {
    uint8_t *bytes; /* [count] zeros; ends (GUARD_AFTER) or begins (GUARD_BEFORE) at the page, at any alignment */
    size_t   count;
    void    *map;
    size_t   map_bytes;
};

static inline struct guarded guard_alloc(size_t count, enum guard_side side) {
    const size_t   room = (count + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    struct guarded g    = {.count = count, .map_bytes = room + 2 * (size_t)GUARD_PAGE};
    g.map               = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CR_ASSERT(g.map != MAP_FAILED);
    uint8_t *first = (uint8_t *)g.map + GUARD_PAGE;
    CR_ASSERT(room == 0 || mprotect(first, room, PROT_READ | PROT_WRITE) == 0);
    g.bytes = side == GUARD_AFTER ? first + room - count : first;
    return g;
}

static inline struct guarded guard_copy(const void *from, size_t count, enum guard_side side) {
    struct guarded g = guard_alloc(count, side);
    if (count) memcpy(g.bytes, from, count);
    return g;
}

static inline void guard_free(struct guarded *g) {
    munmap(g->map, g->map_bytes);
    *g = (struct guarded){0};
}
OWNABLE(guarded, struct guarded, guard_free(x))

/* Calls `each` at each level up to that of the test program. */
static inline void at_every_level(void (*each)(enum cr_cpu_level level)) {
    const enum cr_cpu_level most = cr_cpu_level();
    for (int level = CR_CPU_BASELINE; level <= (int)most; level++) {
        CHECK(cr_cpu_set_level((enum cr_cpu_level)level));
        each((enum cr_cpu_level)level);
    }
}

#endif

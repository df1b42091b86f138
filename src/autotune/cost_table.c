/* autotune/cost_table.c: the table of kernel times, kept in memory. See autotune/cost_table.h. */
#include "autotune/cost_table_internal.h"

#include <string.h>

uint64_t cr_cost_hash(const char *text) { /* FNV-1a, 64 bits */
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

bool cr_cost_stores_rejections(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad || kind == CR_OP_conv_grad;
}

int cr_cost_next(const struct cr_cost_table *c, const char *signature, uint64_t hash, int after) {
    int i = after != CR_NONE ? c->entry[after].next : c->buckets ? c->bucket[hash % (uint64_t)c->buckets] : CR_NONE;
    while (i != CR_NONE && (c->entry[i].hash != hash || strcmp(c->entry[i].signature, signature) != 0))
        i = c->entry[i].next;
    return i;
}

static void link_entry(struct cr_cost_table *c, int index) {
    int *first           = &c->bucket[c->entry[index].hash % (uint64_t)c->buckets];
    c->entry[index].next = *first;
    *first               = index;
}

void cr_cost_cut(struct cr_cost_table *c, int entries) {
    c->entries = entries;
    for (int i = 0; i < c->buckets; i++) c->bucket[i] = CR_NONE;
    for (int i = 0; i < entries; i++) link_entry(c, i);
}

static cr_status grow_table(struct cr_cost_table *c) {
    CR_GROW(c->entry, c->entries, c->capacity, 256);
    CR_GROW(c->bucket, c->capacity - 1, c->buckets, 256);
    cr_cost_cut(c, c->entries);
    return CR_OK;
}

cr_status cr_cost_add(struct cr_cost_table *c, const struct cr_cost_entry *entry) {
    if (c->entries == c->buckets) CR_TRY(grow_table(c));
    struct cr_cost_entry e = *entry;
    e.hash                 = cr_cost_hash(e.signature);
    e.signature            = cr_arena_printf(&c->arena, "%s", e.signature);
    if (!e.signature) return CR_NO_MEMORY(256);
    c->entry[c->entries] = e;
    link_entry(c, c->entries++);
    return CR_OK;
}

static bool is_fixed(const struct cr_cost_table *c, const char *signature, uint64_t hash) {
    for (int i = CR_NONE; c->fixed && (i = cr_cost_next(c, signature, hash, i)) != CR_NONE;)
        if (c->entry[i].source == CR_COST_CHECKPOINT) return true;
    return false;
}

/* Among equal times the entry that was added first wins. A signature that has an entry has all of its candidates, so
 * the kernels are not queried again; a query of a library takes longer than the launches. */
bool cr_cost_best_known(struct cr_cost_table *c, const char *signature, struct cr_cost *out) {
    const uint64_t hash  = cr_cost_hash(signature);
    const bool     fixed = is_fixed(c, signature, hash);
    int            best = CR_NONE, known = 0;
    for (int i = CR_NONE; (i = cr_cost_next(c, signature, hash, i)) != CR_NONE;) {
        struct cr_cost_entry *e = &c->entry[i];
        if (fixed && e->source != CR_COST_CHECKPOINT) continue;
        e->used = true;
        known++;
        if (e->kernel != CR_NONE && (best == CR_NONE || e->ns <= c->entry[best].ns))
            best = i; /* the iteration is newest first */
    }
    *out = (struct cr_cost){.kernel = CR_NONE};
    if (best != CR_NONE)
        *out = (struct cr_cost){
            .kernel = c->entry[best].kernel, .algo = c->entry[best].algo, .seconds = (double)c->entry[best].ns * 1e-9};
    return known > 0;
}

void cr_cost_free_table(struct cr_cost_table *c) {
    cr_free(c->entry);
    cr_free(c->bucket);
    cr_arena_free(&c->arena);
}

bool cr_cost_table_has_lasting_effect(const struct cr_cost_table *c, const struct cr_program *const *program,
                                      int programs) {
    for (int n = 0; n < programs; n++)
        for (int i = 0; i < program[n]->ops; i++)
            if (program[n]->op[i].kernel >= 0 && c->device->kernels[program[n]->op[i].kernel]->traits.sparse_cores)
                return false;
    return c->sparse_cores;
}

void cr_cost_table_close(struct cr_cost_table *c) {
    if (!c) return;
    cr_measure_memory_release(c->device, &c->scratch);
    cr_cost_unlock(c);
    cr_cost_free_table(c);
    cr_free(c);
}

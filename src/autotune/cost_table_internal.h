/* autotune/cost_table_internal.h: declarations that the files of autotune/ share; no other folder includes it. */
#ifndef CR_COST_TABLE_INTERNAL_H
#define CR_COST_TABLE_INTERNAL_H

#include "autotune/cost_table.h"

/* Where an entry comes from. */
enum cr_cost_source {
    CR_COST_FILE,
    CR_COST_CHECKPOINT, /* has priority over the other sources and is never written to the file */
    CR_COST_MEASURED,
    CR_COST_PARTIAL, /* measured, but memory was too short for some candidates. Not written to the file, because the
                        next run may have more memory */
    CR_COST_SHARED   /* measured while other processes used the device. Not written to the file */
};

/* Times of copies between host and device: both directions at once, one direction alone (OUT: to the host), and a small
 * copy. */
enum cr_copy_time {
    CR_COPY_TO_HOST,
    CR_COPY_TO_DEVICE,
    CR_COPY_OUT_ALONE,
    CR_COPY_IN_ALONE,
    CR_COPY_SMALL,
    CR_COPY_TIMES
};

/* Whether other processes use the device, as far as this process has seen. */
struct cr_cost_sharing {
    bool    known, shared; /* the result of the last test; known: there was one since the last flush */
    int64_t tested_ns;     /* time of the last test */
    int     tested;        /* entries before this index were measured before the last test */
    int     unsaved;       /* entries with source CR_COST_SHARED since the last warning */
};

/* One candidate of one signature. */
struct cr_cost_entry {
    uint64_t            hash; /* of the signature */
    const char         *signature;
    int                 kernel; /* index in device->kernels; CR_NONE: no kernel accepts this op */
    int                 algo;
    int64_t             ns; /* time of one launch */
    enum cr_cost_source source;
    bool                used; /* a query of this run was answered with the entry's signature */
    int                 next; /* index of the next entry in the same bucket; CR_NONE: none */
};

struct cr_cost_table {
    struct cr_device        *device;
    const char              *path, *identity; /* of the file; identity: the first line that this program writes */
    struct cr_cost_entry    *entry;
    int                      entries, capacity;
    int                     *bucket; /* [buckets]: index of the first entry by hash % buckets; CR_NONE: none */
    int                      buckets;
    int                      fixed;        /* number of entries that come from a checkpoint */
    bool                     queried;      /* a query has been answered, so load_fixed is no longer allowed */
    bool                     copies_known; /* copy_s holds the times */
    double                   copy_s[CR_COPY_TIMES];
    struct cr_measure_memory scratch;
    struct cr_cost_sharing   sharing;
    int                      lock; /* file descriptor of the locked file, while this process measures; CR_NONE: none */
    bool                     unlocked; /* the lock cannot be had: this process measures without it */
    int64_t         measured, reported, measure_ns, reported_ns; /* candidates and their time; already logged */
    bool            sparse_cores; /* a kernel that uses sparse tensor cores was measured */
    bool            dirty;        /* there are entries to write even if nothing was measured */
    bool            offline;      /* offline device: nothing is measured and nothing is written */
    struct cr_arena arena;        /* owns path, identity and signatures */
};

/* ---- autotune/cost_table.c ---- */

uint64_t          cr_cost_hash(const char *text);
CR_MUST cr_status cr_cost_signature(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op, struct cr_text *out);
/* Returns whether the table stores for ops of this kind that no kernel accepts them. */
bool cr_cost_stores_rejections(enum cr_op_kind kind);
/* Iterates over the entries of a signature, newest first: pass CR_NONE to begin; returns CR_NONE at the end. */
int cr_cost_next(const struct cr_cost_table *costs, const char *signature, uint64_t hash, int after);
/* Finds the fastest entry of the signature and marks its entries as used. out->kernel is CR_NONE when no kernel accepts
 * the op. Returns false when the table has no entry. */
bool cr_cost_best_known(struct cr_cost_table *costs, const char *signature, struct cr_cost *out);
/* Copies the entry and its signature into the table. */
CR_MUST cr_status cr_cost_add(struct cr_cost_table *costs, const struct cr_cost_entry *entry);
/* Removes all entries after the first `entries`. */
void cr_cost_cut(struct cr_cost_table *costs, int entries);
/* Frees entries, buckets and texts, but neither the scratch memory nor the table itself. */
void cr_cost_free_table(struct cr_cost_table *costs);

/* ---- autotune/copy_rates.c ---- */

/* Copies the measured copy rates, if there are any, into the model. */
void cr_cost_use_copy_rates(const struct cr_cost_table *costs, struct cr_cost_model *model);

/* ---- autotune/cost_file.c ---- */

/* Call before measuring. Waits while another process measures for the same file and the same GPU index, for 15 s at
 * most, and locks out others until the next flush. Returns whether the file was read again. */
bool cr_cost_lock(struct cr_cost_table *costs);
void cr_cost_unlock(struct cr_cost_table *costs);

/* ---- autotune/sharing.c ---- */

enum { CR_SHARING_TRIES = 3 }; /* tests at most until it is decided whether the device is shared */
enum cr_sharing { CR_SHARING_UNDECIDED, CR_SHARING_NO, CR_SHARING_YES };
/* Slowdown of reference work in a test, at least 1. Alone on the device it is close to 1. `launches`: mean time of
 * equal launches divided by the shortest one. `pieces`: the same for the clock cycles of the pieces of all launches. */
struct cr_contention {
    double launches, pieces;
};
double cr_sharing_of_launches(const double *seconds, int launches);
/* ticks: [blocks][3], see cr_async.reference_work; blocks without pieces do not count. */
double cr_sharing_of_pieces(const uint64_t *ticks, int blocks);
/* Decides by the tests so far. A first test without contention decides at once; otherwise two of three tests decide,
 * because a single interruption may be an accident. */
enum cr_sharing cr_sharing_decide(const struct cr_contention *contention, int tests);
/* Tests the device once. Used by the functions below and by tests/gpu. */
CR_MUST cr_status cr_sharing_measure(struct cr_device *device, struct cr_contention *out);
/* Call before measuring. Tests the device if the last test is older than half a second, and sets scratch.shared_device.
 * Entries that were added between two tests of which one found a shared device get the source CR_COST_SHARED. */
CR_MUST cr_status cr_sharing_before(struct cr_cost_table *costs);
/* Call before the entries are written. Tests the device if entries were measured since the last test. Warns about the
 * entries that will not be written, and returns their number. */
int cr_sharing_after(struct cr_cost_table *costs);

/* ---- autotune/cost_file_text.c ---- */

/* Sets costs->identity. */
CR_MUST cr_status cr_cost_make_identity(struct cr_cost_table *costs);
/* Adds all entries of `text`, which is modified. If the text has an error, no entry is added and *why says what is
 * wrong, cr_cost_other_device when the text was made for another device, library or version; otherwise *why is NULL. */
CR_MUST cr_status cr_cost_read_text(struct cr_cost_table *costs, char *text, size_t length, enum cr_cost_source source,
                                    const char **why);
extern const char cr_cost_other_device[];
void              cr_cost_add_header(const struct cr_cost_table *costs, struct cr_text *out);
void cr_cost_add_line(const struct cr_cost_table *costs, const struct cr_cost_entry *entry, struct cr_text *out);
void cr_cost_add_checksum(struct cr_text *out);

#endif

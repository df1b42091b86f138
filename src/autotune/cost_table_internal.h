/* autotune/cost_table_internal.h: what the files of the cost table share; private to costs*.c. */
#ifndef CR_COSTS_PARTS_H
#define CR_COSTS_PARTS_H

#include "autotune/cost_table.h"

enum cr_cost_source {
    CR_COST_FILE,
    CR_COST_CHECKPOINT, /* goes before all others and never into the file: the user's table is not another run's */
    CR_COST_MEASURED,
    CR_COST_PARTIAL /* measured too, but not all candidates: memory was short. Not for the file: the next run may have
                       more */
};

/* What is kept of copies between host and device: seconds of a large one each way, both at once, and of a small one. */
/* Then, where the device has rows for such work: a large copy to the host beside kinds of work, and the first of them
 * by itself and beside copies each way. */
enum cr_copy_time {
    CR_COPY_TO_HOST,
    CR_COPY_TO_DEVICE,
    CR_COPY_OUT_ALONE,
    CR_COPY_IN_ALONE,
    CR_COPY_SMALL,
    CR_COPY_OUT_ADD,
    CR_COPY_OUT_BN_SUMS,
    CR_COPY_OUT_CONV,
    CR_COPY_WORK_ALONE,
    CR_COPY_WORK_OUT,
    CR_COPY_WORK_IN,
    CR_COPY_TIMES
};

struct cr_cost_entry {        /* one candidate of one signature */
    uint64_t            hash; /* of the signature */
    const char         *signature;
    int                 kernel, algo; /* row: index in device->rows; CR_NONE: no row takes this */
    int64_t             ns;
    enum cr_cost_source source;
    bool                used; /* an answer of this run rested on it */
    int                 next; /* entry in the same bucket; CR_NONE: none */
};

struct cr_cost_table {
    struct cr_device     *device;
    const char           *path, *identity;
    struct cr_cost_entry *entry;
    int                   entries, capacity;
    int                  *bucket; /* first entry by hash % buckets; CR_NONE: none */
    int                   buckets;
    int                   fixed; /* how many entries are a checkpoint's */
    bool                  queried;
    bool                  copies_known, contention_known; /* the first five, the others */
    double                copy_s[CR_COPY_TIMES];
    struct cr_scratch     scratch;
    int64_t               measured, reported, measure_ns, reported_ns;
    bool                  sparse_cores; /* a row that runs on them was measured here */
    bool                  dirty;        /* the file lacks something, even if nothing was measured */
    bool                  offline;      /* of a device that is not there: nothing can be measured, nothing is written */
    struct cr_arena       arena;
};

uint64_t          cr_cost_hash(const char *text);
CR_MUST cr_status cr_cost_signature(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op, struct cr_text *out);
/* Is it remembered of this kind that no row takes an op? */
bool cr_cost_keeps_rejections(enum cr_op_kind kind);
/* The entries of a signature, the last added first: from CR_NONE on; CR_NONE: no more. */
int cr_cost_next(const struct cr_cost_table *costs, const char *signature, uint64_t hash, int after);
/* The fastest of what the table knows of the signature; row CR_NONE: it knows that no row takes it. False: it knows
 * nothing. */
bool cr_cost_best_known(struct cr_cost_table *costs, const char *signature, struct cr_cost *out);
/* Puts the rates of copies that were measured, if any, into the target. */
void cr_cost_use_copy_rates(const struct cr_cost_table *costs, struct cr_cost_model *target);
/* Copies the entry and its signature. */
CR_MUST cr_status cr_cost_add(struct cr_cost_table *costs, const struct cr_cost_entry *entry);
/* Keeps the first `entries` entries. */
void cr_cost_cut(struct cr_cost_table *costs, int entries);
/* Frees entries, buckets and texts; not the scratch memory, not the table itself. */
void cr_cost_free_table(struct cr_cost_table *costs);

/* ---- autotune/cost_text.c ---- */

/* Sets costs->identity, the header that this program writes. */
CR_MUST cr_status cr_cost_make_identity(struct cr_cost_table *costs);
/* Adds all entries of `text`, which is changed, or none when something is wrong with it: *why then says what, else it
 * is NULL. *other_device: the text is sound and belongs to another device, library or version. */
CR_MUST cr_status cr_cost_read_text(struct cr_cost_table *costs, char *text, size_t length, enum cr_cost_source source,
                                    const char **why, bool *other_device);
void              cr_cost_add_header(const struct cr_cost_table *costs, struct cr_text *out);
void cr_cost_add_line(const struct cr_cost_table *costs, const struct cr_cost_entry *entry, struct cr_text *out);
void cr_cost_add_checksum(struct cr_text *out);

/* ---- autotune/cost_file.c ---- */

/* Reads costs->path if it is there. A damaged file is ignored, with a line in the log when `verbose`. */
void cr_cost_read_file(struct cr_cost_table *costs, bool verbose);

/* ---- autotune/renamed.c ---- */

/* The present name of a kernel that an older version named `name`. */
const char *cr_cost_kernel_now(const char *name);
/* The present form of a signature that version 0.1 wrote. */
void cr_cost_signature_now(const char *old, struct cr_text *out);

#endif

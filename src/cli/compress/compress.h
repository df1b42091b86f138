/* cli/compress/compress.h: cresnet compress RUN: prunes, re-estimates BN statistics, fine-tunes with RUN as
 * teacher, with --int8 quantises, evaluates and measures, and prints a table.
 *
 * A try is one speedup with one set of patterns. Its folder OUT/NAME holds pruned/, bn/ (the same weights, other BN
 * statistics), tuned/ and int8/, all of them run folders, and for each of them NAME.eval.json and NAME.time.json.
 *
 * Invariants
 *   - A step is done when its JSON file is there; the file is written last and atomically. So the same command
 *     continues where it was stopped, and what a stopped step has left is removed or, for a training, continued.
 *   - Training, evaluation, quantisation and timing are processes that run `cresnet train`, `eval`, `quantize` and
 *     `bench infer`: a result is that of the command given by hand. Their messages appear as they come.
 *   - RUN is only read. */
#ifndef CR_COMPRESS_H
#define CR_COMPRESS_H

#include "checkpoint/checkpoint.h"
#include "cli/commands/prune.h"
#include "session/checkpoint_tensors.h"

enum { CR_COMPRESS_TRIES = 16, CR_COMPRESS_POINTS = 4 * CR_COMPRESS_TRIES + 4 };

enum cr_compress_step { CR_COMPRESS_DENSE, CR_COMPRESS_BN, CR_COMPRESS_TUNED, CR_COMPRESS_INT8 };

/* A network that was evaluated and timed. */
struct cr_compress_point {
    const char           *name;   /* "2x-channels" or "dense" */
    const char           *folder; /* its run folder */
    enum cr_compress_step step;
    double                accuracy;     /* top-1 or mAP, 0 to 1 */
    double                ms;           /* measured, of a batch */
    double                predicted_ms; /* 0: unknown */
    double                bytes;        /* of model.safetensors */
};
struct cr_compress_try {
    const char *name, *folder;
    double      speedup;
    int         set;         /* index in the sets of patterns */
    bool        unreachable; /* why[]: the message */
    char        why[512];
    double      bn_accuracy, accuracy; /* NAN: not evaluated; accuracy: of the last step */
};
struct cr_compress {
    const struct cr_args         *args;
    const struct cr_config       *config; /* of RUN with the keys of the command line */
    const char                   *run, *root, *ini;
    double                        speedup, max_drop; /* max_drop in points; infinite when not given */
    bool                          int8;
    int64_t                       batch;
    struct cr_budget_request      set[6]; /* patterns that are tried */
    const char                   *set_name[6];
    int                           sets;
    struct cr_compress_try        attempt[CR_COMPRESS_TRIES];
    int                           tries;
    struct cr_compress_point      point[CR_COMPRESS_POINTS];
    int                           points;
    const struct cr_compress_try *best; /* the network to use; NULL: none keeps the accuracy */
    struct cr_result             *out;
    struct cr_arena               arena;
};

/* ---- process.c ---- */

/* Runs `cresnet ARGUMENTS` and waits. Standard output goes to `file`, which appears when the process has succeeded.
 * arguments end with NULL; the keys of the command line are appended when `keys` is set. SIGINT and SIGTERM are
 * passed on, and out->signal becomes the signal. CR_ERR_IO when the process fails; it has said why. */
CR_MUST cr_status cr_compress_process(struct cr_compress *c, const char *const *arguments, bool keys, const char *file);

/* ---- results.c: JSON lines of other commands ---- */

/* Reads a number of the top level. CR_ERR_FORMAT when the file has no such number. */
CR_MUST cr_status cr_compress_number(const char *file, const char *name, double *out);
/* The number, or `otherwise` when the file lacks it. */
double cr_compress_number_or(const char *file, const char *name, double otherwise);
/* Reads a string of the top level; leaves `out` when the file lacks it. */
void cr_compress_string(const char *file, const char *name, char *out, size_t size);

/* ---- steps.c ---- */

/* Evaluates and times RUN; with --int8 also RUN in 8 bits. */
CR_MUST cr_status cr_compress_dense(struct cr_compress *c);
/* Prunes and re-estimates the BN statistics; sets unreachable or bn_accuracy. */
CR_MUST cr_status cr_compress_prune(struct cr_compress *c, struct cr_compress_try *t);
/* Fine-tunes, quantises; sets accuracy. */
CR_MUST cr_status cr_compress_tune(struct cr_compress *c, struct cr_compress_try *t);
/* Point of the unpruned network; NULL when missing. */
const struct cr_compress_point *cr_compress_reference(const struct cr_compress *c);
/* Drop of the accuracy in points. */
double cr_compress_drop(const struct cr_compress *c, double accuracy);

/* ---- recalibrate.c ---- */

/* Copies the pruned run folder `from` to the run folder `to`, with BN statistics of training batches, as ema.swa_start
 * computes them. */
CR_MUST cr_status cr_compress_recalibrate(const struct cr_compress *c, const char *from, const char *to);

/* ---- plan.c ---- */

/* Writes OUT/compress.ini, the configuration of the fine-tuning, unless it is there. */
CR_MUST cr_status cr_compress_write_ini(struct cr_compress *c);
/* Checks that OUT belongs to this command, or creates it. CR_ERR_CONFIG. */
CR_MUST cr_status cr_compress_claim(struct cr_compress *c);

#endif

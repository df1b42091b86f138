/* tests/harness/ranks_support.h: small training runs on several ranks, which are forked processes over shared memory,
 * and their results. */
#ifndef CR_RANKS_SUPPORT_H
#define CR_RANKS_SUPPORT_H

#include "session/checkpoint_tensors.h"
#include "tests/harness/run_support.h"

#include <sys/wait.h>

enum { RANKS_MAX_TESTED = 4, STEPS_MAX = 64 };

/* A small run of 200 images; each test gives batches and device. */
static inline struct run prepare_run(void) {
    struct run               r;
    static const char *const small[] = {"model.arch=custom",  "model.depths=1,1",      "model.widths=8,16",
                                        "model.shortcut=B",   "model.classes=5",       "data.kind=synthetic",
                                        "data.image_size=12", "data.crop=pad",         "data.train_images=200",
                                        "data.val_images=37", "data.workers=1",        "train.epochs=100",
                                        "train.threads=1",    "train.save_every=1000", "train.eval_every=0",
                                        "train.log_every=1",  "optim.lr=0.02",         "ranks.bucket_mib=0.004"};
    prepare_run_with(&r, small, CR_COUNT(small));
    return r;
}

/* ---- ranks ---- */

/* Timeout in seconds after which a silent rank counts as lost; used by runs that start later. */
static double ranks_timeout_s = 30;

/* *comm stays NULL with one rank. */
static inline cr_status open_comm(int rank, int size, void *shared, struct cr_comm **comm) {
    struct cr_comm_options where = {.rank         = rank,
                                    .size         = size,
                                    .local_rank   = rank,
                                    .local_size   = size,
                                    .shared       = shared,
                                    .rendezvous_s = 20,
                                    .timeout_s    = ranks_timeout_s};
    *comm                        = NULL;
    return size > 1 ? cr_comm_open(&where, comm) : CR_OK;
}

static inline int rank_main(int rank, int size, void *shared, const struct run *base, const char *name,
                            const char *resume, const char *const *more) {
    struct cr_comm *comm;
    cr_status       status = open_comm(rank, size, shared, &comm);
    if (status == CR_OK)
        status = train_run(base, name, (struct cr_train_options){.resume = resume, .comm = comm}, more);
    if (status != CR_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, cr_error_message());
        cr_comm_abort(comm, cr_error_message());
    }
    cr_comm_close(comm);
    return status == CR_OK ? 0 : cr_status_exit(status);
}

/* Trains on `size` ranks; returns the largest exit code. The calling process itself never computes, because threads do
 * not survive a fork. */
static inline int ranks(int size, const struct run *base, const char *name, const char *resume,
                        const char *const *more) {
    void *shared = NULL;
    pid_t pid[RANKS_MAX_TESTED];
    int   worst = 0;
    CR_ASSERT(size <= RANKS_MAX_TESTED);
    if (size > 1 && cr_comm_shared_new(size, &shared) != CR_OK) return -1;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        pid[r] = fork();
        if (pid[r] == 0) _exit(rank_main(r, size, shared, base, name, resume, more));
    }
    for (int r = 0; r < size; r++) {
        int state;
        if (waitpid(pid[r], &state, 0) != pid[r]) return -1;
        if (WIFSIGNALED(state))
            fprintf(stderr, "rank %d of %d: signal %d (%s)\n", r, size, WTERMSIG(state), strsignal(WTERMSIG(state)));
        worst = CR_MAX(worst, WIFEXITED(state) ? WEXITSTATUS(state) : 99);
    }
    cr_comm_shared_free(shared);
    return worst;
}
#define TRAIN(size, run, name, ...) ranks((size), (run), (name), NULL, (const char *const[]){__VA_ARGS__, NULL})
#define RESUME(size, run, name, ...) ranks((size), (run), (name), "auto", (const char *const[]){__VA_ARGS__, NULL})

/* ---- results of a run ---- */

static inline int losses_of(const struct run *r, const char *name, double loss[STEPS_MAX]) {
    char        line[1024];
    int         count = 0;
    OWNED(file) f     = fopen(formatted("%s/%s/log.jsonl", r->dir, name), "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"event\":\"train\"") ? strstr(line, "\"loss\":") : NULL;
        if (at && count < STEPS_MAX) loss[count++] = strtod(at + strlen("\"loss\":"), NULL);
    }
    return count;
}

static inline bool same_weights(const struct run *r, const char *a, const char *b) {
    return same_file(r, a, b, "model.safetensors");
}

static inline double relative(double a, double b) {
    return fabs(a - b) / fmax(fabs(a), 1e-9);
}

/* The first `steps` losses of two runs are close, and each has that many. */
static inline void check_same_losses(const struct run *r, const char *a, const char *b, int steps) {
    double x[STEPS_MAX], y[STEPS_MAX];
    CHECK_INT(losses_of(r, a, x), steps);
    CHECK_INT(losses_of(r, b, y), steps);
    for (int i = 0; i < steps; i++) CHECK(relative(x[i], y[i]) <= 1e-4);
}

#endif

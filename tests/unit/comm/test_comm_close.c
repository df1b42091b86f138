/* tests/unit/comm/test_comm_close.c: a rank is lost while another rank closes the data that its failure hook uses
 * (comm/comm.h, cr_comm_on_failure), as a device with NCCL does. Ranks are threads, so that TSan and ASan see it, and
 * processes, of which one is killed. */
#include "tests/harness/comm_support.h"

#include <sys/wait.h>

struct used_by_hook {
    atomic_int begun, gone, late; /* late: used after it was closed */
    int        slow_ms;
    int       *freed; /* memory that a device would free */
};

static void use(void *context) {
    struct used_by_hook *u = context;
    atomic_store(&u->begun, 1);
    if (u->slow_ms) nanosleep(&(struct timespec){.tv_nsec = u->slow_ms * 1000000L}, NULL);
    atomic_fetch_add(&u->late, atomic_load(&u->gone));
    if (!atomic_load(&u->gone)) u->freed[0]++;
}

static void close_used(struct cr_comm *comm, struct used_by_hook *u) {
    cr_comm_on_failure(comm, NULL, NULL);
    atomic_store(&u->gone, 1);
    free(u->freed);
}

/* The hook is running when rank 0 closes. */
static cr_status close_under_the_hook(struct member *m) {
    struct used_by_hook u = {.slow_ms = 50, .freed = calloc(1, sizeof(int))};
    cr_comm_on_failure(m->comm, use, &u);
    cr_status status = cr_comm_barrier(m->comm);
    if (m->where.rank == 1) cr_comm_abort(m->comm, "enough");
    while (m->where.rank == 0 && !atomic_load(&u.begun)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    close_used(m->comm, &u);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* u outlives a hook that close did not wait for */
    m->wrong += atomic_load(&u.late);
    return status;
}

/* The loss comes at any moment of a close; a sanitizer sees the faults. */
static cr_status close_at_any_moment(struct member *m) {
    struct used_by_hook u = {.freed = calloc(1, sizeof(int))};
    cr_comm_on_failure(m->comm, use, &u);
    cr_status status = cr_comm_barrier(m->comm);
    if (m->where.rank == 1) {
        nanosleep(&(struct timespec){.tv_nsec = m->wrong * 20000L}, NULL);
        cr_comm_abort(m->comm, "enough");
    }
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    close_used(m->comm, &u);
    m->wrong = atomic_load(&u.late);
    return status;
}

TEST(a_rank_is_lost_while_another_closes) {
    for (int transport = 0; transport < TRANSPORTS; transport++) {
        struct group g;
        group_init(&g, 2, (enum transport)transport, close_under_the_hook);
        group_run(&g);
        group_good(&g, transport_name[transport]);
        for (int moment = 0; moment < 30; moment++) {
            group_init(&g, 3, (enum transport)transport, close_at_any_moment);
            g.member[1].wrong = moment; /* the round sets the delay */
            group_run(&g);
            for (int r = 0; r < g.size; r++) CHECK_INT(g.member[r].wrong, 0);
        }
    }
}

/* Processes: rank 1 is killed while the others are about to close. */
static int close_next_to_a_killed_rank(const struct cr_comm_options *where, int moment) {
    struct member m = {.where = *where};
    if (cr_comm_open(where, &m.comm) != CR_OK) return 3;
    struct used_by_hook u = {.freed = calloc(1, sizeof(int))};
    cr_comm_on_failure(m.comm, use, &u);
    cr_status status = cr_comm_barrier(m.comm);
    if (status == CR_OK && where->rank == 1) {
        nanosleep(&(struct timespec){.tv_nsec = moment * 100000L}, NULL);
        raise(SIGKILL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 400000}, NULL);
    close_used(m.comm, &u);
    if (status == CR_OK) status = cr_comm_barrier(m.comm); /* as a device that waits for the others */
    const int late = atomic_load(&u.late);
    cr_comm_close(m.comm);
    return late ? 4 : status == CR_ERR_PEER ? 0 : 5;
}

TEST(a_process_is_killed_while_others_close) {
    for (int moment = 0; moment < 10; moment++) {
        struct group  g;
        pid_t         child[3];
        const int64_t start = cr_time_ns();
        group_init(&g, 3, TCP, NULL);
        for (int r = 0; r < 3; r++) {
            child[r] = fork();
            if (child[r] == 0) _exit(close_next_to_a_killed_rank(&g.member[r].where, moment));
        }
        for (int r = 0; r < 3; r++) {
            int how = -1;
            REQUIRE(child[r] > 0 && waitpid(child[r], &how, 0) == child[r]);
            if (r != 1 && (!WIFEXITED(how) || WEXITSTATUS(how) != 0))
                TEST_FAIL_("moment %d, rank %d: ended by %d", moment, r, how);
        }
        CHECK((double)(cr_time_ns() - start) * 1e-9 < 5);
    }
}

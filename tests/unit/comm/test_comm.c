/* tests/unit/comm/test_comm.c: collectives, votes and failures of comm/comm.h with ranks as threads, so that TSan sees
 * the whole protocol. Runs over each transport: shared memory, TCP with rank 0 in the middle, and TCP that finds all
 * ranks on one host and uses shared memory. Expected results are computed from the data that each rank sends. */
#include "tests/harness/comm_support.h"

/* The order of these f32 sums is visible in the result: large and small numbers of both signs. */
static float term(int rank, size_t i) {
    const uint32_t h = ((uint32_t)rank * 7919u + (uint32_t)i * 104729u) * 2654435761u;
    return ((float)(h >> 8) / 8388608.0f - 1.0f) * (h & 1 ? 1e6f : 1.0f);
}

static void check_sums(struct member *m, size_t count) {
    float *x = malloc((count + 1) * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = term(m->where.rank, i);
    x[count]  = 12345; /* not ours */
    m->status = cr_comm_all_reduce(m->comm, x, count, CR_COMM_F32);
    for (size_t i = 0; i < count && m->status == CR_OK; i++) {
        float sum = term(0, i);
        for (int r = 1; r < m->group->size; r++) sum += term(r, i);
        m->wrong += memcmp(&sum, &x[i], sizeof sum) != 0;
    }
    m->wrong += x[count] != 12345;
    free(x);
}

static cr_status all_collectives(struct member *m) {
    static const size_t counts[] = {0, 1, 3, 17, 1000, 65536, 65537, 300001};
    const int           size = m->group->size, rank = m->where.rank;
    for (size_t i = 0; i < CR_COUNT(counts); i++) {
        check_sums(m, counts[i]);
        CR_TRY(m->status);
        CR_TRY(cr_comm_barrier(m->comm));
    }
    double  d[2] = {0.1 * rank, 1e300};
    int64_t n[2] = {rank, -1};
    double  want = 0;
    for (int r = 1; r < size; r++) want += 0.1 * r;
    CR_TRY(cr_comm_all_reduce(m->comm, d, 2, CR_COMM_F64));
    CR_TRY(cr_comm_all_reduce(m->comm, n, 2, CR_COMM_I64));
    m->wrong += d[0] != want || n[0] != size * (size - 1) / 2 || n[1] != -size;
    for (size_t bytes = 0; bytes < 700000; bytes = bytes * 5 + 1) {
        unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)size + 1);
        for (size_t i = 0; i < bytes; i++) mine[i] = (unsigned char)(i * 31 + (size_t)rank * 7);
        CR_TRY(cr_comm_all_gather(m->comm, mine, bytes, all));
        for (size_t i = 0; i < bytes * (size_t)size; i++)
            m->wrong += all[i] != (unsigned char)(i % bytes * 31 + i / bytes * 7);
        for (int root = 0; root < size; root++) {
            for (size_t i = 0; i < bytes; i++) mine[i] = (unsigned char)(rank == root ? i * 13 + (size_t)root : 0);
            CR_TRY(cr_comm_broadcast(m->comm, mine, bytes, root));
            for (size_t i = 0; i < bytes; i++) m->wrong += mine[i] != (unsigned char)(i * 13 + (size_t)root);
        }
        free(mine);
        free(all);
    }
    uint64_t hash = 42;
    return cr_comm_same(m->comm, &hash, sizeof hash, "the hash");
}

static void on_every_transport(int size, cr_status (*work)(struct member *m)) {
    for (int transport = 0; transport < TRANSPORTS; transport++) {
        struct group g;
        group_init(&g, size, (enum transport)transport, work);
        group_run(&g);
        group_good(&g, transport_name[transport]);
    }
}

TEST(collectives) {
    static const int sizes[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < CR_COUNT(sizes); i++) on_every_transport(sizes[i], all_collectives);
    /* no communicator means a run of one rank */
    float x = 3;
    REQUIRE_OK(cr_comm_barrier(NULL));
    REQUIRE_OK(cr_comm_all_reduce(NULL, &x, 1, CR_COMM_F32));
    CHECK(x == 3 && cr_comm_size(NULL) == 1 && cr_comm_rank(NULL) == 0);
}

static cr_status look_around(struct member *m) {
    const struct cr_comm_rank_info *p     = cr_comm_rank_info(m->comm, m->where.rank);
    const bool                      apart = m->where.group[0] != 0;
    m->wrong += cr_comm_hosts(m->comm) != (apart ? (m->group->size + 1) / 2 : 1);
    m->wrong +=
        p->host != (apart ? m->where.rank / 2 : 0) || p->local_rank != (apart ? m->where.rank % 2 : m->where.rank);
    m->wrong += p->local_size != (!apart ? m->group->size : m->where.rank == 4 ? 1 : 2);
    return cr_comm_barrier(m->comm);
}

TEST(hosts_and_local_ranks) {
    on_every_transport(5, look_around);
}

static uint32_t requests(int rank, int n) {
    return n % 17 == rank ? 1u << rank % 3 : 0;
}

static cr_status vote_many(struct member *m) {
    const int size = m->group->size;
    for (int n = 0; n < 400; n++) {
        uint32_t want = 0, requested;
        CR_TRY(cr_comm_vote(m->comm, requests(m->where.rank, n), &requested));
        for (int r = 0; r < size && n >= CR_VOTE_LAG; r++) want |= requests(r, n - CR_VOTE_LAG);
        m->wrong += requested != want;
        if (n % 50 == m->where.rank) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        if (n % 37 == 0) {
            int64_t one = 1;
            CR_TRY(cr_comm_all_reduce(m->comm, &one, 1, CR_COMM_I64));
            m->wrong += one != size;
        }
    }
    return CR_OK;
}

TEST(votes) {
    on_every_transport(4, vote_many);
    uint32_t requested;
    REQUIRE_OK(cr_comm_vote(NULL, CR_REQUEST_TERM, &requested));
    CHECK_INT(requested, CR_REQUEST_TERM);
}

/* ---- failures ---- */

/* All ranks but `who` must fail with CR_ERR_PEER and a message with `part`; exactly one rank reports the error. */
static void all_learn(struct group *g, int who, const char *part, double within, const char *what) {
    int speakers = 0;
    for (int r = 0; r < g->size; r++) {
        const struct member *m = &g->member[r];
        speakers += m->reports_error;
        if (r == who) continue;
        if (m->status != CR_ERR_PEER)
            TEST_FAIL_("%s: rank %d: status %s (%s)", what, r, cr_status_name(m->status), m->message);
        if (!strstr(m->message, part)) TEST_FAIL_("%s: rank %d: \"%s\" lacks \"%s\"", what, r, m->message, part);
        if (m->seconds > within)
            TEST_FAIL_("%s: rank %d: after %.1f s, at most %.1f allowed", what, r, m->seconds, within);
    }
    CHECK_INT(speakers, 1);
}

static cr_status abort_in_the_middle(struct member *m) {
    CR_TRY(cr_comm_barrier(m->comm));
    if (m->where.rank == m->group->size - 1) {
        cr_comm_abort(m->comm, "the disk is full");
        return CR_OK;
    }
    return cr_comm_barrier(m->comm);
}

static cr_status abort_of_rank_0(struct member *m) {
    if (m->where.rank == 0) {
        cr_comm_abort(m->comm, "the image is damaged");
        return CR_OK;
    }
    while (cr_comm_check(m->comm) == CR_OK) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return cr_comm_check(m->comm);
}

static cr_status leave_early(struct member *m) {
    CR_TRY(cr_comm_barrier(m->comm));
    return m->where.rank == 1 ? CR_OK : cr_comm_barrier(m->comm);
}

static cr_status call_something_else(struct member *m) {
    int64_t x = 1;
    if (m->where.rank == 1) return cr_comm_broadcast(m->comm, &x, sizeof x, 0);
    return cr_comm_all_reduce(m->comm, &x, 1, CR_COMM_I64);
}

static cr_status differ(struct member *m) {
    int hash = m->where.rank == 2;
    return cr_comm_same(m->comm, &hash, sizeof hash, "the sum over the initial weights");
}

/* A rank that is alive but does not arrive: the others stop waiting after the timeout. */
static cr_status late(struct member *m) {
    CR_TRY(cr_comm_barrier(m->comm));
    if (m->where.rank == 1) {
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        return cr_comm_check(m->comm);
    }
    return cr_comm_barrier(m->comm);
}

/* The rank that `speaks` reports the error; -1: any. */
TEST(every_rank_learns_of_a_failure) {
    static const struct {
        cr_status (*work)(struct member *m);
        int         size, who, speaks;
        double      within, patience_s;
        const char *part;
        int         member; /* whose message also has `says` */
        const char *says;
    } cases[] = {{abort_in_the_middle, 4, 3, 3, 3, 20, "rank 3 of 4", 1, "the disk is full"},
                 {abort_of_rank_0, 3, 0, 0, 3, 20, "the image is damaged", 1, ""},
                 {leave_early, 3, 1, -1, 4, 20, "rank 1 of 3", 0, "ended its run"},
                 {call_something_else, 3, -1, -1, 3, 20, "call different collectives", 2, "broadcast of 8 bytes"},
                 {differ, 3, -1, -1, 3, 20, "the sum over the initial weights", 0, "rank 2 of 3"},
                 {late, 3, -1, -1, 4, 0.5, "ranks.patience", 0, ""}};
    for (int transport = 0; transport < TRANSPORTS; transport++)
        for (size_t i = 0; i < CR_COUNT(cases); i++) {
            struct group g;
            group_init(&g, cases[i].size, (enum transport)transport, cases[i].work);
            for (int r = 0; r < g.size; r++) g.member[r].where.wait_timeout_s = cases[i].patience_s;
            group_run(&g);
            all_learn(&g, cases[i].who, cases[i].part, cases[i].within, transport_name[transport]);
            CHECK_HAS(g.member[cases[i].member].message, cases[i].says);
            CHECK(cases[i].speaks < 0 || g.member[cases[i].speaks].reports_error);
        }
}

static atomic_int hook_calls;
static void       on_failure(void *context) {
          atomic_fetch_add(&hook_calls, *(int *)context);
}

static cr_status hooked(struct member *m) {
    static int one = 1;
    cr_comm_on_failure(m->comm, on_failure, &one);
    CR_TRY(cr_comm_barrier(m->comm));
    if (m->where.rank == 1) cr_comm_abort(m->comm, "enough");
    const int64_t end = cr_time_ns() + 3000000000;
    while (atomic_load(&hook_calls) < 2 && cr_time_ns() < end) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return CR_OK;
}

TEST(failure_hook) {
    for (int transport = 0; transport < TRANSPORTS; transport++) {
        struct group g;
        atomic_store(&hook_calls, 0);
        group_init(&g, 2, (enum transport)transport, hooked);
        group_run(&g);
        CHECK_INT(atomic_load(&hook_calls), 2);
    }
}

/* ---- starts that cannot succeed ---- */

static cr_status nothing(struct member *m) {
    return cr_comm_barrier(m->comm);
}

TEST(failed_starts) {
    struct group g;
    group_init(&g, 2, TCP, nothing);
    g.member[1].where.size = 3;
    group_run(&g);
    CHECK_STATUS(g.member[0].status, CR_ERR_CONFIG);
    CHECK_HAS(g.member[0].message, "one of 3 ranks");
    CHECK_HAS(g.member[1].message, "one of 3 ranks");
    CHECK_INT(g.member[1].status, CR_ERR_PEER);

    group_init(&g, 2, TCP, nothing); /* a rank of another job: refused, and the job of this port continues to wait */
    for (int r = 0; r < 2; r++) g.member[r].where.rendezvous_s = 1;
    snprintf(g.member[1].where.job, sizeof g.member[1].where.job, "other");
    group_run(&g);
    CHECK_STATUS(g.member[1].status, CR_ERR_CONFIG);
    CHECK_HAS(g.member[1].message, "belongs to another job (test; this job is other)");
    CHECK_INT(g.member[0].status, CR_ERR_PEER);
    CHECK_HAS(g.member[0].message, "did not connect to port");

    group_init(&g, 2, TCP, nothing); /* no process listens */
    g.member[1].where.port = free_port();
    for (int r = 0; r < 2; r++) g.member[r].where.rendezvous_s = 0.7;
    group_run(&g);
    CHECK_INT(g.member[1].status, CR_ERR_IO);
    CHECK_HAS(g.member[1].message, "does not respond on port");
    CHECK(g.member[0].seconds < 4 && g.member[1].seconds < 4);

    group_init(&g, 3, SHARED, nothing); /* only two of three ranks start */
    for (int r = 0; r < 2; r++) g.member[r].where.rendezvous_s = 0.5;
    g.size                 = 2;
    g.member[0].where.size = g.member[1].where.size = 3;
    group_run(&g);
    CHECK_INT(g.member[0].status, CR_ERR_PEER);
    CHECK_HAS(g.member[0].message, "did not connect within 0.5 s: 2");

    struct cr_comm_options w = g.member[0].where;
    struct cr_comm        *comm;
    w.shared = NULL;
    w.rank   = 3;
    CHECK_STATUS(cr_comm_open(&w, &comm), CR_ERR_CONFIG);
}

/* Another program has the port; another program answers there. */
TEST(port_of_another_program) {
    struct sockaddr_in at     = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          length = sizeof at;
    const int          fd     = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4) == 0 &&
            getsockname(fd, (struct sockaddr *)&at, &length) == 0);
    struct cr_comm_options w = {.rank           = 0,
                                .size           = 2,
                                .local_rank     = -1,
                                .address        = "127.0.0.1",
                                .port           = ntohs(at.sin_port),
                                .job            = "test",
                                .rendezvous_s   = 0.5,
                                .timeout_s      = 5,
                                .wait_timeout_s = 5};
    struct cr_comm        *comm;
    CHECK_STATUS(cr_comm_open(&w, &comm), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "is in use, perhaps by another job");
    w.rank = 1;
    CHECK_STATUS(cr_comm_open(&w, &comm), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "does not respond");
    close(fd);
    snprintf(w.address, sizeof w.address, "no-such-host.invalid");
    CHECK_STATUS(cr_comm_open(&w, &comm), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "MASTER_ADDR");
}

/* Port scanners also connect; some send data, some do not. */
static void *scan(void *argument) {
    struct sockaddr_in at = {.sin_family      = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port        = htons((uint16_t) * (int *)argument)};
    for (int i = 0; i < 20; i++) {
        const int fd         = socket(AF_INET, SOCK_STREAM, 0);
        char      text[1024] = "GET / HTTP/1.1\r\n\r\n";
        if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && i % 3)
            (void)!send(fd, text, i % 3 == 1 ? 18 : sizeof text, MSG_NOSIGNAL);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        close(fd);
    }
    return NULL;
}

static cr_status open_late(struct member *m) {
    CR_TRY(cr_comm_barrier(m->comm));
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    return cr_comm_barrier(m->comm);
}

TEST(port_scanners) {
    struct group g;
    pthread_t    scanner;
    group_init(&g, 3, TCP, open_late);
    REQUIRE(pthread_create(&scanner, NULL, scan, &g.member[0].where.port) == 0);
    group_run(&g);
    pthread_join(scanner, NULL);
    group_good(&g, "port_scanners on the port");
}

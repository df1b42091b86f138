/* tests/harness/comm_support.h: ranks as threads of one test; each rank opens a communicator over one transport and
 * runs a function. */
#ifndef CR_COMM_SUPPORT_H
#define CR_COMM_SUPPORT_H

#include "tests/harness/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 8 };
enum transport { SHARED, TCP, TCP_AND_SHARED, TRANSPORTS };
static const char *const transport_name[] = {"shared memory", "TCP", "TCP, then memory"};

struct group;
struct member {
    struct group          *group;
    struct cr_comm_options where;
    struct cr_comm        *comm;
    cr_status              status; /* of body */
    char                   message[1000];
    double                 seconds;
    bool                   reports_error;
    int                    wrong; /* number of wrong values */
};
struct group {
    int size;
    cr_status (*body)(struct member *m);
    struct member member[RANKS_MAX];
};

/* A port that is free at the moment. */
static int free_port(void) {
    struct sockaddr_in at     = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          length = sizeof at;
    const int          fd     = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || getsockname(fd, (struct sockaddr *)&at, &length) != 0)
        at.sin_port = 0;
    close(fd);
    return ntohs(at.sin_port);
}

static void group_init(struct group *g, int size, enum transport transport, cr_status (*body)(struct member *m)) {
    const int port   = transport == SHARED ? 0 : free_port();
    void     *shared = NULL;
    if (transport == SHARED && cr_comm_shared_new(size, &shared) != CR_OK) CHECK(!"shared memory");
    *g = (struct group){.size = size, .body = body};
    for (int r = 0; r < size; r++) {
        struct cr_comm_options *w = &g->member[r].where;
        g->member[r].group        = g;
        *w                        = (struct cr_comm_options){.rank           = r,
                                                             .size           = size,
                                                             .local_rank     = -1,
                                                             .local_size     = -1,
                                                             .address        = "127.0.0.1",
                                                             .port           = port,
                                                             .job            = "test",
                                                             .shared         = shared,
                                                             .rendezvous_s   = 20,
                                                             .timeout_s      = 20,
                                                             .wait_timeout_s = 20};
        /* over plain TCP, two ranks are on each simulated host */
        if (transport == TCP) snprintf(w->group, sizeof w->group, "%d", r / 2);
    }
}

static void *member_main(void *argument) {
    struct member *m     = argument;
    const int64_t  start = cr_time_ns();
    m->status            = cr_comm_open(&m->where, &m->comm);
    if (m->status == CR_OK) m->status = m->group->body(m);
    snprintf(m->message, sizeof m->message, "%s", cr_error_message());
    m->seconds       = (double)(cr_time_ns() - start) * 1e-9;
    m->reports_error = m->comm && cr_comm_reports_error(m->comm);
    cr_comm_close(m->comm);
    return NULL;
}

static void group_run(struct group *g) {
    pthread_t thread[RANKS_MAX];
    for (int r = 0; r < g->size; r++)
        if (pthread_create(&thread[r], NULL, member_main, &g->member[r]) != 0) abort();
    for (int r = 0; r < g->size; r++) pthread_join(thread[r], NULL);
    cr_comm_shared_free(g->member[0].where.shared);
}

static void group_good(struct group *g, const char *what) {
    for (int r = 0; r < g->size; r++) {
        if (g->member[r].status != CR_OK) TEST_FAIL_("%s: rank %d: %s", what, r, g->member[r].message);
        if (g->member[r].wrong) TEST_FAIL_("%s: rank %d: %d values are wrong", what, r, g->member[r].wrong);
    }
}

#endif

/* comm/tcp_listen.c: rank 0 listens for the other ranks, checks each connection, and sends the table of ranks.
 * See comm/tcp.h.
 *
 * Connections are read without blocking, because port scanners may connect too. Only a hello of this job counts. A
 * hello of another job is refused. A hello of this job that does not match (another number of ranks, a duplicate rank,
 * another version) ends the startup of all ranks, because they cannot form a run. */
#include "comm/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 256 };

struct connection {
    int                 fd;
    size_t              have;
    struct cr_tcp_hello hello;
};

struct rendezvous {
    struct cr_comm      *comm;
    struct cr_tcp_hello *rank; /* [size]; rank[r].size is 0 before rank r has connected */
    struct connection    connection[CONNECTIONS_MAX];
    int                  connections, joined; /* joined: accepted connections, two per rank */
};

/* ---- listening ---- */

static int listen_on(const struct addrinfo *at, int *error) {
    const int yes = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1024) == 0)
        return fd;
    *error = errno;
    if (fd >= 0) close(fd);
    return -1;
}

/* Listens on all addresses of this machine, for an address that is not its own (behind NAT, in a container). */
static int listen_anywhere(int port, int *error) {
    struct addrinfo hints = {.ai_family   = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags    = AI_PASSIVE | AI_NUMERICSERV},
                    *all;
    char service[16];
    int  fd = -1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(NULL, service, &hints, &all) != 0) return -1;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) fd = listen_on(a, error);
    freeaddrinfo(all);
    return fd;
}

/* True if this machine resolves its own name to a loopback address (127.0.1.1 in /etc/hosts is common), where no other
 * host can connect. */
static bool is_loopback_name(const char *name, const struct addrinfo *at) {
    if (strcmp(name, "localhost") == 0 || strspn(name, "0123456789.") == strlen(name) || strchr(name, ':'))
        return false; /* the user chose the loopback address */
    if (at->ai_family == AF_INET) return ntohl(((const struct sockaddr_in *)at->ai_addr)->sin_addr.s_addr) >> 24 == 127;
    return at->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at->ai_addr)->sin6_addr);
}

static cr_status start_listening(struct cr_comm *comm) {
    const struct cr_comm_options *w = &comm->options;
    struct addrinfo              *all;
    int                           error = EADDRNOTAVAIL, fd = -1;
    CR_TRY(cr_tcp_resolve(comm, &all));
    const bool anywhere = is_loopback_name(w->address, all);
    for (const struct addrinfo *a = all; a && fd < 0 && !anywhere; a = a->ai_next) fd = listen_on(a, &error);
    freeaddrinfo(all);
    if (fd < 0 && error == EADDRNOTAVAIL) fd = listen_anywhere(w->port, &error);
    if (fd < 0 && error == EADDRINUSE)
        return CR_FAIL(
            CR_ERR_IO,
            "rank 0: port %d of %s is in use, perhaps by another job: choose another port with ranks.port or "
            "MASTER_PORT, the same for all ranks",
            w->port, w->address);
    if (fd < 0)
        return CR_FAIL(CR_ERR_IO, "rank 0: cannot listen on port %d of %s: %s", w->port, w->address, strerror(error));
    comm->tcp->listen = fd;
    return CR_OK;
}

/* ---- answers ---- */

static void send_answer(int fd, enum cr_tcp_answer_code code, const char *text) {
    struct cr_tcp_answer a = {.magic = CR_TCP_MAGIC, .code = (uint32_t)code};
    snprintf(a.text, sizeof a.text, "%s", text);
    (void)cr_tcp_write(NULL, fd, &a, sizeof a, cr_time_ns() + INT64_C(1000000000));
}

static void refuse(int fd, const struct cr_comm_options *w, const struct cr_tcp_hello *hello) {
    char text[CR_COMM_TEXT_MAX];
    if (strcmp(hello->job, w->job) != 0)
        snprintf(text, sizeof text,
                 "port %d of %s belongs to another job (%s; this job is %s): choose another port with ranks.port or "
                 "MASTER_PORT",
                 w->port, w->address, *w->job ? w->job : "unnamed", *hello->job ? hello->job : "unnamed");
    else
        snprintf(text, sizeof text,
                 "the job on port %d of %s already has all its %d ranks: a second job needs another port (ranks.port "
                 "or MASTER_PORT)",
                 w->port, w->address, w->size);
    send_answer(fd, CR_TCP_REFUSED, text);
}

void cr_tcp_refuse_late(struct cr_comm *comm) {
    struct cr_tcp_hello hello = {0};
    const int           fd    = accept4(comm->tcp->listen, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (cr_tcp_read(NULL, fd, &hello, sizeof hello, cr_time_ns() + INT64_C(200000000)) == 0 &&
        hello.magic == CR_TCP_MAGIC) {
        hello.job[sizeof hello.job - 1] = 0;
        refuse(fd, &comm->options, &hello);
    }
    close(fd);
}

/* ---- checking connections ---- */

/* Returns true, with the reason in `text`, if this hello of our own job does not match the run. */
static bool does_not_match(const struct rendezvous *m, const struct cr_tcp_hello *h, char *text, size_t size) {
    const struct cr_comm_options *w = &m->comm->options;
    if (h->protocol != CR_TCP_PROTOCOL || strcmp(h->version, CR_VERSION) != 0) {
        snprintf(text, size,
                 "rank %d on %s runs cresnet %s, rank 0 on %s runs " CR_VERSION ": all ranks must run the same version",
                 h->rank, h->host_name, h->version, m->rank[0].host_name);
        return true;
    }
    if (h->size != w->size) {
        snprintf(
            text, size,
            "rank %d on %s was started as one of %d ranks, rank 0 on %s as one of %d: start all with the same number",
            h->rank, h->host_name, h->size, m->rank[0].host_name, w->size);
        return true;
    }
    if (h->rank < 1 || h->rank >= w->size || h->channel > CR_TCP_CONTROL) {
        snprintf(text, size, "%s claims to be rank %d of %d: %s", h->host_name, h->rank, w->size,
                 h->rank == 0 ? "rank 0 already uses this address (a second job on this port?)"
                              : "there is no such rank");
        return true;
    }
    const struct cr_tcp_hello *have = &m->rank[h->rank];
    if (!have->size || (have->pid == h->pid && strcmp(have->host_name, h->host_name) == 0)) return false;
    snprintf(text, size,
             "rank %d connected twice: from %s (process %lld) and from %s (process %lld). Do two jobs use one port? "
             "Choose another port with ranks.port or MASTER_PORT",
             h->rank, have->host_name, (long long)have->pid, h->host_name, (long long)h->pid);
    return true;
}

static void terminate_texts(struct cr_tcp_hello *h) {
    h->version[sizeof h->version - 1]     = 0;
    h->job[sizeof h->job - 1]             = 0;
    h->group[sizeof h->group - 1]         = 0;
    h->host_name[sizeof h->host_name - 1] = 0;
}

/* Handles a complete hello: keeps the connection, or closes it. */
static cr_status handle_hello(struct rendezvous *m, struct connection *c) {
    char                 text[CR_COMM_TEXT_MAX];
    struct cr_tcp_hello *h = &c->hello;
    terminate_texts(h);
    if (h->magic != CR_TCP_MAGIC || strcmp(h->job, m->comm->options.job) != 0) {
        if (h->magic == CR_TCP_MAGIC) refuse(c->fd, &m->comm->options, h);
        close(c->fd);
        return CR_OK;
    }
    const bool bad  = does_not_match(m, h, text, sizeof text);
    int       *slot = bad                         ? NULL
                      : h->channel == CR_TCP_DATA ? &m->comm->tcp->peer[h->rank].data
                                                  : &m->comm->tcp->peer[h->rank].control;
    if (bad) send_answer(c->fd, CR_TCP_REFUSED_BY_FAILURE, text);
    if (bad || *slot >= 0) {
        close(c->fd);
        return bad ? CR_FAIL(CR_ERR_CONFIG, "%s", text) : CR_OK;
    }
    *slot            = c->fd;
    m->rank[h->rank] = *h;
    m->joined++;
    cr_tcp_options(c->fd);
    send_answer(c->fd, CR_TCP_WELCOME, "");
    return CR_OK;
}

static void accept_one(struct rendezvous *m) {
    const int fd = accept4(m->comm->tcp->listen, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (m->connections == CONNECTIONS_MAX) { /* drops the oldest connection */
        close(m->connection[0].fd);
        memmove(m->connection, m->connection + 1, sizeof *m->connection * (CONNECTIONS_MAX - 1));
        m->connections--;
    }
    m->connection[m->connections++] = (struct connection){.fd = fd};
}

/* Continues to read a hello; *done: the connection leaves the list. */
static cr_status read_connection(struct rendezvous *m, struct connection *c, bool *done) {
    const ssize_t n = recv(c->fd, (char *)&c->hello + c->have, sizeof c->hello - c->have, MSG_DONTWAIT);
    *done           = false;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return CR_OK;
    if (n <= 0) {
        close(c->fd);
        *done = true;
        return CR_OK;
    }
    c->have += (size_t)n;
    if (c->have < sizeof c->hello) return CR_OK;
    *done = true;
    return handle_hello(m, c);
}

static cr_status rendezvous_round(struct rendezvous *m, int64_t deadline) {
    struct pollfd p[CONNECTIONS_MAX + 1];
    const int     connections = m->connections;
    for (int i = 0; i < connections; i++) p[i] = (struct pollfd){.fd = m->connection[i].fd, .events = POLLIN};
    p[connections] = (struct pollfd){.fd = m->comm->tcp->listen, .events = POLLIN};
    if (poll(p, (nfds_t)connections + 1, cr_tcp_poll_ms(deadline, 200)) <= 0) return CR_OK;
    for (int i = connections - 1; i >= 0; i--) {
        bool done = false;
        if (!p[i].revents) continue;
        cr_status status = read_connection(m, &m->connection[i], &done);
        if (done) m->connection[i] = m->connection[--m->connections];
        CR_TRY(status);
    }
    if (p[connections].revents) accept_one(m);
    return CR_OK;
}

static cr_status report_missing(const struct rendezvous *m) {
    struct cr_text text  = {0};
    int            named = 0, count = 0;
    for (int r = 1; r < m->comm->options.size; r++) {
        const struct cr_tcp_peer *p = &m->comm->tcp->peer[r];
        if (p->data >= 0 && p->control >= 0) continue;
        if (count++ < 16) cr_text_add(&text, "%s%d", named++ ? ", " : "", r);
    }
    if (count > named) cr_text_add(&text, " and %d more", count - named);
    cr_status status = CR_FAIL(
        CR_ERR_PEER,
        "%d ranks were expected; these did not connect to port %d of %s within %g s: %s. Were all ranks started "
        "with the same MASTER_ADDR and MASTER_PORT, and does no firewall block them? (timeout: ranks.meet)",
        m->comm->options.size, m->comm->options.port, m->comm->options.address, m->comm->options.rendezvous_s,
        text.failed ? "?" : text.data);
    cr_text_free(&text);
    return status;
}

/* ---- the table of ranks ---- */

/* Uses the launcher's local ranks on this host if they are 0 .. size - 1, each once; otherwise numbers the ranks. */
static void number_host(const struct rendezvous *m, int host) {
    const int size  = m->comm->options.size;
    int       count = 0;
    bool      given = true;
    for (int r = 0; r < size; r++) count += m->comm->info[r].host == host;
    for (int want = 0; want < count; want++) {
        int found = 0;
        for (int r = 0; r < size; r++) found += m->comm->info[r].host == host && m->rank[r].local_rank == want;
        given &= found == 1;
    }
    int next = 0;
    for (int r = 0; r < size; r++) {
        struct cr_comm_rank_info *p = &m->comm->info[r];
        if (p->host != host) continue;
        p->local_size = count;
        p->local_rank = given ? m->rank[r].local_rank : next;
        next++;
    }
}

static void fill_rank_table(const struct rendezvous *m) {
    struct cr_comm *comm = m->comm;
    comm->hosts          = 0;
    for (int r = 0; r < comm->options.size; r++) {
        struct cr_comm_rank_info *p = &comm->info[r];
        *p = (struct cr_comm_rank_info){.pid = (long)m->rank[r].pid, .pid_space = m->rank[r].pid_space, .host = -1};
        snprintf(p->host_name, sizeof p->host_name, "%s", m->rank[r].host_name);
        for (int q = 0; q < r && p->host < 0; q++)
            if (strcmp(m->rank[q].host_name, m->rank[r].host_name) == 0 &&
                strcmp(m->rank[q].group, m->rank[r].group) == 0)
                p->host = comm->info[q].host;
        if (p->host < 0) p->host = comm->hosts++;
    }
    for (int h = 0; h < comm->hosts; h++) number_host(m, h);
}

static cr_status send_rank_table(struct cr_comm *comm, int64_t deadline) {
    for (int r = 1; r < comm->options.size; r++) {
        const int fd = comm->tcp->peer[r].data;
        send_answer(fd, CR_TCP_WELCOME, "");
        int error = cr_tcp_write(NULL, fd, &comm->hosts, sizeof comm->hosts, deadline);
        if (!error)
            error = cr_tcp_write(NULL, fd, comm->info, (size_t)comm->options.size * sizeof *comm->info, deadline);
        char name[200];
        if (error)
            return CR_FAIL(CR_ERR_PEER, "lost the connection to %s during startup: %s",
                           cr_comm_name(comm, r, name, sizeof name), strerror(error));
    }
    return CR_OK;
}

static cr_status run_rendezvous(struct rendezvous *m, int64_t deadline) {
    const int want = 2 * (m->comm->options.size - 1);
    CR_TRY(start_listening(m->comm));
    while (m->joined < want) {
        if (cr_time_ns() > deadline) return report_missing(m);
        CR_TRY(rendezvous_round(m, deadline));
    }
    fill_rank_table(m);
    return send_rank_table(m->comm, deadline + INT64_C(5000000000));
}

cr_status cr_tcp_listen_rendezvous(struct cr_comm *comm, int64_t deadline) {
    struct rendezvous *m;
    cr_status          status;
    CR_ALLOC(m, 1);
    m->comm = comm;
    CR_ALLOC_OUT(m->rank, (size_t)comm->options.size);
    cr_tcp_hello_fill(comm, CR_TCP_DATA, &m->rank[0]);
    status = run_rendezvous(m, deadline);
out:
    for (int i = 0; i < m->connections; i++) close(m->connection[i].fd);
    for (int r = 1; status != CR_OK && r < comm->options.size; r++) /* waiting ranks receive the error too */
        if (comm->tcp->peer[r].data >= 0)
            send_answer(comm->tcp->peer[r].data, CR_TCP_REFUSED_BY_FAILURE, cr_error_message());
    cr_free(m->rank);
    cr_free(m);
    return status;
}

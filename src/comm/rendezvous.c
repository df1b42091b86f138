/* comm/rendezvous.c: connects a rank to rank 0 over TCP, and sets up shared memory if all ranks are on one host.
 * See comm/tcp.h. */
#include "comm/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const int64_t second_ns = 1000000000;

/* ---- connecting ---- */

/* Makes one attempt. Returns 0 with *out connected, or an errno. */
static int try_connect(const struct addrinfo *at, int64_t deadline, int *out) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return errno;
    int error = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        struct pollfd p      = {.fd = fd, .events = POLLOUT};
        socklen_t     length = sizeof error;
        const int     ready  = poll(&p, 1, cr_tcp_poll_ms(deadline, 3000));
        error                = ready > 0 ? 0 : ETIMEDOUT;
        if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    }
    if (error)
        close(fd);
    else
        *out = fd;
    return error;
}

/* Retries until the deadline: rank 0, its name or its network may appear later. */
static cr_status connect_until(const struct cr_comm *comm, int64_t deadline, int *out) {
    const struct cr_comm_options *w     = &comm->options;
    struct timespec               pause = {.tv_nsec = 20000000};
    for (;;) {
        struct addrinfo *all;
        cr_status        status = cr_tcp_resolve(comm, &all);
        int              error  = EADDRNOTAVAIL;
        if (status == CR_OK) {
            for (const struct addrinfo *a = all; a && error; a = a->ai_next) error = try_connect(a, deadline, out);
            freeaddrinfo(all);
            if (!error) return CR_OK;
        }
        if (cr_time_ns() > deadline) {
            if (status != CR_OK) return status;
            return CR_FAIL(CR_ERR_IO,
                           "rank %d: rank 0 does not respond on port %d of %s within %g s: %s. Check that rank 0 runs "
                           "and that no firewall blocks the port (timeout: ranks.meet)",
                           w->rank, w->port, w->address, w->rendezvous_s, strerror(error));
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 500000000) pause.tv_nsec *= 2;
    }
}

static cr_status read_answer(const struct cr_comm *comm, int fd, int64_t deadline) {
    const struct cr_comm_options *w = &comm->options;
    struct cr_tcp_answer          a;
    const int                     error = cr_tcp_read(NULL, fd, &a, sizeof a, deadline);
    if (error == ETIMEDOUT)
        return CR_FAIL(CR_ERR_IO,
                       "rank %d: the program that listens on port %d of %s does not respond. If it is not rank 0 of "
                       "this run, choose another port with ranks.port or MASTER_PORT",
                       w->rank, w->port, w->address);
    if (error)
        return CR_FAIL(CR_ERR_IO, "rank %d: rank 0 (port %d of %s) closed the connection: %s", w->rank, w->port,
                       w->address, strerror(error));
    if (a.magic != CR_TCP_MAGIC)
        return CR_FAIL(
            CR_ERR_IO,
            "rank %d: the program on port %d of %s is not cresnet: choose another port with ranks.port or MASTER_PORT",
            w->rank, w->port, w->address);
    a.text[sizeof a.text - 1] = 0;
    if (a.code == CR_TCP_REFUSED_BY_FAILURE) return CR_FAIL(CR_ERR_PEER, "%s", a.text);
    if (a.code != CR_TCP_WELCOME) return CR_FAIL(CR_ERR_CONFIG, "rank %d: %s", w->rank, a.text);
    return CR_OK;
}

static cr_status join(struct cr_comm *comm, uint32_t channel, int64_t deadline, int *fd) {
    struct cr_tcp_hello hello;
    cr_tcp_hello_fill(comm, channel, &hello);
    CR_TRY(connect_until(comm, deadline, fd));
    cr_tcp_options(*fd);
    const int error = cr_tcp_write(NULL, *fd, &hello, sizeof hello, deadline + second_ns);
    if (error)
        return CR_FAIL(CR_ERR_IO, "rank %d: rank 0 (port %d of %s) closed the connection: %s", comm->options.rank,
                       comm->options.port, comm->options.address, strerror(error));
    return read_answer(comm, *fd, deadline + second_ns);
}

/* Waits until all ranks have connected, then receives the table of ranks. */
static cr_status read_rank_table(struct cr_comm *comm, int64_t deadline) {
    const int fd = comm->tcp->peer[0].data;
    CR_TRY(read_answer(comm, fd, deadline));
    int error = cr_tcp_read(NULL, fd, &comm->hosts, sizeof comm->hosts, deadline);
    if (!error) error = cr_tcp_read(NULL, fd, comm->info, (size_t)comm->options.size * sizeof *comm->info, deadline);
    if (error)
        return CR_FAIL(CR_ERR_IO, "rank %d: lost the connection to rank 0 at %s during startup: %s", comm->options.rank,
                       comm->options.address, strerror(error));
    for (int r = 0; r < comm->options.size; r++) comm->info[r].host_name[CR_COMM_NAME_MAX - 1] = 0;
    return CR_OK;
}

cr_status cr_comm_tcp_rendezvous(struct cr_comm *comm) {
    const int64_t deadline = cr_time_ns() + (int64_t)(comm->options.rendezvous_s * 1e9);
    const int     peers    = comm->options.rank ? 1 : comm->options.size;
    CR_ALLOC(comm->tcp, 1);
    pthread_mutex_init(&comm->tcp->send, NULL);
    comm->tcp->listen = -1;
    CR_ALLOC(comm->tcp->peer, (size_t)peers);
    for (int r = 0; r < peers; r++) comm->tcp->peer[r].data = comm->tcp->peer[r].control = -1;
    if (comm->options.rank == 0) return cr_tcp_listen_rendezvous(comm, deadline);
    CR_TRY(join(comm, CR_TCP_DATA, deadline, &comm->tcp->peer[0].data));
    CR_TRY(join(comm, CR_TCP_CONTROL, deadline, &comm->tcp->peer[0].control));
    return read_rank_table(comm, deadline + 6 * second_ns);
}

/* ---- shared memory ---- */

struct offer {
    int64_t  pid; /* 0 without memory */
    int32_t  fd, unused;
    uint64_t token;
};

/* Creates anonymous shared memory: it disappears with the last process that has it mapped. */
static void *create_offer(int size, struct offer *offer) {
    const size_t bytes = cr_comm_shared_state_bytes(size);
    struct offer o     = {.pid = getpid(), .token = (uint64_t)cr_time_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid()};
    o.fd               = memfd_create("cresnet ranks", MFD_CLOEXEC);
    if (o.fd < 0) return NULL;
    void *p = ftruncate(o.fd, (off_t)bytes) == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o.fd, 0)
                                                 : MAP_FAILED;
    if (p == MAP_FAILED ||
        pwrite(o.fd, &o.token, sizeof o.token, 0) != sizeof o.token) { /* the magic number will overwrite the token */
        if (p != MAP_FAILED) munmap(p, bytes);
        close(o.fd);
        return NULL;
    }
    *offer = o;
    return p;
}

/* Maps another rank's memory through its process. This fails if processes do not see each other (containers). The token
 * detects a different process with the same id. */
static void *map_offer(int size, const struct offer *offer) {
    char         path[64];
    const size_t bytes = cr_comm_shared_state_bytes(size);
    uint64_t     token = 0;
    if (!offer->pid) return NULL;
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)offer->pid, offer->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    const bool ours = pread(fd, &token, sizeof token, 0) == sizeof token && token == offer->token;
    void      *p    = ours ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

cr_status cr_comm_tcp_share(struct cr_comm *comm) {
    const int    size   = comm->options.size;
    struct offer offer  = {0};
    int64_t      mapped = 0;
    void        *p      = NULL;
    if (comm->hosts > 1) return CR_OK;
    if (comm->options.rank == 0) p = create_offer(size, &offer);
    CR_TRY(cr_comm_broadcast(comm, &offer, sizeof offer, 0));
    if (comm->options.rank) p = map_offer(size, &offer);
    mapped           = p != NULL;
    cr_status status = cr_comm_all_reduce(comm, &mapped, 1, CR_COMM_I64);
    if (comm->options.rank == 0 && offer.pid) close(offer.fd);
    if (status == CR_OK && mapped == size && comm->options.rank == 0) cr_comm_shared_state_init(p, size, 0);
    if (status == CR_OK) status = cr_comm_barrier(comm); /* rank 0 has initialised the memory */
    if (status == CR_OK && mapped == size) {
        comm->shared_state      = p;
        comm->owns_shared_state = true;
    } else if (p)
        munmap(p, cr_comm_shared_state_bytes(size));
    return status;
}

/* comm/tcp_io.c: reads, writes and greetings on TCP connections. See comm/tcp.h. */
#include "comm/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FAILURE_WAIT_MS = 1500 };

/* ---- address and greeting ---- */

void cr_tcp_options(int fd) {
    const int yes = 1; /* sends small messages at once; a failure here only costs speed */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void cr_tcp_hello_fill(const struct cr_comm *comm, uint32_t channel, struct cr_tcp_hello *hello) {
    const struct cr_comm_options *w = &comm->options;
    *hello                          = (struct cr_tcp_hello){.magic      = CR_TCP_MAGIC,
                                                            .protocol   = CR_TCP_PROTOCOL,
                                                            .channel    = channel,
                                                            .rank       = w->rank,
                                                            .size       = w->size,
                                                            .local_rank = w->local_rank,
                                                            .pid        = getpid(),
                                                            .pid_space  = cr_comm_pid_space(),
                                                            .version    = CR_VERSION};
    memcpy(hello->job, w->job, sizeof hello->job);
    memcpy(hello->group, w->group, sizeof hello->group);
    gethostname(hello->host_name, sizeof hello->host_name - 1);
}

cr_status cr_tcp_resolve(const struct cr_comm *comm, struct addrinfo **out) {
    const struct cr_comm_options *w = &comm->options;
    const struct addrinfo hints     = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char                  service[16];
    snprintf(service, sizeof service, "%d", w->port);
    const int error = getaddrinfo(w->address, service, &hints, out);
    if (error)
        return CR_FAIL(CR_ERR_IO,
                       "rank %d: cannot resolve the address of rank 0, %s: %s. Set MASTER_ADDR to a host name or IP "
                       "address that all hosts can resolve",
                       w->rank, w->address, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return CR_OK;
}

/* ---- whole reads and writes ---- */

int cr_tcp_poll_ms(int64_t deadline, int longest) {
    if (!deadline) return longest;
    const int64_t left = (deadline - cr_time_ns()) / 1000000 + 1;
    return left < 0 ? 0 : left > longest ? longest : (int)left;
}

/* Waits for `events`, at most 100 ms. Returns 0 (the caller retries) or an errno. */
static int wait_ready(struct cr_comm *comm, int fd, short events, int64_t deadline) {
    struct pollfd p = {.fd = fd, .events = events};
    if (comm && atomic_load(&comm->failed)) return ECANCELED;
    if (deadline && cr_time_ns() > deadline) return ETIMEDOUT;
    return poll(&p, 1, cr_tcp_poll_ms(deadline, 100)) < 0 && errno != EINTR ? errno : 0;
}

static int transfer(struct cr_comm *comm, int fd, char *at, size_t count, int64_t deadline, bool write) {
    while (count) {
        const ssize_t n = write ? send(fd, at, count, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, count, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            count -= (size_t)n;
            continue;
        }
        if (n == 0) return ECONNRESET;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno == EPIPE ? ECONNRESET : errno;
        const int error = wait_ready(comm, fd, write ? POLLOUT : POLLIN, deadline);
        if (error) return error;
    }
    return 0;
}

int cr_tcp_write(struct cr_comm *comm, int fd, const void *bytes, size_t count, int64_t deadline) {
    return transfer(comm, fd, (char *)bytes, count, deadline, true);
}

int cr_tcp_read(struct cr_comm *comm, int fd, void *bytes, size_t count, int64_t deadline) {
    return transfer(comm, fd, bytes, count, deadline, false);
}

int64_t cr_tcp_wait_deadline(const struct cr_comm *comm) {
    return comm->options.wait_timeout_s > 0 ? cr_time_ns() + (int64_t)(comm->options.wait_timeout_s * 1e9) : 0;
}

cr_status cr_tcp_connection_failed(struct cr_comm *comm, int rank, int error, const char *doing) {
    char name[200];
    if (error == ECANCELED || atomic_load(&comm->failed)) return cr_comm_failed(comm);
    cr_comm_name(comm, rank, name, sizeof name);
    if (error == ETIMEDOUT)
        return cr_comm_raise(comm, rank, comm->options.rank,
                             "%s is alive, but rank %d has waited %.0f s for it in %s: it hangs, or it does something "
                             "long (then raise ranks.patience)",
                             name, comm->options.rank, comm->options.wait_timeout_s, doing);
    /* The watcher thread may receive a more precise cause within a short time. */
    if (cr_comm_await_failure(comm, FAILURE_WAIT_MS)) return cr_comm_failed(comm);
    return cr_comm_raise(comm, rank, comm->options.rank,
                         "%s ended its run or lost its connection while rank %d was waiting for it in %s: %s", name,
                         comm->options.rank, doing, strerror(error));
}

/* comm/tcp.c: collectives over TCP, for ranks on several hosts. See comm/tcp.h.
 *
 * Every rank sends the description of its call and its data to rank 0. Rank 0 receives them in rank order and replies
 * to all. Rank 0 computes the sums, in rank order. Large reductions are divided into chunks. This transport is slow;
 * GPU gradients do not use it. */
#include "comm/tcp.h"

#include <string.h>

enum { CHUNK_BYTES = 1 << 20 };

static cr_status send_data(struct cr_comm *comm, int rank, const void *bytes, size_t count,
                           const struct cr_comm_call *call) {
    const int error = cr_tcp_write(comm, comm->tcp->peer[rank].data, bytes, count, cr_tcp_wait_deadline(comm));
    return error ? cr_tcp_connection_failed(comm, rank, error, cr_comm_kind_name(call->kind)) : CR_OK;
}

static cr_status receive_data(struct cr_comm *comm, int rank, void *bytes, size_t count,
                              const struct cr_comm_call *call) {
    const int error = cr_tcp_read(comm, comm->tcp->peer[rank].data, bytes, count, cr_tcp_wait_deadline(comm));
    return error ? cr_tcp_connection_failed(comm, rank, error, cr_comm_kind_name(call->kind)) : CR_OK;
}

/* ---- collectives ---- */

/* All ranks send the description of their call; rank 0 compares them. */
static cr_status check_same_call(struct cr_comm *comm, const struct cr_comm_call *call) {
    if (comm->options.rank) return send_data(comm, 0, call, sizeof *call, call);
    for (int r = 1; r < comm->options.size; r++) {
        struct cr_comm_call theirs;
        CR_TRY(receive_data(comm, r, &theirs, sizeof theirs, call));
        CR_TRY(cr_comm_same_call(comm, r, call, &theirs));
    }
    return CR_OK;
}

static cr_status send_to_all(struct cr_comm *comm, const struct cr_comm_call *call, const void *data, size_t bytes,
                             int except) {
    for (int r = 1; r < comm->options.size; r++)
        if (r != except) CR_TRY(send_data(comm, r, data, bytes, call));
    return CR_OK;
}

static cr_status tcp_broadcast(struct cr_comm *comm, const struct cr_comm_call *call, void *data) {
    const int root = (int)call->detail;
    CR_TRY(check_same_call(comm, call));
    if (comm->options.rank == 0) {
        if (root) CR_TRY(receive_data(comm, root, data, call->bytes, call));
        return send_to_all(comm, call, data, call->bytes, root);
    }
    return comm->options.rank == root ? send_data(comm, 0, data, call->bytes, call)
                                      : receive_data(comm, 0, data, call->bytes, call);
}

static cr_status tcp_gather(struct cr_comm *comm, const struct cr_comm_call *call, const void *mine, void *all) {
    const size_t bytes = call->bytes, total = bytes * (size_t)comm->options.size;
    uint64_t     go = call->number; /* the reply to a barrier */
    CR_TRY(check_same_call(comm, call));
    if (comm->options.rank) {
        if (bytes) CR_TRY(send_data(comm, 0, mine, bytes, call));
        return bytes ? receive_data(comm, 0, all, total, call) : receive_data(comm, 0, &go, sizeof go, call);
    }
    if (!bytes) return send_to_all(comm, call, &go, sizeof go, 0);
    if (all != mine) memmove(all, mine, bytes);
    for (int r = 1; r < comm->options.size; r++)
        CR_TRY(receive_data(comm, r, (char *)all + (size_t)r * bytes, bytes, call));
    return send_to_all(comm, call, all, total, 0);
}

static cr_status reduce_chunk(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    const size_t bytes = count * cr_comm_type_bytes((enum cr_comm_type)call->detail);
    if (comm->options.rank) {
        CR_TRY(send_data(comm, 0, data, bytes, call));
        return receive_data(comm, 0, data, bytes, call);
    }
    for (int r = 1; r < comm->options.size; r++) {
        CR_TRY(receive_data(comm, r, comm->tcp->chunk, bytes, call));
        cr_comm_add(data, comm->tcp->chunk, count, (enum cr_comm_type)call->detail);
    }
    return send_to_all(comm, call, data, bytes, 0);
}

static cr_status tcp_reduce(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    const size_t each = cr_comm_type_bytes((enum cr_comm_type)call->detail), chunk = CHUNK_BYTES / each;
    if (!comm->tcp->chunk && !(comm->tcp->chunk = cr_alloc(CHUNK_BYTES, 1))) return CR_NO_MEMORY(CHUNK_BYTES);
    CR_TRY(check_same_call(comm, call));
    for (size_t at = 0; at < count; at += chunk)
        CR_TRY(reduce_chunk(comm, call, (char *)data + at * each, CR_MIN(chunk, count - at)));
    return CR_OK;
}

const struct cr_comm_transport cr_comm_transport_tcp = {tcp_broadcast, tcp_gather, tcp_reduce, cr_tcp_vote};

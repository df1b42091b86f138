/* comm/dispatch.c: collectives (barrier, broadcast, all-gather, all-reduce), passed to a transport. See comm/comm.h. */
#include "comm/transport.h"

#include <string.h>

size_t cr_comm_type_bytes(enum cr_comm_type type) {
    return type == CR_COMM_F32 ? 4 : 8;
}

void cr_comm_add(void *sum, const void *x, size_t count, enum cr_comm_type type) {
    switch (type) {
    case CR_COMM_F32:
        for (size_t i = 0; i < count; i++) ((float *)sum)[i] += ((const float *)x)[i];
        break;
    case CR_COMM_F64:
        for (size_t i = 0; i < count; i++) ((double *)sum)[i] += ((const double *)x)[i];
        break;
    case CR_COMM_I64: /* unsigned: an overflow wraps in the same way on all ranks */
        for (size_t i = 0; i < count; i++) ((uint64_t *)sum)[i] += ((const uint64_t *)x)[i];
        break;
    }
}

static bool single_rank(const struct cr_comm *comm) {
    return !comm || comm->options.size == 1;
}

static struct cr_comm_call next_call(struct cr_comm *comm, enum cr_comm_kind kind, uint32_t detail, size_t bytes) {
    return (struct cr_comm_call){.kind = (uint32_t)kind, .detail = detail, .number = comm->calls++, .bytes = bytes};
}

cr_status cr_comm_barrier(struct cr_comm *comm) {
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BARRIER, 0, 0);
    return comm->transport->gather(comm, &call, NULL, NULL);
}

cr_status cr_comm_broadcast(struct cr_comm *comm, void *data, size_t bytes, int root) {
    if (single_rank(comm)) return CR_OK;
    CR_ASSERT(root >= 0 && root < comm->options.size);
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BROADCAST, (uint32_t)root, bytes);
    return comm->transport->broadcast(comm, &call, data);
}

cr_status cr_comm_all_gather(struct cr_comm *comm, const void *mine, size_t bytes, void *all) {
    if (single_rank(comm)) {
        if (bytes) memmove(all, mine, bytes);
        return CR_OK;
    }
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_GATHER, 0, bytes);
    return comm->transport->gather(comm, &call, mine, all);
}

cr_status cr_comm_all_reduce(struct cr_comm *comm, void *data, size_t count, enum cr_comm_type type) {
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_REDUCE, (uint32_t)type, count * cr_comm_type_bytes(type));
    return comm->transport->reduce(comm, &call, data, count);
}

cr_status cr_comm_same(struct cr_comm *comm, const void *data, size_t bytes, const char *what) {
    char name[200];
    if (single_rank(comm)) return CR_OK;
    char *all = cr_alloc((size_t)comm->options.size, CR_MAX(bytes, 1));
    if (!all) return CR_NO_MEMORY((size_t)comm->options.size * bytes);
    cr_status status = cr_comm_all_gather(comm, data, bytes, all);
    for (int r = 1; status == CR_OK && r < comm->options.size; r++)
        if (memcmp(all, all + (size_t)r * bytes, bytes) != 0) /* all ranks find it; the first one reports it */
            status = cr_comm_raise(comm, r, comm->options.rank,
                                   "%s: %s differs from rank 0 (%s). All ranks must run the same program "
                                   "with the same configuration, files and kernels",
                                   cr_comm_name(comm, r, name, sizeof name), what, comm->info[0].host_name);
    cr_free(all);
    return status;
}

cr_status cr_comm_vote(struct cr_comm *comm, uint32_t request, uint32_t *requests) {
    *requests = request;
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    return comm->transport->vote(comm, comm->votes++, request, requests);
}

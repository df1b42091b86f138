/* comm/launch/launcher_variables.c: determines this process's rank from the launcher's environment variables; joins
 * and leaves the run. See comm/launch/launcher.h.
 *
 * Sources: torch/distributed/run.py of PyTorch (torchrun), mpirun(1) of Open MPI 4.1, MPICH's Hydra, srun(1) of Slurm,
 * each verified with the environment of a process that it started. */
#include "comm/launch/launcher_internal.h"
#include "comm/transport.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- variables ---- */

/* Reads an integer in [min, max] from a variable; *is_set is false if the variable is not set. */
static cr_status read_int(cr_ranks_getenv *get, const char *name, long min, long max, int *out, bool *is_set) {
    const char *text = get(name);
    char       *end;
    *is_set = text && *text;
    if (!*is_set) return CR_OK;
    errno      = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || value < min || value > max || isspace((unsigned char)*text))
        return CR_FAIL(CR_ERR_CONFIG, "environment variable %s = %s: must be an integer from %ld to %ld", name, text,
                       min, max);
    *out = (int)value;
    return CR_OK;
}

static cr_status required_int(cr_ranks_getenv *get, const char *name, long min, long max, const char *launcher,
                              int *out) {
    bool is_set;
    CR_TRY(read_int(get, name, min, max, out, &is_set));
    if (!is_set) return CR_FAIL(CR_ERR_CONFIG, "started by %s, but its variable %s is not set", launcher, name);
    return CR_OK;
}

static cr_status optional_int(cr_ranks_getenv *get, const char *name, int *out) {
    bool is_set;
    return read_int(get, name, 0, CR_COMM_RANKS_MAX, out, &is_set);
}

static const char *get_text(cr_ranks_getenv *get, const char *name, const char *fallback) {
    const char *text = get(name);
    return text && *text ? text : fallback;
}

/* ---- launchers ---- */

struct launcher {
    const char *name;
    const char *rank, *size, *size_fallback, *local_rank, *local_size, *group; /* variable names; NULL: none */
    const char *required; /* a variable that must also be set; NULL if none */
};
enum { TORCHRUN, OPEN_MPI, HYDRA, SLURM };
static const struct launcher launchers[] = {
    [TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE"},
    [OPEN_MPI] = {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL,
                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    [HYDRA]    = {"mpirun (Hydra)", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL},
    /* A batch script has SLURM_PROCID too, but is not a rank: only the steps of srun are. */
    [SLURM] = {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID",
               "SLURM_STEP_ID"},
};

static const struct launcher *find_launcher(cr_ranks_getenv *get) {
    for (size_t i = 0; i < CR_COUNT(launchers); i++)
        if (get(launchers[i].rank) && (!launchers[i].required || get(launchers[i].required))) return &launchers[i];
    return NULL;
}

static cr_status read_place(cr_ranks_getenv *get, const struct launcher *l, struct cr_comm_options *w) {
    const char *size = l->size_fallback && !get(l->size) ? l->size_fallback : l->size;
    CR_TRY(required_int(get, size, 1, CR_COMM_RANKS_MAX, l->name, &w->size));
    CR_TRY(required_int(get, l->rank, 0, CR_COMM_RANKS_MAX - 1, l->name, &w->rank));
    CR_TRY(optional_int(get, l->local_rank, &w->local_rank));
    if (l->local_size) CR_TRY(optional_int(get, l->local_size, &w->local_size));
    if (l->group) snprintf(w->group, sizeof w->group, "%s", get_text(get, l->group, ""));
    if (w->rank >= w->size)
        return CR_FAIL(CR_ERR_CONFIG, "%s = %d, but %s = %d: the first rank is 0", l->rank, w->rank, size, w->size);
    return CR_OK;
}

/* Names the run: rank 0 refuses a rank with another job name. */
static void name_job(cr_ranks_getenv *get, const struct launcher *l, struct cr_comm_options *w) {
    switch (l - launchers) {
    case TORCHRUN:
        snprintf(w->job, sizeof w->job, "%.80s.%.20s", get_text(get, "TORCHELASTIC_RUN_ID", "none"),
                 get_text(get, "TORCHELASTIC_RESTART_COUNT", "0"));
        break;
    case OPEN_MPI:
        snprintf(w->job, sizeof w->job, "openmpi.%.100s",
                 get_text(get, "PMIX_NAMESPACE", get_text(get, "OMPI_MCA_ess_base_jobid", "none")));
        break;
    case HYDRA: /* has no job name; on one host, the process that started all ranks identifies the job */
        snprintf(w->job, sizeof w->job, "hydra.%ld", w->local_size == w->size ? (long)getppid() : 0L);
        break;
    case SLURM:
        snprintf(w->job, sizeof w->job, "slurm.%.50s.%.50s", get_text(get, "SLURM_JOB_ID", "none"),
                 get_text(get, "SLURM_STEP_ID", "0"));
        break;
    }
}

/* ---- Slurm's host lists ---- */

cr_status cr_ranks_first_host(const char *list, char *out, size_t size) {
    const size_t plain = strcspn(list, ",["), digits = list[plain] == '[' ? strspn(list + plain + 1, "0123456789") : 0;
    const char  *close = list[plain] == '[' ? strchr(list + plain, ']') : NULL;
    if ((!plain && !digits) || (list[plain] == '[' && (!digits || !close)))
        return CR_FAIL(CR_ERR_CONFIG, "SLURM_STEP_NODELIST = %s: cannot parse the first host; set MASTER_ADDR", list);
    const char  *tail   = close ? close + 1 : ""; /* n[01-04]-ib: the suffix belongs to every name */
    const size_t length = strcspn(tail, ",[");
    if ((size_t)snprintf(out, size, "%.*s%.*s%.*s", (int)plain, list, (int)digits, digits ? list + plain + 1 : "",
                         (int)length, tail) >= size)
        return CR_FAIL(CR_ERR_CONFIG, "SLURM_STEP_NODELIST = %s: the first host name is too long", list);
    return CR_OK;
}

/* ---- the address of rank 0 ---- */

/* Derives a port from the job's name, below the range of ephemeral ports. */
static int port_of(const char *job) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (const char *p = job; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    return 20000 + (int)(h % 12000);
}

static cr_status find_address(cr_ranks_getenv *get, const struct cr_config *c, const struct launcher *l,
                              struct cr_comm_options *w) {
    const char *address = *c->ranks.address ? c->ranks.address : get_text(get, "MASTER_ADDR", "");
    const char *hosts   = get_text(get, "SLURM_STEP_NODELIST", get_text(get, "SLURM_JOB_NODELIST", ""));
    if (*address)
        snprintf(w->address, sizeof w->address, "%s", address);
    else if (l == &launchers[SLURM] && *hosts)
        CR_TRY(cr_ranks_first_host(hosts, w->address, sizeof w->address));
    else if (w->local_size == w->size || l == &launchers[TORCHRUN])
        snprintf(w->address, sizeof w->address, "127.0.0.1");
    else
        return CR_FAIL(
            CR_ERR_CONFIG,
            "started by %s on several hosts, but the address of rank 0 is unknown: set MASTER_ADDR (mpirun -x "
            "MASTER_ADDR=HOST or -genv MASTER_ADDR HOST) or ranks.address",
            l->name);
    return CR_OK;
}

static cr_status find_port(cr_ranks_getenv *get, const struct cr_config *c, const struct launcher *l,
                           struct cr_comm_options *w) {
    bool is_set;
    w->port = (int)c->ranks.port;
    if (w->port) return CR_OK;
    CR_TRY(read_int(get, "MASTER_PORT", 1, 65535, &w->port, &is_set));
    if (!is_set) {
        if (l == &launchers[TORCHRUN] && w->size > 1)
            return CR_FAIL(CR_ERR_CONFIG, "RANK and WORLD_SIZE are set, but MASTER_PORT is not: set it, or ranks.port");
        w->port = port_of(w->job);
    } else if (get("TORCHELASTIC_RUN_ID")) /* torchrun's own store uses that port */
        w->port += w->port < 65535 ? 1 : -1;
    return CR_OK;
}

cr_status cr_ranks_locate(cr_ranks_getenv *get, const struct cr_config *config, struct cr_comm_options *where,
                          const char **launcher) {
    struct cr_comm_options w = {.rank           = 0,
                                .size           = 1,
                                .local_rank     = -1,
                                .local_size     = -1,
                                .rendezvous_s   = config->ranks.meet,
                                .timeout_s      = config->ranks.timeout,
                                .wait_timeout_s = config->ranks.patience};
    const struct launcher *l = find_launcher(get);
    *launcher                = l ? l->name : "";
    if (l) {
        CR_TRY(read_place(get, l, &w));
        name_job(get, l, &w);
        if (w.size > 1) CR_TRY(find_address(get, config, l, &w));
        if (w.size > 1) CR_TRY(find_port(get, config, l, &w));
    }
    *where = w;
    return CR_OK;
}

/* ---- joining and leaving ---- */

static cr_status join(const struct cr_comm_options *where, struct cr_ranks *out) {
    cr_ranks_name_log(where->rank);
    cr_status status = cr_comm_open(where, &out->comm);
    /* Rank 0 has the same error and prints it. */
    if (status == CR_ERR_PEER && where->rank) cr_error_clear();
    return status;
}

static const char *real_getenv(const char *name) {
    return getenv(name);
}

cr_status cr_ranks_open(const struct cr_ranks_request *request, const struct cr_config *config, struct cr_ranks *out) {
    struct cr_comm_options where;
    const char            *launcher;
    *out = (struct cr_ranks){0};
    CR_TRY(cr_ranks_locate(real_getenv, config, &where, &launcher));
    if (request->fork && where.size > 1)
        return CR_FAIL(CR_ERR_USAGE, "%s has already started %d ranks: remove --%s", launcher, where.size,
                       request->gpus ? "gpus" : "ranks");
    if (request->fork > 1) return cr_ranks_fork(request, &where, out);
    return where.size > 1 ? join(&where, out) : CR_OK;
}

cr_status cr_ranks_close(struct cr_ranks *ranks, cr_status status) {
    struct cr_comm *comm = ranks->comm;
    char            text[2000];
    if (!comm) return status;
    ranks->comm = NULL;
    if (status != CR_OK && status != CR_ERR_PEER) {
        cr_error_copy(text, sizeof text);
        cr_comm_abort(comm, text);
    }
    if (status != CR_OK && !cr_comm_reports_error(comm))
        cr_error_clear();
    else if (status != CR_OK && status != CR_ERR_PEER) {
        char name[200];
        status = CR_FAIL(status, "%s: %s", cr_comm_name(comm, comm->options.rank, name, sizeof name), text);
    }
    cr_error_hold();
    cr_comm_close(comm);
    cr_error_release();
    return status;
}

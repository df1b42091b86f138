/* tests/unit/comm/test_launch.c: the rank of a process from the environment variables of launchers. The values come
 * from processes started by torchrun (PyTorch 1.13), mpirun of Open MPI 4.1 and of MPICH 4.0; those of Slurm come from
 * its manual. */
#include "comm/launch/launcher.h"
#include "tests/harness/config_support.h"

static const char *const *given; /* name, value, ..., NULL */

static const char *get(const char *name) {
    for (const char *const *v = given; *v; v += 2)
        if (strcmp(*v, name) == 0) return v[1];
    return NULL;
}

static cr_status where(const char *const *variables, const char *override, struct cr_comm_options *out,
                       const char **launcher) {
    OWNED(config) config = NULL;
    given                = variables;
    CR_TRY(cr_config_open(&config, NULL, &override, override ? 1 : 0));
    return cr_ranks_locate(get, config, out, launcher);
}

#define TORCH                                                                                                          \
    "RANK", "3", "WORLD_SIZE", "4", "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "2", "GROUP_RANK", "1", "MASTER_ADDR",      \
        "node1", "MASTER_PORT", "29500"
#define OMPI                                                                                                           \
    "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_RANK", "1", "PMIX_NAMESPACE",     \
        "293863425"
#define STEP                                                                                                           \
    "SLURM_PROCID", "5", "SLURM_STEP_NUM_TASKS", "8", "SLURM_NTASKS", "9", "SLURM_LOCALID", "1", "SLURM_NODEID", "2",  \
        "SLURM_JOB_ID", "77", "SLURM_STEP_NODELIST", "gpu[03-06,11]"

TEST(launchers) {
    struct cr_comm_options w, v;
    const char            *by;
    REQUIRE_OK(where((const char *const[]){NULL}, NULL, &w, &by));
    CHECK(w.rank == 0 && w.size == 1 && !*by);

    REQUIRE_OK(
        where((const char *const[]){TORCH, "TORCHELASTIC_RUN_ID", "abc", "TORCHELASTIC_RESTART_COUNT", "2", NULL}, NULL,
              &w, &by));
    CHECK_STR(by, "torchrun");
    CHECK(w.rank == 3 && w.size == 4 && w.local_rank == 1 && w.local_size == 2 && w.port == 29501);
    CHECK_STR(w.address, "node1");
    CHECK_STR(w.group, "1");
    CHECK_STR(w.job, "abc.2");
    REQUIRE_OK(where((const char *const[]){TORCH, NULL}, NULL, &w, &by)); /* by hand: no torchrun store exists */
    CHECK_INT(w.port, 29500);
    REQUIRE_OK(where((const char *const[]){TORCH, NULL}, "ranks.port=1234", &w, &by));
    CHECK_INT(w.port, 1234);
    REQUIRE_OK(where((const char *const[]){TORCH, NULL}, "ranks.address=other", &w, &by));
    CHECK_STR(w.address, "other");

    REQUIRE_OK(where((const char *const[]){OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "2", NULL}, NULL, &w, &by));
    CHECK(w.rank == 1 && w.size == 2 && w.local_rank == 1 && w.local_size == 2);
    CHECK_STR(w.address, "127.0.0.1");
    CHECK_STR(w.job, "openmpi.293863425");
    CHECK(w.port >= 20000 && w.port < 32000);
    v = w;
    REQUIRE_OK(where(
        (const char *const[]){"PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALRANKID", "1", "MPI_LOCALNRANKS", "2", NULL},
        NULL, &w, &by));
    CHECK(w.rank == 1 && w.size == 2 && w.local_rank == 1 && w.local_size == 2);
    CHECK_HAS(by, "Hydra");
    CHECK(strcmp(v.job, w.job) != 0);

    REQUIRE_OK(where((const char *const[]){STEP, "SLURM_STEP_ID", "0", NULL}, NULL, &w, &by));
    CHECK(w.rank == 5 && w.size == 8 && w.local_rank == 1 && w.local_size == -1);
    CHECK_STR(w.address, "gpu03");
    CHECK_STR(w.group, "2");
    CHECK_STR(w.job, "slurm.77.0");
    REQUIRE_OK(where((const char *const[]){STEP, "SLURM_STEP_ID", "1", NULL}, NULL, &v, &by));
    CHECK(v.port != w.port);                                             /* two steps of one job */
    REQUIRE_OK(where((const char *const[]){STEP, NULL}, NULL, &w, &by)); /* a batch script is not a rank */
    CHECK(w.size == 1 && !*by);
    REQUIRE_OK(where((const char *const[]){"WORLD_SIZE", "4", NULL}, NULL, &w, &by));
    CHECK_INT(w.size, 1);
    REQUIRE_OK(where((const char *const[]){"RANK", "1", NULL}, NULL, &w, &by)); /* many programs have such a variable */
    CHECK_INT(w.size, 1);
    /* srun starts the daemons of mpirun, torchrun runs in a step: the inner launcher counts */
    REQUIRE_OK(where((const char *const[]){STEP, "SLURM_STEP_ID", "0", TORCH, NULL}, NULL, &w, &by));
    CHECK_INT(w.rank, 3);
}

TEST(mistakes) {
    struct cr_comm_options w = {.rank = 17};
    const char            *by;
    CHECK_STATUS(where((const char *const[]){"RANK", "4", "WORLD_SIZE", "4", NULL}, NULL, &w, &by), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "RANK = 4, but WORLD_SIZE = 4");
    CHECK_STATUS(where((const char *const[]){"RANK", "one", "WORLD_SIZE", "4", NULL}, NULL, &w, &by), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "RANK = one");
    CHECK_STATUS(where((const char *const[]){"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "h", NULL}, NULL, &w, &by),
                 CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "MASTER_PORT");
    CHECK_STATUS(
        where((const char *const[]){"RANK", "1", "WORLD_SIZE", "2", "MASTER_PORT", "70000", NULL}, NULL, &w, &by),
        CR_ERR_CONFIG);
    CHECK_STATUS(where((const char *const[]){"OMPI_COMM_WORLD_RANK", "0", NULL}, NULL, &w, &by), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "OMPI_COMM_WORLD_SIZE");
    CHECK_STATUS(where((const char *const[]){OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "1", NULL}, NULL, &w, &by),
                 CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "MASTER_ADDR"); /* two hosts, and no variable says which one is the first */
    CHECK_INT(w.rank, 17);
}

TEST(host_lists) {
    static const char *const good[] = {
        "node1",     "node1", "n1,n2", "n1", "gpu[03-06,11]", "gpu03", "rack2-n[7,9],login", "rack2-n7",
        "a[1-2]-ib", "a1-ib", "[5-6]", "5"};
    char name[64];
    for (size_t i = 0; i < CR_COUNT(good); i += 2) {
        REQUIRE_OK(cr_ranks_first_host(good[i], name, sizeof name));
        CHECK_STR(name, good[i + 1]);
    }
    CHECK_STATUS(cr_ranks_first_host("", name, sizeof name), CR_ERR_CONFIG);
    CHECK_STATUS(cr_ranks_first_host(",n1", name, sizeof name), CR_ERR_CONFIG);
    CHECK_STATUS(cr_ranks_first_host("n[", name, sizeof name), CR_ERR_CONFIG);
    CHECK_STATUS(cr_ranks_first_host("n[]", name, sizeof name), CR_ERR_CONFIG);
    CHECK_STATUS(cr_ranks_first_host("n[1-3", name, sizeof name), CR_ERR_CONFIG);
    CHECK_STATUS(cr_ranks_first_host("a-very-long-name[0001-1000]", name, 8), CR_ERR_CONFIG);
}

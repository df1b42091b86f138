/* tests/gpu/test_cuda_ranks.c: two GPUs train as one GPU with the whole batch, with NCCL and with peer copies, and with
 * BN statistics from Gram matrices; fp16; repeated runs and both transports are bitwise identical; four GPUs too; runs
 * resume on one GPU; when a rank is killed or stopped, the run ends in time. Needs two GPUs, some cases four. This
 * process opens no GPU: its child processes do. */
#include "tests/harness/ranks_support.h"
#include "tests/harness/test_gpu.h"

#include <time.h>

/* Runs in a child process: a process that has initialised CUDA cannot fork. */
static bool has_gpus(int count) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct cr_device_options options = {.index = count - 1};
        struct cr_device              *device;
        _exit(!test_why_no_gpu() && cr_device_open(CR_DEVICE_CUDA, &options, &device) == CR_OK ? 0 : 1);
    }
    int state;
    return waitpid(pid, &state, 0) == pid && WIFEXITED(state) && WEXITSTATUS(state) == 0;
}
#define NEED_TWO_GPUS()                                                                                                \
    do {                                                                                                               \
        if (!has_gpus(2)) SKIP("two GPUs are needed");                                                                 \
    } while (0)
#define NEED_FOUR_GPUS()                                                                                               \
    do {                                                                                                               \
        if (!has_gpus(4)) SKIP("four GPUs are needed");                                                                \
    } while (0)

static struct run prepare(void) {
    struct run r = prepare_run();
    give(&r, "train.device=cuda", "train.measure=no");
    return r;
}

/* ---- numbers ---- */

static void check_many_like_one(int gpus, const char *transport) {
    struct run r = prepare();
    double     one[STEPS_MAX], plain[STEPS_MAX], many[STEPS_MAX], spread = 0, far = 0;
    give(&r, "train.precision=fp32");
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=50") == 0);
    CHECK(TRAIN(1, &r, "plain", "train.batch=24", "train.steps=50", "train.fuse=no", "train.deterministic=no") == 0);
    CHECK(TRAIN(gpus, &r, "many", gpus == 2 ? "train.batch=12" : "train.batch=6", "train.steps=50", "model.sync_bn=yes",
                transport) == 0);
    REQUIRE(losses_of(&r, "one", one) == 50 && losses_of(&r, "plain", plain) == 50 &&
            losses_of(&r, "many", many) == 50);
    for (int i = 0; i < 50; i++) {
        if (i < 5) CHECK(relative(one[i], many[i]) <= 1e-4);
        spread = fmax(spread, relative(one[i], plain[i]));
        far    = fmax(far, relative(one[i], many[i]));
    }
    fprintf(stderr, "    %d GPUs: first step %.1e, largest of 50 %.1e; two variants of one GPU: %.1e\n", gpus,
            relative(one[0], many[0]), far, spread);
    CHECK(far <= fmax(2 * spread, 1e-4));
}

/* Whether two GPUs of this machine can access each other's memory. */
static bool has_peers(void) {
    struct run r = prepare();
    give(&r, "train.precision=fp32");
    const int code = TRAIN(2, &r, "peers", "train.batch=12", "train.steps=1", "ranks.transport=peer");
    CHECK(code == 0 || code == cr_status_exit(CR_ERR_CONFIG));
    return code == 0;
}
#define NEED_PEERS()                                                                                                   \
    do {                                                                                                               \
        NEED_TWO_GPUS();                                                                                               \
        if (!has_peers()) SKIP("two GPUs that reach each other's memory are needed");                                  \
    } while (0)

TEST(two_gpus_train_like_one) {
    NEED_TWO_GPUS();
    check_many_like_one(2, "ranks.transport=nccl");
}
TEST(two_peers_train_like_one) {
    NEED_PEERS();
    check_many_like_one(2, "ranks.transport=peer");
}

TEST(four_gpus_train_like_one) {
    NEED_FOUR_GPUS();
    check_many_like_one(4, "ranks.transport=nccl");
}
TEST(four_peers_train_like_one) {
    NEED_FOUR_GPUS();
    NEED_PEERS();
    check_many_like_one(4, "ranks.transport=peer");
}

/* Sums over four ranks are added in the order of ranks: always the same, however gradients are split. */
TEST(four_peers_give_the_same_bits) {
    NEED_FOUR_GPUS();
    NEED_PEERS();
    static const char *const precision[] = {"train.precision=fp32", "train.precision=fp16"};
    for (size_t i = 0; i < CR_COUNT(precision); i++) {
        struct run r = prepare();
        give(&r, precision[i], "model.sync_bn=yes", "ranks.transport=peer");
        CHECK(TRAIN(4, &r, "a", "train.batch=6", "train.steps=12") == 0);
        CHECK(TRAIN(4, &r, "b", "train.batch=6", "train.steps=12") == 0);
        CHECK(TRAIN(4, &r, "c", "train.batch=6", "train.steps=12", "ranks.bucket_mib=25") == 0);
        CHECK(same_weights(&r, "a", "b"));
        CHECK(same_weights(&r, "a", "c"));
    }
}

/* A sum of two has only one order, for either transport. The wide network has a bucket of more than one piece of 32
 * MiB. */
TEST(peers_give_the_bits_of_nccl) {
    NEED_PEERS();
    static const char *const values[][2] = {{"train.precision=fp32", "ranks.bucket_mib=0.004"},
                                            {"train.precision=fp16", "ranks.bucket_mib=0.02"},
                                            {"train.precision=fp16", "model.widths=32,1024"},
                                            {"train.precision=fp32", "train.accumulate=2"},
                                            {"train.precision=fp32", "model.sync_bn=yes"}};
    for (size_t i = 0; i < CR_COUNT(values); i++) {
        struct run r = prepare();
        give(&r, values[i][0], values[i][1]);
        CHECK(TRAIN(2, &r, "a", "train.batch=12", "train.steps=12", "ranks.transport=nccl") == 0);
        CHECK(TRAIN(2, &r, "b", "train.batch=12", "train.steps=12", "ranks.transport=peer") == 0);
        CHECK(TRAIN(2, &r, "c", "train.batch=12", "train.steps=12", "ranks.transport=auto") == 0);
        CHECK(same_weights(&r, "a", "b"));
        CHECK(same_weights(&r, "b", "c"));
    }
}

TEST(fp16_with_a_moving_scale) {
    NEED_TWO_GPUS();
    struct run r = prepare();
    double     one[STEPS_MAX], two[STEPS_MAX], half[STEPS_MAX];
    give(&r, "train.precision=fp16", "model.sync_bn=yes");
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=30") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=30") == 0);
    CHECK(TRAIN(2, &r, "half", "train.batch=12", "train.steps=30", "ranks.reduce=fp16") == 0);
    REQUIRE(losses_of(&r, "one", one) == 30 && losses_of(&r, "two", two) == 30 && losses_of(&r, "half", half) == 30);
    for (int i = 0; i < 5; i++) CHECK(relative(one[i], two[i]) <= 0.01 && relative(two[i], half[i]) <= 0.02);
}

TEST(two_save_and_one_goes_on) {
    NEED_TWO_GPUS();
    struct run r = prepare();
    double     whole[STEPS_MAX], parts[STEPS_MAX];
    give(&r, "train.precision=fp32", "model.sync_bn=yes");
    CHECK(TRAIN(2, &r, "whole", "train.batch=12", "train.steps=20", "train.accumulate=2") == 0);
    CHECK(TRAIN(2, &r, "parts", "train.batch=12", "train.steps=11", "train.accumulate=2") == 0);
    CHECK(RESUME(1, &r, "parts", "train.steps=20") == 0);
    REQUIRE(losses_of(&r, "whole", whole) == 20 && losses_of(&r, "parts", parts) == 20);
    for (int i = 11; i < 16; i++) CHECK(relative(whole[i], parts[i]) <= 1e-4);
}

/* A learning rate that is low enough for the losses of the first steps to differ by rounding errors only. */
static struct run prepare_bottleneck(void) {
    struct run r = prepare();
    give(&r, "model.block=bottleneck", "model.widths=64,128", "optim.lr=0.005", "train.precision=fp16",
         "model.sync_bn=yes");
    return r;
}

TEST(gram_matrices_of_two_are_like_one) {
    NEED_TWO_GPUS();
    struct run r = prepare_bottleneck();
    double     one[STEPS_MAX], plain[STEPS_MAX], two[STEPS_MAX], far = 0;
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=20", "train.gram_bn=all") == 0);
    CHECK(TRAIN(1, &r, "plain", "train.batch=24", "train.steps=20", "train.gram_bn=no") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=20", "train.gram_bn=all") == 0);
    CHECK(TRAIN(2, &r, "again", "train.batch=12", "train.steps=20", "train.gram_bn=all") == 0);
    CHECK(TRAIN(2, &r, "without", "train.batch=12", "train.steps=20", "train.gram_bn=no") == 0);
    CHECK(same_weights(&r, "two", "again"));
    CHECK(!same_weights(&r, "two", "without")); /* rounded otherwise: Gram matrices were used */
    REQUIRE(losses_of(&r, "one", one) == 20 && losses_of(&r, "plain", plain) == 20 && losses_of(&r, "two", two) == 20);
    for (int i = 0; i < 5; i++) CHECK(relative(one[i], two[i]) <= 0.01 && relative(plain[i], two[i]) <= 0.01);
    for (int i = 0; i < 20; i++) far = fmax(far, relative(one[i], two[i]));
    fprintf(stderr, "    two GPUs, Gram matrices: first step %.1e, largest of 20 %.1e\n", relative(one[0], two[0]),
            far);
}

/* With measured times rank 0 chooses, and the other rank has the same program: else its training ends with an error. */
TEST(both_choose_the_same_gram_matrices) {
    NEED_TWO_GPUS();
    struct run r = prepare_bottleneck();
    give(&r, "train.measure=yes", "data.image_size=48");
    setenv("CRESNET_CACHE", r.dir, 1);
    CHECK(TRAIN(2, &r, "a", "train.batch=32", "train.steps=3", "train.gram_bn=auto") == 0);
    CHECK(TRAIN(2, &r, "b", "train.batch=32", "train.steps=3", "train.gram_bn=auto") == 0);
    CHECK(same_weights(&r, "a", "b"));
    unsetenv("CRESNET_CACHE");
}

/* ---- a rank that dies ---- */

static double seconds(void) {
    return (double)cr_time_ns() * 1e-9;
}

static bool has_lines(const struct run *r, const char *name) {
    double loss[STEPS_MAX];
    return losses_of(r, name, loss) >= 20;
}

/* Rank 1 gets the signal during the run. Rank 0, whose GPU waits for it, ends with an error before the deadline. No
 * process reports the loss (a launcher would report a dead rank at once): rank 0 detects it by the timeout. */
static void check_death(int number, const char *transport) {
    enum { DEADLINE_S = 10 };
    struct run        r = prepare();
    void             *shared;
    pid_t             pid[2];
    int               state  = 0;
    const char *const more[] = {"train.batch=12", "train.steps=100000", "train.precision=fp16", transport, NULL};
    ranks_timeout_s          = DEADLINE_S;
    REQUIRE_OK(cr_comm_shared_new(2, &shared));
    fflush(NULL);
    for (int k = 0; k < 2; k++) {
        pid[k] = fork();
        if (pid[k] == 0) _exit(rank_main(k, 2, shared, &r, "run", NULL, more));
    }
    const double start = seconds();
    while (!has_lines(&r, "run") && seconds() - start < 60)
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    CHECK(has_lines(&r, "run"));
    kill(pid[1], number);
    const double killed = seconds();
    while (waitpid(pid[0], &state, WNOHANG) == 0 && seconds() - killed < 60)
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    const double took = seconds() - killed;
    fprintf(stderr, "    rank 0 ended %.1f s after signal %d to rank 1\n", took, number);
    CHECK(took < DEADLINE_S + 2 * CR_COMM_GRACE_S);
    CHECK(!WIFEXITED(state) || WEXITSTATUS(state) != 0);
    kill(pid[0], SIGKILL);
    kill(pid[1], SIGKILL);
    waitpid(pid[1], &state, 0);
    ranks_timeout_s = 30;
    cr_comm_shared_free(shared);
}

TEST(a_killed_rank_ends_the_run) {
    NEED_TWO_GPUS();
    check_death(SIGKILL, "ranks.transport=nccl");
}
TEST(a_killed_peer_ends_the_run) {
    NEED_PEERS();
    check_death(SIGKILL, "ranks.transport=peer");
}
TEST(a_stopped_peer_ends_the_run) {
    NEED_PEERS();
    check_death(SIGSTOP, "ranks.transport=peer");
}
TEST(a_stopped_rank_ends_the_run) {
    NEED_TWO_GPUS();
    check_death(SIGSTOP, "ranks.transport=nccl");
}

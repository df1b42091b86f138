/* device/host_threads.c: the number of OpenMP threads of a CPU device (train.threads). See device/device.h. */
#include "comm/comm.h"
#include "core/cpu.h"
#include "device/device.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum { THREADS_PER_CORE_MAX = 4, THREADS_ANYWHERE = 16, THREADS_PROBED_MAX = 1024, SPARE_MIN = 16, TEAM_STABLE = 2 };

static void *wait_for_parent(void *lock) {
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* Starts wanted - 1 threads, ends them again, and returns how many threads can run, this one included. */
static int threads_possible(int wanted) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t       started[THREADS_PROBED_MAX];
    int             count = 0;
    pthread_mutex_lock(&lock);
    while (count < wanted - 1 && pthread_create(&started[count], NULL, wait_for_parent, &lock) == 0) count++;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) pthread_join(started[i], NULL);
    return count + 1;
}

/* libgomp ends the program when the system refuses a thread (ulimit -u, limits of a container). When a region has fewer
 * threads than the one before, it ends the other threads, and starts new ones later, while the system may still count
 * the old ones. So the system must be able to start as many threads again as the team has, and at least SPARE_MIN,
 * which data loaders use too. If it cannot, two threads (TEAM_STABLE) remain: a region has both or does without a team,
 * so libgomp never replaces the second one. */
static int team_of(int wanted) {
    const int spare    = wanted > TEAM_STABLE ? CR_MAX(wanted, (int)SPARE_MIN) : 0;
    const int probed   = CR_MIN(wanted + spare, (int)THREADS_PROBED_MAX);
    const int possible = threads_possible(probed);
    if (possible == probed) return wanted;
    return CR_MAX(CR_MIN(possible / 2, possible - SPARE_MIN), CR_MIN(possible, (int)TEAM_STABLE));
}

/* OpenMP's own default is one thread for each core of the affinity mask, which ignores quotas. */
static int default_threads(int cores) {
    return getenv("OMP_NUM_THREADS") ? omp_get_max_threads() : CR_MIN(omp_get_max_threads(), cores);
}

/* By default the ranks of one host divide its cores among them. */
int cr_device_host_threads(const struct cr_device_options *options) {
    const int ranks     = options->comm ? cr_comm_rank_info(options->comm, cr_comm_rank(options->comm))->local_size : 1;
    const int cores     = cr_cpu_cores();
    const int most      = CR_MAX(cores * THREADS_PER_CORE_MAX, (int)THREADS_ANYWHERE);
    const int requested = options->threads > 0 ? options->threads : default_threads(cores) / CR_MAX(ranks, 1);
    const int wanted = CR_MIN(CR_MAX(requested, 1), most), team = team_of(wanted);
    if (wanted < requested)
        cr_log(CR_LOG_WARN, "%d threads instead of %d: this process may use %d core%s", wanted, requested, cores,
               cores == 1 ? "" : "s");
    if (team < wanted)
        cr_log(CR_LOG_WARN, "%d thread%s instead of %d: the system starts no more (ulimit -u)", team,
               team == 1 ? "" : "s", wanted);
    omp_set_num_threads(team);
    return team;
}
#else
int cr_device_host_threads(const struct cr_device_options *options) {
    (void)options;
    return 1;
}
#endif

/* tests/unit/core/test_cpu_resources.c: cores and memory of a process, from folders that hold the files of /proc and
 * /sys/fs/cgroup of other machines: version 1, version 2, both, containers, nested limits, junk. All expected values
 * are computed by hand. */
#include "core/cpu_resources.h"

#include "core/cpu.h"
#include "tests/harness/test.h"

#include <limits.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static char root[64];

static void begin(void) {
    snprintf(root, sizeof root, "/tmp/cresnet-resources-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
}

static void end(void) {
    CHECK_INT(cr_fs_remove_tree(root), 0);
}

/* Writes root/path and the folders above it. */
static void put(const char *path, const char *text) {
    const char *const name   = formatted("%s%s", root, path);
    const char *const folder = formatted("%s", name);
    *strrchr(folder, '/')    = 0;
    CHECK_INT(cr_fs_mkdirs(folder), CR_OK);
    FILE *file = fopen(name, "wb");
    CHECK(file != NULL);
    if (!file) return;
    CHECK(fputs(text, file) >= 0);
    CHECK_INT(fclose(file), 0);
}

/* A machine with 64 GiB, of which 40,000 MiB are available. */
static void put_meminfo(void) {
    put("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        10000000 kB\nMemAvailable:   40960000 kB\n"
                         "Buffers:           12345 kB\n");
}

TEST(no_groups) {
    begin();
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    CHECK_INT(cr_cpu_memory_below(root), 0); /* unknown */
    put_meminfo();
    CHECK_INT(cr_cpu_memory_below(root), 40000LL * MIB);
    end();
}

#define V2_MOUNT "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define OTHER_MOUNTS                                                                                                   \
    "22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n27 1 254:0 / / rw - ext4 /dev/vda rw,discard\n"           \
    "short line\n\n"

TEST(version_2_with_nested_limits) {
    begin();
    put_meminfo();
    put("/proc/self/mountinfo", OTHER_MOUNTS V2_MOUNT);
    put("/proc/self/cgroup", "0::/jobs/7/step\n");
    put("/sys/fs/cgroup/jobs/7/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/jobs/7/step/memory.max", "max\n");
    put("/sys/fs/cgroup/jobs/7/step/memory.current", "104857600\n");
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    CHECK_INT(cr_cpu_memory_below(root), 40000LL * MIB);
    /* the group above: 2.5 cores; 4,096 MiB, of which 1,000 are in use, 300 of them (100 + 200) for files */
    put("/sys/fs/cgroup/jobs/7/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/jobs/7/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/jobs/7/memory.current", "1048576000\n");
    put("/sys/fs/cgroup/jobs/7/memory.stat",
        "anon 734003200\nfile 314572800\nshmem 0\ninactive_anon 5\nactive_anon 734003200\ninactive_file 104857600\n"
        "active_file 209715200\nunevictable 0\n");
    CHECK_INT(cr_cpu_quota_below(root), 3);
    CHECK_INT(cr_cpu_memory_below(root), (4096LL - 1000 + 300) * MIB);
    /* two groups above: more cores, which change nothing; less memory: 2,048 MiB, 1,500 in use */
    put("/sys/fs/cgroup/jobs/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/jobs/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/jobs/memory.current", "1572864000\n");
    CHECK_INT(cr_cpu_quota_below(root), 3);
    CHECK_INT(cr_cpu_memory_below(root), (2048LL - 1500) * MIB);
    /* above memory.high a process hardly moves */
    put("/sys/fs/cgroup/jobs/memory.high", "1677721600\n");
    CHECK_INT(cr_cpu_memory_below(root), (1600LL - 1500) * MIB);
    /* a limit that is exceeded leaves nothing, which is not "unknown" */
    put("/sys/fs/cgroup/jobs/memory.high", "1048576\n");
    CHECK_INT(cr_cpu_memory_below(root), 1);
    end();
}

#define V1_MOUNTS(top)                                                                                                 \
    "32 31 0:29 " top " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"                                \
    "33 31 0:30 " top " /sys/fs/cgroup/cpuset rw master:7 - cgroup cgroup rw,cpuset\n"                                 \
    "35 31 0:32 " top " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

static void put_v1(const char *cpu, const char *memory) {
    const char *path = formatted("%s/cpu.cfs_quota_us", cpu);
    put(path, "150000\n");
    path = formatted("%s/cpu.cfs_period_us", cpu);
    put(path, "50000\n"); /* 3 cores */
    path = formatted("%s/memory.limit_in_bytes", memory);
    put(path, "838860800\n"); /* 800 MiB */
    path = formatted("%s/memory.usage_in_bytes", memory);
    put(path, "209715200\n"); /* 200 MiB */
    path = formatted("%s/memory.stat", memory);
    put(path, "cache 50000\ninactive_file 7\nactive_file 9\ntotal_inactive_anon 1\ntotal_inactive_file 31457280\n"
              "total_active_file 20971520\n"); /* 30 and 20 MiB */
}

static const char *const v1_self =
    "9:name=systemd:/x\n4:memory:/docker/ab\n3:cpuset:/\n1:cpu,cpuacct:/docker/ab\n0::/\n";

TEST(version_1) {
    begin();
    put_meminfo();
    put("/proc/self/cgroup", v1_self);
    put("/proc/self/mountinfo", OTHER_MOUNTS V1_MOUNTS("/") V2_MOUNT); /* both versions: the machine's own folder */
    put_v1("/sys/fs/cgroup/cpu,cpuacct/docker/ab", "/sys/fs/cgroup/memory/docker/ab");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "50000000000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    CHECK_INT(cr_cpu_quota_below(root), 3);
    CHECK_INT(cr_cpu_memory_below(root), (800LL - 200 + 50) * MIB);
    end();
}

TEST(container_sees_its_group_at_the_mount) {
    begin();
    put_meminfo();
    put("/proc/self/cgroup", v1_self);
    put("/proc/self/mountinfo", V1_MOUNTS("/docker/ab"));
    put_v1("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory");
    CHECK_INT(cr_cpu_quota_below(root), 3);
    CHECK_INT(cr_cpu_memory_below(root), (800LL - 200 + 50) * MIB);
    put("/proc/self/mountinfo", V1_MOUNTS("/docker/a")); /* a group of another container, with a similar name */
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    CHECK_INT(cr_cpu_memory_below(root), 40000LL * MIB);
    end();
}

TEST(namespaces_of_groups) {
    static const struct {
        const char *top, *self;
        int         cores; /* 0: none */
    } cases[] = {
        {"/", "/", 4},             /* the root of the namespace is mounted */
        {"/", "/a", 2},            /* a group below */
        {"/", "/../other", 0},     /* the process is outside the namespace */
        {"/..", "/../a", 2},       /* mounted from above, and the path is known */
        {"/../..", "/", 4},        /* mounted from above, the names between are hidden */
        {"/../..", "/../a", 4},    /* the same */
        {"/..", "/../../a", 0},    /* further up than the mount */
        {"/../b", "/../a", 0},     /* another group */
        {"/../..", "/../../a", 2}, /* the path is known again */
    };
    begin();
    put("/sys/fs/my groups/cpu.max", "400000 100000\n");
    put("/sys/fs/my groups/a/cpu.max", "150001 100000\n"); /* 1.50001 cores: 2 */
    put("/sys/fs/other/cpu.max", "100000 100000\n");       /* "..": never read */
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const char *text = formatted("31 23 0:28 %s /sys/fs/my\\040groups rw - cgroup2 none rw\n", cases[i].top);
        put("/proc/self/mountinfo", text);
        text = formatted("0::%s\n", cases[i].self);
        put("/proc/self/cgroup", text);
        const int want = cases[i].cores ? cases[i].cores : INT_MAX, got = cr_cpu_quota_below(root);
        if (got != want) TEST_FAIL_("top %s, process %s: %d cores, want %d", cases[i].top, cases[i].self, got, want);
    }
    end();
}

TEST(junk_is_no_limit) {
    static const char *const numbers[] = {
        "", "\n", "max", "-1", "a 5", "99999999999999999999999", "-", "18446744073709551615"};
    static char huge[70000];
    begin();
    put_meminfo();
    put("/proc/self/mountinfo", V1_MOUNTS("/") V2_MOUNT);
    put("/proc/self/cgroup", "4:memory:/\n1:cpu,cpuacct:/\n0::/\n");
    for (size_t i = 0; i < CR_COUNT(numbers); i++) {
        put("/sys/fs/cgroup/cpu.max", numbers[i]);
        put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", numbers[i]);
        put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", numbers[i]);
        put("/sys/fs/cgroup/memory.max", numbers[i]);
        put("/sys/fs/cgroup/memory/memory.limit_in_bytes", numbers[i]);
        CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
        CHECK_INT(cr_cpu_memory_below(root), 40000LL * MIB);
    }
    put("/sys/fs/cgroup/cpu.max", "100000 0\n"); /* no division by zero */
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    put("/sys/fs/cgroup/cpu.max", "1 9223372036854775807\n");
    CHECK_INT(cr_cpu_quota_below(root), 1);
    put("/sys/fs/cgroup/cpu.max", "9223372036854775807 1\n");
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    /* more in use and cached than a number holds */
    put("/sys/fs/cgroup/memory.max", "9223372036854775807\n");
    put("/sys/fs/cgroup/memory.current", "9223372036854775807\n");
    put("/sys/fs/cgroup/memory.stat", "inactive_file 9223372036854775807\nactive_file 9223372036854775807\n");
    CHECK_INT(cr_cpu_memory_below(root), 40000LL * MIB);
    /* long lines, lines without fields, paths without end; a limit behind them is still found */
    memset(huge, 'x', sizeof huge - 1);
    put("/proc/self/cgroup", huge);
    put("/proc/self/mountinfo", huge);
    CHECK_INT(cr_cpu_quota_below(root), INT_MAX);
    snprintf(huge + 20000, sizeof huge - 20000, "\n%s", "0::/\n");
    put("/proc/self/cgroup", huge);
    snprintf(huge + 20000, sizeof huge - 20000, " - cgroup2 x x\n - cgroup\n1 2 3 4 5 6 - cgroup2\n%s", V2_MOUNT);
    put("/proc/self/mountinfo", huge);
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    CHECK_INT(cr_cpu_quota_below(root), 2);
    put("/proc/meminfo", "MemAvailable: 99999999999999999999 kB\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    CHECK_INT(cr_cpu_memory_below(root), 0);
    end();
}

/* In a child process, so that the mask of this one stays. */
TEST(affinity_of_this_process) {
    cpu_set_t mask;
    REQUIRE(sched_getaffinity(0, sizeof mask, &mask) == 0);
    CHECK(cr_cpu_cores() >= 1 && cr_cpu_cores() <= CPU_COUNT(&mask));
    const pid_t child = fork();
    if (child == 0) {
        int first = 0;
        while (!CPU_ISSET(first, &mask)) first++;
        CPU_ZERO(&mask);
        CPU_SET(first, &mask);
        _exit(sched_setaffinity(0, sizeof mask, &mask) == 0 && cr_cpu_cores() == 1 ? 0 : 1);
    }
    int how = -1;
    REQUIRE(child > 0 && waitpid(child, &how, 0) == child);
    CHECK_INT(how, 0);
}

TEST(this_machine) {
    const int64_t start = cr_time_ns();
    const size_t  left  = cr_cpu_memory_free();
    const long    pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const double  ms = (double)(cr_time_ns() - start) * 1e-6;
    CHECK(left > 0 && left <= (size_t)pages * (size_t)page);
    CHECK(ms < 100);
    printf("    %d cores, %.0f MiB free, read in %.2f ms\n", cr_cpu_cores(), cr_mib(left), ms);
}

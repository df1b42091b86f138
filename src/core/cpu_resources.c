/* core/cpu_resources.c: the cores and the memory that this process may use. See core/cpu.h and core/cpu_resources.h.
 *
 * A container or a batch system limits a process by control groups. /proc/self/cgroup names the group of the process in
 * each hierarchy, and /proc/self/mountinfo says where a hierarchy is mounted and which group is the root of the mount.
 * The limits of a group hold for all groups below it. Version 1 has a hierarchy for each controller, version 2 one for
 * all; a machine may have both. */
#include "core/cpu_resources.h"

#include "core/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { LINE_BYTES = 8192, PATH_BYTES = 8192, CPU_WORDS = 1024, FIELDS_MAX = 32 };

/* ---- files ---- */

static FILE *open_below(const char *root, const char *path) {
    char name[PATH_BYTES];
    return snprintf(name, sizeof name, "%s%s", root, path) < (int)sizeof name ? fopen(name, "re") : NULL;
}

/* The next line without its newline; false at the end. What exceeds the buffer is skipped. */
static bool next_line(FILE *file, char line[LINE_BYTES]) {
    if (!fgets(line, LINE_BYTES, file)) return false;
    const size_t length = strcspn(line, "\n");
    for (int c = line[length]; c != '\n' && c != EOF;) c = fgetc(file);
    line[length] = 0;
    return true;
}

/* Reads a decimal number and moves *at behind it. False for anything else, such as "max", "-1" (both: no limit) and
 * numbers beyond 63 bits. */
static bool read_number(const char **at, int64_t *out) {
    const char *p     = *at + strspn(*at, " \t");
    int64_t     value = 0;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value)) return false;
    *out = value;
    *at  = p;
    return true;
}

/* The first `count` numbers (1 or 2) of the first line of folder/name. */
static bool file_numbers(const char *folder, const char *name, int count, int64_t out[]) {
    char        line[LINE_BYTES];
    const char *at   = line;
    FILE       *file = open_below(folder, name);
    if (!file) return false;
    bool found = next_line(file, line);
    (void)fclose(file);
    for (int i = 0; i < count && found; i++) found = read_number(&at, &out[i]);
    return found;
}

/* The number behind `key` in a file with lines such as "inactive_file 4096" and "MemAvailable:  4096 kB". */
static bool keyed_number(const char *folder, const char *name, const char *key, int64_t *out) {
    char         line[LINE_BYTES];
    const size_t length = strlen(key);
    bool         found  = false;
    FILE        *file   = open_below(folder, name);
    while (file && !found && next_line(file, line)) {
        const char *at = line + length;
        found          = strncmp(line, key, length) == 0 && *at == ' ' && read_number(&at, out);
    }
    if (file) (void)fclose(file);
    return found;
}

/* ---- control groups ---- */

static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == 0)) return true;
    return false;
}

/* The group of this process in the hierarchy of `controller` (NULL: version 2). Lines of /proc/self/cgroup:
 * "4:memory:/jobs/7", "3:cpu,cpuacct:/", and "0::/jobs/7" for version 2. */
static bool own_group(const char *root, const char *controller, char group[LINE_BYTES]) {
    char  line[LINE_BYTES];
    bool  found = false;
    FILE *file  = open_below(root, "/proc/self/cgroup");
    while (file && !found && next_line(file, line)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path || path[1] != '/') continue;
        *list++ = *path++ = 0;
        found             = controller ? has_word(list, controller) : !*list && strcmp(line, "0") == 0;
        if (found) memmove(group, path, strlen(path) + 1);
    }
    if (file) (void)fclose(file);
    return found;
}

struct mount {
    char       *top, *folder; /* the group at the root of the mount; where it is mounted */
    const char *type, *options;
};

/* The kernel writes a space, tab, newline or backslash in a path as \040, \011, \012 or \134. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        const bool octal = from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
                           from[3] >= '0' && from[3] <= '7';
        *to = octal ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0')) : *from;
        from += octal ? 4 : 1;
    }
    *to = 0;
}

/* "36 31 0:33 /jobs /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory": between the sixth field and
 * "-" there are any number of optional fields. */
static bool read_mount(char *line, struct mount *out) {
    char *field[FIELDS_MAX], *rest = NULL;
    int   count = 0, dash = 6;
    for (char *f = strtok_r(line, " ", &rest); f && count < FIELDS_MAX; f = strtok_r(NULL, " ", &rest))
        field[count++] = f;
    while (dash < count && strcmp(field[dash], "-") != 0) dash++;
    if (dash + 3 >= count) return false;
    *out = (struct mount){field[3], field[4], field[dash + 1], field[dash + 3]};
    unescape(out->top);
    unescape(out->folder);
    return true;
}

/* The number of leading ".." in "/../../a"; such paths lie above the root of a cgroup namespace. */
static int count_ups(const char *path) {
    int ups = 0;
    for (; strncmp(path, "/..", 3) == 0 && (path[3] == '/' || path[3] == 0); path += 3) ups++;
    return ups;
}

/* The path of `group` below the mounted group `top`: "" for the same. NULL if it lies elsewhere. Where a mount begins
 * above the root of the namespace, the names between are hidden: the mounted group itself is then the nearest known. */
static const char *below_mount(const char *top, const char *group) {
    const size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const int    ups    = count_ups(top);
    if (strncmp(top, group, length) == 0 && (group[length] == '/' || group[length] == 0)) {
        const char *rest = group + length;
        return strcmp(rest, "/") == 0 ? "" : count_ups(rest) ? NULL : rest;
    }
    return ups && (size_t)ups * 3 == length && count_ups(group) < ups ? "" : NULL;
}

typedef void visit_fn(const char *folder, bool unified, void *context);

/* Calls `visit` for the folder of the group of this process and for those of all visible groups above it. */
static void visit_upwards(const char *root, const struct mount *m, const char *group, bool unified, visit_fn *visit,
                          void *context) {
    char        folder[PATH_BYTES];
    const char *rest = below_mount(m->top, group);
    if (!rest || snprintf(folder, sizeof folder, "%s%s%s", root, m->folder, rest) >= (int)sizeof folder) return;
    const size_t top = strlen(root) + strlen(m->folder);
    for (;;) {
        visit(folder, unified, context);
        char *end = strrchr(folder, '/');
        if (!end || end < folder + top) return;
        *end = 0;
    }
}

/* Visits the groups of this process that a controller ("cpu", "memory") may limit. */
static void visit_groups(const char *root, const char *controller, visit_fn *visit, void *context) {
    char         line[LINE_BYTES], group[LINE_BYTES];
    struct mount m;
    FILE        *file = open_below(root, "/proc/self/mountinfo");
    while (file && next_line(file, line)) {
        if (!strstr(line, " - cgroup") || !read_mount(line, &m)) continue;
        const bool unified = strcmp(m.type, "cgroup2") == 0;
        if (!unified && !has_word(m.options, controller)) continue;
        if (own_group(root, unified ? NULL : controller, group))
            visit_upwards(root, &m, group, unified, visit, context);
    }
    if (file) (void)fclose(file);
}

/* ---- cores ---- */

static void bound_cores(const char *folder, bool unified, void *context) {
    int    *cores = context;
    int64_t of[2]; /* microseconds of CPU time in each period of so many microseconds */
    if (unified ? !file_numbers(folder, "/cpu.max", 2, of)
                : !file_numbers(folder, "/cpu.cfs_quota_us", 1, &of[0]) ||
                      !file_numbers(folder, "/cpu.cfs_period_us", 1, &of[1]))
        return;
    if (of[0] < 1 || of[1] < 1) return;
    *cores = (int)CR_MIN((int64_t)*cores, (of[0] - 1) / of[1] + 1);
}

int cr_cpu_quota_below(const char *root) {
    int cores = INT_MAX;
    visit_groups(root, "cpu", bound_cores, &cores);
    return cores;
}

static int count_affinity(void) {
    unsigned long mask[CPU_WORDS] = {0}; /* 65,536 processors: the system refuses a mask that is too small */
    int           cores           = 0;
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)(void *)mask) == 0)
        for (int i = 0; i < CPU_WORDS; i++) cores += __builtin_popcountl(mask[i]);
    if (!cores) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef _OPENMP
    /* OMP_PROC_BIND binds this thread to one core, and each thread of its team to another one. */
    if (omp_get_proc_bind() != omp_proc_bind_false) cores = CR_MAX(cores, omp_get_num_procs());
#endif
    return CR_MAX(cores, 1);
}

int cr_cpu_cores(void) {
    return CR_MIN(count_affinity(), cr_cpu_quota_below(""));
}

/* ---- memory ---- */

/* What the system takes back from the files that it caches for a group before it kills a process of it. */
static int64_t count_cached(const char *folder, bool unified) {
    const char *const keys[] = {unified ? "inactive_file" : "total_inactive_file",
                                unified ? "active_file" : "total_active_file"};
    int64_t cached = 0, bytes;
    for (int i = 0; i < 2; i++)
        if (keyed_number(folder, "/memory.stat", keys[i], &bytes) && bytes < INT64_MAX - cached) cached += bytes;
    return cached;
}

/* Above memory.high the system does not kill a process, but slows it down until it hardly moves: a limit too. */
static void bound_memory(const char *folder, bool unified, void *context) {
    const char *const files[] = {unified ? "/memory.max" : "/memory.limit_in_bytes", "/memory.high"};
    int64_t          *left = context, limit = INT64_MAX, bytes, used = 0;
    for (int i = 0; i < (unified ? 2 : 1); i++)
        if (file_numbers(folder, files[i], 1, &bytes)) limit = CR_MIN(limit, bytes);
    if (limit == INT64_MAX) return;
    if (!file_numbers(folder, unified ? "/memory.current" : "/memory.usage_in_bytes", 1, &used)) used = 0;
    if (limit - CR_MIN(limit, used) >= *left) return; /* cached files only add to it, and memory.stat is slow to read */
    used -= CR_MIN(used, count_cached(folder, unified));
    *left = CR_MIN(*left, limit - CR_MIN(limit, used));
}

size_t cr_cpu_memory_below(const char *root) {
    int64_t left = INT64_MAX, kib;
    if (keyed_number(root, "/proc/meminfo", "MemAvailable:", &kib) && kib < INT64_MAX / 1024) left = kib * 1024;
    visit_groups(root, "memory", bound_memory, &left);
    return left == INT64_MAX ? 0 : (size_t)CR_MAX(left, 1);
}

size_t cr_cpu_memory_free(void) {
    return cr_cpu_memory_below("");
}

/* data/source/pack_map.c: maps packed files and archives into memory, so that images are read without a system call. A
 * file that another program shortens loses pages, and reading one of them raises SIGBUS, which would end the process. A
 * handler then puts zeros in their place and notes that the file was cut off; whoever reads from it checks that
 * afterwards.
 *
 * The handler is installed with the first packed file. The library reads none: it changes no handler of its host. */
#include "data/source/pack_map.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAPPINGS_MAX = 16384 };

static struct cr_pack_map *_Atomic mappings[MAPPINGS_MAX];
static atomic_int                  handlers; /* that run now, and may look at any mapping */
static uintptr_t                   page_bytes;
static struct sigaction            previous;
static pthread_once_t              once = PTHREAD_ONCE_INIT;

/* Only calls that are allowed in a signal handler. */
static bool replace_lost_pages(uintptr_t at) {
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        struct cr_pack_map *m     = atomic_load(&mappings[i]);
        const uintptr_t     begin = m ? (uintptr_t)m->bytes : 0, page = at / page_bytes * page_bytes;
        if (!m || at < begin || at - begin >= m->count) continue;
        atomic_store(&m->cut, true);
        /* not by mmap, whose place in a handler the thread sanitizer would call a race with the other readers */
        return syscall(SYS_mmap, page, begin + m->count - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                       0) != -1;
    }
    return false;
}

/* A fault elsewhere is left to the handler before this one: the instruction runs again and raises the signal again. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    const int error = errno;
    (void)context;
    atomic_fetch_add(&handlers, 1);
    if (!replace_lost_pages((uintptr_t)info->si_addr)) sigaction(signal_number, &previous, NULL);
    atomic_fetch_sub(&handlers, 1);
    errno = error;
}

static void install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    page_bytes              = (uintptr_t)getpagesize();
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
}

static cr_status map_file(const char *path, struct cr_pack_map *map) {
    struct stat info;
    if (fstat(map->fd, &info) != 0) return cr_fs_refused(path, "read", errno);
    map->count = (size_t)info.st_size;
    if (!map->count) return CR_OK;
    void *bytes = mmap(NULL, map->count, PROT_READ, MAP_PRIVATE, map->fd, 0);
    if (bytes == MAP_FAILED) return CR_FAIL(CR_ERR_IO, "%s: cannot be mapped into memory: %s", path, strerror(errno));
    map->bytes = bytes;
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        struct cr_pack_map *none = NULL;
        if (atomic_compare_exchange_strong(&mappings[i], &none, map)) return CR_OK;
    }
    munmap(bytes, map->count);
    return CR_FAIL(CR_ERR_IO, "%s: more than %d packed files or archives are open", path, MAPPINGS_MAX);
}

cr_status cr_pack_map_open(const char *path, struct cr_pack_map **out) {
    struct cr_pack_map *map;
    int                 fd;
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    pthread_once(&once, install);
    map = cr_alloc(1, sizeof *map);
    if (map) map->fd = fd;
    cr_status status = map ? map_file(path, map) : CR_NO_MEMORY(sizeof *map);
    if (status == CR_OK) {
        *out = map;
    } else {
        close(fd);
        cr_free(map);
    }
    return status;
}

/* The end of the last page of a shortened file reads as zeros without a signal, so that its size counts too. */
bool cr_pack_map_is_cut(const struct cr_pack_map *map) {
    struct stat info;
    return atomic_load(&map->cut) || (fstat(map->fd, &info) == 0 && (size_t)info.st_size < map->count);
}

const uint8_t *cr_pack_map_at(const struct cr_pack_map *map, uint64_t offset, size_t count) {
    enum { LOOKED_AT = 64 };
    unsigned char   page[LOOKED_AT];
    const uint8_t  *at   = map->bytes + offset;
    const uintptr_t from = (uintptr_t)at / page_bytes * page_bytes, bytes = (uintptr_t)at + count - from;
    const size_t    pages = CR_MIN((bytes + page_bytes - 1) / page_bytes, (size_t)LOOKED_AT);
    bool            here  = mincore((void *)from, pages * page_bytes, page) == 0;
    for (size_t i = 0; here && i < pages; i++) here = page[i] & 1;
    if (!here) madvise((void *)from, bytes, MADV_WILLNEED);
    return at;
}

void cr_pack_map_close(struct cr_pack_map *map) {
    if (!map) return;
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        struct cr_pack_map *own = map;
        if (atomic_compare_exchange_strong(&mappings[i], &own, NULL)) break;
    }
    while (atomic_load(&handlers)) sched_yield(); /* those of other threads: a new one does not find this mapping */
    if (map->count) munmap((void *)(uintptr_t)map->bytes, map->count);
    close(map->fd);
    cr_free(map);
}

/* tests/tools/fault_shim.c: a library for LD_PRELOAD that makes the n-th call of a kind fail, as when memory is
 * exhausted, a disk is damaged or full, and that can turn the clock back. scripts/fault-test.sh uses it.
 * Environment:
 *   FAULT_CALL    malloc | read | write | open | close | fsync | rename | mmap | thread: the calls that are counted
 *   FAULT_AT      the number of the call that fails, from 1; 0 or unset: none
 *   FAULT_TIMES   number of consecutive failures (1); 0: all calls from FAULT_AT on
 *   FAULT_ERRNO   the error number (ENOMEM for malloc and mmap, EAGAIN for thread, else EIO)
 *   FAULT_SHORT   1: a failing write or read first transfers half of its bytes, once
 *   FAULT_SCOPE   own (default): calls of the program itself; all: also calls of libraries
 *   FAULT_COUNT   a file to which "CALLS FAILED" is written at the end
 *   FAULT_CLOCK   back: all clocks, including the monotonic clock, jump back one hour every 50 reads
 * Descriptors 0 to 2 are never counted: messages of the program must not fail. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum kind { NONE, MALLOC, READ, WRITE, OPEN, CLOSE, FSYNC, RENAME, MMAP, THREAD, KINDS };
static const char *const kind_names[KINDS] = {"none",  "malloc", "read",   "write", "open",
                                              "close", "fsync",  "rename", "mmap",  "thread"};

static struct {
    enum kind   kind;
    long        at, times;
    int         error;
    bool        all, half, clock_back, ready;
    const char *count_file;
    uintptr_t   first, end; /* address range of the program's own code */
} how;
static atomic_long calls, failed;

static int find_program(struct dl_phdr_info *info, size_t size, void *data) {
    how.first = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD) continue;
        uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        if (begin < how.first) how.first = begin;
        if (begin + p->p_memsz > how.end) how.end = begin + p->p_memsz;
    }
    return 1; /* the first object is the program */
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void start(void) {
    const char *call = getenv("FAULT_CALL"), *scope = getenv("FAULT_SCOPE"), *hands = getenv("FAULT_CLOCK");
    for (int k = 1; call && k < KINDS; k++)
        if (strcmp(call, kind_names[k]) == 0) how.kind = (enum kind)k;
    how.at         = number("FAULT_AT", 0);
    how.times      = number("FAULT_TIMES", 1);
    how.error      = (int)number("FAULT_ERRNO", how.kind == MALLOC || how.kind == MMAP ? ENOMEM
                                                : how.kind == THREAD                   ? EAGAIN
                                                                                       : EIO);
    how.half       = number("FAULT_SHORT", 0) != 0;
    how.all        = scope && strcmp(scope, "all") == 0;
    how.clock_back = hands && strcmp(hands, "back") == 0;
    how.count_file = getenv("FAULT_COUNT");
    dl_iterate_phdr(find_program, NULL);
    how.ready = true;
}

__attribute__((destructor)) static void finish(void) {
    how.ready  = false;
    FILE *file = how.count_file ? fopen(how.count_file, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld %ld\n", (long)calls, (long)failed);
    fclose(file);
}

/* Counts a call. Returns true if it must fail; errno is set. */
static bool fails(enum kind kind, const void *from) {
    if (!how.ready || how.kind != kind) return false;
    if (!how.all && ((uintptr_t)from < how.first || (uintptr_t)from >= how.end)) return false;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (how.at <= 0 || call < how.at || (how.times && call >= how.at + how.times)) return false;
    atomic_fetch_add(&failed, 1);
    errno = how.error;
    return true;
}

#define FROM __builtin_return_address(0)
/* The real function, which is looked up at its first use. */
#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

/* ---- memory: glibc's functions under their second names, because dlsym allocates ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    return fails(MALLOC, FROM) ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t size) {
    return fails(MALLOC, FROM) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *p, size_t bytes) {
    return fails(MALLOC, FROM) ? NULL : __libc_realloc(p, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails(MALLOC, FROM) ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (fails(MALLOC, FROM)) return ENOMEM;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

/* ---- files ---- */

#define MODE_OF(flags, mode)                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode = va_arg(list, mode_t);                                                                                   \
        va_end(list);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    REAL(open);
    return fails(OPEN, FROM) ? -1 : real(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    REAL(openat);
    return fails(OPEN, FROM) ? -1 : real(folder, path, flags, mode);
}
FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return fails(OPEN, FROM) ? NULL : real(path, mode);
}
int memfd_create(const char *name, unsigned flags) {
    REAL(memfd_create);
    return fails(OPEN, FROM) ? -1 : real(name, flags);
}
DIR *opendir(const char *path) {
    REAL(opendir);
    return fails(OPEN, FROM) ? NULL : real(path);
}

int close(int fd) {
    REAL(close);
    bool bad    = fails(CLOSE, FROM);
    int  error  = errno;
    int  result = real(fd);
    if (!bad) return result;
    errno = error;
    return -1;
}
int fclose(FILE *file) {
    REAL(fclose);
    bool bad    = fails(CLOSE, FROM);
    int  error  = errno;
    int  result = real(file);
    if (!bad) return result;
    errno = error;
    return EOF;
}

ssize_t read(int fd, void *to, size_t bytes) {
    REAL(read);
    if (fd < 3 || !fails(READ, FROM)) return real(fd, to, bytes);
    return how.half && bytes > 1 ? real(fd, to, bytes / 2) : -1;
}
ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    REAL(pread);
    if (!fails(READ, FROM)) return real(fd, to, bytes, offset);
    return how.half && bytes > 1 ? real(fd, to, bytes / 2, offset) : -1;
}
/* Streams continue after short or interrupted system reads, so they can only fail. */
static bool stream_fails(const void *from) {
    return !how.half && how.error != EINTR && fails(READ, from);
}
static FILE *spoilt; /* the stream whose read failed: for ferror */
size_t       fread(void *to, size_t size, size_t count, FILE *file) {
          REAL(fread);
          if (!stream_fails(FROM)) return real(to, size, count, file);
    spoilt = file;
          return 0;
}
char *fgets(char *to, int bytes, FILE *file) {
    REAL(fgets);
    if (!stream_fails(FROM)) return real(to, bytes, file);
    spoilt = file;
    return NULL;
}
int ferror(FILE *file) {
    REAL(ferror);
    if (file != spoilt) return real(file);
    spoilt = NULL;
    return 1;
}

ssize_t write(int fd, const void *from, size_t bytes) {
    REAL(write);
    if (fd < 3 || !fails(WRITE, FROM)) return real(fd, from, bytes);
    return how.half && bytes > 1 ? real(fd, from, bytes / 2) : -1;
}
size_t fwrite(const void *from, size_t size, size_t count, FILE *file) {
    REAL(fwrite);
    return file != stdout && file != stderr && fails(WRITE, FROM) ? 0 : real(from, size, count, file);
}
int fputs(const char *s, FILE *file) {
    REAL(fputs);
    return file != stdout && file != stderr && fails(WRITE, FROM) ? EOF : real(s, file);
}
int fflush(FILE *file) {
    REAL(fflush);
    return file && file != stdout && file != stderr && fails(WRITE, FROM) ? EOF : real(file);
}

int fsync(int fd) {
    REAL(fsync);
    return fails(FSYNC, FROM) ? -1 : real(fd);
}

/* Calls that change names in a folder. */
int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(RENAME, FROM) ? -1 : real(from, to);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    REAL(renameat2);
    return fails(RENAME, FROM) ? -1 : real(from_folder, from, to_folder, to, flags);
}
int symlink(const char *target, const char *path) {
    REAL(symlink);
    return fails(RENAME, FROM) ? -1 : real(target, path);
}
int unlink(const char *path) {
    REAL(unlink);
    return fails(RENAME, FROM) ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    return fails(RENAME, FROM) ? -1 : real(folder, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(RENAME, FROM) ? -1 : real(path, mode);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    return fails(MMAP, FROM) ? MAP_FAILED : real(address, bytes, protection, flags, fd, offset);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    REAL(pthread_create);
    return fails(THREAD, FROM) ? how.error : real(thread, attributes, run, argument);
}

/* ---- time ---- */

int clock_gettime(clockid_t clock, struct timespec *out) {
    static atomic_long clock_reads;
    REAL(clock_gettime);
    int result = real(clock, out);
    if (how.ready && how.clock_back && result == 0) {
        out->tv_sec -= atomic_fetch_add(&clock_reads, 1) / 50 * 3600;
        if (out->tv_sec < 0) out->tv_sec = 0;
    }
    return result;
}

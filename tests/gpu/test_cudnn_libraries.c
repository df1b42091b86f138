/* tests/gpu/test_cudnn_libraries.c: cuda/core/libraries.c opens cuDNN and cuBLAS once, in the thread that
 * cr_cuda_libs_begin starts or in the caller's, and all callers get their functions. This file replaces dlopen and
 * dlsym, so no GPU is needed. A process opens the libraries once, so each case runs in a new process. */
#include "tests/harness/test.h"

#include <dlfcn.h>
#include <link.h>
static int   stand_in_info(void *library, int request, void *out);
static void *stand_in_open(const char *name, int flags);
static void *stand_in_symbol(void *library, const char *name);
#define dlopen stand_in_open
#define dlsym stand_in_symbol
#define dlinfo stand_in_info
#include "cuda/core/libraries.c"
#undef dlinfo
#undef dlopen
#undef dlsym

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int opened_cudnn, opened_cublas, opened_parts, by_main;
static bool       no_cublas;
static pthread_t  main_thread;

static size_t version(void) {
    return 4711;
}

/* Sleeps, so that other threads call it at the same time. */
static void *stand_in_open(const char *name, int flags) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    atomic_fetch_add(&by_main, pthread_equal(pthread_self(), main_thread) != 0);
    atomic_fetch_add(strcmp(name, CUDNN_SO) == 0    ? &opened_cudnn
                     : strcmp(name, CUBLAS_SO) == 0 ? &opened_cublas
                                                    : &opened_parts,
                     1);
    return no_cublas && strcmp(name, CUBLAS_SO) == 0 ? NULL : &opened_cudnn;
}
static int stand_in_info(void *library, int request, void *out) {
    static char            path[] = "/where/it/is";
    static struct link_map map;
    map.l_name = path;
    if (library != &opened_cudnn || request != RTLD_DI_LINKMAP) return -1;
    memcpy(out, &(struct link_map *){&map}, sizeof(void *));
    return 0;
}
static void *stand_in_symbol(void *library, const char *name) {
    size_t (*function)(void) = version;
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

/* Runs `run` in a new process and returns its result. */
static bool in_process(bool (*run)(void)) {
    int         status = -1;
    const pid_t child  = fork();
    if (child == 0) {
        main_thread = pthread_self();
        _exit(run() ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

enum { THREADS = 10 };

static void *use(void *begins) {
    if (begins) cr_cuda_libs_begin();
    if (cr_cuda_libs_missing()) return NULL;
    return cudnnGetVersion() == 4711 ? &opened_cudnn : NULL;
}

/* With `begin`, every second thread calls cr_cuda_libs_begin. */
static bool threads_agree(bool begin) {
    pthread_t thread[THREADS];
    bool      good = true;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, use, begin && i % 2 ? &thread[i] : NULL)) return false;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        good = pthread_join(thread[i], &result) == 0 && result && good;
    }
    cr_cuda_libs_begin(); /* too late: does nothing */
    return good && opened_cudnn == 1 && opened_cublas == 1 && !cr_cuda_libs_missing();
}
static bool some_begin(void) {
    return threads_agree(true);
}
static bool none_begins(void) {
    return threads_agree(false);
}

static bool begins_in_another_thread(void) {
    cr_cuda_libs_begin();
    return !cr_cuda_libs_missing() && opened_cudnn == 1 && opened_parts > 0 && by_main == 0;
}
static bool opens_without_begin(void) {
    return !cr_cuda_libs_missing() && opened_cudnn == 1 && opened_parts == 0 && by_main == 2;
}
static bool names_what_is_missing(void) {
    no_cublas = true;
    cr_cuda_libs_begin();
    const char *why = cr_cuda_libs_missing();
    return why && strstr(why, CUBLAS_SO " was not found") && strcmp(why, cr_cuda_libs_missing()) == 0;
}

static bool lists_files(void) {
    OWNED(text) text = {0};
    no_cublas        = true;
    cr_cuda_libs_list(&text);
    return text.data && strstr(text.data, CUDNN_SO "  /where/it/is\n") && strstr(text.data, CUBLAS_SO " not found\n") &&
           strstr(text.data, NVRTC_SO " /where/it/is\n") && strstr(text.data, "libnccl.so.2   /where/it/is\n");
}

TEST(libraries_are_opened_once) {
    for (int i = 0; i < 5; i++) CHECK(in_process(some_begin));
    CHECK(in_process(none_begins));
    CHECK(in_process(begins_in_another_thread));
    CHECK(in_process(opens_without_begin));
    CHECK(in_process(names_what_is_missing));
}

TEST(files_are_listed) {
    CHECK(in_process(lists_files));
}

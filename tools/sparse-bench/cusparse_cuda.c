/* tools/sparse-bench/cusparse_cuda.c: opens libcusparse at the first use and resolves its functions. */
#include "tools/sparse-bench/cusparse_cuda.h"

#ifdef CR_HAS_CUSPARSE
#include "core/base.h"

#include <dlfcn.h>
#include <pthread.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static struct cr_cusparse library;
static bool               is_loaded;
static pthread_once_t     once = PTHREAD_ONCE_INIT;

static void load(void) {
    void *file = dlopen("libcusparse.so." TEXT(CUSPARSE_VER_MAJOR), RTLD_LAZY | RTLD_LOCAL);
    is_loaded  = file != NULL;
#define X(name)                                                                                                        \
    *(void **)(void *)&library.name = file ? dlsym(file, #name) : NULL;                                                \
    is_loaded                       = is_loaded && library.name;
    CUSPARSE_FUNCTIONS(X)
#undef X
}

const struct cr_cusparse *cr_cusparse(void) {
    pthread_once(&once, load);
    return is_loaded ? &library : NULL;
}
#else
typedef int cr_no_cusparse; /* ISO C forbids an empty translation unit */
#endif

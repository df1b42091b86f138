/* pretrained/curl_library.c: opens libcurl. See pretrained/curl_library.h. */
#ifdef CR_CURL_DLOPEN

#include "pretrained/curl_library.h"
#include "core/base.h"

#include <dlfcn.h>
#include <pthread.h>

struct cr_curl cr_curl;

static void open_library(void) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};
    void                    *library = NULL;
    for (size_t i = 0; i < CR_COUNT(names) && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    cr_curl.found = library;
#define X(name)                                                                                                        \
    *(void **)(void *)&cr_curl.name = library ? dlsym(library, "curl_" #name) : NULL;                                  \
    cr_curl.found                   = cr_curl.found && cr_curl.name;
    CR_CURL_FUNCTIONS(X)
#undef X
}

bool cr_curl_found(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return cr_curl.found;
}

#endif

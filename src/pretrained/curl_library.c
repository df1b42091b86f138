/* pretrained/curl_library.c: in builds with CRESNET_WITH_CURL=DLOPEN, opens libcurl when a download needs it: a wheel
 * cannot depend on a package of the system. The functions of libcurl that download.c calls are defined here under their
 * own names and forward each call. */
#include "pretrained/curl_library.h"

#ifdef CR_CURL_DLOPEN

#include "core/base.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>

/* The functions with a variable argument pass a pointer, a long or a curl_off_t, each in the same register. */
_Static_assert(sizeof(long) == sizeof(void *), "an argument of curl_easy_setopt does not fit into a pointer");

#define FUNCTIONS(X)                                                                                                   \
    X(CURLcode, global_init, (long))                                                                                   \
    X(CURL *, easy_init, (void))                                                                                       \
    X(CURLcode, easy_perform, (CURL *))                                                                                \
    X(void, easy_cleanup, (CURL *))                                                                                    \
    X(const char *, easy_strerror, (CURLcode))                                                                         \
    X(CURLcode, easy_setopt, (CURL *, CURLoption, ...))                                                                \
    X(CURLcode, easy_getinfo, (CURL *, CURLINFO, ...))                                                                 \
    X(curl_version_info_data *, version_info, (CURLversion))

static struct {
#define X(result, name, parameters) result(*name) parameters;
    FUNCTIONS(X)
#undef X
    bool found;
} curl;

static void open_library(void) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};
    void                    *library = NULL;
    for (size_t i = 0; i < CR_COUNT(names) && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    curl.found = library;
#define X(result, name, parameters)                                                                                    \
    *(void **)(void *)&curl.name = library ? dlsym(library, "curl_" #name) : NULL;                                     \
    curl.found                   = curl.found && curl.name;
    FUNCTIONS(X)
#undef X
}

bool cr_curl_found(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return curl.found;
}

CURLcode curl_global_init(long flags) {
    return curl.global_init(flags);
}

CURL *curl_easy_init(void) {
    return curl.easy_init();
}

CURLcode curl_easy_perform(CURL *handle) {
    return curl.easy_perform(handle);
}

void curl_easy_cleanup(CURL *handle) {
    curl.easy_cleanup(handle);
}

const char *curl_easy_strerror(CURLcode code) {
    return curl.easy_strerror(code);
}

curl_version_info_data *curl_version_info(CURLversion version) {
    return curl.version_info(version);
}

/* In parentheses, because the header has macros of these names. */
CURLcode(curl_easy_setopt)(CURL *handle, CURLoption option, ...) {
    va_list arguments;
    va_start(arguments, option);
    void *value = va_arg(arguments, void *);
    va_end(arguments);
    return curl.easy_setopt(handle, option, value);
}

CURLcode(curl_easy_getinfo)(CURL *handle, CURLINFO info, ...) {
    va_list arguments;
    va_start(arguments, info);
    void *value = va_arg(arguments, void *);
    va_end(arguments);
    return curl.easy_getinfo(handle, info, value);
}

#else

bool cr_curl_found(void) {
    return true;
}

#endif

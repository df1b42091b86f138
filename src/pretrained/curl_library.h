/* pretrained/curl_library.h: libcurl for download.c. In builds with CRESNET_WITH_CURL=DLOPEN, it is opened when a
 * download needs it: a wheel cannot depend on a package of the system. */
#ifndef CR_CURL_LIBRARY_H
#define CR_CURL_LIBRARY_H

#include <curl/curl.h>
#include <stdbool.h>

#ifdef CR_CURL_DLOPEN

#define CR_CURL_FUNCTIONS(X)                                                                                           \
    X(global_init)                                                                                                     \
    X(easy_init) X(easy_perform) X(easy_cleanup) X(easy_strerror) X(easy_setopt) X(easy_getinfo) X(version_info)
struct cr_curl {
#define X(name) __typeof__(curl_##name) *name;
    CR_CURL_FUNCTIONS(X)
#undef X
    bool found;
};
extern struct cr_curl cr_curl;
/* Opens the library; returns whether that was possible. No function may be called when it was not. Thread-safe. */
bool cr_curl_found(void);

#undef curl_easy_setopt
#undef curl_easy_getinfo
#define curl_global_init cr_curl.global_init
#define curl_easy_init cr_curl.easy_init
#define curl_easy_perform cr_curl.easy_perform
#define curl_easy_cleanup cr_curl.easy_cleanup
#define curl_easy_strerror cr_curl.easy_strerror
#define curl_easy_setopt cr_curl.easy_setopt
#define curl_easy_getinfo cr_curl.easy_getinfo
#define curl_version_info cr_curl.version_info

#else

static inline bool cr_curl_found(void) {
    return true;
}

#endif

#endif

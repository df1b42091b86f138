/* pretrained/curl_library.h: whether libcurl is there, for download.c. */
#ifndef CR_CURL_LIBRARY_H
#define CR_CURL_LIBRARY_H

#include <stdbool.h>

/* True when libcurl is linked. In a build that opens it at run time: opens it, and returns whether that was possible;
 * no other function of libcurl may be called when it was not. Thread-safe. */
bool cr_curl_found(void);

#endif

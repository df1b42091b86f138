/* pretrained/download.c: downloads a file by one HTTP request with libcurl, which also takes proxies from the usual
 * environment variables. See pretrained/pretrained.h. */
#include "core/files.h"
#include "core/host.h"
#include "pretrained/pretrained.h"

#include <stdio.h>

#ifdef CR_WITH_CURL

#include "pretrained/curl_library.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { REDIRECTS_MAX = 5, PROGRESS_SECONDS = 5, SLOWEST = 1000 /* bytes per second */ };
#define FILE_BYTES_MAX (INT64_C(4) << 30)
#define NS_PER_SECOND INT64_C(1000000000)

struct transfer {
    const struct cr_download *download;
    CURL                     *curl;
    int64_t                   begin;    /* bytes that the file had */
    int64_t                   received; /* bytes written by this request */
    bool                      started, failed;
    enum { RUNNING, TOO_SLOW, TOO_LONG, INTERRUPTED } ended; /* why on_progress has ended the transfer */
    int64_t started_ns, shown_ns;
    int64_t window_ns, window_received; /* when the current `timeout` seconds began, and `received` then */
};

static int  global_result;
static void global_init(void) {
    global_result = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* ---- callbacks ---- */

/* The first bytes: a server that does not know ranges answers 200 with the whole file. */
static bool start_writing(struct transfer *t) {
    const struct cr_download *d    = t->download;
    long                      code = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    t->started = true;
    if (t->begin && code != 206) {
        if (ftruncate(d->fd, 0) < 0) {
            (void)cr_fs_refused(d->path, "write", errno);
            return false;
        }
        t->begin = 0;
    }
    return lseek(d->fd, t->begin, SEEK_SET) >= 0;
}

static size_t on_data(char *bytes, size_t size, size_t count, void *context) {
    struct transfer *t   = context;
    const size_t     all = size * count;
    if (!t->started && !start_writing(t)) {
        t->failed = true;
        return 0;
    }
    if (t->begin + t->received + (int64_t)all > FILE_BYTES_MAX) {
        t->failed = true;
        (void)CR_FAIL(CR_ERR_IO, "%s: the server sends more than %lld bytes", t->download->url,
                      (long long)FILE_BYTES_MAX);
        return 0;
    }
    if (cr_fs_write(t->download->fd, t->download->path, bytes, all, 0) != CR_OK) {
        t->failed = true;
        return 0;
    }
    t->received += (int64_t)all;
    return all;
}

/* Whether the transfer has to end, and why. */
static void check_limits(struct transfer *t, int64_t time) {
    const int64_t timeout = t->download->timeout;
    if (cr_host_interrupted()) t->ended = INTERRUPTED;
    if (time > t->download->end_ns) t->ended = TOO_LONG;
    if (time - t->window_ns <= timeout * NS_PER_SECOND) return;
    if (t->received - t->window_received < timeout * SLOWEST) {
        t->ended = TOO_SLOW;
        return;
    }
    t->window_ns       = time;
    t->window_received = t->received;
}

/* libcurl calls this about once a second. A result other than 0 ends the transfer. */
static int on_progress(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
    struct transfer *t    = context;
    const int64_t    time = cr_time_ns();
    (void)up_total;
    (void)up_now;
    check_limits(t, time);
    if (t->ended != RUNNING) return 1;
    if (time - t->shown_ns < PROGRESS_SECONDS * NS_PER_SECOND || !t->received || total <= 0) return 0;
    t->shown_ns          = time;
    const double seconds = (double)(time - t->started_ns) / 1e9;
    cr_log(CR_LOG_INFO, "%s: %.1f of %.1f MiB, %.1f MiB/s", t->download->name, cr_mib((size_t)(t->begin + now)),
           cr_mib((size_t)(t->begin + total)), cr_mib((size_t)now) / seconds);
    return 0;
}

/* ---- the request ---- */

/* A download that begins encrypted stays so when it is redirected. */
static void allow_protocols(CURL *curl, const char *url) {
    const bool encrypted = strncmp(url, "https:", 6) == 0;
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, encrypted ? "https" : "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, encrypted ? "https" : "http,https");
#else
    const long allowed = encrypted ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, allowed);
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS, allowed);
#endif
}

static void set_options(struct transfer *t, char problem[CURL_ERROR_SIZE]) {
    const struct cr_download *d = t->download;
    char                      range[32];
    curl_easy_setopt(t->curl, CURLOPT_URL, d->url);
    curl_easy_setopt(t->curl, CURLOPT_USERAGENT, "cresnet/" CR_VERSION);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, problem);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(t->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(t->curl, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, (long)d->timeout);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
    allow_protocols(t->curl, d->url);
    snprintf(range, sizeof range, "%lld-", (long long)t->begin);
    if (t->begin) curl_easy_setopt(t->curl, CURLOPT_RANGE, range);
}

/* Errors that another attempt does not change. */
static bool is_final(CURLcode code, long response) {
    switch (code) {
    case CURLE_HTTP_RETURNED_ERROR: return response >= 400 && response < 500 && response != 408 && response != 429;
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return false;
    default: return true;
    }
}

static const char *advice(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
        return " (https_proxy names a proxy; without a network, put the file into the folder CRESNET_WEIGHTS_DIR)";
    default: return "";
    }
}

static enum cr_download_result fail_ended(const struct transfer *t) {
    static const char kept[] = "what came is kept, and the next attempt continues";
    const char       *url    = t->download->url;
    if (t->ended == TOO_SLOW)
        (void)CR_FAIL(CR_ERR_IO, "%s: cannot be downloaded: the server sent %s for %d s%s", url,
                      t->received > t->window_received ? "less than 1 kB/s" : "nothing", t->download->timeout,
                      advice(CURLE_OPERATION_TIMEDOUT));
    else if (t->ended == TOO_LONG)
        (void)CR_FAIL(CR_ERR_IO, "%s: was not downloaded in the time of CRESNET_DOWNLOAD_MAX_TIME: %s", url, kept);
    else
        (void)CR_FAIL(CR_ERR_IO, "%s: the download was interrupted: %s", url, kept);
    return t->ended == TOO_SLOW ? CR_DOWNLOAD_BROKEN : CR_DOWNLOAD_REFUSED;
}

static enum cr_download_result result_of(struct transfer *t, CURLcode code, const char *problem) {
    long response = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &response);
    if (t->failed) return CR_DOWNLOAD_REFUSED; /* the error is set */
    if (code == CURLE_OK) return CR_DOWNLOAD_COMPLETE;
    /* 416: there is nothing behind what the file has; its hash shows whether it is complete */
    if (code == CURLE_HTTP_RETURNED_ERROR && response == 416 && t->begin) return CR_DOWNLOAD_COMPLETE;
    if (t->ended != RUNNING) return fail_ended(t);
    (void)CR_FAIL(CR_ERR_IO, "%s: cannot be downloaded: %s%s", t->download->url,
                  *problem ? problem : curl_easy_strerror(code), advice(code));
    return is_final(code, response) ? CR_DOWNLOAD_REFUSED : CR_DOWNLOAD_BROKEN;
}

enum cr_download_result cr_download(const struct cr_download *download) {
    static pthread_once_t once                     = PTHREAD_ONCE_INIT;
    char                  problem[CURL_ERROR_SIZE] = "";
    const int64_t         now                      = cr_time_ns();
    struct transfer       t = {.download = download, .started_ns = now, .shown_ns = now, .window_ns = now};
    pthread_once(&once, global_init);
    t.curl = global_result ? curl_easy_init() : NULL;
    if (!t.curl) {
        (void)CR_FAIL(CR_ERR_MEMORY, "%s: libcurl cannot be started", download->url);
        return CR_DOWNLOAD_REFUSED;
    }
    t.begin = lseek(download->fd, 0, SEEK_END);
    set_options(&t, problem);
    const CURLcode                code   = curl_easy_perform(t.curl);
    const enum cr_download_result result = result_of(&t, code, problem);
    curl_easy_cleanup(t.curl);
    return result;
}

const char *cr_download_missing(void) {
    return cr_curl_found() ? NULL : "this system lacks libcurl.so.4 (package libcurl4)";
}

const char *cr_download_version(void) {
    return cr_curl_found() ? curl_version_info(CURLVERSION_NOW)->version : "not installed";
}

#else

enum cr_download_result cr_download(const struct cr_download *download) {
    (void)CR_FAIL(CR_ERR_IO, "%s: cannot be downloaded: this build has no libcurl", download->url);
    return CR_DOWNLOAD_REFUSED;
}

const char *cr_download_missing(void) {
    return "this build of cresnet has no libcurl";
}

const char *cr_download_version(void) {
    return "no";
}

#endif

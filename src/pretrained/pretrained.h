/* pretrained/pretrained.h: pretrained weights by name: `resnet50` is a file of torchvision that is downloaded once.
 *
 * A name is looked up in the table of torchvision's files, or in the list that CRESNET_WEIGHTS_LIST names (lines of a
 * name and a file name). In the file name, the part between the last '-' and the '.' is the beginning of the SHA-256 of
 * the content, at least 8 digits.
 *
 * The file is searched in CRESNET_WEIGHTS_DIR, in the cache (CRESNET_CACHE/weights, or weights/ in the folder cresnet
 * of XDG_CACHE_HOME or ~/.cache) and in that of PyTorch (hub/checkpoints in TORCH_HOME or in the folder torch of those
 * two). Otherwise it is downloaded from CRESNET_WEIGHTS_URL (https://download.pytorch.org/models) into the cache.
 *
 * Invariants
 *   - A file in the cache has its name only after its hash was verified. Files of other folders are verified at each
 *     use.
 *   - FILE.part is a download that can be continued. One process at a time writes it: it holds a lock (flock).
 *   - With CRESNET_OFFLINE=1, and in builds without libcurl, no connection is made: the error says how to go on. */
#ifndef CR_PRETRAINED_H
#define CR_PRETRAINED_H

#include "core/files.h"

enum { CR_PRETRAINED_NAME_MAX = 256 };

extern const char cr_imagenet_classes[]; /* 1,000 lines */

struct cr_pretrained {
    char name[CR_PRETRAINED_NAME_MAX]; /* "resnet50" */
    char file[CR_PRETRAINED_NAME_MAX]; /* "resnet50-0676ba61.pth" */
    char hash[65];                     /* "0676ba61": beginning of the SHA-256, lower case */
};

/* Looks a name up. CR_ERR_CONFIG, with the names that exist, if `name` is none or its network is not supported;
 * CR_ERR_FORMAT and CR_ERR_IO for the list. */
CR_MUST cr_status cr_pretrained_find(const char *name, struct cr_pretrained *out);
/* True if cr_pretrained_find finds the name, or cannot read the list of CRESNET_WEIGHTS_LIST. Sets no error. */
bool cr_pretrained_is_name(const char *name);
/* Adds the names of the table, with `separator` between them. */
void cr_pretrained_names(const char *separator, struct cr_text *out);
/* True if `path` ends with the file name of one of torchvision's networks, whose classes are those of ImageNet. */
bool cr_pretrained_has_imagenet_classes(const char *path);
/* Finds or downloads the file of a name. CR_ERR_CONFIG (unknown name), CR_ERR_IO
 * (not there, and not downloaded), CR_ERR_FORMAT (the hash differs). */
CR_MUST cr_status cr_pretrained_file(const char *name, char path[CR_PATH_MAX]);

/* ---- pretrained/download.c ---- */

enum cr_download_result {
    CR_DOWNLOAD_COMPLETE, /* the server sent all that it has */
    CR_DOWNLOAD_BROKEN,   /* another attempt may continue; the error says what happened */
    CR_DOWNLOAD_REFUSED   /* another attempt would end the same way; the error says why */
};
struct cr_download {
    const char *url, *name; /* name: for progress lines */
    const char *path;       /* of the file, for messages */
    int         fd;         /* open for writing; the content so far is the beginning of the file */
    int         timeout;    /* seconds: a request that gets less than 1 kB/s for this time is given up */
    int64_t     end_ns;     /* of cr_time_ns, when the download is given up */
};
/* Makes one request for the bytes behind those that the file has, and appends them. A server without ranges sends the
 * whole file, which then replaces the content. */
enum cr_download_result cr_download(const struct cr_download *download);
/* Why nothing can be downloaded: NULL, or the text that libcurl is not there. */
const char *cr_download_missing(void);
const char *cr_download_version(void); /* "libcurl 7.88.1", or "no" */

#endif

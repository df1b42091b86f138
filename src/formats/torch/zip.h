/* formats/torch/zip.h: finds stored (uncompressed) files in a zip archive, so that they can be read in place.
 *
 * Format: PKWARE APPNOTE, with the 64-bit extension. torch.save writes such archives without compression.
 *
 * Invariants
 *   - The central directory is the truth: every entry lies before it, and its local header has the same name.
 *   - Every length and offset is compared with the size of the archive before it is used.
 *   - Check sums are not compared: torch.save can leave them out.
 * This file does not know what the archive contains. */
#ifndef CR_ZIP_H
#define CR_ZIP_H

#include "core/base.h"

enum { CR_ZIP_DIRECTORY_MAX = 64 << 20, CR_ZIP_ENTRIES_MAX = 1 << 20 };

struct cr_zip_entry {
    const char *name;   /* 0-terminated; names with a 0 byte are refused; first, for cr_compare_texts */
    uint64_t    local;  /* offset of the local header in the archive, bytes */
    uint64_t    bytes;  /* of the content */
    bool        stored; /* false: compressed or encrypted, which cr_zip_locate refuses */
};
struct cr_zip {
    int                  fd;   /* of the caller, open for reading */
    const char          *path; /* of the caller, for messages */
    struct cr_zip_entry *entry;
    int                  count;           /* sorted by name */
    uint64_t             directory_begin; /* offset of the central directory: the content of all entries ends before */
    char                *directory;       /* bytes of the central directory */
};

/* Reads the central directory of an archive of `file_bytes` bytes. `fd` and `path` must stay valid until cr_zip_close.
 * CR_ERR_FORMAT, CR_ERR_IO. On failure *out is empty. */
CR_MUST cr_status          cr_zip_open(int fd, const char *path, uint64_t file_bytes, struct cr_zip *out);
void                       cr_zip_close(struct cr_zip *zip); /* does not close fd; a zeroed struct is allowed */
const struct cr_zip_entry *cr_zip_find(const struct cr_zip *zip, const char *name); /* NULL if missing */
/* Stores the offset of the content in the archive. CR_ERR_FORMAT for a compressed entry or a wrong local header. */
CR_MUST cr_status cr_zip_locate(const struct cr_zip *zip, const struct cr_zip_entry *entry, uint64_t *offset);

#endif

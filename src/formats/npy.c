/* formats/npy.c: writes arrays of numpy. See formats/npy.h.
 *
 * Format (numpy.lib.format, version 1.0): 6 bytes of magic, the version, u16 length of the header, the header (a
 * dict of Python, padded with blanks, with a line end), the values. */
#include "formats/npy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 128, START_BYTES = 10 };

static cr_status put(struct cr_npy *npy, const void *bytes, size_t count) {
    return cr_fs_write(npy->temporary.fd, npy->temporary.target, bytes, count, 0);
}

static cr_status put_head(struct cr_npy *npy) {
    static const unsigned char start[START_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, HEAD_BYTES - START_BYTES, 0};
    char                       head[HEAD_BYTES];
    memset(head, ' ', sizeof head);
    memcpy(head, start, sizeof start);
    const int used =
        snprintf(head + START_BYTES, HEAD_BYTES - START_BYTES,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %d), }", (long long)npy->rows, npy->columns);
    head[START_BYTES + used] = ' ';
    head[HEAD_BYTES - 1]     = '\n';
    return put(npy, head, HEAD_BYTES);
}

cr_status cr_npy_open(struct cr_npy *npy, const char *path, int columns) {
    *npy = (struct cr_npy){.columns = columns};
    CR_TRY(cr_temporary_file(&npy->temporary, path));
    return put_head(npy);
}

cr_status cr_npy_add(struct cr_npy *npy, const float *row) {
    npy->rows++;
    return put(npy, row, (size_t)npy->columns * sizeof *row); /* hosts are little-endian */
}

cr_status cr_npy_finish(struct cr_npy *npy) {
    if (lseek(npy->temporary.fd, 0, SEEK_SET) < 0) return cr_fs_refused(npy->temporary.target, "write", errno);
    CR_TRY(put_head(npy));
    return cr_temporary_commit(&npy->temporary);
}

void cr_npy_close(struct cr_npy *npy) {
    if (npy->columns) cr_temporary_drop(&npy->temporary);
    *npy = (struct cr_npy){0};
}

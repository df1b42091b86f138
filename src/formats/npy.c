/* formats/npy.c: writes arrays of numpy. See formats/npy.h.
 *
 * Format (numpy.lib.format, version 1.0): 6 bytes of magic, the version, u16 length of the header, the header (a
 * dict of Python, padded with blanks, with a line end), the values. */
#include "formats/npy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 128, START_BYTES = 10, PIECE_BYTES = 1 << 20 };

static void make_head(const struct cr_npy *npy, char head[HEAD_BYTES]) {
    static const unsigned char start[START_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, HEAD_BYTES - START_BYTES, 0};
    memset(head, ' ', HEAD_BYTES);
    memcpy(head, start, sizeof start);
    const int used =
        snprintf(head + START_BYTES, HEAD_BYTES - START_BYTES,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %d), }", (long long)npy->rows, npy->columns);
    head[START_BYTES + used] = ' ';
    head[HEAD_BYTES - 1]     = '\n';
}

static cr_status write_buffer(struct cr_npy *npy) {
    if (npy->buffer.failed) return CR_NO_MEMORY(PIECE_BYTES);
    if (npy->buffer.length)
        CR_TRY(cr_fs_write(npy->temporary.fd, npy->temporary.target, npy->buffer.data, npy->buffer.length, 0));
    npy->buffer.length = 0;
    return CR_OK;
}

cr_status cr_npy_open(struct cr_npy *npy, const char *path, int columns) {
    char head[HEAD_BYTES];
    *npy = (struct cr_npy){.columns = columns};
    CR_TRY(cr_temporary_file(&npy->temporary, path));
    make_head(npy, head);
    cr_text_add_bytes(&npy->buffer, head, HEAD_BYTES);
    return CR_OK;
}

cr_status cr_npy_add(struct cr_npy *npy, const float *row) {
    cr_text_add_bytes(&npy->buffer, row, (size_t)npy->columns * sizeof *row); /* hosts are little-endian */
    npy->rows++;
    return npy->buffer.length < PIECE_BYTES && !npy->buffer.failed ? CR_OK : write_buffer(npy);
}

cr_status cr_npy_finish(struct cr_npy *npy) {
    char head[HEAD_BYTES];
    CR_TRY(write_buffer(npy));
    make_head(npy, head);
    if (lseek(npy->temporary.fd, 0, SEEK_SET) < 0) return cr_fs_refused(npy->temporary.target, "write", errno);
    CR_TRY(cr_fs_write(npy->temporary.fd, npy->temporary.target, head, HEAD_BYTES, 0));
    return cr_temporary_commit(&npy->temporary);
}

void cr_npy_close(struct cr_npy *npy) {
    if (npy->columns) cr_temporary_drop(&npy->temporary);
    cr_text_free(&npy->buffer);
    *npy = (struct cr_npy){0};
}

/* tests/fuzz/fuzz_sparse.c: reads any bytes as a model file with sparse tensors. A tensor is refused with a message
 * that names the file, or it is valid: as many set bits as values, all in range; and its gaps, written again, are
 * those of the file. */
#include "checkpoint/checkpoint.h"
#include "tests/fuzz/memory_file.h"

#include <string.h>

enum { ELEMS_CHECKED_MAX = 1 << 22 }; /* a few bytes may describe a tensor that is too large to verify */

static void check_tensor(struct cr_st_file *file, const char *name, const struct cr_ckpt_sparse *s) {
    char    part[600];
    int64_t nonzeros = 0;
    for (int64_t i = 0; i < s->elems; i++) nonzeros += s->bits[i / 8] >> (i % 8) & 1;
    CR_ASSERT(nonzeros == s->nnz && s->dims >= 1 && s->dims <= 4);
    snprintf(part, sizeof part, "%s.gaps", name);
    const struct cr_st_entry *gaps  = cr_st_find(file, part);
    size_t                    count = cr_ckpt_gaps(s->bits, s->elems, NULL);
    CR_ASSERT(gaps && count == gaps->bytes);
    uint8_t *old = cr_alloc(count, 1), *fresh = cr_alloc(count, 1);
    CR_ASSERT(old && fresh && cr_st_read(file, gaps, 0, old, count) == CR_OK);
    cr_ckpt_gaps(s->bits, s->elems, fresh);
    CR_ASSERT(memcmp(old, fresh, count) == 0);
    cr_free(old);
    cr_free(fresh);
}

static void read_tensors(struct cr_st_file *file, const char *path) {
    static const char     suffix[] = ".gaps";
    struct cr_ckpt_sparse sparse;
    for (int i = 0; i < cr_st_count(file); i++) {
        char   name[512];
        size_t length = strlen(cr_st_at(file, i)->name);
        if (length <= strlen(suffix) || length >= sizeof name ||
            strcmp(cr_st_at(file, i)->name + length - strlen(suffix), suffix) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - strlen(suffix)), cr_st_at(file, i)->name);
        cr_status status = cr_ckpt_sparse_read(file, path, name, &sparse);
        CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
        if (status != CR_OK)
            CR_ASSERT(strstr(cr_error_message(), path));
        else if (sparse.elems <= ELEMS_CHECKED_MAX)
            check_tensor(file, name, &sparse);
        cr_ckpt_sparse_free(&sparse);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char               path[64];
    struct cr_st_file *file = NULL;
    int                fd   = memory_file(data, size, path);
    int64_t            live = cr_alloc_live();
    bool               sparse;
    if (cr_st_open(path, &file) == CR_OK && cr_ckpt_is_sparse(file, path, &sparse) == CR_OK) read_tensors(file, path);
    cr_st_close(file);
    CR_ASSERT(cr_alloc_live() == live);
    close(fd);
    return 0;
}

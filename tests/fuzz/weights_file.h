/* tests/fuzz/weights_file.h: opens the fuzzer's bytes as a file of weights, which is valid or refused with a
 * message. */
#ifndef CR_FUZZ_WEIGHTS_FILE_H
#define CR_FUZZ_WEIGHTS_FILE_H

#include "formats/safetensors.h"
#include "tests/fuzz/memory_file.h"

#include <stdlib.h>
#include <string.h>

static inline int fuzz_weights_file(const uint8_t *data, size_t size,
                                    cr_status (*open_file)(const char *path, struct cr_st_file **file),
                                    void (*check)(struct cr_st_file *file, size_t size)) {
    char               path[64];
    struct cr_st_file *file   = NULL;
    int                fd     = memory_file(data, size, path);
    int64_t            live   = cr_alloc_live();
    cr_status          status = open_file(path, &file);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status == CR_OK)
        check(file, size);
    else
        CR_ASSERT(strstr(cr_error_message(), path) != NULL);
    cr_st_close(file);
    CR_ASSERT(cr_alloc_live() == live);
    close(fd);
    return 0;
}

#endif

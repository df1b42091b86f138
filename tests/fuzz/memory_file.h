/* tests/fuzz/memory_file.h: presents the fuzzer's bytes as a file that functions can open by path. */
#ifndef CR_MEMORY_FILE_H
#define CR_MEMORY_FILE_H

#include "core/base.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns the descriptor; the caller closes it. */
static inline int memory_file(const uint8_t *data, size_t size, char path[64]) {
    int fd = memfd_create("input", MFD_CLOEXEC);
    CR_ASSERT(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t now = write(fd, data + done, size - done);
        CR_ASSERT(now > 0);
        done += (size_t)now;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif

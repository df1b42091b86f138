/* tests/harness/datasets_support.h: opens datasets as configurations do; files in the form of CIFAR-10 and CIFAR-100.
 * */
#ifndef CR_TEST_DATASETS_SUPPORT_H
#define CR_TEST_DATASETS_SUPPORT_H

#include "tests/harness/data_support.h"

#include <fcntl.h>

/* Opening must fail with this status and a message that has both parts. */
#define CHECK_REFUSED(want, part1, part2, split, ...)                                                                  \
    do {                                                                                                               \
        struct cr_dataset *refused_ = NULL;                                                                            \
        CHECK_STATUS(OPEN(split, &refused_, __VA_ARGS__), want);                                                       \
        CHECK_HAS(cr_error_message(), part1);                                                                          \
        CHECK_HAS(cr_error_message(), part2);                                                                          \
    } while (0)

enum { RECORD = 3073, RECORD100 = 3074 };

static inline void fill_record(uint8_t *record, int label_bytes, int coarse, int fine) {
    if (label_bytes == 2) record[0] = (uint8_t)coarse;
    record[label_bytes - 1] = (uint8_t)fine;
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < 1024; p++) record[label_bytes + c * 1024 + p] = (uint8_t)(p * (c + 1) + fine);
}

static inline void put_cifar(const char *root, const char *name, int64_t records, int label_bytes, int label) {
    uint8_t           record[RECORD100];
    size_t            bytes = 3072 + (size_t)label_bytes;
    const char *const path  = formatted("%s/%s", root, name);
    make_parents(path);
    fill_record(record, label_bytes, 1, label);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || pwrite(fd, record, bytes, (off_t)(bytes * (size_t)(records - 1))) != (ssize_t)bytes)
        printf("    cannot write %s\n", path);
    close(fd);
}

#endif

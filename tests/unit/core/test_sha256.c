/* tests/unit/core/test_sha256.c: SHA-256 against the examples of NIST and against sha256sum. */
#include "core/checksum/sha256.h"
#include "core/files.h"
#include "tests/harness/test.h"

#include <fcntl.h>
#include <unistd.h>

static const char *hash_of(const char *bytes, size_t count, size_t step) {
    static char      hex[65];
    struct cr_sha256 s;
    cr_sha256_start(&s);
    for (size_t at = 0; at < count; at += step) cr_sha256_add(&s, bytes + at, CR_MIN(step, count - at));
    cr_sha256_hex(&s, hex);
    return hex;
}

static void published_examples(void) {
    static char       million[1000000];
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    CHECK_STR(hash_of("", 0, 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_STR(hash_of("abc", 3, 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_STR(hash_of(two, 56, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', sizeof million);
    for (size_t step = 1; step <= sizeof million; step *= 1000)
        CHECK_STR(hash_of(million, sizeof million, step),
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK_STR(hash_of(million, sizeof million, 777),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Every length around the padding of a block. */
static void as_sha256sum(void) {
    char path[] = "/tmp/cresnet-sha-XXXXXX", command[128], bytes[260], theirs[65] = "", ours[65];
    int  fd = mkstemp(path);
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 37 + 11);
    for (size_t length = 50; length < 135; length += length == 66 ? 50 : 1) {
        REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, length, 0) == (ssize_t)length);
        snprintf(command, sizeof command, "sha256sum %s", path);
        FILE *pipe = popen(command, "r");
        REQUIRE(pipe != NULL);
        const bool got = fscanf(pipe, "%64s", theirs) == 1;
        pclose(pipe);
        if (!got) break;
        REQUIRE_OK(cr_sha256_file(fd, path, ours));
        CHECK_STR(ours, theirs);
        CHECK_STR(hash_of(bytes, length, 7), theirs);
    }
    close(fd);
    unlink(path);
    if (!*theirs) SKIP("no sha256sum");
}

TESTS(CASE(published_examples), CASE(as_sha256sum))

/* tests/unit/core/test_sha256.c: SHA-256 against the examples of NIST and against sha256sum. */
#include "core/checksum/sha256.h"
#include "tests/harness/test.h"

static const char *hash_of(const char *bytes, size_t count, size_t step) {
    static char      hex[65];
    struct cr_sha256 s;
    cr_sha256_start(&s);
    for (size_t at = 0; at < count; at += step) cr_sha256_add(&s, bytes + at, CR_MIN(step, count - at));
    cr_sha256_hex(&s, hex);
    return hex;
}

TEST(published_examples) {
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

/* tests/unit/formats/test_json_write.c: what the JSON writer writes, character by character. */
#include "formats/json_write.h"
#include "tests/harness/test.h"

/* Writes one value of every kind, nested. */
static void write_all(struct cr_json_writer *w) {
    cr_json_open_object(w, NULL);
    cr_json_open_array(w, "empty");
    cr_json_close_array(w);
    cr_json_open_array(w, "list");
    cr_json_put_int(w, NULL, INT64_MIN);
    cr_json_put_uint(w, NULL, UINT64_MAX);
    cr_json_open_object(w, NULL);
    cr_json_close_object(w);
    cr_json_put_null(w, NULL);
    cr_json_close_array(w);
    cr_json_put_bool(w, "yes", true);
    cr_json_put_bool(w, "no", false);
    cr_json_put_fixed(w, "fixed", 2.0 / 3, 4);
    cr_json_put_general(w, "general", 1e-7, 9);
    cr_json_put_hash(w, "hash", 0x0123456789abcdef);
    cr_json_put_string(w, "none", NULL);
    cr_json_put_string(w, "a\"b", "line\n\xff");
    cr_json_close_object(w);
    cr_json_end_line(w);
}

TEST(styles) {
    OWNED(text)           spaced = {0}, compact = {0};
    struct cr_json_writer s = cr_json_writer(&spaced, CR_JSON_SPACED), c = cr_json_writer(&compact, CR_JSON_COMPACT);
    write_all(&s);
    CHECK_STR(spaced.data, "{\"empty\": [], \"list\": [-9223372036854775808, 18446744073709551615, {}, null], "
                           "\"yes\": true, \"no\": false, \"fixed\": 0.6667, \"general\": 1e-07, "
                           "\"hash\": \"0123456789abcdef\", \"none\": null, \"a\\\"b\": \"line\\u000a\\ufffd\"}\n");
    write_all(&c);
    CHECK_STR(compact.data, "{\"empty\":[],\"list\":[-9223372036854775808,18446744073709551615,{},null],\"yes\":true,"
                            "\"no\":false,\"fixed\":0.6667,\"general\":1e-07,\"hash\":\"0123456789abcdef\","
                            "\"none\":null,\"a\\\"b\":\"line\\u000a\\ufffd\"}\n");
}

/* JSON has no NaN and no infinity. */
TEST(numbers_that_are_not_finite_are_null) {
    OWNED(text)           text = {0};
    struct cr_json_writer w    = cr_json_writer(&text, CR_JSON_COMPACT);
    cr_json_open_array(&w, NULL);
    cr_json_put_fixed(&w, NULL, NAN, 3);
    cr_json_put_general(&w, NULL, NAN, 9);
    cr_json_put_fixed(&w, NULL, -INFINITY, 0);
    cr_json_put_general(&w, NULL, INFINITY, 3);
    cr_json_put_fixed(&w, NULL, -0.0, 1);
    cr_json_close_array(&w);
    CHECK_STR(text.data, "[null,null,null,null,-0.0]");
}

/* The text keeps the failure of each of its allocations, and nothing is written out of bounds. */
TEST(failed_allocations_are_kept) {
    OWNED(text)           text = {0};
    struct cr_json_writer w    = cr_json_writer(&text, CR_JSON_SPACED);
    cr_alloc_fail_at(1);
    write_all(&w);
    cr_alloc_fail_at(0);
    CHECK(text.failed && !text.data);
}

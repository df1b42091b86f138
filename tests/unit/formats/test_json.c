/* tests/unit/formats/test_json.c: numbers, words and skipped values of the JSON scanner (strings and structure:
 * test_safetensors*.c). */
#include "formats/json.h"
#include "tests/harness/test.h"

static bool number(const char *text, double *out) {
    char           copy[256];
    struct cr_json json;
    snprintf(copy, sizeof copy, "%s", text);
    cr_json_start(&json, copy, strlen(copy));
    return cr_json_number(&json, out) && cr_json_end(&json);
}

static bool skips(const char *text) {
    char           copy[512];
    struct cr_json json;
    snprintf(copy, sizeof copy, "%s", text);
    cr_json_start(&json, copy, strlen(copy));
    return cr_json_skip(&json) && cr_json_end(&json);
}

TEST(numbers) {
    static const struct {
        const char *text;
        double      value;
    } good[] = {{"0", 0}, {"-0", 0}, {"12", 12}, {"-1.5", -1.5}, {" 2e3 ", 2000}, {"6.25E-2", 0.0625}, {"1e+2", 100}};
    static const char *const bad[] = {"", "-", "+1", ".5", "1.", "01", "1e", "1e+", "0x10", "nan", "inf", "1 2", "--1"};
    double                   got;
    for (size_t i = 0; i < CR_COUNT(good); i++) {
        got = 77;
        CHECK(number(good[i].text, &got));
        CHECK_NEAR(got, good[i].value, 0);
    }
    for (size_t i = 0; i < CR_COUNT(bad); i++)
        if (number(bad[i], &got)) TEST_FAIL_("\"%s\" was taken for %g", bad[i], got);
}

TEST(long_numbers) {
    char   text[128];
    double got;
    memset(text, '1', sizeof text);
    text[sizeof text - 1] = 0;
    CHECK(!number(text, &got));
}

TEST(values_are_skipped) {
    static const char *const good[] = {"1",           "\"a\"",   "true",
                                       "false",       "null",    "[]",
                                       "{}",          "[[],{}]", "{\"a\":1,\"b\":[1,2,{\"c\":null}],\"d\":{}}",
                                       "[1,\"]\",3]", "[[[[]]]]"};
    static const char *const bad[]  = {"",           "[",  "]",  "[1,]", "[1 2]", "{\"a\"}",   "{\"a\":}", "{1:2}",
                                       "{\"a\":1,}", "[}", "{]", "tru",  "[1}",   "{\"a\":1]", "[,1]"};
    for (size_t i = 0; i < CR_COUNT(good); i++)
        if (!skips(good[i])) TEST_FAIL_("%s is not skipped", good[i]);
    for (size_t i = 0; i < CR_COUNT(bad); i++)
        if (skips(bad[i])) TEST_FAIL_("%s is skipped", bad[i]);
}

TEST(depth_is_bounded) {
    char text[300] = "";
    for (int i = 0; i < 64; i++) strcat(text, "[");
    for (int i = 0; i < 64; i++) strcat(text, "]");
    CHECK(skips(text));
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    text[130] = 0;
    CHECK(!skips(text));
}

TEST(words) {
    char           text[] = " true null";
    struct cr_json json;
    cr_json_start(&json, text, strlen(text));
    CHECK(!cr_json_word(&json, "false"));
    CHECK(cr_json_word(&json, "true"));
    CHECK(cr_json_word(&json, "null"));
    CHECK(cr_json_end(&json));
}

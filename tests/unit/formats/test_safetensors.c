/* tests/unit/formats/test_safetensors.c: the safetensors format: our writer and reader against the files of
 * tests/tools/st.py, and real weights. Files that must be refused, and failures:
 * tests/unit/formats/test_safetensors_corrupt.c. */
#include "formats/json.h"
#include "tests/harness/safetensors_demo.h"

static void check_demo(const char *path) {
    OWNED(weights) file = NULL;
    REQUIRE_OK(cr_st_open(path, &file));
    check_demo_tensors(file);
    for (int i = 1; i < cr_st_count(file); i++)
        CHECK_INT(cr_st_at(file, i)->offset, cr_st_at(file, i - 1)->offset + cr_st_at(file, i - 1)->bytes);
    CHECK(cr_st_find(file, "a") == NULL);
    CHECK(cr_st_find(file, "__metadata__") == NULL);
    CHECK_STR(cr_st_meta_find(file, "answer"), "forty \"two\"");
    CHECK_STR(cr_st_meta_find(file, "b"), "");
    CHECK(cr_st_meta_find(file, "c") == NULL);
}

TEST(reads_golden) {
    check_demo(GOLDEN "demo.safetensors");
}

/* Bitwise identical to the file of the independent writer, in any order of the entries. */
TEST(writes_golden) {
    folder_open();
    for (size_t turn = 0; turn < DEMO; turn++) {
        const char *path = in_folder("demo");
        REQUIRE_OK(write_demo(path, turn));
        CHECK(same_bytes(path, GOLDEN "demo.safetensors"));
        check_demo(path);
        unlink(path);
    }
}

TEST(empty_file) {
    struct cr_st_writer *writer;
    OWNED(weights)       file = NULL;
    folder_open();
    REQUIRE_OK(cr_st_create(in_folder("empty"), NULL, 0, NULL, 0, &writer));
    REQUIRE_OK(cr_st_finish(&writer));
    REQUIRE_OK(cr_st_open(in_folder("empty"), &file));
    CHECK_INT(cr_st_count(file), 0);
    CHECK(cr_st_find(file, "x") == NULL);
    CHECK(cr_st_meta_find(file, "x") == NULL);
}

/* Enough tensors to make the tables grow, and every escape sequence. */
TEST(many_tensors) {
    enum { MANY = 3000 };
    static struct cr_st_entry entries[MANY];
    static char               names[MANY][24];
    struct cr_st_writer      *writer;
    OWNED(weights)            file = NULL;
    folder_open();
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "\t\x01\"\\/%d", i * 7919 % MANY);
        entries[i] = (struct cr_st_entry){.name = names[i], .dtype = CR_I64};
    }
    REQUIRE_OK(cr_st_create(in_folder("many"), entries, MANY, NULL, 0, &writer));
    for (int i = 0; i < MANY; i++) {
        int64_t value = atoi(strrchr(cr_st_writer_entry(writer, i)->name, '/') + 1);
        REQUIRE_OK(cr_st_write(writer, &value, 8));
    }
    REQUIRE_OK(cr_st_finish(&writer));
    REQUIRE_OK(cr_st_open(in_folder("many"), &file));
    CHECK_INT(cr_st_count(file), MANY);
    for (int i = 0; i < MANY; i++) {
        const struct cr_st_entry *entry = cr_st_find(file, names[i]);
        int64_t                   value = -1;
        REQUIRE(entry != NULL);
        REQUIRE_OK(cr_st_read(file, entry, 0, &value, 8));
        CHECK_INT(value, i * 7919 % MANY);
    }
}

/* Names in the spelling of other writers. */
TEST(escapes_are_decoded) {
    static const char header[] = " {\"__metadata__\":{\"\\u0061\":\"\\u00e9\"},\n"
                                 "\"\\ud83d\\ude00\\u20ac\\u00E9\\b\\f\\n\\r\\t\\/\\\\\\\"\\u007f\""
                                 " : {\"shape\":[ ],\t\"data_offsets\":[0 , 8],\"dtype\":\"I64\"}}\r\n ";
    OWNED(weights)    file     = NULL;
    folder_open();
    REQUIRE_OK(write_raw(in_folder("x"), header + 1, sizeof header - 2, 8));
    REQUIRE_OK(cr_st_open(in_folder("x"), &file));
    CHECK_STR(cr_st_at(file, 0)->name, "\U0001f600\u20ac\u00e9\b\f\n\r\t/\\\"\x7f");
    CHECK_STR(cr_st_meta_find(file, "a"), "\u00e9");
}

TEST(quoted_names) {
    char out[20];
    cr_json_quote(out, sizeof out, "a\"b\x1b");
    CHECK_STR(out, "\"a\\\"b\\u001b\"");
    cr_json_quote(out, sizeof out, "0123456789abcdef");
    CHECK_STR(out, "\"012345...\"");
    cr_json_quote(out, sizeof out, "01234\u00fc\u00fc\u00fc");
    CHECK(cr_utf8_valid(out, strlen(out)));
    CHECK_HAS(out, "...");
}

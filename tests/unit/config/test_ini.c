/* tests/unit/config/test_ini.c: INI files: values that iniparser reads, text that is refused because iniparser would
 * read it differently from how it looks, and the line numbers in error messages. Expected results follow the INI
 * grammar documented for iniparser 4.1, written here line by line. */
#include "tests/harness/config_support.h"

#include "config/ini.h"

#include <pthread.h>

struct line_case {
    const char *line;
    const char *value; /* NULL: refused */
    const char *why;   /* part of the error message */
};

TEST(reads_values) {
    static const struct line_case cases[] = {
        {"root = /a/b", "/a/b", NULL},
        {"  root\t=  /a/b \t", "/a/b", NULL},
        {"ROOT = /A/b", "/A/b", NULL},
        {"root =", "", NULL},
        {"root = ''", "", NULL},
        {"root = '' ; nothing", "", NULL},
        {"root = a b  c", "a b  c", NULL},
        {"root = a # b", "a", NULL},
        {"root = \"a;b#c\"", "a;b#c", NULL},
        {"root = \"a\"#c", "a", NULL},
        {"root = \"a\"  ; c \"d\"", "a", NULL},
        {"root = '  a '", "  a ", NULL},
        {"root = 'a\"b'", "a\"b", NULL},
        {"root = \"a'b\"", "a'b", NULL},
        {"root = a\"b'c", "a\"b'c", NULL},
        {"root = b = c", "b = c", NULL},
        {"root = a\\b", "a\\b", NULL},
        {"root = %s%n%d", "%s%n%d", NULL},
        {"root = Bücher/图", "Bücher/图", NULL},
        {"root = /a\r", "/a", NULL},
        {"root = a;b", NULL, "c.ini:2: [data] root = a;b: ';' would start a comment"},
        {"root = a#b", NULL, "'#' would start a comment"},
        {"root = a 'b # c'", NULL, "comment starts inside quotes"},
        {"root = \"abc", NULL, "the closing \" is missing"},
        {"root = \"a\" b", NULL, "'b' follows the closing quote"},
        {"root = \"a\\b\"", NULL, "backslash in quotes"},
        {"root = a\\", NULL, "ends in a backslash"},
        {"# a comment \\", NULL, "ends in a backslash"},
        {"root", NULL, "neither [section] nor key = value"},
        {"ro:ot = a", NULL, "'ro:ot': a key name"},
        {"\"root\" = a", NULL, "a key name"},
        {"root = a\rb", NULL, "byte 9 of the line is the control character 0x0d"},
        {"root = a\nroot = a", NULL, "c.ini:3: [data] root: is already set in line 2"},
        {"[optim", NULL, "the closing ']' of the section is missing"},
        {"[optim] # x", NULL, "no text may follow a section"},
        {"[]", NULL, "a section name"},
        {"[a:b]", NULL, "[a:b]: a section name"},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        OWNED(config)     config = NULL;
        const char *const text   = formatted("[data]\n%s\n", cases[i].line);
        if (!cases[i].value) {
            CHECK_HAS(refusal(text, NULL), cases[i].why);
            continue;
        }
        CHECK_STR(refusal(text, NULL), "");
        if (cr_config_open(&config, file_text("c.ini", text), NULL, 0) != CR_OK) continue;
        CHECK_STR(config->data.root, cases[i].value);
    }
}

TEST(invalid_bytes_are_refused) {
    static const char       binary[] = "\x89PNG\r\n\x1a\n[\0\1\n\2\n\3";
    static const char       nul[] = "[train]\nbatch = 3\0\n", bom[] = "\xef\xbb\xbf[train]\nbatch = 3\n";
    const struct cr_config *config;
    CHECK_STATUS(cr_config_open(&config, file_bytes("c.ini", nul, sizeof nul - 1), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "c.ini:2: byte 10 of the line is the control character 0x00");
    CHECK_STATUS(cr_config_open(&config, file_bytes("c.ini", binary, sizeof binary - 1), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "c.ini:3: byte 2 of the line is the control character 0x00");
    CHECK(!strchr(cr_error_message(), '\n')); /* one error, although no line is valid */
    CHECK_STATUS(cr_config_open(&config, file_bytes("c.ini", bom, sizeof bom - 1), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "c.ini:1: the file starts with a byte order mark");
}

/* Lines at the limit, one byte longer, and much longer than the buffer of iniparser. */
TEST(line_length_limit) {
    static const int lengths[] = {900, 999, 1000, 1001, 1022, 1023, 1024, 1025, 5000};
    for (size_t i = 0; i < CR_COUNT(lengths); i++) {
        char                    text[6000];
        const struct cr_config *config;
        int                     used = snprintf(text, sizeof text, "[data]\nroot = a%*s#b", lengths[i] - 10, "");
        CHECK_INT(used - 7, lengths[i]);
        snprintf(text + used, sizeof text - (size_t)used, "\n[train]\nbatch = 5\n");
        cr_status status = cr_config_open(&config, file_text("c.ini", text), NULL, 0);
        if (lengths[i] <= 1000) {
            CHECK_STATUS(status, CR_OK);
            if (status != CR_OK) continue;
            CHECK_STR(config->data.root, "a");
            CHECK_INT(config->train.batch, 5);
            cr_config_close(config);
        } else {
            CHECK_STATUS(status, CR_ERR_CONFIG);
            CHECK_HAS(cr_error_message(), "c.ini:2: the line has");
        }
    }
}

TEST(file_size_limit) {
    const struct cr_config *config;
    OWNED(text)             text = {0};
    for (int i = 0; i < 3000; i++) cr_text_add(&text, "[s%d]\n", i);
    REQUIRE(!text.failed);
    CHECK_STATUS(cr_config_open(&config, file_bytes("c.ini", text.data, text.length), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "\nand "); /* many errors: some are printed, the others counted */
    CHECK(strlen(cr_error_message()) < 3900);
    while (text.length <= CR_INI_FILE_MAX) cr_text_add(&text, "# %080d\n", 0);
    CHECK_STATUS(cr_config_open(&config, file_bytes("c.ini", text.data, text.length), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "c.ini: larger than 256 KiB");
}

TEST(invalid_paths_are_refused) {
    const struct cr_config *config;
    CHECK_STATUS(cr_config_open(&config, in_folder("missing.ini"), NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "missing.ini: no such file");
    CHECK_STATUS(cr_config_open(&config, tmp_path, NULL, 0), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "is a folder");
    file_text("c.ini", "[train]\n");
    CHECK_STATUS(cr_config_open(&config, in_folder("c.ini/x.ini"), NULL, 0), CR_ERR_CONFIG);
    const char *path = file_text("locked.ini", "[train]\n");
    CHECK_INT(chmod(path, 0), 0);
    if (geteuid() != 0) {
        CHECK_STATUS(cr_config_open(&config, path, NULL, 0), CR_ERR_IO);
        CHECK_HAS(cr_error_message(), "locked.ini: cannot open");
    }
}

TEST(values_of_iniparser) {
    static const struct line_case cases[] = {{"", "", NULL},
                                             {"a b", "a b", NULL},
                                             {" a", "\" a\"", NULL},
                                             {"a;b", "\"a;b\"", NULL},
                                             {"a#", "\"a#\"", NULL},
                                             {"a\"b", "a\"b", NULL},
                                             {"\"a", "'\"a'", NULL},
                                             {"'", "\"'\"", NULL},
                                             {"#\"", "'#\"'", NULL},
                                             {"#'", "\"#'\"", NULL},
                                             {"a\\b", "a\\b", NULL},
                                             {"a\"'b", "a\"'b", NULL},
                                             {"a\nb", NULL, "control"},
                                             {"a\x1b[0m", NULL, "control"},
                                             {"#\"'", NULL, "both kinds"},
                                             {"\"'", NULL, "both kinds"},
                                             {"a\\", NULL, "ends in a backslash"},
                                             {"a;\\b", NULL, "backslash"}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const char *why;
        OWNED(text) text = {0};
        bool        can  = cr_ini_can_hold(cases[i].line, &why);
        CHECK(can == (cases[i].value != NULL));
        if (!can && !cases[i].value) CHECK_HAS(why, cases[i].why);
        if (!can) continue;
        cr_ini_add_value(&text, cases[i].line);
        CHECK_STR(text.data ? text.data : "", cases[i].value ? cases[i].value : "");
    }
}

static void *open_often(void *path) {
    bool bad = strstr(path, "bad") != NULL;
    for (int i = 0; i < 50; i++) {
        const struct cr_config *config;
        cr_status               status = cr_config_open(&config, path, NULL, 0);
        if (status == CR_OK) cr_config_close(config);
        if ((status == CR_OK) == bad) return (void *)"wrong status";
    }
    return NULL;
}

TEST(threads) {
    pthread_t threads[4];
    char      paths[2][400];
    snprintf(paths[0], sizeof paths[0], "%s", file_text("good.ini", "[train]\nbatch = 3\n"));
    snprintf(paths[1], sizeof paths[1], "%s", file_text("bad.ini", "[train]\nbatch\n"));
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, open_often, paths[i % 2]) == 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK(!wrong);
    }
}

/* cli/compress/results.c: parses the JSON lines that other commands print. See cli/compress/compress.h. */
#include "cli/compress/compress.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

enum { BYTES_MAX = 16 << 20 };

struct text {
    char          *data;
    size_t         length;
    struct cr_json json;
};

static cr_status open_text(const char *file, struct text *t) {
    CR_TRY(cr_file_read(file, BYTES_MAX, &t->data, &t->length));
    cr_json_start(&t->json, t->data, t->length);
    return CR_OK;
}

static cr_status fail(const char *file, const struct cr_json *j) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: %s: delete the file, and the same command makes it again", file,
                   j->problem ? j->problem : "lacks a number");
}

/* Moves to the value of a member of the object that begins here; false when there is none. */
static bool find_member(struct cr_json *j, const char *name) {
    char *key;
    for (bool first = true; cr_json_member(j, &first, &key);) {
        if (strcmp(key, name) == 0) return true;
        if (!cr_json_skip(j)) return false;
    }
    return false;
}

cr_status cr_compress_number(const char *file, const char *name, double *out) {
    struct text t = {0};
    cr_status   status;
    CR_TRY_OUT(open_text(file, &t));
    if (!find_member(&t.json, name) || !cr_json_number(&t.json, out)) status = fail(file, &t.json);
out:
    cr_free(t.data);
    return status;
}

double cr_compress_number_or(const char *file, const char *name, double otherwise) {
    double value = otherwise;
    cr_error_hold();
    if (cr_compress_number(file, name, &value) != CR_OK) {
        cr_error_clear();
        value = otherwise;
    }
    cr_error_release();
    return value;
}

void cr_compress_string(const char *file, const char *name, char *out, size_t size) {
    struct text t = {0};
    char       *value;
    cr_error_hold();
    if (open_text(file, &t) == CR_OK && find_member(&t.json, name) && cr_json_string(&t.json, &value))
        snprintf(out, size, "%s", value);
    cr_error_release();
    cr_error_clear();
    cr_free(t.data);
}

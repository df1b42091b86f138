/* training/tensorboard.c: encodes and writes TensorBoard events. See training/tensorboard.h. */
#include "training/tensorboard.h"

#include "core/checksum/crc32c.h"
#include "core/files.h"
#include "formats/json.h"
#include "formats/protobuf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048, NAME_START = 20 };
static const char name_start[] = "events.out.tfevents.";

struct cr_tensorboard {
    int  file;
    char path[CR_PATH_MAX];
};

/* ---- messages ---- */

enum event_field {
    EVENT_WALL_TIME    = 1,
    EVENT_STEP         = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY      = 5,
    EVENT_SESSION_LOG  = 7
};
enum value_field { VALUE_TAG = 1, VALUE_SIMPLE = 2 };

static void add_head(struct cr_text *event, int64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    cr_pb_add_double(event, EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    cr_pb_add_int(event, EVENT_STEP, step);
}

static void add_scalar(struct cr_text *summary, const char *group, const char *name, double number) {
    struct cr_text value = {0};
    char           tag[128];
    snprintf(tag, sizeof tag, "%s/%s", group, name);
    cr_pb_add_string(&value, VALUE_TAG, tag);
    cr_pb_add_float(&value, VALUE_SIMPLE, (float)number);
    cr_pb_add_message(summary, 1, &value);
}

/* ---- records ---- */

/* TFRecord masks its checksums, because a CRC of data that contains CRCs is weak. */
static uint32_t masked_crc(const void *bytes, size_t count) {
    const uint32_t crc = cr_crc32c(0, bytes, count);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* Writes the event and frees it. */
static cr_status write_record(struct cr_tensorboard *t, struct cr_text *event) {
    struct cr_text record = {0};
    cr_status      status;
    if (event->failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing a TensorBoard event");
    cr_pb_add_little(&record, event->length, 8);
    cr_pb_add_little(&record, record.failed ? 0 : masked_crc(record.data, 8), 4);
    cr_text_add_bytes(&record, event->data, event->length);
    cr_pb_add_little(&record, masked_crc(event->data, event->length), 4);
    if (record.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing a TensorBoard event");
    status = cr_fs_write(t->file, t->path, record.data, record.length, 0);
out:
    cr_text_free(event);
    cr_text_free(&record);
    return status;
}

/* SessionLog.status = START: events of older files at this step and later are no longer valid. */
static cr_status write_start(struct cr_tensorboard *t, int64_t first_step) {
    struct cr_text event = {0}, log = {0};
    add_head(&event, first_step);
    cr_pb_add_int(&log, 1, 1);
    cr_pb_add_message(&event, EVENT_SESSION_LOG, &log);
    return write_record(t, &event);
}

cr_status cr_tensorboard_add(struct cr_tensorboard *t, const char *group, const char *line) {
    struct cr_text event = {0}, summary = {0};
    struct cr_json json;
    char           text[LINE_MAX_BYTES], *name;
    int64_t        step   = 0;
    const size_t   length = strlen(line);
    if (length >= sizeof text)
        return CR_FAIL(CR_ERR_FORMAT, "%s: a line of %zu bytes is too long for an event", t->path, length);
    memcpy(text, line, length + 1);
    cr_json_start(&json, text, length);
    for (bool first = true; cr_json_member(&json, &first, &name);) {
        double         number;
        struct cr_json value = json; /* a number or any other value */
        if (!cr_json_number(&value, &number)) {
            if (!cr_json_skip(&json)) break;
            continue;
        }
        json = value;
        if (strcmp(name, "step") == 0)
            step = (int64_t)number;
        else
            add_scalar(&summary, group, name, number);
    }
    add_head(&event, step);
    cr_pb_add_message(&event, EVENT_SUMMARY, &summary);
    return write_record(t, &event);
}

/* ---- the file ---- */

/* TensorBoard reads the files of a folder in the order of their names. The number in the new name is larger than in all
 * existing names, even when the clock was set back. */
static int64_t free_number(const char *folder) {
    int64_t        number = (int64_t)time(NULL);
    DIR           *dir    = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        if (strncmp(entry->d_name, name_start, NAME_START) != 0) continue;
        const int64_t there = strtoll(entry->d_name + NAME_START, NULL, 10);
        if (there >= number && there < INT64_MAX / 2) number = there + 1;
    }
    if (dir) closedir(dir);
    return number;
}

cr_status cr_tensorboard_open(const char *folder, int64_t first_step, struct cr_tensorboard **out) {
    struct cr_tensorboard *t;
    struct cr_text         event    = {0};
    char                   host[65] = "";
    cr_status              status;
    if (gethostname(host, sizeof host - 1) != 0 || !*host) snprintf(host, sizeof host, "localhost");
    for (char *c = host; *c; c++)
        if (*c == '/') *c = '-';
    CR_ALLOC(t, 1);
    t->file = -1;
    CR_TRY_OUT(cr_path_join(t->path, folder, "%s%010" PRId64 ".%s.%ld", name_start, free_number(folder), host,
                            (long)getpid()));
    t->file = cr_fs_create(t->path);
    if (t->file < 0) {
        status = cr_fs_refused(t->path, "create the event file", errno);
        goto out;
    }
    add_head(&event, 0);
    cr_pb_add_string(&event, EVENT_FILE_VERSION, "brain.Event:2");
    CR_TRY_OUT(write_record(t, &event));
    if (first_step > 0) CR_TRY_OUT(write_start(t, first_step));
    *out = t;
    return CR_OK;
out:
    cr_tensorboard_close(t);
    return status;
}

void cr_tensorboard_close(struct cr_tensorboard *t) {
    if (!t) return;
    if (t->file >= 0) cr_fs_close(t->file);
    cr_free(t);
}

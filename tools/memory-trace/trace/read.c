/* tools/memory-trace/trace/read.c: reads a memory log line by line; ids are looked up in a hash table. */
#include "tools/memory-trace/trace/trace.h"

#include "core/files.h"
#include "formats/csv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096, CHUNK_BYTES = 1 << 20, SLOTS_MIN = 1 << 10, EVENTS_MAX = INT32_MAX - 1 };

struct slot { /* an id of the log */
    uint64_t hash;
    size_t   id;
    int32_t  block; /* the block that has the id now or had it last */
    bool     used;
};

/* A time as whole and fractional part: nanoseconds since 1970 exceed the precision of a double. */
struct timestamp {
    size_t whole;
    double part;
};

struct reader {
    struct cr_trace *trace;
    const char      *name;
    int64_t          line;
    struct slot     *slot;
    size_t           slots, used_slots; /* slots: a power of two; used_slots: ids in the table */
    struct timestamp time;              /* time of the last event */
    size_t           begin;             /* whole part of the first time; times are stored relative to it */
    bool             header;
};

struct field {
    const char *text;
    size_t      length;
};

static const char *const kind_names[CR_TRACE_KINDS] = {"malloc", "free", "read", "write"};

static bool is_word(struct field f, const char *word) {
    return f.length == strlen(word) && memcmp(f.text, word, f.length) == 0;
}

/* The length of a field in messages, at most 60 characters. */
static int shown(struct field f) {
    return (int)CR_MIN(f.length, (size_t)60);
}

/* ---- growing ---- */

/* Returns the array, twice as long if it is full; NULL when out of memory. */
static void *grow(void *array, int count, int *capacity, size_t size) {
    if (count < *capacity) return array;
    const int new_capacity = !*capacity ? 1024 : *capacity > EVENTS_MAX / 2 ? EVENTS_MAX + 1 : 2 * *capacity;
    void     *more         = cr_realloc(array, (size_t)new_capacity, size);
    if (more) *capacity = new_capacity;
    return more;
}

static cr_status store_id(struct cr_trace *t, struct field id, size_t *at) {
    if (t->id_bytes + id.length + 1 > t->id_capacity) {
        const size_t new_capacity = CR_MAX(2 * t->id_capacity, (size_t)LINE_MAX_BYTES * 4);
        char        *more         = cr_realloc(t->id, new_capacity, 1);
        if (!more) return CR_NO_MEMORY(new_capacity);
        t->id          = more;
        t->id_capacity = new_capacity;
    }
    *at = t->id_bytes;
    memcpy(t->id + *at, id.text, id.length);
    t->id[*at + id.length] = 0;
    t->id_bytes += id.length + 1;
    return CR_OK;
}

/* ---- ids ---- */

static uint64_t hash_of(struct field id) { /* FNV-1a, mixed once more because the low bits select the slot */
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < id.length; i++) h = (h ^ (unsigned char)id.text[i]) * 0x100000001b3u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

static cr_status widen_table(struct reader *r) {
    const size_t slots = r->slots ? 2 * r->slots : SLOTS_MIN;
    struct slot *slot;
    CR_ALLOC(slot, slots);
    for (size_t i = 0; i < r->slots; i++) {
        if (!r->slot[i].used) continue;
        size_t at = r->slot[i].hash & (slots - 1);
        while (slot[at].used) at = (at + 1) & (slots - 1);
        slot[at] = r->slot[i];
    }
    cr_free(r->slot);
    r->slot  = slot;
    r->slots = slots;
    return CR_OK;
}

/* Finds the slot of the id, or the free slot for it. */
static cr_status find_slot(struct reader *r, struct field id, struct slot **out) {
    if (2 * (r->used_slots + 1) > r->slots) CR_TRY(widen_table(r));
    const uint64_t hash = hash_of(id);
    size_t         at   = hash & (r->slots - 1);
    for (; r->slot[at].used; at = (at + 1) & (r->slots - 1)) {
        const char *name = r->trace->id + r->slot[at].id;
        if (r->slot[at].hash == hash && strlen(name) == id.length && memcmp(name, id.text, id.length) == 0) break;
    }
    r->slot[at].hash = hash;
    *out             = &r->slot[at];
    return CR_OK;
}

/* ---- fields ---- */

static bool read_size(struct field f, size_t *out) {
    size_t value = 0;
    if (f.length == 0 || f.length > 19) return false;
    for (size_t i = 0; i < f.length; i++) {
        if (f.text[i] < '0' || f.text[i] > '9') return false;
        value = value * 10 + (size_t)(f.text[i] - '0');
    }
    *out = value;
    return true;
}

/* Reads digits, optionally followed by a point and more digits. */
static bool read_time(struct field f, struct timestamp *out) {
    const char  *point = memchr(f.text, '.', f.length);
    const size_t whole = point ? (size_t)(point - f.text) : f.length;
    double       place = 1;
    *out               = (struct timestamp){0};
    for (size_t i = whole + 1; i < f.length; i++) {
        if (f.text[i] < '0' || f.text[i] > '9') return false;
        place /= 10;
        out->part += (f.text[i] - '0') * place;
    }
    return (!point || whole + 1 < f.length) && read_size((struct field){f.text, whole}, &out->whole);
}

/* Returns the number of fields, -1 if quotes are wrong; 5: more than 4. The line ends with 0. */
static int split(char *line, struct field f[5]) {
    for (int n = 0, end; n < 5; n++) {
        end         = cr_csv_field(&line, &f[n].text);
        f[n].length = end < 0 ? 0 : strlen(f[n].text);
        if (end != ',') return end < 0 ? -1 : n + 1;
    }
    return 5;
}

/* ---- events ---- */

#define FAIL_LINE(r, fmt, ...) CR_FAIL(CR_ERR_FORMAT, "%s:%lld: " fmt, (r)->name, (long long)(r)->line, __VA_ARGS__)

/* The line of an event: one event per line, after the header. */
static int line_of(int event) {
    return event + 2;
}

static cr_status add_malloc(struct reader *r, struct slot *slot, struct field id, size_t size) {
    struct cr_trace *t = r->trace;
    if (slot->used && t->block[slot->block].free_at == CR_NONE)
        return FAIL_LINE(r, "%.*s is allocated, but was allocated before in line %d and not freed", shown(id), id.text,
                         line_of(t->block[slot->block].alloc_at));
    struct cr_trace_block *block = grow(t->block, t->blocks, &t->block_capacity, sizeof *t->block);
    if (!block) return CR_NO_MEMORY((size_t)t->blocks * sizeof *block);
    t->block = block;
    if (!slot->used) {
        CR_TRY(store_id(t, id, &slot->id));
        slot->used = true;
        r->used_slots++;
    }
    slot->block         = t->blocks;
    t->block[t->blocks] = (struct cr_trace_block){slot->id, size, t->events, CR_NONE, CR_NONE, CR_NONE};
    t->blocks++;
    t->alive++;
    return CR_OK;
}

static cr_status add_use(struct reader *r, const struct slot *slot, enum cr_trace_kind kind, struct field id,
                         size_t size) {
    struct cr_trace *t    = r->trace;
    const char      *what = kind == CR_TRACE_FREE ? "freed" : kind == CR_TRACE_READ ? "read" : "written";
    if (!slot->used) return FAIL_LINE(r, "%.*s is %s, but was never allocated", shown(id), id.text, what);
    struct cr_trace_block *b = &t->block[slot->block];
    if (b->free_at != CR_NONE)
        return FAIL_LINE(r, "%.*s is %s %s (it was freed in line %d)", shown(id), id.text, what,
                         kind == CR_TRACE_FREE ? "twice" : "after its free", line_of(b->free_at));
    if (size > b->size)
        return FAIL_LINE(r, "%.*s: %zu bytes are %s of a block of %zu", shown(id), id.text, size, what, b->size);
    if (kind == CR_TRACE_FREE) {
        b->free_at = t->events;
        t->alive--;
        return CR_OK;
    }
    if (b->first == CR_NONE) b->first = t->events;
    b->last = t->events;
    return CR_OK;
}

static cr_status parse_event(struct reader *r, const struct field f[4]) {
    struct cr_trace *t    = r->trace;
    size_t           size = 0;
    int              kind = 0;
    struct timestamp time;
    struct slot     *slot;
    if (!read_time(f[0], &time))
        return FAIL_LINE(r, "time \"%.*s\": must be a number that is not negative", shown(f[0]), f[0].text);
    if (time.whole < r->time.whole || (time.whole == r->time.whole && time.part < r->time.part))
        return FAIL_LINE(r, "the time goes back to %.*s", shown(f[0]), f[0].text);
    while (kind < CR_TRACE_KINDS && !is_word(f[1], kind_names[kind])) kind++;
    if (kind == CR_TRACE_KINDS)
        return FAIL_LINE(r, "event \"%.*s\": must be malloc, free, read or write", shown(f[1]), f[1].text);
    if (!f[2].length) return FAIL_LINE(r, "%s", "the id is empty");
    if ((kind == CR_TRACE_MALLOC || f[3].length) && !read_size(f[3], &size))
        return FAIL_LINE(r, "size \"%.*s\": must be a whole number of bytes", shown(f[3]), f[3].text);
    if (size > CR_TENSOR_BYTES_MAX) return FAIL_LINE(r, "size %zu: no memory is so large", size);
    if (t->events == EVENTS_MAX) return FAIL_LINE(r, "%s", "the log has more events than can be counted");
    CR_TRY(find_slot(r, f[2], &slot));
    if (kind == CR_TRACE_MALLOC)
        CR_TRY(add_malloc(r, slot, f[2], size));
    else
        CR_TRY(add_use(r, slot, (enum cr_trace_kind)kind, f[2], size));
    struct cr_trace_event *event = grow(t->event, t->events, &t->event_capacity, sizeof *t->event);
    if (!event) return CR_NO_MEMORY((size_t)t->events * sizeof *event);
    t->event = event;
    if (!t->events) r->begin = time.whole;
    t->event[t->events++] = (struct cr_trace_event){(double)(time.whole - r->begin) + time.part, slot->block, kind};
    r->time               = time;
    return CR_OK;
}

static bool is_header(const struct field f[4]) {
    static const char *const names[4] = {"time", "event", "id", "size"};
    for (int i = 0; i < 4; i++)
        if (!is_word(f[i], names[i])) return false;
    return true;
}

/* line[length] may be overwritten. */
static cr_status parse_line(struct reader *r, char *line, size_t length) {
    struct field f[5];
    line[length] = 0;
    r->line++;
    if (strlen(line) != length) return FAIL_LINE(r, "%s", "has a 0 in it: this is no text");
    if (length && line[length - 1] == '\r') line[length - 1] = 0;
    const int fields = split(r->header ? line : cr_csv_start(line), f);
    if (!r->header) {
        if (fields != 4 || !is_header(f))
            return FAIL_LINE(r, "%s", "a memory log begins with the line time,event,id,size");
        r->header = true;
        return CR_OK;
    }
    if (fields != 4) return FAIL_LINE(r, "%s", "must have four fields: time,event,id,size");
    return parse_event(r, f);
}

/* ---- input ---- */

/* Parses the complete lines of buffer[0..filled); *left is the length of the incomplete last line, which is moved to
 * the front. */
static cr_status parse_lines(struct reader *r, char *buffer, size_t filled, size_t *left) {
    size_t at = 0;
    for (;;) {
        char *end = memchr(buffer + at, '\n', filled - at);
        if (!end) break;
        CR_TRY(parse_line(r, buffer + at, (size_t)(end - buffer) - at));
        at = (size_t)(end - buffer) + 1;
    }
    *left = filled - at;
    if (*left > LINE_MAX_BYTES) {
        r->line++;
        return FAIL_LINE(r, "a line has more than %d bytes", LINE_MAX_BYTES);
    }
    memmove(buffer, buffer + at, *left);
    return CR_OK;
}

/* The input: bytes in memory or a file. */
struct source {
    const char *bytes; /* bytes in memory; NULL: read the file */
    size_t      left;
    int         fd;
};

static cr_status next_bytes(struct source *s, const char *name, char *dst, size_t room, size_t *bytes_read) {
    if (s->fd < 0) {
        *bytes_read = CR_MIN(room, s->left);
        if (*bytes_read) memcpy(dst, s->bytes, *bytes_read);
        s->bytes += *bytes_read;
        s->left -= *bytes_read;
        return CR_OK;
    }
    ssize_t n;
    do n = read(s->fd, dst, room);
    while (n < 0 && errno == EINTR);
    if (n < 0) return cr_fs_refused(name, "read", errno);
    *bytes_read = (size_t)n;
    return CR_OK;
}

static cr_status read_all(struct reader *r, struct source *s, char *buffer) {
    size_t left = 0, bytes_read = 0;
    for (;;) {
        CR_TRY(next_bytes(s, r->name, buffer + left, CHUNK_BYTES, &bytes_read));
        if (!bytes_read) break;
        CR_TRY(parse_lines(r, buffer, left + bytes_read, &left));
    }
    if (left) CR_TRY(parse_line(r, buffer, left)); /* the last line may have no line end */
    r->line++;
    if (!r->trace->events) return FAIL_LINE(r, "%s", "the log has no events");
    return CR_OK;
}

static cr_status read_source(struct source *s, const char *name, struct cr_trace *out) {
    struct cr_trace trace  = {0};
    struct reader   r      = {.trace = &trace, .name = name};
    char           *buffer = cr_alloc(CHUNK_BYTES + LINE_MAX_BYTES + 1, 1);
    cr_status       status = buffer ? read_all(&r, s, buffer) : CR_NO_MEMORY(CHUNK_BYTES);
    cr_free(buffer);
    cr_free(r.slot);
    if (status == CR_OK)
        *out = trace;
    else
        cr_trace_free(&trace);
    return status;
}

cr_status cr_trace_read(const char *path, struct cr_trace *out) {
    struct source s = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (s.fd < 0) return cr_fs_refused(path, "open", errno);
    cr_status status = read_source(&s, path, out);
    close(s.fd);
    return status;
}

cr_status cr_trace_read_bytes(const void *bytes, size_t count, const char *name, struct cr_trace *out) {
    struct source s = {.bytes = bytes, .left = count, .fd = -1};
    return read_source(&s, name, out);
}

void cr_trace_free(struct cr_trace *t) {
    cr_free(t->event);
    cr_free(t->block);
    cr_free(t->id);
    *t = (struct cr_trace){0};
}

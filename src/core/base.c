/* core/base.c: error trail, counted memory (malloc), arena allocator, growing text, log and time; see core/base.h. */
#include "core/base.h"
#include "core/host.h"
#include "core/utf8.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- status, error trail ---- */

int cr_compare_i64(const void *a, const void *b) {
    const int64_t s = *(const int64_t *)a, t = *(const int64_t *)b;
    return (s > t) - (s < t);
}

int cr_compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool cr_ends_with(const char *text, const char *ending) {
    const size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

static const struct {
    int         exit_status;
    const char *name;
} statuses[] = {
#define X(code, exit_status, name) [code] = {exit_status, name},
    CR_STATUS_LIST(X)
#undef X
};

const char *cr_status_name(cr_status status) {
    return statuses[status].name;
}

int cr_status_exit(cr_status status) {
    return statuses[status].exit_status;
}

enum { MESSAGE_BYTES = 4096 };
static _Thread_local char error_message[MESSAGE_BYTES];
static _Thread_local char error_trail[1024];
static _Thread_local int  error_holds;

/* Paths in messages start at the root of the source tree, independent of the build folder. */
static const char *short_path(const char *file) {
    const char *dirs[] = {"/src/", "/cuda/", "/tests/"};
    for (size_t i = 0; i < CR_COUNT(dirs); i++) {
        const char *at = strstr(file, dirs[i]);
        if (at) return at + 1;
    }
    return file;
}

/* Only the format of a message starts new lines; a newline in an argument is part of a name. "%s" passes text on that
 * was formatted before. */
static bool format_has_lines(const char *fmt) {
    return strchr(fmt, '\n') || strcmp(fmt, "%s") == 0;
}

/* Formats a message. The arguments may point into `out`. */
static void format_visible(char out[MESSAGE_BYTES], const char *fmt, va_list args) {
    char    text[MESSAGE_BYTES], *all = NULL;
    va_list again;
    va_copy(again, args);
    const int length = vsnprintf(text, sizeof text, fmt, args);
    if (length >= MESSAGE_BYTES) all = malloc((size_t)length + 1); /* without memory the end is lost */
    if (all) vsnprintf(all, (size_t)length + 1, fmt, again);
    va_end(again);
    cr_utf8_visible(all ? all : text, format_has_lines(fmt), out, MESSAGE_BYTES);
    free(all);
}

cr_status cr_error_set(cr_status status, const char *file, int line, const char *fmt, ...) {
    va_list args;
    CR_ASSERT(status != CR_OK);
    if (error_holds) return status;
    va_start(args, fmt);
    format_visible(error_message, fmt, args);
    va_end(args);
    snprintf(error_trail, sizeof error_trail, "%s:%d", short_path(file), line);
    return status;
}

cr_status cr_error_set_format(const char *path, const char *what, const char *file, int line, const char *fmt, ...) {
    char    why[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return cr_error_set(CR_ERR_FORMAT, file, line, "%s: %s: %s", path, what, why);
}

cr_status cr_error_forward(cr_status status, const char *file, int line) {
    size_t used = strlen(error_trail);
    if (error_holds) return status;
    snprintf(error_trail + used, sizeof error_trail - used, " < %s:%d", short_path(file), line);
    return status;
}

const char *cr_error_message(void) {
    return error_message;
}

void cr_error_copy(char *out, size_t size) {
    cr_utf8_visible(error_message, true, out, size);
}

void cr_first_error_note(struct cr_first_error *first, cr_status status, int index) {
    if (status == CR_OK) return;
#pragma omp critical(cr_first_error)
    if (first->status == CR_OK || index < first->index) {
        first->status = status;
        first->index  = index;
        cr_error_copy(first->text, sizeof first->text);
    }
    cr_error_clear();
}

const char *cr_error_trail(void) {
    return error_trail;
}

void cr_error_clear(void) {
    if (error_holds) return;
    error_message[0] = 0;
    error_trail[0]   = 0;
}

void cr_error_hold(void) {
    error_holds++;
}
void cr_error_release(void) {
    CR_ASSERT(error_holds > 0);
    error_holds--;
}

void cr_assert_failed(const char *what, const char *file, int line) {
    char text[512];
    snprintf(text, sizeof text, "internal error: %s:%d: assertion failed: %s", short_path(file), line, what);
    cr_host_stop(text);
}

/* ---- memory ---- */

/* Stored in the 64 bytes before each block, which is aligned to 64 bytes. */
struct block_header {
    size_t bytes; /* size of the block as requested */
    void  *raw;   /* address from calloc */
};
enum { HEADER_BYTES = 64 };
_Static_assert(sizeof(struct block_header) <= HEADER_BYTES, "the header fits before the block");

static atomic_uint_fast64_t alloc_calls;
static atomic_int_fast64_t  alloc_live;
static atomic_int_fast64_t  alloc_fail_countdown;

uint64_t cr_alloc_calls(void) {
    return atomic_load(&alloc_calls);
}
int64_t cr_alloc_live(void) {
    return atomic_load(&alloc_live);
}
void cr_alloc_fail_at(int64_t nth) {
    atomic_store(&alloc_fail_countdown, nth > 0 ? nth : 0);
}

static bool must_fail(void) {
    if (atomic_load(&alloc_fail_countdown) <= 0) return false;
    return atomic_fetch_sub(&alloc_fail_countdown, 1) == 1;
}

void *cr_alloc(size_t count, size_t size) {
    atomic_fetch_add(&alloc_calls, 1);
    if (must_fail()) return NULL;
    if (size && count > (SIZE_MAX - 2 * HEADER_BYTES) / size) return NULL;
    const size_t bytes = count * size;
    /* calloc gets pages from the system that are zero already: large blocks are not written twice, and pages that are
     * never used, such as gradients in an evaluation, occupy no memory. */
    unsigned char *raw = calloc(1, bytes + 2 * HEADER_BYTES);
    if (!raw) return NULL;
    unsigned char            *block  = raw + 2 * HEADER_BYTES - (uintptr_t)raw % HEADER_BYTES;
    const struct block_header header = {bytes, raw};
    memcpy(block - HEADER_BYTES, &header, sizeof header);
    atomic_fetch_add(&alloc_live, 1);
    return block;
}

static struct block_header header_of(const void *block) {
    struct block_header header;
    memcpy(&header, (const unsigned char *)block - HEADER_BYTES, sizeof header);
    return header;
}

void *cr_realloc(void *p, size_t count, size_t size) {
    void *fresh = cr_alloc(count, size);
    if (!fresh || !p) return fresh;
    memcpy(fresh, p, CR_MIN(header_of(p).bytes, count * size));
    cr_free(p);
    return fresh;
}

void cr_free(void *p) {
    if (!p) return;
    atomic_fetch_sub(&alloc_live, 1);
    free(header_of(p).raw);
}

char *cr_strdup(const char *s) {
    size_t bytes = strlen(s) + 1;
    char  *copy  = cr_alloc(bytes, 1);
    if (copy) memcpy(copy, s, bytes);
    return copy;
}

cr_status cr_no_memory_at(const char *file, int line, size_t bytes) {
    if (bytes < (1 << 20)) return cr_error_set(CR_ERR_MEMORY, file, line, "out of memory");
    return cr_error_set(CR_ERR_MEMORY, file, line, "out of memory: %.1f MiB more were needed",
                        (double)bytes / (1 << 20));
}

/* ---- arena ---- */

struct cr_arena_block {
    struct cr_arena_block *next;
    size_t                 used, capacity;
    _Alignas(16) unsigned char data[];
};

void *cr_arena_alloc(struct cr_arena *arena, size_t bytes) {
    size_t                 need  = (bytes + 15) & ~(size_t)15;
    struct cr_arena_block *block = arena->head;
    if (!block || block->capacity - block->used < need) {
        size_t capacity = CR_MAX(need, (size_t)64 << 10);
        block           = cr_alloc(1, sizeof *block + capacity);
        if (!block) return NULL;
        block->capacity = capacity;
        block->next     = arena->head;
        arena->head     = block;
    }
    void *p = block->data + block->used;
    block->used += need;
    return p;
}

void *cr_arena_array(struct cr_arena *arena, size_t count, size_t size) {
    return size && count > (SIZE_MAX >> 1) / size ? NULL : cr_arena_alloc(arena, count * size);
}

char *cr_arena_printf(struct cr_arena *arena, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int   length = vsnprintf(NULL, 0, fmt, args);
    char *s      = length < 0 ? NULL : cr_arena_alloc(arena, (size_t)length + 1);
    if (s) vsnprintf(s, (size_t)length + 1, fmt, again);
    va_end(again);
    va_end(args);
    return s;
}

void cr_arena_free(struct cr_arena *arena) {
    while (arena->head) {
        struct cr_arena_block *block = arena->head;
        arena->head                  = block->next;
        cr_free(block);
    }
}

/* ---- text ---- */

static bool text_reserve(struct cr_text *text, size_t more) {
    if (text->failed) return false;
    if (text->capacity - text->length > more) return true;
    size_t capacity = CR_MAX(text->capacity * 2, text->length + more + 256);
    char  *data     = cr_realloc(text->data, capacity, 1);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data     = data;
    text->capacity = capacity;
    return true;
}

void cr_text_add_bytes(struct cr_text *text, const void *bytes, size_t count) {
    if (!text_reserve(text, count)) return;
    if (count) memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = 0;
}

void cr_text_add(struct cr_text *text, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    if (length >= 0 && text_reserve(text, (size_t)length + 1)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, fmt, again);
        text->length += (size_t)length;
    }
    va_end(again);
    va_end(args);
}

/* Bytes that are no UTF-8 become U+FFFD: JSON text is UTF-8 (RFC 8259). Control characters of terminals are escaped. */
void cr_text_add_json(struct cr_text *text, const char *s) {
    cr_text_add_bytes(text, "\"", 1);
    for (size_t left = strlen(s), step; left; s += step, left -= step) {
        const size_t        valid = cr_utf8_sequence(s, left);
        const unsigned char first = (unsigned char)*s, second = (unsigned char)s[1];
        step = CR_MAX(valid, (size_t)1);
        if (!valid)
            cr_text_add(text, "\\ufffd");
        else if (first == '"' || first == '\\')
            cr_text_add(text, "\\%c", first);
        else if (first < 0x20 || first == 0x7f)
            cr_text_add(text, "\\u%04x", first);
        else if (first == 0xc2 && second < 0xa0)
            cr_text_add(text, "\\u%04x", second);
        else
            cr_text_add_bytes(text, s, step);
    }
    cr_text_add_bytes(text, "\"", 1);
}

void cr_text_free(struct cr_text *text) {
    cr_free(text->data);
    *text = (struct cr_text){0};
}

/* ---- log, time ---- */

static atomic_bool log_is_quiet;

void cr_log_quiet(bool quiet) {
    atomic_store(&log_is_quiet, quiet);
}

bool cr_log_is_quiet(void) {
    return atomic_load(&log_is_quiet);
}

void cr_log(enum cr_log_level level, const char *fmt, ...) {
    if (level == CR_LOG_INFO && atomic_load(&log_is_quiet)) return;
    char    shown[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    format_visible(shown, fmt, args);
    va_end(args);
    cr_host_log(level, shown);
}

int64_t cr_time_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Field 22 of /proc/self/stat: start time in clock ticks since boot. The name in field 2 may contain any character, but
 * ends with the last ')'. */
int64_t cr_process_age_ns(void) {
    char            text[1024];
    int64_t         start = 0;
    FILE           *file  = fopen("/proc/self/stat", "r");
    const long      ticks = sysconf(_SC_CLK_TCK);
    struct timespec now;
    if (!file) return 0;
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length]     = 0;
    const char *word = strrchr(text, ')');
    for (int field = 2; word && field < 22; field++) {
        word = strchr(word, ' ');
        if (word) word++;
    }
    if (!word || ticks <= 0 || sscanf(word, "%" SCNd64, &start) != 1) return 0;
    if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - start * (1000000000 / ticks);
}

int cr_compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* core/base.h: status codes, error trail, assertions, counted malloc, arena allocator, growing text, log lines, time.
 *
 * Every file of cresnet includes this header.
 *
 * Invariants
 *   - A function that can fail for a reason outside the code returns a `cr_status` that must be checked. Results go to
 *     out-parameters. A failing function leaves its out-parameters unchanged unless its comment says otherwise.
 *   - CR_FAIL starts an error trail (message, file, line), CR_TRY forwards the error, and only main prints it and
 *     exits. The trail is per thread: a worker thread passes its message to another thread as text (cr_error_message).
 *   - CR_ASSERT is for programming errors. It stays enabled in release builds.
 *   - All heap memory comes from cr_alloc, so that tests can make the n-th allocation fail and count the live blocks.
 *
 * This header does not depend on tensors, file formats or devices. */
#ifndef CR_BASE_H
#define CR_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CR_VERSION is the version number as a string literal. CMakeLists.txt defines it on the compiler's command line. */

/* constant, exit status of the program, name */
#define CR_STATUS_LIST(X)                                                                                              \
    X(CR_OK, 0, "ok")                                                                                                  \
    X(CR_ERR_USAGE, 2, "usage")     /* wrong command line */                                                           \
    X(CR_ERR_CONFIG, 2, "config")   /* invalid configuration or unsupported request */                                 \
    X(CR_ERR_IO, 1, "input/output") /* a system call failed: missing file, full disk, no permission */                 \
    X(CR_ERR_FORMAT, 1, "format")   /* invalid file content */                                                         \
    X(CR_ERR_MEMORY, 1, "out of memory")                                                                               \
    X(CR_ERR_DEVICE, 1, "device")           /* no such device, missing kernel, device fault */                         \
    X(CR_ERR_NUMERIC, 1, "numeric")         /* non-finite loss, a comparison outside its tolerance */                  \
    X(CR_ERR_INTERRUPTED, 1, "interrupted") /* a signal requested the end of the program */                            \
    X(CR_ERR_PEER, 1, "another rank")       /* another rank failed, ended or does not respond */

typedef enum cr_status {
#define X(code, exit_status, name) code,
    CR_STATUS_LIST(X)
#undef X
} cr_status;

#define CR_MUST __attribute__((warn_unused_result))
#define CR_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#define CR_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define CR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CR_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline double cr_mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}
int  cr_compare_i64(const void *a, const void *b);   /* comparison function for qsort, ascending */
int  cr_compare_texts(const void *a, const void *b); /* the same for const char *, by bytes */
bool cr_ends_with(const char *text, const char *ending);

const char *cr_status_name(cr_status status);
int         cr_status_exit(cr_status status);

/* ---- error trail (per thread) ---- */

/* Starts a trail. The message addresses the user of the program: what failed, where, what to do. Returns status. */
cr_status cr_error_set(cr_status status, const char *file, int line, const char *fmt, ...) CR_PRINTF(4, 5);
/* The same with CR_ERR_FORMAT: "PATH: WHAT: " and the message. */
cr_status cr_error_set_format(const char *path, const char *what, const char *file, int line, const char *fmt, ...)
    CR_PRINTF(5, 6);
/* Appends a source location that the error passed through. Returns status. */
cr_status   cr_error_forward(cr_status status, const char *file, int line);
const char *cr_error_message(void); /* "" without an error; valid until the next error of this thread */
/* Copies the message; a longer one loses the middle (cr_utf8_visible), so that its end, the reason, stays. */
void        cr_error_copy(char *out, size_t size);
const char *cr_error_trail(void); /* "src/x.c:12 < src/y.c:40": for bug reports (CRESNET_TRACE=1) */
void        cr_error_clear(void);
/* Of work that several threads do: the error whose index is least. Messages belong to threads. */
struct cr_first_error {
    cr_status status;
    int       index;
    char      text[1024];
};
/* Keeps the error of this thread if it is the first so far, and clears it. Nothing with CR_OK. Thread-safe. */
void cr_first_error_note(struct cr_first_error *first, cr_status status, int index);
/* Between hold and release, new errors do not change the trail. Cleanup code uses this: the user must read the first
 * error, not an error during the cleanup. Calls may nest. */
void cr_error_hold(void);
void cr_error_release(void);

/* The expression's value is the status itself, so that the compiler can see that a failure is never CR_OK. */
#define CR_FAIL(status, ...) (cr_error_set((status), __FILE__, __LINE__, __VA_ARGS__), (status))
#define CR_FAIL_FORMAT(path, what, ...)                                                                                \
    (cr_error_set_format((path), (what), __FILE__, __LINE__, __VA_ARGS__), CR_ERR_FORMAT)
/* The error that was kept as the first one, if there was any. */
#define CR_FAIL_FIRST(first) ((first)->status == CR_OK ? CR_OK : CR_FAIL((first)->status, "%s", (first)->text))
#define CR_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        cr_status cr_try_status_ = (expr);                                                                             \
        if (cr_try_status_ != CR_OK) return cr_error_forward(cr_try_status_, __FILE__, __LINE__), cr_try_status_;      \
    } while (0)
/* Like CR_TRY, for functions with a cleanup label: needs a local `cr_status status` and a label `out`. */
#define CR_TRY_OUT(expr)                                                                                               \
    do {                                                                                                               \
        status = (expr);                                                                                               \
        if (status != CR_OK) {                                                                                         \
            cr_error_forward(status, __FILE__, __LINE__);                                                              \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CR_FAIL_OUT(code, ...)                                                                                         \
    do {                                                                                                               \
        status = CR_FAIL((code), __VA_ARGS__);                                                                         \
        goto out;                                                                                                      \
    } while (0)

_Noreturn void cr_assert_failed(const char *what, const char *file, int line);
#define CR_ASSERT(cond) ((cond) ? (void)0 : cr_assert_failed(#cond, __FILE__, __LINE__))

/* ---- memory ---- */

/* Returns count*size zeroed bytes, 64-byte aligned. Returns NULL if memory is exhausted, if count*size overflows, or if
 * a test requested a failure; cr_error_message then contains the requested size. count = 0 returns a valid pointer. */
void *cr_alloc(size_t count, size_t size);
/* Resizes a block from cr_alloc; new bytes are zero. On NULL the old block is unchanged. p may be NULL. */
void *cr_realloc(void *p, size_t count, size_t size);
void  cr_free(void *p);
char *cr_strdup(const char *s); /* NULL when out of memory; the caller frees the copy with cr_free */

/* Sets CR_ERR_MEMORY with the standard message. */
cr_status cr_no_memory_at(const char *file, int line, size_t bytes);
#define CR_NO_MEMORY(bytes) (cr_no_memory_at(__FILE__, __LINE__, (bytes)), CR_ERR_MEMORY)
#define CR_NO_MEMORY_OUT(bytes)                                                                                        \
    do {                                                                                                               \
        status = CR_NO_MEMORY(bytes);                                                                                  \
        goto out;                                                                                                      \
    } while (0)
/* Allocates `count` elements for the pointer `var`, or returns CR_ERR_MEMORY from the enclosing function. */
#define CR_ALLOC(var, count)                                                                                           \
    do {                                                                                                               \
        (var) = cr_alloc((count), sizeof *(var));                                                                      \
        if (!(var)) return CR_NO_MEMORY((size_t)(count) * sizeof *(var));                                              \
    } while (0)
/* The same for functions with a cleanup label, as CR_TRY_OUT. */
#define CR_ALLOC_OUT(var, count)                                                                                       \
    do {                                                                                                               \
        (var) = cr_alloc((count), sizeof *(var));                                                                      \
        if (!(var)) CR_NO_MEMORY_OUT((size_t)(count) * sizeof *(var));                                                 \
    } while (0)

/* Makes room for element `index` of an array from cr_realloc, or returns CR_ERR_MEMORY from the enclosing function. The
 * capacity at least doubles, from `least` elements on. */
#define CR_GROW(var, index, capacity, least)                                                                           \
    do {                                                                                                               \
        if ((index) < (capacity)) break;                                                                               \
        const size_t two_   = CR_MAX(2 * (size_t)(capacity), (size_t)(least));                                         \
        const size_t more_  = CR_MAX(two_, (size_t)(index) + 1);                                                       \
        void        *grown_ = cr_realloc((var), more_, sizeof *(var));                                                 \
        if (!grown_) return CR_NO_MEMORY(more_ * sizeof *(var));                                                       \
        (var)      = grown_;                                                                                           \
        (capacity) = (__typeof__(capacity))more_;                                                                      \
    } while (0)

uint64_t cr_alloc_calls(void);          /* number of cr_alloc and cr_realloc calls since start, all threads */
int64_t  cr_alloc_live(void);           /* number of blocks not yet freed */
void     cr_alloc_fail_at(int64_t nth); /* for tests: the nth call from now fails (1 = the next); <= 0 disables */

/* An arena allocator: small blocks that are freed together. A zeroed struct is an empty arena. Not thread-safe. */
struct cr_arena_block;
struct cr_arena {
    struct cr_arena_block *head;
};
void *cr_arena_alloc(struct cr_arena *arena, size_t bytes); /* zeroed, 16-aligned; NULL when out of memory */
/* `count` elements of `size` bytes. As cr_arena_alloc; also NULL when count * size overflows. */
void *cr_arena_array(struct cr_arena *arena, size_t count, size_t size);
/* Allocates `count` elements for `var` from an arena, or returns CR_ERR_MEMORY from the enclosing function. */
#define CR_ARENA_ALLOC(arena, var, count)                                                                              \
    do {                                                                                                               \
        (var) = cr_arena_array((arena), (count), sizeof *(var));                                                       \
        if (!(var)) return CR_NO_MEMORY((size_t)(count) * sizeof *(var));                                              \
    } while (0)
char *cr_arena_printf(struct cr_arena *arena, const char *fmt, ...) CR_PRINTF(2, 3); /* NULL when out of memory */
void  cr_arena_free(struct cr_arena *arena);

/* Growing text. A zeroed struct is an empty text. An allocation failure sets `failed` permanently: callers check it
 * once at the end. */
struct cr_text {
    char  *data; /* NULL before the first addition, then always 0-terminated */
    size_t length, capacity;
    bool   failed;
};
void cr_text_add(struct cr_text *text, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_text_add_bytes(struct cr_text *text, const void *bytes, size_t count);
void cr_text_add_json(struct cr_text *text, const char *s); /* adds s as a JSON string with quotes */
void cr_text_free(struct cr_text *text);

/* ---- log, time ---- */

enum cr_log_level { CR_LOG_ERROR, CR_LOG_WARN, CR_LOG_INFO, CR_LOG_RESULT };
/* Writes one line to stderr: "cresnet: warning: ..."; lines of information and results have no prefix. Thread-safe. */
void cr_log(enum cr_log_level level, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_log_quiet(bool quiet); /* true suppresses info lines (--quiet) */
bool cr_log_is_quiet(void);
/* Sets a prefix such as "rank 3: " for warnings and errors, for processes that share a terminal. Call it before any
 * thread starts. */
void cr_log_prefix(const char *who);

int64_t cr_time_ns(void);        /* monotonic clock */
int64_t cr_process_age_ns(void); /* time since the kernel started this process, resolution 10 ms; 0 if unknown */

/* Comparison function of qsort for an array of double. */
int cr_compare_doubles(const void *a, const void *b);

#endif

/* core/base.h: what every file of cresnet stands on: status codes with an error trail, asserts, counted memory,
 * an arena, a growing text, log lines, time.
 *
 * Laws
 *   - A function that can fail for reasons outside the code returns a must-check `cr_status`; results go to
 *     out-parameters, which are untouched on failure unless the function says otherwise.
 *   - CR_FAIL starts a trail (message, file, line), CR_TRY forwards it, only main prints it and exits.
 *     The trail belongs to the thread: a worker thread hands its message over as text (cr_error_message).
 *   - CR_ASSERT is for our own mistakes and stays in release builds.
 *   - All heap memory comes from cr_alloc, so that tests can fail the n-th allocation and count live blocks.
 * Knows nothing of tensors, files formats or devices. */
#ifndef CR_BASE_H
#define CR_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CR_VERSION, the version number as a string literal, is a compiler definition: CMakeLists.txt sets it. */

/* code, exit status of the program, name */
#define CR_STATUS_LIST(X)                                                                                              \
    X(CR_OK, 0, "ok")                                                                                                  \
    X(CR_ERR_USAGE, 2, "usage")     /* wrong command line */                                                           \
    X(CR_ERR_CONFIG, 2, "config")   /* wrong configuration, refused request */                                         \
    X(CR_ERR_IO, 1, "input/output") /* the system refused: missing file, full disk, no permission */                   \
    X(CR_ERR_FORMAT, 1, "format")   /* a file that is not what it says it is */                                        \
    X(CR_ERR_MEMORY, 1, "out of memory")                                                                               \
    X(CR_ERR_DEVICE, 1, "device")           /* no such device, missing kernel row, device fault */                     \
    X(CR_ERR_NUMERIC, 1, "numeric")         /* non-finite loss, a check out of its bound */                            \
    X(CR_ERR_INTERRUPTED, 1, "interrupted") /* a signal asked us to stop */                                            \
    X(CR_ERR_PEER, 1, "another rank")       /* a process that this one works with failed, ended or does not answer */

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
int cr_compare_i64(const void *a, const void *b); /* for qsort */

const char *cr_status_name(cr_status status);
int         cr_status_exit(cr_status status);

/* ---- error trail (per thread) ---- */

/* Starts a trail: the message speaks to the person who runs the program (what, where, what to do). */
cr_status cr_error_set(cr_status status, const char *file, int line, const char *fmt, ...) CR_PRINTF(4, 5);
/* Adds a place the error passed through. Returns status. */
cr_status   cr_error_forward(cr_status status, const char *file, int line);
const char *cr_error_message(void); /* "" when none; valid until the next error of this thread */
const char *cr_error_trail(void);   /* "src/x.c:12 < src/y.c:40": for bug reports (CRESNET_TRACE=1) */
void        cr_error_clear(void);
/* Between the two the trail stays as it is: cleaning up after an error may meet others, and the first is what the user
 * must read. They nest. */
void cr_error_hold(void);
void cr_error_release(void);

/* Ends in the status itself, so that compilers see that a failure is never CR_OK. */
#define CR_FAIL(status, ...) (cr_error_set((status), __FILE__, __LINE__, __VA_ARGS__), (status))
#define CR_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        cr_status cr_try_status_ = (expr);                                                                             \
        if (cr_try_status_ != CR_OK) return cr_error_forward(cr_try_status_, __FILE__, __LINE__), cr_try_status_;      \
    } while (0)
/* As CR_TRY, for functions with a cleanup label: needs a local `cr_status status` and a label `out`. */
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

/* count*size zeroed bytes, aligned to 64; NULL when the system has none, when count*size overflows, or when a
 * test asked for failure (then cr_error_message says how much was asked for). count = 0 gives a valid pointer. */
void *cr_alloc(size_t count, size_t size);
/* Grows or shrinks a block from cr_alloc; new bytes are zero; NULL leaves the old block alone. p may be NULL. */
void *cr_realloc(void *p, size_t count, size_t size);
void  cr_free(void *p);
char *cr_strdup(const char *s); /* NULL when out of memory; cr_free it */

/* CR_ERR_MEMORY with a standard message. */
cr_status cr_no_memory_at(const char *file, int line, size_t bytes);
#define CR_NO_MEMORY(bytes) (cr_no_memory_at(__FILE__, __LINE__, (bytes)), CR_ERR_MEMORY)
/* Allocates into `var` or returns CR_ERR_MEMORY from the enclosing function. */
#define CR_ALLOC(var, count)                                                                                           \
    do {                                                                                                               \
        (var) = cr_alloc((count), sizeof *(var));                                                                      \
        if (!(var)) return CR_NO_MEMORY((size_t)(count) * sizeof *(var));                                              \
    } while (0)

uint64_t cr_alloc_calls(void);          /* cr_alloc + cr_realloc calls since start, all threads */
int64_t  cr_alloc_live(void);           /* blocks not yet freed */
void     cr_alloc_fail_at(int64_t nth); /* tests: the nth call from now fails (1 = the next); <= 0 switches off */

/* An arena: many small things dropped whole. A zeroed struct is an empty arena. Not for use by two threads. */
struct cr_arena_block;
struct cr_arena {
    struct cr_arena_block *head;
};
void *cr_arena_alloc(struct cr_arena *arena, size_t bytes); /* zeroed, 16-aligned; NULL when out of memory */
char *cr_arena_printf(struct cr_arena *arena, const char *fmt, ...) CR_PRINTF(2, 3); /* NULL when out of memory */
void  cr_arena_free(struct cr_arena *arena);

/* A growing text. A zeroed struct is an empty text. Out of memory is sticky: check `failed` once at the end. */
struct cr_text {
    char  *data; /* always 0-terminated once something was added; NULL before */
    size_t length, capacity;
    bool   failed;
};
void cr_text_add(struct cr_text *text, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_text_add_bytes(struct cr_text *text, const void *bytes, size_t count);
void cr_text_add_json(struct cr_text *text, const char *s); /* s as a JSON string with its quotes */
void cr_text_free(struct cr_text *text);

/* ---- log, time ---- */

enum cr_log_level { CR_LOG_ERROR, CR_LOG_WARN, CR_LOG_INFO };
/* One line on stderr, "cresnet: warning: ..."; info lines carry no prefix. Thread-safe. */
void cr_log(enum cr_log_level level, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_log_quiet(bool quiet); /* drops info lines (for --json and tests) */
/* Of several processes that share a terminal: "rank 3: ", in front of warnings and errors. Before threads are started.
 */
void cr_log_prefix(const char *who);

int64_t cr_time_ns(void);        /* monotonic */
int64_t cr_process_age_ns(void); /* since the kernel started this process, to 10 ms; 0: unknown */

#endif

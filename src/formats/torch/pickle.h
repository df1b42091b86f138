/* formats/torch/pickle.h: reads the pickles of torch.save without running anything.
 *
 * A pickle is a program for a stack machine (Python's pickletools.py describes the opcodes). Its opcodes GLOBAL and
 * REDUCE import any function of Python and call it. This reader knows the plain values and the few functions that build
 * tensors; it refuses everything else by the name of the opcode or function.
 *
 * Invariants
 *   - Nothing outside this file is called by name: a function of the pickle is one of enum cr_pickle_function.
 *   - A pickle has at most CR_PICKLE_BYTES_MAX bytes and CR_PICKLE_VALUES_MAX values and items of lists; both bound
 *     time and memory.
 *   - Values may contain themselves (a list in itself is a valid pickle): no function here follows them recursively. */
#ifndef CR_PICKLE_H
#define CR_PICKLE_H

#include "core/base.h"
#include "formats/safetensors.h"

enum { CR_PICKLE_BYTES_MAX = 64 << 20, CR_PICKLE_VALUES_MAX = 4 << 20 };

enum cr_pickle_kind {
    CR_PICKLE_NOTHING, /* None, a float, or an object that has no meaning here (torch.device, a set) */
    CR_PICKLE_BOOL,
    CR_PICKLE_INT,
    CR_PICKLE_LONG, /* an integer of more than 64 bits: its bytes, little-endian */
    CR_PICKLE_TEXT, /* a string or bytes */
    CR_PICKLE_TUPLE,
    CR_PICKLE_LIST,
    CR_PICKLE_DICT, /* items are key, value, key, value */
    CR_PICKLE_FUNCTION,
    CR_PICKLE_STORAGE,
    CR_PICKLE_TENSOR
};

/* The functions and classes that a pickle may name. */
enum cr_pickle_function {
    CR_PICKLE_DICT_CLASS,        /* collections.OrderedDict */
    CR_PICKLE_REBUILD_TENSOR,    /* torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...) */
    CR_PICKLE_REBUILD_PARAMETER, /* torch._utils._rebuild_parameter(tensor, ...) */
    CR_PICKLE_REBUILD_FROM_TYPE, /* torch._tensor._rebuild_from_type_v2(function, type, arguments, state) */
    CR_PICKLE_SIZE,              /* torch.Size(tuple) */
    CR_PICKLE_IGNORED,           /* the result is CR_PICKLE_NOTHING */
    CR_PICKLE_STORAGE_CLASS,     /* torch.FloatStorage and the like: an argument, never called */
};

struct cr_pickle_global {
    const char             *module, *name;
    enum cr_pickle_function function;
    /* of storage classes */
    bool          readable; /* false: cresnet has no such element type */
    enum cr_dtype dtype;
    size_t        size; /* bytes of an element */
};

struct cr_pickle_value {
    enum cr_pickle_kind kind;
    union {
        int64_t integer; /* BOOL, INT */
        struct {         /* TEXT, LONG: 0-terminated, may contain 0 bytes */
            const char *data;
            size_t      length;
        } text;
        struct { /* TUPLE, LIST, DICT */
            struct cr_pickle_value **item;
            uint32_t                 count, capacity;
        } list;
        const struct cr_pickle_global *global; /* FUNCTION */
        struct cr_pickle_storage      *storage;
        struct cr_pickle_tensor       *tensor;
    };
};

struct cr_pickle_storage {
    const struct cr_pickle_global *type;
    const char                    *key;    /* names the bytes of the storage in the file */
    int64_t                        elems;  /* at least 0 */
    uint64_t                       offset; /* in the file; set by the caller of cr_pickle_read */
};

struct cr_pickle_tensor {
    struct cr_pickle_storage *storage;
    int64_t                   offset; /* elements; >= 0 */
    int                       dims;
    int64_t                   dim[CR_ST_DIMS_MAX], stride[CR_ST_DIMS_MAX]; /* elements; >= 0 */
};

/* Several pickles of one file share the memory and the limits. A zeroed struct with fd, path, at and end is valid. */
struct cr_pickle {
    int         fd;      /* of the caller, open for reading */
    const char *path;    /* of the caller, for messages */
    uint64_t    at, end; /* offsets in the file: of the next byte, and where the pickle must have ended */
    struct cr_pickle_storage **storage; /* all storages that were named, in order, with repetitions */
    int                        storages, storages_capacity;
    struct cr_arena            arena; /* owns the values */
    int64_t                    bytes_read, values;
};

/* Reads one pickle from pickle->at on, which moves behind it. CR_ERR_FORMAT, CR_ERR_IO. *out is valid until
 * cr_pickle_free. */
CR_MUST cr_status cr_pickle_read(struct cr_pickle *pickle, struct cr_pickle_value **out);
void              cr_pickle_free(struct cr_pickle *pickle); /* does not close fd */

/* The value of a text key in a dictionary, the last one if there are several; NULL without, or if `v` is none. */
struct cr_pickle_value *cr_pickle_get(const struct cr_pickle_value *v, const char *key);

/* ---- formats/torch/pickle_values.c: what functions of the pickle do; used by pickle.c ---- */

/* Looks a global up. CR_ERR_FORMAT "... calls os.system ..." if it is not one of those above; `opcode` and `at` are for
 * the message. */
CR_MUST cr_status cr_pickle_global(const struct cr_pickle *pickle, const char *module, const char *name,
                                   const char *opcode, uint64_t at, const struct cr_pickle_global **out);
/* Applies a function to a tuple of arguments. */
CR_MUST cr_status cr_pickle_call(struct cr_pickle *pickle, const struct cr_pickle_value *function,
                                 struct cr_pickle_value *arguments, struct cr_pickle_value **out);
/* The storage that a persistent id ("storage", class, key, location, elements) names. */
CR_MUST cr_status cr_pickle_persistent(struct cr_pickle *pickle, const struct cr_pickle_value *id,
                                       struct cr_pickle_value **out);
/* Makes a new value. */
CR_MUST cr_status cr_pickle_new(struct cr_pickle *pickle, enum cr_pickle_kind kind, struct cr_pickle_value **out);
/* Appends to a TUPLE, LIST or DICT. */
CR_MUST cr_status cr_pickle_append(struct cr_pickle *pickle, struct cr_pickle_value *list,
                                   struct cr_pickle_value *item);
/* CR_ERR_FORMAT "PATH: cannot be read as PyTorch weights: ..." */
#define CR_PICKLE_BAD(pickle, ...) CR_FAIL_FORMAT((pickle)->path, "cannot be read as PyTorch weights", __VA_ARGS__)

#endif

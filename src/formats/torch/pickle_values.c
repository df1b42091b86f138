/* formats/torch/pickle_values.c: values of pickles, and the functions that a pickle may call. See
 * formats/torch/pickle.h. */
#include "formats/torch/pickle.h"

#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SHOWN = 120 };

/* ---- values ---- */

static cr_status count_value(struct cr_pickle *pickle) {
    if (++pickle->values <= CR_PICKLE_VALUES_MAX) return CR_OK;
    return CR_PICKLE_BAD(pickle, "its pickle has more than %d values", CR_PICKLE_VALUES_MAX);
}

cr_status cr_pickle_new(struct cr_pickle *pickle, enum cr_pickle_kind kind, struct cr_pickle_value **out) {
    struct cr_pickle_value *v;
    CR_TRY(count_value(pickle));
    CR_ARENA_ALLOC(&pickle->arena, v, 1);
    v->kind = kind;
    *out    = v;
    return CR_OK;
}

cr_status cr_pickle_append(struct cr_pickle *pickle, struct cr_pickle_value *list, struct cr_pickle_value *item) {
    CR_TRY(count_value(pickle));
    if (list->list.count == list->list.capacity) {
        const uint32_t           more  = CR_MAX(4u, list->list.capacity * 2);
        struct cr_pickle_value **fresh = cr_arena_alloc(&pickle->arena, more * sizeof(struct cr_pickle_value *));
        if (!fresh) return CR_NO_MEMORY(more * sizeof(struct cr_pickle_value *));
        if (list->list.count) memcpy(fresh, list->list.item, list->list.count * sizeof(struct cr_pickle_value *));
        list->list.item     = fresh;
        list->list.capacity = more;
    }
    list->list.item[list->list.count++] = item;
    return CR_OK;
}

struct cr_pickle_value *cr_pickle_get(const struct cr_pickle_value *v, const char *key) {
    if (v->kind != CR_PICKLE_DICT) return NULL;
    for (uint32_t i = v->list.count; i >= 2; i -= 2) {
        const struct cr_pickle_value *k = v->list.item[i - 2];
        if (k->kind == CR_PICKLE_TEXT && k->text.length == strlen(key) && strcmp(k->text.data, key) == 0)
            return v->list.item[i - 1];
    }
    return NULL;
}

/* ---- functions ---- */

#define STORAGE(name, type, bytes)                                                                                     \
    { "torch", name, CR_PICKLE_STORAGE_CLASS, true, type, bytes }
#define UNREADABLE(name, bytes)                                                                                        \
    { "torch", name, CR_PICKLE_STORAGE_CLASS, false, CR_U8, bytes }

static const struct cr_pickle_global globals[] = {
    {.module = "collections", .name = "OrderedDict", .function = CR_PICKLE_DICT_CLASS},
    {.module = "torch._utils", .name = "_rebuild_tensor", .function = CR_PICKLE_REBUILD_TENSOR},
    {.module = "torch._utils", .name = "_rebuild_tensor_v2", .function = CR_PICKLE_REBUILD_TENSOR},
    {.module = "torch._utils", .name = "_rebuild_parameter", .function = CR_PICKLE_REBUILD_PARAMETER},
    {.module = "torch._utils", .name = "_rebuild_parameter_with_state", .function = CR_PICKLE_REBUILD_PARAMETER},
    {.module = "torch._tensor", .name = "_rebuild_from_type_v2", .function = CR_PICKLE_REBUILD_FROM_TYPE},
    {.module = "torch", .name = "Size", .function = CR_PICKLE_SIZE},
    STORAGE("FloatStorage", CR_F32, 4),
    STORAGE("DoubleStorage", CR_F64, 8),
    STORAGE("HalfStorage", CR_F16, 2),
    STORAGE("BFloat16Storage", CR_BF16, 2),
    STORAGE("ByteStorage", CR_U8, 1),
    STORAGE("CharStorage", CR_I8, 1),
    STORAGE("IntStorage", CR_I32, 4),
    STORAGE("LongStorage", CR_I64, 8),
    UNREADABLE("BoolStorage", 1),
    UNREADABLE("ShortStorage", 2),
    UNREADABLE("ComplexFloatStorage", 8),
    UNREADABLE("ComplexDoubleStorage", 16),
    /* what checkpoints also have; none of these has a meaning here */
    {.module = "torch", .name = "Tensor", .function = CR_PICKLE_IGNORED},
    {.module = "torch.nn.parameter", .name = "Parameter", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "device", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "float32", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "float16", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "bfloat16", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "float64", .function = CR_PICKLE_IGNORED},
    {.module = "torch", .name = "int64", .function = CR_PICKLE_IGNORED},
    {.module = "collections", .name = "Counter", .function = CR_PICKLE_IGNORED},
    {.module = "collections", .name = "defaultdict", .function = CR_PICKLE_IGNORED},
    {.module = "_codecs", .name = "encode", .function = CR_PICKLE_IGNORED}, /* bytes in protocol 2 */
    {.module = "__builtin__", .name = "set", .function = CR_PICKLE_IGNORED},
    {.module = "builtins", .name = "set", .function = CR_PICKLE_IGNORED},
    {.module = "__builtin__", .name = "dict", .function = CR_PICKLE_IGNORED},
    {.module = "builtins", .name = "dict", .function = CR_PICKLE_IGNORED},
};

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Advice that fits the function which is refused. */
static const char *advice(const char *module, const char *name) {
    if (starts_with(module, "torch.nn.") || starts_with(module, "torchvision.") || starts_with(module, "timm.") ||
        starts_with(module, "__main__"))
        return "it holds a whole model instead of its weights: load it in Python and save them with "
               "torch.save(model.state_dict(), FILE)";
    if (starts_with(name, "_rebuild_") || strcmp(module, "torch") == 0)
        return "cresnet reads dense tensors of F32, F64, F16, BF16 and integers: convert them before saving";
    return "save the weights alone: torch.save(torch.load(OLD, weights_only=False)[KEY], FILE) for a checkpoint, "
           "torch.save(model.state_dict(), FILE) for a model";
}

cr_status cr_pickle_global(const struct cr_pickle *pickle, const char *module, const char *name, const char *opcode,
                           uint64_t at, const struct cr_pickle_global **out) {
    char whole[520], shown[NAME_SHOWN];
    if (strcmp(module, "torch.cuda") == 0 && strlen(name) > 7 && strcmp(name + strlen(name) - 7, "Storage") == 0)
        module = "torch"; /* the storage classes of GPUs have the same names */
    for (size_t i = 0; i < CR_COUNT(globals); i++)
        if (strcmp(globals[i].module, module) == 0 && strcmp(globals[i].name, name) == 0) {
            *out = &globals[i];
            return CR_OK;
        }
    snprintf(whole, sizeof whole, "%s.%s", module, name);
    cr_json_quote(shown, sizeof shown, whole);
    return CR_PICKLE_BAD(pickle, "its pickle names %s (opcode %s at byte %" PRIu64 "), which cresnet does not run: %s",
                         shown, opcode, at, advice(module, name));
}

/* ---- calls ---- */

/* Copies a tuple or list of integers of at least 0 to `out`. */
static cr_status take_integers(const struct cr_pickle *pickle, const struct cr_pickle_value *v, const char *what,
                               int64_t out[CR_ST_DIMS_MAX], int *count) {
    if (v->kind != CR_PICKLE_TUPLE && v->kind != CR_PICKLE_LIST)
        return CR_PICKLE_BAD(pickle, "the %s of a tensor is no tuple", what);
    if (v->list.count > CR_ST_DIMS_MAX)
        return CR_PICKLE_BAD(pickle, "a tensor has %" PRIu32 " dimensions, more than %d", v->list.count,
                             CR_ST_DIMS_MAX);
    for (uint32_t i = 0; i < v->list.count; i++) {
        if (v->list.item[i]->kind != CR_PICKLE_INT || v->list.item[i]->integer < 0)
            return CR_PICKLE_BAD(pickle, "the %s of a tensor is no list of sizes", what);
        out[i] = v->list.item[i]->integer;
    }
    *count = (int)v->list.count;
    return CR_OK;
}

/* Checks that the last element lies in the storage, and that the tensor is not larger than its storage. */
static cr_status check_extent(const struct cr_pickle *pickle, const struct cr_pickle_tensor *t) {
    int64_t count = 1, last = t->offset, step;
    bool    large = false;
    for (int i = 0; i < t->dims; i++) {
        if (t->dim[i] == 0) count = 0;
        if (count) large |= __builtin_mul_overflow(count, t->dim[i], &count);
        if (large) break;
    }
    if (!large && count == 0) return CR_OK;
    for (int i = 0; i < t->dims && !large; i++)
        large |=
            __builtin_mul_overflow(t->dim[i] - 1, t->stride[i], &step) || __builtin_add_overflow(last, step, &last);
    if (large || last >= t->storage->elems) return CR_PICKLE_BAD(pickle, "a tensor reaches beyond its storage");
    if (count > t->storage->elems)
        return CR_PICKLE_BAD(pickle,
                             "a tensor of %" PRId64 " elements has a storage of %" PRId64
                             ": call clone() on expanded tensors before they are saved",
                             count, t->storage->elems);
    return CR_OK;
}

static cr_status rebuild_tensor(struct cr_pickle *pickle, struct cr_pickle_value *const *item, uint32_t count,
                                struct cr_pickle_value **out) {
    struct cr_pickle_tensor *t = cr_arena_alloc(&pickle->arena, sizeof *t);
    int                      strides;
    if (!t) return CR_NO_MEMORY(sizeof *t);
    if (count < 4 || item[0]->kind != CR_PICKLE_STORAGE || item[1]->kind != CR_PICKLE_INT || item[1]->integer < 0)
        return CR_PICKLE_BAD(pickle, "a tensor has no storage, offset, size and stride");
    t->storage = item[0]->storage;
    t->offset  = item[1]->integer;
    CR_TRY(take_integers(pickle, item[2], "size", t->dim, &t->dims));
    CR_TRY(take_integers(pickle, item[3], "stride", t->stride, &strides));
    if (strides != t->dims) return CR_PICKLE_BAD(pickle, "a tensor has %d sizes, but %d strides", t->dims, strides);
    CR_TRY(check_extent(pickle, t));
    CR_TRY(cr_pickle_new(pickle, CR_PICKLE_TENSOR, out));
    (*out)->tensor = t;
    return CR_OK;
}

/* _rebuild_from_type_v2(function, type, arguments, state): a tensor with attributes, which have no meaning here. */
static cr_status rebuild_from_type(struct cr_pickle *pickle, struct cr_pickle_value *const *item, uint32_t count,
                                   struct cr_pickle_value **out) {
    if (count < 3 || item[0]->kind != CR_PICKLE_FUNCTION || item[2]->kind != CR_PICKLE_TUPLE ||
        (item[0]->global->function != CR_PICKLE_REBUILD_TENSOR &&
         item[0]->global->function != CR_PICKLE_REBUILD_PARAMETER))
        return CR_PICKLE_BAD(pickle, "a tensor with attributes has no function that builds tensors");
    return cr_pickle_call(pickle, item[0], item[2], out);
}

/* OrderedDict() or, from Python 2, OrderedDict([[key, value], ...]). */
static cr_status make_dict(struct cr_pickle *pickle, struct cr_pickle_value *const *item, uint32_t count,
                           struct cr_pickle_value **out) {
    CR_TRY(cr_pickle_new(pickle, CR_PICKLE_DICT, out));
    if (count == 0) return CR_OK;
    if (count > 1 || (item[0]->kind != CR_PICKLE_LIST && item[0]->kind != CR_PICKLE_TUPLE))
        return CR_PICKLE_BAD(pickle, "an OrderedDict is made of neither nothing nor a list");
    const uint32_t pairs = item[0]->list.count;
    for (uint32_t i = 0; i < pairs; i++) {
        const struct cr_pickle_value *pair = item[0]->list.item[i];
        if ((pair->kind != CR_PICKLE_LIST && pair->kind != CR_PICKLE_TUPLE) || pair->list.count != 2)
            return CR_PICKLE_BAD(pickle, "an OrderedDict is made of a list without pairs");
        CR_TRY(cr_pickle_append(pickle, *out, pair->list.item[0]));
        CR_TRY(cr_pickle_append(pickle, *out, pair->list.item[1]));
    }
    return CR_OK;
}

cr_status cr_pickle_call(struct cr_pickle *pickle, const struct cr_pickle_value *function,
                         struct cr_pickle_value *arguments, struct cr_pickle_value **out) {
    struct cr_pickle_value *const *item  = arguments->list.item;
    const uint32_t                 count = arguments->list.count;
    switch (function->global->function) {
    case CR_PICKLE_DICT_CLASS: return make_dict(pickle, item, count, out);
    case CR_PICKLE_REBUILD_TENSOR: return rebuild_tensor(pickle, item, count, out);
    case CR_PICKLE_REBUILD_PARAMETER:
        if (!count || item[0]->kind != CR_PICKLE_TENSOR) return CR_PICKLE_BAD(pickle, "a parameter has no tensor");
        *out = item[0];
        return CR_OK;
    case CR_PICKLE_REBUILD_FROM_TYPE: return rebuild_from_type(pickle, item, count, out);
    case CR_PICKLE_SIZE:
        if (count != 1 || item[0]->kind != CR_PICKLE_TUPLE) return CR_PICKLE_BAD(pickle, "a size has no tuple");
        *out = item[0];
        return CR_OK;
    case CR_PICKLE_IGNORED: return cr_pickle_new(pickle, CR_PICKLE_NOTHING, out);
    case CR_PICKLE_STORAGE_CLASS: break;
    }
    return CR_PICKLE_BAD(pickle, "it calls torch.%s, which only names the type of a storage", function->global->name);
}

/* ---- storages ---- */

static cr_status list_storage(struct cr_pickle *pickle, struct cr_pickle_storage *storage) {
    CR_GROW(pickle->storage, pickle->storages, pickle->storages_capacity, 64);
    pickle->storage[pickle->storages++] = storage;
    return CR_OK;
}

cr_status cr_pickle_persistent(struct cr_pickle *pickle, const struct cr_pickle_value *id,
                               struct cr_pickle_value **out) {
    struct cr_pickle_value *const *item = id->list.item;
    struct cr_pickle_storage      *s;
    if (id->kind != CR_PICKLE_TUPLE || id->list.count < 5 || item[0]->kind != CR_PICKLE_TEXT ||
        strcmp(item[0]->text.data, "storage") != 0 || item[1]->kind != CR_PICKLE_FUNCTION ||
        item[1]->global->function != CR_PICKLE_STORAGE_CLASS || item[2]->kind != CR_PICKLE_TEXT ||
        item[4]->kind != CR_PICKLE_INT || item[4]->integer < 0)
        return CR_PICKLE_BAD(pickle, "it refers to an object outside that is no storage of a tensor (opcode "
                                     "BINPERSID): save the weights with torch.save(model.state_dict(), FILE)");
    if (id->list.count > 5 && item[5]->kind != CR_PICKLE_NOTHING)
        return CR_PICKLE_BAD(pickle, "it has views of storages, as PyTorch before 0.4 wrote them: load it with "
                                     "PyTorch and save it again");
    if (strlen(item[2]->text.data) != item[2]->text.length || item[4]->integer > INT64_MAX / 16)
        return CR_PICKLE_BAD(pickle, "a storage has an invalid name or size");
    CR_ARENA_ALLOC(&pickle->arena, s, 1);
    *s = (struct cr_pickle_storage){.type = item[1]->global, .key = item[2]->text.data, .elems = item[4]->integer};
    CR_TRY(list_storage(pickle, s));
    CR_TRY(cr_pickle_new(pickle, CR_PICKLE_STORAGE, out));
    (*out)->storage = s;
    return CR_OK;
}

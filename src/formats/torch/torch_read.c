/* formats/torch/torch_read.c: opens the files of torch.save. See formats/torch.h. */
#include "formats/torch.h"

#include "core/files.h"
#include "core/utf8.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"
#include "formats/torch/pickle.h"
#include "formats/torch/zip.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_SHOWN = 120, ROOT_MAX = 256 };

struct reader {
    struct cr_st_file *file;
    uint64_t           file_bytes;
    struct cr_pickle   pickle;
};

#define BAD(r, ...) CR_PICKLE_BAD(&(r)->pickle, __VA_ARGS__)

static const char advice[] = "save the weights with torch.save(model.state_dict(), FILE)";

/* ---- storages ---- */

static uint64_t storage_bytes(const struct cr_pickle_storage *s) {
    return (uint64_t)s->elems * s->type->size; /* no overflow: elems <= INT64_MAX / 16 */
}

/* ---- zip ---- */

/* Finds ROOT of the one entry ROOT/data.pkl. */
static cr_status find_root(struct reader *r, const struct cr_zip *zip, char root[ROOT_MAX]) {
    int found = 0;
    for (int i = 0; i < zip->count; i++) {
        const char *name = zip->entry[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash, "/data.pkl") != 0 || slash - name >= ROOT_MAX) continue;
        snprintf(root, ROOT_MAX, "%.*s", (int)(slash - name), name);
        found++;
    }
    if (found == 1) return CR_OK;
    return BAD(r, "it is a zip archive, but not one of torch.save: %s", found ? "several data.pkl" : "no data.pkl");
}

static const struct cr_zip_entry *find_part(const struct cr_zip *zip, const char *root, const char *name) {
    char path[ROOT_MAX + 512];
    return snprintf(path, sizeof path, "%s/%s", root, name) < (int)sizeof path ? cr_zip_find(zip, path) : NULL;
}

static cr_status check_byte_order(struct reader *r, const struct cr_zip *zip, const char *root) {
    const struct cr_zip_entry *entry   = find_part(zip, root, "byteorder");
    char                       text[8] = "";
    uint64_t                   at;
    if (!entry) return CR_OK;
    CR_TRY(cr_zip_locate(zip, entry, &at));
    if (entry->bytes == 6) CR_TRY(cr_fs_read_at(zip->fd, zip->path, text, 6, at));
    return strcmp(text, "little") == 0 ? CR_OK : BAD(r, "it was saved on a big-endian machine");
}

/* Storages of one key have one place: the names are looked up once each. */
static cr_status locate_in_zip(struct reader *r, const struct cr_zip *zip, const char *root) {
    char shown[NAME_SHOWN], name[512];
    for (int i = 0; i < r->pickle.storages; i++) {
        struct cr_pickle_storage  *s = r->pickle.storage[i];
        const struct cr_zip_entry *entry =
            snprintf(name, sizeof name, "data/%s", s->key) < (int)sizeof name ? find_part(zip, root, name) : NULL;
        cr_json_quote(shown, sizeof shown, s->key);
        if (!entry) return BAD(r, "storage %s is missing: the file is damaged", shown);
        if (entry->bytes != storage_bytes(s))
            return BAD(r, "storage %s has %" PRIu64 " bytes instead of %" PRIu64, shown, entry->bytes,
                       storage_bytes(s));
        CR_TRY(cr_zip_locate(zip, entry, &s->offset));
    }
    return CR_OK;
}

static cr_status read_zip(struct reader *r, struct cr_pickle_value **out) {
    struct cr_zip zip = {0};
    char          root[ROOT_MAX];
    cr_status     status;
    CR_TRY_OUT(cr_zip_open(r->file->fd, r->file->path, r->file_bytes, &zip));
    CR_TRY_OUT(find_root(r, &zip, root));
    if (find_part(&zip, root, "constants.pkl")) {
        status = BAD(r, "it is a TorchScript program: %s", advice);
        goto out;
    }
    CR_TRY_OUT(check_byte_order(r, &zip, root));
    const struct cr_zip_entry *entry = find_part(&zip, root, "data.pkl");
    CR_TRY_OUT(cr_zip_locate(&zip, entry, &r->pickle.at));
    r->pickle.end = r->pickle.at + entry->bytes;
    CR_TRY_OUT(cr_pickle_read(&r->pickle, out));
    CR_TRY_OUT(locate_in_zip(r, &zip, root));
out:
    cr_zip_close(&zip);
    return status;
}

/* ---- stream ---- */

static int compare_key(const void *a, const void *b) {
    const struct cr_pickle_storage *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* The magic number of PyTorch is the first pickle, 0x1950a86a20f9469cfc6c. */
static cr_status read_preamble(struct reader *r) {
    static const char       magic[] = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    struct cr_pickle_value *v, *little;
    CR_TRY(cr_pickle_read(&r->pickle, &v));
    if (v->kind != CR_PICKLE_LONG || v->text.length != sizeof magic - 1 ||
        memcmp(v->text.data, magic, sizeof magic - 1) != 0)
        return BAD(r, "it is a pickle, but not one of torch.save: %s", advice);
    CR_TRY(cr_pickle_read(&r->pickle, &v)); /* version of the format, 1001 */
    CR_TRY(cr_pickle_read(&r->pickle, &v)); /* system */
    little = cr_pickle_get(v, "little_endian");
    if (little && little->kind == CR_PICKLE_BOOL && !little->integer)
        return BAD(r, "it was saved on a big-endian machine");
    return CR_OK;
}

/* Sets the offset of all storages with this key; behind the keys, the file has a count and the bytes of each. The list
 * is sorted by key. */
static cr_status locate_in_stream(struct reader *r, const struct cr_pickle_value *key, uint64_t *at) {
    struct cr_pickle_storage wanted = {0}, *const pointer = &wanted;
    struct cr_pickle_storage **list = r->pickle.storage, **found;
    char                       shown[NAME_SHOWN];
    int64_t                    elems;
    if (key->kind != CR_PICKLE_TEXT || strlen(key->text.data) != key->text.length)
        return BAD(r, "the name of a storage is no text");
    wanted.key = key->text.data;
    cr_json_quote(shown, sizeof shown, wanted.key);
    found = r->pickle.storages ? bsearch(&pointer, list, (size_t)r->pickle.storages, sizeof *list, compare_key) : NULL;
    if (!found) return BAD(r, "storage %s belongs to no tensor: the file is damaged", shown);
    while (found > list && strcmp(found[-1]->key, wanted.key) == 0) found--;
    if (r->file_bytes - *at < sizeof elems) return BAD(r, "it is truncated before storage %s", shown);
    CR_TRY(cr_fs_read_at(r->file->fd, r->file->path, &elems, sizeof elems, *at));
    *at += sizeof elems;
    const uint64_t bytes = storage_bytes(*found);
    if (elems != (*found)->elems) return BAD(r, "storage %s has another size than its tensors", shown);
    if (bytes > r->file_bytes - *at) return BAD(r, "it is truncated in storage %s", shown);
    for (; found < list + r->pickle.storages && strcmp((*found)->key, wanted.key) == 0; found++) {
        if (storage_bytes(*found) != bytes || (*found)->offset) return BAD(r, "two storages have the name %s", shown);
        (*found)->offset = *at;
    }
    *at += bytes;
    return CR_OK;
}

static cr_status read_stream(struct reader *r, struct cr_pickle_value **out) {
    struct cr_pickle_value *keys;
    char                    shown[NAME_SHOWN];
    r->pickle.end = r->file_bytes;
    CR_TRY(read_preamble(r));
    CR_TRY(cr_pickle_read(&r->pickle, out));
    const int named = r->pickle.storages;
    CR_TRY(cr_pickle_read(&r->pickle, &keys));
    if (keys->kind != CR_PICKLE_LIST || r->pickle.storages != named) return BAD(r, "it has no list of storages");
    if (named) qsort(r->pickle.storage, (size_t)named, sizeof *r->pickle.storage, compare_key);
    uint64_t at = r->pickle.at;
    for (uint32_t i = 0; i < keys->list.count; i++) CR_TRY(locate_in_stream(r, keys->list.item[i], &at));
    for (int i = 0; i < named; i++)
        if (!r->pickle.storage[i]->offset) {
            cr_json_quote(shown, sizeof shown, r->pickle.storage[i]->key);
            return BAD(r, "storage %s is missing: the file is damaged", shown);
        }
    return CR_OK;
}

/* ---- from the object to entries ---- */

static int count_tensors(const struct cr_pickle_value *v) {
    int count = 0;
    for (uint32_t i = 1; v && v->kind == CR_PICKLE_DICT && i < v->list.count; i += 2)
        count += v->list.item[i]->kind == CR_PICKLE_TENSOR;
    return count;
}

/* True for the names that training programs give moving averages: "model_ema", "state_dict_ema", "averaged_model". */
static bool is_average(const char *key) {
    static const char *const words[] = {"ema", "swa", "avg", "average", "averaged", "averages"};
    for (size_t length; *key; key += length + (key[length] != 0)) {
        length = strcspn(key, "_.- ");
        for (size_t i = 0; i < CR_COUNT(words); i++)
            if (strlen(words[i]) == length && strncmp(key, words[i], length) == 0) return true;
    }
    return false;
}

/* Appends the entries of a dictionary with at least `least` tensors, without `used`, as the user names them:
 * "FILE:KEY". least 0: all entries, as "KEY". Returns their number. */
static int name_entries(const struct reader *r, const struct cr_pickle_value *v, int least,
                        const struct cr_pickle_value *used, struct cr_text *list) {
    enum { SHOWN = 10 };
    int  count = 0;
    char given[CR_PATH_MAX], shown[CR_PATH_MAX];
    for (uint32_t i = 0; v->kind == CR_PICKLE_DICT && i < v->list.count; i += 2) {
        const struct cr_pickle_value *key = v->list.item[i], *entry = v->list.item[i + 1];
        if (key->kind != CR_PICKLE_TEXT || count_tensors(entry) < least || entry == used || count++ >= SHOWN) continue;
        snprintf(given, sizeof given, "%s%s%.*s", least ? r->file->path : "", least ? ":" : "", NAME_SHOWN,
                 key->text.data);
        cr_json_quote(shown, sizeof shown, given);
        cr_text_add(list, "%s%s%s", list->length ? ", " : "", shown,
                    least && is_average(key->text.data) ? " (moving averages)" : "");
    }
    return count;
}

static cr_status fail_no_weights(struct reader *r, const struct cr_pickle_value *v) {
    struct cr_text list = {0};
    name_entries(r, v, 0, NULL, &list);
    const cr_status status = BAD(r, "no state dict was found in it (%s%s): %s", list.length ? "it has " : "no names",
                                 list.data && !list.failed ? list.data : "", advice);
    cr_text_free(&list);
    return status;
}

/* Chooses between the entries that have about as many tensors as the largest: those under the keys that training
 * programs use for the weights come first; other entries are chosen by the user when there are several. */
static cr_status choose_entry(struct reader *r, struct cr_pickle_value *v, const struct cr_pickle_value **out) {
    static const char *const keys[] = {"state_dict", "model_state_dict", "model", "net", "weights", "params"};
    struct cr_text           list   = {0};
    const char              *used   = NULL;
    struct cr_pickle_value  *sole   = NULL;
    char                     shown[NAME_SHOWN];
    int                      most   = count_tensors(v);
    cr_status                status = CR_OK;
    for (uint32_t i = 1; v->kind == CR_PICKLE_DICT && i < v->list.count; i += 2)
        most = CR_MAX(most, count_tensors(v->list.item[i]));
    const int least = (most + 1) / 2;
    if (!most) return fail_no_weights(r, v);
    *out = count_tensors(v) >= least ? v : NULL;
    for (size_t i = 0; i < CR_COUNT(keys) && !*out; i++)
        if (count_tensors(cr_pickle_get(v, keys[i])) >= least) *out = cr_pickle_get(v, used = keys[i]);
    const int others = name_entries(r, v, least, *out, &list);
    for (uint32_t i = 1; !*out && !sole && others == 1 && i < v->list.count; i += 2)
        if (count_tensors(v->list.item[i]) >= least) sole = v->list.item[i];
    if (sole) *out = sole;
    if (list.failed) {
        status = CR_NO_MEMORY(list.length);
    } else if (!*out) {
        status = BAD(r, "it has the weights of several networks: choose one of %s", list.data);
    } else if (others && *out != sole) {
        cr_json_quote(shown, sizeof shown, used ? used : "");
        r->file->note = cr_arena_printf(&r->file->arena, "%s%s is used; the file also has %s",
                                        used ? "the entry " : "the dictionary itself", used ? shown : "", list.data);
        if (!r->file->note) status = CR_NO_MEMORY(list.length);
    }
    cr_text_free(&list);
    return status;
}

static bool is_contiguous(const struct cr_pickle_tensor *t) {
    int64_t step = 1;
    for (int i = t->dims - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != step) return false;
        step *= t->dim[i]; /* no overflow: a tensor is not larger than its storage */
    }
    return true;
}

/* No overflow: a tensor is not larger than its storage. A tensor without elements may have other sizes of any value. */
static uint64_t count_elems(const struct cr_pickle_tensor *t) {
    uint64_t count = 1;
    for (int i = 0; i < t->dims; i++)
        if (!t->dim[i]) return 0;
    for (int i = 0; i < t->dims; i++) count *= (uint64_t)t->dim[i];
    return count;
}

static cr_status add_entry(struct reader *r, const struct cr_pickle_value *key, const struct cr_pickle_tensor *t) {
    struct cr_st_file             *file = r->file;
    struct cr_st_entry            *e    = &file->entries[file->count];
    struct cr_st_view             *view = &file->view[file->count];
    const struct cr_pickle_global *type = t->storage->type;
    char                           shown[NAME_SHOWN];
    if (key->kind != CR_PICKLE_TEXT || strlen(key->text.data) != key->text.length ||
        !cr_utf8_valid(key->text.data, key->text.length))
        return BAD(r, "the name of a tensor is no text in UTF-8");
    cr_json_quote(shown, sizeof shown, key->text.data);
    if (!type->readable)
        return BAD(r,
                   "tensor %s has a torch.%s, which cresnet does not support: save it as F32, F64, F16, BF16, I8, "
                   "U8, I32 or I64",
                   shown, type->name);
    *e = (struct cr_st_entry){.name  = cr_arena_printf(&file->arena, "%s", key->text.data),
                              .dtype = type->dtype,
                              .dims  = t->dims,
                              .bytes = count_elems(t) * type->size};
    if (!e->name) return CR_NO_MEMORY(key->text.length);
    memcpy(e->dim, t->dim, sizeof e->dim);
    memcpy(view->stride, t->stride, sizeof view->stride);
    view->strided = e->bytes && !is_contiguous(t);
    e->offset     = e->bytes ? t->storage->offset + (uint64_t)t->offset * type->size : 0;
    file->count++;
    return CR_OK;
}

static cr_status list_entries(struct reader *r, const struct cr_pickle_value *dict) {
    char        shown[NAME_SHOWN];
    const char *twice;
    CR_ALLOC(r->file->entries, dict->list.count / 2);
    CR_ALLOC(r->file->view, dict->list.count / 2);
    for (uint32_t i = 0; i < dict->list.count; i += 2) {
        const struct cr_pickle_value *value = dict->list.item[i + 1];
        if (value->kind == CR_PICKLE_TENSOR) CR_TRY(add_entry(r, dict->list.item[i], value->tensor));
    }
    CR_TRY(cr_st_sort_names(r->file, &twice));
    if (!twice) return CR_OK;
    cr_json_quote(shown, sizeof shown, twice);
    return BAD(r, "two tensors have the name %s", shown);
}

/* ---- open ---- */

static cr_status read_contents(struct reader *r, const char *key) {
    unsigned char                 head[CR_ST_HEAD_BYTES] = {0};
    struct cr_pickle_value       *object                 = NULL;
    const struct cr_pickle_value *dict                   = NULL;
    const size_t                  bytes                  = (size_t)CR_MIN(r->file_bytes, (uint64_t)CR_ST_HEAD_BYTES);
    CR_TRY(cr_fs_read_at(r->file->fd, r->file->path, head, bytes, 0));
    if (memcmp(head + 257, "ustar", 5) == 0)
        return BAD(r, "it is a tar archive, as PyTorch before 0.1.10 wrote it: load it with PyTorch and save it again");
    if (!cr_st_is_torch(head)) return BAD(r, "it is neither a zip archive nor a pickle");
    CR_TRY(head[0] == 'P' ? read_zip(r, &object) : read_stream(r, &object));
    dict = key ? cr_pickle_get(object, key) : NULL;
    if (count_tensors(dict)) return list_entries(r, dict);
    CR_TRY(choose_entry(r, object, &dict));
    CR_TRY(list_entries(r, dict));
    return key ? cr_st_keep_key(r->file, key) : CR_OK;
}

cr_status cr_torch_open(const char *path, struct cr_st_file **out) {
    struct reader r = {0};
    struct stat   s;
    cr_status     status;
    const char   *key = cr_st_key(path);
    CR_TRY(cr_st_new(path, &r.file));
    if (key) r.file->path[key - path - 1] = 0;
    path = r.file->path;
    CR_TRY_OUT(cr_fs_open_regular(path, O_RDONLY, &r.file->fd));
    if (fstat(r.file->fd, &s) < 0) CR_TRY_OUT(cr_fs_refused(path, "read", errno));
    r.file_bytes = (uint64_t)s.st_size;
    r.pickle     = (struct cr_pickle){.fd = r.file->fd, .path = r.file->path};
    CR_TRY_OUT(read_contents(&r, key));
out:
    cr_pickle_free(&r.pickle);
    if (status == CR_OK)
        *out = r.file;
    else
        cr_st_close(r.file);
    return status;
}

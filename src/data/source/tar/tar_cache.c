/* data/source/tar/tar_cache.c: lists the samples of several tar archives, in a cache. Their lists are kept in the
 * user's cache folder as tar-<hash of the paths>.list, so that headers are read once.
 *
 * After cr_list_begin, a list has for each archive its path, a struct stored, its notes, and the list of its samples as
 * tar_index.c writes it. */
#include "core/cpu.h"
#include "data/source/tar/tar.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

/* Fewer samples are listed in a moment. */
enum { SAMPLES_MIN = 1000 };
static const char kind[8] = "CRTAR 1";

struct stored {
    uint64_t             bytes, list_bytes;
    struct cr_list_stamp stamp;
    int64_t              samples;
    uint64_t             crc;
};
struct work { /* what the threads share */
    struct cr_tar_set *set;
    atomic_llong       next;
};

/* ---- stored lists ---- */

static bool take_shard(struct cr_list_reader *r, struct cr_tar_shard *shard) {
    struct stored s;
    const char   *path = cr_list_take_text(r);
    if (!path || strcmp(path, shard->path) != 0 || !cr_list_take_bytes(r, &s, sizeof s) ||
        !cr_list_take_bytes(r, shard->note, sizeof shard->note) || s.list_bytes > (size_t)(r->end - r->at))
        return false;
    shard->crc_before = (uint32_t)s.crc;
    if (s.bytes == shard->bytes && memcmp(&s.stamp, &shard->stamp, sizeof s.stamp) == 0) {
        shard->listed  = true;
        shard->crc     = shard->crc_before;
        shard->samples = s.samples;
        shard->list    = (struct cr_list_reader){r->at, r->at + s.list_bytes};
    } else {
        memset(shard->note, 0, sizeof shard->note);
    }
    r->at += s.list_bytes;
    return true;
}

static cr_status read_stored(struct cr_tar_set *set) {
    struct cr_list_reader r;
    CR_TRY(cr_list_read(set->list, kind, &set->stored, &r));
    bool valid = set->stored != NULL;
    for (int64_t i = 0; valid && i < set->count; i++) valid = take_shard(&r, &set->shard[i]);
    if (valid || !set->stored) return CR_OK;
    for (int64_t i = 0; i < set->count; i++) {
        struct cr_tar_shard *s = &set->shard[i];
        *s                     = (struct cr_tar_shard){.path = s->path, .bytes = s->bytes, .stamp = s->stamp};
    }
    cr_free(set->stored);
    set->stored = NULL;
    return CR_OK;
}

cr_status cr_tar_set_store(const struct cr_tar_set *set) {
    struct cr_text text = {0};
    if (!*set->list || !set->fresh || set->samples < SAMPLES_MIN) return CR_OK;
    cr_list_begin(&text, kind);
    for (int64_t i = 0; i < set->count; i++) {
        const struct cr_tar_shard *s    = &set->shard[i];
        const size_t               list = (size_t)(s->list.end - s->list.at);
        const struct stored        head = {s->bytes, list, s->stamp, s->samples, s->crc};
        cr_text_add_bytes(&text, s->path, strlen(s->path) + 1);
        cr_text_add_bytes(&text, &head, sizeof head);
        cr_text_add_bytes(&text, s->note, sizeof s->note);
        cr_text_add_bytes(&text, s->list.at, list);
    }
    const cr_status status = cr_list_write(set->list, &text);
    cr_text_free(&text);
    return status;
}

/* ---- reading archives ---- */

static void *index_worker(void *argument) {
    struct work *w = argument;
    for (long long i; (i = atomic_fetch_add(&w->next, 1)) < w->set->count;) {
        struct cr_tar_shard *shard = &w->set->shard[i];
        if (!shard->listed) shard->status = cr_tar_index_shard(shard, &w->set->options);
        if (shard->status == CR_OK) continue;
        cr_error_copy(shard->error, sizeof shard->error);
        cr_error_clear();
    }
    return NULL;
}

/* Lists the archives that no stored list has. */
static cr_status index_missing(struct cr_tar_set *set) {
    struct work   w       = {.set = set};
    int64_t       missing = 0, changed = 0, first = 0;
    const int64_t began = cr_time_ns();
    for (int64_t i = 0; i < set->count; i++) missing += !set->shard[i].listed;
    set->fresh = missing > 0;
    atomic_init(&w.next, 0);
    if (missing) cr_work_together(index_worker, &w, (int)CR_MIN((int64_t)cr_cpu_cores(), missing));
    for (int64_t i = 0; i < set->count; i++) {
        const struct cr_tar_shard *s = &set->shard[i];
        if (s->status != CR_OK) return CR_FAIL(s->status, "%s", s->error);
        if (set->stored && s->crc != s->crc_before && !changed++) first = i;
    }
    if (changed)
        cr_log(CR_LOG_INFO, "%s%s changed: samples are listed again", set->shard[first].path,
               changed == 1 ? " has" : " and other archives have");
    if (cr_time_ns() - began > INT64_C(2000000000))
        cr_log(CR_LOG_INFO, "%s: the samples of %lld archive%s were listed in %.1f s", set->shard[0].path,
               (long long)missing, missing == 1 ? "" : "s", (double)(cr_time_ns() - began) * 1e-9);
    return CR_OK;
}

static cr_status stat_shard(struct cr_tar_shard *shard, int64_t began_ns, bool *recent) {
    struct stat info;
    if (stat(shard->path, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", shard->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: is no file", shard->path);
    shard->bytes = (uint64_t)info.st_size;
    shard->stamp = cr_list_stamp_of(&info);
    *recent |= cr_list_stamp_is_recent(&shard->stamp, began_ns);
    return CR_OK;
}

cr_status cr_tar_set_open(struct cr_tar_set *set, char **path, int64_t count, const struct cr_config *config) {
    int64_t began_ns;
    bool    recent = false;
    *set = (struct cr_tar_set){.options = {.label_key = config->data.label_key, .several = config->data.multi_label}};
    CR_ALLOC(set->shard, (size_t)count);
    set->count = count;
    for (int64_t i = 0; i < count; i++) {
        set->shard[i].path = path[i];
        path[i]            = NULL;
    }
    const bool safe = cr_list_is_safe(set->shard[0].path, &began_ns);
    for (int64_t i = 0; i < count; i++) CR_TRY(stat_shard(&set->shard[i], safe ? began_ns : 0, &recent));
    CR_TRY(cr_tar_val_labels_read(set->shard[0].path, &set->options.val));
    const char *key = set->options.label_key; /* the list is that of these archives, read with these options */
    uint64_t hash   = cr_hash_bytes(CR_HASH_START ^ set->options.val.hash ^ set->options.several, key, strlen(key) + 1);
    for (int64_t i = 0; i < count; i++) hash = cr_hash_bytes(hash, set->shard[i].path, strlen(set->shard[i].path) + 1);
    if (safe) cr_list_path(set->list, "tar", hash);
    if (*set->list) CR_TRY(read_stored(set));
    if (recent) *set->list = 0;
    CR_TRY(index_missing(set));
    for (int64_t i = 0; i < count; i++) set->samples += set->shard[i].samples;
    return CR_OK;
}

void cr_tar_set_close(struct cr_tar_set *set) {
    for (int64_t i = 0; set->shard && i < set->count; i++) {
        cr_free(set->shard[i].path);
        cr_text_free(&set->shard[i].block);
    }
    cr_free(set->shard);
    cr_free(set->stored);
    cr_free(set->options.val.text);
    cr_free(set->options.val.map);
    cr_free(set->options.val.label);
    *set = (struct cr_tar_set){0};
}

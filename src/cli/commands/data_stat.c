/* cli/commands/data_stat.c: cresnet data stat (mean, std, duplicates), and cresnet data verify of unpacked datasets. */
#include "cli/common/command.h"
#include "core/files.h"
#include "core/utf8.h"
#include "data/statistics.h"
#include "formats/json_write.h"

#include <stdlib.h>
#include <string.h>

enum { CLASSES_SHOWN = 100, PAIRS_SHOWN = 20, SPLITS = 2 };
static const char *const split_names[SPLITS] = {"train", "val"};

struct hashed { /* an image with the hash of its pixels */
    uint64_t hash;
    int      split;
    int64_t  sample;
    int64_t  first; /* index of the first image with the same pixels */
};

/* A dataset of which every image was read; arrays are indexed by CR_SPLIT_TRAIN and CR_SPLIT_VAL. */
struct reading {
    const struct cr_config *config;
    struct cr_dataset      *dataset[SPLITS]; /* [CR_SPLIT_VAL] is NULL for a folder without validation images */
    struct cr_data_stat     stat[SPLITS];
    struct hashed          *image; /* [count]: readable images, sorted by hash */
    int64_t                 count;
    int64_t                 duplicates; /* images with the same pixels as an earlier image */
    int64_t                 across;     /* duplicates in validation of a training image */
    int64_t                 relabelled; /* duplicates with another label */
    struct cr_arena         arena;
};

/* ---- reading ---- */

static int compare_hashes(const void *a, const void *b) {
    const struct hashed *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    if (x->split != y->split) return x->split - y->split;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

static const struct cr_sample_stat *sample_of(const struct reading *r, const struct hashed *c) {
    return &r->stat[c->split].sample[c->sample];
}

static bool is_same_image(const struct reading *r, const struct hashed *a, const struct hashed *b) {
    const struct cr_sample_stat *x = sample_of(r, a), *y = sample_of(r, b);
    return x->hash == y->hash && x->width == y->width && x->height == y->height;
}

static cr_status find_duplicates(struct reading *r) {
    const int64_t all = r->stat[0].count + r->stat[1].count;
    CR_ARENA_ALLOC(&r->arena, r->image, (size_t)all);
    for (int split = 0; split < SPLITS; split++)
        for (int64_t i = 0; i < r->stat[split].count; i++)
            if (!r->stat[split].sample[i].bad)
                r->image[r->count++] = (struct hashed){r->stat[split].sample[i].hash, split, i, 0};
    if (r->count) qsort(r->image, (size_t)r->count, sizeof *r->image, compare_hashes);
    for (int64_t i = 1; i < r->count; i++) {
        const struct hashed *a = &r->image[r->image[i - 1].first], *b = &r->image[i];
        r->image[i].first = is_same_image(r, a, b) ? a->first : i;
        if (b->first == i) continue;
        r->duplicates++;
        r->across += a->split == CR_SPLIT_TRAIN && b->split == CR_SPLIT_VAL;
        r->relabelled += sample_of(r, a)->label != sample_of(r, b)->label;
    }
    return CR_OK;
}

static void close_reading(struct reading *r) {
    for (int split = 0; split < SPLITS; split++) {
        cr_data_stat_close(&r->stat[split]);
        cr_dataset_close(r->dataset[split]);
    }
    cr_arena_free(&r->arena);
    cr_config_close(r->config);
}

static cr_status open_reading(const struct cr_args *args, struct reading *r) {
    cr_status status;
    *r = (struct reading){0};
    CR_TRY(cr_cmd_data_config(args, &r->config));
    for (int split = 0; split < SPLITS; split++) {
        status = cr_dataset_open(r->config, (enum cr_split)split, &r->dataset[split]);
        if (status == CR_ERR_CONFIG && split == CR_SPLIT_VAL && cr_config_has_image_files(r->config) &&
            r->config->data.kind != CR_DATA_PACKED && r->config->data.val_fraction == 0) {
            cr_log(CR_LOG_INFO, "no validation images");
            cr_error_clear();
            break;
        }
        CR_TRY_OUT(status);
        cr_log(CR_LOG_INFO, "reading %lld images (%s)", (long long)r->dataset[split]->count, split_names[split]);
        CR_TRY_OUT(cr_data_stat_open(r->dataset[split], (int)r->config->data.workers, &r->stat[split]));
    }
    CR_TRY_OUT(find_duplicates(r));
    return CR_OK;
out:
    close_reading(r);
    return status;
}

/* ---- sizes and counts ---- */

struct spread {
    int64_t min, median, max;
};

static struct spread spread_of(int64_t *numbers, int64_t count) {
    if (!count) return (struct spread){0};
    qsort(numbers, (size_t)count, sizeof *numbers, cr_compare_i64);
    return (struct spread){numbers[0], numbers[count / 2], numbers[count - 1]};
}

struct summary {
    struct spread width, height, per_class; /* per_class: images in a class */
    int64_t      *classes;                  /* [classes]: readable images in each class */
};

/* Counts the classes of one image. */
static void count_classes(const struct cr_dataset *dataset, int64_t sample, int32_t label, int64_t *classes) {
    const int32_t *labels = cr_dataset_labels(dataset, sample);
    if (!labels) classes[label]++;
    for (int k = 0; labels && k < dataset->classes; k++) classes[k] += cr_dataset_row_has(labels, k);
}

static cr_status summarise(struct reading *r, int split, struct summary *out) {
    const struct cr_data_stat *s = &r->stat[split];
    int64_t                   *numbers, good = 0;
    CR_ARENA_ALLOC(&r->arena, numbers, (size_t)CR_MAX(s->count, s->classes) + 1);
    CR_ARENA_ALLOC(&r->arena, out->classes, (size_t)s->classes);
    for (int side = 0; side < 2; side++) {
        good = 0;
        for (int64_t i = 0; i < s->count; i++)
            if (!s->sample[i].bad) numbers[good++] = side ? s->sample[i].height : s->sample[i].width;
        *(side ? &out->height : &out->width) = spread_of(numbers, good);
    }
    for (int64_t i = 0; i < s->count; i++)
        if (!s->sample[i].bad) count_classes(r->dataset[split], i, s->sample[i].label, out->classes);
    memcpy(numbers, out->classes, (size_t)s->classes * sizeof *numbers);
    out->per_class = spread_of(numbers, s->classes);
    return CR_OK;
}

/* ---- stat ---- */

static void print_channels(const struct cr_data_stat *s, struct cr_text *out) {
    static const char *const names[] = {[1] = "grey", [3] = "red, green, blue", [4] = "red, green, blue, alpha"};
    cr_text_add(out, "       mean ");
    for (int c = 0; c < s->channels; c++) cr_text_add(out, "%s%.4f", c ? ", " : "", s->mean[c]);
    cr_text_add(out, "   std ");
    for (int c = 0; c < s->channels; c++) cr_text_add(out, "%s%.4f", c ? ", " : "", s->std[c]);
    cr_text_add(out, "   (%s in 0 to 1; all images have the same weight)\n", names[s->channels]);
}

static void print_split(const struct cr_data_stat *s, const struct summary *u, const char *name, struct cr_text *out) {
    cr_text_add(out, "%-6s %lld images, %d classes, %lld to %lld images per class (median %lld)\n", name,
                (long long)s->count, s->classes, (long long)u->per_class.min, (long long)u->per_class.max,
                (long long)u->per_class.median);
    cr_text_add(out, "       width %lld to %lld (median %lld), height %lld to %lld (median %lld)\n",
                (long long)u->width.min, (long long)u->width.max, (long long)u->width.median, (long long)u->height.min,
                (long long)u->height.max, (long long)u->height.median);
    print_channels(s, out);
    int64_t files = 0, pages = 0;
    for (int64_t i = 0; i < s->count; i++)
        if (s->sample[i].pages > 1) files++, pages += s->sample[i].pages;
    if (files)
        cr_text_add(out,
                    "       %lld TIFF file%s more than one page, %lld in all: only the first page of each is read\n",
                    (long long)files, files == 1 ? " has" : "s have", (long long)pages);
    if (s->bads) cr_text_add(out, "       %lld unreadable image%s\n", (long long)s->bads, s->bads == 1 ? "" : "s");
}

static void print_classes(const struct reading *r, const struct summary u[SPLITS], struct cr_text *out) {
    const int classes = r->dataset[1] ? CR_MIN(r->stat[0].classes, r->stat[1].classes) : r->stat[0].classes;
    int       width   = 5;
    for (int i = 0; i < classes; i++)
        width = CR_MAX(width, CR_MIN(cr_utf8_characters(r->dataset[0]->class_names[i]), 40));
    cr_text_add(out, "\n%6s  %-*s %9s %9s\n", "label", width, "class", "train", "val");
    for (int i = 0; i < CR_MIN(classes, CLASSES_SHOWN); i++) {
        const char *name = r->dataset[0]->class_names[i];
        cr_text_add(out, "%6d  %-*s %9lld %9lld\n", i, cr_utf8_field(name, width), name, (long long)u[0].classes[i],
                    r->dataset[1] ? (long long)u[1].classes[i] : 0);
    }
    if (classes > CLASSES_SHOWN) cr_text_add(out, "%6s  and %d more\n", "", classes - CLASSES_SHOWN);
}

static void sample_name(const struct reading *r, const struct hashed *c, char *buf, size_t size) {
    cr_dataset_sample_name(r->dataset[c->split], c->sample, buf, size);
}

static void print_duplicates(const struct reading *r, struct cr_text *out) {
    int64_t shown = 0;
    if (!r->duplicates) {
        cr_text_add(out, "no duplicates\n");
        return;
    }
    cr_text_add(
        out,
        "%lld duplicate images (identical pixels): %lld validation images are also in training, %lld have another "
        "label\n",
        (long long)r->duplicates, (long long)r->across, (long long)r->relabelled);
    for (int64_t i = 1; i < r->count; i++) {
        const struct hashed *a = &r->image[r->image[i].first], *b = &r->image[i];
        char                 one[CR_PATH_MAX], other[CR_PATH_MAX];
        if (a == b) continue;
        if (shown++ == PAIRS_SHOWN) break;
        sample_name(r, a, one, sizeof one);
        sample_name(r, b, other, sizeof other);
        cr_text_add(out, "  %s (%s) = %s (%s)%s\n", one, split_names[a->split], other, split_names[b->split],
                    sample_of(r, a)->label != sample_of(r, b)->label ? ", other label" : "");
    }
    if (shown > PAIRS_SHOWN) cr_text_add(out, "  ...\n");
}

static void print_bad(const struct reading *r, struct cr_text *out) {
    for (int split = 0; split < SPLITS; split++)
        for (int64_t i = 0; i < r->stat[split].bads; i++)
            cr_text_add(out, "unreadable: %s\n", r->stat[split].bad[i].why);
}

static void json_spread(struct cr_json_writer *w, const char *name, struct spread s) {
    cr_json_open_object(w, name);
    cr_json_put_int(w, "min", s.min);
    cr_json_put_int(w, "median", s.median);
    cr_json_put_int(w, "max", s.max);
    cr_json_close_object(w);
}

static void json_channels(struct cr_json_writer *w, const char *name, const double *v, int channels) {
    cr_json_open_array(w, name);
    for (int c = 0; c < channels; c++) cr_json_put_fixed(w, NULL, v[c], 6);
    cr_json_close_array(w);
}

static void json_bad(const struct reading *r, int split, struct cr_json_writer *w) {
    const struct cr_data_stat *s = &r->stat[split];
    cr_json_open_array(w, "unreadable");
    for (int64_t i = 0; i < s->bads; i++) {
        char name[CR_PATH_MAX];
        cr_dataset_sample_name(r->dataset[split], s->bad[i].sample, name, sizeof name);
        cr_json_open_object(w, NULL);
        cr_json_put_string(w, "image", name);
        cr_json_put_string(w, "error", s->bad[i].why);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
}

static void json_duplicates(const struct reading *r, struct cr_json_writer *w) {
    cr_json_put_int(w, "duplicates", r->duplicates);
    cr_json_put_int(w, "duplicates_across_splits", r->across);
    cr_json_put_int(w, "duplicates_with_other_label", r->relabelled);
}

static void json_split(const struct reading *r, int split, const struct summary *u, struct cr_json_writer *w) {
    const struct cr_data_stat *s = &r->stat[split];
    cr_json_open_object(w, split_names[split]);
    int64_t pages = 0;
    for (int64_t i = 0; i < s->count; i++) pages += s->sample[i].pages;
    cr_json_put_int(w, "images", s->count);
    cr_json_put_int(w, "pages", pages);
    cr_json_open_array(w, "classes");
    for (int i = 0; i < s->classes; i++) {
        cr_json_open_object(w, NULL);
        cr_json_put_string(w, "class", r->dataset[split]->class_names[i]);
        cr_json_put_int(w, "images", u->classes[i]);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
    json_spread(w, "width", u->width);
    json_spread(w, "height", u->height);
    json_channels(w, "mean", s->mean, s->channels);
    json_channels(w, "std", s->std, s->channels);
    json_bad(r, split, w);
    cr_json_close_object(w);
}

static void json_stat(const struct reading *r, const struct summary u[SPLITS], struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "kind", cr_word_data_kind(r->config->data.kind));
    cr_json_put_string(&w, "root", r->config->data.root);
    for (int split = 0; split < SPLITS && r->dataset[split]; split++) json_split(r, split, &u[split], &w);
    json_duplicates(r, &w);
    cr_json_close_line(&w);
}

static void text_stat(const struct reading *r, const struct summary u[SPLITS], struct cr_text *out) {
    cr_text_add(out, "%s%s%s\n", cr_word_data_kind(r->config->data.kind), *r->config->data.root ? " in " : "",
                r->config->data.root);
    for (int split = 0; split < SPLITS && r->dataset[split]; split++)
        print_split(&r->stat[split], &u[split], split_names[split], out);
    print_classes(r, u, out);
    cr_text_add(out, "\n");
    print_duplicates(r, out);
    print_bad(r, out);
}

cr_status cr_data_stat(const struct cr_args *args, struct cr_text *out) {
    struct reading r         = {0};
    struct summary u[SPLITS] = {0};
    cr_status      status;
    if (!args->operands) return cr_args_fail(args, "no dataset given: cresnet data stat CONFIG|DIR");
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(open_reading(args, &r));
    for (int split = 0; split < SPLITS; split++) CR_TRY_OUT(summarise(&r, split, &u[split]));
    (cr_args_has(args, CR_OPT_JSON) ? json_stat : text_stat)(&r, u, out);
out:
    close_reading(&r);
    return status;
}

/* ---- verify ---- */

static void json_verified(const struct reading *r, const char *name, bool good, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "data", name);
    cr_json_put_bool(&w, "ok", good);
    for (int split = 0; split < SPLITS; split++) {
        cr_json_open_object(&w, split_names[split]);
        cr_json_put_int(&w, "images", r->stat[split].count);
        json_bad(r, split, &w);
        cr_json_close_object(&w);
    }
    json_duplicates(r, &w);
    cr_json_close_line(&w);
}

cr_status cr_data_verify_set(const struct cr_args *args, bool json, struct cr_text *out, bool *good) {
    struct reading r;
    CR_TRY(open_reading(args, &r));
    *good = !r.stat[0].bads && !r.stat[1].bads;
    if (json)
        json_verified(&r, args->operand[0], *good, out);
    else {
        print_bad(&r, out);
        cr_text_add(out, "%s: %lld images read, %lld of them unreadable\n", args->operand[0],
                    (long long)(r.stat[0].count + r.stat[1].count), (long long)(r.stat[0].bads + r.stat[1].bads));
        print_duplicates(&r, out);
    }
    close_reading(&r);
    return CR_OK;
}

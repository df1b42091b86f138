/* data/class_weights.c: class weights of the loss ([loss] class_weights): `balanced`, a list of numbers, a CSV file. */
#include "data/data.h"
#include "formats/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char key[] = "loss.class_weights";

/* images / (classes * images of the class), as in scikit-learn: the mean over all images is 1. Classes without images
 * do not count. With data.multi_label they are weights of the images that have the label. */
static cr_status balance(const struct cr_config *c, const struct cr_dataset *data, int classes, float *weights) {
    const int64_t *counts = data->class_counts;
    int64_t        images = 0, present = 0;
    if (!counts) return cr_config_fail(c, key, "%s has no classes to balance", cr_word_data_kind(c->data.kind));
    for (int k = 0; k < classes; k++) images += counts[k], present += counts[k] > 0;
    const bool several = c->data.multi_label; /* without the label over with it, as PyTorch's pos_weight */
    for (int k = 0; k < classes && several; k++)
        if (counts[k]) weights[k] = (float)((double)(data->count - counts[k]) / (double)counts[k]);
    for (int k = 0; k < classes && !several; k++)
        if (counts[k]) weights[k] = (float)((double)images / ((double)present * (double)counts[k]));
    return CR_OK;
}

/* Parses a weight; returns the text after it, or NULL. */
static const char *parse_weight(const char *text, float *out) {
    char        *end;
    const double value = strtod(text, &end);
    if (end == text || !(value >= 0 && value <= 1e9)) return NULL;
    *out = (float)value;
    return end + strspn(end, " \t\r");
}

static bool is_number_list(const char *text) {
    return text[strspn(text, "0123456789.,+-eE \t")] == 0;
}

static cr_status parse_list(const struct cr_config *c, const char *text, const struct cr_dataset *data, int classes,
                            float *weights) {
    int count = 0;
    for (const char *at = text; at;) {
        float value;
        at = parse_weight(at, &value);
        if (!at || (*at && *at != ','))
            return cr_config_fail(c, key, "number %d of the list is no weight: from 0 to 1e9, e.g. 1,2.5,1", count + 1);
        if (count < classes) weights[cr_dataset_renumbered(data, count)] = value;
        count++;
        at = *at ? at + 1 : NULL;
    }
    if (count == classes) return CR_OK;
    return cr_config_fail(c, key, "%d weights for %d classes: one for each class, in the order of `cresnet data stat`",
                          count, classes);
}

/* ---- CSV: class,weight ---- */

/* Splits a line "class,weight" at its last comma, so that a name may have commas without quotes around it. */
static bool split_line(char *line, const char **name, const char **weight) {
    char *comma = strrchr(line, ','), *rest = comma + 1;
    if (!comma || cr_csv_field(&rest, weight) < 0 || *rest) return false;
    *comma = 0;
    line += strspn(line, " \t");
    if (*line == '"') return cr_csv_field(&line, name) == 0;
    for (char *end = comma; end > line && (end[-1] == ' ' || end[-1] == '\t');) *--end = 0;
    *name = line;
    return true;
}

/* Messages do not repeat the text, because the configuration of a foreign run may name any file. */
static cr_status parse_line(const char *path, int number, char *line, const struct cr_dataset *data, float *weights) {
    const char *name, *text, *end;
    float       value  = 0;
    const bool  fields = split_line(line, &name, &text);
    if (fields && number == 1 && strcasecmp(name, "class") == 0 && strcasecmp(text, "weight") == 0) return CR_OK;
    end = fields ? parse_weight(text, &value) : NULL;
    if (!end || *end)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the line must be class,weight with a weight from 0 to 1e9", path, number);
    const int k = cr_dataset_class_of(data, name);
    if (k < 0) return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the dataset has no class with this name", path, number);
    if (!isnan(weights[k])) return CR_FAIL(CR_ERR_FORMAT, "%s:%d: this class has a weight already", path, number);
    weights[k] = value;
    return CR_OK;
}

static cr_status read_file(const struct cr_config *c, const struct cr_dataset *data, int classes, float *weights) {
    const char *path = c->loss.class_weights;
    char       *text;
    size_t      length;
    cr_status   status = cr_csv_read(path, &text, &length);
    if (status != CR_OK)
        return cr_config_fail(c, key, "is neither balanced, nor a list of numbers, nor a file that can be read: %s",
                              cr_error_message());
    for (int k = 0; k < classes; k++) weights[k] = NAN;
    int number = 1;
    for (char *at = text; at; number++) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        if (end && end > at && end[-1] == '\r') end[-1] = 0;
        if (at[strspn(at, " \t\r")]) CR_TRY_OUT(parse_line(path, number, at, data, weights));
        at = end ? end + 1 : NULL;
    }
    for (int k = 0; k < classes; k++)
        if (isnan(weights[k])) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: class %s has no weight", path, data->class_names[k]);
out:
    cr_free(text);
    return status;
}

/* At least one class must count. */
static cr_status check_sum(const struct cr_config *c, const float *weights, int classes) {
    for (int k = 0; k < classes; k++)
        if (weights[k] > 0) return CR_OK;
    return cr_config_fail(c, key, "all weights are 0");
}

cr_status cr_dataset_class_weights(const struct cr_config *c, const struct cr_dataset *data, int classes, float **out) {
    const char *text = c->loss.class_weights;
    float      *weights;
    cr_status   status = CR_OK;
    *out               = NULL;
    if (!*text) return CR_OK;
    CR_ALLOC(weights, (size_t)classes);
    for (int k = 0; k < classes; k++) weights[k] = 1;
    if (data)
        status = strcmp(text, "balanced") == 0 ? balance(c, data, classes, weights)
                 : is_number_list(text)        ? parse_list(c, text, data, classes, weights)
                                               : read_file(c, data, classes, weights);
    if (status == CR_OK) status = check_sum(c, weights, classes);
    if (status == CR_OK)
        *out = weights;
    else
        cr_free(weights);
    return status;
}

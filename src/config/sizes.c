/* config/sizes.c: the sizes of [data] image_sizes, which training goes through. See config/config.h. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_PIXELS = 4096, EPOCH_MAX = 1000000 };

/* Reads a whole number from 0 to `most` at *at, and moves *at behind it. */
static bool read_number(const char **at, long most, long *out) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *out = strtol(*at, &end, 10);
    *at  = end;
    return *out <= most;
}

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " \t");
}

bool cr_config_sizes(const struct cr_config *config, struct cr_size_schedule *out) {
    const char *at = skip_blanks(config->data.image_sizes);
    *out           = (struct cr_size_schedule){0};
    while (*at) {
        long size, epoch;
        if (out->count == CR_SIZES_MAX || !read_number(&at, SIZE_MAX_PIXELS, &size) || *at++ != '@') return false;
        if (!read_number(&at, EPOCH_MAX, &epoch) || size < 1) return false;
        if (out->count ? epoch <= out->epoch[out->count - 1] : epoch != 0) return false;
        out->size[out->count]    = (int)size;
        out->epoch[out->count++] = epoch;
        at                       = skip_blanks(at);
        if (*at && *at != ',') return false;
        if (*at && !*(at = skip_blanks(at + 1))) return false; /* a comma at the end */
    }
    return true;
}

int cr_size_index(const struct cr_size_schedule *sizes, int64_t epoch) {
    int k = 0;
    while (k + 1 < sizes->count && sizes->epoch[k + 1] <= epoch) k++;
    return k;
}

int cr_size_largest(const struct cr_size_schedule *sizes) {
    int largest = 0;
    for (int k = 1; k < sizes->count; k++)
        if (sizes->size[k] > sizes->size[largest]) largest = k;
    return largest;
}

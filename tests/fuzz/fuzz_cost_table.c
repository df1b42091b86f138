/* tests/fuzz/fuzz_cost_table.c: reads any bytes as a checkpoint's table of kernel times: it is refused with a
 * message, or accepted. The first line names the device and the last line is a checksum, which mutations cannot
 * match: the same bytes are read again between a correct first and last line. */
#include "autotune/cost_table.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static struct cr_device *device;

static void open_device(void) {
    struct cr_device_options options = {.threads = 1};
    for (const struct cr_backend *const *b = cr_backends(); *b && !device; b++)
        if (strcmp((*b)->name, "cpu") == 0) CR_ASSERT((*b)->open(&options, &device) == CR_OK);
    CR_ASSERT(device);
}

static void try_text(const char *text, size_t length) {
    struct cr_cost_table *costs;
    char                 *again = NULL;
    CR_ASSERT(cr_cost_table_open(device, "", &costs) == CR_OK);
    cr_error_clear();
    cr_status status = cr_cost_table_load_fixed(costs, text, length, "fuzz.txt");
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT || status == CR_ERR_DEVICE);
    if (status != CR_OK) CR_ASSERT(strstr(cr_error_message(), "fuzz.txt"));
    CR_ASSERT(cr_cost_table_text(costs, &again) == CR_OK);
    cr_free(again);
    cr_cost_table_close(costs);
}

/* The first line of this device's tables. */
static void add_first_line(struct cr_text *out) {
    struct cr_cost_table *costs;
    char                 *text;
    CR_ASSERT(cr_cost_table_open(device, "", &costs) == CR_OK && cr_cost_table_text(costs, &text) == CR_OK);
    cr_text_add(out, "%.*s\n", (int)strcspn(text, "\n"), text);
    cr_free(text);
    cr_cost_table_close(costs);
}

static uint64_t sum_of(const char *text) { /* FNV-1a, as in autotune/cost_table.c */
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cr_text text = {0};
    if (!device) open_device();
    int64_t live = cr_alloc_live();
    cr_text_add_bytes(&text, data, size);
    cr_text_add(&text, "%s", "");
    try_text(text.data ? text.data : "", size);
    cr_text_free(&text);
    add_first_line(&text);
    cr_text_add_bytes(&text, data, size);
    cr_text_add(&text, "sum\t%016llx\n", (unsigned long long)sum_of(text.data));
    CR_ASSERT(!text.failed);
    try_text(text.data, text.length);
    cr_text_free(&text);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

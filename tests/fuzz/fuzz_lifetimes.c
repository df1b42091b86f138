/* Any bytes as a file of lives: refused with a message that names the file, or read; then what is printed reads back
 * the same, and a plan of a few lives passes the check. */
#include "inspect/lifetimes_csv.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PLANNED_MAX = 64 };

static void plan(struct cr_lifetimes *lives) {
    const struct cr_plan_effort effort = {.alignment = 1, .visits = 1 << 16, .limit_ns = INT64_MAX};
    struct cr_plan_found        found;
    CR_ASSERT(cr_plan_search(lives->interval, lives->count, &effort, &found) == CR_OK);
    CR_ASSERT(found.bound <= found.peak && found.peak <= found.greedy);
    CR_ASSERT(cr_lifetimes_check(lives, found.peak) == CR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cr_lifetimes lives, again;
    struct cr_text      text = {0};
    int64_t             live = cr_alloc_live();
    cr_error_clear();
    cr_status status = cr_lifetimes_parse("fuzz.csv", (const char *)data, size, &lives);
    if (status != CR_OK) {
        CR_ASSERT(status == CR_ERR_FORMAT && strstr(cr_error_message(), "fuzz.csv"));
        CR_ASSERT(cr_alloc_live() == live);
        return 0;
    }
    if (lives.count <= PLANNED_MAX) plan(&lives);
    cr_lifetimes_print(&lives, &text);
    CR_ASSERT(!text.failed && cr_lifetimes_parse("fuzz.csv", text.data, text.length, &again) == CR_OK);
    CR_ASSERT(again.count == lives.count);
    for (int i = 0; i < lives.count; i++) {
        CR_ASSERT(strcmp(again.id[i], lives.id[i]) == 0 && again.interval[i].size == lives.interval[i].size);
        CR_ASSERT(again.interval[i].lower == lives.interval[i].lower &&
                  again.interval[i].upper == lives.interval[i].upper);
    }
    cr_lifetimes_free(&lives);
    cr_lifetimes_free(&again);
    cr_text_free(&text);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

/* tests/fuzz/fuzz_lifetimes.c: reads any bytes as a file of lifetimes. The file is refused with a message that names
 * it, or read; then its printed form reads back the same, and a plan of a few lifetimes passes the check. */
#include "tests/fuzz/fuzz.h"
#include "tools/memory-trace/lifetimes_csv.h"
#include "tools/memory-trace/search.h"

#include <string.h>

enum { PLANNED_MAX = 64 };

static void plan(struct cr_lifetimes *lifetimes) {
    const struct cr_plan_effort effort = {.alignment = 1, .visits = 1 << 16, .limit_ns = INT64_MAX};
    struct cr_plan_found        found;
    CR_ASSERT(cr_plan_search(lifetimes->interval, lifetimes->count, &effort, &found) == CR_OK);
    CR_ASSERT(found.bound <= found.peak && found.peak <= found.greedy);
    CR_ASSERT(cr_lifetimes_check(lifetimes, found.peak) == CR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cr_lifetimes lifetimes, again;
    struct cr_text      text = {0};
    int64_t             live = cr_alloc_live();
    cr_error_clear();
    cr_status status = cr_lifetimes_parse("fuzz.csv", (const char *)data, size, &lifetimes);
    if (status != CR_OK) {
        CR_ASSERT(status == CR_ERR_FORMAT && strstr(cr_error_message(), "fuzz.csv"));
        CR_ASSERT(cr_alloc_live() == live);
        return 0;
    }
    if (lifetimes.count <= PLANNED_MAX) plan(&lifetimes);
    cr_lifetimes_print(&lifetimes, &text);
    CR_ASSERT(!text.failed && cr_lifetimes_parse("fuzz.csv", text.data, text.length, &again) == CR_OK);
    CR_ASSERT(again.count == lifetimes.count);
    for (int i = 0; i < lifetimes.count; i++) {
        CR_ASSERT(strcmp(again.id[i], lifetimes.id[i]) == 0 && again.interval[i].size == lifetimes.interval[i].size);
        CR_ASSERT(again.interval[i].lower == lifetimes.interval[i].lower &&
                  again.interval[i].upper == lifetimes.interval[i].upper);
    }
    cr_lifetimes_free(&lifetimes);
    cr_lifetimes_free(&again);
    cr_text_free(&text);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

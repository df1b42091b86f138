/* tests/fuzz/fuzz_ini.c: reads any bytes as a configuration. It is refused with a message, or it is accepted and its
 * dump reads back to the same values. Our scanner and iniparser must not read an accepted file in different ways,
 * and no memory may leak. */
#include "config/config.h"
#include "tests/fuzz/memory_file.h"

#include <string.h>
#include <strings.h>

static cr_status open_bytes(const struct cr_config **config, const void *data, size_t size) {
    char      path[64];
    int       fd     = memory_file(data, size, path);
    cr_status status = cr_config_open(config, path, NULL, 0);
    close(fd);
    return status;
}

static bool holds(const uint8_t *data, size_t size, const char *word) {
    const size_t length = strlen(word);
    for (size_t i = 0; i + length <= size; i++)
        if (strncasecmp((const char *)data + i, word, length) == 0) return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct cr_config      *config, *again;
    struct cr_text               dump = {0}, second = {0};
    struct cr_config_differences differ;
    int64_t                      live = cr_alloc_live();
    /* an include would read any file, e.g. standard input */
    if (holds(data, size, "include")) return 0;
    cr_error_clear();
    cr_status status = open_bytes(&config, data, size);
    if (status != CR_OK) {
        CR_ASSERT(status == CR_ERR_CONFIG && *cr_error_message());
        /* unless the message quotes the input */
        CR_ASSERT(!strstr(cr_error_message(), "iniparser reads") || holds(data, size, "iniparser reads"));
        CR_ASSERT(cr_alloc_live() == live);
        return 0;
    }
    cr_config_dump(config, &dump);
    CR_ASSERT(!dump.failed);
    CR_ASSERT(open_bytes(&again, dump.data, dump.length) == CR_OK);
    CR_ASSERT(cr_config_compare(config, again, &differ) == CR_OK && differ.count == 0);
    cr_config_dump(again, &second);
    CR_ASSERT(second.length == dump.length && memcmp(second.data, dump.data, dump.length) == 0);
    cr_config_close(config);
    cr_config_close(again);
    cr_text_free(&dump);
    cr_text_free(&second);
    cr_config_differences_free(&differ);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

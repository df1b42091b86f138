/* tests/fuzz/fuzz_budget.c: reads any bytes as a table of sparsities by layer. The table is refused with a message
 * that names the file or the key, or every layer has a sparsity from 0 to 1. */
#include "config/config.h"
#include "pruning/pruning.h"
#include "tests/fuzz/memory_file.h"

#include <string.h>

static void add_parameters(struct cr_param_store *store) {
    cr_param_store_add(store, "conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 3}, CR_NONE);
    cr_param_store_add(store, "layer1.0.conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 8}, CR_NONE);
    cr_param_store_add(store, "fc.weight", CR_ROLE_DENSE_WEIGHT, (const int64_t[4]){10, 1, 1, 8}, CR_NONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char                    path[64], key[100];
    int                     fd    = memory_file(data, size, path);
    int64_t                 live  = cr_alloc_live();
    struct cr_param_store   store = {.real = CR_F32, .has_momentum = true, .has_mask = true};
    const struct cr_config *config;
    struct cr_prune         prune;
    snprintf(key, sizeof key, "prune.budget=%s", path);
    const char *const overrides[] = {key, "prune.sparsity=0.9"};
    CR_ASSERT(cr_config_open(&config, NULL, overrides, (int)CR_COUNT(overrides)) == CR_OK);
    add_parameters(&store);
    cr_error_clear();
    cr_status status = cr_prune_open(&store, config, &prune);
    if (status == CR_OK) {
        for (int l = 0; l < prune.layers; l++) CR_ASSERT(prune.layer[l].sparsity >= 0 && prune.layer[l].sparsity <= 1);
        cr_prune_close(&prune);
    } else {
        CR_ASSERT(status == CR_ERR_FORMAT || status == CR_ERR_CONFIG);
        CR_ASSERT(strstr(cr_error_message(), path) || strstr(cr_error_message(), "[prune]"));
    }
    cr_param_store_free(&store);
    cr_config_close(config);
    CR_ASSERT(cr_alloc_live() == live);
    close(fd);
    return 0;
}

/* cli/commands/prune_request.c: patterns and targets of `cresnet prune` on the command line. See
 * cli/commands/prune.h. */
#include "cli/commands/prune.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

/* ---- targets ---- */

cr_status cr_prune_targets(const struct cr_args *args, struct cr_budget_request *r) {
    const double above_1 = 1 + DBL_EPSILON;
    double       ms      = 0;
    CR_TRY(cr_args_real(args, CR_OPT_TARGET_MS, DBL_TRUE_MIN, 1e9, "milliseconds above 0, e.g. 2.5", &ms));
    CR_TRY(cr_args_real(args, CR_OPT_SPEEDUP, above_1, 1e6, "how many times as fast, above 1, e.g. 2", &r->speedup));
    CR_TRY(cr_args_real(args, CR_OPT_PRUNE_FLOPS, above_1, 1e6,
                        "the factor by which multiply-adds shrink, above 1, e.g. 2", &r->flops));
    r->target_s = 1e-3 * ms;
    if ((r->target_s > 0) + (r->speedup > 0) + (r->flops > 0) > 1)
        return cr_args_fail(args,
                            "give one of --target-ms, --speedup and --flops. For fewer multiply-adds and less time "
                            "prune twice: with --pattern channels --flops X, then the result with --speedup X or "
                            "--target-ms MS");
    return CR_OK;
}

bool cr_prune_by_time(const struct cr_budget_request *r) {
    return r->target_s > 0 || r->speedup > 0;
}

/* ---- patterns ---- */

static cr_status add_pattern(const struct cr_args *args, const char *text, size_t length, struct cr_budget_request *r) {
    const char *words = cr_option_words(CR_CMD_COMPRESS, CR_OPT_PATTERN); /* compress always has a target */
    switch (cr_word_index(words, text, length)) {
    case 0: r->channels = r->two_four = r->block = r->unstructured = r->automatic = true; return CR_OK;
    case 1: r->channels = true; return CR_OK;
    case 2: r->two_four = true; return CR_OK;
    case 3: r->block = true; return CR_OK;
    case 4: r->unstructured = true; return CR_OK;
    default: break;
    }
    char allowed[128];
    cr_words_list(words, allowed, sizeof allowed);
    return cr_args_fail(args, "--pattern: \"%.*s\" is no pattern for a target: choose from %s", (int)CR_MIN(length, 40),
                        text, allowed);
}

const char *cr_prune_pattern_key(const struct cr_args *args, char *buffer, size_t size) {
    const char *text = args->value[CR_OPT_PATTERN];
    if (!text || strchr(text, ',') || strcmp(text, "auto") == 0) return NULL;
    snprintf(buffer, size, "prune.pattern=%.40s", text);
    return buffer;
}

cr_status cr_prune_patterns(const struct cr_args *args, const struct cr_config *config, struct cr_budget_request *r) {
    const bool  guided = cr_prune_by_time(r) || r->flops > 0;
    const char *text   = args->value[CR_OPT_PATTERN];
    int         count  = 0;
    if (!text && cr_config_given(config, "prune.pattern")) text = cr_word_prune_pattern(config->prune.pattern);
    if (!text && cr_prune_by_time(r)) text = "auto";
    if (!text) return CR_OK;
    if (!guided && !strchr(text, ',') && strcmp(text, "auto") != 0) {
        r->channels = config->prune.pattern == CR_PRUNE_PATTERN_CHANNELS;
        return CR_OK;
    }
    for (const char *at = text; *at; count++) {
        const size_t length = strcspn(at, ",");
        CR_TRY(add_pattern(args, at, length, r));
        at += length;
        if (*at == ',' && !*++at) return cr_args_fail(args, "--pattern %s: ends with a comma", text);
    }
    if (!count) return cr_args_fail(args, "--pattern: is empty");
    r->several = r->automatic || r->channels + r->two_four + r->block + r->unstructured > 1;
    return CR_OK;
}

/* tests/harness/locale_support.h: a locale whose decimal separator is a comma. */
#ifndef LOCALE_SUPPORT_H
#define LOCALE_SUPPORT_H

#include "tests/harness/test.h"

#include <locale.h>

/* Sets such a locale for the process: an installed one, or one that localedef compiles into the existing folder
 * `compiled`. False, and the C locale, when neither is possible. */
static inline bool set_comma_locale(const char *compiled) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "pt_BR.UTF-8"};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < CR_COUNT(names); i++)
            if (setlocale(LC_ALL, names[i]) && strcmp(localeconv()->decimal_point, ",") == 0) return true;
        (void)setlocale(LC_ALL, "C");
        const char *const command = formatted("localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", compiled);
        if (round || system(command) != 0 || setenv("LOCPATH", compiled, 1) != 0) break;
    }
    return false;
}

#endif

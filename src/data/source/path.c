/* data/source/path.c: formats (joins) the paths of dataset files. */
#include "data/source.h"

#include <stdio.h>

cr_status cr_path_format(char buf[PATH_MAX], const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(buf, PATH_MAX, fmt, args);
    va_end(args);
    if (length < 0 || length >= PATH_MAX) return CR_FAIL(CR_ERR_IO, "%.60s...: the path is too long", buf);
    return CR_OK;
}

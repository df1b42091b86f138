/* cli/svg/svg.c: helpers of all SVG drawings: escaped text, steps of an axis. See cli/svg/svg.h. */
#include "cli/svg/svg.h"

#include "formats/json.h"

#include <math.h>
#include <string.h>

void cr_page_escape(struct cr_text *out, const char *s) {
    for (; *s; s++) {
        const unsigned char c     = (unsigned char)*s;
        size_t              bytes = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        if (bytes > 1 && (strnlen(s, bytes) < bytes || !cr_utf8_valid(s, bytes)))
            cr_text_add(out, "\xef\xbf\xbd");
        else if (c == '&')
            cr_text_add(out, "&amp;");
        else if (c == '<')
            cr_text_add(out, "&lt;");
        else if (c == '>')
            cr_text_add(out, "&gt;");
        else if (c == '"')
            cr_text_add(out, "&quot;");
        else if (c == '\'')
            cr_text_add(out, "&#39;");
        else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            cr_text_add(out, "\xef\xbf\xbd");
        else {
            cr_text_add_bytes(out, s, bytes);
            s += bytes - 1;
        }
    }
}

double cr_chart_step(double range, int ticks) {
    double power = pow(10, floor(log10(range / ticks)));
    for (int k = 0; k < 3; k++) {
        static const double factors[] = {1, 2, 5};
        if (range / (power * factors[k]) <= ticks) return power * factors[k];
    }
    return power * 10;
}

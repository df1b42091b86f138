/* cli/report/page.c: HTML of the report: frame, style sheet, paragraphs, images, bars. */
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>

void cr_page_fact(struct cr_text *out, const char *name, const char *fmt, ...) {
    char    text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    cr_text_add(out, "<div><dt>%s</dt><dd>", name);
    cr_page_escape(out, text);
    cr_text_add(out, "</dd></div>\n");
}

void cr_page_begin(struct cr_text *out, const char *title) {
    cr_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                     "'unsafe-inline'; img-src data:\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta "
                     "name=\"generator\" content=\"cresnet " CR_VERSION "\">\n"
                     "<link rel=\"icon\" href=\"data:,\">\n<title>");
    cr_page_escape(out, title);
    cr_text_add(out, "</title>\n<style>\n");
    cr_text_add(out, "%s", cr_page_style);
    cr_text_add(out, "</style>\n</head>\n<body>\n<main>\n");
}

void cr_page_end(struct cr_text *out) {
    cr_text_add(out, "</main>\n</body>\n</html>\n");
}

void cr_page_section(struct cr_text *out, const char *id, const char *heading) {
    cr_text_add(out, "<section id=\"%s\">\n<h2>%s</h2>\n", id, heading);
}

void cr_page_closed_section(struct cr_text *out, const char *id, const char *heading, const char *what) {
    cr_text_add(out, "<section id=\"%s\">\n<details><summary><h2>%s</h2> <span class=\"unit\">%s</span></summary>\n",
                id, heading, what);
}

void cr_page_note(struct cr_text *out, const char *fmt, ...) {
    char    text[1500];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    cr_text_add(out, "<p class=\"note\">");
    cr_page_escape(out, text);
    cr_text_add(out, "</p>\n");
}

void cr_page_number(struct cr_text *out, const char *format, double value) {
    char text[64] = "-";
    if (!isnan(value)) snprintf(text, sizeof text, format, value);
    cr_text_add(out, "<td>%s</td>", text);
}

void cr_page_cell(struct cr_text *out, const char *text) {
    cr_text_add(out, "<td class=\"l\">");
    cr_page_escape(out, text);
    cr_text_add(out, "</td>");
}

void cr_page_bars(struct cr_text *out, const char *label, const struct cr_bar *bars, int count) {
    cr_text_add(out, "<div class=\"bars\" role=\"group\" aria-label=\"%s\">\n", label);
    for (int i = 0; i < count; i++) {
        cr_text_add(out, "<span class=\"n\">");
        cr_page_escape(out, bars[i].name);
        cr_text_add(out, "</span><span class=\"b\" title=\"");
        cr_page_escape(out, bars[i].title ? bars[i].title : bars[i].text);
        cr_text_add(out, "\"><i style=\"width:%.2f%%\"></i></span><span class=\"v\">",
                    100 * CR_MAX(0, CR_MIN(bars[i].fraction, 1)));
        cr_page_escape(out, bars[i].text);
        cr_text_add(out, "</span>\n");
    }
    cr_text_add(out, "</div>\n");
}

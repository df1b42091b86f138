/* cli/report/page.c: HTML of the report: frame, style sheet, paragraphs, images, bars. */
#include "cli/report/report.h"
#include "formats/json.h"

#include <png.h>
#include <stdio.h>
#include <string.h>

/* The colours are Okabe and Ito's palette for colour-blind readers, darker on white and lighter on black for a contrast
 * of at least 3 to 1. Lines also differ in their dash patterns. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--soft:#5a636e;--card:#f5f6f8;--rule:#d5d9df;--grid:#e6e8ec;"
    "--s1:#0067a8;--s2:#b84600;--s3:#00795a;--s4:#8a4a8f;--hit:#0067a81c;--heat:#0067a8;--heattext:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8eaed;--soft:#a3abb5;--card:#1e2226;--rule:#3a4047;--"
    "grid:#2b3036;"
    "--s1:#63b8f0;--s2:#f0a23a;--s3:#3fcf9f;--s4:#d79adb;--hit:#63b8f026;--heat:#63b8f0;--heattext:#0b0d0f}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 "
    "system-ui,-apple-system,\"Segoe UI\",sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:24px 20px 60px}h1{font-size:26px;line-height:1.25;margin:0 0 "
    "2px;overflow-wrap:anywhere}"
    "h2{font-size:19px;margin:38px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--rule)}p{margin:6px 0 12px}\n"
    ".sub,.note,.unit,figcaption small{color:var(--soft)}.unit{font-weight:400;font-size:13px}\n"
    "nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}a{color:var(--s1)}\n"
    ".facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:18px 0 0}"
    ".facts div{background:var(--card);border-radius:8px;padding:10px 12px}.facts dt{color:var(--soft);font-size:13px}"
    ".facts dd{margin:0;font-size:18px;font-weight:600;overflow-wrap:anywhere}dl{margin:0}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:18px "
    "26px}figure{margin:0;min-width:0}"
    "figcaption{font-weight:600}svg{display:block;width:100%;height:auto}svg "
    "text{fill:var(--soft);font-size:12px;font-family:inherit}\n"
    ".grid{stroke:var(--grid)}.axis{stroke:var(--soft);fill:none}.line{fill:none;stroke-width:1.8;stroke-linejoin:"
    "round}"
    ".line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2);stroke-dasharray:7 "
    "3}.line.s3{stroke:var(--s3);stroke-dasharray:2 3}"
    ".line.s4{stroke:var(--s4);stroke-dasharray:9 3 2 "
    "3}.dot.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}.dot.s3{fill:var(--s3)}.dot.s4{fill:var(--s4)}"
    ".hit{fill:transparent}.hit:hover{fill:var(--hit)}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 18px;margin:2px 0 0;font-size:13px}.legend "
    "span{display:inline-flex;align-items:center;gap:6px}"
    ".key{width:28px;flex:none}.swatch{width:12px;height:12px;flex:none;border-radius:2px;display:inline-block}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px}th,td{padding:3px 12px 3px "
    "0;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid "
    "var(--grid)}th{color:var(--soft);font-weight:600}th.l,td.l{text-align:left;white-space:normal}table+figure,.wide+"
    "figure{margin-top:18px}\n"
    ".bars{display:grid;grid-template-columns:minmax(90px,max-content) minmax(80px,1fr) max-content;gap:3px "
    "12px;font-size:13px;align-items:center}"
    ".bars .n{overflow-wrap:anywhere}.bars "
    ".b{background:var(--card);height:14px;border-radius:3px;overflow:hidden}.bars .b "
    "i{display:block;height:100%;background:var(--s1)}"
    ".bars .v{text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}\n"
    ".a{fill:var(--s1)}.g{fill:var(--s2)}.s{fill:var(--s3)}.w{fill:var(--s4)}.o{fill:#c9a400}.k{fill:var(--soft)}.pool "
    "rect{stroke:var(--bg);stroke-width:.4}"
    ".pool "
    "rect:hover{stroke:var(--fg);stroke-width:1.2}.a.swatch{background:var(--s1)}.g.swatch{background:var(--s2)}.s."
    "swatch{background:var(--s3)}"
    ".w.swatch{background:var(--s4)}.o.swatch{background:#c9a400}.k.swatch{background:var(--soft)}\n"
    ".matrix .zero{fill:var(--card)}.matrix .cell{fill:var(--heat)}.matrix text.hi{fill:var(--heattext)}.matrix "
    "text.lo{fill:var(--fg)}.matrix rect:hover{stroke:var(--fg)}"
    ".matrix{max-width:830px}\n"
    ".gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));gap:16px}.gallery "
    "img{width:112px;height:112px;object-fit:contain;"
    "background:var(--card);border-radius:4px;image-rendering:auto}.gallery "
    "img.small{image-rendering:pixelated}.gallery "
    "figcaption{font-weight:400;font-size:13px;line-height:1.35;overflow-wrap:anywhere}\n"
    "pre{max-height:480px;overflow:auto;background:var(--card);padding:12px 14px;border-radius:8px;font:13px/1.45 "
    "ui-monospace,Menlo,Consolas,monospace}details{margin:10px 0}summary{cursor:pointer;color:var(--s1)}\n";

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

void cr_page_begin(struct cr_text *out, const char *title) {
    cr_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                     "'unsafe-inline'; img-src data:\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta "
                     "name=\"generator\" content=\"cresnet " CR_VERSION "\">\n"
                     "<link rel=\"icon\" href=\"data:,\">\n<title>");
    cr_page_escape(out, title);
    cr_text_add(out, "</title>\n<style>\n");
    cr_text_add_bytes(out, style, sizeof style - 1);
    cr_text_add(out, "</style>\n</head>\n<body>\n<main>\n");
}

void cr_page_end(struct cr_text *out) {
    cr_text_add(out, "</main>\n</body>\n</html>\n");
}

void cr_page_section(struct cr_text *out, const char *id, const char *heading) {
    cr_text_add(out, "<section id=\"%s\">\n<h2>%s</h2>\n", id, heading);
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

static void add_base64(struct cr_text *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const size_t   left = CR_MIN(count - i, (size_t)3);
        const unsigned v =
            (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) | (left > 2 ? bytes[i + 2] : 0u);
        const char four[] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                             left > 2 ? digits[v & 63] : '='};
        cr_text_add_bytes(out, four, sizeof four);
    }
}

cr_status cr_page_image(struct cr_text *out, const uint8_t *rgb, int width, int height, const char *alt) {
    png_image        image = {.version = PNG_IMAGE_VERSION,
                              .width   = (png_uint_32)width,
                              .height  = (png_uint_32)height,
                              .format  = PNG_FORMAT_RGB};
    png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
    uint8_t         *packed;
    CR_ALLOC(packed, bytes);
    const int done = png_image_write_to_memory(&image, packed, &bytes, 0, rgb, 0, NULL);
    if (done) {
        cr_text_add(out, "<img%s width=\"%d\" height=\"%d\" alt=\"", width <= 64 ? " class=\"small\"" : "", width,
                    height);
        cr_page_escape(out, alt);
        cr_text_add(out, "\" src=\"data:image/png;base64,");
        add_base64(out, packed, bytes);
        cr_text_add(out, "\">");
    }
    cr_free(packed);
    return done ? CR_OK : CR_FAIL(CR_ERR_FORMAT, "cannot encode an image as PNG: %s", image.message);
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

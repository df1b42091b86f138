/* cli/report/style.c: the style sheet of the report.
 *
 * The colours are Okabe and Ito's palette for colour-blind readers, darker on white and lighter on black for a contrast
 * of at least 3 to 1. Lines also differ in their dash patterns. */
#include "cli/report/report.h"

#define LIGHT                                                                                                          \
    "--bg:#fff;--fg:#1c2024;--soft:#5a636e;--card:#f5f6f8;--rule:#d5d9df;--grid:#e6e8ec;--s1:#0067a8;--s2:#b84600;"    \
    "--s3:#00795a;--s4:#8a4a8f;--s5:#8a6d00;--s6:#3b5bdb;--s7:#a61e4d;--s8:#495057;--hit:#0067a81c;--heat:#0067a8;"    \
    "--heattext:#fff;--shade:#000000b3"
#define DARK                                                                                                           \
    "--bg:#14171a;--fg:#e8eaed;--soft:#a3abb5;--card:#1e2226;--rule:#3a4047;--grid:#2b3036;--s1:#63b8f0;--s2:#f0a23a;" \
    "--s3:#3fcf9f;--s4:#d79adb;--s5:#e0c341;--s6:#91a7ff;--s7:#faa2c1;--s8:#ced4da;--hit:#63b8f026;--heat:#63b8f0;"    \
    "--heattext:#0b0d0f;--shade:#000000d9"

const char cr_page_style[] =
    ":root{color-scheme:light dark;" LIGHT "}\n@media(prefers-color-scheme:dark){:root{" DARK "}}\n"
    /* the page */
    "*{box-sizing:border-box}html{scroll-padding-top:12px}\n"
    "body{margin:0;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:24px 20px 60px}\n"
    "h1{font-size:28px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}\n"
    "h2{font-size:19px;margin:38px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--rule)}\n"
    "h3{font-size:16px;margin:26px 0 8px}p{margin:6px 0 12px}\n"
    ".sub,.note,.unit,figcaption small{color:var(--soft)}.sub,.note{overflow-wrap:anywhere}\n"
    ".unit{font-weight:400;font-size:13px}\n"
    "nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}a{color:var(--s1)}\n"
    /* cards */
    "dl{margin:0}.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:18px 0 "
    "0}\n"
    ".facts div{background:var(--card);border-radius:8px;padding:10px 12px}.facts "
    "dt{color:var(--soft);font-size:13px}\n"
    ".facts dd{margin:0;font-size:18px;font-weight:600;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}\n"
    /* charts */
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:18px 26px}\n"
    "figure{margin:0;min-width:0}figcaption{font-weight:600}svg{display:block;width:100%;height:auto}\n"
    "svg text{fill:var(--soft);font-size:12px;font-family:inherit}.grid{stroke:var(--grid)}\n"
    ".axis{stroke:var(--soft);fill:none}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
    ".line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2);stroke-dasharray:7 3}\n"
    ".line.s3{stroke:var(--s3);stroke-dasharray:2 3}.line.s4{stroke:var(--s4);stroke-dasharray:9 3 2 3}\n"
    ".line.s5{stroke:var(--s5);stroke-dasharray:14 4}.line.s6{stroke:var(--s6);stroke-dasharray:5 5}\n"
    ".line.s7{stroke:var(--s7);stroke-dasharray:12 3 2 3 2 3}.line.s8{stroke:var(--s8);stroke-dasharray:1 4}\n"
    ".dot.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}.dot.s3{fill:var(--s3)}.dot.s4{fill:var(--s4)}\n"
    ".dot.s5{fill:var(--s5)}.dot.s6{fill:var(--s6)}.dot.s7{fill:var(--s7)}.dot.s8{fill:var(--s8)}\n"
    ".ring{fill:var(--bg);stroke-width:2}.ring.s1{stroke:var(--s1)}.ring.s2{stroke:var(--s2)}\n"
    ".ring.s3{stroke:var(--s3)}.ring.s4{stroke:var(--s4)}.ring.s5{stroke:var(--s5)}.ring.s6{stroke:var(--s6)}\n"
    ".ring.s7{stroke:var(--s7)}.ring.s8{stroke:var(--s8)}\n"
    "path.best{stroke:var(--soft);stroke-dasharray:3 3;fill:none}.hit{fill:transparent}.hit:hover{fill:var(--hit)}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 18px;margin:2px 0 "
    "0;font-size:13px;font-variant-numeric:tabular-nums}\n"
    ".legend span{display:inline-flex;align-items:center;gap:6px}.key{width:28px;flex:none}\n"
    /* tables, bars */
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:3px 12px 3px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}\n"
    "th{color:var(--soft);font-weight:600}th.l,td.l{text-align:left;white-space:normal}\n"
    ".sum td{border-top:1px solid var(--rule);font-weight:600}table+figure,.wide+figure{margin-top:18px}\n"
    ".bars{display:grid;grid-template-columns:minmax(90px,max-content) minmax(80px,1fr) max-content;gap:3px 12px;"
    "font-size:13px;align-items:center}.bars .n{overflow-wrap:anywhere}\n"
    ".bars .b{background:var(--card);height:14px;border-radius:3px;overflow:hidden}\n"
    ".bars .b i{display:block;height:100%;background:var(--s1)}\n"
    ".bars .v{text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}\n"
    /* the memory plan */
    ".a{fill:var(--s1)}.g{fill:var(--s2)}.s{fill:var(--s3)}.w{fill:var(--s4)}\n"
    /* the confusion matrix */
    ".matrix .zero{fill:var(--card)}.matrix .cell{fill:var(--heat)}.matrix text.hi{fill:var(--heattext)}\n"
    ".matrix text.lo{fill:var(--fg)}.matrix rect:hover{stroke:var(--fg)}.matrix{max-width:830px}\n"
    /* images: small in the gallery, over the whole window when their link was followed */
    ".gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(176px,1fr));gap:18px 16px}\n"
    ".gallery img{width:112px;height:112px;object-fit:contain;background:var(--card);border-radius:4px}\n"
    ".gallery img.small{image-rendering:pixelated}.close{display:none}\n"
    ".gallery figcaption{font-weight:400;font-size:13px;line-height:1.35;overflow-wrap:anywhere;margin-top:4px}\n"
    ".two{font-size:13px;margin:2px 0}.two td{padding:0 8px 0 0;border:0}.two .l{overflow-wrap:anywhere}\n"
    "figure:target .open img{position:fixed;inset:0;width:100%;height:100%;z-index:1;border-radius:0;padding:40px 12px;"
    "background:var(--shade)}\n"
    "figure:target .close{display:block;position:fixed;top:8px;right:14px;z-index:2;padding:4px 14px;border-radius:6px;"
    "background:var(--bg);color:var(--fg)}\n"
    /* hidden parts */
    "pre{max-height:480px;overflow:auto;background:var(--card);padding:12px 14px;border-radius:8px;"
    "font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}details{margin:10px "
    "0}summary{cursor:pointer;color:var(--s1)}\n"
    "section>details{margin:24px 0 0}section>details>summary{border-bottom:1px solid var(--rule);padding:6px 0}\n"
    "section>details>summary h2{display:inline;border:0;padding:0;margin:0 8px 0 0;color:var(--fg)}\n";

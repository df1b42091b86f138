/* data/class_name.c: the spelling of class names. See data/class_match.h.
 *
 * macOS stores the letter "e with acute accent" in a file name as e and an accent (Unicode's form NFD), Linux as the
 * user typed it, mostly as one character (NFC). The names of folders look the same and have other bytes. */
#include "core/utf8.h"
#include "data/class_match.h"

#include <string.h>
#include <uchar.h>

/* Letters with an accent or another diacritic: pairs of the letter without it and the letter with it. */
static const struct {
    uint16_t        diacritic;
    const char16_t *pairs;
} accented[] = {
    {0x0300, u"AÀEÈIÌOÒUÙaàeèiìoòuùЕЀИЍеѐиѝÂẦâầĂẰăằÊỀêềÔỒôồƠỜơờ"
             u"ƯỪưừYỲyỳ"},
    {0x0301, u"AÁEÉIÍOÓUÚYÝaáeéiíoóuúyýCĆcćLĹlĺNŃnńRŔrŕSŚsśZŹzź¨΅ΑΆΕΈΗΉΙΊΟΌ"
             u"ΥΎΩΏϊΐαάεέηήιίϋΰοόυύ"
             u"ωώϒϓГЃКЌгѓкќÂẤâấĂẮăắÊẾêếÔỐôốƠỚơớƯỨưứ"},
    {0x0302, u"AÂEÊIÎOÔUÛaâeêiîoôuûCĈcĉGĜgĝHĤhĥJĴjĵSŜsŝWŴwŵYŶyŷẠẬạậẸỆẹệ"
             u"ỌỘọộ"},
    {0x0303, u"AÃNÑOÕaãnñoõIĨiĩUŨuũÂẪâẫĂẴăẵEẼeẽÊỄêễÔỖôỗƠỠơỡƯỮ"
             u"ưữYỸyỹ"},
    {0x0304, u"AĀaāEĒeēIĪiīOŌoōUŪuū"},
    {0x0306, u"AĂaăEĔeĕGĞgğIĬiĭOŎoŏUŬuŭУЎИЙийуўẠẶạặ"},
    {0x0307, u"CĊcċEĖeėGĠgġIİZŻzż"},
    {0x0308, u"AÄEËIÏOÖUÜaäeëiïoöuüyÿYŸΙΪΥΫιϊυϋϒϔЕЁІЇеёії"},
    {0x0309, u"AẢaảÂẨâẩĂẲăẳEẺeẻÊỂêểIỈiỉOỎoỏÔỔôổƠỞơởUỦuủƯỬ"
             u"ưửYỶyỷ"},
    {0x030a, u"AÅaåUŮuů"},
    {0x030b, u"OŐoőUŰuű"},
    {0x030c, u"CČcčDĎdďEĚeěLĽlľNŇnňRŘrřSŠsšTŤtťZŽzž"},
    {0x0323, u"AẠaạEẸeẹIỊiịOỌoọƠỢơợUỤuụƯỰưựYỴyỵ"},
    {0x0327, u"CÇcçGĢgģKĶkķLĻlļNŅnņRŖrŗSŞsşTŢtţ"},
    {0x0328, u"AĄaąEĘeęIĮiįUŲuų"},
    {0x3099, u"かがきぎくぐけげこごさざしじすずせぜそぞただちぢつづてでとどはば"
             u"ひびふぶへべほぼうゔゝゞカガキギクグケゲ"
             u"コゴサザシジスズセゼソゾタダチヂツヅテデトドハバヒビフブ"
             u"ヘベホボウヴワヷヰヸヱヹヲヺヽヾ"},
    {0x309a, u"はぱひぴふぷへぺほぽハパヒピフプヘペホポ"},
};

static uint32_t lower(uint32_t c) {
    if ((c >= 'A' && c <= 'Z') || (c >= 0xc0 && c <= 0xde && c != 0xd7)) return c + 32;
    if ((c >= 0x391 && c <= 0x3a9) || (c >= 0x410 && c <= 0x42f)) return c + 32; /* Greek, Cyrillic */
    if (c >= 0x400 && c <= 0x40f) return c + 80;
    if (c == 0x3c2) return 0x3c3; /* the sigma at the end of a word */
    if ((c >= 0x110 && c <= 0x137) || (c >= 0x14a && c <= 0x177)) return c | 1;
    return c >= 0x139 && c <= 0x148 ? c + c % 2 : c;
}

static bool is_blank(uint32_t c) {
    return c == ' ' || c == '\t' || c == 0xa0 || c == 0x3000;
}

static void add_character(uint32_t c, struct cr_text *out) {
    const char wide[]  = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 63)), (char)(0x80 | (c >> 6 & 63)),
                          (char)(0x80 | (c & 63))};
    const char three[] = {(char)(0xe0 | c >> 12), wide[2], wide[3]}, two[] = {(char)(0xc0 | c >> 6), wide[3]},
               one[] = {(char)c};
    if (c < 0x80)
        cr_text_add_bytes(out, one, sizeof one);
    else if (c < 0x800)
        cr_text_add_bytes(out, two, sizeof two);
    else if (c < 0x10000)
        cr_text_add_bytes(out, three, sizeof three);
    else
        cr_text_add_bytes(out, wide, sizeof wide);
}

/* Appends a letter in lower case, and its diacritics as characters of their own. */
static void add_decomposed(uint32_t c, struct cr_text *out) {
    if (c >= 0xac00 && c <= 0xd7a3) { /* a syllable of Hangul is two or three letters */
        const uint32_t at = c - 0xac00;
        add_character(0x1100 + at / 588, out);
        add_character(0x1161 + at % 588 / 28, out);
        if (at % 28) add_character(0x11a7 + at % 28, out);
        return;
    }
    for (size_t i = 0; c >= 0xc0 && i < CR_COUNT(accented); i++)
        for (const char16_t *pair = accented[i].pairs; *pair; pair += 2) {
            if (pair[1] != c) continue;
            add_decomposed(pair[0], out);
            add_character(accented[i].diacritic, out);
            return;
        }
    add_character(lower(c), out);
}

/* The character of a valid sequence. */
static uint32_t decode(const char *p, size_t length) {
    uint32_t c = (unsigned char)p[0] & (length == 1 ? 0x7f : 0xff >> (length + 1));
    for (size_t i = 1; i < length; i++) c = c << 6 | ((unsigned char)p[i] & 63);
    return c;
}

void cr_class_name_fold(const char *name, struct cr_text *out) {
    const size_t start = out->length;
    bool         blank = false;
    for (size_t left = strlen(name), step; left; name += step, left -= step) {
        step             = cr_utf8_sequence(name, left);
        const uint32_t c = step ? decode(name, step) : 0;
        if (is_blank(c)) {
            blank = true;
            continue;
        }
        if (blank && out->length > start) cr_text_add(out, " ");
        blank = false;
        if (step)
            add_decomposed(c, out);
        else
            cr_text_add_bytes(out, name, step = 1); /* no UTF-8: stays as it is */
    }
}

int cr_class_find_respelt(const char *name, const char *const *names, int count) {
    struct cr_text wanted = {0}, other = {0};
    int            found = -1;
    cr_class_name_fold(name, &wanted);
    for (int k = 0; k < count && wanted.length && !wanted.failed; k++) {
        other.length = 0;
        cr_class_name_fold(names[k], &other);
        if (other.failed || other.length != wanted.length || memcmp(other.data, wanted.data, wanted.length) != 0)
            continue;
        found = found < 0 ? k : -2; /* -2: several */
        if (found == -2) break;
    }
    cr_text_free(&wanted);
    cr_text_free(&other);
    return found < 0 ? -1 : found;
}

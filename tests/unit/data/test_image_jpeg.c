/* tests/unit/data/test_image_jpeg.c: our JPEG decoder against libjpeg: files of every usual kind, generated here, whole
 * and in parts, have bitwise identical pixels; both decoders accept or refuse the same damaged files. */
#include "tests/harness/jpeg_support.h"

#include "data/decode.h"
#include "data/image/jpeg.h"
#include "data/source.h"

/* Checksum of the pixels of the box from one decoder. */
static cr_status decode_box(const uint8_t *bytes, size_t count, const int box[4], bool proven, bool only_libjpeg,
                            struct cr_scratch *scratch, uint64_t *sum) {
    struct cr_stored     stored = {.bytes = bytes, .count = count, .verified = proven};
    struct cr_lazy_image image;
    struct cr_window     window;
    *sum = CR_HASH_START;
    cr_jpeg_only_libjpeg(only_libjpeg);
    cr_status status = cr_lazy_image_open(&stored, "made.jpg", scratch, &image);
    if (status == CR_OK) status = cr_lazy_image_window(&image, box, 0, scratch, &window);
    cr_jpeg_only_libjpeg(false);
    for (int y = 0; status == CR_OK && y < box[3]; y++)
        *sum = cr_hash_bytes(*sum, window.rgb + (size_t)y * window.stride, (size_t)box[2] * 3);
    return status;
}

static void check_form(const struct jpeg_form *form, struct cr_scratch *scratch, struct cr_rng *rng) {
    size_t       count;
    OWNED(bytes) bytes = make_jpeg(form, &count);
    for (int k = 0; k < 8; k++) {
        int      box[4] = {0, 0, form->width, form->height};
        uint64_t ours, theirs;
        if (k) {
            box[2] = 1 + (int)cr_rng_below(rng, (uint64_t)form->width);
            box[3] = 1 + (int)cr_rng_below(rng, (uint64_t)form->height);
            box[0] = (int)cr_rng_below(rng, (uint64_t)(form->width - box[2]) + 1);
            box[1] = (int)cr_rng_below(rng, (uint64_t)(form->height - box[3]) + 1);
        }
        REQUIRE_OK(decode_box(bytes, count, box, k % 2, false, scratch, &ours));
        REQUIRE_OK(decode_box(bytes, count, box, k % 2, true, scratch, &theirs));
        if (ours != theirs)
            TEST_FAIL_("%d x %d, luma %d x %d, quality %d, box %d %d %d %d: other pixels", form->width, form->height,
                       form->h, form->v, form->quality, box[0], box[1], box[2], box[3]);
    }
}

enum { SOME = TEST_SANITIZED }; /* the build without a sanitizer decodes five times as many files */
static const int luma[][2] = {{0, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}};

TEST(usual_files_match_libjpeg) {
    static const int qualities[] = {3, 40, 75, 92, 100};
    static const int sizes[][2]  = {{1, 1},   {2, 3},   {3, 40},  {4, 4},    {5, 5},   {7, 9},
                                    {16, 16}, {17, 33}, {64, 48}, {131, 97}, {300, 40}};
    OWNED(scratch)   scratch     = {0};
    struct cr_rng    rng         = cr_rng_make(4, CR_RNG_TEST, 0, 0);
    for (size_t l = 0; l < CR_COUNT(luma); l++)
        for (size_t q = SOME ? l % 3 : 0; q < CR_COUNT(qualities); q += SOME ? 3 : 1)
            for (size_t s = 0; s < CR_COUNT(sizes); s++) {
                struct jpeg_form form = {luma[l][0],         luma[l][1],  qualities[q],
                                         sizes[s][0],        sizes[s][1], .optimize = (s + q) % 2,
                                         .noise = s % 3 == 1};
                check_form(&form, &scratch, &rng);
            }
}

/* Files that only libjpeg decodes, in between, so that no state of one image reaches the next. */
TEST(unusual_files_match_libjpeg) {
    OWNED(scratch) scratch = {0};
    struct cr_rng  rng     = cr_rng_make(5, CR_RNG_TEST, 0, 0);
    for (int k = 0; k < 40; k++) {
        struct jpeg_form form = {luma[k % 6][0],
                                 luma[k % 6][1],
                                 80,
                                 40 + k,
                                 33,
                                 .restart     = k % 4 == 1 ? 3 : 0,
                                 .progressive = k % 4 == 2,
                                 .optimize    = k % 3 == 0};
        check_form(&form, &scratch, &rng);
    }
}

/* Every byte changed in turn, and every length truncated: both decoders accept the file, or both refuse it. */
TEST(damaged_files_are_refused_as_by_libjpeg) {
    OWNED(scratch) scratch = {0};
    int            refused = 0, taken = 0;
    for (size_t l = 0; l < 5; l++) {
        struct jpeg_form form = {luma[l][0], luma[l][1], 60, 50, 37, .noise = l % 2};
        size_t           count;
        OWNED(bytes)     bytes = make_jpeg(&form, &count);
        uint64_t         ours, theirs;
        for (size_t i = 2; i < count; i += SOME ? 5 : 1)
            for (int cut = 0; cut < 2; cut++) {
                int box[4] = {3, 2, 20, 9};
                if (!cut) bytes[i] ^= (uint8_t)(1 + i * 37 % 255);
                cr_status a = decode_box(bytes, cut ? i : count, box, false, false, &scratch, &ours);
                cr_status b = decode_box(bytes, cut ? i : count, box, false, true, &scratch, &theirs);
                if (!cut) bytes[i] ^= (uint8_t)(1 + i * 37 % 255);
                if (a != b)
                    TEST_FAIL_("form %zu, byte %zu, %s: %s, libjpeg: %s", l, i, cut ? "cut" : "altered",
                               cr_status_name(a), cr_status_name(b));
                a == CR_OK ? taken++ : refused++;
            }
    }
    CHECK(taken > (SOME ? 100 : 500) && refused > (SOME ? 400 : 2000));
}

/* The first segment of this kind from `at` on, or NULL. */
static uint8_t *find_segment(uint8_t *bytes, size_t count, int marker) {
    for (size_t at = 2; at + 4 <= count && bytes[at] == 0xff && bytes[at + 1] != 0xda;) {
        if (bytes[at + 1] == marker) return bytes + at;
        at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
    }
    return NULL;
}

/* Coefficients that no encoder produces, since the quantiser is not the one of the encoder. Where the transform exceeds
 * 16 bits or the clamp table, the code paths of libjpeg differ from each other, and ours must equal the one that
 * libjpeg uses. */
TEST(huge_coefficients_match_libjpeg) {
    static const uint8_t steps[] = {2, 9, 16, 40, 255};
    OWNED(scratch)       scratch = {0};
    struct cr_rng        rng     = cr_rng_make(6, CR_RNG_TEST, 0, 0);
    for (size_t l = 0; l < 5; l++)
        for (size_t k = 0; k < CR_COUNT(steps) + 40; k += SOME ? 3 : 1) { /* one step for all, then one for each */
            struct jpeg_form form   = {luma[l][0], luma[l][1], 100, 90, 70, .noise = k % 2};
            int              box[4] = {0, 0, 90, 70};
            uint64_t         ours, theirs;
            size_t           count;
            uint8_t         *bytes = make_jpeg(&form, &count), *table = find_segment(bytes, count, 0xdb);
            REQUIRE(table && table[3] == 67);
            for (int i = 0; i < 64; i++)
                table[5 + i] = k < CR_COUNT(steps) ? steps[k] : (uint8_t)(1 + cr_rng_below(&rng, k % 8 < 4 ? 30 : 6));
            REQUIRE_OK(decode_box(bytes, count, box, false, false, &scratch, &ours));
            REQUIRE_OK(decode_box(bytes, count, box, false, true, &scratch, &theirs));
            if (ours != theirs) TEST_FAIL_("form %zu, steps %zu: other pixels", l, k);
            cr_free(bytes);
        }
}

/* A Huffman code of all ones, which the format reserves: libjpeg refuses the table, and so does our decoder. */
TEST(huffman_codes_of_ones_are_refused) {
    OWNED(scratch)   scratch = {0};
    struct jpeg_form form    = {1, 1, 80, 40, 30, .restart = 0};
    int              box[4]  = {0, 0, 40, 30};
    uint64_t         sum;
    size_t           count;
    OWNED(bytes)     bytes = make_jpeg(&form, &count);
    const uint8_t   *table = find_segment(bytes, count, 0xc4);
    REQUIRE(table && table[3] == 31 && table[4] == 0 && table[13] == 1); /* DC: one code of 9 bits, 8 ones and a 0 */
    size_t       head = (size_t)(table - bytes) + 33;
    OWNED(bytes) more = cr_alloc(count + 1, 1);
    memcpy(more, bytes, head);
    more[head] = 0; /* one more symbol, with the next code */
    memcpy(more + head + 1, bytes + head, count - head);
    more[table - bytes + 3]  = 32;
    more[table - bytes + 13] = 2;
    REQUIRE_OK(decode_box(bytes, count, box, false, false, &scratch, &sum));
    for (int only_libjpeg = 0; only_libjpeg < 2; only_libjpeg++)
        for (int proven = 0; proven < 2; proven++)
            CHECK_STATUS(decode_box(more, count + 1, box, proven, only_libjpeg, &scratch, &sum), CR_ERR_FORMAT);
}

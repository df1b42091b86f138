/* Packed data sets: what is packed is what is read, and no file is believed: cut ones, altered ones, ones whose
 * checksums are right and whose numbers are not. */
#include "data_support.h"

#include "data_impl.h"
#include "fsutil.h"
#include "pack.h"

/* ---- checksum ---- */

/* A bit at a time, from the definition. */
static uint32_t crc_by_bits(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t in = crc ^ (uint32_t)(bytes[i] >> bit & 1);
            crc         = (crc >> 1) ^ (in & 1 ? 0x82f63b78u : 0);
        }
    return ~crc;
}

static void checksums_are_crc32c(void) {
    CHECK(cr_crc32c(0, "123456789", 9) == 0xe3069283u); /* the check value of the catalogues */
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37 + i / 7);
    for (size_t at = 0; at < 9; at++)
        for (size_t count = 0; count + at <= sizeof bytes; count += 1 + count / 9) {
            uint32_t want = crc_by_bits(bytes + at, count);
            CHECK(cr_crc32c(0, bytes + at, count) == want);
            CHECK(cr_crc32c_plain(0, bytes + at, count) == want);
            CHECK(cr_crc32c(cr_crc32c(0, bytes + at, count / 3), bytes + at + count / 3, count - count / 3) == want);
        }
}

/* ---- a set, packed ---- */

static const char *const jpegs[] = {"rgb.jpg",  "rgb-422.jpg",         "l.jpg",
                                    "cmyk.jpg", "rgb-progressive.jpg", "rgb-444.jpg"};

/* train/ and val/ of two classes, JPEG and PNG files. */
static void put_set(const char *folder) {
    char path[SUPPORT_PATH], name[128];
    for (int i = 0; i < 12; i++) {
        size_t   count;
        uint8_t *bytes = read_bytes(text_into(path, GOLDEN "%s", jpegs[i % 6]), &count);
        text_into(path, "%s/%s/%s/%02d.jpg", folder, i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i);
        make_parents(path);
        write_bytes(path, bytes, count);
        cr_free(bytes);
        snprintf(name, sizeof name, "%s/%s/p%02d.png", i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i);
        put_picture(folder, name, 20 + i, 17, 10 * i);
    }
}

static cr_status open_split(struct cr_dataset **set, enum cr_split split, const char *const *overrides) {
    struct cr_config config;
    CR_TRY(make_config_(&config, overrides));
    cr_status status = cr_dataset_open(&config, split, set);
    cr_config_close(&config);
    return status;
}
#define OPEN(split, set, ...) open_split((set), (split), (const char *const[]){__VA_ARGS__, NULL})

static cr_status pack_set(const char *folder, const char *out, enum cr_split split, int raw, int workers,
                          struct cr_pack_result *result) {
    struct cr_pack_options options = {.raw_side = raw, .workers = workers};
    struct cr_dataset     *set;
    char                   root[SUPPORT_PATH], path[SUPPORT_PATH];
    CR_TRY(OPEN(split, &set, "data.kind=folder", root_is(folder, root)));
    text_into(path, "%s/%s", out, split == CR_SPLIT_TRAIN ? CR_PACK_TRAIN_NAME : CR_PACK_VAL_NAME);
    cr_status status = cr_pack_dataset(set, path, &options, result);
    cr_dataset_close(set);
    return status;
}

/* Both splits of a fresh set into folder/packed. */
static void make_pack(char folder[SUPPORT_PATH], char packed[SUPPORT_PATH], int raw, int workers) {
    struct cr_pack_result result;
    make_folder(folder);
    put_set(folder);
    text_into(packed, "%s/packed", folder);
    mkdir(packed, 0777);
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_TRAIN, raw, workers, &result));
    CHECK(result.pictures == 16 && result.left_out == 0 && result.bytes > 1000);
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_VAL, raw, workers, &result));
    CHECK_INT(result.pictures, 8);
}

static void packed_pictures_are_those_of_the_files(void) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], packed_root[SUPPORT_PATH], name[SUPPORT_PATH];
    make_pack(folder, packed, 0, 3);
    for (int split = 0; split < 2; split++) {
        struct cr_dataset *a, *b;
        REQUIRE_OK(OPEN((enum cr_split)split, &a, "data.kind=folder", root_is(folder, root)));
        REQUIRE_OK(OPEN((enum cr_split)split, &b, "data.kind=packed", root_is(packed, packed_root)));
        REQUIRE(cr_dataset_count(a) == cr_dataset_count(b) && cr_dataset_classes(b) == 2);
        CHECK_STR(cr_dataset_class_name(b, 0), "cat");
        CHECK_STR(cr_dataset_class_name(b, 1), "dog");
        for (int64_t i = 0; i < cr_dataset_count(a); i++) {
            struct cr_image x, y;
            int32_t         label_x, label_y;
            REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
            REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
            CHECK(label_x == label_y && x.width == y.width && x.height == y.height);
            CHECK(!memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
            cr_image_free(&x);
            cr_image_free(&y);
        }
        cr_dataset_sample_name(b, 3, name, sizeof name);
        CHECK_HAS(name, split ? "packed/val.crpk[3]" : "packed/train.crpk[3]");
        cr_dataset_close(a);
        cr_dataset_close(b);
    }
    drop_folder(folder);
}

/* How many threads pack changes no byte, and packing what is packed gives the same file again. */
static void packing_is_a_function_of_the_set(void) {
    char   folder[SUPPORT_PATH], packed[SUPPORT_PATH], again[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    size_t count, count_again;
    make_pack(folder, packed, 0, 1);
    uint8_t              *bytes = read_bytes(text_into(path, "%s/train.crpk", packed), &count);
    struct cr_pack_result result;
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_TRAIN, 0, 4, &result)); /* takes the place of the first */
    uint8_t *other = read_bytes(path, &count_again);
    CHECK(count == count_again && !memcmp(bytes, other, count));
    cr_free(other);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 2};
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(packed, root)));
    REQUIRE_OK(cr_pack_dataset(set, text_into(again, "%s/again.crpk", folder), &options, &result));
    cr_dataset_close(set);
    other = read_bytes(again, &count_again);
    CHECK(count == count_again && !memcmp(bytes, other, count));
    cr_free(other);
    cr_free(bytes);
    drop_folder(folder);
}

/* Raw: evaluation sees the same pixels as from the files, and a small picture stays as it is. */
static void raw_pictures_prepare_as_the_files(void) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], packed_root[SUPPORT_PATH];
    make_pack(folder, packed, 18, 2);
    struct cr_prepare  prep = {.size = 14, .eval_resize = 18};
    struct cr_dataset *a, *b;
    int                reduced = 0, kept = 0;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=folder", root_is(folder, root)));
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=packed", root_is(packed, packed_root)));
    for (int64_t i = 0; i < cr_dataset_count(a); i++) {
        struct cr_image x, y;
        int32_t         label;
        uint8_t         from_x[14 * 14 * 3], from_y[14 * 14 * 3];
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label));
        int shorter = CR_MIN(x.width, x.height);
        CHECK_INT(CR_MIN(y.width, y.height), CR_MIN(shorter, 18));
        shorter > 18 ? reduced++ : kept++;
        REQUIRE_OK(cr_prepare_eval(&prep, &x, from_x));
        REQUIRE_OK(cr_prepare_eval(&prep, &y, from_y));
        CHECK(!memcmp(from_x, from_y, sizeof from_x));
        cr_image_free(&x);
        cr_image_free(&y);
    }
    CHECK(reduced > 4 && kept > 4);
    cr_dataset_close(a);
    cr_dataset_close(b);
    drop_folder(folder);
}

/* A set that has pixels and no files is packed as pixels. */
static void sets_without_files_are_packed_raw(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    make_folder(folder);
    struct cr_dataset     *a, *b;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=synthetic", "data.train_images=700"));
    REQUIRE_OK(cr_pack_dataset(a, text_into(path, "%s/train.crpk", folder), &options, &result));
    CHECK_INT(result.pictures, 700);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=packed", root_is(folder, root)));
    for (int64_t i = 0; i < 700; i += 13) {
        struct cr_image x, y;
        int32_t         label_x, label_y;
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
        CHECK(label_x == label_y && x.width == y.width && !memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
        cr_image_free(&x);
        cr_image_free(&y);
    }
    cr_dataset_close(a);
    cr_dataset_close(b);
    drop_folder(folder);
}

static void unreadable_pictures_are_left_out(void) {
    char folder[SUPPORT_PATH], out[SUPPORT_PATH], path[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    put_set(folder);
    size_t   count;
    uint8_t *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    text_into(path, "%s/train/cat/cut.jpg", folder);
    write_bytes(path, jpeg, count - 40); /* damage near the end: only decoding to the end finds it */
    cr_free(jpeg);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    cr_log_quiet(true);
    REQUIRE_OK(cr_pack_dataset(set, text_into(out, "%s/train.crpk", folder), &options, &result));
    cr_log_quiet(false);
    CHECK(result.pictures == 16 && result.left_out == 1);
    options.corrupt_fatal = true;
    text_into(out, "%s/fatal.crpk", folder);
    CHECK_STATUS(cr_pack_dataset(set, out, &options, &result), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train/cat/cut.jpg");
    CHECK(access(out, F_OK) != 0);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* ---- files that are not what they should be ---- */

static void put32(uint8_t *b, uint64_t v) {
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> 8 * i);
}
static void put64(uint8_t *b, uint64_t v) {
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> 8 * i);
}
static uint64_t get(const uint8_t *b, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | b[i];
    return v;
}

/* Right checksums for whatever the tables say now. */
static void mend(uint8_t *bytes, size_t count) {
    uint64_t names = get(bytes + CR_PACK_AT_NAMES_BYTES, 8), index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
    if (names <= count - CR_PACK_HEADER_BYTES && index <= count) {
        uint32_t crc = cr_crc32c(0, bytes + CR_PACK_HEADER_BYTES, (size_t)names);
        put32(bytes + CR_PACK_AT_TABLES_CRC, cr_crc32c(crc, bytes + index, count - (size_t)index));
    }
    put32(bytes + CR_PACK_AT_HEADER_CRC, cr_crc32c(0, bytes, CR_PACK_AT_HEADER_CRC));
}

static cr_status try_bytes(const uint8_t *bytes, size_t count) {
    struct cr_pack *pack;
    cr_status       status = cr_pack_open_bytes(bytes, count, "some.crpk", &pack);
    if (status != CR_OK) return status;
    status = cr_pack_verify(pack, 1);
    cr_pack_close(pack);
    return status;
}

/* The bytes of a small pack; cr_free. */
static uint8_t *pack_bytes(int raw, size_t *count) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], path[SUPPORT_PATH];
    make_pack(folder, packed, raw, 2);
    uint8_t *bytes = read_bytes(text_into(path, "%s/train.crpk", packed), count);
    drop_folder(folder);
    return bytes;
}

static void cut_and_altered_files_are_refused(void) {
    size_t   count;
    uint8_t *bytes = pack_bytes(0, &count);
    REQUIRE(bytes && count > 2000);
    REQUIRE_OK(try_bytes(bytes, count));
    int64_t live = cr_alloc_live();
    for (size_t cut = 0; cut < count; cut += 1 + cut / 50) {
        CHECK_STATUS(try_bytes(bytes, cut), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk");
        if (cut >= CR_PACK_HEADER_BYTES) CHECK_HAS(cr_error_message(), "cut off");
        CHECK_HAS(cr_error_message(), "cresnet data pack");
    }
    uint8_t *longer = cr_alloc(count + 1, 1);
    memcpy(longer, bytes, count);
    CHECK_STATUS(try_bytes(longer, count + 1), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "longer");
    cr_free(longer);
    /* Every byte of the file counts: one flipped bit anywhere is found by the checksums. */
    for (size_t i = 0; i < count; i += i < 400 || i > count - 600 ? 1 : 37) {
        bytes[i] ^= (uint8_t)(1 << i % 8);
        CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk");
        bytes[i] ^= (uint8_t)(1 << i % 8);
    }
    CHECK_INT(cr_alloc_live(), live);
    cr_free(bytes);
}

/* Numbers that cannot be, under right checksums. */
static void wrong_numbers_are_refused(void) {
    size_t   count;
    uint8_t *good = pack_bytes(0, &count);
    REQUIRE(good);
    uint8_t *bytes = cr_alloc(count, 1);
    uint64_t index = get(good + CR_PACK_AT_INDEX_OFFSET, 8), pictures = get(good + CR_PACK_AT_COUNT, 8);
    CHECK_INT(pictures, 16);
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      15,
                                      17,
                                      1000,
                                      UINT32_MAX / 2,
                                      UINT32_MAX,
                                      (uint64_t)1 << 40,
                                      UINT64_MAX / 32 + 1,
                                      UINT64_MAX - 31,
                                      UINT64_MAX};
    static const struct {
        int at, bytes; /* at < 0: in the index, from its end */
    } fields[] = {{CR_PACK_AT_VERSION, 4},
                  {CR_PACK_AT_FORM, 4},
                  {CR_PACK_AT_FILE_BYTES, 8},
                  {CR_PACK_AT_COUNT, 8},
                  {CR_PACK_AT_CLASSES, 4},
                  {CR_PACK_AT_NAMES_BYTES, 8},
                  {CR_PACK_AT_INDEX_OFFSET, 8},
                  {-32, 8},
                  {-24, 4},
                  {-20, 4},
                  {-16, 4},
                  {-12, 4},
                  {-8, 4},
                  {-64, 8},
                  {-56, 4}};
    int tried  = 0;
    for (size_t f = 0; f < CR_COUNT(fields); f++)
        for (size_t v = 0; v < CR_COUNT(values); v++) {
            size_t   at  = fields[f].at < 0 ? count - (size_t)-fields[f].at : (size_t)fields[f].at;
            uint64_t now = fields[f].bytes == 4 ? (uint32_t)values[v] : values[v];
            memcpy(bytes, good, count);
            if (get(good + at, fields[f].bytes) == now) continue;
            fields[f].bytes == 4 ? put32(bytes + at, now) : put64(bytes + at, now);
            if (fields[f].at != -20 || now > 1) { /* another label that exists is another label, no fault */
                mend(bytes, count);
                CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
                CHECK_HAS(cr_error_message(), "some.crpk");
                tried++;
            }
        }
    CHECK(tried > 120);
    memcpy(bytes, good, count);
    put32(bytes + CR_PACK_AT_VERSION, 2);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "version 2");
    memcpy(bytes, good, count); /* pictures that overlap */
    put64(bytes + index + 32, get(good + index, 8));
    mend(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    memcpy(bytes, good,
           count); /* a byte between the pictures and the index that belongs to nobody, checksums all right */
    uint64_t last = index + 32 * (pictures - 1), at = get(good + last, 8), shorter = get(good + last + 8, 4) - 1;
    put32(bytes + last + 8, shorter);
    put32(bytes + last + 24, cr_crc32c(0, bytes + at, (size_t)shorter));
    mend(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "to nobody");
    memcpy(bytes, good, count); /* no 0 behind the last name; an empty name */
    bytes[CR_PACK_HEADER_BYTES + get(good + CR_PACK_AT_NAMES_BYTES, 8) - 1] = 'x';
    mend(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "names");
    memcpy(bytes, good, count);
    bytes[CR_PACK_HEADER_BYTES] = 0;
    mend(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    cr_free(bytes);
    cr_free(good);
}

/* A picture that was altered after packing is met as any corrupt picture is; the others are read. */
static void an_altered_picture_is_skipped(void) {
    char   folder[SUPPORT_PATH], packed[SUPPORT_PATH], path[SUPPORT_PATH], root[SUPPORT_PATH];
    size_t count;
    make_pack(folder, packed, 18, 2);
    uint8_t *bytes = read_bytes(text_into(path, "%s/train.crpk", packed), &count);
    bytes[get(bytes + get(bytes + CR_PACK_AT_INDEX_OFFSET, 8) + 5 * 32, 8)] ^= 1; /* the first byte of picture 5 */
    write_bytes(path, bytes, count);
    cr_free(bytes);
    struct cr_dataset *set;
    struct cr_image    image;
    int32_t            label;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(packed, root)));
    CHECK_STATUS(cr_dataset_get(set, 5, &image, &label), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train.crpk: picture 5");
    CHECK_HAS(cr_error_message(), "cresnet data pack");
    REQUIRE_OK(cr_dataset_get(set, 6, &image, &label));
    cr_image_free(&image);
    struct cr_loader_options options = {
        .split = CR_SPLIT_VAL, .batch = 16, .prefetch = 1, .prepare = {.size = 14, .eval_resize = 18}};
    struct cr_loader *loader;
    struct cr_batch   batch;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    cr_log_quiet(true);
    REQUIRE_OK(cr_loader_next(loader, &batch));
    cr_log_quiet(false);
    for (int i = 0; i < 16; i++) CHECK((batch.labels[i] < 0) == (i == 5));
    CHECK_INT(cr_loader_corrupt(loader), 1);
    cr_loader_close(loader);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* Of some bad pictures the first is named, however many threads look. */
static void verifying_names_the_first_fault(void) {
    size_t   count;
    uint8_t *bytes = pack_bytes(0, &count);
    REQUIRE(bytes);
    uint64_t        index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
    struct cr_pack *pack;
    for (int workers = 0; workers < 6; workers++) {
        REQUIRE_OK(cr_pack_open_bytes(bytes, count, "some.crpk", &pack));
        REQUIRE_OK(cr_pack_verify(pack, workers));
        for (int i = 15; i >= 4; i -= 4) bytes[get(bytes + index + (uint64_t)i * 32, 8) + 9] ^= 1;
        CHECK_STATUS(cr_pack_verify(pack, workers), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "picture 7 ");
        for (int i = 15; i >= 4; i -= 4) bytes[get(bytes + index + (uint64_t)i * 32, 8) + 9] ^= 1;
        cr_pack_close(pack);
    }
    cr_free(bytes);
}

/* The file is written over in place after it was opened: what its index says then is not believed either. */
static void a_file_changed_in_use_is_refused(void) {
    for (int raw = 0; raw <= 18; raw += 18) {
        size_t   count;
        uint8_t *bytes = pack_bytes(raw, &count);
        REQUIRE(bytes);
        struct cr_pack      *pack;
        struct cr_pack_entry entry;
        const uint8_t       *at;
        uint64_t             index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
        REQUIRE_OK(cr_pack_open_bytes(bytes, count, "some.crpk", &pack));
        REQUIRE_OK(cr_pack_read(pack, 2, &entry, &at));
        memset(bytes + index, 0xff, count - index);
        CHECK_STATUS(cr_pack_read(pack, 2, &entry, &at), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk: was changed while it was in use");
        memset(bytes + index, 0, count - index);
        CHECK_STATUS(cr_pack_read(pack, 2, &entry, &at), CR_ERR_FORMAT);
        put64(bytes + index + 64, count - 3); /* begins in the file and ends behind it */
        put32(bytes + index + 72, 12);
        put32(bytes + index + 80, 2);
        put32(bytes + index + 84, 2);
        CHECK_STATUS(cr_pack_read(pack, 2, &entry, &at), CR_ERR_FORMAT);
        cr_pack_close(pack);
        cr_free(bytes);
    }
}

static void wrong_folders_are_refused(void) {
    char               folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    struct cr_dataset *set = NULL;
    make_pack(folder, packed, 0, 1);
    CHECK_STATUS(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed"), CR_ERR_CONFIG);
    CHECK_STATUS(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(folder, root)), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "there is no");
    CHECK_HAS(cr_error_message(), "train.crpk");
    /* a validation set of other classes */
    struct cr_pack_options options = {.workers = 1};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=synthetic", "data.train_images=20"));
    REQUIRE_OK(cr_pack_dataset(set, text_into(path, "%s/val.crpk", packed), &options, &result));
    cr_dataset_close(set);
    CHECK_STATUS(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(packed, root)), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "different classes");
    REQUIRE(unlink(path) == 0 && mkdir(path, 0777) == 0);
    CHECK_STATUS(OPEN(CR_SPLIT_VAL, &set, "data.kind=packed", root), CR_ERR_IO);
    drop_folder(folder);
}

/* ---- writing under faults ---- */

/* The n-th change of the disk fails, for every n: nothing stays but what was there, and nothing leaks. */
static void failing_writes_leave_nothing(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH], out[SUPPORT_PATH];
    make_folder(folder);
    put_set(folder);
    text_into(out, "%s/out", folder);
    mkdir(out, 0777);
    text_into(path, "%s/train.crpk", out);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 1};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    int64_t   live = cr_alloc_live();
    int       nth  = 0;
    cr_status status;
    do {
        cr_fs_fail_at(++nth, 1, ENOSPC);
        status = cr_pack_dataset(set, path, &options, &result);
        cr_fs_fail_at(0, 0, 0);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_IO);
        CHECK_INT(cr_alloc_live(), live);
        if (access(path, F_OK) == 0) { /* only the last step, syncing the folder, comes after the rename */
            struct cr_pack *pack;
            REQUIRE_OK(cr_pack_open(path, &pack));
            cr_pack_close(pack);
            unlink(path);
        }
        CHECK(rmdir(out) == 0 && mkdir(out, 0777) == 0); /* it is empty */
    } while (nth < 200);
    CHECK(nth > 20 && nth < 200);
    cr_dataset_close(set);
    drop_folder(folder);
}

static void a_stopped_packing_leaves_what_was_there(void) {
    char   folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    size_t count, count_after;
    make_pack(folder, packed, 0, 1);
    text_into(path, "%s/train.crpk", packed);
    uint8_t               *before = read_bytes(path, &count);
    struct cr_dataset     *set;
    struct cr_pack_result  result;
    atomic_int             stop    = 2;
    struct cr_pack_options options = {.workers = 3, .raw_side = 10, .stop = &stop};
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    CHECK_STATUS(cr_pack_dataset(set, path, &options, &result), CR_ERR_INTERRUPTED);
    cr_dataset_close(set);
    uint8_t *after = read_bytes(path, &count_after);
    CHECK(count == count_after && !memcmp(before, after, count));
    cr_free(before);
    cr_free(after);
    unlink(path);
    unlink(text_into(path, "%s/val.crpk", packed));
    CHECK(rmdir(packed) == 0); /* nothing else was in it */
    drop_folder(folder);
}

static void failing_allocations_are_clean(void) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], packed_root[SUPPORT_PATH], path[SUPPORT_PATH];
    make_pack(folder, packed, 0, 1);
    root_is(packed, packed_root);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 1, .corrupt_fatal = true};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    for (int what = 0; what < 2; what++) {
        int64_t live = cr_alloc_live(), nth = 0;
        for (cr_status status = CR_ERR_MEMORY; status != CR_OK && nth < 500;) {
            struct cr_dataset *opened = NULL;
            struct cr_config   config;
            REQUIRE_OK(make_config(&config, "data.kind=packed", packed_root));
            cr_alloc_fail_at(++nth);
            status = what ? cr_dataset_open(&config, CR_SPLIT_TRAIN, &opened)
                          : cr_pack_dataset(set, text_into(path, "%s/x.crpk", folder), &options, &result);
            cr_alloc_fail_at(0);
            if (status != CR_OK) CHECK_STATUS(status, CR_ERR_MEMORY);
            cr_dataset_close(opened);
            cr_config_close(&config);
            CHECK_INT(cr_alloc_live(), live);
        }
        CHECK(nth > 4 && nth < 500);
    }
    cr_dataset_close(set);
    drop_folder(folder);
}

TESTS(CASE(checksums_are_crc32c), CASE(packed_pictures_are_those_of_the_files), CASE(packing_is_a_function_of_the_set),
      CASE(raw_pictures_prepare_as_the_files), CASE(sets_without_files_are_packed_raw),
      CASE(unreadable_pictures_are_left_out), CASE(cut_and_altered_files_are_refused), CASE(wrong_numbers_are_refused),
      CASE(an_altered_picture_is_skipped), CASE(verifying_names_the_first_fault),
      CASE(a_file_changed_in_use_is_refused), CASE(wrong_folders_are_refused), CASE(failing_writes_leave_nothing),
      CASE(a_stopped_packing_leaves_what_was_there), CASE(failing_allocations_are_clean))

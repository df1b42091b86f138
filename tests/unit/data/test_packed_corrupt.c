/* tests/unit/data/test_packed_corrupt.c: packed files that are truncated, changed or contain invalid numbers, and
 * packing that fails or is stopped. */
#include "core/checksum/crc32c.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/packed_support.h"

/* ---- invalid files ---- */

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

/* Recomputes the checksums of the current tables. */
static void update_checksums(uint8_t *bytes, size_t count) {
    uint64_t names = get(bytes + CR_PACK_AT_NAMES_BYTES, 8), index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
    if (names <= count - CR_PACK_HEADER_BYTES && index <= count) {
        uint32_t crc = cr_crc32c(0, bytes + CR_PACK_HEADER_BYTES, (size_t)names);
        put32(bytes + CR_PACK_AT_TABLES_CRC, cr_crc32c(crc, bytes + index, count - (size_t)index));
    }
    put32(bytes + CR_PACK_AT_HEADER_CRC, cr_crc32c(0, bytes, CR_PACK_AT_HEADER_CRC));
}

static cr_status try_bytes(const uint8_t *bytes, size_t count) {
    OWNED(pack) pack   = NULL;
    cr_status   status = cr_pack_open_bytes(bytes, count, "some.crpk", &pack);
    if (status != CR_OK) return status;
    status = cr_pack_verify(pack, 1);
    return status;
}

/* The bytes of a small packed dataset; cr_free. */
static uint8_t *pack_bytes(int raw, size_t *count) {
    make_pack(raw, 2);
    return read_bytes(in_folder("packed/train.crpk"), count);
}

TEST(truncated_and_changed_files_are_refused) {
    size_t       count;
    OWNED(bytes) bytes = pack_bytes(0, &count);
    REQUIRE(bytes && count > 2000);
    REQUIRE_OK(try_bytes(bytes, count));
    for (size_t cut = 0; cut < count; cut += 1 + cut / 50) {
        CHECK_STATUS(try_bytes(bytes, cut), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk");
        if (cut >= CR_PACK_HEADER_BYTES) CHECK_HAS(cr_error_message(), "cut off");
        CHECK_HAS(cr_error_message(), "cresnet data pack");
    }
    uint8_t *longer = cr_alloc(count + 1, 1);
    memcpy(longer, bytes, count);
    CHECK_STATUS(try_bytes(longer, count + 1), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "too long");
    cr_free(longer);
    /* The checksums cover every byte of the file: one flipped bit anywhere is found. */
    for (size_t i = 0; i < count; i += i < 400 || i > count - 600 ? 1 : 37) {
        bytes[i] ^= (uint8_t)(1 << i % 8);
        CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk");
        bytes[i] ^= (uint8_t)(1 << i % 8);
    }
}

TEST(invalid_numbers_are_refused) {
    size_t       count;
    OWNED(bytes) good = pack_bytes(0, &count);
    REQUIRE(good);
    OWNED(bytes) bytes = cr_alloc(count, 1);
    uint64_t     index = get(good + CR_PACK_AT_INDEX_OFFSET, 8), images = get(good + CR_PACK_AT_COUNT, 8);
    CHECK_INT(images, 16);
    static const uint64_t values[] = {
        0,         1, 2, 15, 17, 1000, 0x7fffffff, UINT32_MAX, 0x10000000000, 0x800000000000000, 0xffffffffffffffe0,
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
            if (fields[f].at != -20 || now > 1) { /* another existing label is only another label, not a fault */
                update_checksums(bytes, count);
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
    memcpy(bytes, good, count); /* images that overlap */
    put64(bytes + index + 32, get(good + index, 8));
    update_checksums(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    memcpy(bytes, good,
           count); /* a byte between the images and the index that belongs to no image, with valid checksums */
    uint64_t last = index + 32 * (images - 1), at = get(good + last, 8), shorter = get(good + last + 8, 4) - 1;
    put32(bytes + last + 8, shorter);
    put32(bytes + last + 24, cr_crc32c(0, bytes + at, (size_t)shorter));
    update_checksums(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "belong to no image");
    memcpy(bytes, good, count); /* no 0 after the last name; an empty name */
    bytes[CR_PACK_HEADER_BYTES + get(good + CR_PACK_AT_NAMES_BYTES, 8) - 1] = 'x';
    update_checksums(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "names");
    memcpy(bytes, good, count);
    bytes[CR_PACK_HEADER_BYTES] = 0;
    update_checksums(bytes, count);
    CHECK_STATUS(try_bytes(bytes, count), CR_ERR_FORMAT);
}

TEST(changed_image_is_skipped) {
    size_t count;
    make_pack(18, 2);
    uint8_t *bytes = read_bytes(in_folder("packed/train.crpk"), &count);
    bytes[get(bytes + get(bytes + CR_PACK_AT_INDEX_OFFSET, 8) + 5 * 32, 8)] ^= 1; /* the first byte of image 5 */
    write_bytes(in_folder("packed/train.crpk"), bytes, count);
    cr_free(bytes);
    OWNED(dataset)  set = NULL;
    struct cr_image image;
    int32_t         label;
    REQUIRE_OK(open_packed(CR_SPLIT_TRAIN, &set));
    CHECK_STATUS(cr_dataset_get(set, 5, &image, &label), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train.crpk: image 5");
    CHECK_HAS(cr_error_message(), "cresnet data pack");
    REQUIRE_OK(cr_dataset_get(set, 6, &image, &label));
    cr_image_free(&image);
    struct cr_loader_options options = {
        .split = CR_SPLIT_VAL, .batch = 16, .prefetch = 1, .prepare = {.size = 14, .eval_resize = 18}};
    OWNED(loader)   loader = NULL;
    struct cr_batch batch;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    REQUIRE_OK(cr_loader_next(loader, &batch));
    for (int i = 0; i < 16; i++) CHECK((batch.labels[i] < 0) == (i == 5));
    CHECK_INT(cr_loader_corrupt(loader), 1);
}

/* The first of several bad images is named, for any number of threads. */
TEST(verifying_names_the_first_fault) {
    size_t       count;
    OWNED(bytes) bytes = pack_bytes(0, &count);
    REQUIRE(bytes);
    uint64_t        index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
    struct cr_pack *pack;
    for (int workers = 0; workers < 6; workers++) {
        REQUIRE_OK(cr_pack_open_bytes(bytes, count, "some.crpk", &pack));
        REQUIRE_OK(cr_pack_verify(pack, workers));
        for (int i = 15; i >= 4; i -= 4) bytes[get(bytes + index + (uint64_t)i * 32, 8) + 9] ^= 1;
        CHECK_STATUS(cr_pack_verify(pack, workers), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "image 7 ");
        for (int i = 15; i >= 4; i -= 4) bytes[get(bytes + index + (uint64_t)i * 32, 8) + 9] ^= 1;
        cr_pack_close(pack);
    }
}

/* The file is overwritten in place after it was opened: the index was copied and stays right, the bytes of an image are
 * checked. */
TEST(file_changed_in_use_is_noticed) {
    for (int raw = 0; raw <= 18; raw += 18) {
        size_t       count;
        OWNED(bytes) bytes = pack_bytes(raw, &count);
        REQUIRE(bytes);
        OWNED(pack)          pack = NULL;
        struct cr_pack_entry entry;
        const uint8_t       *image;
        uint64_t             index = get(bytes + CR_PACK_AT_INDEX_OFFSET, 8);
        REQUIRE_OK(cr_pack_open_bytes(bytes, count, "some.crpk", &pack));
        const uint64_t at = cr_pack_entry(pack, 2).offset;
        memset(bytes + index, 0xff, count - index);
        REQUIRE_OK(cr_pack_read(pack, 2, &entry, &image));
        CHECK(entry.offset == at && image == bytes + at);
        bytes[at + 1] ^= 4;
        CHECK_STATUS(cr_pack_read(pack, 2, &entry, &image), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some.crpk: image 2 is damaged");
    }
}

/* A file that is shortened while a dataset is open: an error that names it, in loader threads too. data.corrupt = skip
 * does not take its images for corrupt ones. */
TEST(file_cut_in_use_is_an_error) {
    for (int raw = 0; raw <= 18; raw += 18) {
        OWNED(dataset)  set = NULL;
        struct cr_pack *pack;
        struct cr_image image;
        int32_t         label;
        make_pack(raw, 2);
        const char *path = in_folder("packed/train.crpk");
        REQUIRE_OK(cr_pack_open(path, &pack));
        const uint64_t third = cr_pack_entry(pack, 3).offset;
        cr_pack_close(pack);
        REQUIRE_OK(open_packed(CR_SPLIT_TRAIN, &set));
        REQUIRE(truncate(path, raw ? 0 : (off_t)third + 1) == 0);
        for (int workers = 4; workers >= 0; workers -= 4) { /* the first read is that of a worker */
            struct cr_loader_options options = {.split    = CR_SPLIT_TRAIN,
                                                .batch    = 16,
                                                .workers  = workers,
                                                .prefetch = 2,
                                                .prepare  = {.size = 14, .crop = CR_CROP_PAD}};
            OWNED(loader)            loader  = NULL;
            struct cr_batch          batch;
            REQUIRE_OK(cr_loader_open(set, &options, &loader));
            CHECK_STATUS(cr_loader_next(loader, &batch), CR_ERR_IO);
            CHECK_HAS(cr_error_message(), "train.crpk: was cut off while it was read");
            CHECK_INT(cr_loader_corrupt(loader), 0);
        }
        CHECK_STATUS(cr_dataset_get(set, 3, &image, &label), CR_ERR_IO);
        CHECK_HAS(cr_error_message(), "train.crpk: was cut off while it was read");
    }
}

TEST(invalid_folders_are_refused) {
    struct cr_dataset *set = NULL;
    make_pack(0, 1);
    CHECK_STATUS(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed"), CR_ERR_CONFIG);
    CHECK_STATUS(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(tmp_path)), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "does not exist");
    CHECK_HAS(cr_error_message(), "train.crpk");
    /* a validation set of other classes */
    struct cr_pack_options options = {.workers = 1};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=synthetic", "data.train_images=20"));
    const char *path = in_folder("packed/val.crpk");
    REQUIRE_OK(cr_pack_dataset(set, path, &options, &result));
    cr_dataset_close(set);
    CHECK_STATUS(open_packed(CR_SPLIT_TRAIN, &set), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "different classes");
    REQUIRE(unlink(path) == 0 && mkdir(path, 0777) == 0);
    CHECK_STATUS(open_packed(CR_SPLIT_VAL, &set), CR_ERR_IO);
}

/* ---- writing under faults ---- */

/* The n-th change of the disk fails, for every n: only the previous files remain, and nothing leaks. */
TEST(failing_writes_leave_nothing) {
    write_set();
    const char *out = in_folder("out"), *path = in_folder("out/train.crpk");
    mkdir(out, 0777);
    OWNED(dataset)         set     = NULL;
    struct cr_pack_options options = {.workers = 1};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    int       nth = 0;
    cr_status status;
    do {
        cr_fs_fail_at(++nth, 1, ENOSPC);
        status = cr_pack_dataset(set, path, &options, &result);
        cr_fs_fail_at(0, 0, 0);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_IO);
        if (access(path, F_OK) == 0) { /* only the last step, syncing the folder, comes after the rename */
            struct cr_pack *pack;
            REQUIRE_OK(cr_pack_open(path, &pack));
            cr_pack_close(pack);
            unlink(path);
        }
        CHECK(rmdir(out) == 0 && mkdir(out, 0777) == 0); /* it is empty */
    } while (nth < 200);
    CHECK(nth > 20 && nth < 200);
}

TEST(stopped_packing_keeps_previous_files) {
    struct cr_dataset     *set;
    struct cr_pack_result  result;
    atomic_int             stop    = 2;
    struct cr_pack_options options = {.workers = 3, .raw_side = 10, .stop = &stop};
    make_pack(0, 1);
    REQUIRE(link(in_folder("packed/train.crpk"), in_folder("before")) == 0);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    CHECK_STATUS(cr_pack_dataset(set, in_folder("packed/train.crpk"), &options, &result), CR_ERR_INTERRUPTED);
    cr_dataset_close(set);
    CHECK(same_bytes(in_folder("before"), in_folder("packed/train.crpk")));
    unlink(in_folder("packed/train.crpk"));
    unlink(in_folder("packed/val.crpk"));
    CHECK(rmdir(in_folder("packed")) == 0); /* it contained nothing else */
}

TEST(failing_allocations_are_reported) {
    make_pack(0, 1);
    OWNED(dataset)         set     = NULL;
    struct cr_pack_options options = {.workers = 1, .corrupt_fatal = true};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    for_each_failing_alloc(f, .least = 4) {
        failing_alloc_run(&f, cr_pack_dataset(set, in_folder("x.crpk"), &options, &result));
    }
    for_each_failing_alloc(f, .least = 4) {
        OWNED(config)  config = NULL;
        OWNED(dataset) opened = NULL;
        REQUIRE_OK(make_config(&config, "data.kind=packed", root_is(in_folder("packed"))));
        failing_alloc_run(&f, cr_dataset_open(config, CR_SPLIT_TRAIN, &opened));
    }
}

/* tests/harness/safetensors_demo.h: helpers of the two safetensors test programs: a folder for a case, and the demo
 * tensors of tests/tools/st.py. */
#ifndef SAFETENSORS_DEMO_H
#define SAFETENSORS_DEMO_H

#include "tests/harness/folder.h"

#define GOLDEN CR_SOURCE_DIR "/tests/golden/safetensors/"

/* ---- the demo of st.py ---- */

static const float    demo_a[6] = {-1, -0.5f, 0, 0.5f, 1, 1.5f};
static const double   demo_b[2] = {1.0 / 3, -1e300};
static const uint16_t demo_c[4] = {0x3e00, 0xb400, 0x7bff, 0x0001};
static const uint16_t demo_d[4] = {0x3f80, 0xc020, 0x4049, 0x006d};
static const uint8_t  demo_e[3] = {0, 7, 255};
static const int32_t  demo_f[2] = {-5, 2147483647};
static const int64_t  demo_g    = 123456789012;
static const float    demo_i[1] = {42};
#define NAME_I "i \"\u00fc\\\u20ac\U0001f600"

static const struct demo {
    struct cr_st_entry entry;
    const void        *data;
} demo[] = {
    {{.name = NAME_I, .dtype = CR_F32, .dims = 1, .dim = {1}}, demo_i},
    {{.name = "e.u8", .dtype = CR_U8, .dims = 1, .dim = {3}}, demo_e},
    {{.name = "a.weight", .dtype = CR_F32, .dims = 2, .dim = {2, 3}}, demo_a},
    {{.name = "g.count", .dtype = CR_I64}, &demo_g},
    {{.name = "f.i32", .dtype = CR_I32, .dims = 1, .dim = {2}}, demo_f},
    {{.name = "d.bf16", .dtype = CR_BF16, .dims = 1, .dim = {4}}, demo_d},
    {{.name = "c.f16", .dtype = CR_F16, .dims = 1, .dim = {4}}, demo_c},
    {{.name = "b.f64", .dtype = CR_F64, .dims = 1, .dim = {2}}, demo_b},
    {{.name = "h.empty", .dtype = CR_F32, .dims = 2, .dim = {0, 5}}, NULL},
};
enum { DEMO = CR_COUNT(demo) };

/* Writes the demo with its entries rotated by `shift` places. */
static inline cr_status write_demo(const char *path, size_t shift) {
    struct cr_st_entry      entries[DEMO];
    const struct cr_st_meta meta[2][3] = {{{"format", "pt"}, {"b", ""}, {"answer", "forty \"two\""}},
                                          {{"b", ""}, {"answer", "forty \"two\""}, {"format", "pt"}}};
    struct cr_st_writer    *writer;
    for (size_t i = 0; i < DEMO; i++) entries[i] = demo[(i + shift) % DEMO].entry;
    CR_TRY(cr_st_create(path, entries, DEMO, meta[shift % 2], 3, &writer));
    for (int i = 0; i < DEMO; i++) {
        const struct demo *d     = &demo[((size_t)cr_st_writer_index(writer, i) + shift) % DEMO];
        size_t             bytes = (size_t)cr_st_writer_entry(writer, i)->bytes, half = bytes / 2;
        cr_status          status = cr_st_write(writer, d->data, half);
        if (status == CR_OK) status = cr_st_write(writer, d->data ? (const char *)d->data + half : NULL, bytes - half);
        if (status != CR_OK) {
            cr_st_abandon(writer);
            return status;
        }
    }
    CR_TRY(cr_st_finish(&writer));
    return CR_OK;
}

static inline cr_status write_raw(const char *path, const char *header, uint64_t header_bytes, size_t data_bytes) {
    char bytes[1024] = {0};
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, strlen(header));
    return cr_fs_write_new(path, bytes, 8 + strlen(header) + data_bytes);
}

/* The file has the tensors of the demo, and each can be read in parts. */
static inline void check_demo_tensors(struct cr_st_file *file) {
    CHECK_INT(cr_st_count(file), DEMO);
    for (size_t i = 0; i < DEMO; i++) {
        const struct cr_st_entry *want = &demo[i].entry, *got = cr_st_find(file, want->name);
        unsigned char             data[64] = {0};
        CHECK(got != NULL);
        if (!got) continue;
        CHECK_INT(got->dtype, want->dtype);
        CHECK_INT(got->dims, want->dims);
        for (int d = 0; d < want->dims; d++) CHECK_INT(got->dim[d], want->dim[d]);
        REQUIRE_OK(cr_st_read(file, got, 0, data, (size_t)got->bytes));
        CHECK(!got->bytes || !memcmp(data, demo[i].data, (size_t)got->bytes));
        for (size_t from = 0; from < got->bytes; from++) { /* any part, also of strided tensors */
            memset(data, 0, sizeof data);
            REQUIRE_OK(cr_st_read(file, got, from, data, (size_t)got->bytes - from));
            CHECK(!memcmp(data, (const char *)demo[i].data + from, (size_t)got->bytes - from));
            REQUIRE_OK(cr_st_read(file, got, from, data, 1));
            CHECK_INT(data[0], ((const unsigned char *)demo[i].data)[from]);
        }
    }
}

#endif

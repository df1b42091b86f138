/* tests/unit/checkpoint/test_checkpoint_sparse.c: sparse tensors in files: gaps computed by hand, corrupt parts, and
 * reading them as dense tensors. */
#include "checkpoint/checkpoint.h"
#include "tests/harness/config_support.h"
#include "tests/harness/failing_alloc.h"

TEST(gaps_by_hand) {
    uint8_t bits[128] = {0}, out[64];
    CHECK_INT(cr_ckpt_gaps(bits, 1000, out), 0);
    const int nonzeros[] = {0, 1, 5, 260, 515, 771}; /* gaps 0, 0, 3, 254, 254, 255 */
    for (size_t i = 0; i < CR_COUNT(nonzeros); i++)
        bits[nonzeros[i] / 8] = (uint8_t)(bits[nonzeros[i] / 8] | 1u << (nonzeros[i] % 8));
    static const uint8_t want[] = {0, 0, 3, 254, 254, 255, 0};
    CHECK_INT(cr_ckpt_gaps(bits, 1000, NULL), sizeof want);
    CHECK_INT(cr_ckpt_gaps(bits, 1000, out), sizeof want);
    CHECK(memcmp(out, want, sizeof want) == 0);
    CHECK_INT(cr_ckpt_gaps(bits, 600, out), 5); /* bits beyond the end do not count */
}

/* ---- files ---- */

struct file {
    int64_t       shape[5];
    int           dims, values, gaps;
    enum cr_dtype values_type;
    uint8_t       gap[16];
    const char   *version;
};
static const struct file good = {.shape       = {2, 3, 1, 50},
                                 .dims        = 4,
                                 .values      = 3,
                                 .gaps        = 4,
                                 .values_type = CR_F32,
                                 .gap         = {1, 255, 2, 39},
                                 .version     = "1"}; /* elements 1, 259 and 299 of 300 */

static const char *make(const struct file *f) {
    static const float       value[16] = {1.5f, 0, -2, 4};
    const char              *path      = in_folder("sparse.safetensors");
    const float              bias[2]   = {7, 8};
    const struct cr_st_entry entries[] = {{.name = "w.shape", .dtype = CR_I64, .dims = 1, .dim = {f->dims}},
                                          {.name = "bias", .dtype = CR_F32, .dims = 1, .dim = {2}},
                                          {.name = "w.values", .dtype = f->values_type, .dims = 1, .dim = {f->values}},
                                          {.name = "w.gaps", .dtype = CR_U8, .dims = 1, .dim = {f->gaps}}};
    const void              *bytes[]   = {f->shape, bias, value, f->gap};
    const struct cr_st_meta  meta      = {CR_CKPT_SPARSE_KEY, f->version};
    struct cr_st_writer     *writer;
    unlink(path);
    if (cr_st_create(path, entries, 4, &meta, 1, &writer) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    for (int i = 0; i < 4; i++)
        if (cr_st_write(writer, bytes[cr_st_writer_index(writer, i)], (size_t)cr_st_writer_entry(writer, i)->bytes) !=
            CR_OK)
            TEST_FAIL_("%s", cr_error_message());
    if (cr_st_finish(&writer) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return path;
}

TEST(read_as_dense) {
    struct cr_ckpt_sparse s;
    struct cr_st_file    *file;
    bool                  sparse;
    float                 dense[300], bias[2];
    const char           *from = make(&good), *to = in_folder("dense.safetensors");
    REQUIRE_OK(cr_st_open(from, &file));
    REQUIRE_OK(cr_ckpt_is_sparse(file, from, &sparse));
    CHECK(sparse && cr_ckpt_has_sparse(file, "w") && !cr_ckpt_has_sparse(file, "bias"));
    REQUIRE_OK(cr_ckpt_sparse_read(file, from, "w", &s));
    CHECK(s.dims == 4 && s.elems == 300 && s.nnz == 3 && s.dim[3] == 50 && s.value[2] == -2);
    cr_ckpt_sparse_free(&s);
    cr_st_close(file);
    unlink(to);
    REQUIRE_OK(cr_ckpt_export_dense(from, to, NULL));
    REQUIRE_OK(cr_ckpt_export_dense(from, to, NULL)); /* exists: replaced */
    REQUIRE_OK(cr_st_open(to, &file));
    CHECK_INT(cr_st_count(file), 2);
    CHECK(cr_st_meta_find(file, CR_CKPT_SPARSE_KEY) == NULL);
    CHECK_STR(cr_st_meta_find(file, "format"), "pt");
    const struct cr_st_entry *w = cr_st_find(file, "w"), *b = cr_st_find(file, "bias");
    REQUIRE(w && b && w->dims == 4 && w->dim[0] == 2 && w->dim[3] == 50 && w->bytes == sizeof dense);
    REQUIRE_OK(cr_st_read(file, w, 0, dense, sizeof dense));
    REQUIRE_OK(cr_st_read(file, b, 0, bias, sizeof bias));
    for (int i = 0; i < 300; i++)
        CHECK(dense[i] == (i == 1 ? 1.5f : i == 299 ? -2.0f : 0)); /* the stored value of element 259 is 0 */
    CHECK(bias[0] == 7 && bias[1] == 8);
    cr_st_close(file);
}

TEST(corrupt_files_are_refused) {
    for (int i = 0; i < 9; i++) {
        struct file f = good;
        switch (i) {
        case 0: f.gap[3] = 40; break;  /* beyond the end */
        case 1: f.gaps = 3; break;     /* more values than gaps */
        case 2: f.values = 2; break;   /* fewer */
        case 3: f.gap[3] = 255; break; /* ends in the middle of a gap */
        case 4: f.shape[0] = 0; break;
        case 5: f.shape[0] = f.shape[1] = (int64_t)1 << 40; break;
        case 6:
            f.dims     = 5;
            f.shape[4] = 1;
            break;
        case 7: f.values_type = CR_I32; break;
        default: f.version = "2"; break;
        }
        const char *from = make(&f), *to = in_folder("never.safetensors");
        CHECK_STATUS(cr_ckpt_export_dense(from, to, NULL), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "sparse.safetensors: ");
        CHECK(access(to, F_OK) != 0);
    }
}

TEST(failures_leak_nothing) {
    const char *from = make(&good), *to = in_folder("again.safetensors");
    for_each_failing_alloc(f, .least = 10) {
        const cr_status status = failing_alloc_run(&f, cr_ckpt_export_dense(from, to, NULL));
        CHECK((access(to, F_OK) == 0) == (status == CR_OK));
    }
}

/* tests/unit/data/test_load_need.c: cores and workers that loading needs, and the hint of a training that waits. The
 * figures are computed by hand. */
#include "data/load_need.h"
#include "tests/harness/test.h"

static const int64_t MS = 1000000;

/* 1,000 photos of 110 KB: 0.1 ms to read, 1 ms to decode, 0.5 ms to resize, 0.02 ms to copy. */
static struct cr_load_counts photos(void) {
    return (struct cr_load_counts){.images     = 1000,
                                   .file_bytes = 110000000,
                                   .fetch_ns   = 100 * MS,
                                   .decode_ns  = 1000 * MS,
                                   .resize_ns  = 500 * MS,
                                   .other_ns   = 20 * MS,
                                   .cpu_ns     = 1600 * MS};
}

static void check_hint(const struct cr_load_counts *counts, double rate, int cores, int workers, const char *want) {
    const struct cr_load_need   need   = cr_load_need(counts, rate);
    const struct cr_load_supply supply = {
        .cores = cores, .workers = workers, .pack_size = 256, .gpu = counts->jpegs > 0};
    OWNED(text) text = {0};
    cr_load_hint(&need, &supply, &text);
    CHECK_STR(text.data, want);
}

TEST(need_is_time_per_image_times_rate) {
    const struct cr_load_counts c = photos();
    const struct cr_load_need   n = cr_load_need(&c, 10000);
    CHECK_NEAR(n.read, 1, 1e-9);
    CHECK_NEAR(n.decode, 10, 1e-9);
    CHECK_NEAR(n.resize, 5, 1e-9);
    CHECK_NEAR(n.copy, 0.2, 1e-9);
    CHECK_NEAR(n.threads, 16.2, 1e-9);
    CHECK_NEAR(n.cores, 16, 1e-9);
    CHECK_NEAR(n.bytes_per_image, 110000, 1e-6);
    CHECK(cr_load_need(&(struct cr_load_counts){0}, 10000).threads == 0);
}

/* Two threads on each core: every time doubles but the CPU time. */
TEST(threads_that_share_cores_count_once) {
    struct cr_load_counts c = photos();
    c.decode_ns *= 2, c.resize_ns *= 2, c.other_ns *= 2, c.cpu_ns = 1520 * MS;
    const struct cr_load_need n = cr_load_need(&c, 10000);
    CHECK_NEAR(n.decode, 10, 1e-9);
    CHECK_NEAR(n.resize, 5, 1e-9);
    CHECK_NEAR(n.cores, 15.2, 1e-9);
}

TEST(hint_names_what_is_short) {
    struct cr_load_counts c = photos();
    check_hint(&c, 12000, 8, 8,
               "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data pack --jpeg=256");
    check_hint(&c, 12000, 8, 2,
               "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data.workers=8 and data pack "
               "--jpeg=256");
    check_hint(&c, 2000, 8, 2, "decoding needs 2.0 of 3.2 workers at 2000 images/s, there are 2: data.workers=4");
    check_hint(&c, 2000, 4, 1, "decoding needs 2.0 of 3.2 workers at 2000 images/s, there is 1: data.workers=4");
    check_hint(&c, 500, 8, 2,
               "decoding needs 0.5 of 0.8 workers at 500 images/s, there are 2: other programs use the cores, or a "
               "larger data.prefetch helps");
    c.jpegs = 900; /* a GPU could decode them */
    check_hint(&c, 12000, 8, 8, "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data.decode=auto");
    check_hint(&c, 12000, 8, 2,
               "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data.workers=8 and data.decode=auto");
    c.jpegs = 400;
    check_hint(&c, 12000, 8, 8,
               "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data pack --jpeg=256");
    c.jpegs      = 0;
    c.file_bytes = 25000000; /* small files: only pixels are faster */
    check_hint(&c, 12000, 8, 8,
               "decoding needs 12.0 of 19.2 cores at 12000 images/s, there are 8: data pack --raw=256");
    c.resize_ns = 2000 * MS, c.cpu_ns = 3120 * MS;
    check_hint(&c, 12000, 8, 8,
               "resizing needs 24.0 of 37.4 cores at 12000 images/s, there are 8: data pack --raw=256");
    c = (struct cr_load_counts){
        .images = 1000, .file_bytes = 150000000, .fetch_ns = 10 * MS, .other_ns = 2000 * MS, .cpu_ns = 2000 * MS};
    check_hint(&c, 12000, 8, 8, "copying needs 24.0 of 24.0 cores at 12000 images/s, there are 8: more cores help");
}

/* A slow disk: each file takes 20 ms, of which 0.1 ms is CPU time. */
TEST(slow_reads_want_more_workers_and_smaller_files) {
    struct cr_load_counts c = photos();
    c.fetch_ns              = 20000 * MS;
    check_hint(&c, 1000, 16, 8,
               "reading needs 20.0 of 21.5 workers at 1000 images/s (110 MB/s), there are 8: data.workers=22 and data "
               "pack --jpeg=256");
    check_hint(&c, 1000, 4, 8,
               "reading needs 20.0 of 21.5 workers at 1000 images/s (110 MB/s), there are 8: data.workers=16 and data "
               "pack --jpeg=256");
}

/* tests/unit/autotune/test_copy_rates.c: rates of copies between host and device in the cost table, on a fake device
 * where each direction takes a given time. Checks the rates, that they are measured once, and where they are saved. */
#include "autotune/cost_table_internal.h"

#include "tests/harness/data_support.h"
#include "tests/harness/fake_device.h"

static double stream_s[CR_STREAMS]; /* clock of each stream */
static double out_bytes_per_s, in_bytes_per_s, latency_s;
static int    copies;

/* Large blocks, which nothing reads. */
static cr_status new_memory(struct cr_device *d, size_t bytes, void **out) {
    return fake_reserve(d, bytes > memory_max ? bytes : 1, out);
}
static cr_status copy(struct cr_device *d, enum cr_stream stream, void *dst, const void *src, size_t bytes) {
    copies++;
    stream_s[stream] += latency_s + (double)bytes / (stream == CR_STREAM_TO_HOST ? out_bytes_per_s : in_bytes_per_s);
    return CR_OK;
}
static cr_status stream_record(struct cr_device *d, enum cr_stream l, void *m) {
    return *(double *)m = stream_s[l], CR_OK;
}
static cr_status stream_wait_event(struct cr_device *d, enum cr_stream l, void *m) {
    stream_s[l] = fmax(stream_s[l], *(double *)m);
    return CR_OK;
}
static cr_status wait_for_all(struct cr_device *d, void *m) {
    for (int l = 0; l < CR_STREAMS; l++) stream_s[CR_STREAM_COMPUTE] = fmax(stream_s[CR_STREAM_COMPUTE], stream_s[l]);
    return CR_OK;
}
static const struct cr_async   async   = {.host_reserve      = new_memory,
                                          .host_release      = fake_release,
                                          .put               = copy,
                                          .get               = copy,
                                          .event_create      = event_create,
                                          .event_destroy     = event_destroy,
                                          .event_record      = stream_record,
                                          .stream_wait_event = stream_wait_event,
                                          .host_wait         = wait_for_all,
                                          .elapsed           = elapsed};
static const struct cr_backend backend = {
    .name = "fake", .reserve = new_memory, .release = fake_release, .async = &async};
static const struct cr_kernel        row_out   = {.name = "fake.out", .op = CR_OP_offload, .deterministic = true};
static const struct cr_kernel        row_in    = {.name = "fake.in", .op = CR_OP_prefetch, .deterministic = true};
static const struct cr_kernel *const kernels[] = {&row_in, &row_out, NULL};
static struct cr_device              device    = {.backend = &backend,
                                                  .kernels = kernels,
                                                  .caps    = {.alignment             = 256,
                                                              .bytes_per_s           = 2e12,
                                                              .to_host_bytes_per_s   = 7,
                                                              .to_device_bytes_per_s = 8,
                                                              .copy_latency_s        = 9,
                                                              .text                  = "fake, 1"}};

/* The cost model of a fresh table over `path`; fills `text`, when given, with the table that a checkpoint would get. */
static struct cr_cost_model checked(const char *path, const char *pinned, char **text) {
    struct cr_cost_table *costs = NULL;
    struct cr_cost_model  t     = {0};
    CHECK_STATUS(cr_cost_table_open(&device, path, &costs), CR_OK);
    if (!costs) return t;
    if (pinned) CHECK_STATUS(cr_cost_table_load_fixed(costs, pinned, strlen(pinned), "checkpoint"), CR_OK);
    t = cr_cost_table_model(costs);
    CHECK(t.to_host_bytes_per_s == 7 && t.to_device_bytes_per_s == 8 && t.copy_latency_s == 9); /* not measured yet */
    CHECK_STATUS(cr_cost_table_copy_rates(costs, &t), CR_OK);
    const struct cr_cost_model later = cr_cost_table_model(costs);
    CHECK(later.to_host_bytes_per_s == t.to_host_bytes_per_s && later.copy_latency_s == t.copy_latency_s);
    if (text) CHECK_STATUS(cr_cost_table_text(costs, text), CR_OK);
    cr_cost_table_flush(costs);
    cr_cost_table_close(costs);
    return t;
}

static void set_rates(double out, double in, double latency) {
    out_bytes_per_s = out;
    in_bytes_per_s  = in;
    latency_s       = latency;
    memory_max      = SIZE_MAX;
    copies          = 0;
}

TEST(rates_are_measured_once_and_saved) {
    const char   *path = in_folder("kernel_times.txt"), *other = in_folder("other.txt");
    OWNED(string) text = NULL;
    set_rates(50e9, 40e9, 5e-6);
    const struct cr_cost_model first = checked(path, NULL, &text);
    CHECK_NEAR(first.to_host_bytes_per_s, 50e9, 0.5e9); /* the few bytes of a small copy count as latency */
    CHECK_NEAR(first.to_device_bytes_per_s, 40e9, 0.5e9);
    CHECK_NEAR(first.copy_latency_s, 5e-6, 1e-8);
    CHECK_NEAR(first.duplex_speedup, 1, 1e-3); /* the streams of this device do not slow each other down */
    /* its memory moves 2e12 bytes a second: kernels lose what the copies take */
    CHECK_NEAR(first.contention_out, 50e9 / 2e12, 1e-3);
    CHECK_NEAR(first.contention_in, 40e9 / 2e12, 1e-3);
    CHECK_NEAR(first.loaded_copy_slowdown, 1.13, 1e-6);
    CHECK(copies > 0 && text && strstr(text, "fake.out") && strstr(text, "fake.in"));
    set_rates(1e9, 1e9, 1e-3); /* as if the machine had changed: nothing is measured again */
    const struct cr_cost_model second = checked(path, NULL, NULL);
    CHECK_INT(copies, 0);
    CHECK(second.to_host_bytes_per_s == first.to_host_bytes_per_s &&
          second.to_device_bytes_per_s == first.to_device_bytes_per_s);
    /* the rates of a checkpoint take precedence over those of a file */
    (void)checked(other, NULL, NULL);
    CHECK(copies > 0);
    copies                           = 0;
    const struct cr_cost_model third = checked(other, text, NULL);
    CHECK_INT(copies, 0);
    CHECK(third.to_host_bytes_per_s == first.to_host_bytes_per_s && third.copy_latency_s == first.copy_latency_s);
}

TEST(rates_of_another_device_are_read) {
    folder_open();
    const char *path = in_folder("kernel_times.txt");
    set_rates(50e9, 40e9, 5e-6);
    (void)checked(path, NULL, NULL);
    copies                      = 0;
    struct cr_cost_table *load  = NULL;
    struct cr_device      other = device;
    snprintf(other.caps.text, sizeof other.caps.text, "another one");
    REQUIRE_OK(cr_cost_table_load(&other, path, &load));
    struct cr_cost_model t = cr_cost_table_model(load);
    REQUIRE_OK(cr_cost_table_copy_rates(load, &t));
    CHECK_INT(copies, 0);
    CHECK_NEAR(t.to_host_bytes_per_s, 50e9, 0.5e9);
    CHECK_NEAR(t.loaded_copy_slowdown, 1.13, 1e-6);
    cr_cost_table_flush(load); /* writes nothing */
    cr_cost_table_close(load);
    load                                           = NULL;
    static const struct cr_kernel *const only_in[] = {&row_in, NULL};
    other.kernels                                  = only_in;
    CHECK_STATUS(cr_cost_table_load(&other, path, &load), CR_ERR_FORMAT); /* kernels that this device does not have */
    CHECK(load == NULL);
    CHECK_HAS(cr_error_message(), "which this version no longer has");
    cr_error_clear();
    CHECK(cr_cost_table_load(&other, tmp_path, &load) != CR_OK && load == NULL);
    cr_error_clear();
}

TEST(without_memory_default_rates_are_used) {
    OWNED(string) text = NULL;
    set_rates(50e9, 40e9, 5e-6);
    memory_max                   = 1 << 20;
    const struct cr_cost_model t = checked("", NULL, &text);
    CHECK(t.to_host_bytes_per_s == 7 && t.to_device_bytes_per_s == 8 && t.copy_latency_s == 9);
    CHECK(text && !strstr(text, "fake.out"));
    CHECK_INT(copies, 0);
}

/* A plan needs seconds: those of a copy follow from its bytes, a barrier takes none. */
TEST(copy_time_follows_from_bytes) {
    OWNED(cost_table) costs   = NULL;
    OWNED(program)    p       = {0};
    double            seconds = -1;
    set_rates(50e9, 25e9, 1e-5);
    REQUIRE_OK(cr_cost_table_open(&device, "", &costs));
    struct cr_cost_model t = cr_cost_table_model(costs);
    REQUIRE_OK(cr_cost_table_copy_rates(costs, &t));
    cr_program_init(&p, "p", NULL);
    const int    x   = cr_tensor_add(&p, "x", CR_F32, CR_REGION_POOL, 1, 1, 1, 25000000);
    const int    h   = cr_tensor_add(&p, "h", CR_F32, CR_REGION_HOST, 1, 1, 1, 25000000);
    struct cr_op out = cr_op_make(CR_OP_offload, CR_NONE), in = cr_op_make(CR_OP_prefetch, CR_NONE),
                 sync       = cr_op_make(CR_OP_barrier, CR_NONE);
    out.in[CR_IN_offload_x] = in.out[CR_OUT_prefetch_y] = x;
    out.out[CR_OUT_offload_y] = in.in[CR_IN_prefetch_x] = h;
    CHECK_STATUS(t.cost(t.self, &p, &out, &seconds), CR_OK);
    CHECK_NEAR(seconds, 2e-3 + 1e-5, 2e-5);
    CHECK_STATUS(t.cost(t.self, &p, &in, &seconds), CR_OK);
    CHECK_NEAR(seconds, 4e-3 + 1e-5, 4e-5);
    CHECK_STATUS(t.cost(t.self, &p, &sync, &seconds), CR_OK);
    CHECK(seconds == 0 && cr_op_seconds(&t, &p, &sync) == 0);
    CHECK_INT(p.region_bytes[CR_REGION_HOST], 100000000);
}

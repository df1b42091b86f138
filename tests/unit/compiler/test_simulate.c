/* tests/unit/compiler/test_simulate.c: the simulation of a program with copies, against times computed by hand. */
#include "compiler/memory/offload.h"
#include "compiler/simulate.h"
#include "tests/harness/test.h"
#include "tests/harness/timed_program.h"

TEST(streams_run_in_parallel) {
    struct hand                h     = {.seconds = {1, 2, 5, 4, 1, 3}};
    const struct cr_contention alike = {.duplex = 1};
    struct cr_op_time          time[6];
    struct cr_simulation       r;
    cr_program_init(&h.p, "streams", NULL);
    int t[6];
    for (int i = 0; i < 6; i++) t[i] = hand_tensor(&h, formatted("t%d", i), 1);
    for (int i = 0; i < 6; i++) hand_op(&h, h.seconds[i], i ? t[i - 1] : t[0], -1, t[i]);
    h.p.op[2].stream  = CR_STREAM_TO_HOST;   /* waits for op 0, 1 to 6 */
    h.p.op[4].stream  = CR_STREAM_TO_DEVICE; /* waits for op 2: 6 to 7 */
    h.p.op[2].wait[0] = 0;
    h.p.op[4].wait[0] = 2;
    h.p.op[5].wait[0] = 4; /* compute: 0 to 1, 1 to 3, 3 to 7 (op 3), then op 5 at 7 */
    cr_program_simulate(&h.p, h.seconds, &alike, time, &r);
    CHECK_NEAR(time[1].start, 1, 0);
    CHECK_NEAR(time[2].start, 1, 0);
    CHECK_NEAR(time[2].stall, 1, 0);
    CHECK_NEAR(time[3].end, 7, 0);
    CHECK_NEAR(time[4].start, 6, 0);
    CHECK_NEAR(time[5].start, 7, 0);
    CHECK_NEAR(time[5].stall, 0, 0);
    CHECK_NEAR(r.total, 10, 0);
    CHECK_NEAR(r.stalled, 0, 0);
    h.seconds[2] = 9; /* 1 to 10; op 4 10 to 11; op 5 starts at 11 after 7: 4 s of waiting */
    cr_program_simulate(&h.p, h.seconds, &alike, time, &r);
    CHECK_NEAR(time[5].stall, 4, 0);
    CHECK_NEAR(r.total, 14, 0);
    CHECK_NEAR(r.stalled, 4, 0);
    cr_program_free(&h.p);
}

/* A copy alone takes 5 s; while another copy runs, it has 0.75 of its rate, and the later copy half: see
 * cr_copy_end. */
TEST(copies_slow_each_other_down) {
    const struct cr_cost_model t = {.to_host_bytes_per_s = 3, .to_device_bytes_per_s = 3, .duplex_speedup = 4.0 / 3};
    CHECK_NEAR(cr_copy_contention(&t), 0.5, 1e-12); /* 3 and 3 are 6; the first takes 4, 2 are left */
    CHECK_NEAR(cr_copy_seconds(&t, CR_STREAM_TO_HOST, 20), 5, 1e-12);
    CHECK_NEAR(cr_copy_end(10, 5, 9, 0.5), 15, 1e-12);
    CHECK_NEAR(cr_copy_end(10, 5, 14, 0.5), 17, 1e-12); /* 4 s at half rate complete 2 of 5 */
    CHECK_NEAR(cr_copy_end(10, 5, 20, 0.5), 20, 1e-12);
    CHECK_NEAR(cr_copy_end(10, 5, 30, 0.5), 20, 1e-12);
    const struct cr_cost_model plain = {.to_host_bytes_per_s = 4};
    CHECK_NEAR(cr_copy_contention(&plain), 1, 1e-12);
    CHECK_NEAR(cr_copy_seconds(&plain, CR_STREAM_TO_HOST, 20), 5, 1e-12);
}

/* Of 10 s of work, 40 % keep the memory busy: during a copy out (4 s) it takes 4 * 0.4 * 0.5 more, during a copy in (10
 * s and more) 10 * 0.4 * 0.25. A copy to the host takes longer during any work. */
TEST(work_and_copies_slow_each_other_down) {
    const double               moving[1] = {0.4};
    const struct cr_cost_model t         = {.contention_out = 0.5, .contention_in = 0.25};
    const struct cr_contention b = cr_contention_of(&t, moving), none = cr_contention_of(&t, NULL);
    CHECK_NEAR(cr_kernel_end(&b, 0, 100, 10, 0, 0), 110, 1e-12);
    CHECK_NEAR(cr_kernel_end(&b, 0, 100, 10, 104, 0), 110.8, 1e-12);
    CHECK_NEAR(cr_kernel_end(&b, 0, 100, 10, 104, 200), 111.8, 1e-12);
    CHECK_NEAR(cr_kernel_end(&none, 0, 100, 10, 104, 200), 110, 1e-12);
    const struct cr_cost_model rates = {
        .to_host_bytes_per_s = 2, .to_device_bytes_per_s = 2, .loaded_copy_slowdown = 1.5};
    CHECK_NEAR(cr_copy_seconds(&rates, CR_STREAM_TO_HOST, 8), 6, 1e-12);
    CHECK_NEAR(cr_copy_seconds(&rates, CR_STREAM_TO_DEVICE, 8), 4, 1e-12);
}

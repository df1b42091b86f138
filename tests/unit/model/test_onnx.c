/* tests/unit/model/test_onnx.c: the ONNX export when memory runs out. What the files compute:
 * tests/cli/test_onnx_nodes.py. */
#include "model/onnx.h"
#include "session/checkpoint_tensors.h"
#include "tests/harness/failing_alloc.h"

#include <unistd.h>

TEST(failing_allocations) {
    static const char *const        overrides[] = {"model.arch=custom", "model.depths=1,1",  "model.widths=4,8",
                                                   "model.stem=cifar",  "model.block=basic", "data.kind=synthetic",
                                                   "data.image_size=8", "train.batch=2",     "train.device=cpu"};
    OWNED(config)                   c           = NULL;
    OWNED(session)                  s           = {0};
    OWNED(program)                  eval        = {0};
    OWNED(floats)                   value = NULL, running = NULL;
    const struct cr_session_options o    = {.eval = true, .execute = true, .classes = 3};
    const char *const               path = formatted("/tmp/cresnet-onnx-%d", (int)getpid());
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, CR_COUNT(overrides)));
    REQUIRE_OK(cr_session_open(c, &o, &s));
    REQUIRE_OK(cr_session_init(&s));
    REQUIRE_OK(cr_model_program(&s.model, c, CR_PROGRAM_EVAL, 1, &eval));
    REQUIRE_OK(cr_state_buffer_copy(&s, CR_BUFFER_VALUE, &value));
    REQUIRE_OK(cr_state_buffer_copy(&s, CR_BUFFER_RUNNING, &running));
    const char *const            names[] = {"a\"b", "\xc3\xa4", "c"};
    const struct cr_onnx_network network = {.eval        = &eval,
                                            .value       = value,
                                            .running     = running,
                                            .prepare     = &s.prepare_eval,
                                            .class_names = names,
                                            .classes     = 3,
                                            .fold        = true};
    int                          integer_max;
    for_each_failing_alloc(f, .least = 20) {
        const cr_status status = failing_alloc_run(&f, cr_onnx_write(&network, path, &integer_max));
        CHECK((access(path, F_OK) == 0) == (status == CR_OK));
    }
    unlink(path);
}

/* tests/unit/model/test_teacher.c: the teacher's ops in a student's programs: folded, in the form for inference, never
 * written, and with constants inside their buffers. test_golden_train.c compares whole runs with PyTorch. */
#include "tests/harness/test.h"

#define TEACHER(name) "distill.teacher=" CR_SOURCE_DIR "/tests/golden/train/teacher-" name
#define STUDENT "model.arch=custom", "model.classes=10", "data.kind=synthetic", "data.image_size=16", "train.batch=4"

static bool open_session(const struct cr_config **c, const char *const *overrides, int n, struct cr_session *s) {
    const struct cr_session_options o = {.train = true, .ref_only = true, .classes = 10};
    return cr_config_open(c, NULL, overrides, n) == CR_OK && cr_session_open(*c, &o, s) == CR_OK;
}

static bool of_teacher(const struct cr_program *p, const struct cr_op *op) {
    return op->layer >= 0 && strncmp(p->layer[op->layer], "teacher.", 8) == 0;
}

static int count(const struct cr_program *p, enum cr_op_kind kind, bool teacher) {
    int n = 0;
    for (int i = 0; i < p->ops; i++) n += p->op[i].kind == kind && of_teacher(p, &p->op[i]) == teacher;
    return n;
}

/* A convolution of the teacher has the bias of its batch norm, where the bias is aligned to 16 bytes. No convolution of
 * the student has one. */
TEST(folded) {
    static const char *const overrides[] = {STUDENT, "model.depths=1,1", "model.widths=4,8", TEACHER("grouped")};
    OWNED(config)            c           = NULL;
    OWNED(session)           s           = {0};
    int                      aligned = 0, shortcuts = 0;
    REQUIRE(open_session(&c, overrides, CR_COUNT(overrides), &s));
    const struct cr_program *p = &s.train[0];
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op     = &p->op[i];
        const bool          whole  = p->tensor[op->out[0]].dim[3] % 4 == 0;
        const bool          expect = of_teacher(p, op) && whole;
        if (op->kind == CR_OP_conv) CHECK_INT(op->in[CR_IN_conv_bias] >= 0, expect);
        aligned += op->kind == CR_OP_conv && expect;
    }
    /* the stem with its max pooling, two in each of three blocks, two shortcuts */
    CHECK_INT(count(p, CR_OP_conv_pool, true), 1);
    for (int i = 0; i < p->ops; i++)
        shortcuts += p->op[i].kind == CR_OP_conv_pair && p->op[i].in[CR_IN_conv_pair_shortcut_w] >= 0;
    CHECK_INT(aligned + 2 * count(p, CR_OP_conv_pair, true) + shortcuts, 8);
    CHECK_INT(count(p, CR_OP_group_conv, true), 3); /* their batch norms stay */
    CHECK_INT(count(p, CR_OP_bn_apply, true), 3);
    CHECK_INT(count(p, CR_OP_add, true), 0);
}

/* Networks without a stem of 7x7 and with equal normalisation read one tensor. */
TEST(shared_input) {
    static const char *const overrides[] = {STUDENT, "model.depths=1,1", "model.widths=4,8", TEACHER("basic")};
    OWNED(config)            c           = NULL;
    OWNED(session)           s           = {0};
    REQUIRE(open_session(&c, overrides, CR_COUNT(overrides), &s));
    CHECK_INT(count(&s.train[0], CR_OP_normalize, true) + count(&s.train[0], CR_OP_normalize, false), 1);
    CHECK_INT(count(&s.train[0], CR_OP_conv, true), 8); /* conv1, six of three blocks, one shortcut */
}

/* Both stems of 7x7 get the space-to-depth form, each with images of its own. */
TEST(two_stems) {
    static const char *const overrides[] = {STUDENT, "model.depths=1,1", "model.widths=4,8", "model.stem=imagenet",
                                            TEACHER("grouped")};
    OWNED(config)            c           = NULL;
    OWNED(session)           s           = {0};
    int                      blocks      = 0;
    REQUIRE(open_session(&c, overrides, CR_COUNT(overrides), &s));
    const struct cr_program *p = &s.train[0];
    for (int i = 0; i < p->ops; i++) blocks += p->op[i].kind == CR_OP_normalize && p->op[i].attr.input.s2d;
    CHECK_INT(blocks, 2);
    CHECK_INT(count(p, CR_OP_group_conv, true), 3);
}

/* The constants are inside the buffer of their type, no two overlap unless one is a part of the other, and no op writes
 * them. */
static void check_constants(const struct cr_program *p, enum cr_param_buffer weights) {
    const struct cr_param_store *store = p->store;
    int                          found = 0;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *a = &p->tensor[t];
        if (a->buffer != CR_BUFFER_TEACHER && a->buffer != CR_BUFFER_TEACHER_HALF) continue;
        const enum cr_param_buffer buffer = (enum cr_param_buffer)a->buffer;
        const size_t               begin  = cr_param_store_buffer_offset(store, buffer);
        found += buffer == weights;
        CHECK(a->region == CR_REGION_STORE && a->dtype == cr_param_store_buffer_dtype(store, buffer));
        CHECK(begin <= a->offset && a->offset + a->bytes <= begin + cr_param_store_buffer_bytes(store, buffer));
        for (int i = 0; i < p->ops; i++)
            for (int k = 0; k < CR_OP_OUT_MAX; k++) CHECK(p->op[i].out[k] != t);
    }
    CHECK(found >= 9); /* filters and the classifier */
}

TEST(constants) {
    static const char *const   overrides[] = {STUDENT, "model.depths=1,1", "model.widths=4,8", TEACHER("basic")};
    static const enum cr_dtype types[]     = {CR_F32, CR_F16, CR_BF16};
    OWNED(config)              c           = NULL;
    OWNED(session)             s           = {0};
    REQUIRE(open_session(&c, overrides, CR_COUNT(overrides), &s));
    for (size_t i = 0; i < CR_COUNT(types); i++) {
        OWNED(program) p = {0};
        cr_model_set_real(&s.model, types[i]);
        cr_model_set_real(&s.model.teacher->model, types[i]);
        REQUIRE_OK(cr_model_program(&s.model, c, CR_PROGRAM_STEP, 2, &p));
        check_constants(&p, types[i] == CR_F32 ? CR_BUFFER_TEACHER : CR_BUFFER_TEACHER_HALF);
        CHECK(cr_tensor_find(&p, "teacher.fc.y") >= 0 &&
              p.tensor[cr_tensor_find(&p, "teacher.fc.y")].dtype == types[i]);
    }
    OWNED(program) eval = {0}; /* an evaluation has no teacher */
    REQUIRE_OK(cr_model_program(&s.model, c, CR_PROGRAM_EVAL, 2, &eval));
    CHECK_INT(cr_tensor_find(&eval, "teacher.fc.y"), CR_NONE);
}

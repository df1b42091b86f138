/* model/resnet.c: ResNet architectures (stem, blocks, widths, frozen layers): resolves [model], builds its programs. */
#include "model/model.h"

#include "compiler/passes.h"
#include "layers/layer.h"
#include "model/channels.h"
#include "model/network.h"
#include "optim/optim.h"

#include <stdio.h>
#include <string.h>

/* ---- resolving [model] ---- */

enum { BASE_WIDTH = 64 }; /* torchvision's default of width_per_group */

/* The network of each architecture; CIFAR networks have 6n+2 layers. Those of a custom one are in the configuration. */
static const struct preset {
    enum cr_block block;
    enum cr_stem  stem;
    int           stages, depth[4];
    int64_t       groups, width_per_group; /* 0: 1 group, BASE_WIDTH */
} presets[] = {
    [CR_ARCH_RESNET18]         = {CR_BLOCK_BASIC, CR_STEM_IMAGENET, 4, {2, 2, 2, 2}},
    [CR_ARCH_RESNET34]         = {CR_BLOCK_BASIC, CR_STEM_IMAGENET, 4, {3, 4, 6, 3}},
    [CR_ARCH_RESNET50]         = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 6, 3}},
    [CR_ARCH_RESNET101]        = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 23, 3}},
    [CR_ARCH_RESNET152]        = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 8, 36, 3}},
    [CR_ARCH_WIDE_RESNET50_2]  = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 6, 3}, 1, 2 * BASE_WIDTH},
    [CR_ARCH_WIDE_RESNET101_2] = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 23, 3}, 1, 2 * BASE_WIDTH},
    [CR_ARCH_RESNEXT50_32X4D]  = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 6, 3}, 32, 4},
    [CR_ARCH_RESNEXT101_32X8D] = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 23, 3}, 32, 8},
    [CR_ARCH_RESNEXT101_64X4D] = {CR_BLOCK_BOTTLENECK, CR_STEM_IMAGENET, 4, {3, 4, 23, 3}, 64, 4},
    [CR_ARCH_RESNET20]         = {CR_BLOCK_BASIC, CR_STEM_CIFAR, 3, {3, 3, 3}},
    [CR_ARCH_RESNET32]         = {CR_BLOCK_BASIC, CR_STEM_CIFAR, 3, {5, 5, 5}},
    [CR_ARCH_RESNET44]         = {CR_BLOCK_BASIC, CR_STEM_CIFAR, 3, {7, 7, 7}},
    [CR_ARCH_RESNET56]         = {CR_BLOCK_BASIC, CR_STEM_CIFAR, 3, {9, 9, 9}},
    [CR_ARCH_RESNET110]        = {CR_BLOCK_BASIC, CR_STEM_CIFAR, 3, {18, 18, 18}},
    [CR_ARCH_CUSTOM]           = {.block = CR_BLOCK_AUTO},
};

static cr_status resolve_custom(const struct cr_config *c, struct cr_model *m) {
    if (c->model.depths.count < 1 || c->model.depths.count > CR_STAGES_MAX)
        return cr_config_fail(c, "model.depths", "%d stages: a custom network has 1 to %d", c->model.depths.count,
                              CR_STAGES_MAX);
    m->block  = c->model.block == CR_BLOCK_AUTO ? CR_BLOCK_BASIC : c->model.block;
    m->stem   = cr_config_is_small(c) ? CR_STEM_CIFAR : c->model.stem == CR_STEM_DEEP ? CR_STEM_DEEP : CR_STEM_IMAGENET;
    m->stages = c->model.depths.count;
    for (int s = 0; s < m->stages; s++) {
        m->depth[s] = (int)c->model.depths.at[s];
        m->width[s] = c->model.widths.at[s];
    }
    return CR_OK;
}

static void resolve_preset(const struct cr_config *c, struct cr_model *m) {
    const struct preset preset = presets[c->model.arch];
    m->block                   = preset.block;
    m->stem                    = c->model.stem == CR_STEM_AUTO ? preset.stem : c->model.stem;
    m->stages                  = preset.stages;
    int64_t first              = preset.stages == 3 ? 16 : 64;
    for (int s = 0; s < m->stages; s++) {
        m->depth[s] = preset.depth[s];
        m->width[s] = first << s;
    }
}

cr_status cr_model_needs_plain(const struct cr_model *m, const struct cr_config *c, const char *what) {
    if (m->groups == 1) return CR_OK;
    return cr_config_fail(c, c->model.groups ? "model.groups" : "model.arch",
                          "networks with grouped convolutions (%lld groups) cannot be %s", (long long)m->groups, what);
}

static cr_status resolve_groups(const struct cr_config *c, struct cr_model *m) {
    const int64_t preset = CR_MAX(presets[c->model.arch].groups, 1);
    m->groups            = c->model.groups ? c->model.groups : preset;
    if (m->groups == 1) return CR_OK;
    if (m->block != CR_BLOCK_BOTTLENECK)
        return cr_config_fail(c, "model.groups",
                              "applies to bottleneck blocks only, this network has basic blocks: set it to 0");
    if (cr_config_prunes(c)) return cr_model_needs_plain(m, c, "pruned");
    return c->quant.type == CR_QUANT_NONE ? CR_OK : cr_model_needs_plain(m, c, "quantised");
}

/* As in torchvision: floor(width * width_per_group / 64) * groups. Wide networks: Zagoruyko and Komodakis 2016. */
static cr_status resolve_inner(const struct cr_config *c, struct cr_model *m) {
    const int64_t given = c->model.width_per_group, preset = presets[c->model.arch].width_per_group;
    const int64_t group = given ? given : preset ? preset : BASE_WIDTH;
    if (given && m->block != CR_BLOCK_BOTTLENECK)
        return cr_config_fail(c, "model.width_per_group",
                              "applies to bottleneck blocks only, this network has basic blocks: set it to 0");
    for (int s = 0; s < m->stages; s++) {
        m->inner[s] = m->width[s] * group / BASE_WIDTH * m->groups;
        if (m->inner[s] < 1)
            return cr_config_fail(c, "model.width_per_group",
                                  "%lld leaves no channel in stage %d of width %lld: set at least %lld",
                                  (long long)group, s + 1, (long long)m->width[s],
                                  (long long)((BASE_WIDTH + m->width[s] - 1) / m->width[s]));
    }
    return CR_OK;
}

static cr_status resolve_shortcut(const struct cr_config *c, struct cr_model *m) {
    m->shortcut = c->model.shortcut;
    bool cifar  = m->stem == CR_STEM_CIFAR && m->block == CR_BLOCK_BASIC && m->stages == 3;
    if (m->shortcut == CR_SHORTCUT_AUTO) m->shortcut = cifar ? CR_SHORTCUT_A : CR_SHORTCUT_B;
    if (m->shortcut != CR_SHORTCUT_A) return CR_OK;
    const int64_t expansion = m->block == CR_BLOCK_BOTTLENECK ? 4 : 1;
    int64_t       before    = cr_stem_channels(m, CR_STEM_CONVS - 1);
    for (int s = 0; s < m->stages; s++) {
        const int64_t after = m->block_widths ? m->widths[s].out : m->width[s] * expansion;
        if (after < before || (after - before) % 2)
            return cr_config_fail(c, "model.shortcut",
                                  "A pads the same number of channels on both sides, which is impossible from %lld to "
                                  "%lld at stage %d: use B",
                                  (long long)before, (long long)after, s + 1);
        before = after;
    }
    return CR_OK;
}

static cr_status resolve_freeze(const struct cr_config *c, int64_t epoch, struct cr_model *m) {
    char words[1024];
    snprintf(words, sizeof words, "%s", c->model.freeze);
    char *save = NULL;
    int   part = 0;
    for (char *w = strtok_r(words, ", \t", &save); w; w = strtok_r(NULL, ", \t", &save)) {
        const int64_t  until = cr_config_unfreeze_epoch(c, part++);
        const unsigned one   = until && epoch >= until ? 0 : 1;
        int            stage = 0;
        char           end;
        if (strcmp(w, "stem") == 0)
            m->frozen |= one;
        else if (strcmp(w, "fc") == 0)
            m->frozen |= one << (CR_STAGES_MAX + 1);
        else if (sscanf(w, "layer%d%c", &stage, &end) == 1 && stage >= 1 && stage <= m->stages)
            m->frozen |= one << stage;
        else
            return cr_config_fail(c, "model.freeze",
                                  "\"%s\" is not a part of this network: use stem, layer1 to layer%d, fc", w,
                                  m->stages);
    }
    unsigned all = 1u | 1u << (CR_STAGES_MAX + 1);
    for (int s = 1; s <= m->stages; s++) all |= 1u << s;
    if (m->frozen == all) return cr_config_fail(c, "model.freeze", "every part is frozen: nothing is left to train");
    return CR_OK;
}

/* Checks that no feature map becomes empty. */
static cr_status check_size(const struct cr_config *c, const struct cr_model *m, int64_t size, const char *key) {
    int64_t size_min = m->stem != CR_STEM_CIFAR ? 7 : 1;
    if (size >= size_min) return CR_OK;
    return cr_config_fail(c, key, "%lld pixels: this network needs at least %lld", (long long)size,
                          (long long)size_min);
}

/* ---- building programs ---- */

static bool part_frozen(const struct cr_model *m, int part) {
    return m->frozen >> part & 1;
}

/* ResNet-D (He et al. 2019): three 3x3 convolutions, the first two with half the width. Names as in timm. */
static int emit_deep(struct cr_net *net, const struct cr_model *m, int x) {
    int y = cr_layer_conv(net, "conv1.0", x, cr_stem_channels(m, 0), 3, 2, 1);
    y     = cr_layer_relu(net, "conv1.2", cr_layer_batchnorm(net, "conv1.1", y, false));
    y     = cr_layer_conv(net, "conv1.3", y, cr_stem_channels(m, 1), 3, 1, 1);
    y     = cr_layer_relu(net, "conv1.5", cr_layer_batchnorm(net, "conv1.4", y, false));
    return cr_layer_conv(net, "conv1.6", y, cr_stem_channels(m, 2), 3, 1, 1);
}

static int emit_stem(struct cr_net *net, const struct cr_model *m, int x) {
    const int64_t width = cr_stem_channels(m, CR_STEM_CONVS - 1);
    net->frozen         = part_frozen(m, 0);
    bool large          = m->stem != CR_STEM_CIFAR;
    int  y              = m->stem == CR_STEM_DEEP
                              ? emit_deep(net, m, x)
                              : cr_layer_conv(net, "conv1", x, width, large ? 7 : 3, large ? 2 : 1, large ? 3 : 1);
    y                   = cr_layer_relu(net, "relu", cr_layer_batchnorm(net, "bn1", y, false));
    if (large && cr_layer_is_quantized(net, "layer1.0.conv1")) y = cr_layer_quantize(net, y);
    if (!large) return y;
    if (!net->config->model.blur_pool) return cr_layer_maxpool(net, "maxpool", y, 3, 2, 1);
    return cr_layer_blurpool(net, "maxpool.1", cr_layer_maxpool(net, "maxpool.0", y, 3, 1, 1));
}

int cr_model_emit(struct cr_net *net, const struct cr_model *m, int64_t batch, int64_t size) {
    if (net->store->half != CR_F32) cr_layer_cast(net);
    int x = cr_layer_input(net, batch, size);
    if (net->training && m->teacher) cr_teacher_emit(net, m, x);
    x          = emit_stem(net, m, x);
    int before = 0, blocks = 0; /* residual blocks before the stage; of the network */
    for (int s = 0; s < m->stages; s++) blocks += m->depth[s];
    for (int s = 0; s < m->stages; s++) {
        char path[32];
        snprintf(path, sizeof path, "layer%d", s + 1);
        net->frozen           = part_frozen(m, s + 1);
        struct cr_stage stage = {.path        = path,
                                 .block       = m->block,
                                 .shortcut    = m->shortcut,
                                 .width       = m->width[s],
                                 .inner       = m->inner[s],
                                 .widths      = m->block_widths ? &m->widths[s] : NULL,
                                 .groups      = m->groups,
                                 .depth       = m->depth[s],
                                 .stride      = s == 0 ? 1 : 2,
                                 .first_block = before,
                                 .blocks      = blocks};
        before += m->depth[s];
        x = cr_layer_stage(net, &stage, x);
    }
    net->frozen = part_frozen(m, CR_STAGES_MAX + 1);
    if (m->keep_maps && !net->training && !net->program->failed) {
        net->program->maps           = x;
        net->program->tensor[x].keep = true;
    }
    x = cr_layer_avgpool(net, "avgpool", x);
    if (m->keep_features && !net->training && !net->program->failed) {
        net->program->features       = x;
        net->program->tensor[x].keep = true;
    }
    x = cr_layer_drop(net, "drop", x, net->config->model.dropout, false);
    return cr_layer_dense(net, "fc", x, m->classes);
}

/* With one value per channel the variance is 0 and the output of a batch norm is its bias, whatever the filters are:
 * the layers before it do not learn. PyTorch refuses this, too. */
static cr_status check_batch_norms(const struct cr_config *c, const struct cr_program *p, int ranks) {
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (op->kind != CR_OP_bn_finalize || op->attr.bn.count > 1) continue;
        return cr_config_fail(
            c, "train.batch",
            "the batch norm %s sees 1 value per channel (1 image%s, 1x1 pixels in this layer), so its "
            "output does not depend on the image: train with a larger batch, with larger images "
            "(data.image_size), or with this layer frozen (model.freeze)%s",
            p->layer[op->layer], c->train.accumulate > 1 ? " per micro batch" : "",
            ranks > 1 && !c->model.sync_bn ? "; model.sync_bn = yes combines the values of all ranks" : "");
    }
    return CR_OK;
}

cr_status cr_model_program(struct cr_model *m, const struct cr_config *c, enum cr_program_kind kind, int64_t batch,
                           struct cr_program *p) {
    static const char *const names[]  = {"step", "micro_first", "micro", "micro_last", "eval"};
    bool                     training = kind != CR_PROGRAM_EVAL;
    cr_status                status   = CR_OK;
    cr_program_init(p, names[kind], &m->store);
    p->real             = m->real;
    const int     ranks = CR_MAX(m->ranks, 1);
    struct cr_net net   = {
          .program       = p,
          .store         = &m->store,
          .config        = c,
          .training      = training,
          .bn_ranks      = c->model.sync_bn ? ranks : 1,
          .class_weights = m->class_weights,
          .classes       = m->classes,
          .f32_input     = m->f32_input && !training,
          .calibrate     = m->calibrate && !training,
    };
    float smoothing = training ? (float)c->train.label_smoothing : 0;
    int   logits    = cr_model_emit(&net, m, batch, training ? m->image_size : m->eval_size);
    int   loss      = cr_layer_loss(&net, logits, smoothing);
    if (training && !p->failed) CR_TRY_OUT(check_batch_norms(c, p, ranks));
    if (training && m->teacher) cr_layer_distill(&net, logits);
    if (training && !p->failed) {
        bool  adds   = kind == CR_PROGRAM_MICRO || kind == CR_PROGRAM_MICRO_LAST;
        int   micro  = kind == CR_PROGRAM_STEP ? 1 : (int)c->train.accumulate;
        float weight = 1.0f / (float)(micro * ranks);
        if (ranks > 1) cr_layer_metrics_over_ranks(&net);
        CR_TRY_OUT(cr_pass_grad(p, loss, adds, weight, smoothing));
        if (kind == CR_PROGRAM_STEP || kind == CR_PROGRAM_MICRO_LAST) cr_optim_emit(p, c, micro);
    }
    CR_TRY_OUT(cr_program_check(p));
    return CR_OK;
out:
    if (p->too_large)
        status = cr_config_fail(c, kind == CR_PROGRAM_EVAL && c->train.eval_batch ? "train.eval_batch" : "train.batch",
                                "%lld images of size %lld need tensors of more than 2^50 bytes: lower it, "
                                "data.image_size or the widths",
                                (long long)batch, (long long)(training ? m->image_size : m->eval_size));
    cr_program_free(p);
    return status;
}

/* Checks that every name in quant.keep is a layer with weights. */
static cr_status check_quantized(const struct cr_config *c, const struct cr_param_store *store) {
    char words[4096], name[256];
    if (strlen(c->quant.keep) >= sizeof words) return cr_config_fail(c, "quant.keep", "too long");
    snprintf(words, sizeof words, "%s", c->quant.keep);
    char *save = NULL;
    for (char *w = strtok_r(words, ", \t", &save); w; w = strtok_r(NULL, ", \t", &save)) {
        const int length = snprintf(name, sizeof name, "%s.weight", w);
        const int param  = length < (int)sizeof name ? cr_param_store_find(store, name) : CR_NONE;
        if (param == CR_NONE ||
            (store->param[param].role != CR_ROLE_CONV && store->param[param].role != CR_ROLE_DENSE_WEIGHT))
            return cr_config_fail(c, "quant.keep",
                                  "\"%s\" is no convolution of this network: `cresnet plan` lists them", w);
    }
    return CR_OK;
}

cr_status cr_model_open(const struct cr_config *c, int classes, int64_t image_size, int64_t eval_size,
                        struct cr_model *out) {
    return cr_model_open_at(c, 0, classes, image_size, eval_size, out);
}

cr_status cr_model_open_at(const struct cr_config *c, int64_t epoch, int classes, int64_t image_size, int64_t eval_size,
                           struct cr_model *out) {
    struct cr_model m      = {.classes = classes, .image_size = image_size, .eval_size = eval_size, .ranks = 1};
    cr_status       status = CR_OK;
    if (c->model.arch == CR_ARCH_CUSTOM)
        CR_TRY(resolve_custom(c, &m));
    else
        resolve_preset(c, &m);
    if (c->model.blur_pool && c->quant.type != CR_QUANT_NONE)
        return cr_config_fail(c, "model.blur_pool", "networks with it cannot be quantised");
    CR_TRY(resolve_groups(c, &m));
    CR_TRY(resolve_inner(c, &m));
    CR_TRY_OUT(cr_channels_resolve(c, &m));
    CR_TRY_OUT(resolve_shortcut(c, &m));
    if (m.stem == CR_STEM_DEEP && m.width[0] < 2 && !m.block_widths)
        CR_TRY_OUT(cr_config_fail(c, "model.stem", "deep halves the first width, which is 1: use imagenet"));
    CR_TRY_OUT(resolve_freeze(c, epoch, &m));
    struct cr_size_schedule sizes;
    (void)!cr_config_sizes(c, &sizes); /* config/check.c has checked the text */
    if (!sizes.count) CR_TRY_OUT(check_size(c, &m, image_size, "data.image_size"));
    CR_TRY_OUT(check_size(c, &m, eval_size, c->data.eval_crop ? "data.eval_crop" : "data.image_size"));
    for (int k = 0; k < sizes.count; k++) CR_TRY_OUT(check_size(c, &m, sizes.size[k], "data.image_sizes"));
    if (c->data.image_width) CR_TRY_OUT(check_size(c, &m, c->data.image_width, "data.image_width"));
    if (classes < 1) CR_TRY_OUT(cr_config_fail(c, "model.classes", "the number of classes is not known: set it"));

    /* Building the network once creates the parameter table. */
    struct cr_program p;
    cr_program_init(&p, "table", &m.store);
    struct cr_net net = {.program = &p, .store = &m.store, .config = c, .bn_ranks = 1};
    cr_model_emit(&net, &m, 1, eval_size);
    bool failed = p.failed || m.store.failed, too_large = p.too_large;
    cr_program_free(&p);
    if (too_large)
        CR_TRY_OUT(
            cr_config_fail(c, "data.image_size",
                           "tensors of more than 2^50 bytes for one image: lower model.widths or data.image_size"));
    if (failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while building the network");
    CR_TRY_OUT(check_quantized(c, &m.store));
    cr_optim_prepare(&m.store, c);
    *out = m;
    return CR_OK;
out:
    cr_param_store_free(&m.store);
    cr_free(m.block_widths);
    return status;
}

void cr_model_set_real(struct cr_model *m, enum cr_dtype real) {
    CR_ASSERT(real == CR_F32 || real == CR_F16 || real == CR_BF16);
    m->real = m->store.half = real;
}

void cr_model_close(struct cr_model *m) {
    cr_param_store_free(&m->store);
    cr_free(m->class_weights);
    cr_free(m->block_widths);
    *m = (struct cr_model){0};
}

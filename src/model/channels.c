/* model/channels.c: parses and writes model.channels. See model/channels.h. */
#include "model/channels.h"

#include <stdio.h>
#include <string.h>

enum { CHANNELS_MAX = 65536, NAMES_MAX = 3 };

int64_t cr_stem_channels(const struct cr_model *m, int i) {
    if (m->block_widths) return m->stem_width[i];
    return i < CR_STEM_CONVS - 1 ? m->width[0] / 2 : m->width[0];
}

/* Names of the layers of a residual block that have channels of their own; returns their number. */
static int block_layers(const struct cr_model *m, const struct cr_config *c, const char *name[NAMES_MAX]) {
    int count     = 0;
    name[count++] = "conv1";
    if (m->block == CR_BLOCK_BOTTLENECK) name[count++] = "conv2";
    if (c->model.excitation) name[count++] = "se.fc1";
    return count;
}

/* ---- parsing ---- */

struct parser {
    const struct cr_config *config;
    const char             *at; /* NULL after an error */
    char                    part[24];
};

static cr_status fail_count(const struct parser *p, int count) {
    return cr_config_fail(p->config, "model.channels",
                          "%s needs exactly %d, separated by commas; the parts, one for the stem and one for each "
                          "stage, are separated by /",
                          p->part, count);
}

/* Parses number `i` of a part with `count` numbers. */
static cr_status parse_number(struct parser *p, int i, int count, int64_t *out) {
    p->at += strspn(p->at, " ");
    const size_t digits = strspn(p->at, "0123456789");
    int64_t      value  = 0;
    if (!digits) return fail_count(p, count);
    for (size_t d = 0; d < digits && value <= CHANNELS_MAX; d++) value = 10 * value + (p->at[d] - '0');
    if (value < 1 || value > CHANNELS_MAX)
        return cr_config_fail(p->config, "model.channels", "number %d of %s must be from 1 to %d", i + 1, p->part,
                              CHANNELS_MAX);
    p->at += digits;
    p->at += strspn(p->at, " ");
    *out = value;
    if (i + 1 == count) return CR_OK;
    if (*p->at++ != ',') return fail_count(p, count);
    return CR_OK;
}

static cr_status end_part(struct parser *p, bool last, int count) {
    if (*p->at != (last ? 0 : '/')) return fail_count(p, count);
    p->at += !last;
    return CR_OK;
}

static cr_status parse_stem(struct parser *p, struct cr_model *m) {
    const int count = m->stem == CR_STEM_DEEP ? CR_STEM_CONVS : 1;
    snprintf(p->part, sizeof p->part, "the stem");
    for (int i = 0; i < count; i++) CR_TRY(parse_number(p, i, count, &m->stem_width[CR_STEM_CONVS - count + i]));
    return end_part(p, false, count);
}

static cr_status parse_stage(struct parser *p, struct cr_model *m, int s, struct cr_block_widths *block) {
    const char *name[NAMES_MAX];
    const int   layers = block_layers(m, p->config, name), count = 1 + layers * m->depth[s];
    snprintf(p->part, sizeof p->part, "layer%d", s + 1);
    CR_TRY(parse_number(p, 0, count, &m->widths[s].out));
    for (int i = 0; i < m->depth[s]; i++)
        for (int k = 0; k < layers; k++) {
            int64_t *const to = name[k][0] == 's' ? &block[i].reduced : &block[i].inner[k];
            CR_TRY(parse_number(p, 1 + layers * i + k, count, to));
        }
    m->widths[s].block    = block;
    m->widths[s].reshapes = s > 0 || m->block == CR_BLOCK_BOTTLENECK;
    return end_part(p, s + 1 == m->stages, count);
}

/* Checks what the shapes of the network demand. model/resnet.c checks shortcuts of option A. */
static cr_status check(const struct cr_config *c, const struct cr_model *m) {
    const int64_t stem = m->stem_width[CR_STEM_CONVS - 1];
    if (!m->widths[0].reshapes && stem != m->widths[0].out)
        return cr_config_fail(c, "model.channels",
                              "the stem has %lld channels and layer1 %lld: blocks of layer1 add "
                              "their input to their output, so both must be equal",
                              (long long)stem, (long long)m->widths[0].out);
    for (int s = 0; s < m->stages && m->groups > 1; s++)
        for (int i = 0; i < m->depth[s]; i++) {
            const int64_t *inner = m->widths[s].block[i].inner;
            if (inner[0] == m->inner[s] && inner[1] == m->inner[s]) continue;
            return cr_config_fail(c, "model.channels",
                                  "layer%d.%d: a grouped convolution keeps its %lld input and output channels", s + 1,
                                  i, (long long)m->inner[s]);
        }
    return CR_OK;
}

cr_status cr_channels_resolve(const struct cr_config *c, struct cr_model *m) {
    struct parser p      = {.config = c, .at = c->model.channels};
    int           blocks = 0;
    if (!*c->model.channels) return CR_OK;
    for (int s = 0; s < m->stages; s++) blocks += m->depth[s];
    CR_ALLOC(m->block_widths, (size_t)blocks);
    CR_TRY(parse_stem(&p, m));
    blocks = 0;
    for (int s = 0; s < m->stages; s++) {
        CR_TRY(parse_stage(&p, m, s, &m->block_widths[blocks]));
        blocks += m->depth[s];
    }
    return check(c, m);
}

/* ---- writing ---- */

void cr_channels_text(const struct cr_model *m, const struct cr_config         *c,
                      int64_t (*channels)(void *self, const char *layer), void *self, struct cr_text *out) {
    static const char *const deep[] = {"conv1.0", "conv1.3", "conv1.6"};
    const char              *name[NAMES_MAX];
    char                     layer[64];
    const int                layers = block_layers(m, c, name);
    if (m->stem == CR_STEM_DEEP)
        for (int i = 0; i < CR_STEM_CONVS; i++)
            cr_text_add(out, "%s%lld", i ? "," : "", (long long)channels(self, deep[i]));
    else
        cr_text_add(out, "%lld", (long long)channels(self, "conv1"));
    for (int s = 0; s < m->stages; s++) {
        snprintf(layer, sizeof layer, "layer%d.0.%s", s + 1, m->block == CR_BLOCK_BOTTLENECK ? "conv3" : "conv2");
        cr_text_add(out, "/%lld", (long long)channels(self, layer));
        for (int i = 0; i < m->depth[s]; i++)
            for (int k = 0; k < layers; k++) {
                snprintf(layer, sizeof layer, "layer%d.%d.%s", s + 1, i, name[k]);
                cr_text_add(out, ",%lld", (long long)channels(self, layer));
            }
    }
}

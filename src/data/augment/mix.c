/* data/augment/mix.c: random numbers of mixup, cutmix and random erasing, for images that the device erases in part or
 * mixes with other images of the batch.
 *   - erasing: torchvision's RandomErasing (Zhong et al. 2017), filled with the mean
 *   - mixup: Zhang et al. 2018
 *   - cutmix: Yun et al. 2019
 *
 * As in timm's Mixup in mode elem, every image has random numbers of its own. They are a function of (seed, epoch,
 * sample) and come from a stream of their own. */

#include "core/rng.h"
#include "data/data.h"
#include "graph/graph.h"
#include <math.h>
#include <string.h>

/* The logarithm of a random number of Gamma(a, 1): Marsaglia and Tsang 2000; for a < 1 through a + 1. */
static double log_gamma_draw(double a, struct cr_rng *rng) {
    const double below = a < 1 ? log(1 - cr_rng_real(rng)) / a : 0;
    const double d = (a < 1 ? a + 1 : a) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = (double)cr_rng_normal(rng), root = 1 + c * x, v = root * root * root, u = 1 - cr_rng_real(rng);
        if (v > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v)) return log(d * v) + below;
    }
}

/* A random number of Beta(a, a), computed with logarithms because small a give numbers that underflow. */
static double beta_draw(double a, struct cr_rng *rng) {
    const double first = log_gamma_draw(a, rng), second = log_gamma_draw(a, rng);
    return 1 / (1 + exp(second - first));
}

static int32_t clip(int64_t x, int64_t most) {
    return (int32_t)CR_MIN(CR_MAX(x, (int64_t)0), most);
}

/* A rectangle of 1 - lambda of the area around a random centre, clipped at the border. The label weight is the
 * fraction that is really left. */
static void draw_cut(double lambda, int64_t height, int64_t width, struct cr_rng *rng, int32_t *mix) {
    const double  ratio = sqrt(1 - lambda);
    const int64_t cut_h = (int64_t)((double)height * ratio), cut_w = (int64_t)((double)width * ratio);
    const int64_t y = (int64_t)cr_rng_below(rng, (uint64_t)height), x = (int64_t)cr_rng_below(rng, (uint64_t)width);
    int32_t      *cut        = mix + CR_MIX_CUT;
    cut[0]                   = clip(y - cut_h / 2, height);
    cut[1]                   = clip(x - cut_w / 2, width);
    cut[2]                   = clip(y + cut_h / 2, height);
    cut[3]                   = clip(x + cut_w / 2, width);
    const double area        = (double)(cut[2] - cut[0]) * (double)(cut[3] - cut[1]);
    mix[CR_MIX_LABEL_WEIGHT] = (int32_t)lrint((1 - area / ((double)height * (double)width)) * CR_MIX_ONE);
}

/* As torchvision's RandomErasing.get_params: ten attempts at an area and an aspect. */
static void draw_erase(const struct cr_prepare *prep, struct cr_rng *rng, int32_t erase[4]) {
    const int    width = cr_prepare_width(prep);
    const double area = (double)prep->size * width, low = log(0.3), high = log(3.3);
    for (int attempt = 0; attempt < 10; attempt++) {
        const double target =
            area * (prep->erase_scale[0] + (prep->erase_scale[1] - prep->erase_scale[0]) * cr_rng_real(rng));
        const double aspect = exp(low + (high - low) * cr_rng_real(rng));
        const int    h = (int)rint(sqrt(target * aspect)), w = (int)rint(sqrt(target / aspect));
        if (h >= prep->size || w >= width || h < 1 || w < 1) continue;
        erase[0] = (int32_t)cr_rng_below(rng, (uint64_t)(prep->size - h) + 1);
        erase[1] = (int32_t)cr_rng_below(rng, (uint64_t)(width - w) + 1);
        erase[2] = erase[0] + h;
        erase[3] = erase[1] + w;
        return;
    }
}

/* Neighbours in the batch are partners. The order of images is random, so any pairs are equally good. These pairs
 * stay together for any number of ranks if each rank has an even number of images. The last image of an odd batch
 * uses the image before it. */
static int64_t partner_of(int64_t at, int64_t batch) {
    return (at ^ 1) < batch ? at ^ 1 : CR_MAX(at - 1, 0);
}

void cr_prepare_mix(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample, int64_t at,
                    int64_t batch, int32_t *mix) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_MIX, (uint64_t)sample, (uint32_t)epoch);
    memset(mix, 0, CR_MIX_NUMBERS * sizeof *mix);
    mix[CR_MIX_PARTNER]      = (int32_t)partner_of(at, batch);
    mix[CR_MIX_LABEL_WEIGHT] = mix[CR_MIX_WEIGHT] = CR_MIX_ONE;
    if (cr_rng_real(&rng) < prep->erase) draw_erase(prep, &rng, mix + CR_MIX_ERASE);
    const bool mixed = cr_rng_real(&rng) < prep->mix_prob, cuts = cr_rng_real(&rng) < prep->cutmix_prob;
    if (!mixed || (prep->mixup <= 0 && prep->cutmix <= 0)) return;
    if (prep->cutmix > 0 && (cuts || prep->mixup <= 0))
        draw_cut(beta_draw(prep->cutmix, &rng), prep->size, cr_prepare_width(prep), &rng, mix);
    else
        mix[CR_MIX_LABEL_WEIGHT] = mix[CR_MIX_WEIGHT] = (int32_t)lrint(beta_draw(prep->mixup, &rng) * CR_MIX_ONE);
}

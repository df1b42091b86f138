/* model/onnx_preprocess.c: the preparation of evaluation images (data/augment/view.c) as nodes: from "images",
 * [batch, H, W, channels] as files have them, to "input". The resize is two products with matrices of filter weights,
 * which the graph computes from H and W: the triangle filter of cr_image_resize, whose results are rounded after each
 * pass. `Resize` with antialias=1 would not do: OpenVINO ignores this attribute and TensorRT refuses it. Every row of a
 * matrix belongs to a pixel of the result, so that a crop leaves out rows, and rows beyond the image are zeros.
 *
 * All sizes are integers, and the weight of pixel i for the result's pixel j is computed from an exact numerator:
 *   max(0, 1 - |(2i+1) full - (2(j+start)+1) length| / (2 max(length, full)))
 * for an axis of `length` pixels resized to `full`, of which the result shows those from `start` on. */
#include "model/onnx_internal.h"

#include <string.h>

#define ZERO "images.zero"
#define ONE "images.one"
#define TWO "images.two"
#define UNIT "images.unit"
#define HALF "images.half"

static void put(struct cr_onnx *x, const char *type, const char *output, const char *a, const char *b) {
    cr_onnx_put_node(x, type, output, CR_ONNX_INPUTS(a, b));
}

static void put_cast(struct cr_onnx *x, const char *output, const char *input, enum data_type type) {
    struct cr_text node = cr_onnx_node_begin("Cast", output, CR_ONNX_INPUTS(input));
    cr_onnx_attribute_int(&node, "to", type);
    cr_onnx_node_end(x, &node);
}

static void put_transpose(struct cr_onnx *x, const char *output, const char *input, int count, const int64_t *perm) {
    struct cr_text node = cr_onnx_node_begin("Transpose", output, CR_ONNX_INPUTS(input));
    cr_onnx_attribute_ints(&node, "perm", count, perm);
    cr_onnx_node_end(x, &node);
}

static void put_int(struct cr_onnx *x, const char *name, int64_t value) {
    cr_onnx_put_tensor(x, name, DATA_INT64, 0, NULL, &value, sizeof value);
}

static void put_float(struct cr_onnx *x, const char *name, float value) {
    cr_onnx_put_tensor(x, name, DATA_FLOAT, 0, NULL, &value, sizeof value);
}

/* A number for each channel, [channels, 1, 1]. */
static void put_channels(struct cr_onnx *x, const char *name, int64_t channels, const float *values) {
    const int64_t dim[] = {channels, 1, 1};
    cr_onnx_put_tensor(x, name, DATA_FLOAT, 3, dim, values, (size_t)channels * sizeof *values);
}

/* ---- sizes ---- */

/* floor(other * by / of): the length of one side where the other side has `by` pixels of `of`. */
static void put_ratio(struct cr_onnx *x, const char *output, const char *product, const char *side, const char *by,
                      const char *of) {
    put(x, "Mul", product, side, by);
    put(x, "Div", output, product, of);
}

/* "images.width.full" and "images.height.full": the size to which the whole image is resized. */
static void put_full_size(struct cr_onnx *x) {
    const struct cr_prepare *prep = x->n->prepare;
    const int64_t            size = prep->size, width = cr_prepare_width(prep);
    const int64_t            cover = prep->eval_resize ? prep->eval_resize : size, cover_w = cover * width / size;
    const bool               crop = prep->fit == CR_FIT_CROP;
    put_int(x, "images.width.target", crop ? CR_MAX(cover_w, (int64_t)1) : width);
    put_int(x, "images.height.target", crop ? cover : size);
    if (prep->fit == CR_FIT_SQUASH) {
        put(x, "Identity", "images.width.full", "images.width.target", NULL);
        put(x, "Identity", "images.height.full", "images.height.target", NULL);
        return;
    }
    put_ratio(x, "images.width.scaled", "images.width.product", "images.width.length", "images.height.target",
              "images.height.length");
    put_ratio(x, "images.height.scaled", "images.height.product", "images.height.length", "images.width.target",
              "images.width.length");
    put(x, "Max", "images.width.atleast", "images.width.scaled", crop ? "images.width.target" : ONE);
    put(x, "Max", "images.height.atleast", "images.height.scaled", crop ? "images.height.target" : ONE);
    put(x, crop ? "Identity" : "Min", "images.width.full", "images.width.atleast", crop ? NULL : "images.width.target");
    put(x, crop ? "Identity" : "Min", "images.height.full", "images.height.atleast",
        crop ? NULL : "images.height.target");
}

/* ---- the matrix of an axis ---- */

#define OF(part) (wide ? "images.width." part : "images.height." part)

/* The pixels j + start [size, 1]: a larger image is cut at the centre, rounded half to even; a smaller one is moved. */
static cr_status put_shown(struct cr_onnx *x, bool wide, int64_t size) {
    const int64_t dim[] = {size, 1};
    int64_t      *place;
    CR_ALLOC(place, (size_t)size);
    for (int64_t j = 0; j < size; j++) place[j] = j;
    cr_onnx_put_tensor(x, OF("place"), DATA_INT64, 2, dim, place, (size_t)size * sizeof *place);
    cr_free(place);
    put_int(x, OF("size"), size);
    put(x, "Sub", OF("excess"), OF("full"), OF("size"));
    put(x, "Max", OF("surplus"), OF("excess"), ZERO);
    put_cast(x, OF("surplus.float"), OF("surplus"), DATA_FLOAT);
    put(x, "Mul", OF("surplus.half"), OF("surplus.float"), HALF);
    put(x, "Round", OF("cut.float"), OF("surplus.half"), NULL);
    put_cast(x, OF("cut"), OF("cut.float"), DATA_INT64);
    put(x, "Sub", OF("lack.signed"), OF("size"), OF("full"));
    put(x, "Max", OF("lack"), OF("lack.signed"), ZERO);
    put(x, "Div", OF("margin"), OF("lack"), TWO);
    put(x, "Sub", OF("start"), OF("cut"), OF("margin"));
    put(x, "Add", OF("shown"), OF("place"), OF("start"));
    return CR_OK;
}

/* 2a + 1, times `by`. */
static void put_centre(struct cr_onnx *x, const char *output, const char *twice, const char *odd, const char *a,
                       const char *by) {
    put(x, "Mul", twice, a, TWO);
    put(x, "Add", odd, twice, ONE);
    put(x, "Mul", output, odd, by);
}

/* "images.width.matrix" or "images.height.matrix" [size, length]. */
static cr_status put_matrix(struct cr_onnx *x, bool wide, int64_t size) {
    CR_TRY(put_shown(x, wide, size));
    cr_onnx_put_node(x, "Range", OF("pixel"), CR_ONNX_INPUTS(ZERO, OF("length"), ONE));
    put_centre(x, OF("from"), OF("from.twice"), OF("from.odd"), OF("pixel"), OF("full"));
    put_centre(x, OF("to"), OF("to.twice"), OF("to.odd"), OF("shown"), OF("length"));
    put(x, "Sub", OF("offset"), OF("from"), OF("to"));
    put(x, "Abs", OF("distance"), OF("offset"), NULL);
    put_cast(x, OF("distance.float"), OF("distance"), DATA_FLOAT);
    put(x, "Max", OF("support"), OF("length"), OF("full"));
    put(x, "Mul", OF("support.twice"), OF("support"), TWO);
    put_cast(x, OF("support.float"), OF("support.twice"), DATA_FLOAT);
    put(x, "Div", OF("relative"), OF("distance.float"), OF("support.float"));
    put(x, "Sub", OF("triangle"), UNIT, OF("relative"));
    put(x, "Relu", OF("filter"), OF("triangle"), NULL);
    put(x, "GreaterOrEqual", OF("begun"), OF("shown"), ZERO);
    put(x, "Less", OF("unended"), OF("shown"), OF("full"));
    put(x, "And", OF("inside"), OF("begun"), OF("unended"));
    put_cast(x, OF("inside.float"), OF("inside"), DATA_FLOAT);
    put(x, "Mul", OF("weights"), OF("filter"), OF("inside.float"));
    put(x, "ReduceSum", OF("sum"), OF("weights"), "images.rows");
    put(x, "Max", OF("norm"), OF("sum"), HALF); /* a row inside has a sum of at least 1/2, a row outside has zeros */
    put(x, "Div", OF("matrix"), OF("weights"), OF("norm"));
    return CR_OK;
}

/* ---- the pixels ---- */

static void put_rounded(struct cr_onnx *x, const char *output, const char *sum, const char *input) {
    put(x, "Add", sum, input, HALF);
    put(x, "Floor", output, sum, NULL);
}

/* The border has its colour because it is subtracted before the products, which leave zeros there, and added again. The
 * last step normalises: pixel * scale + bias. */
static void put_pixels(struct cr_onnx *x, const struct cr_input_attr *a, int64_t channels) {
    const struct cr_prepare *prep = x->n->prepare;
    const bool               wide = cr_format_bits(prep->format) == 16;
    float                    border[4], scale[4], bias[4];
    for (int64_t c = 0; c < channels; c++) {
        uint16_t sample = prep->border[c];
        if (wide) memcpy(&sample, prep->border + 2 * c, sizeof sample);
        const double one = (wide ? UINT16_MAX : UINT8_MAX) * (double)a->std[c];
        border[c]        = sample;
        scale[c]         = (float)(1 / one);
        bias[c]          = (float)(sample / one - (double)a->mean[c] / (double)a->std[c]);
    }
    put_channels(x, "images.border", channels, border);
    put_channels(x, "images.scale", channels, scale);
    put_channels(x, "images.bias", channels, bias);
    put_cast(x, "images.float", "images", DATA_FLOAT);
    put_transpose(x, "images.planes", "images.float", 4, (const int64_t[]){0, 3, 1, 2});
    put(x, "Sub", "images.centred", "images.planes", "images.border");
    put_transpose(x, "images.width.columns", "images.width.matrix", 2, (const int64_t[]){1, 0});
    put(x, "MatMul", "images.narrow", "images.centred", "images.width.columns");
    put_rounded(x, "images.narrow.rounded", "images.narrow.sum", "images.narrow");
    put(x, "MatMul", "images.small", "images.height.matrix", "images.narrow.rounded");
    put_rounded(x, "images.small.rounded", "images.small.sum", "images.small");
    put(x, "Mul", "images.scaled", "images.small.rounded", "images.scale");
    put(x, "Add", "input", "images.scaled", "images.bias");
}

cr_status cr_onnx_put_preprocess(struct cr_onnx *x, const struct cr_input_attr *a, int64_t channels) {
    const struct cr_prepare *prep  = x->n->prepare;
    const int64_t            count = 1;
    put_int(x, ZERO, 0);
    put_int(x, ONE, 1);
    put_int(x, TWO, 2);
    put_float(x, UNIT, 1);
    put_float(x, HALF, 0.5f);
    cr_onnx_put_tensor(x, "images.rows", DATA_INT64, 1, &count, (const int64_t[]){1}, sizeof count);
    put(x, "Shape", "images.shape", "images", NULL);
    put(x, "Gather", "images.height.length", "images.shape", ONE);
    put(x, "Gather", "images.width.length", "images.shape", TWO);
    put_full_size(x);
    CR_TRY(put_matrix(x, true, cr_prepare_width(prep)));
    CR_TRY(put_matrix(x, false, prep->size));
    put_pixels(x, a, channels);
    return CR_OK;
}

/* model/onnx.c: encodes a network as an ONNX model and writes the file. See model/onnx.h. */
#include "core/files.h"
#include "core/output_file.h"
#include "formats/json_write.h"
#include "model/onnx_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* Dimensions without a fixed size. */
enum free_dim { FREE_BATCH = 0, FREE_HEIGHT = -1, FREE_WIDTH = -2 };
static const char *const free_dim_name[] = {"batch", "height", "width"};

/* ValueInfoProto: name 1, type 2 { tensor_type 1 { elem_type 1, shape 2 { dim 1 { dim_value 1 or dim_param 2 } } } } */
static void put_value_info(struct cr_text *graph, int field, const char *name, enum data_type element, int dims,
                           const int64_t *dim) {
    struct cr_text shape = {0}, tensor = {0}, type = {0}, info = {0};
    for (int i = 0; i < dims; i++) {
        struct cr_text one = {0};
        if (dim[i] > 0)
            cr_pb_add_int(&one, 1, dim[i]);
        else
            cr_pb_add_string(&one, 2, free_dim_name[-dim[i]]);
        cr_pb_add_message(&shape, 1, &one);
    }
    cr_pb_add_int(&tensor, 1, element);
    cr_pb_add_message(&tensor, 2, &shape);
    cr_pb_add_message(&type, 1, &tensor);
    cr_pb_add_string(&info, 1, name);
    cr_pb_add_message(&info, 2, &type);
    cr_pb_add_message(graph, field, &info);
}

static void put_metadata(struct cr_text *model, const char *key, struct cr_text *value) {
    struct cr_text entry = {0};
    cr_pb_add_string(&entry, 1, key);
    cr_pb_add_string(&entry, 2, value->data ? value->data : "");
    entry.failed |= value->failed;
    cr_text_free(value);
    cr_pb_add_message(model, MODEL_METADATA, &entry);
}

/* Appends a number for each channel as a JSON list, with the fewest digits that reproduce each float. */
static void add_channels(struct cr_text *out, const float *v, int64_t channels) {
    struct cr_json_writer w = cr_json_writer(out, CR_JSON_SPACED);
    cr_json_open_array(&w, NULL);
    for (int i = 0; i < channels; i++) {
        char text[32];
        int  digits = 6;
        for (; digits < 9; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, (double)v[i]);
            if (strtof(text, NULL) == v[i]) break;
        }
        cr_json_put_general(&w, NULL, (double)v[i], digits);
    }
    cr_json_close_array(&w);
}

/* How an image becomes the input. */
static void put_preparation(const struct cr_onnx *x, struct cr_text *model) {
    const struct cr_prepare *prep = x->n->prepare;
    struct cr_text           text = {0};
    cr_text_add(&text, "%d", prep->eval_resize ? prep->eval_resize : prep->size);
    put_metadata(model, "resize", &text);
    cr_text_add(&text, "\"bilinear\"");
    put_metadata(model, "interpolation", &text);
    cr_text_add(&text, "[%d, %d]", prep->size, cr_prepare_width(prep));
    put_metadata(model, "crop", &text);
    cr_text_add(&text, "\"%s\"", cr_word_fit(prep->fit));
    put_metadata(model, "fit", &text);
    cr_text_add(&text, "%d", cr_format_bits(prep->format));
    put_metadata(model, "bits", &text);
    if (x->n->preprocess) {
        cr_text_add(&text, "true");
        put_metadata(model, "preprocess", &text);
    }
}

/* What predict --reject does. */
static void put_reject(const struct cr_onnx_network *n, struct cr_text *model) {
    struct cr_text        text = {0};
    struct cr_json_writer w    = cr_json_writer(&text, CR_JSON_SPACED);
    if (!n->reject_score) return;
    cr_text_add(&text, "\"%s\"", n->reject_score);
    put_metadata(model, "reject_score", &text);
    cr_text_add(&text, "%.17g", n->reject_threshold);
    put_metadata(model, "reject_threshold", &text);
    if (!n->reject_means) return;
    const float *mean = n->reject_means;
    cr_json_open_array(&w, NULL);
    for (int k = 0; k < n->classes; k++) {
        cr_json_open_array(&w, NULL);
        for (int i = 0; i < n->features; i++) cr_json_put_general(&w, NULL, (double)*mean++, 9);
        cr_json_close_array(&w);
    }
    cr_json_close_array(&w);
    put_metadata(model, "reject_means", &text);
}

static void put_all_metadata(const struct cr_onnx *x, struct cr_text *model) {
    struct cr_text        text = {0};
    struct cr_json_writer w    = cr_json_writer(&text, CR_JSON_SPACED);
    put_preparation(x, model);
    for (int i = 0; i < x->p->ops; i++) {
        const struct cr_input_attr *a = &x->p->op[i].attr.input;
        if (x->p->op[i].kind != CR_OP_normalize) continue;
        const int64_t channels = x->p->tensor[x->p->op[i].out[CR_OUT_normalize_y]].dim[3];
        add_channels(&text, a->mean, channels);
        put_metadata(model, "mean", &text);
        add_channels(&text, a->std, channels);
        put_metadata(model, "std", &text);
    }
    if (x->n->thresholds) {
        cr_json_open_array(&w, NULL);
        for (int i = 0; i < x->n->classes; i++) cr_json_put_general(&w, NULL, x->n->thresholds[i], 9);
        cr_json_close_array(&w);
        put_metadata(model, "thresholds", &text);
        w = cr_json_writer(&text, CR_JSON_SPACED);
    }
    put_reject(x->n, model);
    if (!x->n->class_names) return;
    cr_json_put_strings(&w, x->n->class_names, x->n->classes);
    put_metadata(model, "class_names", &text);
}

static int64_t input_channels(const struct cr_onnx *x) {
    for (int i = 0; i < x->p->ops; i++)
        if (x->p->op[i].kind == CR_OP_normalize) return x->p->tensor[x->p->op[i].out[CR_OUT_normalize_y]].dim[3];
    return x->p->tensor[x->p->images].dim[3];
}

static void put_graph(struct cr_onnx *x, struct cr_text *model) {
    const struct cr_tensor *images = &x->p->tensor[x->p->images];
    struct cr_text          graph  = {0};
    cr_text_add_bytes(&graph, x->nodes.data, x->nodes.length);
    cr_text_free(&x->nodes);
    cr_pb_add_string(&graph, GRAPH_NAME, "cresnet");
    cr_text_add_bytes(&graph, x->initializers.data, x->initializers.length);
    cr_text_free(&x->initializers);
    const int64_t channels = input_channels(x), height = x->n->dynamic ? FREE_HEIGHT : images->dim[1],
                  width = x->n->dynamic ? FREE_WIDTH : images->dim[2];
    if (x->n->preprocess)
        put_value_info(&graph, GRAPH_INPUT, "images",
                       cr_format_bits(x->n->prepare->format) == 16 ? DATA_UINT16 : DATA_UINT8, 4,
                       (const int64_t[]){FREE_BATCH, height, width, channels});
    else
        put_value_info(&graph, GRAPH_INPUT, "input", DATA_FLOAT, 4,
                       (const int64_t[]){FREE_BATCH, channels, height, width});
    const int64_t outputs[] = {FREE_BATCH, x->p->tensor[x->p->logits].dim[3]};
    put_value_info(&graph, GRAPH_OUTPUT, "logits", DATA_FLOAT, 2, outputs);
    if (x->n->thresholds) put_value_info(&graph, GRAPH_OUTPUT, "probabilities", DATA_FLOAT, 2, outputs);
    cr_pb_add_message(model, MODEL_GRAPH, &graph);
}

static cr_status write_model(struct cr_onnx *x, const char *path) {
    struct cr_text model = {0}, opset = {0};
    bool           failed = x->nodes.failed || x->initializers.failed;
    cr_status      status;
    cr_pb_add_int(&model, MODEL_IR_VERSION, CR_ONNX_IR_VERSION);
    cr_pb_add_string(&model, MODEL_PRODUCER_NAME, CR_OUTPUT_PRODUCER);
    cr_pb_add_string(&model, MODEL_PRODUCER_VERSION, CR_VERSION);
    if (!failed) put_graph(x, &model);
    cr_pb_add_int(&opset, 2, CR_ONNX_OPSET); /* version of the default domain */
    cr_pb_add_message(&model, MODEL_OPSET_IMPORT, &opset);
    put_all_metadata(x, &model);
    if (failed || model.failed)
        status = CR_NO_MEMORY(model.length + x->initializers.length);
    else if (model.length > INT32_MAX)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: %zu bytes: an ONNX file holds at most 2 GB", path, model.length);
    else
        status = cr_file_write_atomic(path, model.data, model.length);
    cr_text_free(&model);
    return status;
}

cr_status cr_onnx_write(const struct cr_onnx_network *network, const char *path, int *integer_max) {
    struct cr_onnx x = {
        .n = network, .p = network->eval, .folded = cr_alloc((size_t)network->eval->ops + 1, sizeof *x.folded)};
    cr_status status = x.folded ? CR_OK : CR_NO_MEMORY((size_t)network->eval->ops);
    CR_ASSERT(x.p->real == CR_F32 && x.p->images >= 0 && x.p->logits >= 0);
    for (int i = 0; status == CR_OK && i < x.p->ops; i++) status = cr_onnx_put_op(&x, i);
    if (status == CR_OK && network->thresholds)
        cr_onnx_put_node(&x, "Sigmoid", "probabilities", CR_ONNX_INPUTS("logits"));
    if (status == CR_OK) status = write_model(&x, path);
    *integer_max = x.integer_max;
    cr_text_free(&x.nodes);
    cr_text_free(&x.initializers);
    cr_free(x.folded);
    return status;
}

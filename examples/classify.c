/* classify.c: prints the most probable classes of image files.
 *
 *     cc classify.c $(pkg-config --cflags --libs cresnet) -o classify
 *     ./classify checkpoints/flowers rose.jpg tulip.jpg */
#include <cresnet.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 3 }; /* classes per image */

static int classes_of(const cresnet_model *model) {
    cresnet_info info;
    info.size = sizeof info;
    cresnet_get_info(model, &info);
    return info.classes;
}

static int print_classes(cresnet_model *model, int count, const char *const *paths) {
    const int      top = classes_of(model) < MOST ? classes_of(model) : MOST;
    cresnet_error  error, *image_errors = calloc((size_t)count, sizeof *image_errors);
    int32_t       *labels        = calloc((size_t)(count * top), sizeof *labels);
    float         *probabilities = calloc((size_t)(count * top), sizeof *probabilities);
    cresnet_output output;
    int            failed = 1, unreadable = 0;
    cresnet_output_init(&output);
    output.top           = top;
    output.labels        = labels;
    output.probabilities = probabilities;
    output.image_errors  = image_errors;
    if (!labels || !probabilities || !image_errors)
        fprintf(stderr, "out of memory\n");
    else if (cresnet_classify_files(model, paths, count, &output, &error) != CRESNET_OK)
        fprintf(stderr, "%s\n", error.text);
    else
        failed = 0;
    for (int i = 0; !failed && i < count; i++) {
        if (image_errors[i].status != CRESNET_OK) {
            fprintf(stderr, "%s\n", image_errors[i].text);
            unreadable = 1;
            continue;
        }
        printf("%s\n", paths[i]);
        for (int k = top * i; k < top * (i + 1); k++) {
            const char *name = cresnet_class_name(model, labels[k]);
            printf("  %6.2f %%  class %d%s%s\n", 100.0 * (double)probabilities[k], (int)labels[k], name ? ": " : "",
                   name ? name : "");
        }
    }
    free(labels);
    free(probabilities);
    free(image_errors);
    return failed || unreadable;
}

int main(int argc, char **argv) {
    cresnet_options options;
    cresnet_model  *model;
    cresnet_error   error;
    int             failed;
    if (argc < 3) {
        fprintf(stderr, "usage: classify RUN|CHECKPOINT|FILE.safetensors IMAGE ...\n");
        return 2;
    }
    cresnet_options_init(&options);
    options.max_batch = argc - 2 < 32 ? argc - 2 : 32;
    if (cresnet_open(argv[1], &options, &model, &error) != CRESNET_OK) {
        fprintf(stderr, "%s: %s\n", cresnet_status_name(error.status), error.text);
        return 1;
    }
    failed = print_classes(model, argc - 2, (const char *const *)argv + 2);
    cresnet_close(model);
    return failed;
}

/* tests/tools/library_start.c: library_start RUN [THREADS [DEVICE]]: time from cresnet_open to the first answer, batch
 * 1; on the CPU with two threads, unless stated otherwise. The first call in a process counts, so each measurement is a
 * process:
 *     for i in 1 2 3 4 5; do chrt -f 10 build/tests/library_start RUN; done
 * chrt gives it real-time priority, since on two cores every other program costs it as much as it computes. */
#include "include/cresnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int fail(const char *text) {
    fprintf(stderr, "library_start: %s\n", text);
    return 1;
}

int main(int count, char **argument) {
    cresnet_options options;
    cresnet_model  *model;
    cresnet_error   error;
    cresnet_output  output;
    cresnet_info    info = {.size = sizeof info};
    int32_t         label;
    double          at[4];
    if (count < 2 || count > 4) return fail("usage: library_start RUN [THREADS [DEVICE]]");
    cresnet_options_init(&options);
    cresnet_output_init(&output);
    options.device  = count > 3 ? argument[3] : "cpu";
    options.threads = count > 2 ? atoi(argument[2]) : 2;
    output.labels   = &label;
    at[0]           = now_ms();
    if (cresnet_open(argument[1], &options, &model, &error) != CRESNET_OK) return fail(error.text);
    at[1] = now_ms();
    if (cresnet_get_info(model, &info) != CRESNET_OK) return fail("cresnet_get_info failed");
    uint8_t *image = calloc((size_t)info.image_size * (size_t)info.image_width, 3);
    if (!image) return fail("out of memory");
    const cresnet_tensor tensor = {.data = image, .type = CRESNET_U8, .layout = CRESNET_NHWC, .count = 1};
    for (int i = 2; i < 4; i++) {
        if (cresnet_classify_tensor(model, &tensor, &output, &error) != CRESNET_OK) return fail(error.text);
        at[i] = now_ms();
    }
    printf("to the first answer %.1f ms: open %.1f, first image %.1f; second image %.1f\n", at[2] - at[0],
           at[1] - at[0], at[2] - at[1], at[3] - at[2]);
    free(image);
    cresnet_close(model);
    return 0;
}

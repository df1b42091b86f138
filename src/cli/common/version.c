/* cli/common/version.c: the text of `cresnet --version`: build options, versions of libraries, devices. */
#include "cli/common/command.h"
#include "data/decode.h"
#include "device/device.h"
#include "device/libraries.h"
#include "pretrained/pretrained.h"

#include <png.h>

#include <jpeglib.h> /* needs stdio.h before it */
#ifdef CR_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

static void add_libraries(struct cr_text *out) {
    char webp[CR_WEBP_VERSION_BYTES], tiff[CR_TIFF_VERSION_BYTES];
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
    cr_text_add(out, "libpng         %s (running with %u)\n", PNG_LIBPNG_VER_STRING,
                (unsigned)png_access_version_number());
#ifdef LIBJPEG_TURBO_VERSION
    cr_text_add(out, "libjpeg-turbo  " TEXT(LIBJPEG_TURBO_VERSION) "\n");
#else
    cr_text_add(out, "libjpeg        API %d\n", JPEG_LIB_VERSION);
#endif
    cr_webp_version(webp);
    cr_text_add(out, "libwebp        %s\n", webp);
    cr_tiff_version(tiff);
    cr_text_add(out, "libtiff        %s\n", tiff);
#ifdef CR_INIPARSER_VERSION
    cr_text_add(out, "iniparser      %s\n", CR_INIPARSER_VERSION);
#else
    cr_text_add(out, "iniparser      yes (version unknown)\n");
#endif
#undef TEXT
#undef TEXT_
    cr_text_add(out, "libcurl        %s\n", cr_download_version());
}

static void add_compute(struct cr_text *out) {
#ifdef CR_WITH_ONEDNN
    const dnnl_version_t *v = dnnl_version();
    cr_text_add(out, "oneDNN         %d.%d.%d\n", v->major, v->minor, v->patch);
#else
    cr_text_add(out, "oneDNN         no\n");
#endif
#ifdef _OPENMP
    cr_text_add(out, "OpenMP         %d\n", _OPENMP);
#else
    cr_text_add(out, "OpenMP         no\n");
#endif
#ifdef CR_CUDA_TEXT /* set by CMake: version of the toolkit, or why it is not used */
    cr_text_add(out, "CUDA           " CR_CUDA_TEXT "\n");
    cr_text_add(out, "NCCL           " CR_NCCL_TEXT "\n");
#endif
}

static void add_devices(struct cr_text *out) {
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char              *why     = NULL;
        struct cr_device_options options = {0};
        struct cr_device        *device;
        cr_text_add(out, "device %-7s ", (*b)->name);
        if (!(*b)->available(&why)) {
            cr_text_add(out, "not available: %s\n", why ? why : "no reason given");
        } else if ((*b)->open(&options, &device) != CR_OK) {
            cr_text_add(out, "cannot be opened: %s\n", cr_error_message());
            cr_error_clear();
        } else {
            cr_text_add(out, "%s\n", device->caps.text);
            cr_device_close(device);
        }
    }
    cr_device_list_libraries(out);
}

void cr_help_version(struct cr_text *out) {
    cr_text_add(out, "cresnet        " CR_VERSION "\n");
    cr_text_add(out, "licence        MIT, Copyright (c) 2026 the cresnet authors\n");
#ifdef __clang__
    cr_text_add(out, "compiler       %s\n", __VERSION__);
#else
    cr_text_add(out, "compiler       GCC %s\n", __VERSION__);
#endif
#ifdef CR_BUILD_TYPE
    cr_text_add(out, "build          %s\n", CR_BUILD_TYPE);
#endif
    add_compute(out);
    add_libraries(out);
    add_devices(out);
}

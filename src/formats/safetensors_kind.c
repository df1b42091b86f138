/* formats/safetensors_kind.c: recognises files of other kinds, so that messages name them. */
#include "formats/safetensors_file.h"

#include <string.h>

bool cr_st_is_torch(const unsigned char *p) {
    return !memcmp(p, "PK\3\4", 4) || (p[0] == 0x80 && p[1] <= 5);
}

/* The first member of an ONNX file is its version, a small number. */
static bool is_onnx(const char *path, const unsigned char *p) {
    const char *end = strrchr(path, '.');
    return end && strcmp(end, ".onnx") == 0 && p[0] == 0x08 && p[1] < 0x80;
}

cr_status cr_st_check_kind(const char *path, const unsigned char *head) {
    if (cr_st_is_torch(head))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is a PyTorch file, not a safetensors file; `cresnet export FILE.pth -o "
                       "FILE.safetensors` converts it",
                       path);
    if (is_onnx(path, head))
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: is an ONNX file, which cresnet writes and does not read: give the run or the safetensors or "
            "PyTorch file of the weights",
            path);
    return CR_OK;
}

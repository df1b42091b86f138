/* formats/tensor_kind.c: detects the format of a file of weights (safetensors, PyTorch) by its first bytes and name. */
#include "formats/safetensors_file.h"

#include <string.h>

bool cr_st_is_torch(const unsigned char head[CR_ST_HEAD_BYTES]) {
    return !memcmp(head, "PK\3\4", 4) || (head[0] == 0x80 && head[1] <= 5);
}

/* A safetensors file begins with a length of 8 bytes, the last of which is 0. */
bool cr_st_is_index(const unsigned char head[CR_ST_HEAD_BYTES]) {
    return head[0] == '{' && head[7] != 0;
}

static bool has_pytorch_name(const char *path) {
    static const char *const endings[] = {".pth", ".pt", ".th", ".bin", ".ckpt"};
    for (size_t i = 0; i < CR_COUNT(endings); i++)
        if (cr_ends_with(path, endings[i])) return true;
    return false;
}

/* What downloads leave in place of a file; NULL for anything else. */
static const char *failed_download(const unsigned char *head, size_t got) {
    static const char pointer[] = "version https://git-lfs";
    while (got && (*head == ' ' || *head == '\n' || *head == '\r' || *head == '\t')) head++, got--;
    if (!got) return "is empty";
    if (*head == '<') return "is a web page or XML, not weights: the download has failed";
    if (got >= sizeof pointer - 1 && !memcmp(head, pointer, sizeof pointer - 1))
        return "is a pointer of Git LFS, not weights: git lfs pull fetches the file";
    return NULL;
}

cr_status cr_st_check_kind(const char *path, const unsigned char head[CR_ST_HEAD_BYTES], size_t got) {
    const bool  safetensors = got > 8 && head[8] == '{';
    const char *download    = safetensors ? NULL : failed_download(head, got);
    if (safetensors) return CR_OK;
    if (download) return CR_FAIL(CR_ERR_FORMAT, "%s: %s", path, download);
    if (cr_st_is_torch(head))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is a PyTorch file, not a safetensors file; `cresnet export FILE.pth -o "
                       "FILE.safetensors` converts it",
                       path);
    /* the first member of an ONNX file is its version, a small number */
    if (cr_ends_with(path, ".onnx") && head[0] == 0x08 && head[1] < 0x80)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is an ONNX file, which cresnet writes and does not read: give the run folder that it was "
                       "exported from, or CONFIG --weights FILE with a safetensors or PyTorch file",
                       path);
    if (cr_st_is_index(head)) return CR_FAIL(CR_ERR_FORMAT, "%s: is a text in JSON, not weights", path);
    if (has_pytorch_name(path))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: not a PyTorch file: it begins neither as a zip archive nor as a pickle; it is damaged, "
                       "or no file of torch.save",
                       path);
    return CR_OK; /* cr_st_open says what is wrong with it */
}

"""check_includes/selftest.py: plants one violation of each kind and expects that check-includes.py finds it."""

def self_test(checker):
    known = checker.tree()
    launchers = checker.launcher_headers(known)
    long_function = "int f(void) {\n" + "    g();\n" * checker.FUNCTION_LINES + "}\n"
    long_kernel = long_function.replace("int f(", "template <typename T = float> __global__ void __launch_bounds__(256, 2) f(")
    planted = [
        ("src/graph/x.h", '#include "device/device.h"\n', "src/graph has level"),
        ("src/compiler/fusion/x.c", '#include "device/device.h"\n', None),
        ("src/layers/x.c", '#include "compiler/compiler.h"\n', "src/layers has level"),
        ("src/layers/x.c", '#include "optim/optim.h"\n', "src/layers has level"),
        ("src/device/cpu/reference/x.c", '#include "compiler/compiler.h"\n', "a device sees"),
        ("src/device/cpu/reference/x.c", '#include "runtime/executor.h"\n', "a device sees"),
        ("src/device/x.c", '#include "layers/layer.h"\n', "src/device has level"),
        ("src/data/loader/x.c", '#include "checkpoint/checkpoint.h"\n', None),
        ("src/data/loader/x.c", '#include "pruning/pruning.h"\n', None),
        ("src/runtime/x.c", '#include "session/session.h"\n', "src/runtime has level"),
        ("src/session/x.c", '#include "cli/common/command.h"\n', "src/session has level"),
        ("src/newcomer/x.c", "int x;\n", "has no line in FOLDERS"),
        ("src/session/x.c", '#include "session/newcomer.h"\n', "no such header"),
        ("cuda/norm/bn.cu", '#include "graph/graph.h"\n', "a kernel file sees"),
        ("cuda/norm/bn.cu", "#include <cudnn.h>\n#include <pthread.h>\n", "without system calls"),
        ("cuda/norm/bn_kernels.c", '#include "cuda/common/common.cuh"\n', "only .cu and .cuh"),
        ("cuda/norm/bn_kernels.c", '#include "runtime/executor.h"\n', "a device sees"),
        ("src/runtime/x.c", '#include "cuda/common/launchers.h"\n', "only cuda/ sees cuda/"),
        ("src/device/cpu/x.c", '#include "cuda/core/cuda_device.h"\n', "only cuda/ sees cuda/"),
        ("src/model/x.c", "#include <curand_philox4x32_x.h>\n", "only cuda/"),
        ("src/model/x.c", "#include <cuda_runtime.h>\n", "only cuda/"),
        ("src/model/x.c", "#include <oneapi/dnnl/dnnl.h>\n", "only the CPU device"),
        ("src/model/x.c", "int x;\n" * (checker.FILE_LINES + 1), "are allowed: split"),
        ("src/model/x.c", long_function, "function f has"),
        ("cuda/norm/bn.cu", 'extern "C" {\n' + long_function + "}\n", "function f has"),
        ("cuda/norm/bn.cu", "namespace {\n" + long_kernel + "}\n", "function f has"),
        ("src/model/x.c", "int f(void) {\n    exit(1);\n}\n", "exit() belongs to main.c"),
        ("src/model/x.c", "int f(void) {\n    return malloc(1);\n}\n", "cr_alloc"),
        ("src/model/x.c", "#ifdef CR_WITH_CUDA\n#endif\n", "whether the build has CUDA"),
        ("src/model/x.c", "typedef struct x y;\n", "no typedef"),
        ("src/data/image/x.c", 'bool f(void) {\n    return __builtin_cpu_supports("avx2");\n}\n', "what the processor has"),
    ]
    accepted = [
        ("src/model/x.c", '#include "layers/layer.h"\n#include "optim/optim.h"\n#include "compiler/compiler.h"\n'),
        ("src/model/x.c", "/* exit(1), malloc(2): \"words\" */ const char *s = \"exit(1) { {\"; /* { */\n"),
        ("src/model/x.c", "static const int table[] = {\n" + "    1,\n" * 200 + "};\n"),
        ("src/device/cpu/onednn/x.c", '#include "device/cpu/cpu.h"\n#include "device/device.h"\n#include <oneapi/dnnl/dnnl.h>\n'),
        ("src/runtime/x.c", '#include "runtime/executor.h"\n#include "device/device.h"\n#include "compiler/compiler.h"\n'),
        ("cuda/norm/bn.cu", '#include "cuda/common/launchers.h"\n#include "cuda/common/common.cuh"\n#include <cuda_runtime.h>\n'),
        ("cuda/norm/bn.cu", 'extern "C" {\n' + "int f(void) {\n    g();\n}\n" * 60 + "}\n"),
        ("cuda/norm/bn_kernels.c", '#include "cuda/core/cuda_device.h"\n#include "core/rng.h"\n#include "config/config.h"\n#include <cudnn.h>\n'),
    ]
    planted = [p for p in planted if p[2]]
    failed = 0
    for path, text, want in planted:
        found = checker.check_file(path, text, known, launchers)[0]
        if not any(want in f for f in found):
            failed += 1
            print(f"FAIL planted in {path}, not found: {want} (found: {found})")
    for path, text in accepted:
        found = checker.check_file(path, text, known, launchers)[0]
        if found:
            failed += 1
            print(f"FAIL correct text was refused: {found}")
    checks = len(planted) + len(accepted) + 2
    if checker.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) != [["a", "b", "c"]] or checker.cycles({"a": {"b"}, "b": set()}):
        failed += 1
        print("FAIL cycles between folders")
    crowded = {f"src/core/x{i}.c": "" for i in range(checker.FOLDER_FILES + 1)}
    if not any("files, at most" in line for line in checker.check(crowded, False)):
        failed += 1
        print("FAIL a crowded folder was not found")
    print(f"{checks - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0

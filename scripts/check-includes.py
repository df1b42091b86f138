#!/usr/bin/env python3
"""check-includes.py: the shape of the source tree (ARCHITECTURE.md, "who may include whom").

Reads the sources as text and fails on: an include that goes up or sideways, a header without a level, a file of more than
500 lines, a function of more than 100 lines, exit() outside src/cresnet.c, malloc and friends outside src/base.c, the choice
"built with CUDA" outside src/backend.c, CUDA headers outside cuda/, anything of ours but launchers in a .cu, oneDNN headers
outside the CPU device.

  scripts/check-includes.py               check the tree, print a table, exit 1 on a breach
  scripts/check-includes.py --self-test   plant a breach of each kind and demand that it is found
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES = 500, 100

# Level of every header, and the part of the house it belongs to. At level 5 the parts do not see each other.
HEADERS = {
    0: {"base": "base.h fsutil.h rng.h dtype.h json.h protobuf.h"},
    1: {"config": "config.h config.def config_keys.h ini.h", "graph": "graph.h ops.def", "files": "safetensors.h", "sparse": "sparse.h sparse_union.h"},
    2: {"layers": "layers/layer.h", "optim": "optim/optim.h"},
    3: {"passes": "passes.h passes/rewrite.h passes/fuse.h passes/choices.h passes/junction.h passes/lanes.h passes/swap.h passes/trace.h passes/best_fit.h passes/plan_tree.h plan_print.h plan_png.h lives_csv.h", "model": "model.h"},
    4: {"backend": "backend.h spdnn.h", "comm": "comm.h comm_parts.h comm_tcp.h"},
    5: {"exec": "exec.h profile.h costs.h costs_parts.h pools.h", "data": "data.h data_impl.h data_stat.h pack.h", "checkpoint": "checkpoint.h checkpoint_parts.h", "prune": "prune.h", "ranks": "ranks.h ranks_parts.h", "onnx": "onnx.h"},
    6: {"verify": "verify.h", "train": "session.h state.h train.h train_setup.h metrics.h tensorboard.h confusion.h"},
    7: {"commands": "cli.h cmd.h cmd_bench_init.h cmd_prune.h cmd_report.h"},
}
# Sources in src/ without a header of their own name belong to a part by the start of their name.
PARTS = {
    "config": ["config_", "ini_"], "graph": ["ops", "program", "store"], "files": ["safetensors_"], "passes": ["plan_print", "lives_check"],
    "data": ["data_", "dataset", "image", "resize", "augment", "loader", "pack"], "checkpoint": ["checkpoint_"],
    "verify": ["verify_"], "train": ["train_", "evaluate", "predict", "session_", "state_"], "comm": ["comm_"], "ranks": ["ranks_"],
    "prune": ["prune_", "sparse"], "exec": ["exec_", "profile", "costs_"], "backend": ["backend_", "spdnn_"], "model": ["model_"],
    "commands": ["cmd_", "cli_", "cresnet"], "base": ["base_"],
}

# Headers of launchers, and of the driver: what .cu files and the rows that call them both see. They see CUDA's headers and kernels.h only,
# and sparse_walks.h the plan of sparse_nm.h, which it has too.
LAUNCHERS = {"kernels.h", "block_conv.h", "point_conv.h", "point_grad.h", "small_conv.h", "small_dense.h", "im2col.h", "spdnn_kernel.h", "driver.h", "sparse_conv.h", "sparse_nm.h", "sparse_walks.h", "union_conv.h", "stem.h"}

LEVEL, PART = {}, {}
for level_, parts_ in HEADERS.items():
    for part_, names_ in parts_.items():
        for name_ in names_.split():
            LEVEL[name_], PART[name_] = level_, part_
LEVEL_OF_PART = {PART[name]: LEVEL[name] for name in LEVEL}


def place(path):
    """(part, level) of a source or header; None: unknown."""
    folder, name = path.split("/", 1) if "/" in path else ("", path)
    if folder == "cuda":
        return "cuda", 4
    if name in LEVEL:
        return PART[name], LEVEL[name]
    if name.startswith("cpu/"):
        return "cpu", 4
    for part in ("layers", "optim", "passes"):
        if name.startswith(part + "/"):
            return (part, LEVEL_OF_PART[part]) if name.endswith(".c") else None
    stem = name.rsplit(".", 1)[0]
    if name.endswith(".h"):
        return None
    if stem + ".h" in LEVEL:
        return PART[stem + ".h"], LEVEL[stem + ".h"]
    for part, starts in PARTS.items():
        if any(stem.startswith(s) or stem + "_" == s for s in starts):
            return part, LEVEL_OF_PART[part]
    return None


def may_include(path, header):
    """None when allowed, else why not."""
    mine = place(path)
    if path.startswith("cuda/") and path[5:] in LAUNCHERS:
        return None if header == "kernels.h" and path != "cuda/kernels.h" or (path, header) == ("cuda/sparse_walks.h", "sparse_nm.h") else "it sees nothing of ours: .cu files include it"
    if path.endswith((".cu", ".cuh")):
        return None if header in LAUNCHERS or header.endswith(".cuh") else "a .cu sees kernels.h and .cuh files only, and other headers of launchers"
    if header.endswith(".cuh"):
        return "only .cu and .cuh files see a .cuh"
    if mine[0] != "cuda" and header not in LEVEL and (ROOT / "cuda" / header).is_file():
        return "only cuda/ sees cuda/"
    folder = {"cpu": "src/cpu", "cuda": "cuda"}.get(mine[0])
    if folder and (ROOT / folder / header).is_file():  # a device's own headers
        return None
    if header not in LEVEL:
        return "has no level: give it one in scripts/check-includes.py and ARCHITECTURE.md"
    part, level = PART[header], LEVEL[header]
    if mine[0] in ("cpu", "cuda"):
        return None if level in (0, 1, 4) else "a device sees levels 0, 1 and 4 only"
    if part == mine[0]:
        return None
    if level > mine[1]:
        return f"level {level} seen from level {mine[1]}"
    if level == mine[1] and level in (2, 4, 5):
        return f"{mine[0]} and {part} must not see each other"
    if mine[1] == 4 and level in (2, 3):
        return "a device interface sees levels 0 and 1 only"
    return None


def strip(text):
    """The text without comments and without what is inside string and character literals; lines stay in place."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: '""' if m.group()[0] in "\"'" else re.sub(r"[^\n]", " ", m.group()), text)


def functions(code):
    """(name, line, lines) of every function body in stripped code."""
    lines = code.split("\n")
    depth, start, head, found, open_ = 0, 0, "", [], []  # open_: of each brace, whether it only groups declarations
    continued = False
    for number, line in enumerate(lines, 1):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if directive:
            continue
        for char in line:
            if char == "{":
                open_.append(depth == 0 and bool(re.search(r'(\bextern\s*""|\bnamespace(\s+\w+)?)\s*$', head)))
                if open_[-1]:
                    head = ""
                    continue
                if depth == 0:
                    match = re.search(r"(\w+)\s*\([^;=]*\)\s*$", re.sub(r"__launch_bounds__\s*\([^()]*\)", " ", head), re.S)
                    start, name = (number, match.group(1)) if match else (0, "")
                depth += 1
            elif char == "}":
                if open_ and open_.pop():
                    head = ""
                    continue
                depth -= 1
                if depth == 0:
                    if start:
                        found.append((name, start, number - start + 1))
                    head = ""
            elif depth == 0:
                head = "" if char == ";" else head + char
        head += "\n"
    return found


FORBIDDEN = [
    (re.compile(r"\bexit\s*\("), {"src/cresnet.c"}, "exit() is main's alone: return a status"),
    (re.compile(r"\b(?:malloc|calloc|realloc|aligned_alloc|strdup|free)\s*\("), {"src/base.c"}, "memory comes from cr_alloc and goes to cr_free"),
    (re.compile(r"\bCR_WITH_CUDA\b"), {"src/backend.c"}, "the choice of CUDA stands in backend.c and CMakeLists.txt only"),
    (re.compile(r"\btypedef\s+(?:struct|union)\b"), set(), "structs have no typedef"),
]


def check_file(path, text):
    """All breaches of one file, and its numbers for the table."""
    bad, code = [], strip(text)
    where = place(path)
    lines = text.count("\n")
    longest = max(functions(code), key=lambda f: f[2], default=("-", 0, 0))
    if not where:
        bad.append(f"{path}: belongs to no part: give it a level in scripts/check-includes.py and ARCHITECTURE.md")
        return bad, lines, longest, where
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not match:
            continue
        kind, header = match.groups()
        if kind == '"':
            why = may_include(path, header)
            if why:
                bad.append(f"{path}:{number}: includes {header}: {why}")
        elif where[0] == "cuda" and path.endswith((".cu", ".cuh")):
            if not re.match(r"(cuda|cu_|curand|cooperative_groups|cub/|mma|nv/|stdint|stddef|stdbool|math\.h|float\.h|limits\.h|string\.h)", header):
                bad.append(f"{path}:{number}: includes <{header}>: a .cu sees CUDA's headers and the standard ones without a system")
        elif re.match(r"(cuda|cublas|cudnn|curand|nccl|cusparse|nvtx|nvrtc|cupti|driver_types)", header) and where[0] != "cuda":
            bad.append(f"{path}:{number}: includes <{header}>: only cuda/ sees CUDA's headers")
        elif "dnnl" in header and where[0] != "cpu" and path != "src/cmd_help.c":
            bad.append(f"{path}:{number}: includes <{header}>: only the CPU device sees oneDNN (cmd_help.c asks its version)")
    if lines > FILE_LINES:
        bad.append(f"{path}: {lines} lines, {FILE_LINES} is the most: split it by concern")
    for name, line, count in functions(code):
        if count > FUNCTION_LINES:
            bad.append(f"{path}:{line}: function {name} has {count} lines, {FUNCTION_LINES} is the most")
    for number, line in enumerate(code.split("\n"), 1):
        for pattern, allowed, why in FORBIDDEN:
            if path not in allowed and pattern.search(line):
                bad.append(f"{path}:{number}: {why}")
    return bad, lines, longest, where


def tree():
    files = {}
    for folder in ("src", "cuda"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh", ".def"):
                files[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return files


def check(files, table):
    bad, rows = [], {}
    for path, text in files.items():
        found, lines, longest, where = check_file(path, text)
        bad += found
        if where:
            row = rows.setdefault((where[1], where[0]), [0, 0, ("-", 0, 0), ""])
            row[0] += 1
            row[1] += lines
            if longest[2] > row[2][2]:
                row[2], row[3] = longest, path
    if table:
        print(f"{'level':<6}{'part':<12}{'files':>6}{'lines':>8}  longest function")
        for (level, part), (count, lines, longest, path) in sorted(rows.items()):
            print(f"{level:<6}{part:<12}{count:>6}{lines:>8}  {longest[2]:>4} {longest[0]} ({path})")
        print(f"{len(files)} files, {sum(r[1] for r in rows.values())} lines")
    return bad


def self_test():
    long_function = "int f(void) {\n" + "    g();\n" * FUNCTION_LINES + "}\n"
    long_kernel = long_function.replace("int f(", "template <typename T = float> __global__ void __launch_bounds__(256, 2) f(")
    planted = [
        ("src/graph.h", '#include "backend.h"\n', "level 4 seen from level 1"),
        ("src/passes/fuse.c", '#include "backend.h"\n', "level 4 seen from level 3"),
        ("src/layers/conv.c", '#include "passes.h"\n', "level 3 seen from level 2"),
        ("src/layers/conv.c", '#include "optim/optim.h"\n', "must not see each other"),
        ("src/cpu/ref_conv.c", '#include "passes.h"\n', "levels 0, 1 and 4 only"),
        ("src/cpu/ref_conv.c", '#include "exec.h"\n', "levels 0, 1 and 4 only"),
        ("src/backend.c", '#include "layers/layer.h"\n', "levels 0 and 1 only"),
        ("src/loader.c", '#include "checkpoint.h"\n', "must not see each other"),
        ("src/exec.c", '#include "session.h"\n', "level 6 seen from level 5"),
        ("src/session.c", '#include "cmd.h"\n', "level 7 seen from level 6"),
        ("src/newcomer.c", "int x;\n", "belongs to no part"),
        ("src/passes/newcomer.h", "int x;\n", "belongs to no part"),
        ("src/session.c", '#include "newcomer.h"\n', "has no level"),
        ("cuda/bn.cu", '#include "graph.h"\n', "kernels.h and .cuh"),
        ("cuda/bn.cu", '#include "cuda.h"\n', "kernels.h and .cuh"),
        ("cuda/bn.cu", "#include <cudnn.h>\n#include <pthread.h>\n", "without a system"),
        ("cuda/common.cuh", '#include "base.h"\n', "kernels.h and .cuh"),
        ("cuda/kernels.h", '#include "base.h"\n', "sees nothing of ours"),
        ("cuda/kernels.h", '#include "point_grad.h"\n', "sees nothing of ours"),
        ("cuda/point_grad.h", '#include "graph.h"\n', "sees nothing of ours"),
        ("src/exec.c", '#include "point_grad.h"\n', "only cuda/ sees cuda/"),
        ("cuda/rows_bn.c", '#include "common.cuh"\n', "only .cu and .cuh"),
        ("cuda/rows_bn.c", '#include "exec.h"\n', "levels 0, 1 and 4 only"),
        ("cuda/rows_bn.c", '#include "layers/layer.h"\n', "levels 0, 1 and 4 only"),
        ("src/exec.c", '#include "kernels.h"\n', "only cuda/ sees cuda/"),
        ("src/cpu/cpu_bn.c", '#include "cuda.h"\n', "only cuda/ sees cuda/"),
        ("src/model.c", "#include <curand_philox4x32_x.h>\n", "only cuda/"),
        ("src/model.c", "#include <cuda_runtime.h>\n", "only cuda/"),
        ("src/model.c", "#include <oneapi/dnnl/dnnl.h>\n", "only the CPU device"),
        ("src/model.c", "int x;\n" * (FILE_LINES + 1), "is the most: split"),
        ("src/model.c", long_function, "function f has 102 lines"),
        ("cuda/bn.cu", 'extern "C" {\n' + long_function + "}\n", "function f has 102 lines"),
        ("cuda/bn.cu", "namespace {\n" + long_kernel + "}\n", "function f has 102 lines"),
        ("src/model.c", "int f(void) {\n    exit(1);\n}\n", "exit() is main's"),
        ("src/model.c", "int f(void) {\n    return malloc(1);\n}\n", "cr_alloc"),
        ("src/model.c", "#ifdef CR_WITH_CUDA\n#endif\n", "choice of CUDA"),
        ("src/model.c", "typedef struct x y;\n", "no typedef"),
    ]
    innocent = [
        ("src/model.c", '#include "layers/layer.h"\n#include "optim/optim.h"\n#include "passes.h"\n'),
        ("src/model.c", "/* exit(1), malloc(2): \"words\" */ const char *s = \"exit(1) { {\"; /* { */\n"),
        ("src/model.c", "static const int table[] = {\n" + "    1,\n" * 200 + "};\n"),
        ("src/cpu/dnnl_conv.c", '#include "cpu.h"\n#include "backend.h"\n#include <oneapi/dnnl/dnnl.h>\n'),
        ("src/exec.c", '#include "exec.h"\n#include "backend.h"\n#include "passes.h"\n'),
        ("cuda/bn.cu", '#include "kernels.h"\n#include "warp.cuh"\n#include <cuda_runtime.h>\n'),
        ("cuda/point_grad_sm90a.cu", '#include "point_grad.h"\n'),
        ("cuda/point_grad.h", '#include "kernels.h"\n'),
        ("cuda/bn.cu", 'extern "C" {\n' + "int f(void) {\n    g();\n}\n" * 60 + "}\n"),
        ("cuda/rows_bn.c", '#include "cuda.h"\n#include "rng.h"\n#include "config.h"\n#include <cudnn.h>\n'),
    ]
    failed = 0
    for path, text, want in planted:
        found = check_file(path, text)[0]
        if not any(want in f for f in found):
            failed += 1
            print(f"FAIL planted in {path}, not found: {want} (found: {found})")
    for path, text in innocent:
        found = check_file(path, text)[0]
        if found:
            failed += 1
            print(f"FAIL innocent text faulted: {found}")
    print(f"{len(planted) + len(innocent) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    bad = check(tree(), True)
    for line in bad:
        print("FAIL " + line)
    print(f"{0 if bad else 1} passed, {1 if bad else 0} failed, 0 skipped")
    return 1 if bad else 0


sys.exit(main())

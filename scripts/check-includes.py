#!/usr/bin/env python3
"""check-includes.py: checks the architecture of the source tree (ARCHITECTURE.md, "Folders and levels").

Every folder of src/, cuda/ and tools/ has one line in FOLDERS with its level. A file may include a header of its own folder and of
folders with a lower level. The script also fails on: a folder without a line, a cycle between folders, more than 20 files in
a folder, a file of more than FILE_LINES lines, a function of more than FUNCTION_LINES lines, exit() outside main.c, malloc
and free outside core/base.c, CR_WITH_CUDA outside device/registry.c, CUDA headers outside cuda/, project
headers in a .cu file other than launcher headers, and oneDNN headers outside the CPU device.

  scripts/check-includes.py               checks the tree, prints one line per folder, exits with 1 on a violation
  scripts/check-includes.py --self-test   plants one violation of each kind and expects that it is found
"""
import os
import re
import sys
from pathlib import Path

from check_includes import selftest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES, FOLDER_FILES = 500, 100, 20

# Level of every folder. A subfolder has a level of its own: the parent's headers are the interface that its children implement.
FOLDERS = {
    "include": 1.0,  # the public header of libcresnet
    "src/core": 1.0,  # errors, memory, files, random numbers, data types
    "src/core/checksum": 1.1,  # CRC-32C, SHA-256
    "src/core/process": 1.1,  # child processes
    "src/formats": 2.0,  # JSON, protobuf, safetensors
    "src/formats/torch": 2.1,  # PyTorch files: zip, pickle
    "src/pretrained": 2.0,  # published weights by name
    "src/config": 2.0,  # an INI file as typed values
    "src/sparsity": 2.0,  # encodings of sparse filters
    "src/comm": 2.0,  # messages between ranks through host memory and TCP
    "src/comm/launch": 3.0,  # starts and watches the processes of a run
    "src/graph": 3.0,  # tensors, ops, programs, the parameter store
    "src/checkpoint": 3.0,  # step folders
    "src/compiler": 4.0,  # the passes' interface, and compile.c, which calls them in order
    "src/compiler/autodiff": 4.2,
    "src/compiler/rewrite": 4.1,
    "src/compiler/schedule": 4.15,
    "src/compiler/fusion": 4.2,
    "src/compiler/gram": 4.3,
    "src/compiler/head": 4.3,  # the ops around the loss
    "src/compiler/memory": 4.2,
    "src/data": 4.0,  # the loader's interface and the data set
    "src/data/image": 4.1,
    "src/data/augment": 4.1,
    "src/data/source": 4.1,
    "src/data/source/tar": 4.15,  # archives of images
    "src/data/loader": 4.1,
    "src/pruning": 4.0,  # masks, budgets, schedules
    "src/pruning/budget": 4.0,  # searches that know nothing of networks
    "src/quantization": 4.0,  # scales of quantised values
    "src/device": 4.0,  # the interface of a device, and the table of devices
    "src/device/cpu": 4.1,
    "src/device/cpu/reference": 4.2,
    "src/device/cpu/tuned": 4.2,
    "src/device/cpu/tuned/conv": 4.25,
    "src/device/cpu/tuned/conv/bf16": 4.26,  # convolutions with products in bf16 by AMX
    "src/device/cpu/tuned/int8": 4.25,
    "src/device/cpu/onednn": 4.2,
    "cuda/common": 4.1,  # device-side helpers and launcher declarations
    "cuda/core": 4.2,  # streams, memory, libraries
    "cuda/elementwise": 4.3,
    "cuda/jpeg": 4.3,  # decodes JPEG images of training batches
    "cuda/norm": 4.3,
    "cuda/dense": 4.3,
    "cuda/train": 4.3,  # loss, update rules, initial values
    "cuda/conv/generic": 4.3,  # any convolution, without a library
    "cuda/conv/cudnn": 4.3,
    "cuda/conv/fused": 4.4,  # kernel tables of the families fused with BN
    "cuda/conv/pointwise": 4.3,  # 1x1 convolutions fused with BN
    "cuda/conv/int8": 4.3,  # 8-bit convolutions and the 8-bit stem
    "cuda/conv/mma": 4.25,  # mma.sync kernels of 1x1 convolutions and the stem
    "cuda/conv/mma/gram": 4.26,  # the same for BN statistics from Gram matrices
    "cuda/conv/pair": 4.4,  # two 1x1 convolutions in one kernel
    "cuda/conv/conv3x3": 4.3,  # 3x3 convolutions of 64 channels, and of multiples of 128
    "cuda/conv/gram": 4.3,  # BN statistics from Gram matrices
    "cuda/conv/stem": 4.3,
    "cuda/conv/cifar": 4.4,  # networks of 16 to 64 channels
    "cuda/conv/cifar/head": 4.45,  # the ops around the loss
    "cuda/sparse": 4.3,  # helpers of all sparse kernels
    "cuda/sparse/direct": 4.4,
    "cuda/sparse/block": 4.4,
    "cuda/sparse/two_four": 4.4,
    "cuda/sparse/mma_sp": 4.4,
    "cuda/sparse/wgmma_sp": 4.5,
    "cuda/collectives": 4.3,
    "cuda": 4.9,  # the device and its table of kernels
    "src/layers": 4.0,  # layers append ops to a program
    "src/optim": 4.0,  # update rules and learning rate schedules
    "src/model": 5.0,  # ResNets, ONNX export
    "src/inspect": 5.0,  # programs and memory plans for people
    "src/runtime": 5.0,  # binds a program to a device and runs it
    "src/autotune": 6.0,  # measured kernel times
    "src/verification": 6.0,  # compares an op on two devices
    "src/session/labels": 6.9,  # scores of networks with several labels per image
    "src/session": 7.0,  # a network open on a device
    "src/session/loading": 7.1,  # weights of other networks
    "src/session/scores": 7.1,  # confusion matrix, means over classes, calibration
    "src/session/quantization": 7.1,  # calibration, checkpoints and layer errors of quantised networks
    "src/training": 8.0,  # the training loop
    "src/api": 8.0,  # libcresnet: the public C interface
    "src/cli/common": 9.0,  # arguments, options, what commands share
    "src/cli/docs": 9.1,  # man pages, completion, the configuration page
    "src/cli/commands": 9.2,
    "src/cli/svg": 9.0,  # drawings of commands and of the report
    "src/cli/report": 9.2,
    "src/cli/finetune": 9.2,  # cresnet finetune
    "src/cli/budget": 9.3,  # cresnet prune to a budget of time
    "src/cli/compress": 9.3,  # cresnet compress
    "src/cli/sweep": 9.3,  # cresnet sweep
    "src/cli/explain": 9.2,  # cresnet explain
    "src/cli/features": 9.2,  # cresnet features
    "src/cli/bench": 9.3,
    "src/cli": 9.4,  # main.c and the table of commands
    "tools/common": 9.5,  # the command line of the programs in tools/
    "tools/spdnn": 9.6,  # sparse deep networks (Graph Challenge)
    "tools/memory-trace": 9.6,  # lifetimes, allocators and rules of offloading
    "tools/memory-trace/trace": 9.55,  # memory logs
    "tools/sparse-bench": 9.6,  # sparse convolutions compared with dense ones and im2col
    "tools/init-bench": 9.6,  # weight initialisation on the device and on the host
}
# Includes that the levels alone would refuse: (folder or file, header or folder): reason.
EXCEPTIONS = {
    ("cuda/jpeg", "src/formats/jpeg_scan.h"): "plain data that the loader makes and the kernels read",
    ("cuda/conv/cifar", "cuda/norm/bn_finish.cuh"): "the CIFAR kernels finish BN sums themselves",
    ("cuda/conv/cifar/head", "cuda/train/loss_rows.cuh"): "a kernel computes the loss between forward and backward",
    ("cuda/sparse/wgmma_sp", "cuda/sparse/two_four"): "the plan and the wgmma helpers of 2:4 filters",
    ("cuda/conv/cudnn", "src/formats/json_write.h"): "cuDNN reads the properties of an offline device as JSON",
    ("cuda/sparse/wgmma_sp", "cuda/sparse/mma_sp"): "the split of a number into sparse tensor core operands",
}

# A device sees these folders of src/ and no others.
DEVICE_FOLDERS = ("src/device/cpu", "cuda")
DEVICE_SEES = ("src/core", "src/formats", "src/config", "src/graph", "src/sparsity", "src/comm", "src/device")

SOURCES = (".c", ".h", ".cu", ".cuh", ".def")


def folder_of(path):
    return os.path.dirname(path)


def header_path(header, known):
    """The path of an included header, or None. Headers are named from src/, and from the root for cuda/ and tests/."""
    for candidate in ("src/" + header, header):
        if candidate in known:
            return candidate
    return None


def is_device(folder):
    return any(folder == f or folder.startswith(f + "/") for f in DEVICE_FOLDERS)


def is_tool_cuda(path):
    """Is it a file of a tool that only builds with CUDA have?"""
    return path.startswith("tools/") and re.search(r"(_cuda(_\w+)?\.[ch]|/kernels\.h|/im2col\.h|\.cuh?)$", path) is not None


def is_kernel_file(path, launchers):
    """Is it code of the GPU, or a header that such code includes?"""
    return path.endswith((".cu", ".cuh")) or path in launchers


def kernel_file_may_include(path, header):
    """Kernels know neither programs nor ops: they see cuda/common, their own folder and the folder above it."""
    mine, other = folder_of(path), folder_of(header)
    above = os.path.dirname(mine)
    if path.endswith(".h") and header.endswith(".cuh"):
        return "only .cu and .cuh files see a .cuh"
    if other in ("cuda/common", mine) or (other == above and above != "cuda"):
        return None
    return f"a kernel file sees cuda/common, its own folder and the folder above it, not {other}"


def may_include(path, header, launchers):
    """None when the include is allowed, else the reason why not."""
    mine, other = folder_of(path), folder_of(header)
    if (mine, header) in EXCEPTIONS or (mine, other) in EXCEPTIONS:
        return None
    if is_kernel_file(path, launchers):
        return kernel_file_may_include(path, header)
    if header.endswith(".cuh"):
        return "only .cu and .cuh files see a .cuh"
    if other not in FOLDERS:
        return f"folder {other} has no line in FOLDERS"
    if other.startswith("cuda") and not mine.startswith("cuda") and not is_tool_cuda(path):
        return "only cuda/ sees cuda/"
    if is_device(mine) and not is_device(other) and other not in DEVICE_SEES:
        return f"a device sees {', '.join(DEVICE_SEES)} only"
    if mine != other and FOLDERS[other] >= FOLDERS[mine]:
        return f"{other} has level {FOLDERS[other]}, {mine} has level {FOLDERS[mine]}"
    return None


def includes(path, text, known):
    """(line number, "<" or a quote, name, path of the header or None) of every #include."""
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if match:
            kind, name = match.groups()
            yield number, kind, name, header_path(name, known) if kind == '"' else None


def launcher_headers(files):
    """The .h files that .cu and .cuh files include, directly or through each other."""
    found, todo = set(), [p for p in files if p.endswith((".cu", ".cuh"))]
    while todo:
        for _, _, _, header in includes(todo[-1], files[todo.pop()], files):
            if header and header.endswith(".h") and header not in found:
                found.add(header)
                todo.append(header)
    return found


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
    (re.compile(r"\bexit\s*\("), {"src/cli/main.c"}, "exit() belongs to main.c: return a status"),
    (re.compile(r"\b(?:malloc|calloc|realloc|aligned_alloc|strdup|free)\s*\("), {"src/core/base.c"}, "memory comes from cr_alloc and is freed by cr_free"),
    (re.compile(r"\bCR_WITH_CUDA\b"), {"src/device/registry.c"}, "only device/registry.c and CMakeLists.txt may depend on whether the build has CUDA"),
    (re.compile(r"\b(?:__builtin_cpu_\w+|target_clones)\b"), {"src/core/cpu.c"}, "core/cpu.h says what the processor has: only it knows CRESNET_CPU"),
    (re.compile(r"\btypedef\s+(?:struct|union)\b"), {"include/cresnet.h"}, "structs have no typedef; only the public header has short names"),
]
CUDA_HEADERS = re.compile(r"(cuda|cublas|cudnn|curand|nccl|cusparse|nvtx|nvrtc|cupti|driver_types)")
KERNEL_FILE_HEADERS = re.compile(r"(cuda|cu_|curand|cooperative_groups|cub/|mma|nv/|stdint|stddef|stdbool|math\.h|float\.h|limits\.h|string\.h)")


def check_system_header(path, header):
    """None when the file may include <header>, else the reason why not."""
    folder = folder_of(path)
    if path.endswith((".cu", ".cuh")):
        return None if KERNEL_FILE_HEADERS.match(header) else "a .cu file sees CUDA's headers and standard headers without system calls"
    if CUDA_HEADERS.match(header) and not folder.startswith("cuda") and not is_tool_cuda(path):
        return "only cuda/ sees CUDA's headers"
    if "dnnl" in header and not folder.startswith("src/device/cpu") and path != VERSION_FILE:
        return "only the CPU device sees oneDNN"
    return None


VERSION_FILE = "src/cli/common/version.c"  # prints the versions of the libraries


def check_file(path, text, known, launchers):
    """All violations of one file, its number of lines, its longest function, and the folders that it includes."""
    bad, used, code = [], set(), strip(text)
    lines = text.count("\n")
    longest = max(functions(code), key=lambda f: f[2], default=("-", 0, 0))
    if folder_of(path) not in FOLDERS:
        return [f"{path}: folder {folder_of(path)} has no line in FOLDERS of scripts/check-includes.py"], lines, longest, used
    for number, kind, name, header in includes(path, text, known):
        if kind == "<":
            why = check_system_header(path, name)
        elif header is None:
            why = "no such header: name it from src/, or from the root for cuda/"
        else:
            why = may_include(path, header, launchers)
            used.add(folder_of(header))
        if why:
            bad.append(f"{path}:{number}: includes {name}: {why}")
    if lines > FILE_LINES:
        bad.append(f"{path}: {lines} lines, at most {FILE_LINES} are allowed: split it by concern")
    for name, line, count in functions(code):
        if count > FUNCTION_LINES:
            bad.append(f"{path}:{line}: function {name} has {count} lines, at most {FUNCTION_LINES} are allowed")
    for number, line in enumerate(code.split("\n"), 1):
        for pattern, allowed, why in FORBIDDEN:
            if path not in allowed and pattern.search(line):
                bad.append(f"{path}:{number}: {why}")
    return bad, lines, longest, used


def cycles(uses):
    """Groups of folders that include each other, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(uses.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            group = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(group) > 1:
                found.append(sorted(group))

    for v in sorted(uses):
        if v not in index:
            visit(v)
    return found


def tree():
    files = {}
    for top in ("include", "src", "cuda", "tools"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SOURCES and path.relative_to(ROOT).parts[:2] != ("tools", "loadgen") and "tests" not in path.parts:
                files[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return files


def check(files, table):
    bad, rows, uses, launchers = [], {}, {}, launcher_headers(files)
    for path, text in files.items():
        found, lines, longest, used = check_file(path, text, files, launchers)
        bad += found
        folder = folder_of(path)
        uses.setdefault(folder, set()).update(used - {folder})
        row = rows.setdefault(folder, [0, 0, ("-", 0, 0), ""])
        row[0] += 1
        row[1] += lines
        if longest[2] > row[2][2]:
            row[2], row[3] = longest, path
    for group in cycles(uses):
        bad.append(f"folders include each other: {', '.join(group)}")
    for folder, row in rows.items():
        if row[0] > FOLDER_FILES:
            bad.append(f"{folder}: {row[0]} files, at most {FOLDER_FILES} are allowed")
    for folder in FOLDERS:
        if folder not in rows:
            bad.append(f"FOLDERS has a line for {folder}, which has no files")
    if table:
        print(f"{'level':<6}{'folder':<28}{'files':>6}{'lines':>8}  longest function")
        for folder, (count, lines, longest, path) in sorted(rows.items(), key=lambda r: (FOLDERS.get(r[0], 0), r[0])):
            print(f"{FOLDERS.get(folder, 0):<6}{folder:<28}{count:>6}{lines:>8}  {longest[2]:>4} {longest[0]} ({os.path.basename(path)})")
        print(f"{len(files)} files, {sum(r[1] for r in rows.values())} lines")
    return bad


def main():
    if sys.argv[1:] == ["--self-test"]:
        return selftest.self_test(sys.modules[__name__])
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    bad = check(tree(), True)
    for line in bad:
        print("FAIL " + line)
    print(f"{0 if bad else 1} passed, {1 if bad else 0} failed, 0 skipped")
    return 1 if bad else 0


sys.exit(main())

#!/usr/bin/env python3
"""bench_cpu.py: training steps and inference on a CPU, cresnet against PyTorch, onnxruntime and OpenVINO. See scripts/bench-cpu.sh.

The programs of a row run in turn, so that a slow period of the machine affects all of them. A row shows the medians, and the median of
the ratios of the rounds to the fastest peer. PyTorch counts with its fastest mode: contiguous or channels_last tensors, eager or compiled.
With --level avx2 the peers are limited as cresnet is: by --hide, a library that hides instructions, or by variables, which onnxruntime lacks.
Rows of training in bf16, where the processor has AMX: PyTorch with autocast.
8-bit rows: the peers have weights of 7 bits, which processors without VNNI need there; cresnet has 8 bits, or 7 with "reduced range".
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOWER = {"avx2": {"CRESNET_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "avx2_vnni": {"CRESNET_CPU": "avx2_vnni", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
TRAININGS = {"resnet20": ("cifar10-resnet20", 128), "resnet18": ("resnet18", 16), "resnet50": ("resnet50", 8)}
NETWORKS, BATCHES = ("resnet18", "resnet50"), (1, 8)


# ---- PyTorch: networks, a process for each measurement ----

def make_torch_network(name):
    import torch.nn as nn
    import torch.nn.functional as F

    def conv(c, k, size, stride=1):
        return nn.Sequential(nn.Conv2d(c, k, size, stride, size // 2, bias=False), nn.BatchNorm2d(k))

    class Block(nn.Module):
        def __init__(self, c, width, stride, bottleneck, padded):
            super().__init__()
            out = 4 * width if bottleneck else width
            self.a, self.b = (conv(c, width, 1), conv(width, width, 3, stride)) if bottleneck else (conv(c, width, 3, stride), conv(width, out, 3))
            self.c = conv(width, out, 1) if bottleneck else None
            self.shortcut = conv(c, out, 1, stride) if not padded and (stride > 1 or c != out) else None
            self.pad, self.stride = (out - c) // 2 if padded else 0, stride

        def forward(self, x):
            y = self.b(F.relu(self.a(x)))
            if self.c:
                y = self.c(F.relu(y))
            if self.shortcut:
                x = self.shortcut(x)
            elif self.pad:  # option A of He et al. 2015
                x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.pad, self.pad))
            return F.relu(y + x)

    class ResNet(nn.Module):
        def __init__(self, depths, widths, bottleneck, cifar, classes):
            super().__init__()
            c, layers = widths[0], []
            self.stem = conv(3, c, 3) if cifar else conv(3, c, 7, 2)
            self.pool = None if cifar else nn.MaxPool2d(3, 2, 1)
            for stage, (depth, width) in enumerate(zip(depths, widths)):
                for i in range(depth):
                    layers.append(Block(c, width, 2 if stage and not i else 1, bottleneck, cifar))
                    c = 4 * width if bottleneck else width
            self.layers, self.fc = nn.Sequential(*layers), nn.Linear(c, classes)

        def forward(self, x):
            x = F.relu(self.stem(x))
            x = self.layers(self.pool(x) if self.pool else x)
            return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    if name == "resnet20":
        return ResNet((3, 3, 3), (16, 32, 64), False, True, 10), 32, 10
    depths = (2, 2, 2, 2) if name == "resnet18" else (3, 4, 6, 3)
    return ResNet(depths, (64, 128, 256, 512), name == "resnet50", False, 1000), 224, 1000


def time_torch(name, batch, steps, training, channels_last, compiled, bf16=False):
    import torch
    import torch.nn.functional as F
    torch.manual_seed(1)
    model, size, classes = make_torch_network(name)
    x, labels = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    model.train(training)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def step():
        if not training:
            with torch.inference_mode():
                return run(x)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(run(x), labels)
        loss.backward()
        return optimizer.step()

    return batch / median_seconds(step, steps)


def median_seconds(step, steps):
    for _ in range(2):
        step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def run_torch(a, name, batch, training, mode):
    ran = subprocess.run([sys.executable, __file__, "--torch", json.dumps([name, batch, a.steps, training, *mode]), "--threads", str(a.threads)],
                         env=a.environment, capture_output=True, text=True)
    return float(ran.stdout) if ran.returncode == 0 else None  # torch.compile needs a C++ compiler and headers


# ---- onnxruntime and OpenVINO ----

def make_int8(onnx, to):
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):
        def __init__(self):
            rng = np.random.default_rng(1)
            self.batches = iter([{"input": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)} for _ in range(4)])

        def get_next(self):
            return next(self.batches, None)

    quant_pre_process(onnx, to + ".prepared", skip_symbolic_shape=True)
    quantize_static(to + ".prepared", to, Images(), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)


def time_onnx(path, batch, steps, threads, library):
    import numpy as np
    x = np.random.default_rng(2).standard_normal((batch, 3, 224, 224)).astype(np.float32)
    if library == "openvino":
        import openvino
        model = openvino.Core().read_model(path)
        model.reshape([batch, 3, 224, 224])
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}  # not bf16 by AMX
        request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        return batch / median_seconds(lambda: request.infer([x]), steps)
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return batch / median_seconds(lambda: session.run(None, {name: x}), steps)


def run_onnx(a, path, batch, library):
    ran = subprocess.run([sys.executable, __file__, "--onnx", json.dumps([path, batch, a.steps, a.threads, library])], env=a.peers,
                         capture_output=True, text=True)
    return float(ran.stdout) if ran.returncode == 0 else None


# ---- cresnet ----

def run_cresnet(a, what, target, batch, *overrides):
    ran = subprocess.run([a.program, "bench", what, target, "--device", "cpu", "--batch", str(batch), f"train.eval_batch={batch}", "--threads",
                          str(a.threads), "--steps", str(a.steps), "--json", "-q", *overrides], env=a.environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"bench_cpu.py: {' '.join(ran.args)}: {ran.stderr.strip()}")
    return json.loads(ran.stdout.splitlines()[-1])["images_per_s"]


def make_files(a, name, work, int8):
    """A run with random weights and its ONNX file; both also in 8 bits."""
    run, config = f"{work}/{name}", f"{ROOT}/configs/{name}.ini"
    commands = (["train", config, "-o", run, "data.kind=shapes", f"data.root={work}/shapes", "data.train_images=64", "data.val_images=32",
                 "--device", "cpu", "--batch", "4", "--steps", "1", "model.classes=10"],
                ["export", run, "--onnx", run + ".onnx", "--fold", "--dynamic"], ["quantize", run, "-o", run + "-int8"],
                ["quantize", run, "-o", run + "-int8 reduced range", "--reduce-range"])
    for command in commands[:4 if int8 else 2]:
        ran = subprocess.run([a.program, *command, "-q"], capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"bench_cpu.py: cresnet {' '.join(command)}: {ran.stderr.strip()}")
    if int8:
        make_int8(run + ".onnx", run + "-int8.onnx")


# ---- rows ----

def has_amx(a):
    with open("/proc/cpuinfo") as f:
        return a.level in ("", "avx512") and " amx_bf16" in f.read()


def show(a, title, ours, peers):
    """peers: {name: a function that measures}. A function that returns None cannot run here."""
    found, ratios = {"cresnet": []}, []
    for _ in range(a.rounds):
        round_ = {"cresnet": ours()} | {name: measure() for name, measure in peers.items()}
        round_ = {name: rate for name, rate in round_.items() if rate}
        for name, rate in round_.items():
            found.setdefault(name, []).append(rate)
        ratios.append(round_["cresnet"] / max([rate for name, rate in round_.items() if name != "cresnet"], default=float("nan")))
    rates = ", ".join(f"{name} {statistics.median(values):.2f}" for name, values in found.items())
    print(f"{title}: {rates} images/s; ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=f"{ROOT}/build/cresnet")
    parser.add_argument("--level", default="")
    parser.add_argument("--hide", default="", help="library that onnxruntime and OpenVINO preload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="rows whose title has this text")
    parser.add_argument("--torch", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--onnx", type=json.loads, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.torch:
        import torch
        torch.set_num_threads(a.threads)
        return print(time_torch(*a.torch))
    if a.onnx:
        return print(time_onnx(*a.onnx))
    a.environment = os.environ | LOWER.get(a.level, {})
    a.peers = a.environment | ({"LD_PRELOAD": a.hide} if a.hide else {})
    modes = {f"PyTorch {'channels_last' if last else 'contiguous'} {'compiled' if compiled else 'eager'}": (last, compiled)
             for last in (False, True) for compiled in (False, True)}
    for name, (config, batch) in TRAININGS.items():
        for precision in ("fp32", "bf16") if has_amx(a) else ("fp32",):
            title = f"training {name} {precision} batch {batch}"
            if a.only in title:
                show(a, title, lambda: run_cresnet(a, "step", f"{ROOT}/configs/{config}.ini", batch, f"train.precision={precision}"),
                     {mode: lambda how=(*how, precision == "bf16"): run_torch(a, name, batch, True, how) for mode, how in modes.items()})
    with tempfile.TemporaryDirectory() as work:
        for name in NETWORKS:
            rows = [(f"inference {name} {kind} batch {batch}", kind, batch) for kind in ("fp32", "int8", "int8 reduced range") for batch in BATCHES]
            rows = [row for row in rows if a.only in row[0]]
            if rows:
                make_files(a, name, work, any(kind != "fp32" for _, kind, _ in rows))
            for title, kind, batch in rows:
                folder, onnx = f"{work}/{name}" + ("" if kind == "fp32" else f"-{kind}"), f"{work}/{name}" + ("" if kind == "fp32" else "-int8") + ".onnx"
                peers = {library: lambda library=library: run_onnx(a, onnx, batch, library) for library in ("onnxruntime", "openvino")}
                if kind == "fp32":
                    peers |= {mode: lambda how=how: run_torch(a, name, batch, False, how) for mode, how in modes.items()}
                show(a, title, lambda: run_cresnet(a, "infer", folder, batch), peers)


if __name__ == "__main__":
    main()

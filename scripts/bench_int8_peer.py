#!/usr/bin/env python3
"""bench_int8_peer.py: 8-bit inference on the CPU: cresnet and onnxruntime, in turn on the same machine.

  scripts/bench_int8_peer.py PROGRAM RUN INT8 FILE.onnx [--batch N] [--threads N] [--rounds N]
RUN: a run in floating point; INT8: the folder that `cresnet quantize RUN -o INT8` wrote; FILE.onnx: what
`cresnet export RUN --onnx FILE.onnx --fold` wrote. onnxruntime quantises that file itself (static quantisation, QDQ, one
scale for each output channel, MinMax calibration), which fuses better than a file that was quantised elsewhere. Prints
the median images/s of each, and the ratios. Needs: pip install onnxruntime onnx numpy
"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


class Images(CalibrationDataReader):
    def __init__(self, size):
        rng = np.random.default_rng(1)
        self.batches = iter([{"input": rng.standard_normal((4, 3, size, size)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.batches, None)


def session_of(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def time_onnx(session, batch, size):
    images = np.random.default_rng(2).standard_normal((batch, 3, size, size)).astype(np.float32)
    times = []
    for i in range(12):
        start = time.perf_counter()
        session.run(None, {"input": images})
        times.append(time.perf_counter() - start)
    return batch / statistics.median(times[2:])


def time_cresnet(program, folder, batch, threads):
    ran = subprocess.run([program, "bench", "infer", folder, "--device", "cpu", "--batch", str(batch), "--threads", str(threads), "--steps", "10",
                          "-q"], capture_output=True, text=True, check=True)
    return float(re.search(r"([\d.]+) images/s", ran.stdout + ran.stderr).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("run")
    parser.add_argument("int8")
    parser.add_argument("onnx")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=224)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        quant_pre_process(a.onnx, f"{work}/prepared.onnx", skip_symbolic_shape=True)
        quantize_static(f"{work}/prepared.onnx", f"{work}/int8.onnx", Images(a.size), quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        peers = {"onnxruntime fp32": session_of(a.onnx, a.threads), "onnxruntime int8": session_of(f"{work}/int8.onnx", a.threads)}
        found = {name: [] for name in ("cresnet fp32", "cresnet int8", *peers)}
        for _ in range(a.rounds):
            found["cresnet fp32"].append(time_cresnet(a.program, a.run, a.batch, a.threads))
            found["cresnet int8"].append(time_cresnet(a.program, a.int8, a.batch, a.threads))
            for name, session in peers.items():
                found[name].append(time_onnx(session, a.batch, a.size))
    median = {name: statistics.median(values) for name, values in found.items()}
    print(f"batch {a.batch}, {a.threads} threads, onnxruntime {onnxruntime.__version__}, median of {a.rounds} rounds")
    for name, values in found.items():
        print(f"{name:18} {median[name]:8.1f} images/s  ({min(values):.1f} to {max(values):.1f})")
    print(f"int8 against fp32: {median['cresnet int8'] / median['cresnet fp32']:.2f}x")
    print(f"int8 against onnxruntime int8: {median['cresnet int8'] / median['onnxruntime int8']:.2f}x")


main()

"""Class probabilities that onnxruntime computes from ONNX files, for tests.

  onnx_runtime.py PIXELS.json SIZE LEVEL SWITCH FILE...   prints {"version": ..., FILE: probabilities of each image}; needs onnxruntime and numpy
"""
import json
import subprocess
import sys


def probabilities(python, pixels, size, files, level="ORT_ENABLE_ALL", switch="0", emulator=()):
    """({"version": ..., file: [images][classes]} or {}, messages). python: an interpreter that has onnxruntime. pixels: a JSON file with the RGB
    bytes of images of `size` squared; they are normalised as the file says. level: of the graph's optimisation; switch:
    session.x64quantprecision; emulator: the words of a command that runs programs of another processor."""
    ran = subprocess.run([*emulator, python, "-B", __file__, pixels, str(size), level, switch, *files], capture_output=True, text=True)
    return json.loads(ran.stdout) if ran.returncode == 0 else {}, ran.stderr


def main(pixels, size, level, switch, *files):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.x64quantprecision", switch)
    out = {"version": onnxruntime.__version__}
    with open(pixels) as f:
        images = np.array(json.load(f), np.float32).reshape(-1, int(size), int(size), 3)
    for file in files:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        meta = session.get_modelmeta().custom_metadata_map
        mean, std = (np.array(json.loads(meta[key]), np.float32) for key in ("mean", "std"))
        x = ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
        logits = session.run(None, {"input": np.ascontiguousarray(x)})[0].astype(np.float64)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[file] = (e / e.sum(axis=1, keepdims=True)).round(9).tolist()
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Class probabilities that the ONNX file of a small network gives by the definitions of its operators, for tests.

  onnx_numpy.py PIXELS.json SIZE FILE   prints the probabilities of each image as a JSON list; needs numpy

Written from the specification of ONNX, independently of cresnet and onnxruntime: float64, and integers where the file has them. The values
of a file with --preprocess are those of `evaluated`.
"""
import json
import sys

import numpy as np
import onnx_text

TYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}  # TensorProto.DataType


def windows(x, shape, attribute, border):
    """[N, C, P, Q, R, S]: the windows that a convolution or a pooling sees; pixels outside of the image are `border`."""
    stride, pads = attribute.get("strides", [1, 1]), list(attribute.get("pads", [0, 0, 0, 0]))
    if attribute.get("ceil_mode", [0])[0]:  # the last window may be cut off
        pads[2:] = [pads[2 + k] + -(pads[k] + pads[2 + k] + x.shape[2 + k] - shape[k]) % stride[k] for k in (0, 1)]
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=border)
    return np.lib.stride_tricks.sliding_window_view(x, shape, (2, 3))[:, :, :: stride[0], :: stride[1]]


def convolve(attribute, x, w, bias=np.zeros(1)):
    if x.ndim == 3:  # one dimension, as rows of one line
        before, after = attribute["pads"]
        return convolve({**attribute, "pads": [0, before, 0, after]}, x[:, :, None], w[:, :, None], bias)[:, :, 0]
    groups = attribute.get("group", [1])[0]
    seen = windows(x, w.shape[2:], attribute, 0)
    parts = [np.einsum("ncpqrs,kcrs->nkpq", a, b, optimize=True) for a, b in zip(np.split(seen, groups, 1), np.split(w, groups))]
    return np.concatenate(parts, 1) + bias[:, None, None]


def normalized(x, scale, bias, mean, var, epsilon):
    scale, bias, mean, var = (each.astype(np.float64)[:, None, None] for each in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + epsilon) * scale + bias


def sliced(x, starts, ends, axes, steps):
    at = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps):
        at[axis] = slice(start, end, step)
    return x[tuple(at)]


def dequantized(q, scale, zero, axis):
    shape = [-1 if i == axis and scale.ndim else 1 for i in range(q.ndim)]
    return (q.astype(np.float64) - zero.reshape(shape)) * scale.astype(np.float64).reshape(shape)


def evaluate(op, x, attribute):
    if op == "QuantizeLinear":
        limits = np.iinfo(x[2].dtype)
        return np.clip(np.rint(x[0] / x[1].astype(np.float64)) + x[2], limits.min, limits.max).astype(x[2].dtype)
    if op == "DequantizeLinear":
        return dequantized(*x, attribute.get("axis", [1])[0])
    if op == "Conv":
        return convolve(attribute, *x)
    if op == "BatchNormalization":
        return normalized(*x, attribute["epsilon"][0])
    if op == "MaxPool":
        return windows(x[0], attribute["kernel_shape"], attribute, -np.inf).max((4, 5))
    if op == "AveragePool":  # count_include_pad = 0
        return np.nanmean(windows(x[0], attribute["kernel_shape"], attribute, np.nan), (4, 5))
    if op in ("Squeeze", "Unsqueeze"):
        return (np.squeeze if op == "Squeeze" else np.expand_dims)(x[0], tuple(x[1]))
    if op == "Gemm":
        return x[0] @ x[1].T + x[2]
    if op == "Pad":
        return np.pad(x[0], np.array(x[1]).reshape(2, -1).T, attribute.get("mode", [b"constant"])[0].decode())
    if op == "Cast":
        return x[0].astype({1: np.float64, 7: np.int64}[attribute["to"][0]])  # FLOAT, INT64
    if op == "Transpose":
        return x[0].transpose(attribute["perm"])
    if op == "Div":
        return x[0] / x[1] if x[0].dtype.kind == "f" else x[0] // x[1]  # of positive integers
    if op == "ReduceSum":
        return x[0].sum(axis=tuple(x[1]), keepdims=True)
    simple = {"Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Add": np.add, "Slice": sliced, "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
              "Flatten": lambda x: x.reshape(len(x), -1), "Identity": lambda x: x, "Shape": lambda x: np.array(x.shape), "Gather": lambda x, i: x[i],
              "Mul": np.multiply, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum, "Abs": np.abs, "Round": np.rint, "Floor": np.floor,
              "Range": np.arange, "GreaterOrEqual": np.greater_equal, "Less": np.less, "And": np.logical_and, "MatMul": np.matmul}
    return simple[op](*x)


def attributes(node):
    """{name: list of values}"""
    out = {}
    for field in node.get("attribute", []):
        entry = {}
        for name, _, value in onnx_text.fields(field, "ATTRIBUTE"):
            entry.setdefault(name, []).append(value)
        out[entry["name"][0].decode()] = next(entry[kind] for kind in ("ints", "i", "f", "s") if kind in entry)
    return out


def evaluated(nodes, initializers, **inputs):
    """All values of a graph: {name: array}."""
    values = {name: np.frombuffer(raw, TYPES[kind]).reshape(dims) for name, (kind, dims, raw) in initializers.items()}
    values.update((name.encode(), value) for name, value in inputs.items())
    for node in nodes:
        values[node["output"][0]] = evaluate(node["op_type"][0].decode(), [values[name] for name in node["input"]], attributes(node))
    return {name.decode(): value for name, value in values.items()}


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def main(pixels, size, file):
    nodes, initializers, meta = onnx_text.graph_of(file)
    with open(pixels) as f:
        images = np.array(json.load(f), np.float64).reshape(-1, int(size), int(size), 3)
    values = evaluated(nodes, initializers, input=((images / 255 - meta["mean"]) / meta["std"]).transpose(0, 3, 1, 2))
    print(json.dumps(softmax(values["logits"]).tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])

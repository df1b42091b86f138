#!/usr/bin/env python3
"""check_int8.py FLOAT INT8 [KEPT [LIMIT]]: compares the weights of a quantised checkpoint with those in floating point, both read
here from the safetensors files, without cresnet. KEPT: layers that must have stayed in floating point, with commas. LIMIT: the
largest integer (127), which each filter has.

Checks that each filter is I8 with one scale above 0 for each output channel, that its integers are round(w / scale), ties to
even, within -LIMIT ... LIMIT, that w is near integer * scale, that scales of activations are single numbers above 0, and that
everything else is equal. Ends with "N passed, N failed"."""
import array
import struct
import sys

import weights_file

CODES = {"F32": "f", "I8": "b", "I64": "q"}


def read(path):
    return {name: (kind, shape, array.array(CODES[kind], data)) for name, (kind, shape, data) in weights_file.read(path)[0].items()}


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


passed = failed = 0


def check(good, *what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good and failed < 20:
        print("FAIL", *what)


def check_filter(name, whole, small, limit):
    (_, shape, w), (dtype, got_shape, q) = whole[name], small[name]
    scale_name = name + "_scale"
    check(dtype == "I8" and got_shape == shape, name, dtype, got_shape)
    check(scale_name in small and small[scale_name][:2] == ("F32", [shape[0]]), scale_name)
    scales, row = small[scale_name][2], len(w) // shape[0]
    for k, scale in enumerate(scales):
        channel = range(k * row, (k + 1) * row)
        want = [max(-limit, min(limit, round(f32(w[i] / scale)))) for i in channel]
        check(scale > 0 and list(q[k * row:(k + 1) * row]) == want, name, "channel", k)
        largest = max(abs(w[i]) for i in channel)
        check(max(map(abs, want)) == limit or largest == 0, name, "channel", k, "does not use the whole range")
        # a scale from half the largest magnitude clips to half of it
        check(all(abs(w[i] - q[i] * scale) <= max(0.51 * scale, 0.51 * largest) for i in channel), name, "is far at", k)
        error = sum((w[i] - q[i] * scale) ** 2 for i in channel)
        check(error <= 0.01 * sum(w[i] ** 2 for i in channel) + 1e-12, name, "channel", k, "squared error", error)


def main(whole, small, kept="", limit="127"):
    whole, small, kept = read(whole), read(small), [f"{layer}.weight" for layer in kept.split(",") if layer]
    filters = {name for name, (_, shape, _) in whole.items() if name.endswith(".weight") and len(shape) > 1}
    check(len(filters) > 3 and set(kept) <= filters, "filters:", sorted(filters))
    scales = {name for name in small if name.endswith(("_scale", ".scale"))}
    for name in filters - set(kept):
        check_filter(name, whole, small, int(limit))
    for name in scales:
        dtype, shape, values = small[name]
        check(dtype == "F32" and all(0 < v < 1e6 for v in values), name)
        check(name.endswith(".weight_scale") or shape == [1], name, shape)
    check({n for n in scales if n.endswith("weight_scale")} == {f"{n}_scale" for n in filters - set(kept)}, "scales of filters")
    check(any(not n.endswith("weight_scale") for n in scales), "no scales of activations")
    check(set(small) - scales == set(whole), "names:", set(small) ^ set(whole))
    for name in set(whole) - (filters - set(kept)):
        if name.endswith("num_batches_tracked"):  # 0 in a checkpoint of no training step
            continue
        check(whole[name] == small[name], name, "differs")


main(*sys.argv[1:])
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)

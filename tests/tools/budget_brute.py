#!/usr/bin/env python3
"""budget_brute.py WEIGHTS.safetensors FACTOR: checks the JSON line in the file `stdout` of

    cresnet prune RUN --pattern channels,2:4 --flops FACTOR --multiple 4 --json

or, with a third argument "channels", of

    cresnet prune RUN --pattern channels --flops FACTOR --speedup X --multiple 4 --json

where X is so near to 1 that the bound of time does not matter, for the network of test_cli_budget.sh: tries all combinations of widths and patterns. Importance, losses and multiply-adds are
computed here from the weights alone."""
import itertools
import json
import sys

import weights_file

weights = weights_file.read(sys.argv[1])[0]

# layer: (group of output channels, group of input channels, output pixels); None: fixed
LAYERS = {"conv1": ("a", None, 256), "layer1.0.conv1": ("b", "a", 256), "layer1.0.conv2": ("a", "b", 256),
          "layer2.0.conv1": ("d", "a", 64), "layer2.0.conv2": ("c", "d", 64), "layer2.0.downsample.0": ("c", "a", 64),
          "fc": (None, "c", 1)}
UNITS = {"a": 8, "b": 8, "c": 16, "d": 16}
energy, window, kept24 = {}, {}, {}
norm = {g: [0.0] * n for g, n in UNITS.items()}
for layer, (out, inp, _) in LAYERS.items():
    shape, w = weights[layer + ".weight"][1], weights_file.floats(weights[layer + ".weight"])
    O, I, taps = shape[0], shape[1], (shape[2] * shape[3] if len(shape) == 4 else 1)
    at = lambda o, i, t: w[(o * I + i) * taps + t] ** 2
    energy[layer] = [[sum(at(o, i, t) for t in range(taps)) for i in range(I)] for o in range(O)]
    window[layer] = taps
    for o in range(O):
        for i in range(I):
            if out: norm[out][o] += energy[layer][o][i]
            if inp: norm[inp][i] += energy[layer][o][i]
    if layer not in ("conv1", "fc"):  # prune.exempt = auto
        four = [sorted(at(o, i + k, t) for k in range(4)) for o in range(O) for i in range(0, I, 4) for t in range(taps)]
        kept24[layer] = sum(f[2] + f[3] for f in four) / sum(map(sum, four))

order = {g: sorted(range(n), key=lambda u: (norm[g][u], u)) for g, n in UNITS.items()}
left = {g: {width: set(order[g][n - width:]) for width in range(4, n + 1, 4)} for g, n in UNITS.items()}


def cost_and_loss(widths, sparse):
    cost = loss = 0
    for layer, (out, inp, pixels) in LAYERS.items():
        e = energy[layer]
        rows = left[out][widths[out]] if out else range(len(e))
        columns = left[inp][widths[inp]] if inp else range(len(e[0]))
        macs = pixels * window[layer] * len(rows) * len(columns)
        kept = sum(e[o][i] for o in rows for i in columns) / sum(map(sum, e))
        cost += macs / 2 if layer in sparse else macs
        loss += 1 - kept * (kept24[layer] if layer in sparse else 1)
    return cost, loss


result = json.loads(open("stdout").readline())
points = []
for chosen in itertools.product(*(sorted(left[g]) for g in UNITS)):
    widths = dict(zip(UNITS, chosen))
    patterns = {} if sys.argv[3:] == ["channels"] else kept24
    for bits in itertools.product((False, True), repeat=len(patterns)):
        points.append(cost_and_loss(widths, {l for l, bit in zip(patterns, bits) if bit}))
dense = max(cost for cost, _ in points)
budget = dense / float(sys.argv[2])
best = min(loss for cost, loss in points if cost <= budget)
bound = best + result["loss_gap"] if "loss_gap" in result else min(
    loss for cost, loss in points if cost <= budget - result["gap"] * result["multiply_adds"])
assert len(points) == 64 * 2 ** len(patterns), len(points)
assert result["multiply_adds_before"] == dense and result["multiply_adds"] <= budget
assert best - 1e-5 <= result["loss"] <= bound + 1e-5, (best, result["loss"], bound)
# the line describes this choice
widths = {g: next(l["left"] for l in result["layers"] if LAYERS[l["layer"]][0] == g) for g in UNITS}
cost, loss = cost_and_loss(widths, {l["layer"] for l in result["layers"] if l["pattern"] == "2:4"})
assert abs(cost - result["multiply_adds"]) < 1 and abs(loss - result["loss"]) < 1e-5, (cost, loss, result)
print(f"loss {result['loss']:.6f}; the best of {len(points)} combinations has {best:.6f}")

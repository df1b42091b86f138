#!/usr/bin/env python3
"""budget_losses.py WEIGHTS.safetensors: checks the JSON line in the file `stdout` of

    cresnet prune RUN --pattern channels,2:4 --speedup X --multiple 4 --json

for the network of test_cli_budget.sh. The channels that leave, and the losses, are computed here from the weights alone."""
import json
import sys

import weights_file

weights = weights_file.read(sys.argv[1])[0]

# layer: (group of output channels, group of input channels); None: fixed
LAYERS = {"conv1": ("a", None), "layer1.0.conv1": ("b", "a"), "layer1.0.conv2": ("a", "b"), "layer2.0.conv1": ("d", "a"),
          "layer2.0.conv2": ("c", "d"), "layer2.0.downsample.0": ("c", "a"), "fc": (None, "c")}
UNITS = {"a": 8, "b": 8, "c": 16, "d": 16}
energy, kept24 = {}, {}
norm = {g: [0.0] * n for g, n in UNITS.items()}
for layer, (out, inp) in LAYERS.items():
    shape, w = weights[layer + ".weight"][1], weights_file.floats(weights[layer + ".weight"])
    O, I, taps = shape[0], shape[1], (shape[2] * shape[3] if len(shape) == 4 else 1)
    at = lambda o, i, t: w[(o * I + i) * taps + t] ** 2
    energy[layer] = [[sum(at(o, i, t) for t in range(taps)) for i in range(I)] for o in range(O)]
    for o in range(O):
        for i in range(I):
            if out: norm[out][o] += energy[layer][o][i]
            if inp: norm[inp][i] += energy[layer][o][i]
    if layer not in ("conv1", "fc"):  # prune.exempt = auto
        four = [sorted(at(o, i + k, t) for k in range(4)) for o in range(O) for i in range(0, I, 4) for t in range(taps)]
        kept24[layer] = sum(f[2] + f[3] for f in four) / sum(map(sum, four))

result = json.loads(open("stdout").readline())
layers = {l["layer"]: l for l in result["layers"]}
width = {g: next(layers[l]["left"] for l in LAYERS if LAYERS[l][0] == g) for g in UNITS}
left = {g: sorted(range(n), key=lambda u: (norm[g][u], u))[n - width[g]:] for g, n in UNITS.items()}
total = 0
for layer, (out, inp) in LAYERS.items():
    e, l = energy[layer], layers[layer]
    rows = left[out] if out else range(len(e))
    columns = left[inp] if inp else range(len(e[0]))
    kept = sum(e[o][i] for o in rows for i in columns) / sum(map(sum, e))
    lost = 1 - kept * (kept24[layer] if l["pattern"] == "2:4" else 1)
    assert l["left"] == len(rows) and l["sparsity"] == (0.5 if l["pattern"] == "2:4" else 0), l
    assert abs(lost - l["lost"]) < 1e-5, (lost, l)
    total += lost
assert len(layers) == len(LAYERS) and any(l["lost"] > 0 for l in layers.values()), layers
assert abs(total - result["loss"]) < 1e-5, (total, result)
print(f"loss {total:.6f} of {len(layers)} layers, widths {width}")

"""choices_match.py TABLE JSON [CONVOLUTIONS]: compares the output of `plan --choices --json` with the table of `plan --choices`. Numbers of
the table are rounded to hundredths. CONVOLUTIONS: the expected number of convolutions. Fails with an AssertionError that names the line."""
import json
import re
import sys

table = open(sys.argv[1]).read()
records = [json.loads(line) for line in open(sys.argv[2])]
ops, total = records[:-1], records[-1]
assert "choice" not in total and all("choice" in op for op in ops), total
fusions = [op for op in ops if op["choice"] == "fusion"]
patterns = [op for op in ops if op["choice"] == "pattern"]
assert len(fusions) == total["convolutions"] and len(patterns) == total["pruned"], total
assert len(sys.argv) < 4 or len(fusions) == int(sys.argv[3]), len(fusions)
head = re.match(r"program (\S+), batch (\d+), on (.*); kernel times are (measured|roofline estimates)\n", table)
assert head and (total["program"], total["batch"], total["device"]) == (head[1], int(head[2]), head[3]), (head, total)
assert total["kernel_times"] == ("measured" if head[4] == "measured" else "roofline"), total
for op in ops:
    assert op["kernel"] and op["algo"] >= 0 and op["us"] > 0 and op["source"] in ("measured", "file", "checkpoint", "measured in part", "roofline"), op
    assert op["kind"].startswith("conv") and all(len(dims) == 4 for dims in op["shape"].values()), op
    for gradient in op.get("gradients", []):
        assert gradient["kernel"] and gradient["us"] > 0, op


def same(number, text):
    return abs(number - float(text)) <= 0.0051


lines = re.findall(r"^(\S+) +([SPWDBJ+]+|-) +(\d+) +([\d.]+) +([\d.]+)$", table, re.M)
chosen = [op for op in fusions if op["options"] > 1]
assert len(lines) == len(chosen), (lines, chosen)
for (layer, letters, options, unfused, best), op in zip(lines, chosen):
    assert layer == op["layer"] and letters.strip("-") == op["fused"] and int(options) == op["options"], (layer, op)
    assert same(op["unfused_us"], unfused) and same(op["chosen_us"], best), (layer, op)
for op in fusions:
    assert op["options"] > 1 or op["unfused_us"] is None and op["fused"] == "", op
sums = re.search(r"^total, with BN gradients +([\d.]+) +([\d.]+)$", table, re.M)
assert bool(sums) == bool(chosen), sums
assert not sums or same(total["unfused_us"], sums[1]) and same(total["chosen_us"], sums[2]), total

lines = re.findall(r"^(?:(conv\w*) +)?(\S+) +nonzero +([\d.]+) % +(sparse|dense)(.*)$", table, re.M)
assert len(lines) == len(patterns), (lines, patterns)
for (kind, layer, density, result, rest), op in zip(lines, patterns):
    assert layer == op["layer"] and result == op["chosen"] and (kind or "conv") == op["kind"] and same(100 * op["density"], density), (layer, op)
    assert ("packed" in op["shape"]) == (op["kind"] == "conv" and result == "sparse"), op
    form, times = re.search(r"format (\d+)", rest), re.search(r"dense +([\d.]+) us, sparse +([\d.]+) us", rest)
    assert not form or int(form[1]) == op["format"], (rest, op)
    assert not times or same(op["dense_us"], times[1]) and same(op["sparse_us"], times[2]) and same(op["us"], min(times.groups(), key=float)), (rest, op)

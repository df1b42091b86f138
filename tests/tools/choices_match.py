"""choices_match.py TABLE JSON [CONVOLUTIONS]: does `plan --choices --json` say what `plan --choices` says? Numbers of the table are rounded to
hundredths. CONVOLUTIONS: how many there must be. Fails with an AssertionError that names the line."""
import json
import re
import sys

table = open(sys.argv[1]).read()
lines = [json.loads(line) for line in open(sys.argv[2])]
ops, total = lines[:-1], lines[-1]
assert "choice" not in total and all("choice" in op for op in ops), total
takes = [op for op in ops if op["choice"] == "takes"]
patterns = [op for op in ops if op["choice"] == "pattern"]
assert len(takes) == total["convolutions"] and len(patterns) == total["pruned"], total
assert len(sys.argv) < 4 or len(takes) == int(sys.argv[3]), len(takes)
head = re.match(r"program (\S+), batch (\d+), on (.*); kernel times are (measured|roofline estimates)\n", table)
assert head and (total["program"], total["batch"], total["device"]) == (head[1], int(head[2]), head[3]), (head, total)
assert total["costs"] == ("measured" if head[4] == "measured" else "roofline"), total
for op in ops:
    assert op["row"] and op["way"] >= 0 and op["us"] > 0 and op["source"] in ("measured", "file", "checkpoint", "measured in part", "roofline"), op
    assert op["kind"].startswith("conv") and all(len(dims) == 4 for dims in op["shape"].values()), op
    for gradient in op.get("gradients", []):
        assert gradient["row"] and gradient["us"] > 0, op


def same(number, text):
    return abs(number - float(text)) <= 0.0051


told = re.findall(r"^(\S+) +([SPWDBJ+]+|-) +(\d+) +([\d.]+) +([\d.]+)$", table, re.M)
chosen = [op for op in takes if op["ways"] > 1]
assert len(told) == len(chosen), (told, chosen)
for (layer, word, ways, plain, best), op in zip(told, chosen):
    assert layer == op["layer"] and word.strip("-") == op["takes"] and int(ways) == op["ways"], (layer, op)
    assert same(op["plain_us"], plain) and same(op["chosen_us"], best), (layer, op)
for op in takes:
    assert op["ways"] > 1 or op["plain_us"] is None and op["takes"] == "", op
sums = re.search(r"^total, with BN gradients +([\d.]+) +([\d.]+)$", table, re.M)
assert bool(sums) == bool(chosen), sums
assert not sums or same(total["plain_us"], sums[1]) and same(total["chosen_us"], sums[2]), total

told = re.findall(r"^(?:(conv\w*) +)?(\S+) +nonzero +([\d.]+) % +(sparse|dense)(.*)$", table, re.M)
assert len(told) == len(patterns), (told, patterns)
for (kind, layer, kept, taken, rest), op in zip(told, patterns):
    assert layer == op["layer"] and taken == op["taken"] and (kind or "conv") == op["kind"] and same(100 * op["kept"], kept), (layer, op)
    assert ("packed" in op["shape"]) == (op["kind"] == "conv" and taken == "sparse"), op
    layout, times = re.search(r"format (\d+)", rest), re.search(r"dense +([\d.]+) us, sparse +([\d.]+) us", rest)
    assert not layout or int(layout[1]) == op["layout"], (rest, op)
    assert not times or same(op["dense_us"], times[1]) and same(op["sparse_us"], times[2]) and same(op["us"], min(times.groups(), key=float)), (rest, op)

#!/usr/bin/env bash
# test_bench_gpu.sh: cresnet bench gpu, on the CPU with a small network: the table, the JSON line, the number of ops and errors.
# Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"
there python3 || { skip "no python3"; sum_up 77; }

tiny="model.arch=custom model.block=basic model.stem=cifar model.depths=1,1 model.widths=4,8 model.classes=10 data.image_size=16"
"$bin" bench gpu --device cpu --steps 2 $tiny train.batch=4 train.eval_batch=2 >out.txt 2>log.txt
is "exit code" $? 0
is "log names the workloads" "$(grep -c 'batch [24], 16 px, 2 timed' log.txt)" 5
"$bin" bench gpu --device cpu --steps 2 $tiny train.batch=4 train.eval_batch=2 --json -q >line.txt 2>log.txt
is "--json: lines" "$(wc -l <line.txt)" 1
is "--json -q: log" "$(cat log.txt)" ""
printf '[data]\nkind = synthetic\n' >plan.ini
"$bin" plan plan.ini --device cpu $tiny train.batch=4 memory.limit=none --json -q >plan.json

cat >verify.py <<'END'
import json
plan = json.load(open("plan.json"))
for name in "out.txt", "line.txt":
    line = json.loads(open(name).read().splitlines()[-1])
    assert line["device"].startswith("CPU"), line["device"]
    loads = line["workloads"]
    assert [(w["workload"], w["batch"]) for w in loads] == [
        ("train resnet50", 4), ("infer resnet50", 2), ("infer resnet50", 2), ("train cifar resnet20", 4),
        ("train cifar resnet20", 4)], loads
    for w in loads:
        assert w["type"] == "f32" and w["ms"] > 0 and w["latency_ms"] > 0
        # ms is rounded to 4 digits behind the point
        assert abs(w["images_per_s"] - w["batch"] / w["ms"] * 1e3) < 5e-3 * w["images_per_s"] + 0.1, w
    assert sum(loads[0]["kernels"].values()) == plan["ops"], (loads[0]["kernels"], plan["ops"])
    assert 0 < line["seconds"] < 60
END
holds "figures" python3 verify.py

said=$("$bin" bench gpu config.ini 2>&1)
is "an operand: exit code" $? 2
said=$("$bin" bench gpu -b 4 2>&1)
is "--batch: exit code" $? 2
has "--batch" "$said" "--batch is not an option of bench gpu"
if "$bin" --version | grep -q '^device cuda .*not available' || ! "$bin" --version | grep -q '^device cuda'; then
    said=$("$bin" bench gpu 2>&1)
    is "no GPU: exit code" $? 1
    has "no GPU" "$said" "bench gpu measures a GPU: device cuda:"
    is "no GPU: no advice to measure the CPU for hours" "$(grep -c -- '--device cpu' <<<"$said")" 0
fi
sum_up

#!/usr/bin/env bash
# test_cli_budget.sh: `prune --target-ms | --speedup` with several patterns: losses against those of the weights, predicted
# times, what is written, what is refused. Times are estimates (train.measure=no) except where a check says otherwise.
. "$(dirname "$0")/../harness/cli_support.sh"

run train tiny.ini model.widths=8,16 model.shortcut=B -o R --steps 6 -q; expect "train" 0
checksums R >before
run export R -o r.safetensors -q; expect "export" 0

# ---- times ----
estimate="train.measure=no train.threads=1 -b 4"
run prune R --pattern unstructured --target-ms 0.000001 $estimate -o X; expect "a time that cannot be reached" 2 "--target-ms 1e-06 cannot be reached: " "the minimum is " "give a larger time"
least=$(sed -n 's/.*the minimum is \([0-9.e-]*\) ms.*/\1/p' stderr) dense=$(sed -n 's/.*(now \([0-9.e-]*\) ms.*/\1/p' stderr)
middle=$(python3 -c "print(($least + $dense) / 2)")
run prune R --pattern unstructured --target-ms "$least" $estimate -o T1; expect "the minimum time that was printed can be reached" 0 "98 % unstructured" "times are not measured"
run prune R --pattern unstructured --target-ms "$middle" $estimate --json -o T2; expect "--target-ms" 0
holds "predicted times meet it, slow layers are pruned, layers that gain nothing stay dense" python3 -c '
import json, sys
r = json.load(open("stdout"))
target, least, dense = map(float, sys.argv[1:])
assert abs(r["target_ms"] - target) < 1e-8 and least - 1e-6 <= r["predicted_ms"] <= target and abs(r["before_ms"] - dense) < 1e-5
assert not r["measured"] and r["batch"] == 4
for l in r["layers"]:
    assert (l["pattern"] == "unstructured") == (l["sparsity"] > 0) == (l["us"] < l["before_us"]) == (l["lost"] > 0) and l["channels"] == l["left"], l
assert any(l["sparsity"] for l in r["layers"])' "$middle" "$least" "$dense"
run plan T2 --which eval --choices; expect "what was chosen runs sparse" 0 "  sparse  format 0"
run prune R --speedup 1.5 --multiple 4 $estimate --json -o A; expect "all patterns" 0 '"speedup"'
holds "it is as fast as demanded, and no worse than unstructured pruning alone" python3 -c '
import json
r = json.load(open("stdout")); assert r["speedup"] >= 1.5 and r["gap"] < 0.05'
loss=$(field loss)
run prune R --pattern unstructured --speedup 1.5 $estimate --json -o A2; expect "one pattern" 0
holds "more patterns lose no more" python3 -c "assert $loss <= $(field loss) * 1.02"
run eval A -q; expect "evaluating it" 0 "top-1"
run prune R --pattern channels,2:4 --speedup 1.5 --multiple 4 $estimate --json -o M; expect "channels and 2:4" 0
holds "the losses that are printed are those of the weights" python_tools "$source_dir/tests/tools/budget_losses.py" r.safetensors
run prune R --pattern channels,2:4 --speedup 1.5 --multiple 4 $estimate --json -o M2; holds "equal runs give equal networks" cmp M/last/model.safetensors M2/last/model.safetensors
run train A/last/config.ini model.weights=A -o AT --steps 3 -q; expect "fine-tuning it" 0 "done: step 3"
run prune T2 --pattern channels --speedup 1.2 --multiple 4 $estimate -o T3; expect "channels of a pruned network" 0; run eval T3 -q; expect "evaluating it" 0 "top-1"
run prune R --pattern channels --speedup 1.2 --multiple 4 $estimate quant.type=int8 -o I; expect "for 8-bit values" 0 "predicted"
holds "the network is in floating point" grep -qx "type = none" I/last/config.ini
run quantize I quant.images=8 -o IQ; expect "and becomes 8-bit" 0 "int8:"
run prune R --pattern channels --speedup 1.02 --multiple 4 -b 4 train.threads=1 -o D; expect "measured times" 0 "measured " "sums of measured kernel times"
run prune R --pattern channels --speedup 1.2 --importance taylor prune.batches=1 --recalibrate 2 --multiple 4 $estimate -o C; expect "importance by gradients, new BN statistics" 0 "BN statistics are from 2 training batches"; run eval C -q; expect "evaluating it" 0 "top-1"
run prune R --pattern auto --speedup 1.5 --importance bn --multiple 4 $estimate -o B; expect "importance of BN scales" 0 "times as fast"

# ---- what is refused ----
refused "a time that is reached anyway" 2 "no pruning needed" prune R --target-ms 1000 $estimate -o X
refused "a speedup that cannot be met" 2 "--speedup 500 cannot be reached: the minimum is" prune R --speedup 500 --multiple 4 $estimate -o X
for x in 0 -1 nan x ''; do refused "--target-ms '$x'" 2 "must be milliseconds above 0" prune R --target-ms "$x" -o X; done
for x in 1 0.5 nan 2x ''; do refused "--speedup '$x'" 2 "above 1" prune R --speedup "$x" -o X; done
refused "two targets" 2 "give one of" prune R --target-ms 1 --speedup 2 -o X
refused "a time and a number of multiply-adds" 2 "prune twice" prune R --pattern channels --flops 2 --speedup 1.2 -o X
for p in channels,2:4 auto block; do refused "multiply-adds with the pattern $p" 2 "--flops needs --pattern channels" prune R --pattern $p --flops 2 -o X; done
refused "a comma at the end" 2 "ends with a comma" prune R --pattern channels, --speedup 2 -o X
refused "no sparse kernels" 2 "sparse = no" prune R --target-ms 1 --pattern unstructured train.sparse=no $estimate -o X
refused "a quantised network" 2 "a quantised network cannot be pruned" prune IQ --speedup 1.2 $estimate -o X
checksums R >after; holds "the run is as it was" cmp before after
sum_up

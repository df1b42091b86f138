#!/usr/bin/env bash
# test_cli_prune.sh: `cresnet prune` and pruning while training: schedules, scores by gradients, BN statistics computed anew, and what is refused.
. "$(dirname "$0")/../harness/cli_support.sh"
net="model.widths=8,16 model.shortcut=B"
events() { grep '"event":"prune"' "$1/log.jsonl"; }

# ---- schedules ----
acdc="prune.schedule=acdc prune.sparsity=0.8 prune.start=0.125 prune.end=0.7 prune.sparse_epochs=0.125 prune.dense_epochs=0.125"
rigl="prune.schedule=rigl prune.sparsity=0.8 prune.scope=erk prune.end=2 prune.frequency=2"
run train tiny.ini $net $acdc -o A --steps 14; expect "acdc" 0 "dense phase at step" "pruned at step"
holds "acdc: phases in the log" python3 - <<'PY'
import json
e = [json.loads(l) for l in open("A/log.jsonl") if '"event":"prune"' in l]
assert [x["sparsity"] > 0 for x in e] == [i % 2 == 0 for i in range(len(e))] and len(e) >= 3, e
PY
run train tiny.ini $net $rigl -o G --steps 6; expect "rigl" 0 "pruned at step 0: " "moved "
is "rigl: all masks have one sparsity" "$(events G | grep -o '"pruned":[0-9]*' | sort -u | wc -l)" 1
holds "rigl: moves fewer weights each time" python3 - <<'PY'
import json
m = [x["moved"] for x in map(json.loads, open("G/log.jsonl")) if "moved" in x]
assert len(m) >= 2 and m[0] > m[-1] > 0, m
PY
run eval G -q; expect "rigl: eval" 0 "top-1"
run prune G --pattern 2:4 -o G24; expect "rigl: other patterns afterwards" 0 "prunable layers"
run train tiny.ini $net $acdc -o W prune.sparsity=0 --steps 1; expect "a schedule without a target" 0 "nothing is pruned without sparsity"
run train tiny.ini $net $acdc prune.end=1000 -o W2 --steps 1; expect "acdc: no last phase" 0 "needs epochs after end"

# ---- scores, BN statistics ----
run train tiny.ini $net -o R --steps 6 -q; expect "train" 0
checksums R >before
for pattern in unstructured 2:4 "block prune.block=4x4" channel; do
    name=${pattern%% *}
    run prune R --pattern $pattern --sparsity 0.5 --importance taylor prune.batches=2 -o "T${name%:*}"; expect "taylor: $name" 0 "prunable layers"
done
run prune R --sparsity 0.5 --importance taylor prune.batches=2 -o TT; holds "equal gradients give equal masks" cmp Tunstructured/last/model.safetensors TT/last/model.safetensors
run prune R --sparsity 0.5 -o M; holds "magnitudes give others" sh -c '! cmp -s M/last/model.safetensors TT/last/model.safetensors'
run prune R --sparsity 0.5 --recalibrate 2 -o C; expect "recalibrate" 0 "BN statistics are from 2 training batches"
run prune R --sparsity 0.5 --recalibrate 1000 -o C2 --json; holds "recalibrate --json" json_lines; is "as many batches as there are" "$(field recalibrated_batches)" 16
holds "only running statistics differ" python_tools - <<'PY'
from weights_file import read
a, b = (read(run + "/last/model.safetensors")[0] for run in "MC")
assert a.keys() == b.keys()
differ = {k for k in a if a[k] != b[k]}
assert differ and all(k.endswith(("running_mean", "running_var")) for k in differ), differ
PY
run prune R --pattern channels --flops 1.5 --multiple 4 --recalibrate 2 -o S; expect "recalibrate a smaller network" 0 "BN statistics are from 2 training batches"; run eval S -q; expect "eval" 0
run train R/last/config.ini model.weights=C -o CT --steps 6 -q; expect "fine-tuning" 0 "done: step 6"

# ---- what is refused ----
refused "a typo" 2 "did you mean schedule?" train tiny.ini prune.schedul=acdc -o X
refused "an unknown schedule" 2 "gradual, acdc, rigl" train tiny.ini prune.schedule=rigle -o X
refused "acdc without end" 2 "must be above start (0) with schedule = acdc" train tiny.ini prune.schedule=acdc prune.sparsity=0.5 -o X
refused "scores by gradients while training" 2 "is only for \`cresnet prune\`" train tiny.ini prune.importance=taylor prune.sparsity=0.5 -o X
refused "bn for masks" 2 "bn is only for --pattern channels" prune R --sparsity 0.5 --importance bn -o X
for x in 0 -1 x 2.5 ''; do refused "--recalibrate '$x'" 2 "--recalibrate" prune R --sparsity 0.5 --recalibrate "$x" -o X; done
checksums R >after; holds "the run is as it was" cmp before after
sum_up

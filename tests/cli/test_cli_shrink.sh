#!/usr/bin/env bash
# test_cli_shrink.sh: `prune --pattern channels`: the smaller network is trained, resumed, evaluated, pruned again, quantised and exported; what is
# refused writes nothing. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

run train tiny.ini model.widths=8,16 model.shortcut=B -o R --steps 6 -q; expect "train" 0
checksums R >before

# ---- the smaller network ----
run prune R --pattern channels --flops 2 --multiple 4 -o S; expect "prune" 0 "layer2.0.conv1" "million multiply-adds"
run prune R --pattern channels --flops 2 --multiple 4 -o S2 --json; holds "one JSON line" json_lines
holds "equal runs give equal networks" cmp S/last/model.safetensors S2/last/model.safetensors
channels=$(field channels)
holds "the configuration has the channels" grep -qx "channels = $channels" S/last/config.ini
holds "multiples of 4, two times fewer multiply-adds, sums of the groups" python3 - <<'PY'
import json
j = json.loads(open("stdout").readline())
assert 2 * j["multiply_adds"] <= j["multiply_adds_before"] and j["parameters"] < j["parameters_before"]
assert all(g["left"] % 4 == 0 and 4 <= g["left"] <= g["channels"] for g in j["groups"])
stem, one, two = (list(map(int, p.split(","))) for p in j["channels"].split("/"))
left = {g["layer"]: g["left"] for g in j["groups"]}
assert left == {"conv1": one[0], "layer1.0.conv1": one[1], "layer2.0.conv1": two[1], "layer2.0.conv2": two[0]}
a, b, c, d = one[0], one[1], two[0], two[1]  # multiply-adds by hand: 16x16 images, then 8x8
macs = 256 * 9 * (3 * a + 2 * a * b) + 64 * (9 * (a * d + d * c) + a * c) + 10 * c
assert macs == j["multiply_adds"], (macs, j)
a, b, c, d = 8, 8, 16, 16
assert 256 * 9 * (3 * a + 2 * a * b) + 64 * (9 * (a * d + d * c) + a * c) + 10 * c == j["multiply_adds_before"]
PY
holds "filters in the file have these channels" python3 - "$channels" <<'PY'
import json, struct, sys
data = open("S/last/model.safetensors", "rb").read()
header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
stem, one, two = (list(map(int, p.split(","))) for p in sys.argv[1].split("/"))
want = {"conv1": [stem[0], 3, 3, 3], "layer1.0.conv1": [one[1], stem[0], 3, 3], "layer1.0.conv2": [one[0], one[1], 3, 3],
        "layer2.0.conv1": [two[1], one[0], 3, 3], "layer2.0.conv2": [two[0], two[1], 3, 3],
        "layer2.0.downsample.0": [two[0], one[0], 1, 1], "fc": [10, two[0]]}
for name, shape in want.items(): assert header[name + ".weight"]["shape"] == shape, (name, header[name + ".weight"])
PY
run eval S --json; expect "eval" 0; loss=$(field loss)
run prune R --pattern channels --flops 1.2 --importance bn --multiple 4 -o N --json; expect "by BN scales" 0
run prune R --pattern channels --flops 1.2 --exempt layer2 --multiple 4 -o E --json; expect "with exempt layers" 0 '"layer": "layer2.0.conv1", "channels": 16, "left": 16'
run prune R --pattern channels --flops 1.2 --importance taylor prune.batches=3 --multiple 4 -o G; expect "by gradients" 0 "million multiply-adds"; run eval G -q; expect "eval" 0
run prune R --pattern channels --flops 1.2 --importance taylor prune.batches=3 --multiple 4 -o G2; holds "equal gradients give equal networks" cmp G/last/model.safetensors G2/last/model.safetensors

# ---- removed channels that are 0, in the given shape: training keeps them at 0, and the same command removes them ----
run prune R --pattern channels --flops 2 --multiple 4 --keep-shape -o K; expect "--keep-shape" 0 "the removed channels are 0"
holds "the configuration has no channels" grep -qx "channels =" K/last/config.ini
run eval K --json; python3 -c "assert abs($(field loss) - $loss) < 1e-5 * $loss" && pass || fail "the smaller network has this loss: $(field loss), $loss"
run prune K --pattern channels --flops 2 --multiple 4 -o KS; holds "the same network is left" cmp KS/last/model.safetensors S/last/model.safetensors
run train K/last/config.ini model.weights=K -o KT --steps 6 -q; expect "fine-tuning" 0 "done: step 6"
run prune KT --pattern channels --flops 2 --multiple 4 --json -o KTS; is "the same channels are removed" "$(field channels)" "$channels"
run eval KT --json; tuned=$(field loss); run eval KTS --json
python3 -c "assert abs($(field loss) - $tuned) < 1e-5 * $tuned" && pass || fail "training keeps them at 0: $(field loss), $tuned"
run train S/last/config.ini model.weights=S -o ST --steps 6 -q; run eval ST --json
python3 -c "assert abs($(field loss) - $tuned) < 1e-3 * $tuned" && pass || fail "training the smaller network is the same: $(field loss), $tuned"
run prune R --pattern channels --flops 2 --multiple 4 --keep-shape --recalibrate 2 -o KR; expect "with new BN statistics" 0; run eval KR -q; expect "eval" 0

# ---- it is a network like any other ----
run train S/last/config.ini model.weights=S -o T --steps 6 -q; expect "fine-tuning" 0 "done: step 6"
cp -a T V; run train S/last/config.ini --resume V/step-3 -q; expect "resume" 0 "done: step 6"
holds "a resumed run is bitwise identical" cmp T/last/model.safetensors V/last/model.safetensors
run export S --onnx s.onnx; expect "ONNX" 0; holds "ONNX has the channels" grep -q "dims ${channels%%/*}\$" <(python3 "$source_dir/tests/tools/onnx_text.py" s.onnx)
run export S -o s.safetensors; run eval S/last/config.ini --weights s.safetensors --json; is "exported weights have the same loss" "$(field loss)" "$loss"
run quantize S quant.images=8 -o Q; expect "quantise" 0 "int8:"
run prune T --sparsity 0.5 -o P; expect "pruning weights of the smaller network" 0 "prunable layers"
run prune T --pattern channels --flops 1.2 --multiple 2 -o T2; expect "removing more channels" 0; run eval T2 -q; expect "and evaluating it" 0
run prune P --pattern channels --flops 1.2 --multiple 2 -o P2; expect "after pruning weights" 0
run prune P2 --sparsity 0.5 -o P3; expect "the masks are kept" 0
run train tiny.ini model.widths=8,16 model.shortcut=B model.weights=S -o W; expect "the configuration of the large network" 2 "other numbers of channels" "S/step-0/config.ini"
holds "writes nothing" test ! -e W
run train S/last/config.ini model.weights=R -o W; expect "large weights for the small network" 2 "other numbers of channels" "R/step-6/config.ini"

# ---- what is refused ----
refused "a target that cannot be met" 2 "cannot be reached: at most" prune R --pattern channels --flops 50 --multiple 4 -o X
for x in 1 0.5 -2 nan inf x 2x ''; do refused "--flops '$x'" 2 "above 1" prune R --pattern channels --flops "$x" -o X; done
refused "a quantised network" 2 "a quantised network cannot be pruned" prune Q --pattern channels --flops 2 -o X
run data shapes images data.train_images=20 data.val_images=10; rm -r images/*/"$(ls images/train | head -1)"
folder="data.kind=folder data.train_images=0 data.val_images=0"
refused "data of other classes" 2 "9 classes, the network 10" prune R --pattern channels --flops 2 --importance taylor $folder data.root=images -o X
run train tiny.ini prune.pattern=channels prune.sparsity=0.5 -o X; expect "pattern = channels while training" 2 "use channel"; holds "writes nothing" test ! -e X
run prune R --pattern channels --flops 2 --multiple 4 -o S; expect "a folder in use" 2 "not empty"
checksums R >after; holds "the run is as it was" cmp before after
sum_up

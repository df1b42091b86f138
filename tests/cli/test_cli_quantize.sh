#!/usr/bin/env bash
# test_cli_quantize.sh: cresnet quantize: a small network trained on generated shapes, all methods, --reduce-range, --max-drop, quant.keep; eval, predict, export and
# the Python module on the quantised network; its file against the one in floating point; mistakes, damaged files, Ctrl-C; the published
# ResNet-20 on CIFAR-10 where CRESNET_TEST_DATA has both. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
check_int8() { python_tools "$source_dir/tests/tools/check_int8.py" "$@"; }

{ tiny_model 8,16; cat; } >net.ini <<'INI'
[data]
kind = shapes
root = shapes
image_size = 16
train_images = 320
val_images = 160
workers = 1
[train]
batch = 16
epochs = 3
eval_every = 0
device = cpu
threads = 1
[optim]
lr = 0.1
INI
run train net.ini -o R -q; expect "train" 0
whole=R/last/model.safetensors
correct() { python3 -c 'import json; print(json.load(open("stdout"))'"$1"'["correct"])'; }
run eval R --json -q; float=$(field correct)

# ---- methods, and the file of each ----
for method in entropy max; do
    run quantize R -o "Q-$method" --method $method --json -q; expect "quantize --method $method" 0 "\"method\": \"$method\"" '"calibration_images": 320' '"keep": []'
    is "$method: floating point" "$(correct '["float"]')" "$float"
    int8=$(correct '["int8"]'); holds "$method: accuracy" [ "$int8" -ge $((float - 16)) ]
    holds "$method: weights" check_int8 $whole "Q-$method/last/model.safetensors"
    run eval "Q-$method" --json -q; expect "eval of $method" 0; is "eval of $method" "$(field correct)" "$int8"
done
is "the methods differ" "$(cat Q-*/last/model.safetensors | wc -c)" "$(cat Q-max/last/model.safetensors Q-max/last/model.safetensors | wc -c)"
is "the methods choose other scales" "$(sha256sum Q-*/last/model.safetensors | cut -c1-64 | sort -u | wc -l)" 2
run quantize R -o again -q; expect "quantize" 0 "320 images by entropy; 7 of 7 layers in int8" "drop" "saved in again"
holds "the same scales again" cmp again/last/model.safetensors Q-entropy/last/model.safetensors
run train net.ini -o S --epochs 2 ema.swa_start=2 -q; run quantize S -o Q-averages -q; run eval Q-averages -q; expect "of averages (SWA)" 0 "top-1"
run quantize R -o few --images 33 --json; expect "--images" 0 '"calibration_images": 33'; holds "--images 33: no warning" sh -c '! grep -q warning stderr'
run quantize R -o one --images 1; expect "--images 1" 0 "warning: the scales come from few images (1)" "at least 32" "calibrated with 1 images" "drop "
run quantize R -o narrow --reduce-range --json; expect "--reduce-range" 0
holds "--reduce-range: accuracy" [ "$(correct '["int8"]')" -ge $((float - 16)) ]
holds "--reduce-range: weights" check_int8 $whole narrow/last/model.safetensors "" 63
holds "the file is smaller" [ "$(wc -c <Q-max/last/model.safetensors)" -lt "$(wc -c <$whole)" ]
holds "the configuration is that of the network" grep -q '^type = int8' Q-max/last/config.ini

# ---- the same network everywhere ----
image=$(find shapes/val -name '*.png' | sort | head -1)
run predict Q-max "$image" --json; expect "predict" 0 '"class"'; cp stdout q.json
run predict Q-max/last/model.safetensors "$image" --json; expect "predict of the file" 0; holds "predict of the file" cmp stdout q.json
run predict Q-max "$image" --json train.fuse=no; expect "predict without fusion" 0
run eval Q-max --json -q; fused=$(field loss); run eval Q-max --json -q train.fuse=no
holds "rounded values in floating point have the same loss" python3 -c "assert abs($fused - $(field loss)) < 0.01, ($fused, $(field loss))"
run plan Q-max --program --which eval; expect "plan" 0 "qconv"
run export Q-max -o q.onnx; expect "export --onnx" 0 "weights of 8 bits" "session.x64quantprecision=1" "--reduce-range"
run export narrow -o narrow.onnx; expect "export of a reduced range" 0 "weights of 7 bits: for all processors"
holds "ONNX has 8-bit values" grep -q -a QuantizeLinear q.onnx

# ---- layers in floating point ----
run quantize R -o K --json -q quant.keep=conv1,fc; expect "quant.keep" 0 '"keep": ["conv1", "fc"]'
holds "quant.keep: weights" check_int8 $whole K/last/model.safetensors conv1,fc
run eval K -q; expect "eval with layers in floating point" 0
run quantize R -o text -q quant.keep=conv1,fc; expect "layers in floating point are counted" 0 "5 of 7 layers in int8"
python_tools - $whole <<'PY'
# Spreads the weights of a channel over 1e6, so that 8 bits are not enough for this layer.
import struct, sys
import weights_file
tensors, meta = weights_file.read(sys.argv[1])
kind, shape, data = tensors["layer2.0.conv2.weight"]
row = 4 * shape[1] * shape[2] * shape[3]
data = b"".join(struct.pack("f", 300.0) + data[at + 4:at + row] for at in range(0, len(data), row))
weights_file.write("coarse.safetensors", {**tensors, "layer2.0.conv2.weight": (kind, shape, data)}, meta)
PY
run quantize net.ini --weights coarse.safetensors -o D --max-drop 100 --json -q; expect "--max-drop 100" 0 '"keep": []'
run quantize net.ini --weights coarse.safetensors -o D0 --max-drop 0 -q; drop_rc=$rc
holds "--max-drop 0: exit code 0 or 1" [ "$drop_rc" -le 1 ]
holds "--max-drop 0: the table is printed" grep -q "saved in D0" stdout
run eval D0 --json -q; expect "--max-drop 0 writes the network" 0
zero=$(field correct); run eval net.ini --weights coarse.safetensors --json -q
if [ "$drop_rc" = 0 ]; then holds "--max-drop 0: no image is lost" [ "$zero" -ge "$(field correct)" ]; fi

# ---- mistakes ----
refused "no weights" 2 "no weights: give --weights FILE" quantize net.ini -o X
refused "quantised twice" 2 "quantised already" quantize Q-max -o X
refused "output not empty" 2 "K is not empty" quantize R -o K
refused "no output" 2 "give -o DIR" quantize R
for drop in x -1 101 nan inf 0.3x ''; do refused "--max-drop '$drop'" 2 "--max-drop" quantize R -o X --max-drop "$drop"; done
refused "integers in a network in floating point" 1 "the file is of a quantised network" eval Q-max quant.type=none
refused "another quant.keep" 1 "set quant.keep as in the configuration" eval Q-max quant.keep=conv1
refused "weights without scales" 1 "weight_scale\" [8] is missing" eval net.ini --weights R quant.type=int8

cat >damage.py <<'PY' # FILE OUT WHAT: without a tensor, with a scale of another length, or cut off
import os, sys
import weights_file
tensors, meta = weights_file.read(sys.argv[1])
if sys.argv[3] == "short":
    kind, _, data = tensors["conv1.weight_scale"]
    tensors["conv1.weight_scale"] = kind, [7], data[:-4]
tensors.pop(sys.argv[3], None)
weights_file.write(sys.argv[2], tensors, meta)
if sys.argv[3] == "cut":
    os.truncate(sys.argv[2], os.path.getsize(sys.argv[2]) - 50)
PY
damaged() { # WHAT TEXT: a checkpoint with this damage is refused
    rm -rf B; cp -rL Q-max/last B; chmod -R u+w B; rm B/checksums.txt
    python_tools damage.py Q-max/last/model.safetensors B/model.safetensors "$1"
    refused "damage: $1" 1 "$2" eval B
}
damaged cut "truncated"
damaged conv1.weight_scale '"conv1.weight_scale" [8] is missing'
damaged layer1.0.relu1.scale '"layer1.0.relu1.scale" [1] is missing'
damaged input.scale '"input.scale" [1] is missing'
damaged conv1.weight '"conv1.weight"'
damaged short '"conv1.weight_scale"'

# ---- Ctrl-C ----
# shellcheck disable=SC2016 # the inner shell expands
python3 - "$bin" <<'PY' >interrupted 2>&1
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.argv[1], "quantize", "R", "-o", "I", "--images", "320", "quant.method=entropy", "--max-drop", "0"],
                         stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in child.stderr:
    if line.startswith("calibrating"):
        child.send_signal(signal.SIGINT)
        break
child.wait(60)
print(child.returncode)
PY
case $(cat interrupted) in -2 | 130) pass ;; *) fail "Ctrl-C: exit code $(cat interrupted)" ;; esac
holds "Ctrl-C leaves nothing" [ ! -e I ]
is "no temporary files" "$(find . -name '*tmp*' -o -name '.step*' | head -3)" ""

# ---- the published ResNet-20: 9,173 of 10,000 in floating point ----
data=${CRESNET_TEST_DATA:-}
if [ -n "$data" ] && [ -f "$data/cifar10/test_batch.bin" ] && [ -f "$data/resnet-cifar10-weights/resnet20-cifar10.safetensors" ] && [ -z "${CRESNET_SANITIZE:-}" ]; then
    run quantize "$source_dir/configs/cifar10-resnet20.ini" "data.root=$data/cifar10" --device cpu -o published --json -q \
        --weights "$data/resnet-cifar10-weights/resnet20-cifar10.safetensors"
    expect "the published ResNet-20" 0
    is "the published ResNet-20 in floating point" "$(correct '["float"]')" 9173
    holds "the published ResNet-20 in int8: $(correct '["int8"]')" [ "$(correct '["int8"]')" -ge 9160 ]
else skip "no CIFAR-10 and published weights in CRESNET_TEST_DATA"; fi
sum_up

#!/usr/bin/env bash
# test_class_names.sh: two lists of classes meet in every command: the same, another order, another spelling, other names, fewer, none. The
# network knows three colours perfectly, so its accuracy shows whether each label is compared with the right class.
. "$(dirname "$0")/../harness/cli_support.sh"

there python3 || { skip "no python3"; sum_up 77; }
# images FOLDER RED GREEN BLUE: a dataset of three classes with these names
images() {
    python_tools - "$@" <<'PY'
import os, sys
import png
for split, count in (("train", 8), ("val", 4)):
    for k, name in enumerate(sys.argv[2:]):
        os.makedirs(f"{sys.argv[1]}/{split}/{name}")
        for i in range(count):
            rgb = [20 + 5 * i] * 3
            rgb[k] = 200 + 5 * i
            png.write(f"{sys.argv[1]}/{split}/{name}/{i}.png", 32, 32, lambda x, y: rgb)
PY
}
{ tiny_model 8,16; cat; } >net.ini <<'INI'
[data]
kind = folder
image_size = 32
crop = none
hflip = 0
workers = 1
[train]
batch = 6
epochs = 6
device = cpu
threads = 1
[optim]
lr = 0.05
INI
# right NAME: all images of the last command are correct
right() { has "$1" "$out$err" "top-1 100.00 %"; }
# names RUN: the classes of a run, in a line
names() { tr '\n' ' ' <"$1/last/classes.txt"; }
# moved RUN NAME...: a copy of RUN as "moved", whose classes have these names
moved() {
    rm -rf moved && cp -r "$1" moved
    for file in moved/*/classes.txt; do printf '%s\n' "${@:2}" >"$file"; done
    rm -f moved/*/checksums.txt
}

images abc a b c    # labels 0 red, 1 green, 2 blue
images zbc z b c    # red is z: labels 0 green, 1 blue, 2 red
images Abc A b c    # another spelling and the same order
images xyz x y z    # other names
images abcd a b c && mkdir abcd/train/d abcd/val/d && cp abcd/train/c/0.png abcd/train/d && cp abcd/val/c/0.png abcd/val/d
run train net.ini data.root=abc -o net; expect "train" 0; right "train"
moved net z b c && mv moved zbc-net # red is label 0, by the name z

# ---- a test set without images of a class ----
images ca c a # labels 0 a (green), 1 c (red); the network has a red, c blue
mkdir -p lacks/val && cp -r abc/val/a abc/val/c lacks/val
run eval net data.root=lacks --per-class; expect "eval, a class is missing" 0 "the dataset lacks 1 of the network's 3 classes, b"
right "eval, a class is missing"
has "eval, a class is missing: all classes are listed" "$out" "b "
run eval net data.root=ca; expect "eval, a class is missing, other colours" 0 "0 of 8 correct"
mkdir -p odd/val && cp -r abc/val/a odd/val && cp -r abc/val/c odd/val/q
run eval net data.root=odd; expect "eval, fewer classes and a foreign one" 1

# ---- numbers are sorted as text ----
images numbers 1 10 2
run data numbers; expect "numbers" 0 "sorted as text, as torchvision sorts folders: label 1 is class 10, label 2 class 2"
{ echo file,label; for c in 1 10 2; do for i in 0 1 2; do echo "train/$c/$i.png,$c"; done; done; } >numbers/train.csv
run data stat net.ini data.kind=csv data.root=numbers data.val_fraction=0.3; expect "numbers in a list" 0 "label 1 is class 10, label 2 class 2"
images padded 01 02 10
run data padded; expect "numbers with zeros" 0; holds "they are in order" sh -c '! grep -q "sorted as text" stderr'

# ---- eval and report ----
run eval net data.root=abc; expect "eval, equal" 0; right "eval, equal"
holds "eval, equal: nothing is said" sh -c '! grep -qE "warning|by name|taken as" stderr'
run eval zbc-net data.root=zbc --per-class --csv rows.csv; expect "eval, another order" 0 "classes are matched by name"
right "eval, another order"
is "the table has the network's order" "$(awk '$1 ~ /^[0-9]$/ { printf "%s%s ", $1, $2 }' stdout)" "0z 1b 2c "
is "the lines have the right names" "$(grep -c '/z/.*,z,' rows.csv)" 4
run eval net data.root=Abc; expect "eval, a capital" 0 "class A of the dataset is taken as a of the weights"; right "eval, a capital"
run eval net data.root=xyz; expect "eval, other names" 0 "label 0 is x in the dataset and a in the network; the scores compare labels by number"
run eval net data.root=abcd; expect "eval, one class more" 1 "its classifier has 3 classes, the dataset has 4"
cp -r net unnamed && rm -f unnamed/*/{classes,checksums}.txt
run eval unnamed data.root=zbc
expect "eval, no names" 0 "has no classes.txt, or one with ImageNet's names: label k of the dataset is taken as its class k" "0.00 %"
run report zbc-net data.root=zbc; expect "report, another order" 0 "classes are matched by name"
holds "report, another order: accuracy" grep -q '<dt>top-1</dt><dd>100.00 %' zbc-net/report.html

# ---- a teacher ----
# the student's own labels do not count (distill.weight = 1): the teacher alone decides what it learns
student() { rm -rf s; run train net.ini --epochs 25 distill.weight=1 -o s "$@"; }
student data.root=zbc distill.teacher=zbc-net
expect "teacher, another order" 0 "classes are matched by name: z is label 0 in the teacher and 2 in the dataset"; right "teacher, another order"
is "the student has the order of its dataset" "$(names s)" "b c z "
student data.root=zbc distill.teacher=net
expect "teacher, other names" 2 "teacher = net: the classes of the dataset are" "label 0 is b in the dataset and a in the teacher" "rename the classes"
# what the message says: without classes.txt and checksums.txt
rm -rf moved && cp -r net moved && rm -f moved/*/classes.txt; student data.root=abc distill.teacher=moved
expect "teacher, classes.txt removed" 1 "classes.txt: is missing, although checksums.txt lists it" "remove checksums.txt from its folder"
moved net Z B C
student data.root=zbc distill.teacher=moved
expect "teacher, capitals" 0 "class Z of the teacher is taken as z of the dataset"; right "teacher, capitals"
student data.root=abc distill.teacher=unnamed
expect "teacher, no names" 0 "the teacher has no classes.txt"; right "teacher, no names"
student data.root=abc distill.teacher=net; expect "teacher, equal" 0; right "teacher, equal"
holds "teacher, equal: nothing is said" sh -c '! grep -qE "warning|by name|no classes.txt" stderr'

# ---- weights and resuming ----
same="data.root=zbc optim.lr=1e-9 model.bn_momentum=0"
run train net.ini $same model.weights=zbc-net -o tuned --steps 2; expect "weights, another order" 0 "classes are matched by name"
is "the run has the order of its weights" "$(names tuned)" "z b c "
run eval tuned data.root=zbc; right "weights, another order: the classifier is kept"
cp -r tuned paused
run train net.ini $same model.weights=zbc-net -o whole --steps 5; expect "the same without a break" 0
run train net.ini $same -o paused --resume auto --steps 5; expect "it resumes" 0 "resume  "
holds "resuming is bitwise" cmp whole/last/model.safetensors paused/last/model.safetensors
run train net.ini $same model.weights=net -o other --steps 2
expect "weights, other names" 0 "label 0 is b in the dataset and a in the network; the classifier is kept, label by label; model.head=new"
run train net.ini $same model.weights=zbc-net model.head=new -o fresh --steps 2
is "a new classifier has the order of the dataset" "$(names fresh)" "b c z "
moved net z b c
run train net.ini data.root=zbc -o moved --resume auto --epochs 7
expect "resume, another order" 2 "the classes are in another order (they are matched by name)" "--force"
run train net.ini data.root=zbc -o moved --resume auto --epochs 7 optim.lr=1e-9 --force
expect "resume --force, another order" 0; right "resume --force, another order"

# ---- commands that make another network ----
run quantize zbc-net data.root=zbc -o int8 --max-drop 1; expect "quantize, another order" 0 "classes are matched by name" "100.00 %"
is "the quantised network has the network's order" "$(names int8)" "z b c "
run eval int8 data.root=zbc; right "quantize, another order: eval"
run prune zbc-net data.root=zbc --sparsity 0.1 prune.importance=taylor -o pruned
expect "prune, another order" 0 "classes are matched by name"
is "the pruned network has the network's order" "$(names pruned)" "z b c "
run eval pruned data.root=zbc; right "prune, another order: eval"

run compress zbc-net data.root=zbc --speedup 1.5 --dry-run; expect "compress, another order" 0

# ---- ImageNet: folders are n01440764, the names of published weights are not; both lists have the same order ----
python3 - <<'PY'
import os
for split in ("train", "val"):
    for k in range(1000):
        os.makedirs(f"inet/{split}/n{k:08d}")
        os.link("abc/train/a/0.png", f"inet/{split}/n{k:08d}/0.png")
PY
few="data.root=inet train.batch=100 --steps 1"
run train net.ini $few -o inet-net; expect "ImageNet: train" 0
mkdir nameless && cp inet-net/last/config.ini nameless
run export inet-net --last -o named.safetensors; expect "ImageNet: export" 0
python_tools -c 'import weights_file as w; t, meta = w.read("named.safetensors"); del meta["label_names"]; w.write("nameless/w.safetensors", t, meta)'
cp -r nameless published && mv published/w.safetensors published/resnet18-f37072fd.pth # the name of published weights
run prune net.ini data.root=inet --weights published/resnet18-f37072fd.pth --sparsity 1e-9 -o inet-pruned; expect "ImageNet: prune" 0
is "ImageNet: the network's names" "$(head -1 inet-pruned/last/classes.txt)" tench
for teacher in nameless/w.safetensors published/resnet18-f37072fd.pth inet-pruned; do
    name=${teacher%%/*}
    run train net.ini $few distill.teacher=$teacher -o taught-$name; expect "ImageNet: teacher $name" 0 "label k of the dataset is taken as its class k"
    holds "ImageNet: teacher $name: by number" cmp taught-nameless/last/model.safetensors taught-$name/last/model.safetensors
    run eval net.ini data.root=inet --weights $teacher; expect "ImageNet: eval $name" 0 "label k of the dataset is taken as its class k"
    holds "ImageNet: eval $name: no warning" sh -c '! grep -q warning stderr'
done

# ---- exported weights have the names in their metadata ----
mkdir alone && run export zbc-net -o alone/w.safetensors; expect "exported weights" 0
is "exported weights: names" "$(python_tools -c 'import json, weights_file; print(json.loads(weights_file.read("alone/w.safetensors")[1]["label_names"]))')" "['z', 'b', 'c']"
printf 'not\nof\nthem\n' >alone/classes.txt
run eval net.ini data.root=zbc --weights alone/w.safetensors; expect "exported weights: eval" 0 "classes are matched by name"; right "exported weights: eval"
run predict net.ini data.root=nowhere --weights alone/w.safetensors abc/val/a/0.png -k 1; expect "exported weights: predict" 0 " z"
run quantize net.ini data.root=zbc --weights alone/w.safetensors -o alone-int8; is "exported weights: quantize" "$(names alone-int8)" "z b c "
run export alone/w.safetensors -o alone/again.safetensors; holds "exported again" cmp alone/w.safetensors alone/again.safetensors
moved net '"quoted" \' ü c; run export moved -o alone/w.safetensors; expect "export: quotes and accents" 0
run predict net.ini data.root=nowhere --weights alone/w.safetensors abc/val/a/0.png abc/val/b/0.png -k 1; expect "names with quotes and accents" 0 '"quoted" \' " ü"
run predict net.ini data.root=nowhere --weights alone/w.safetensors abc/val/a abc/val/b -k 2
is "the second column begins at the same character" "$(python_tools -c 'print(len({line.rindex("%") for line in open("stdout", encoding="utf-8")}))')" 1
other() { # VALUE: another program's entry with this key; classes.txt is used
    python_tools - "$1" <<'PY'
import sys
import weights_file
tensors, meta = weights_file.read("alone/again.safetensors")
weights_file.write("alone/other.safetensors", tensors, {**meta, "label_names": sys.argv[1]})
PY
    run predict net.ini data.root=nowhere --weights alone/other.safetensors abc/val/a/0.png -k 1; expect "label_names: $1" 0 " not"
}
for value in "" "z,b,c" '["z", "b"' '["z", "b", 3]' '["z", "b", "c"] x' '["z\nb", "b", "c"]' '{}' '[]'; do other "$value"; done

# ---- training and validation ----
cp -r abc mixed && mv mixed/val/a mixed/val/A
run eval net data.root=mixed; expect "validation, a capital" 1 "both must have the same class folders (A and a differ only in upper and lower case"
sum_up

#!/usr/bin/env bash
# test_changed_data.sh: resuming a run whose dataset has changed says what changed: classes, number of images, contents; --force continues.
. "$(dirname "$0")/../harness/cli_support.sh"

there python3 || { skip "no python3"; sum_up 77; }
run data shapes drawn data.train_images=80 data.val_images=20
rm -rf drawn/*/.[!.]*
# fresh: a new copy of the dataset, in which the images of all classes have the same names and sizes
fresh() {
    local folder n
    rm -rf set && cp -r drawn set
    for folder in set/*/*; do
        n=0
        for image in "$folder"/*; do mv "$image" "$folder/image$((n++)).png"; done
    done
    for image in set/*/*/*.png; do truncate -s 4096 "$image"; done # bytes after the end of a PNG are ignored
}
folder="data.kind=folder data.root=set data.crop=none data.workers=1"
resume() { run train files.ini $folder -o R --resume auto --steps 4 "$@"; }
fresh
run train files.ini $folder -o R --steps 2; expect "train" 0
cp -r R before
again() { rm -rf R && cp -r before R && fresh; }

# ---- the same dataset, also elsewhere ----
resume; expect "the same dataset" 0 "resume  "
again; mv set moved; resume data.root=moved; expect "the same dataset in another folder" 0; mv moved set
again; touch set/*/*/*.png; resume; expect "times of files do not matter" 0

# ---- classes ----
again; cp -r set/train/circle set/train/zebra; cp -r set/val/circle set/val/zebra
resume; expect "a class was added" 2 "has changed" "classes added: zebra" "10 classes" "11" "model.weights="
resume --force; expect "a class was added: --force cannot help" 2 "classes added: zebra" "model.weights="
is "nothing about tensors" "$(grep -c fc.weight stderr)" 0
again; rm -r set/*/circle; resume; expect "a class was removed" 2 "classes removed: circle"
again; for split in train val; do mv set/$split/circle set/$split/disc; done
resume; expect "a class was renamed" 2 "classes removed: circle" "classes added: disc (renamed?)" "--force"
for command in eval report; do
    run $command R $folder; expect "$command: a class was renamed" 0 "label 1 is crescent in the dataset and circle in the network"
done
again; run eval R $folder; holds "eval: no warning of equal classes" sh -c '! grep -q "are not those of the weights" stderr'

# ---- images ----
again; mv set/train/circle set/x; mv set/train/cross set/train/circle; mv set/x set/train/cross
resume; expect "two classes were exchanged" 2 "the contents of training images differ" "add --force to continue with it" "or restore the dataset"
resume --force; expect "two classes were exchanged: --force" 0 "warning: resume, forced: the contents of training images differ"
resume; expect "afterwards it is the run's dataset" 0
again; for image in set/train/*/*.png; do printf x | dd of="$image" bs=1 seek=4095 conv=notrunc status=none; done
resume; expect "images were made again" 2 "the contents of training images differ"
again; rm set/train/circle/image0.png; resume; expect "an image was removed" 2 "79 training images, before 80"
again; mv set/train/circle/image0.png set/train/circle/other.png; resume; expect "an image was renamed" 2 "images differ"
again; cp set/val/circle/image0.png set/val/circle/image9.png; resume; expect "validation images are not compared" 0

# ---- checkpoints of older versions, which have neither a number of images nor a hash ----
older() {
    weights_file drop-sums R/last
    python_tools - <<'PY'
import weights_file
tensors, meta = weights_file.read("R/last/state.safetensors")
del meta["data_images"], meta["data_contents"]
weights_file.write("R/last/state.safetensors", tensors, meta)
PY
}
again; older; resume; expect "an older checkpoint" 0
again; older; rm set/train/circle/image0.png; resume; expect "an older checkpoint, an image less" 2 "names, labels or the number of training images differ"
again; older; mv set/train/circle set/x; mv set/train/cross set/train/circle; mv set/x set/train/cross
resume; expect "an older checkpoint does not know the contents" 0

# ---- packed ----
fresh; run data pack set packed; expect "pack" 0
packed="data.kind=packed data.root=packed data.crop=none data.workers=1"
run train files.ini $packed -o P --steps 2; expect "train packed" 0
mv set/train/circle set/x; mv set/train/cross set/train/circle; mv set/x set/train/cross
rm -rf packed; run data pack set packed; expect "pack again" 0
run train files.ini $packed -o P --resume auto --steps 4; expect "packed, classes exchanged" 2 "the contents of training images differ"
sum_up

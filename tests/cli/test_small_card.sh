#!/usr/bin/env bash
# test_small_card.sh: memory.limit = auto and memory.card: a run that does not fit into the device memory recomputes activations, with
# the same weights as before; checkpoints store the limit; a resumed run uses it; a run that fits is not changed. The ImageNet
# configurations fit a GPU of 8 GiB in plans. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"

train() { "$bin" train "$source_dir/configs/demo.ini" data.train_images=256 data.val_images=64 train.save_every=1 data.workers=1 "$@"; }
weights() { sha256sum <"$1/last/model.safetensors"; }
lacks() { case $2 in *"$3"*) fail "$1: has \"$3\": $2" ;; *) pass ;; esac; }

ends "enough memory" 0 train --steps 3 -o free
lacks "enough memory: no limit" "$said" "pool"
has "enough memory: recorded" "$(cat free/last/config.ini)" "limit = auto"

ends "a small card" 0 train --steps 2 memory.card=30MiB -o small
has "a small card: cost" "$said" "MiB and 30 are free (a smaller train.batch may fit): pool"
has "a small card: cost" "$said" "slower"
has "a small card: recorded" "$(cat small/last/config.ini)" "limit = 31457280B"
ends "resumed" 0 train --steps 3 -o small --resume auto
has "resumed: the recorded limit" "$said" "memory  pool"
is "the same weights" "$(weights small)" "$(weights free)"

ends "no limit" 1 train --steps 3 memory.card=30MiB memory.limit=none -o refused
has "no limit: message" "$said" "more than available"
has "no limit: advice" "$said" "memory.limit = auto"
ends "a card that is too small" 1 train --steps 3 memory.card=4MiB -o refused
has "a card that is too small: message" "$said" "MiB more than available"
lacks "a card that is too small: advice" "$said" "memory.limit = auto"
ends "a size without a unit" 2 train --steps 3 memory.card=8 -o refused
has "a size without a unit: message" "$said" "[memory] card = 8: must be a memory size with a unit"

# Plans for a GPU that is not here: the number of the JSON line is the whole memory of the run.
for config in resnet18 resnet50 wide-resnet50-2; do
    "$bin" plan "$source_dir/configs/demo.ini" --target h200 -q >/dev/null 2>&1 || { skip "$config on 8 GiB: no CUDA in this build"; continue; }
    said=$("$bin" plan "$source_dir/configs/$config.ini" --target rtx4090 memory.card=8GiB data.kind=synthetic 2>&1)
    is "$config on 8 GiB: exit code of $said" $? 0
    lacks "$config on 8 GiB" "$said" "does not fit"
done
sum_up

#!/usr/bin/env bash
# test_small_card.sh: memory.limit = auto and memory.card: a run that does not fit into the device memory recomputes activations, with
# the same weights as before; checkpoints store the limit; a resumed run uses it; a run that fits is not changed. The ImageNet
# configurations fit a GPU of 8 GiB in plans. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"

train() { "$bin" train "$source_dir/configs/demo.ini" data.train_images=256 data.val_images=64 train.save_every=1 data.workers=1 "$@"; }
weights() { sha256sum <"$1/last/model.safetensors"; }
lacks() { case $2 in *"$3"*) fail "$1: has \"$3\": $2" ;; *) pass ;; esac; }

said=$(train --steps 3 -o free 2>&1)
is "enough memory: exit code of $said" $? 0
lacks "enough memory: no limit" "$said" "pool"
has "enough memory: recorded" "$(cat free/last/config.ini)" "limit = auto"

said=$(train --steps 2 memory.card=30MiB -o small 2>&1)
is "a small card: exit code of $said" $? 0
has "a small card: cost" "$said" "MiB and 30 are free (a smaller train.batch may fit): pool"
has "a small card: cost" "$said" "slower"
has "a small card: recorded" "$(cat small/last/config.ini)" "limit = 31457280B"
said=$(train --steps 3 -o small --resume auto 2>&1)
is "resumed: exit code of $said" $? 0
has "resumed: the recorded limit" "$said" "memory  pool"
is "the same weights" "$(weights small)" "$(weights free)"

said=$(train --steps 3 memory.card=30MiB memory.limit=none -o refused 2>&1)
is "no limit: exit code" $? 1
has "no limit: message" "$said" "more than available"
has "no limit: advice" "$said" "memory.limit = auto"
said=$(train --steps 3 memory.card=4MiB -o refused 2>&1)
is "a card that is too small: exit code" $? 1
has "a card that is too small: message" "$said" "MiB more than available"
lacks "a card that is too small: advice" "$said" "memory.limit = auto"
said=$(train --steps 3 memory.card=8 -o refused 2>&1)
is "a size without a unit: exit code" $? 2
has "a size without a unit: message" "$said" "[memory] card = 8: must be a memory size with a unit"

# Plans for a GPU that is not here: the number of the JSON line is the whole memory of the run.
for config in resnet18 resnet50 wide-resnet50-2; do
    "$bin" plan "$source_dir/configs/demo.ini" --target h200 -q >/dev/null 2>&1 || { skip "$config on 8 GiB: no CUDA in this build"; continue; }
    said=$("$bin" plan "$source_dir/configs/$config.ini" --target rtx4090 memory.card=8GiB data.kind=synthetic 2>&1)
    is "$config on 8 GiB: exit code of $said" $? 0
    lacks "$config on 8 GiB" "$said" "does not fit"
done
sum_up

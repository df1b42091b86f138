#!/usr/bin/env bash
# test_bn_one_value.sh: a batch norm that sees one value per channel in training is an error of every command that compiles the training
# program; the error names the layer. Two values, from any source, train. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# The stem divides the size by 4, each later stage by 2: images of 32 pixels are 1x1 in stage 4.
cat >net.ini <<'INI'
[model]
arch = custom
block = basic
stem = imagenet
depths = 1,1,1,1
widths = 4,4,6,6
[data]
kind = synthetic
image_size = 32
crop = none
train_images = 8
val_images = 4
workers = 0
[train]
batch = 1
eval_batch = 1
steps = 2
device = cpu
threads = 1
INI
said="the batch norm layer4.0.bn1 sees 1 value per channel"
run train net.ini -o R; expect "one image of 1x1" 2 "net.ini:15: [train] batch = 1: $said" "data.image_size" "model.freeze"
holds "nothing is written" test ! -e R
for command in plan profile "bench step" lr-find; do
    run $command net.ini; expect "$command" 2 "$said"
done
run train net.ini -o R train.accumulate=4; expect "the micro batch counts" 2 "$said (1 image per micro batch"
run train net.ini -o R data.image_sizes=32@0,64@1; expect "a size of several" 2 "$said"
run train net.ini -o R -b 2; expect "two images" 0
run train net.ini -o R2 data.image_size=33; expect "images of 2x2" 0
run train net.ini -o R3 model.freeze=stem,layer1,layer2,layer3,layer4; expect "frozen batch norms use running statistics" 0
run eval R --batch 1; expect "evaluation" 0
run plan net.ini --which eval; expect "the evaluation program" 0
run train net.ini -o R4 --ranks 2; expect "each rank has statistics of its own" 2 "$said" "model.sync_bn = yes combines"
run train net.ini -o R5 --ranks 2 model.sync_bn=yes; expect "the statistics of two ranks" 0
sum_up

#!/usr/bin/env bash
# test_unbalanced.sh: datasets whose classes differ in size: class weights and focal loss of [loss], balanced sampling, the warning, and what is said about mistakes.
. "$(dirname "$0")/../harness/cli_support.sh"

# 120 training images of ten classes, 12 each, of which the second class keeps one.
run data shapes images data.train_images=120 data.val_images=20; expect "images" 0
second=$(ls images/train | sed -n 2p)
find "images/train/$second" -name '*.png' | sort | tail -n +2 | xargs rm
{ tiny_model; printf '[data]\nkind = folder\nroot = images\nimage_size = 16\nworkers = 1\n[train]\nbatch = 37\nepochs = 2\nsteps = 4\ndevice = cpu\nthreads = 1\nlog_every = 1\n'; } >net.ini
same() { cmp -s "$1/last/model.safetensors" "$2/last/model.safetensors"; } # same RUN RUN: the weights are bitwise identical

# ---- the warning ----
run train net.ini -o plain; expect "plain" 0 "has 12 training images and $second has 1:" "loss.class_weights=balanced"
is "one warning" "$(grep -c 'training images and' stderr)" 1
run train net.ini -o weighted loss.class_weights=balanced
# images / (classes * images of the class): 109 / (10 * 12) and 109 / (10 * 1)
expect "balanced" 0 "class weights from 0.9083 (" "to 10.9 ($second)"
holds "no warning" [ "$(grep -c 'training images and' stderr)" = 0 ]
run train "$work/net.ini" -o even data.root=even; expect "a missing folder" 2
cp -r images even; cp "even/train/$(ls even/train | head -1)"/*.png "even/train/$second"
run train net.ini -o even data.root=even -q; is "no warning when classes are even: $err" "$(grep -c 'training images and' stderr)" 0

# ---- weights ----
holds "weights change the training" eval '! same plain weighted'
run train net.ini -o ones loss.class_weights=1,1,1,1,1,1,1,1,1,1 -q; expect "a list" 0
run train net.ini -o fours loss.class_weights=4,4,4,4,4,4,4,4,4,4 -q; expect "another list" 0
holds "only the ratios of the weights count" same ones fours
balanced=$(for class in images/train/*; do [ "$(basename "$class")" = "$second" ] && printf 10.9, || printf 0.90833333333333333,; done)
run train net.ini -o list loss.class_weights="${balanced%,}" -q; expect "the balanced weights as a list" 0
holds "balanced is this list" same weighted list
{ echo class,weight; for class in images/train/*; do name=$(basename "$class"); [ "$name" = "$second" ] && echo "$name,10.9" || echo "$name, 0.90833333333333333"; done | sort -r; } >weights.csv
run train net.ini -o file loss.class_weights=weights.csv -q; expect "a file" 0
holds "balanced is this file" same weighted file
printf '\357\273\277' | cat - weights.csv >mark.csv                                # a byte order mark
sed 's/\([^,]*\), *\(.*\)/"\1","\2"/' weights.csv >quotes.csv
sed 's/,/ , /; s/^/ /; s/$/ /' weights.csv >blanks.csv
sed 's/$/\r/; $s/$/\n/' weights.csv | { printf '\357\273\277'; cat; } >lines.csv # of other systems, an empty one at the end
for spelling in mark quotes blanks lines; do
    run train net.ini -o $spelling loss.class_weights=$spelling.csv -q; expect "a file with $spelling" 0
    holds "it has the same weights ($spelling)" same weighted $spelling
done

# ---- resuming ----
run train net.ini -o half loss.class_weights=balanced --steps 2 -q; expect "the first half" 0
run train net.ini -o half --resume auto train.steps=4 -q; expect "resumed" 0
holds "resumed: the same weights" same half weighted

# ---- balanced sampling ----
run train net.ini -o sampled data.sampling=balanced -q; expect "balanced sampling" 0
is "no warning: $err" "$(grep -c 'training images and' stderr)" 0
holds "it changes the training" eval '! same plain sampled'
run train net.ini -o both data.sampling=balanced loss.class_weights=balanced; expect "both" 0 "one of them is enough"

# ---- focal loss ----
run train net.ini -o focal loss.focal_gamma=2 -q; expect "focal loss" 0
holds "focal loss changes the training" eval '! same plain focal'
run plan net.ini loss.focal_gamma=2 --program; expect "the program" 0; has "the program says it" "$out" "gamma=2"
run eval focal --json; expect "evaluation" 0; loss=$(field loss)
run eval focal loss.focal_gamma=0 --json; is "an evaluation has the plain loss" "$(field loss)" "$loss"

# ---- binary cross-entropy ----
run train net.ini -o bce loss.kind=bce data.mixup=1 loss.target_threshold=0.2; expect "bce" 0
holds "the loss begins near log 2: $(grep -o 'loss [0-9.]*' stderr | head -1)" awk -v l="$(grep -o 'loss [0-9.]*' stderr | head -1 | cut -d' ' -f2)" 'BEGIN { exit !(l > 0.6 && l < 0.8) }'
run plan net.ini loss.kind=bce data.mixup=1 loss.target_threshold=0.2 --program; expect "its program" 0; has "the program says it" "$out" "sigmoid threshold=0.2"
run eval focal loss.kind=bce --json; is "an evaluation of bce has the plain loss" "$(field loss)" "$loss"
run train net.ini -o bad loss.target_threshold=0.2; expect "a threshold of softmax" 2 "target_threshold" "set kind = bce"

# ---- mistakes ----
bad() { run train net.ini -o bad "loss.class_weights=$1"; shift; expect "mistake: $1" "$@"; holds "mistake: nothing was written" [ ! -e bad ]; }
bad 1,2 2 "2 weights for 10 classes"
bad 1,2,x 2 "is neither balanced, nor a list of numbers, nor a file"
bad 0,0,0,0,0,0,0,0,0,0 2 "all weights are 0"
head -3 weights.csv >few.csv; bad few.csv 1 "few.csv: class" "has no weight"
{ cat weights.csv; echo unknown,1; } >more.csv; bad more.csv 1 "more.csv:12: the dataset has no class with this name"
echo no-comma >wrong.csv; bad wrong.csv 1 "wrong.csv:1: the line must be class,weight"
sum_up

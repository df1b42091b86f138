#!/usr/bin/env bash
# test_finetune.sh: cresnet finetune: what it chooses for a folder, the file that it writes and that `cresnet train` reads unchanged, Ctrl-C and the
# same command again, weights of all kinds, what it says without them. Ends with "N passed, N failed, N skipped".
#   CRESNET_TEST_DATA  a folder with imagenette-224-subset and resnet-cifar10-weights: fine-tuned for half a minute
. "$(dirname "$0")/../harness/cli_support.sh"
unset CRESNET_CACHE TORCH_HOME CRESNET_WEIGHTS_DIR CRESNET_WEIGHTS_LIST

run data shapes images data.train_images=120 data.val_images=60; expect "images" 0
run train tiny.ini -o start --steps 4 ema.decay=0.5 -q; expect "weights to start from" 0
key() { sed -n "s/^$2 = //p" "$1"; } # key FILE NAME: a value of an INI file
small=(train.epochs=3 data.image_size=16 data.eval_crop=16 data.eval_resize=18 --device cpu --threads 1)

# ---- one command: it says what it chose, writes it, and trains ----
run finetune images --weights start -o F "${small[@]}"
expect "finetune" 0 "120 images of 10 classes for training; 60 for validation (its own validation set)" "network   custom, from the weights start/step-4/ema.safetensors" \
    "F.ini has these choices" "done: step" "cresnet predict F IMAGE"
cp stderr first.err
holds "at most 20 lines" [ "$(wc -l <stderr)" -le 20 ]
is "nothing on standard output" "$out" ""
holds "checkpoints" [ -f F/best/model.safetensors ]
is "the network is that of the weights" "$(key F.ini arch) $(key F.ini depths) $(key F.ini widths) $(key F.ini stem)" "$(key start/last/config.ini arch) $(key start/last/config.ini depths) $(key start/last/config.ini widths) $(key start/last/config.ini stem)"
is "keys of the command line are in the file" "$(key F.ini epochs) $(key F.ini image_size)" "3 16"
is "weights of tiny images: all parts are trained from the start" "$(key F.ini freeze)" ""
is "no moving averages of 21 updates" "$(key F.ini decay)" ""
run predict F "$(find images/val -name '*.png' | head -1)"; expect "predict" 0 "weights: F/"

# ---- `cresnet train` reads the file unchanged, and trains the same ----
run train F.ini -o G -q; expect "train F.ini" 0
holds "train F.ini: the same weights" cmp F/last/model.safetensors G/last/model.safetensors
run finetune images --weights start -o F "${small[@]}"; expect "the same command, when all is done" 0 "ended     the run F has ended" "cresnet predict F IMAGE"
is "the same command: no warning" "$(grep -c "not used" stderr)" 0
run finetune images --weights alone --model resnet50 -o F "${small[@]}"; expect "another start of a run that has begun" 0 "not used: --model, --weights"
is "nothing was trained again" "$(grep -c '"event":"start"\|"event":"resume"' F/log.jsonl)" 1

# ---- Ctrl-C, and the same command again ----
epochs=40; [ -z "${CRESNET_SANITIZE:-}" ] || epochs=12 # the signal comes after step 20 of 7 an epoch
start_slow() { "$bin" finetune images --weights start -o S "${small[@]}" train.epochs=$epochs train.patience=0 train.log_every=1 >stdout 2>stderr; }
start_slow & pid=$!
await $pid grep '"step":20,' S/log.jsonl
pkill -INT -P $pid 2>/dev/null || kill -INT $pid
wait $pid; is "interrupted" $? 130
has "what continues it" "$(cat stderr)" "saved in S; continue with the same command"
holds "it was interrupted within the run" [ ! -e "S/step-$((epochs * 7))" ]
cp S.ini before.ini
start_slow; is "the same command continues" $? 0
holds "it continued" grep -q '"event":"resume"' S/log.jsonl
holds "the choices are kept" cmp S.ini before.ini
[ $epochs -le 28 ] || is "moving averages of more than 200 updates" "$(key S.ini decay)" 0.98
run train S.ini -o W -q; expect "the whole run" 0
holds "interrupted and whole: the same weights" cmp S/last/model.safetensors W/last/model.safetensors

# ---- a file has a progress line at once, although training logs every 50 steps; --quiet has none ----
holds "a line after the first step" [ "$(grep -c '^epoch 1/[0-9]*  step 1/[0-9]* ' first.err)" = 1 ]
is "no promise to stop early: there are 3 evaluations, and the first is always better" "$(grep -c "stops after" first.err)" 0

# ---- values that are edited in RUN.ini, or given, take effect in a run that was interrupted ----
"$bin" finetune images --weights start -o E "${small[@]}" train.epochs=400 train.log_every=1 >stdout 2>stderr & pid=$!
await $pid grep '"step":4,' E/log.jsonl
pkill -INT -P $pid 2>/dev/null || kill -INT $pid
wait $pid; is "interrupted" $? 130
has "it may stop early: there are 8 evaluations" "$(cat stderr)" "stops after 4 evaluations without a better top1"
at=$(basename "$(readlink E/last)"); at=${at#step-} epochs=$((at / 7 + 2))
sed -i 's/^lr = .*/lr = 0.0123/' E.ini
run finetune images --weights start -o E "${small[@]}" train.epochs=$epochs
expect "edited" 0 "changed   optim.lr: 0.04 -> 0.0123" "changed   train.epochs: 400 -> $epochs" "continues the run E"
is "the edited values are those of the run" "$(key E/last/config.ini lr) $(basename "$(readlink E/last)")" "0.0123 step-$((7 * epochs))"

# ---- more images, another batch size, more epochs: trained again from the weights, in a run of its own ----
cp -r images more; extra=$(find more/train/star -name '*.png' | sort | head -1); cp "$extra" more/train/star/zz.png
run finetune more --weights start -o A "${small[@]}" train.epochs=1 train.save_every=1; expect "a run on 121 images" 0 "done: step 7"
before=$(checksums A A.ini)
cp "$extra" more/train/star/zzz.png
run finetune more --weights start -o A "${small[@]}" train.epochs=1
expect "one image more" 0 "changed   122 training images, before 121" "again     trains from the weights of A, in the new run A-2" "from the weights A/step-7, with their classifier" "done: step 7, saved in A-2" "cresnet predict A-2 IMAGE"
is "it starts from the weights of A" "$(key A-2.ini weights) $(key A-2.ini head)" "A/step-7 keep"
run train A-2.ini -o byhand -q; expect "A-2.ini by hand" 0
holds "it is the training that A-2.ini describes" cmp A-2/last/model.safetensors byhand/last/model.safetensors
run finetune more --weights start -o A "${small[@]}" train.epochs=1; expect "the same command: the newest run has ended" 0 "ended     the run A-2 has ended"
run finetune more --weights start -o A "${small[@]}" train.epochs=1 -b 8; expect "another batch size" 0 "changed   train.batch: 16 -> 8" "in the new run A-3" "done: step 15, saved in A-3"
run finetune more --weights start -o A "${small[@]}" -b 8 --epochs 2; expect "other epochs" 0 "changed   train.epochs: 1 -> 2" "in the new run A-4" "done: step 30"
cp -r more/train/star more/train/nova; cp -r more/val/star more/val/nova
run finetune more --weights start -o A "${small[@]}" train.epochs=1; expect "a class more" 0 "changed   classes added: nova" "from the weights A-4/step-" "classifier: 10 of 11 classes keep their rows" "1 new: nova" "saved in A-5"
is "older runs are as they were" "$(checksums A A.ini)" "$before"
is "no word of --force" "$(grep -c -e --force stderr)" 0

# ---- without val/: a fifth of each class, always the same ----
run finetune images/train --weights start -o H "${small[@]}" train.epochs=1
expect "a folder without val/" 0 "100 images of 10 classes for training; 20 for validation (20 % of each class" # 2 of 12
is "the fraction is in the file" "$(key H.ini val_fraction)" 0.2
run finetune images/train --weights start -o I "${small[@]}" train.epochs=1
holds "the split does not depend on chance" cmp H/last/model.safetensors I/last/model.safetensors

# ---- weights: a file without a configuration, from scratch ----
run train "$source_dir/configs/cifar10-resnet20.ini" data.kind=synthetic data.train_images=8 data.val_images=8 train.batch=8 -o R20 --steps 1 -q --device cpu; expect "ResNet-20" 0
mkdir alone; cp R20/last/model.safetensors alone/weights.safetensors
run finetune images --weights alone/weights.safetensors -o N "${small[@]}" train.epochs=1; expect "recognised" 0 "network   resnet20, from the weights alone/weights.safetensors"
is "recognised: the file" "$(key N.ini arch) $(key N.ini stem) $(key N.ini shortcut)" "resnet20 cifar A"
cp start/last/model.safetensors alone/custom.safetensors
run finetune images --weights alone/custom.safetensors -o X "${small[@]}"; expect "not recognised" 2 "of no network that cresnet knows: give --model NAME"
run finetune images --weights none --model resnet20 -o Z "${small[@]}" train.epochs=1 distill.teacher=N; expect "from scratch" 0 "resnet20, from scratch"
is "keys of every section are in the file" "$(key Z.ini teacher)" N
is "from scratch: nothing is frozen" "$(key Z.ini freeze)$(key Z.ini weights)" ""

# weights of larger images: the new classifier first, and with a higher rate
run train tiny.ini -o large --steps 1 model.stem=imagenet data.image_size=72 -q --device cpu; expect "weights of larger images" 0
run finetune images --weights large -o L train.epochs=5 data.image_size=24 --device cpu --threads 1
expect "weights of larger images: finetune" 0 "5 epochs, at first 1 with the classifier alone"
is "the frozen parts" "$(key L.ini freeze) until $(key L.ini unfreeze), rates $(key L.ini lr) and $(key L.ini head_lr)" "stem,layer1,layer2 until 1, rates 0.005 and 0.025"
holds "they were unfrozen" grep -q '"event":"unfreeze","step":7,"frozen":""' L/log.jsonl

# ---- published weights that cannot be had ----
CRESNET_OFFLINE=1 run finetune images -o X; expect "offline" 1 "resnet18" "CRESNET_WEIGHTS_DIR" "--weights FILE" "--weights none"
is "offline: one error" "$(printf '%s\n' "$err" | grep -c '^cresnet')" 1
run finetune images --model resnet51 -o X; expect "a network that is not there" 2 "must be one of resnet18" "did you mean resnet50?"
run finetune images --model resnet20 -o X; expect "a network without published weights" 2 "no published weights" "--weights none"
echo x >file; run finetune images --weights start -o file "${small[@]}"; expect "-o names a file" 2 "file: is a file: choose a run folder"; holds "no recipe is left" [ ! -e file.ini ]
holds "nothing was written" [ ! -e X ] && holds "nothing was written" [ ! -e X.ini ]

# ---- --minutes: no machine has time for anything in 0.00001 minutes, so that the choices do not depend on its speed ----
run finetune images --weights start -o M --minutes 0.05 --device cpu --threads 1 train.epochs=1; expect "--minutes" 0 " second"
run train tiny.ini -o four --steps 1 model.stem=imagenet model.depths=1,1,1,1 model.widths=4,4,8,8 data.image_size=72 -q --device cpu; expect "weights of four stages" 0
run finetune images --weights four -o Q --minutes 0.00001 --device cpu --threads 1; expect "no time for all stages" 0 "1 epoch of the last 2 of 4 stages and the classifier"
is "no time for all stages: the file" "$(key Q.ini freeze) $(key Q.ini unfreeze)$(key Q.ini decay), $(key Q.ini image_size) px, saved every $(key Q.ini save_every) steps" "stem,layer1,layer2 , 48 px, saved every 7 steps"
run finetune images --weights four -o Y --minutes 2 --device cpu --threads 1 model.freeze=stem train.epochs=1; expect "stages that the user freezes" 0
is "stages that the user freezes: the file" "$(key Y.ini freeze)" stem
for bad in 0 -1 x nan 1e9; do run finetune images --minutes=$bad; expect "--minutes $bad" 2 "must be a number of minutes above 0"; done

# ---- mistakes ----
run finetune; expect "no folder" 2 "no folder of images given"
run finetune images train.batchs=3; expect "an unknown key" 2 "did you mean batch?"
mkdir other; cp -r images/train other/train; cp -r images/val other/val
run finetune other --weights start -o F "${small[@]}"; expect "other images" 2 "F.ini: is a run on the images in images"

# ---- files that cannot be read are named once, although several parts of the command read them ----
touch other/train/star/a.heic other/train/star/b.heic; bad=$(find other/val/star -name '*.png' | head -1); echo none >"$bad"
run finetune other --weights start -o B "${small[@]}" train.epochs=2; expect "files that cannot be read" 0 "other/train: skipped 2 files such as" ".heic"
is "other formats are named once" "$(grep -c heic stderr)" 1
is "a broken validation image is named once" "$(grep -c "$bad" stderr)" 1
# a run or a packed set in the folder of images would be a class
cp -r images/train inside; run finetune inside --weights start -o inside/run "${small[@]}"; expect "a run in the folder of images" 2 "inside/run lies in the folder of images, where each folder is a class"
mkdir here; run data pack inside here/../inside/new/packed data.val_fraction=0.2; expect "a packed set in the folder of images" 2 "each folder is a class"
is "nothing was written there" "$(ls inside | wc -l)" 10
run data pack inside insidepacked data.val_fraction=0.2; expect "a name that only begins so" 0
run data pack images images/packed; expect "a packed set next to train and val" 0

# links: to nothing, which are named once; to a folder that contains the dataset, which is not a part of a class
ln -s nowhere "other/train/star/dead.png"; ln -s ../../.. other/train/star/above
run finetune other --weights start -o D "${small[@]}" train.epochs=1; expect "links" 0 "120 images of 10 classes" "other/train: skipped 1 link, other/train/star/dead.png: no file is there"
is "links to nothing are named once" "$(grep -c 'no file is there' stderr)" 1

# Train/ and Testing/ with folders in them are a split; Train next to Bus is a class
mkdir capital vehicles; cp -r images/train capital/Train; cp -r images/val capital/Testing
run finetune capital --weights start -o "C D" "${small[@]}" train.epochs=1; expect "Train and Testing" 0 "120 images of 10 classes for training; 60 for validation (its own validation set)"
expect "suggested commands have quotes" 0 "cresnet train 'C D.ini' -o" "cresnet predict 'C D' IMAGE"
mkdir vehicles/Train; cp -r images/val/star vehicles/Bus; cp -r images/val/circle vehicles/Train/steam
run finetune vehicles --weights start -o V "${small[@]}" train.epochs=1; expect "a class Train" 0 "10 images of 2 classes for training"
run predict "C D.ini" images/val/star; expect "predict with the INI of a run" 2 "its model.weights are those that training starts from" "give the run folder C D"
run predict F.ini images/val/star --weights F; expect "predict with the INI and the weights" 0 "weights: F/"
mkdir -p pairs/a pairs/b; cp "$(find images/val/star -name '*.png' | head -1)" pairs/a/1.png; cp pairs/a/1.png pairs/a/2.png; cp pairs/a/?.png pairs/b
run finetune pairs --weights start -o P "${small[@]}" train.epochs=1; expect "two images per class" 0 "schedule  1 epoch; batch size 2"

mkdir few few/a few/b; cp "$(find images/train/star -name '*.png' | head -1)" few/a/1.png; cp few/a/1.png few/b/1.png
run finetune few --weights start -o X; expect "one image per class" 1 "no image is left for validation" "a class needs at least two images"

echo '[train]' >mine.ini; run finetune images --weights start -o mine; expect "a foreign file" 2 "mine.ini: exists, and was not written by cresnet finetune"
is "the foreign file is kept" "$(cat mine.ini)" "[train]"

run finetune images --weights start -o start "${small[@]}"; expect "the folder of another run" 2 "start is not empty, and there is no start.ini"
holds "the other run is untouched" [ ! -e start.ini ]
run finetune images --weights start -o X "${small[@]}" model.arch=custom model.depths=1,1 model.widths=4,9; expect "weights that do not fit" 1 "has shape"
holds "a failed start leaves no file" [ ! -e X.ini ]

# ---- photos ----
photos=${CRESNET_TEST_DATA:-}/imagenette-224-subset resnet20=${CRESNET_TEST_DATA:-}/resnet-cifar10-weights/resnet20-cifar10.safetensors
if [ -n "${CRESNET_SANITIZE:-}" ]; then
    skip "photos: a sanitizer is too slow"
elif [ -z "${CRESNET_TEST_DATA:-}" ] || [ ! -d "$photos" ] || [ ! -f "$resnet20" ]; then
    skip "photos: not in CRESNET_TEST_DATA"
else
    run finetune "$photos" --weights "$resnet20" --epochs 4 data.image_size=32 --device cpu -o photos-run; expect "photos" 0 "done: step"
    holds "photos: over 60 %" python3 -c 'import json; assert json.load(open("photos-run/best.json"))["top1"] > 0.6'
fi
sum_up

#!/usr/bin/env bash
# test_csv.sh: data.kind = csv: lists of images with one label each give the same training as the same images in class folders; quotes, headings,
# what is held out without val.csv, and what is said about mistakes, also in lists with several labels. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

run data shapes images data.train_images=100 data.val_images=40; expect "images" 0
run data shapes images; expect "shapes into a folder of others" 2 "images: choose another folder (data.root); images of your own also need data.kind=folder"
mkdir list
for split in train val; do
    (cd images && find "$split" -name '*.png' | LC_ALL=C sort | awk -F/ '{ print "../images/" $0 "," $2 }') >"list/$split.csv"
done
{ tiny_model; printf '[data]\nimage_size = 16\nworkers = 1\n[train]\nbatch = 25\nepochs = 2\ndevice = cpu\nthreads = 1\n'; } >net.ini
same() { cmp -s "$1/last/model.safetensors" "$2/last/model.safetensors"; }

# warned_once NAME: the last run warned about labels once
warned_once() { is "$1: number of warnings" "$(grep -c "warning: .*different labels" <<<"$err")" 1; }

# ---- one image with two labels ----
cp -r list twice
three=$(sed -n '3p' twice/train.csv); five=$(sed -n '5p' twice/train.csv)
printf './%s,ring\n%s,ring\n%s,%s\n' "${three%,*}" "${five%,*}" "$(sed -n '7s/,.*//p' twice/train.csv)" "$(sed -n '7s/.*,//p' twice/train.csv)" >>twice/train.csv
printf '%s,ring\n' "${three%,*}" >>twice/train.csv # a third line of the same image
run train net.ini -o conflict data.kind=csv data.root=twice --steps 1; expect "an image with two labels" 0 \
    "warning: twice/train.csv:101: ./${three%,*} has the label ring, but ${three##*,} in twice/train.csv:3; 2 images are listed with different labels: remove the lines with wrong labels"
warned_once train
run finetune twice --weights none --epochs 1 --batch 8 --device cpu data.kind=csv train.steps=1 data.image_size=32 -o fine; expect "finetune warns" 0 "2 images are listed with different labels"
warned_once finetune
run train net.ini -o conflict-ranks data.kind=csv data.root=twice --steps 1 --ranks 2 --batch 10; expect "two ranks" 0 "2 images are listed with different labels"
warned_once "two ranks"
cp list/train.csv twice/; printf '%s,ring\n' "${three%,*}" >twice/val.csv
run train net.ini -o conflict2 data.kind=csv data.root=twice --steps 1; expect "validation has another label" 0 \
    "warning: twice/val.csv:1: ${three%,*} has the label ring, but ${three##*,} in twice/train.csv:3; 1 image is listed with different labels"
cp list/val.csv twice/; cat list/train.csv >>twice/train.csv
run train net.ini -o conflict3 data.kind=csv data.root=twice --steps 1; expect "the same label twice" 0; is "the same label twice is no conflict" "$(grep "different labels" <<<"$err")" ""

# ---- the same as folders ----
run train net.ini -o folder data.kind=folder data.root=images -q; expect "class folders" 0
run train net.ini -o csv data.kind=csv data.root=list -q; expect "lists" 0
holds "the same weights" same folder csv
holds "the same classes" cmp folder/last/classes.txt csv/last/classes.txt
run eval folder --json; want=$(field correct); run eval csv --json; is "the same evaluation" "$(field correct)" "$want"
run data stat list; expect "data stat" 0 "csv in list" "train  100 images, 10 classes" "val    40 images"
run data pack list packed; expect "data pack" 0
run train net.ini -o packed-run data.kind=packed data.root=packed data.crop=random_resized -q; holds "packed: the same weights" same folder packed-run

# ---- forms ----
mkdir forms 'forms/a b,c'
first=$(find images/train -name '*.png' | sort | head -1); cp "$first" 'forms/a b,c/x"y.png'; cp "$first" forms/plain.png
printf '\xef\xbb\xbffile,label\r\n"a b,c/x""y.png","one, or ""two"""\r\n\r\nplain.png,three\r\n%s,three' "$work/$first" >forms/train.csv
printf 'plain.png,three\n' >forms/val.csv
run data stat forms; expect "quotes, a heading, CRLF, a byte order mark, an absolute path" 0 "train  3 images, 2 classes, 1 to 2 images per class" "val    1 images"
run train net.ini -o one data.kind=csv data.root=forms train.batch=2 --steps 1 -q; is "the names" "$(tr '\n' '|' <one/last/classes.txt)" 'one, or "two"|three|'

printf '\n  \nImage Path , Category\n plain.png\t, one \n "a b,c/x""y.png" , "two" \nplain.png,"one"' >forms/train.csv
printf 'plain.png,one\n' >forms/val.csv
run data stat forms; expect "blanks around fields, empty lines, other headings" 0 "train  3 images, 2 classes, 1 to 2 images per class" "val    1 images"
cp "$first" forms/bare; printf 'bare,one\nplain.png,two\n' >forms/train.csv
run data stat forms; expect "a file without an ending is no heading" 0 "train  2 images, 2 classes"

# ---- without val.csv ----
cp -r list part; rm part/val.csv
run train net.ini -o held data.kind=csv data.root=part data.val_fraction=0.2 -q; expect "held out" 0
run data stat part data.val_fraction=0.2; expect "a fifth of each class" 0 "train  80 images, 10 classes, 8 to 8" "val    20 images, 10 classes, 2 to 2" "no duplicates"
run train net.ini -o bad data.kind=csv data.root=part; expect "no val.csv" 2 "[data] val_fraction" "part has no val.csv: set the fraction to hold out, e.g. data.val_fraction=0.1"
run finetune part --weights none --model resnet20 -o tuned data.image_size=16 train.epochs=1 train.batch=40 --device cpu; expect "finetune" 0 "80 images of 10 classes"

# ---- mistakes ----
mkdir wrong; cp list/val.csv wrong
options=()
bad() { printf "$1" >wrong/train.csv; run train net.ini -o bad data.kind=csv data.root=wrong "${options[@]}"; expect "mistake: $1" "${@:2}"; holds "nothing was written" [ ! -e bad ]; }
bad 'x.png\n' 1 "wrong/train.csv:1: the line must be file,label"
bad 'x.png;a\n' 1 "wrong/train.csv:1: the line must be file,label, with a comma instead of the semicolon; it is x.png;a"
bad 'label,file\na,x.png\n' 1 "wrong/train.csv:1: the columns are label,file: write the file first, then the label"
bad '\xff\xfex\0' 1 "wrong/train.csv: is text in UTF-16: save it as UTF-8"
bad 'x.png,a\ny.png,\n' 1 "wrong/train.csv:2: the label is empty; each image must have one"
bad 'x.png,a\ny.png,a\n' 1 "its only label is a"
bad 'x.png,a\ny.png,b\n' 1 "wrong/val.csv:1: no image of wrong/train.csv has the label"
rm wrong/val.csv; run train net.ini -o bad data.kind=csv data.root=wrong data.val_fraction=0.5; expect "missing images" 1 "is not there, but wrong/train.csv lists it"
run train net.ini -o bad data.kind=csv data.root=nowhere; expect "a missing folder" 2 "nowhere"
# several labels per image. Comparing all pairs of very many labels would take minutes. The address sanitizer itself measures the rest of the
# line for each label (strict_string_checks).
options=(data.val_fraction=0.5 data.multi_label=yes)
bad 'x.png\n' 1 "wrong/train.csv:1: the line must be file,label1;label2"
bad 'file,labels\nx.png,a;b\ny.png,a,b\n' 1 "wrong/train.csv:3: the line must be file,label1;label2"
bad 'x.png,a;b;\n' 1 "wrong/train.csv:1: a label is empty"
bad 'x.png,a\ny.png,b\nx.png,b\n' 1 "wrong/train.csv:3: line 1 has this image already: write one line"
labels=150000; [ -z "${CRESNET_SANITIZE:-}" ] || labels=15000
{ printf 'x.png,'; seq -s ';' $labels; printf 'y.png,a;b;a\n'; } >wrong/train.csv
run train net.ini -o bad data.kind=csv data.root=wrong "${options[@]}"; expect "very many labels" 1 "wrong/train.csv:2: the label a occurs twice"
printf 'x.png,b;c\n' >wrong/val.csv; bad 'x.png,a;b\n' 1 "wrong/val.csv:1: no image of wrong/train.csv has the label c"
sum_up

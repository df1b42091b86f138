#!/usr/bin/env bash
# test_foreign_folders.sh: a run or checkpoint folder that somebody else made is data: nothing outside of it is written or included because of
# it, its text is not shown in errors, pipes in it are refused, and values in it are checked. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
run train tiny.ini -o R --steps 8 -q train.save_every=4 train.eval_every=1; expect "train" 0
{ tiny_model; printf '[data]\nkind = shapes\nroot = images\ntrain_images = 20\nval_images = 10\nimage_size = 16\nworkers = 1\n[train]\nbatch = 4\ndevice = cpu\n'; } >shapes.ini
fresh() { rm -rf F; cp -a R F; rm F/step-*/checksums.txt; } # a stranger's folder
step=step-8
for s in R/step-*; do step=${s##*/}; done
resume() { run train tiny.ini --resume F --steps 12 "$@"; }

# ---- what a configuration names outside of its folder is not written ----
run train shapes.ini -o S --steps 2 -q; expect "train on shapes" 0
cp -a S S2; rm S2/step-*/checksums.txt; sed -i "s|^root = .*|root = $work/elsewhere|" S2/*/config.ini
image=$(find images/val -name '*.png' | sort | head -1)
for command in "eval S2" "data S2" "data pack S2 packed" "report S2 -o r.html" "train shapes.ini --resume S2 --steps 4"; do
    # shellcheck disable=SC2086
    run $command
    holds "$command: draws nothing" [ ! -e elsewhere ]
    rm -rf elsewhere
done
run eval S2; expect "eval: images that are not there" 2 "elsewhere: the images of the built-in dataset are not there" "data.root=DIR"
for s in S2/step-*; do rm -f $s/classes.txt; done
run predict S2 "$image"; holds "predict: draws nothing" [ ! -e elsewhere ]; rm -rf elsewhere
run eval S2 "data.root=$work/elsewhere" -q; expect "eval: the user names the place" 0; holds "the user names the place: it is drawn" [ -d elsewhere/val ]
run eval S2; expect "eval: images that are there" 0
run eval S; expect "eval of an own run" 0

# ---- include, and text of other files ----
printf 'password hunter2\n[login]\nsecret = hunter3\n' >private.txt
fresh; for s in F/step-*; do { echo "include = $work/private.txt"; cat R/$step/config.ini; } >$s/config.ini; done
for command in "eval F" "predict F $image" "plan F" "train tiny.ini --resume F" "export F --onnx x.onnx" "prune F --sparsity 0.5 -o x"; do
    # shellcheck disable=SC2086
    run $command; expect "$command: include" 2 "config.ini:1: the configuration of a run may not include other files"
    case $out$err in *hunter*) fail "$command: shows the text of another file: $err" ;; *) pass ;; esac
done
fresh; for s in F/step-*; do ln -sf $work/private.txt $s/config.ini; done
run eval F; expect "config.ini is a link: refused" 2 "config.ini:1: is invalid"
case $out$err in *hunter*) fail "shows the text of a linked file: $err" ;; *) pass ;; esac
fresh; sed -i "s|^budget =.*|budget = $work/private.csv|; s|^sparsity =.*|sparsity = 0.5|" F/step-*/config.ini
printf 'layer,sparsity\nhunter4,0.5\n' >private.csv
resume; expect "a stored prune.budget" 1 "private.csv: is not a budget"
case $out$err in *hunter*) fail "a stored prune.budget: shows the text of the file: $err" ;; *) pass ;; esac
resume "prune.budget=$work/private.csv"; expect "a budget of the user: errors show its text" 1 "hunter4"
fresh; printf 'hunter%d\n' 0 1 2 3 4 5 6 7 8 9 >names.txt; for s in F/step-*; do ln -sf $work/names.txt $s/classes.txt; done
for command in "predict F $image" "predict F $image --json" "export F --onnx x.onnx" "train tiny.ini --resume F --steps 12"; do
    # shellcheck disable=SC2086
    run $command; expect "$command: classes.txt is a link" 1 "classes.txt: is a link, which is not followed here: replace it by a copy of the file"
    case $out$err$(cat x.onnx 2>/dev/null | tr -d "\0") in *hunter*) fail "$command: shows the text of a linked file: $err" ;; *) pass ;; esac
done
for s in F/step-*; do cp --remove-destination names.txt $s/classes.txt; done
run predict F "$image"; expect "classes.txt is a copy" 0 "hunter"
run train tiny.ini --resume F --steps 12; expect "other class names" 2 "$step: the dataset has changed since this run was saved" "classes removed: hunter0"
echo 'include = R/last/config.ini' >mine.ini; run plan mine.ini; expect "a file of the user may include" 0
run eval R train.batch=0.5; expect "errors of the command line are shown" 2 "[train] batch = 0.5"

# ---- links in a run folder are not followed for writing ----
for name in log.jsonl .lock; do
    fresh; rm -f F/$name; echo precious >target; ln -s $work/target F/$name
    resume; expect "$name is a link: refused" 1 "F/$name: is a link"
    is "$name is a link: the target is untouched" "$(cat target)" precious
    rm -f F/$name; ln -s $work/created F/$name; resume; expect "$name is a link to nothing: refused" 1 "F/$name: is a link"
    holds "$name is a link: nothing is created" [ ! -e created ]
done
fresh; rm -f F/best.json; ln -s $work/target F/best.json; resume; is "best.json is a link: the target is untouched" "$(cat target)" precious

# ---- pipes are refused, and nobody waits for them ----
pipe() { rm -f "$1"; mkfifo "$1"; }
quick() { timeout -s KILL 300 "$bin" "$@" >stdout 2>stderr; rc=$? out=$(cat stdout) err=$(cat stderr); }
fresh; pipe F/log.jsonl; quick train tiny.ini --resume F --steps 12; expect "log.jsonl is a pipe" 1 "log.jsonl: is a device or pipe"
fresh; pipe F/$step/classes.txt; quick predict F "$image"; expect "classes.txt is a pipe" 1 "classes.txt: is a device or pipe"
fresh; rm -f F/report.html; pipe F/report.html; quick report F --no-eval; expect "report.html is a pipe" 1 "F/report.html: is a device or pipe"
holds "report.html is still a pipe" [ -p F/report.html ]
pipe included.ini; printf 'include = included.ini\n[model]\narch = resnet18\n' >including.ini
quick plan including.ini; expect "an included file is a pipe" 2 "included.ini: is a device or pipe"

# ---- values are checked when they are read ----
for bad in '{"step":4,"top1":5.0}' '{"step":4,"top1":nan}' '{"step":4,"top1":-1}' '{"step":4.5,"top1":0.5}' '{"step":3,"top1":0.99}' '{"top1":0.99}' 'no JSON'; do
    fresh; echo "$bad" >F/best.json
    resume train.eval_every=1 train.epochs=8 --steps 48; expect "best.json $bad" 0 "best.json is ignored" "best so far"
done
fresh; echo '{"step":4,"top1":1,"future":3}' >F/best.json
resume train.eval_every=1 train.epochs=8 --steps 48; expect "a valid best.json" 0
case $err in *"best so far"* | *ignored*) fail "a valid best.json is not believed: $err" ;; *) pass ;; esac
for name in last best; do
    fresh; mv F/$step F/kept; rm F/$name; cp -a F/kept F/$name; mv F/kept F/$step
    resume --steps 40; expect "$name is a folder" 1 "F/$name: is a folder, but a link is needed here: copy the run with its links"
    case $err in *"saved step"*) fail "$name is a folder: noticed after a save" ;; *) pass ;; esac
    holds "$name is a folder: nothing was trained" [ ! -e F/step-12 ]
done

# ---- one of several processes that write to the same folder at a time succeeds ----
for i in 1 2 3 4; do "$bin" prune R --sparsity 0.5 -o same >same-$i.txt 2>&1 & pids[i]=$!; done
successes=0 messages=0
for i in 1 2 3 4; do
    wait "${pids[i]}" && successes=$((successes + 1))
    messages=$((messages + $(grep -cE 'same is not empty|same: another run is writing' same-$i.txt)))
done
is "four times prune -o SAME: successes" $successes 1
is "four times prune -o SAME: clear errors" $messages 3
run eval same; expect "the pruned weights" 0
for i in 1 2 3; do "$bin" train tiny.ini -o once --steps 4 >once-$i.txt 2>&1 & pids[i]=$!; done
successes=0
for i in 1 2 3; do wait "${pids[i]}" && successes=$((successes + 1)); done
is "three times train -o SAME: successes" $successes 1
sum_up

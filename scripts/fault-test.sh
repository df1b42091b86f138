#!/usr/bin/env bash
# fault-test.sh [KIND ...]: makes each single call of the system fail in turn, in training, resuming, evaluating, predicting, packing,
# pruning and exporting, and asks each time: no crash, no hang, one error that says what is wrong (or none needed), nothing
# lost: what was saved still loads, the run goes on, and its last bytes are those of a run that was never disturbed.
#   KIND     malloc read write open close fsync rename mmap thread (all), and
#            full    the disk is full from the n-th write on        short   the n-th write and read do only a part
#            signal  the n-th write and read are cut short by a signal (EINTR)        clock   all clocks jump back again and again
#   CRESNET_BIN    the program (build/cresnet)         FAULT_SHIM   the library that makes calls fail (tests/fault_shim.so beside it)
#   STRIDE=K       every K-th call only (1)            SCENES       which of the scenes below (all)
#   FAULT_SCOPE    own: calls of the program itself; all: also those inside of libraries (for malloc: the loader, oneDNN, OpenMP)
# The last line is "N faults, N failed".
. "$(dirname "$0")/../tests/harness/support.sh"
shim=${FAULT_SHIM:-$(dirname "$bin")/tests/fault_shim.so}
stride=${STRIDE:-1}
scope=${FAULT_SCOPE:-own}
[ -x "$bin" ] && [ -f "$shim" ] || { echo "fault-test: $bin or $shim is not there: build with tests, without sanitizers" >&2; exit 2; }
faults=0

{ tiny_model; cat; } >net.ini <<'INI'
[data]
kind = folder
root = pictures
image_size = 16
crop = pad
workers = 1
corrupt = fatal

[train]
batch = 8
epochs = 2
save_every = 1
keep = 2
log_every = 1
device = cpu
threads = 1
INI

# ---- scenes: what runs, and what must hold afterwards ----

prepare() {
    "$bin" data shapes pictures data.train_images=20 data.val_images=20 -q >/dev/null || exit 1
    cp "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb-444.jpg" "$(dirname "$(find pictures/train -name '*.png' | head -1)")/photo.jpg" || exit 1
    "$bin" train net.ini -o base --steps 2 -q || exit 1
    "$bin" train net.ini -o whole --steps 4 -q || exit 1
    cp -r base going && "$bin" train net.ini -o going --steps 4 --resume auto -q || exit 1
    "$bin" eval whole --json -q >eval.want || exit 1
    "$bin" predict whole pictures/val/*/*0.png "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb.jpg" --json -q >predict.want || exit 1
    "$bin" data pack net.ini packed -q >/dev/null || exit 1
    "$bin" prune whole --sparsity 0.5 -o pruned.want -q >/dev/null || exit 1
    "$bin" export whole -o export.want -q || exit 1
}
same() { cmp -s "$1" "$2"; }
# A run folder was read: a checkpoint that cannot be read is passed over for an older one, and a warning says so.
passed_over() { grep -q "checkpoint skipped" stderr; }
untimed() { sed 's/"seconds": [^,]*, "images_per_s": [^,]*, //' "$1"; }
# The run folder RUN is brought to its end, and ends as WANT.
finish_run() {
    "$bin" train net.ini -o "$1" --steps 4 --resume auto -q 2>again || { echo "does not go on: $(head -2 again)"; return 1; }
    same "$1/last/model.safetensors" "$2/last/model.safetensors" && same "$1/last/state.safetensors" "$2/last/state.safetensors" ||
        { echo "another result than undisturbed"; return 1; }
    [ -z "$(find "$1" -maxdepth 1 -name '.*-step-*')" ] || { echo "leftovers: $(ls -A "$1")"; return 1; }
}
scene_train() { rm -rf run; "$@" "$bin" train net.ini -o run --steps 4 -q; }
after_train() { finish_run run whole; }
scene_resume() { rm -rf run; cp -r base run; "$@" "$bin" train net.ini -o run --steps 4 --resume auto -q; }
after_resume() { [ -f run/last/model.safetensors ] || { echo "step 2 is gone"; return 1; }; finish_run run going; }
scene_eval() { "$@" "$bin" eval whole --json -q; }
after_eval() { [ "$1" != 0 ] || passed_over || [ "$(untimed stdout)" = "$(untimed eval.want)" ] || { echo "another result"; return 1; }; }
scene_predict() { "$@" "$bin" predict whole pictures/val/*/*0.png "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb.jpg" --json -q; }
after_predict() { [ "$1" != 0 ] || passed_over || same stdout predict.want || { echo "another result"; return 1; }; }
scene_pack() { rm -rf out; "$@" "$bin" data pack net.ini out -q; }
after_pack() {
    local file
    [ "$1" != 0 ] || [ -f out/val.crpk ] || { echo "no file"; return 1; }
    for file in train val; do
        [ ! -e out/$file.crpk ] || same out/$file.crpk packed/$file.crpk || { echo "another out/$file.crpk"; return 1; }
    done
}
scene_prune() { rm -rf pruned; "$@" "$bin" prune whole --sparsity 0.5 -o pruned -q; }
after_prune() {
    [ ! -e pruned/last ] || passed_over || same pruned/last/model.safetensors pruned.want/last/model.safetensors || { echo "another result"; return 1; }
    [ "$1" != 0 ] || [ -e pruned/last ] || { echo "no result"; return 1; }
}
scene_export() { rm -f exported; "$@" "$bin" export whole -o exported -q; }
after_export() {
    [ ! -e exported ] || passed_over || same exported export.want || { echo "a part of a file"; return 1; }
    [ "$1" != 0 ] || [ -e exported ] || { echo "no result"; return 1; }
}

# ---- one fault ----

faulty() { # ENVIRONMENT... COMMAND...: the program alone runs with the library
    timeout 60 env LD_PRELOAD="$shim" FAULT_SCOPE="$scope" FAULT_COUNT="$work/count" "${setting[@]}" "$@"
}
judge() { # SCENE KIND N RC MUST_PASS
    local why="" lost
    faults=$((faults + 1))
    if [ "$4" = 124 ]; then why="hangs"
    elif [ "$4" -gt 2 ]; then
        lost=$("after_$1" "$4")
        why="ends with $4: $(tail -2 stderr | tr '\n' ' '); afterwards ${lost:-all is well}"
    elif [ "$4" != 0 ] && ! [ -s stderr ]; then why="ends with $4 and says nothing"
    elif [ "$4" != 0 ] && [ "$5" = yes ]; then why="ends with $4: $(head -2 stderr)"
    else why=$("after_$1" "$4"); fi
    if [ -n "$why" ]; then
        failed=$((failed + 1))
        echo "FAIL $1, $2 $3: $why"
    fi
}
# How many calls there are when none fails.
count_calls() {
    local scene=$1
    shift
    setting=("$@")
    rm -f count
    "scene_$scene" faulty >/dev/null 2>&1
    cut -d' ' -f1 count 2>/dev/null || echo 0
}
loop() { # SCENE KIND MUST_PASS SETTINGS...
    local scene=$1 kind=$2 must=$3 n rc calls errors=0 before=$failed
    shift 3
    calls=$(count_calls "$scene" "$@")
    for ((n = 1; n <= calls; n += stride)); do
        setting=("$@" "FAULT_AT=$n")
        "scene_$scene" faulty >stdout 2>stderr
        rc=$?
        [ $rc = 0 ] || errors=$((errors + 1))
        judge "$scene" "$kind" "$n" $rc "$must"
    done
    printf '%-8s %-7s %-4s %6d calls, every %d: %5d ended with an error, the others did without; %d wrong\n' "$scene" "$kind" "$scope" \
        "${calls:-0}" "$stride" "$errors" $((failed - before))
}

prepare
[ $# -gt 0 ] || set -- malloc read write open close fsync rename mmap thread full short signal clock
for kind in "$@"; do
    if [ "$kind" = malloc ] && "$bin" --version | grep -q '^CUDA  *[0-9]'; then
        echo "malloc is left out: CUDA's own runtime is part of this program and does not survive it; build with -DCRESNET_WITH_CUDA=OFF" >&2
        continue
    fi
    for scene in ${SCENES:-train resume eval predict pack prune export}; do
        case $kind in
        full) loop $scene full no FAULT_CALL=write FAULT_TIMES=0 FAULT_ERRNO=28 ;;
        short) loop $scene short yes FAULT_CALL=write FAULT_SHORT=1; loop $scene short yes FAULT_CALL=read FAULT_SHORT=1 ;;
        signal) loop $scene signal yes FAULT_CALL=write FAULT_ERRNO=4; loop $scene signal yes FAULT_CALL=read FAULT_ERRNO=4 ;;
        clock)
            setting=(FAULT_CLOCK=back)
            "scene_$scene" faulty >stdout 2>stderr
            judge $scene clock 1 $? yes ;;
        *) loop $scene "$kind" no "FAULT_CALL=$kind" ;;
        esac
    done
done
echo "$faults faults, $failed failed"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# fault-test.sh [KIND ...]: makes each single system call fail in turn while cresnet trains, resumes, evaluates, predicts, packs, prunes
# or exports. After each failure it checks that the program did not crash or hang, printed one error that says what is wrong (or
# needed none), and lost no data: saved files still load, the run can be resumed, and its final files are bitwise identical to
# those of a run without failures.
#   KIND     malloc read write open close fsync rename mmap thread (default: all), and
#            full    the disk is full from the n-th write on        short   the n-th write and read transfer only a part
#            signal  a signal interrupts the n-th write and read (EINTR)        clock   all clocks jump back repeatedly
#   CRESNET_BIN    the program (build/cresnet)         FAULT_SHIM   the library that makes calls fail (tests/fault_shim.so next to it)
#   STRIDE=K       only every K-th call (1)            SCENES       which of the scenes below (all)
#   FAULT_SCOPE    own: calls of the program itself; all: also calls inside libraries (for malloc: the loader, oneDNN, OpenMP)
# The last line is "N faults, N failed".
. "$(dirname "$0")/../tests/harness/support.sh"
shim=${FAULT_SHIM:-$(dirname "$bin")/tests/fault_shim.so}
stride=${STRIDE:-1}
scope=${FAULT_SCOPE:-own}
[ -x "$bin" ] && [ -f "$shim" ] || { echo "fault-test: $bin or $shim does not exist: build with tests, without sanitizers" >&2; exit 2; }
faults=0

{ tiny_model; cat; } >net.ini <<'INI'
[data]
kind = folder
root = images
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

# ---- scenes: scene_X runs a command, after_X checks the files afterwards and prints what is wrong ----

prepare() {
    "$bin" data shapes images data.train_images=20 data.val_images=20 -q >/dev/null || exit 1
    cp "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb-444.jpg" "$(dirname "$(find images/train -name '*.png' | head -1)")/photo.jpg" || exit 1
    "$bin" train net.ini -o base --steps 2 -q || exit 1
    "$bin" train net.ini -o whole --steps 4 -q || exit 1
    cp -r base going && "$bin" train net.ini -o going --steps 4 --resume auto -q || exit 1
    "$bin" eval whole --json -q >eval.want || exit 1
    "$bin" predict whole images/val/*/*0.png "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb.jpg" --json -q >predict.want || exit 1
    "$bin" data pack net.ini packed -q >/dev/null || exit 1
    "$bin" prune whole --sparsity 0.5 -o pruned.want -q >/dev/null || exit 1
    "$bin" export whole -o export.want -q || exit 1
}
same() { cmp -s "$1" "$2"; }
# The program could not read a checkpoint of the run folder, used an older one and printed a warning.
skipped_checkpoint() { grep -q "checkpoint skipped" stderr; }
untimed() { sed 's/"seconds": [^,]*, "images_per_s": [^,]*, //' "$1"; }
# finish_run RUN WANT: resumes RUN to its last step and compares its last checkpoint with that of WANT.
finish_run() {
    "$bin" train net.ini -o "$1" --steps 4 --resume auto -q 2>again || { echo "cannot be resumed: $(head -2 again)"; return 1; }
    same "$1/last/model.safetensors" "$2/last/model.safetensors" && same "$1/last/state.safetensors" "$2/last/state.safetensors" ||
        { echo "the result differs from a run without failures"; return 1; }
    [ -z "$(find "$1" -maxdepth 1 -name '.*-step-*')" ] || { echo "leftovers: $(ls -A "$1")"; return 1; }
}
scene_train() { rm -rf run; "$@" "$bin" train net.ini -o run --steps 4 -q; }
after_train() { finish_run run whole; }
scene_resume() { rm -rf run; cp -r base run; "$@" "$bin" train net.ini -o run --steps 4 --resume auto -q; }
after_resume() { [ -f run/last/model.safetensors ] || { echo "step 2 is lost"; return 1; }; finish_run run going; }
scene_eval() { "$@" "$bin" eval whole --json -q; }
after_eval() { [ "$1" != 0 ] || skipped_checkpoint || [ "$(untimed stdout)" = "$(untimed eval.want)" ] || { echo "the result differs"; return 1; }; }
scene_predict() { "$@" "$bin" predict whole images/val/*/*0.png "$source_dir/tests/fuzz/corpus/fuzz_jpeg/rgb.jpg" --json -q; }
after_predict() { [ "$1" != 0 ] || skipped_checkpoint || same stdout predict.want || { echo "the result differs"; return 1; }; }
scene_pack() { rm -rf out; "$@" "$bin" data pack net.ini out -q; }
after_pack() {
    local file
    [ "$1" != 0 ] || [ -f out/val.crpk ] || { echo "no file"; return 1; }
    for file in train val; do
        [ ! -e out/$file.crpk ] || same out/$file.crpk packed/$file.crpk || { echo "out/$file.crpk differs"; return 1; }
    done
}
scene_prune() { rm -rf pruned; "$@" "$bin" prune whole --sparsity 0.5 -o pruned -q; }
after_prune() {
    [ ! -e pruned/last ] || skipped_checkpoint || same pruned/last/model.safetensors pruned.want/last/model.safetensors || { echo "the result differs"; return 1; }
    [ "$1" != 0 ] || [ -e pruned/last ] || { echo "no result"; return 1; }
}
scene_export() { rm -f exported; "$@" "$bin" export whole -o exported -q; }
after_export() {
    [ ! -e exported ] || skipped_checkpoint || same exported export.want || { echo "the file is incomplete"; return 1; }
    [ "$1" != 0 ] || [ -e exported ] || { echo "no result"; return 1; }
}

# ---- one fault ----

faulty() { # ENVIRONMENT... COMMAND...: runs the program with the library preloaded
    timeout 60 env LD_PRELOAD="$shim" FAULT_SCOPE="$scope" FAULT_COUNT="$work/count" "${setting[@]}" "$@"
}
check_fault() { # SCENE KIND N RC MUST_PASS
    local why="" lost
    faults=$((faults + 1))
    if [ "$4" = 124 ]; then why="hangs"
    elif [ "$4" -gt 2 ]; then
        lost=$("after_$1" "$4")
        why="exit code $4: $(tail -2 stderr | tr '\n' ' '); files afterwards: ${lost:-correct}"
    elif [ "$4" != 0 ] && ! [ -s stderr ]; then why="exit code $4 without a message"
    elif [ "$4" != 0 ] && [ "$5" = yes ]; then why="exit code $4: $(head -2 stderr)"
    else why=$("after_$1" "$4"); fi
    if [ -n "$why" ]; then
        failed=$((failed + 1))
        echo "FAIL $1, $2 $3: $why"
    fi
}
# Prints the number of calls in a run without failures.
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
        check_fault "$scene" "$kind" "$n" $rc "$must"
    done
    printf '%-8s %-7s %-4s %6d calls, every %d: %5d ended with an error; %d failed\n' "$scene" "$kind" "$scope" \
        "${calls:-0}" "$stride" "$errors" $((failed - before))
}

prepare
[ $# -gt 0 ] || set -- malloc read write open close fsync rename mmap thread full short signal clock
for kind in "$@"; do
    if [ "$kind" = malloc ] && "$bin" --version | grep -q '^CUDA  *[0-9]'; then
        echo "malloc is skipped: the CUDA runtime in this program does not survive a failing malloc; build with -DCRESNET_WITH_CUDA=OFF" >&2
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
            check_fault $scene clock 1 $? yes ;;
        *) loop $scene "$kind" no "FAULT_CALL=$kind" ;;
        esac
    done
done
echo "$faults faults, $failed failed"
[ "$failed" -eq 0 ]

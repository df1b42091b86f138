# prune-stages.sh: trainings of pruned ResNet-56 networks on CIFAR-10 that can be interrupted. prune-accuracy.sh and pareto.sh source this file and share
# the folder WORK: a network that one of them has trained is not trained again by the other.
#
# The sourcing script sets CRESNET, CONFIGS, CIFAR, WORK (absolute paths), JOBS, LIMIT_S, EPOCHS, MORE_EPOCHS, TEACHER and SCHEDULE.
# shellcheck disable=SC2317 # stages are called by name
RESERVE_S=20 # to save, evaluate and print
start=$SECONDS
left() { echo $((LIMIT_S - RESERVE_S - (SECONDS - start))); }
log() { echo "[$((SECONDS - start)) s] $*"; }
# field NAME: the number of a key in a JSON line on standard input
field() { sed -n "s/.*\"$1\": *\\([0-9.e+-]*\\).*/\\1/p" | tail -n 1; }
result_name() { echo "$1-s$2" | tr : -; } # VARIANT SEED

# train NAME CONFIG KEYS...: trains runs/NAME, or continues, until it is complete. Returns 124 when the time is up.
train() {
    local run=$WORK/runs/$1 log=$WORK/logs/$1.txt config=$2
    shift 2
    [ ! -f "$run.complete" ] || return 0
    [ "$(left)" -gt 5 ] || return 124
    # shellcheck disable=SC2086
    timeout -k 20 -s TERM "$(left)" "$CRESNET" train "$config" data.root="$CIFAR" train.eval_every=0 train.keep=1 ${SETTINGS:-} "$@" \
        -o "$run" --resume auto -q >>"$log" 2>&1 || return
    touch "$run.complete"
}

# further NAME SEED BASE EPOCHS CONFIG KEYS...: the further epochs of a variant
further() {
    local name=$1 seed=$2 base=$3 epochs=$4 config=$5 teacher=""
    shift 5
    [ "$TEACHER" = no ] || teacher="distill.teacher=$base distill.weight=0.7"
    # shellcheck disable=SC2086
    train "$name" "$config" --epochs "$epochs" train.seed="$seed" optim.lr=0.05 $teacher "$@" ${MORE_SETTINGS:-}
}

# keys_of VARIANT: the keys of the masks of a variant
keys_of() {
    case $1 in
        weights-*) echo "prune.pattern=unstructured prune.sparsity=0.${1#*-}" ;;
        2:4) echo "prune.pattern=2:4 prune.sparsity=0.5" ;;
        blocks-*) echo "prune.pattern=block prune.block=${1#*-} prune.sparsity=0.8" ;;
    esac
}

# prune_channels VARIANT RUN OUT KEYS...: channels-X has X times fewer multiply-adds, channels-XmN too, with multiples of N channels; speedup-X takes
# 1/X of the time of a batch of 1000
prune_channels() {
    local kind=${1%%-*} value=${1#*-} run=$2 out=$3 target multiple=""
    shift 3
    [ ! -f "$out/last/config.ini" ] || return 0
    [ "$kind" = channels ] && target="--flops ${value%m*} ${PRUNE:-}" || target="--batch 1000 --speedup ${value%m*}"
    [ "${value%m*}" = "$value" ] || multiple="--multiple ${value#*m}"
    rm -rf "$out"
    # shellcheck disable=SC2086
    timeout $(($(left) + RESERVE_S)) "$CRESNET" prune "$run" --pattern channels $target $multiple "$@" -o "$out"
}

# channels NAME VARIANT SEED BASE: pruning, further epochs. Networks with fewer multiply-adds are trained in the shape of the dense
# network, with channels that are 0: the kernels for CIFAR networks need multiples of 8 channels, and --multiple is 1 here. Then these channels are removed.
channels() {
    local name=$1 kind=$2 seed=$3 base=$4 from=$4 small=$WORK/runs/$1-small wide=$1-wide log=$WORK/logs/$1.txt
    local config=$CONFIGS/cifar10-resnet56.ini
    if [ "${kind%%-*}" = speedup ]; then
        prune_channels "$kind" "$from" "$small" --recalibrate 16 >>"$log" 2>&1 || return
        further "$name" "$seed" "$base" "$MORE_EPOCHS" "$small/last/config.ini" model.weights="$small"
        return
    fi
    prune_channels "$kind" "$from" "$small" --recalibrate 16 --keep-shape >>"$log" 2>&1 || return
    further "$wide" "$seed" "$base" "$MORE_EPOCHS" "$config" model.weights="$small" || return
    prune_channels "$kind" "$WORK/runs/$wide/last" "$WORK/runs/$name" >>"$log" 2>&1 && touch "$WORK/runs/$name.complete"
}

# schedule_of VARIANT: the keys of the pruning schedule. AC/DC is for single weights only: other patterns are pruned gradually.
schedule_of() {
    case $SCHEDULE-$1 in
        acdc-weights-*) echo "prune.schedule=acdc prune.start=0 prune.end=$((MORE_EPOCHS * 3 / 4)) prune.sparse_epochs=10 prune.dense_epochs=10" ;;
        *) echo "prune.start=0 prune.end=$((MORE_EPOCHS / 3)) prune.frequency=100" ;;
    esac
}

# variant NAME VARIANT SEED BASE: prunes and trains, or only trains (control)
variant() {
    local name=$1 kind=$2 seed=$3 base=$4
    local config=$CONFIGS/cifar10-resnet56.ini
    case $kind in
        control) further "$name" "$seed" "$base" "$MORE_EPOCHS" "$config" model.weights="$base" ;;
        channels-* | speedup-*) channels "$name" "$kind" "$seed" "$base" ;;
        weights-* | 2:4 | blocks-*)
            # shellcheck disable=SC2046,SC2086
            further "$name" "$seed" "$base" "$MORE_EPOCHS" "$config" model.weights="$base" $(keys_of "$kind") $(schedule_of "$kind") ;;
        *) echo "unknown variant $kind" >&2; return 1 ;;
    esac
}

# evaluate NAME: correct answers of the last checkpoint, to results/NAME
evaluate() {
    local file=$WORK/results/$1
    timeout $(($(left) + RESERVE_S)) "$CRESNET" eval "$WORK/runs/$1" --last data.root="$CIFAR" --json -q 2>>"$WORK/logs/$1.txt" | field correct >"$file.part"
    [ -s "$file.part" ] && mv "$file.part" "$file"
}

# stage NAME FUNCTION ARGUMENTS...: one training and its evaluation, unless there is a result. Returns 1 when it is not complete.
stage() {
    local name=$1 code begin=$SECONDS
    shift
    [ ! -s "$WORK/results/$name" ] || return 0
    "$@" && evaluate "$name"
    code=$?
    if [ $code = 124 ] || { [ $code -ne 0 ] && [ "$(left)" -le 5 ]; }; then
        log "$name: continues in the next run"
        return 1
    elif [ $code -ne 0 ]; then
        log "$name: FAILED, exit code $code: $(tail -n 1 "$WORK/logs/$name.txt" 2>/dev/null | cut -c 1-300)"
        touch "$WORK/failed"
        return 1
    fi
    log "$name: $(cat "$WORK/results/$name") correct, $((SECONDS - begin)) s"
}

# dense SEED [NET]: a dense network; the results of ResNet-56 are dense-sSEED, those of other networks NET-sSEED
dense() {
    local net=${2:-resnet56} name
    name=$([ "$net" = resnet56 ] && echo "dense-s$1" || echo "$net-s$1")
    stage "$name" train "$name" "$CONFIGS/cifar10-resnet56.ini" model.arch="$net" --epochs "$EPOCHS" train.seed="$1"
}
pruned() { # VARIANT SEED
    local name
    name=$(result_name "$1" "$2")
    stage "$name" variant "$name" "$1" "$2" "$WORK/runs/dense-s$2/last"
}

# pruned_lines: "VARIANT SEED" of all seeds with a dense network, for run_all
pruned_lines() {
    local seed kind
    for kind in control $VARIANTS; do
        for seed in $SEEDS; do [ ! -f "$WORK/runs/dense-s$seed.complete" ] || echo "$kind $seed"; done
    done
}

# run_all FUNCTION "LINES OF ARGUMENTS": JOBS at a time
run_all() {
    local running=0 arguments
    while read -r arguments; do
        [ -n "$arguments" ] || continue
        [ $running -lt "$JOBS" ] || { wait -n; running=$((running - 1)); }
        # shellcheck disable=SC2086
        "$1" $arguments &
        running=$((running + 1))
    done <<<"$2"
    wait
}

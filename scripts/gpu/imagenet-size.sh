# imagenet-size.sh: parts of scripts/gpu-check.sh with real photos on all GPUs of a machine (scripts/gpu/many.sh). Sourced by parts.sh, after loading.sh.
#   packed     ResNet-50 from packed JPEGs, `--jpeg=256` and unchanged; the GPUs decode
#   imagenet   a dataset of ImageNet's size from files: 1,281,167 and 50,000 names in 1,000 classes, hard links to a few photos. Speed from files to
#              weights, memory of the host, evaluation, checkpoints; then a rank is killed, and the resumed run is compared with one that was stopped
#
#   CRESNET_JPEGS    folder of JPEG photos (.gpu/jpegs), some dozen to some thousand
#   IMAGENET_S       imagenet: seconds of the measured run (60); it needs about 100 s more
#   IMAGENET_NAMES   imagenet: numbers of names ("1281167 50000")

photo_files() { # WHAT
    [ -z "$(find "$CRESNET_JPEGS/" -iname '*.jp*g' 2>/dev/null | head -n 1)" ] || return 0
    row SKIP "$1" "no photos in $CRESNET_JPEGS"
    return 1
}
# The network and its options: ResNet-50 on GPUs, a small one on the CPU
photo_net() {
    if gpu; then echo configs/resnet50.ini train.precision=fp16; return; fi
    echo configs/cifar10-resnet20.ini data.crop=random_resized data.image_size=32 model.classes=10 train.batch=8 data.kind=folder
}
photo_classes() { if gpu; then echo 1000; else echo 10; fi; }
# bar_of_photos GPUS: the least images/s of the machine's GPUs
bar_of_photos() {
    case $1-$(gpu && nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) in 8-*H200*) echo 70000 ;; 8-*H100*) echo 62000 ;; esac
}

# An epoch has 50 steps on GPUs. Nothing is saved or evaluated at its end: those times are rows of part imagenet.
part_packed() {
    local n workers form name rate bar seconds all
    need_gpus 2 "packed JPEGs" && photo_files "packed JPEGs" || return
    n=$(most_gpus) all=$WORK/many-photos-$(most_gpus) workers=$(($(nproc) / $(most_gpus)))
    bar=$(bar_of_photos "$n")
    fits 60 "packed JPEGs" || return
    # shellcheck disable=SC2046
    link_photos "$all" $((n * $(gpu && echo 12800 || echo 100))) 1000 $(photo_classes) || { row FAIL "packed JPEGs" "no links"; return; }
    for form in --jpeg=256 ""; do
        name="packed ${form:-unchanged}, $n GPUs" seconds=$SECONDS
        fits 60 "$name" || continue
        # shellcheck disable=SC2046
        timeout -k 5 $((PART_LIMIT - SECONDS)) "$bin" data pack $(photo_net) "$all$form" data.root="$all" $form --force -j "$(nproc)" >&2
        seconds=$((SECONDS - seconds))
        fits 30 "$name" || continue
        # shellcheck disable=SC2046
        rate=$(LOADING_NET=$(photo_net) LOADING_STEPS=$(gpu && echo 280 || echo 8) rate_on_photos "packed$form" "$(nproc)" data.kind=packed data.root="$all$form" \
            train.save_every=1000000 data.workers=$((workers > 0 ? workers : 1)) $(gpu && echo data.decode="${PACKED_DECODE:-auto}") $(ranks_option "$n"))
        if [ -z "$bar" ] && [ "$rate" != 0 ]; then row INFO "$name" "$rate img/s, packed in $seconds s"; continue; fi
        holds "$rate >= ${bar:-1}"
        verdict $? "$name" "$rate img/s, bar ${bar:-none}, goal 85000; packed in $seconds s"
    done
}

# imagenet_run RUN WATCH... -- OPTIONS...: a training from the names in $data, watched; a row for each line of the watch. Returns its exit code.
imagenet_run() {
    local run=$WORK/imagenet/$1 watch=() code workers=$(($(nproc) / $(most_gpus)))
    shift
    while [ "$1" != -- ]; do watch+=("$1"); shift; done
    shift
    # shellcheck disable=SC2046
    timeout -k 5 $((PART_LIMIT - SECONDS > 5 ? PART_LIMIT - SECONDS : 5)) python3 scripts/gpu/watch_run.py "$run" "${watch[@]}" -- "$bin" train $(photo_net) "$(device_option)" data.root="$data" \
        data.workers=$((workers > 0 ? workers : 1)) -o "$run" $(ranks_option "$(most_gpus)") "$@" >"$run.rows"
    code=$?
    cat "$run.rows"
    return $code
}

part_imagenet() {
    local n names data what numbers code start=$SECONDS
    n=$(most_gpus) names=${IMAGENET_NAMES:-1281167 50000}
    data=$WORK/imagenet/names-${names% *}
    need_gpus 2 "ImageNet's size" && photo_files "ImageNet's size" && fits 90 "ImageNet's size" || return
    rm -rf "$WORK"/imagenet/run*
    # shellcheck disable=SC2046,SC2086
    link_photos "$data" $names $(photo_classes) >"$WORK/imagenet.txt" || { row FAIL "ImageNet's size" "no links"; return; }
    row INFO "ImageNet's size, names" "$(cat "$WORK/imagenet.txt"), $((SECONDS - start)) s"
    # shellcheck disable=SC2046
    imagenet_run run --seconds "${IMAGENET_S:-60}" -- train.log_every="$(gpu && echo 25 || echo 2)" $(gpu || echo --steps 60)
    code=$?
    while IFS='|' read -r what numbers; do row INFO "ImageNet's size, $what" "$numbers"; done <"$WORK/imagenet/run.rows"
    [ $code -eq 0 ] || row FAIL "ImageNet's size, $n GPUs" "exit code $code"
    row INFO "ImageNet's size, MLPerf" "57,100 img/s on 8 H100, 63,600 on 8 H200"
    fits 90 "a rank killed, resumed" || return
    kill_and_resume
}

# A rank is killed behind the second of two checkpoints. The resumed run and one that was stopped at this checkpoint (train.steps) and resumed have the
# same weights and training state 20 steps later, and the two runs have the same checkpoint before.
kill_and_resume() {
    local at same end every
    every=$(gpu && echo 40 || echo 4)
    end=$((every * 3))
    set -- train.save_every="$every" train.keep=10 train.eval_every=0 train.log_every=1
    imagenet_run run-killed --kill-at-step $((every * 2 + every / 2)) -- --steps $end "$@"
    verdict $? "ImageNet's size, a rank killed" "$(cut -d'|' -f2 "$WORK/imagenet/run-killed.rows")"
    at=$(basename "$(readlink "$WORK/imagenet/run-killed/last")" | tr -dc 0-9)
    is_number "$at" || { row FAIL "a rank killed, resumed" "no checkpoint"; return; }
    imagenet_run run-stopped -- --steps "$at" "$@"
    same=$(scripts/compare_checkpoints.py checkpoints "$WORK"/imagenet/run-{killed,stopped}/"$(readlink "$WORK/imagenet/run-killed/last")")
    verdict $? "killed and stopped run, step $at" "$same"
    same="a run failed"
    imagenet_run run-killed -- --resume auto --steps $end "$@" && imagenet_run run-stopped -- --resume auto --steps $end "$@" &&
        same=$(scripts/compare_checkpoints.py checkpoints "$WORK"/imagenet/run-{killed,stopped}/"step-$end")
    verdict $? "a rank killed, resumed" "step $at to $end: $same"
}

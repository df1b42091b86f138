#!/usr/bin/env bash
# gram-bn.sh [BUILD]: verifies and measures train.gram_bn on a GPU of compute capability 8.0 or later, in less than nine
# minutes. BUILD (default build-gram) is built when it is missing. Parts, each with a time limit:
#   1. test_checkops on the kernels of cuda/conv/gram and on the convolution gradient that only masks
#   2. cresnet check: every op of a rewritten training step against FP64, op by op, fp16 and bf16
#   3. the losses of 40 steps of a bottleneck network, with and without
#   4. ResNet-50, batch 256, fp16: images/s and memory with no, all and auto, and the profile of both programs
# PARTS="1 2" runs only some parts. Prints one line per result that begins with ok, FAIL or a number.
set -u
[ "${1:-}" != --help ] || { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build-gram}
parts=${PARTS:-1 2 3 4}
begin=$SECONDS
failed=0
say() { printf '%4d s  %s\n' $((SECONDS - begin)) "$*"; }
wants() { case " $parts " in *" $1 "*) true ;; *) false ;; esac; }

if [ ! -x "$build/cresnet" ] || [ ! -x "$build/tests/test_checkops" ]; then
    say "building $build"
    { cmake -G Ninja -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=native &&
        ninja -C "$build" cresnet test_checkops; } >"${TMPDIR:-/tmp}/gram-build.log" 2>&1 ||
        { tail -5 "${TMPDIR:-/tmp}/gram-build.log"; say "FAIL build"; exit 1; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cresnet=$build/cresnet

if wants 1; then
    for kernels in cuda.gram_wgmma cuda.point_gram cuda.gram.gram cuda.gram.wgrad cuda.gram.finalize cuda.gram.grad cuda.gram.sums cuda.gram.finish; do
        timeout 60 "$build/tests/test_checkops" --device cuda --algos --seconds 25 "$kernels" >"$work/ops" 2>&1 || failed=1
        grep -E "^(ok|FAIL|none| )" "$work/ops" | cut -c1-200
    done
    say "checkops done"
fi

net="model.arch=custom model.block=bottleneck model.stem=imagenet model.depths=2,2 model.widths=64,128 model.classes=10"
net="$net data.kind=synthetic data.image_size=64 train.device=cuda"
if wants 2; then
    for precision in fp16 bf16; do
        # shellcheck disable=SC2086
        if timeout 60 "$cresnet" check "$root/configs/demo.ini" $net -b 4 --devices cuda train.precision=$precision \
            train.gram_bn=all >"$work/check" 2>&1; then
            say "ok check $precision: $(tail -1 "$work/check")"
        else
            failed=1
            say "FAIL check $precision: $(tail -2 "$work/check" | tr '\n' ' ')"
        fi
    done
fi

if wants 3; then
    for mode in no all; do
        # shellcheck disable=SC2086
        timeout 60 "$cresnet" train "$root/configs/demo.ini" $net data.kind=shapes train.batch=64 train.steps=40 \
            train.precision=fp16 train.log_every=1 train.gram_bn=$mode train.output="$work/run-$mode" \
            >"$work/train-$mode" 2>&1 || { failed=1; say "FAIL train $mode: $(tail -1 "$work/train-$mode")"; }
        grep -h "no effect" "$work/train-$mode" && failed=1
        losses=$(grep -o '"loss": *[0-9.e+-]*' "$work/run-$mode/log.jsonl" 2>/dev/null | sed 's/.*: *//' |
            awk 'NR % 8 == 1' | tr '\n' ' ')
        say "losses with gram_bn=$mode: $losses"
    done
fi

if wants 4; then
    bench="$root/configs/resnet50.ini data.kind=synthetic train.precision=fp16 train.batch=256 train.device=cuda"
    for mode in no all auto no; do
        # shellcheck disable=SC2086
        line=$(timeout 110 "$cresnet" bench step $bench train.gram_bn=$mode --steps 40 --json -q 2>"$work/warn")
        rate=$(echo "$line" | sed -n 's/.*"images_per_s": *\([0-9.]*\).*/\1/p')
        memory=$(echo "$line" | sed -n 's/.*"device_mib": *\([0-9.]*\).*/\1/p')
        say "${rate:-FAIL} images/s, ${memory:-?} MiB with gram_bn=$mode $(grep -h "no effect" "$work/warn")"
        [ -n "$rate" ] || { failed=1; tail -2 "$work/warn"; }
    done
    for mode in no all; do
        # shellcheck disable=SC2086
        timeout 60 "$cresnet" profile $bench train.gram_bn=$mode >"$work/profile-$mode" 2>&1
        say "profile with gram_bn=$mode, ops of the second blocks of stages 1 to 3:"
        grep -E "layer[123]\.1\." "$work/profile-$mode" | head -70 | cut -c1-160
        [ -z "${OUT:-}" ] || cp "$work/profile-$mode" "$OUT/"
    done
fi
if [ $failed = 0 ]; then say "all parts passed"; else say "FAIL: see above"; fi
exit $failed

#!/usr/bin/env bash
# sanitize-gpu.sh: runs a tiny training (three steps, an evaluation, a checkpoint) under NVIDIA's compute-sanitizer: memcheck (accesses
# out of bounds, leaked device memory), racecheck (shared memory), initcheck (reads of uninitialised device memory). Two networks cover
# every op of the configurations in configs/: basic blocks with option A, and bottlenecks with the ImageNet stem.
# memcheck and initcheck also see the kernels that the training measures and does not choose. Measuring under racecheck takes many minutes, so
# these runs get kernel times that the same training has measured without a sanitizer. Runs beside each other would be far slower: four runs of
# racecheck at once did not end in 280 s, one takes 8 to 12 s.
# Prints one line per run, PASS or FAIL, and the findings by kernel. Exit code 0: no findings.
#   CRESNET_BIN   the program (build/cresnet)     TOOLS       (memcheck racecheck initcheck)
#   PRECISIONS    (fp32 fp16)                     SANITIZER   path of compute-sanitizer
#   RUN_LIMIT_S   time limit of a run, s (150)    MORE        more values of the configuration
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${CRESNET_BIN:-$root/build/cresnet}
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
[ -x "$bin" ] || { echo "FAIL sanitize - $bin does not exist"; exit 1; }
[ -x "$sanitizer" ] || { echo "FAIL sanitize - compute-sanitizer was not found: install the CUDA toolkit, or set SANITIZER"; exit 1; }
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000} # otherwise the program sets it and executes itself again
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

common='
[model]
arch = custom
classes = 10
depths = 1,1
widths = 16,32
%s
[data]
kind = synthetic
train_images = 32
val_images = 8
workers = 1
%s
[train]
device = cuda
batch = 8
epochs = 1
steps = 3
log_every = 1
'
# shellcheck disable=SC2059
{
    printf "$common" $'block = basic\nstem = cifar\nshortcut = A' $'image_size = 16\ncrop = pad' >"$work/basic.ini"
    printf "$common" $'block = bottleneck\nstem = imagenet\nshortcut = B' 'image_size = 32' >"$work/bottleneck.ini"
}

one() { # TOOL NET PRECISION
    local tool=$1 name=$2 precision=$3 out=$work/$1-$2-$3 options="" start=$SECONDS code findings
    export CRESNET_CACHE=$out.cache
    [ "$tool" != memcheck ] || options="--leak-check full"
    # shellcheck disable=SC2086
    [ "$tool" != racecheck ] || timeout "${RUN_LIMIT_S:-150}" "$bin" train "$work/$name.ini" "train.precision=$precision" ${MORE:-} \
        -o "$out.times" >"$out.txt" 2>&1 </dev/null ||
        { echo "FAIL $tool $name-$precision: the run fails without a sanitizer: $(tail -n 1 "$out.txt")" | tee "$out.result"; return; }
    # shellcheck disable=SC2086
    timeout -k 5 "${RUN_LIMIT_S:-150}" "$sanitizer" --tool "$tool" $options --error-exitcode 9 --print-limit 40 "$bin" train "$work/$name.ini" \
        "train.precision=$precision" ${MORE:-} -o "$out.run" >"$out.txt" 2>&1 </dev/null
    code=$?
    findings=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY' "$out.txt" | sed 's/^=* *//' | tr '\n' ';')
    {
        if [ $code -eq 0 ] && grep -q 'SUMMARY: 0 ' "$out.txt"; then echo "PASS $tool $name-$precision $findings $((SECONDS - start)) s"
        else
            echo "FAIL $tool $name-$precision exit $code; ${findings:-no summary} $((SECONDS - start)) s"
            # kinds of findings and their kernels, with counts
            grep -E '^=+ +(Invalid|Uninitialized|Error|Warning|Leaked|Program hit|Race|.*hazard)|^=+ +at ' "$out.txt" | sed 's/^=* *//; s/+0x[0-9a-f]*//; s/0x[0-9a-f]*//g; s/thread (.*//' |
                sort | uniq -c | sort -rn | head -25
            grep -vE '^=+' "$out.txt" | tail -n 3
        fi
    } | tee "$out.result"
}

if ! "$bin" train "$work/basic.ini" ${MORE:-} -o "$work/probe" >/dev/null 2>"$work/probe.txt"; then
    echo "FAIL sanitize - the run fails even without a sanitizer: $(tail -n 1 "$work/probe.txt")"
    exit 1
fi
for tool in ${TOOLS:-memcheck racecheck initcheck}; do
    for precision in ${PRECISIONS:-fp32 fp16}; do
        for name in basic bottleneck; do one "$tool" "$name" "$precision"; done
    done
done
! grep -q '^FAIL' "$work"/*.result

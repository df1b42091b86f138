#!/usr/bin/env bash
# test_limits.sh: limits on threads and stack, early signals, signals to one of several ranks, and values that are not finite. Every
# command ends in time with one clear message. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"

{ tiny_model; synthetic_data; cat; } >net.ini <<'INI'
[train]
batch = 8
epochs = 1
steps = 2
save_every = 2
device = cpu
INI
train() { timeout 600 "$bin" train net.ini "$@"; }

# ---- threads ----

# oneDNN's kernels wait for every requested thread: they must request as many as OpenMP grants.
for limit in OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true OMP_MAX_ACTIVE_LEVELS=0 OMP_NUM_THREADS=100000; do
    said=$(env OMP_NUM_THREADS=2 "$limit" bash -c 'timeout 600 "$@"' - "$bin" train net.ini -o "$work/limit" 2>&1)
    is "$limit: exit code of $said" $? 0
    rm -rf limit
done
if "$bin" --version | grep -q 'OpenMP'; then
    said=$(OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2 train -o "$work/limit" 2>&1)
    has "the number of threads is said" "$said" "1 thread instead of 2"
    rm -rf limit
fi

# ---- stack ----

said=$(ulimit -s 32; train -o "$work/stack" 2>&1)
is "a stack of 32 KiB: exit code" $? 1
is "a stack of 32 KiB: message" "$said" "cresnet: the limit of the stack is below 1 MiB; please set it to 8 MiB: ulimit -s 8192"
said=$(ulimit -S -s 64; train -o "$work/stack" 2>&1)
is "a soft limit is raised: exit code of $said" $? 0

# ---- signals ----

# As soon as the program itself runs, SIGUSR1 is blocked or handled.
"$bin" train net.ini -o "$work/early" train.epochs=100 train.steps=200 train.save_every=100000 train.eval_every=0 >early.txt 2>&1 &
pid=$!
until [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$bin")" ] &&
    awk '/^Sig(Blk|Cgt)/ { print $2 }' "/proc/$pid/status" | grep -q '[2367abef]..$'; do
    kill -0 $pid 2>/dev/null || break
done
kill -USR1 $pid
wait $pid
is "an early SIGUSR1: exit code" $? 0
is "an early SIGUSR1 saves once more than at the end" "$(grep -c "^saved step" early.txt)" 2

# Rank 0 alone is interrupted, during an evaluation.
images=20000
[ -z "${CRESNET_SANITIZE:-}" ] || images=2000
"$bin" train net.ini -o "$work/ranks" --ranks 2 train.steps=100000 train.epochs=100000 train.save_every=1000000 \
    train.eval_every=1 data.val_images=$images >ranks.txt 2>&1 &
pid=$!
await $pid grep 'saved step' ranks.txt
kill -INT "$(pgrep -P $pid | head -1)"
wait $pid
is "SIGINT to rank 0 of 2: exit code" $? 130

# ---- values that are not finite ----

weights_file fill early/last/model.safetensors nan.safetensors conv1.weight nan 1
cp -a early damaged
weights_file drop-sums damaged/step-*
for step in damaged/step-*; do cp nan.safetensors "$step/model.safetensors"; done
for command in "eval net.ini --weights nan.safetensors" "eval damaged" "prune damaged --sparsity 0.5 -o pruned"; do
    # shellcheck disable=SC2086
    said=$("$bin" $command 2>&1)
    is "NaN weights, $command: exit code of $said" $? 1
    has "NaN weights, $command: names the tensor" "$said" "conv1.weight has NaN or infinite values"
done
python_tools -c 'import png; png.write("a.png", 16, 16, lambda x, y: (40 * y % 256, 9, 200))'
ends "NaN weights, predict" 1 "$bin" predict net.ini --weights nan.safetensors a.png
case $said in *%*) fail "NaN weights, predict prints a probability: $said" ;; *) pass ;; esac

# Finite weights whose outputs overflow.
weights_file fill early/last/model.safetensors huge.safetensors fc.weight 3e38
ends "outputs overflow, eval" 1 "$bin" eval net.ini --weights huge.safetensors
has "outputs overflow, eval: message" "$said" "not finite"
ends "outputs overflow, predict" 1 "$bin" predict net.ini --weights huge.safetensors a.png --json
has "outputs overflow, predict: message" "$said" "not finite"

sum_up

#!/usr/bin/env bash
# test_resources.sh: what the program does within the limits of a machine: memory and CPU quota of a control group, affinity, few threads.
# A limit changes the number of threads, the plan, or ends the command with one error; nothing is killed. Ends with
# "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"
there python3 || { skip "no python3"; sum_up 77; }
unset OMP_NUM_THREADS
within() { timeout 600 python3 -B "$source_dir/tests/tools/control_group.py" "$@"; }

{ tiny_model; synthetic_data | sed 's/^workers.*/workers = 4/'; cat; } >net.ini <<'INI'
[train]
batch = 8
epochs = 1
steps = 4
save_every = 4
device = cpu
INI
"$bin" train net.ini -o "$work/good" --threads 1 -q 2>first.txt || fail "a run without limits: $(cat first.txt)"

# ---- memory ----

# Without a limit the plan of this network needs 377 MiB.
large=(configs/cifar10-resnet20.ini data.kind=synthetic data.root= data.train_images=512 data.val_images=256 -b 256 train.epochs=1 --steps 1 --threads 1 --device cpu)
large[0]=$source_dir/${large[0]}
if [ -n "${CRESNET_SANITIZE:-}" ]; then skip "memory of a control group: a sanitizer needs more than the plan"
elif within memory 64 true; [ $? = 77 ]; then skip "memory of a control group: this user may not make one"
else
    ends "without a group" 0 "$bin" train "${large[@]}" -o "$work/free"
    is "without a group nothing is recomputed" "$(grep -c recomputed <<<"$said")" 0
    ends "380 MiB" 0 within memory 380 "$bin" train "${large[@]}" -o "$work/fitted"
    has "380 MiB: the run fits itself" "$said" "ops recomputed"
    holds "380 MiB: bitwise the same weights" cmp free/last/model.safetensors fitted/last/model.safetensors
    for command in "train -o $work/none" "bench step" "profile"; do
        # shellcheck disable=SC2086
        ends "150 MiB, $command" 1 within memory 150 "$bin" $command "${large[@]}"
        has "150 MiB, $command: the plan's error" "$said" "out of memory on cpu: the network needs"
    done
    ends "100 MiB, eval" 1 within memory 100 "$bin" eval "$work/free/last" train.eval_batch=4096
    has "100 MiB, eval: the plan's error" "$said" "out of memory on cpu: the network needs"
    # two runs at once divide the memory: each fits itself into its half
    ends "sweep" 0 within memory 760 "$bin" sweep "${large[@]}" train.seed=1,2 --jobs 2 -o "$work/S"
    is "sweep: both runs fit themselves" "$(grep -lc recomputed S/*.txt | wc -l)" 2
    # scores that need the outputs of all images at once: 2000 x 20000 floats
    many=(net.ini model.widths=4,4 model.classes=20000 data.val_images=2000 data.workers=1 train.eval_batch=8 --threads 1)
    ends "many classes: train" 0 "$bin" train "${many[@]}" --steps 1 -o "$work/many"
    ends "many classes, 150 MiB, eval" 0 within memory 150 "$bin" eval many
    ends "many classes, 150 MiB, --temperature" 1 within memory 150 "$bin" eval many --temperature
    has "many classes, 150 MiB, --temperature: the reason" "$said" "the outputs of 2000 images for 20000 classes take 153 MiB"
    python_tools - <<'PY'
import os
import png
os.mkdir("labels")
png.write("labels/0.png", 16, 16, lambda x, y: (0,))
for i in range(1, 2000): os.link("labels/0.png", f"labels/{i}.png")
with open("labels/train.csv", "w") as train, open("labels/val.csv", "w") as val:
    for i in range(50): train.write(f"{i}.png," + ";".join(f"c{1000 * i + k}" for k in range(1000)) + "\n")
    for i in range(2000): val.write(f"{i}.png,c{i}\n")
PY
    several=(net.ini model.widths=4,4 data.kind=csv data.root=labels data.multi_label=yes data.train_images=0 data.val_images=0 data.workers=1)
    several+=(train.eval_batch=8 --threads 1 --steps 1)
    ends "many labels, 350 MiB: train" 1 within memory 350 "$bin" train "${several[@]}" -o "$work/refused"
    has "many labels, 350 MiB: the reason" "$said" "the outputs of 2000 images for 50000 classes take 393 MiB"
    holds "many labels, 350 MiB: before the first step" [ ! -e refused/last ]
fi

# ---- cores ----

threads() { sed -n 's/^device *CPU, \([0-9]*\) thread.*/\1/p'; }
[ "$(nproc)" -ge 2 ] && "$bin" --version | grep -q OpenMP || { skip "one core, or no OpenMP"; sum_up; }
first=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
is "affinity: threads" "$(taskset -c "$first" "$bin" train net.ini -o "$work/one" 2>&1 | threads)" 1
has "affinity: runs at once" "$(taskset -c "$first" "$bin" sweep net.ini optim.lr=0.1,0.2 --threads 1 -o "$work/A" 2>&1)" "2 runs in $work/A, 1 at once"
if within cpu 1 true; [ $? = 77 ]; then skip "CPU quota: this user may not make a control group"
else
    is "a quota of one core: threads" "$(within cpu 1 "$bin" train net.ini -o "$work/quota" 2>&1 | threads)" 1
    is "a quota of 1.5 cores: threads" "$(within cpu 1.5 "$bin" train net.ini -o "$work/more" 2>&1 | threads)" 2
    is "OMP_NUM_THREADS within a quota" "$(OMP_NUM_THREADS=2 within cpu 1 "$bin" train net.ini -o "$work/said" 2>&1 | threads)" 2
    has "a quota of one core: runs at once" "$(within cpu 1 "$bin" sweep net.ini optim.lr=0.1,0.2 --threads 1 -o "$work/Q" 2>&1)" "1 at once"
fi

# ---- few threads ----

cat >few.py <<'PY'
import os, resource, sys
limit = int(sys.argv[1])
os.setgroups([])
os.setuid((1 << 21) + os.getpid())  # a user without other processes: root has no limit
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
os.execv(sys.argv[2], sys.argv[2:])
PY
python_tools -c 'import png; png.write("a.png", 16, 16, lambda x, y: (40 * y % 256, 9, 200))'
if [ "$(id -u)" = 0 ] && chmod -R a+rX "$work" && mkdir -m 777 other && python3 few.py 4 /bin/true; then
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # this check starts a process of its own, which the limit refuses
    for limit in 1 2 3 4 5 6 7 8 9 10 11 12; do
        for command in "train net.ini -o $work/other/$limit" "eval good" "predict good a.png"; do
            [ "$limit $command" != "1 predict good a.png" ] || continue
            # shellcheck disable=SC2086
            ends "$limit threads, $command" 0 timeout 600 python3 few.py $limit "$bin" $command --threads 4
            [ "$limit $command" != "2 eval good" ] || has "2 threads: message" "$said" "threads instead of 4: the system starts no more"
        done
    done
    # the library behind predict has a thread for each model
    ends "1 thread, predict" 1 timeout 600 python3 few.py 1 "$bin" predict good a.png
    has "1 thread, predict" "$said" "cannot start a thread"
else skip "limits on processes: only root can become another user"; fi
sum_up

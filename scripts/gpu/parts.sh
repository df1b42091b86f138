# parts.sh: the parts of gpu-check.sh, which sources this file. The standard output of a part is its log. A part reports results with
# `row`. The helper functions come first.

bin=$BUILD/cresnet
tool=$BUILD/tests/steps_tool
gpu() { [ "$DEVICE" = cuda ]; }
precisions() { if gpu; then echo "fp32 tf32 fp16 bf16"; else echo fp32; fi; }
device_option() { echo "train.device=$DEVICE"; }

# row PASS|FAIL|INFO|SKIP WHAT NUMBERS
row() {
    printf '%-4s %-10s %-34s %s\n' "$1" "$PART" "$2" "$3" | tee -a "$ROWS"
}
# verdict CODE WHAT NUMBERS
verdict() { if [ "$1" -eq 0 ]; then row PASS "$2" "$3"; else row FAIL "$2" "$3"; fi; }
# test_verdict CODE WHAT NUMBERS: exit code 77 of a test program means that all its cases were skipped.
test_verdict() { if [ "$1" -eq 77 ]; then row SKIP "$2" "$3"; else verdict "$@"; fi; }
# pass_or_fail WHAT LINE: a row from a line that ends with PASS or FAIL.
pass_or_fail() { case $2 in *PASS) row PASS "$1" "${2%: PASS}" ;; *) row FAIL "$1" "${2:-no result}" ;; esac; }
# The value of a key in JSON lines on standard input.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([-+0-9.eE]*\).*/\1/p" | tail -n 1; }
# holds "X <= Y": compares real numbers; calc FORMAT EXPRESSION: prints a value
holds() { awk "BEGIN { exit !($1) }" </dev/null; }
calc() { awk "BEGIN { printf \"$1\", $2 }" </dev/null; }
is_number() { [[ ${1:-} =~ ^[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]]; }

# The first Python that can import torch.
python_with_torch() {
    local p
    for p in "${PYTHON:-}" python3 /usr/bin/python3; do
        [ -n "$p" ] && "$p" -c 'import torch' 2>/dev/null && { echo "$p"; return; }
    done
    return 1
}

# ---- build ----

part_build() {
    local options="-DCMAKE_BUILD_TYPE=Release -DCRESNET_WITH_ONEDNN=AUTO" build_log=$WORK/build-output.txt start=$SECONDS warnings code version
    [ ! -d "$CRESNET_DEPS" ] || options="$options -DCMAKE_PREFIX_PATH=$root/$CRESNET_DEPS/usr"
    if gpu; then options="$options -DCRESNET_WITH_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$CUDA_ARCHS"; else options="$options -DCRESNET_WITH_CUDA=OFF"; fi
    # cuDNN may exist only as a wheel that PyTorch depends on.
    [ -n "${VIRTUAL_ENV:-}" ] || export VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null
    # shellcheck disable=SC2086
    cmake -G Ninja -S "$root" -B "$BUILD" $options || { row FAIL configure "see logs.txt"; return 1; }
    cmake --build "$BUILD" -- -k 0 >"$build_log" 2>&1
    code=$?
    cat "$build_log"
    warnings=$(grep -cE 'warning[ :#]' "$build_log")
    version=$("$bin" --version 2>&1 | sed -n 's/^CUDA  *//p')
    [ "$warnings" -eq 0 ] || code=1
    verdict $code "Release, no warnings" "$warnings warnings, $((SECONDS - start)) s, CUDA $version"
    "$bin" --version
    row INFO device "$("$bin" --version 2>/dev/null | sed -n "s/^device $DEVICE  *//p")"
}

# ---- kernels and programs against the reference ----

# kernels_of FILE PATTERN: the kernels in the lines of test_checkops that match, sorted: "ok cuda NAME ...", "skip cuda NAME needs ..."
kernels_of() { grep -E "$2" "$1" | awk '{ print $3 }' | sort -u; }
# kernels_only FILE PATTERN: those of them that no shard has run
kernels_only() { comm -23 <(kernels_of "$1" "$2") <(kernels_of "$1" '^(ok|FAIL)') | tr '\n' ' '; }

# only_elsewhere KERNEL...: those of them that are for GPUs of other compute capabilities. One that no case has reached although this GPU
# accepts a case, or that no GPU accepts, is not among them.
only_elsewhere() {
    [ $# -gt 0 ] || return 0
    "$BUILD/tests/test_checkops" --unreached "$(grep -m 1 'compute capability [0-9.]*' "$WORK/ops.txt")" "$@" >"$WORK/unreached.txt" 2>&1
    cat "$WORK/unreached.txt" >&2
    awk '$1 == "skip" && / only for GPUs of other capabilities: [0-9]/ { print $3 }' "$WORK/unreached.txt" | sort
}

# Runs test_checkops in several processes, one per shard of the cases, so that all cores compute references. A kernel passes when no
# shard reports a failure of it and at least one shard has run it. A kernel that needs several ranks or another GPU is skipped.
part_ops() {
    local filter="${OPS:-}" shards=$(($(nproc) > 15 ? 8 : 1)) i bad good unreached elsewhere skipped cut
    gpu || filter=cpu.sgd
    rm -f "$WORK"/ops.*.txt
    for ((i = 0; i < shards; i++)); do
        # shellcheck disable=SC2086
        CHECKOPS_ALL=1 OMP_NUM_THREADS=$((($(nproc) + shards - 1) / shards)) timeout $((PART_LIMIT - 3)) "$BUILD/tests/test_checkops" --device "$DEVICE" --shard $i/$shards \
            --seconds $((PART_LIMIT - 25)) ${OPS_OPTIONS:-} $filter >"$WORK/ops.$i.txt" 2>&1 &
    done
    wait
    cat "$WORK"/ops.*.txt >"$WORK/ops.txt"
    bad=$(kernels_of "$WORK/ops.txt" '^FAIL')
    good=$(kernels_of "$WORK/ops.txt" '^ok' | wc -l)
    unreached=$(kernels_only "$WORK/ops.txt" '^none')
    # shellcheck disable=SC2086
    elsewhere=$(only_elsewhere $unreached)
    unreached=$(comm -23 <(printf '%s\n' $unreached | sort) <(echo "$elsewhere") | tr '\n' ' ' | sed 's/^ *//')
    skipped=$(kernels_only "$WORK/ops.txt" '^skip .* needs several ranks')
    cut=$(grep -c 'time limit reached' "$WORK/ops.txt")
    sort "$WORK/ops.txt" | grep '^     [a-z]' | awk '{ print $1 }' | uniq -c
    [ "$good" -gt 0 ] && [ -z "$bad" ] && [ -z "$unreached" ] && [ "$cut" -eq 0 ]
    verdict $? "checkops, every kernel" "$good kernels passed, $(sed -n 's/^[a-z]*: \([0-9]*\) cases.*/\1/p' "$WORK/ops.txt" | awk '{ n += $1 } END { print n + 0 }') cases in $shards shards, $cut incomplete; not reached: ${unreached:-none}; failed: $(echo $bad)"
    [ -z "$skipped" ] || row SKIP "checkops, several ranks" "${skipped% }: needs several ranks"
    [ -z "$elsewhere" ] || row SKIP "checkops, other capabilities" "$(echo $elsewhere): only for GPUs of other compute capabilities"
}

part_tests() {
    local name code sums
    for name in $(cd "$BUILD/tests" && ls -d test_cuda_* test_cudnn_* test_golden_train 2>/dev/null | grep -v '\.'); do
        timeout 150 "$BUILD/tests/$name" >"$WORK/test.txt" 2>&1
        code=$?
        cat "$WORK/test.txt"
        sums=$(grep -E '^[0-9]+ passed' "$WORK/test.txt" | tail -n 1)
        grep -E '^FAIL|^    .*: ' "$WORK/test.txt" | head -4 | sed "s/^/$name: /"
        test_verdict $code "$name" "${sums:-exit code $code}"
    done
    [ ! -e "$BUILD/libcresnet.so" ] || tensors_of_torch
}

# Images and logits in the memory of PyTorch: addresses, values, order of streams.
tensors_of_torch() {
    local python code
    python=$(python_with_torch) || { row SKIP test_dlpack "no PyTorch"; return; }
    CRESNET_BIN=$BUILD/cresnet timeout 150 "$python" -B python/tests/test_dlpack.py >"$WORK/test.txt" 2>&1
    code=$?
    cat "$WORK/test.txt"
    test_verdict $code test_dlpack "$(grep -E '^[0-9]+ passed' "$WORK/test.txt" | tail -n 1)"
}

check_one() { # CONFIG PRECISION [COMMAND that runs it]
    local config=$1 precision=$2 out=$WORK/check-$1-$2.txt code worst
    timeout $((PART_LIMIT - 5)) $3 "$bin" check "configs/$config.ini" --devices "$DEVICE" "train.precision=$precision" --json -q >"$out" 2>&1
    code=$?
    worst=$(field worst <"$out")
    [ $code -eq 0 ] || worst="exit $code"
    echo "$config $precision $code ${worst:-?}" >>"$WORK/check-results.txt"
}

part_check() {
    local config precision numbers code c w on running=0 started=0
    rm -f "$WORK"/check-*.txt "$WORK/check-results.txt"
    for config in $(cd configs && ls ./*.ini | sed 's/.*\///; s/\.ini//'); do
        for precision in $(precisions); do
            on="" # three cores each: the reference uses all cores that it sees
            [ "$(nproc)" -lt 15 ] || on="taskset -c $((started % 5 * 3))-$((started % 5 * 3 + 2))"
            check_one "$config" "$precision" "$on" &
            running=$((running + 1)) started=$((started + 1))
            [ $running -lt "${CHECK_JOBS:-5}" ] || { wait -n; running=$((running - 1)); }
        done
    done
    wait
    for config in $(cd configs && ls ./*.ini | sed 's/.*\///; s/\.ini//'); do
        numbers="" code=0
        for precision in $(precisions); do
            read -r c w < <(awk -v c="$config" -v p="$precision" '$1 == c && $2 == p { print $3, $4 }' "$WORK/check-results.txt")
            numbers="$numbers $precision ${w:-no result}"
            [ "${c:-1}" = 0 ] || { code=1; echo "== $config $precision"; tail -n 3 "$WORK/check-$config-$precision.txt" | cut -c 1-400; }
        done
        verdict $code "cresnet check $config" "largest error, as a fraction of its bound:$numbers"
    done
}

# ---- a resumed run is bitwise identical ----

resume_one() { # NAME CONFIG VALUES...
    local name=$1 config=$2 d=$WORK/resume-$1 code=0
    shift 2
    rm -rf "$d"
    mkdir -p "$d"
    set -- "$config" "$(device_option)" data.kind=synthetic data.val_images=256 train.eval_every=0 train.deterministic=yes train.log_every=10 "$@"
    "$bin" train "$@" --steps 20 -o "$d/whole" && "$bin" train "$@" --steps 10 -o "$d/parts" &&
        "$bin" train "$@" --steps 20 -o "$d/parts" --resume auto || code=1
    [ $code -ne 0 ] || cmp "$d/whole/last/model.safetensors" "$d/parts/last/model.safetensors" || code=1
    [ $code -ne 0 ] || cmp "$d/whole/last/state.safetensors" "$d/parts/last/state.safetensors" || code=1
    verdict $code "resume $name" "20 steps and 10 + 10: weights and state compared by cmp"
    rm -rf "$d"
}

part_resume() {
    local p
    for p in $(precisions); do
        resume_one "resnet20-$p" configs/cifar10-resnet20.ini train.precision="$p" data.train_images=1280 -b 64
    done
    ! gpu || resume_one resnet50-fp16 configs/resnet50.ini train.precision=fp16 optim.lr=0.01 data.image_size=96 data.eval_crop=96 data.train_images=1280 -b 64
}

# ---- published weights ----

# find_cifar FILE: unpacks CIFAR-10's files from the folders of CRESNET_CIFAR into $WORK/cifar10. Returns 0 if FILE exists there.
find_cifar() {
    local d f name
    mkdir -p "$WORK/cifar10"
    for d in $CRESNET_CIFAR; do
        for f in "$d"/*.bin "$d"/*.bin.xz; do
            [ -f "$f" ] || continue
            name=$(basename "${f%.xz}")
            [ -s "$WORK/cifar10/$name" ] && continue
            case $f in
                *.xz) { xz -dc "$f" || python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$f"; } \
                    >"$WORK/cifar10/$name.part" 2>/dev/null && mv "$WORK/cifar10/$name.part" "$WORK/cifar10/$name" ;;
                *) cp "$f" "$WORK/cifar10/$name" ;;
            esac
        done
    done
    [ -s "$WORK/cifar10/$1" ]
}

part_eval() {
    local net want correct p off
    find_cifar test_batch.bin || { row SKIP "published weights" "no test_batch.bin in CRESNET_CIFAR ($CRESNET_CIFAR)"; return; }
    [ -f "$CRESNET_WEIGHTS/resnet20-cifar10.safetensors" ] || { row SKIP "published weights" "none in $CRESNET_WEIGHTS"; return; }
    for net in 20 32; do
        want=$([ $net = 20 ] && echo 9173 || echo 9263)
        for p in $(precisions); do
            correct=$("$bin" eval configs/cifar10-resnet20.ini "model.arch=resnet$net" --weights "$CRESNET_WEIGHTS/resnet$net-cifar10.safetensors" \
                data.root="$WORK/cifar10" train.precision="$p" "$(device_option)" -b 500 --json -q | tee -a /dev/stderr | field correct)
            [ "$p" = fp32 ] && off=0 || off=5
            holds "${correct:-0} - $want <= $off && $want - ${correct:-0} <= $off"
            verdict $? "resnet$net weights, $p" "${correct:-none} correct, expected $want within $off"
        done
    done
}

# ---- speed ----

part_init() {
    local code networks=""
    gpu || networks=configs/cifar10-resnet20.ini
    # shellcheck disable=SC2086
    timeout $((PART_LIMIT - 5)) "$BUILD/tools/cresnet-init-bench" $networks "$(device_option)" --json >"$FILES/init.json"
    code=$?
    cat "$FILES/init.json"
    [ $code -eq 0 ] || { row FAIL "init-bench" "exit code $code"; return; }
    python3 - "$FILES/init.json" <<'PY' >"$WORK/init-rows.txt"
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    direct, cores, thread = (r.get(k, {}).get("ms") for k in ("direct", "all_cores", "one_thread"))
    text = "direct %.3f ms (on the device %.3f, %d host bytes)" % (direct, r.get("device_ms", 0), r["direct"]["host_bytes"])
    ok = None
    if cores and thread:
        text += "; all cores %.1f ms, %.1fx; one thread %.1f ms, %.0fx" % (cores, cores / direct, thread, thread / direct)
        if "152" in r["network"]:
            ok = r["device_ms"] <= 1 and cores >= 20 * direct and thread >= 100 * direct and r["direct"]["host_bytes"] == 0
            text += "; targets 1 ms, 20x, 100x"
    print("%s|%s|%s; %d ulp" % ("INFO" if ok is None else "PASS" if ok else "FAIL", r["network"], text, r["worst_ulp"]))
PY
    while IFS='|' read -r result what numbers; do row "$result" "init $what" "$numbers"; done <"$WORK/init-rows.txt"
}

step_of() { # PRECISION STEPS MORE...
    local p=$1 steps=$2
    shift 2
    set -- "$(device_option)" data.kind=synthetic "train.precision=$p" --steps "$steps" --json -q "$@"
    if gpu; then "$bin" bench step configs/resnet50.ini -b 256 "$@"; else "$bin" bench step configs/cifar10-resnet20.ini -b 16 "$@"; fi
}

# start_ups OPTIONS...: three rows. A cache of kernel times of its own: the first start measures them, the next two starts read them. Several GPUs have no target.
start_ups() {
    local i out s target parts
    export CRESNET_CACHE=$WORK/startup-cache
    rm -rf "$CRESNET_CACHE"
    for i in cold warm warm; do
        out=$(step_of "$(gpu && echo fp16 || echo fp32)" 10 "$@" | tee -a /dev/stderr)
        s=$(echo "$out" | field time_to_first_step_s)
        parts=$(echo "$out" | sed -n 's/.*"start": "\([^"]*\)".*/\1/p')
        target=$([ $i = cold ] && echo 2.8 || echo 1.5)
        if [ $# -gt 0 ] && is_number "$s"; then row INFO "time to first step, $i cache, $*" "$s s; $parts"; continue; fi
        is_number "$s" && holds "$s <= $target"
        verdict $? "time to first step, $i cache" "${s:-none} s, target $target; $parts"
    done
}
part_startup() { start_ups; }

# peer KIND DEPTH BATCH SIZE MODES: measures PyTorch; appends one line per mode to peer.txt
peer() {
    local python
    gpu && [ -f "$CRESNET_PEER" ] && python=$(python_with_torch) && timeout 200 "$python" "$CRESNET_PEER" "$@" | tee -a "$WORK/peer.txt"
}
# fastest_peer KIND DEPTH BATCH: the highest rate in peer.txt
fastest_peer() {
    awk -v k="$1" -v d="resnet$2" -v b="b$3" '$1 == k && $2 == d && $3 == b && $6 + 0 > best { best = $6 + 0 } END { if (best) print best }' "$WORK/peer.txt" 2>/dev/null
}
# rate WHAT CONFIG VALUE ...: images/s of bench step or bench infer, the higher of two measurements
rate() {
    local what=$1 best=0 r i
    shift
    for i in 1 2; do
        # shellcheck disable=SC2086
        r=$("$bin" bench "$what" "$@" "$(device_option)" --json -q | tee -a /dev/stderr | field images_per_s)
        is_number "$r" && best=$(calc %.1f "($best > $r) ? $best : $r")
    done
    echo "$best"
}
# against WHAT OURS TARGET FACTOR PEER: OURS must reach TARGET and FACTOR times the rate PEER (PEER "": not measured)
against() {
    local ok=0
    holds "$2 >= $3" || ok=1
    [ -z "$5" ] || holds "$2 >= $4 * $5" || ok=1
    gpu || { row INFO "$1" "$2 img/s"; return; }
    verdict $ok "$1" "$2 img/s, target $3; PyTorch ${5:-not measured}$([ -z "$5" ] || calc ", ratio %.3f (target $4)" "$2 / $5")"
}

part_speed() {
    local p net="configs/resnet50.ini -b 256" steps=60
    gpu || { net="configs/cifar10-resnet20.ini -b 16"; steps=3; }
    rm -f "$WORK/peer.txt"
    peer train 50 256 224 fp16-compile-graph,bf16-compile-graph
    for p in $(gpu && echo fp16 bf16 || echo fp32); do
        # shellcheck disable=SC2086
        against "ResNet-50 training, batch 256, $p" "$(rate step $net data.kind=synthetic train.precision=$p --steps $steps)" \
            12000 1.6 "$(fastest_peer train 50 256)"
    done
    # cuDNN kernels that are not deterministic, as PyTorch uses by default
    gpu && row INFO "... fp16, train.deterministic=no" "$(rate step $net data.kind=synthetic train.precision=fp16 train.deterministic=no --steps $steps) img/s"
    for p in tf32 fp32; do
        gpu && row INFO "ResNet-50 training, batch 256, $p" "$(rate step configs/resnet50.ini -b 256 data.kind=synthetic train.precision=$p --steps 20) img/s"
    done
}

# The targets are multiples of PyTorch 2.11's rates on one H200. Measuring PyTorch takes minutes: only for PEER_DEPTHS.
part_depths() {
    local depth target ratio
    gpu || { row SKIP "other depths" "sizes for a GPU"; return; }
    for depth in ${PEER_DEPTHS:-}; do peer train "$depth" 256 224 fp16-compile-graph; done
    for depth in 18 101 152; do
        ratio=$([ $depth = 18 ] && echo 1.4 || echo 1.55)
        target=$(case $depth in 18) calc %.0f "$ratio * 17917" ;; 101) calc %.0f "$ratio * 4750" ;; 152) calc %.0f "$ratio * 3354" ;; esac)
        against "ResNet-$depth training, batch 256, fp16" "$(rate step configs/resnet50.ini model.arch=resnet$depth -b 256 data.kind=synthetic train.precision=fp16 --steps 30)" \
            "$target" "$ratio" "$(fastest_peer train "$depth" 256)"
    done
}

part_small() {
    local batch target
    gpu || { row SKIP "CIFAR networks" "sizes for a GPU"; return; }
    peer train 20 128 32 bf16-compile-graph
    peer train 20 1024 32 bf16-compile-graph
    for batch in 128 1024; do
        target=$([ $batch = 128 ] && echo 250000 || echo 400000)
        against "ResNet-20 (B) training, batch $batch, fp16" \
            "$(rate step configs/cifar10-resnet20.ini -b $batch data.kind=synthetic model.shortcut=B train.precision=fp16 --steps 200)" "$target" 1 "$(fastest_peer train 20 $batch)"
    done
    row INFO "ResNet-20 (A) training, batch 128, fp16" "$(rate step configs/cifar10-resnet20.ini -b 128 data.kind=synthetic train.precision=fp16 --steps 200) img/s"
}

part_infer() {
    local p
    gpu || { row SKIP inference "sizes for a GPU"; return; }
    peer infer 50 256 224 fp16-compile-graph
    for p in fp16 bf16 tf32; do
        if [ $p = fp16 ]; then
            against "ResNet-50 inference, batch 256, fp16" "$(rate infer configs/resnet50.ini train.eval_batch=256 data.kind=synthetic train.precision=$p --steps 60)" \
                52000 1 "$(fastest_peer infer 50 256)"
        else
            row INFO "ResNet-50 inference, batch 256, $p" "$(rate infer configs/resnet50.ini train.eval_batch=256 data.kind=synthetic train.precision=$p --steps 60) img/s"
        fi
    done
    row INFO "ResNet-50 inference, batch 1, fp16" "$("$bin" bench infer configs/resnet50.ini train.eval_batch=1 data.kind=synthetic train.precision=fp16 "$(device_option)" --steps 200 -q | head -n 1)"
}

part_profile() {
    local p code config="configs/resnet50.ini -b 256"
    gpu || config="configs/cifar10-resnet20.ini -b 16"
    for p in $(gpu && echo fp16 bf16 || echo fp32); do
        # shellcheck disable=SC2086
        "$bin" profile $config data.kind=synthetic "$(device_option)" "train.precision=$p" --steps 20 -q >"$FILES/profile-$p.txt"
        code=$?
        head -n 60 "$FILES/profile-$p.txt"
        sed -n '/kind$/,$p' "$FILES/profile-$p.txt"
        verdict $code "profile, $p" "$(grep '^sum of' "$FILES/profile-$p.txt")"
    done
}

# shellcheck source=scripts/gpu/loading.sh
. "$(dirname "${BASH_SOURCE[0]}")/loading.sh"
# shellcheck source=scripts/gpu/imagenet-size.sh
. "$(dirname "${BASH_SOURCE[0]}")/imagenet-size.sh"
# shellcheck source=scripts/gpu/memory.sh
. "$(dirname "${BASH_SOURCE[0]}")/memory.sh"
# shellcheck source=scripts/gpu/ranks.sh
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
# shellcheck source=scripts/gpu/sparse.sh
. "$(dirname "${BASH_SOURCE[0]}")/sparse.sh"
# shellcheck source=scripts/gpu/trainings.sh
. "$(dirname "${BASH_SOURCE[0]}")/trainings.sh"

# ---- sanitizers ----

part_sanitize() {
    gpu || { row SKIP sanitizers "no GPU"; return; }
    CRESNET_BIN=$bin scripts/sanitize-gpu.sh | tee "$WORK/sanitize.txt"
    grep -E '^(PASS|FAIL)' "$WORK/sanitize.txt" | while read -r result tool_name what numbers; do row "$result" "$tool_name, $what" "$numbers"; done
}

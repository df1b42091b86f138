# memory.sh: the parts `memory` and `offload` of gpu-check.sh. parts.sh sources this file and defines the helpers.

# memory_step VALUES...: prints the JSON line of bench step, to the log too.
memory_step() {
    local line
    # shellcheck disable=SC2086
    line=$(timeout 150 "$bin" bench step $memory_config data.kind=synthetic "$(device_option)" "$@" --json -q)
    echo "$* $line" >&2
    echo "$line"
}
# memory_of LINE: MiB of GPU memory of the whole process; on the CPU, where it is unknown, the reserved memory.
memory_of() {
    local mib
    mib=$(echo "$1" | field device_mib)
    is_number "$mib" || mib=$(calc %.1f "0$(echo "$1" | field pool_mib) + 0$(echo "$1" | field store_mib)")
    echo "$mib"
}
rate_of() { echo "$1" | field images_per_s; }

# base VALUES...: measures the run without a limit twice. Sets base_rate (the higher rate), base_mib and over_mib: GPU memory of the
# process minus the memory that memory.limit counts (may be negative).
base() {
    local line i r
    base_rate=0
    for i in 1 2; do
        line=$(memory_step "$@")
        r=$(rate_of "$line")
        is_number "$r" || return 1
        base_mib=$(memory_of "$line")
        over_mib=$(calc %.1f "$base_mib - $(echo "$line" | field reserved_mib)")
        base_rate=$(calc %.1f "($base_rate > $r) ? $base_rate : $r")
    done
}

# limit_for MIB: the memory.limit of a run whose process uses MIB of GPU memory
limit_for() { calc %.0fMiB "$1 - $over_mib"; }

# least_memory FRACTION LOW PROBES VALUES...: bisects between LOW and base_mib for the smallest memory at which the rate is at least
# FRACTION * base_rate. Sets best_mib, best_rate, best_limit and best_line; best_mib is empty if no probe qualifies.
least_memory() {
    local fraction=$1 low=$2 high=$base_mib probes=$3 i want line r mib
    shift 3
    best_mib="" best_rate="" best_limit="" best_line=""
    for ((i = 0; i < probes; i++)); do
        want=$(calc %.1f "($low + $high) / 2")
        line=$(memory_step "$@" memory.limit="$(limit_for "$want")")
        r=$(rate_of "$line")
        mib=$(memory_of "$line")
        if is_number "$r" && holds "$r >= $fraction * $base_rate"; then
            high=$want
            best_mib=$mib best_rate=$r best_limit=$(limit_for "$want") best_line=$line
        else
            low=$want
        fi
    done
    [ -n "$best_mib" ]
}

# slowdowns RATE LINE: the measured slowdown in percent, and the predicted slowdown.
slowdowns() {
    local predicted
    predicted=$(echo "$2" | field predicted_slowdown)
    calc "%.2f" "100 * ($base_rate / $1 - 1)"
    is_number "$predicted" && calc " (predicted %.2f)" "100 * $predicted"
}

# note_prediction RATE LINE: updates worst_points, the largest |measured - predicted| slowdown in percentage points (empty at first)
note_prediction() {
    local predicted off
    predicted=$(echo "$2" | field predicted_slowdown)
    is_number "$predicted" && is_number "$1" || return 0
    off=$(calc %.2f "100 * ($base_rate / $1 - 1 - $predicted)")
    off=${off#-}
    [ -n "$worst_points" ] && holds "$off <= $worst_points" || worst_points=$off
}
check_predictions() { # WHAT
    [ -n "$worst_points" ] || return 0
    holds "$worst_points <= 3" || ! gpu
    verdict $? "$1, predicted slowdown" "largest error $worst_points percentage points, target 3"
}

# memory_allocators WHAT FILE VALUES...: a row that compares the memory allocators.
memory_allocators() {
    local what=$1 out=$FILES/allocators-$2.json
    shift 2
    # shellcheck disable=SC2086
    "$BUILD/tools/cresnet-memory-trace" allocators $memory_config data.kind=synthetic "$(device_option)" "$@" --json >"$out"
    local code=$?
    cat "$out"
    [ $code -eq 0 ] || { row FAIL "allocators, $what" "exit code $code"; return; }
    python3 - "$out" <<'PY' >"$WORK/allocators.txt"
import json, sys
r = json.load(open(sys.argv[1]))
bound = next(p["bytes"] for p in r["allocators"] if p["allocator"] == "lower_bound")
def one(p):
    text = p["allocator"]
    if "bytes" in p: text += " %.1f MiB (%.4f)" % (p["bytes"] / 2**20, p["bytes"] / bound)
    if p.get("ms"): text += " %.3f ms" % p["ms"]
    return text
planned = next(p["bytes"] for p in r["allocators"] if p["allocator"] == "planned")
print("PASS" if planned <= 1.01 * bound else "FAIL")
print("%d allocations per step: " % r["allocations"] + "; ".join(one(p) for p in r["allocators"]))
PY
    row "$(head -n 1 "$WORK/allocators.txt")" "allocators, $what" "$(tail -n 1 "$WORK/allocators.txt")"
}

memory_of_peer() {
    local python line
    gpu && python=$(python_with_torch) || { row SKIP "PyTorch's memory" "no GPU, or no python3 with torch"; return; }
    timeout 150 "$python" tests/tools/torch_memory.py | tee "$FILES/torch-memory.json"
    while read -r line; do
        row INFO "PyTorch, $(echo "$line" | sed -n 's/.*"mode": "\([a-z]*\)".*/\1/p')" "$(memory_of "$line") MiB of GPU memory, $(echo "$line" | field allocated_mib) allocated, $(echo "$line" | field reserved_mib) reserved, $(rate_of "$line") img/s"
    done < <(grep '"peer"' "$FILES/torch-memory.json")
}

memory_of_large_batches() { # PRECISION
    local line r
    memory_config="configs/resnet50.ini --steps 10"
    line=$(memory_step "$1" train.batch=6400 memory.limit=auto)
    r=$(rate_of "$line")
    is_number "$r" && holds "$r >= 6500"
    verdict $? "batch 6400" "${r:-none} img/s, $(memory_of "$line") MiB; target 6500 (PyTorch 2.11: 3,200 at 3,740)"
    line=$(memory_step "$1" train.batch=auto train.batch_slowdown=70)
    row INFO "batch auto, at most 70 % slower" "batch $(echo "$line" | field batch), $(rate_of "$line") img/s, $(memory_of "$line") MiB"
}

part_memory() {
    local line r mib worst_points="" p="train.precision=$(gpu && echo fp16 || echo fp32)"
    memory_config="configs/resnet50.ini -b 256 --steps 40"
    gpu || memory_config="configs/cifar10-resnet20.ini -b 16 --steps 3"

    base "$p" || { row FAIL "ResNet-50, fp16, batch 256" "no result"; return; }
    row INFO "no limit" "$base_mib MiB, $base_rate img/s"
    if least_memory 0.99 "$(calc %.0f "0.6 * $base_mib")" "$(gpu && echo 6 || echo 2)" "$p"; then
        mib=$best_mib r=$best_rate
    else
        mib=$base_mib r=$base_rate
    fi
    if gpu; then
        holds "$mib <= 9216"
        verdict $? "within 1 % of full speed" "$mib MiB, $r img/s, slower by $(slowdowns "$r" "$best_line") %, memory.limit=${best_limit:-none}; target 9216"
        note_prediction "$r" "$best_line"
        line=$(memory_step "$p" memory.limit="$(limit_for 5088)")
        mib=$(memory_of "$line") r=$(rate_of "$line")
        note_prediction "$r" "$line"
        is_number "$r" && holds "$mib <= 5120 && $r >= 8500"
        verdict $? "within 5 GiB" "$mib MiB, ${r:-no result} img/s, slower by $(is_number "$r" && slowdowns "$r" "$line") %; targets 5120 MiB, 8500 img/s"
    else
        row INFO "within 1 % of full speed" "$mib MiB of $base_mib, memory.limit=${best_limit:-none}"
    fi
    check_predictions "ResNet-50, fp16"
    memory_allocators "$(gpu && echo "fp16, batch 256" || echo fp32)" half "$p" --steps 20
    ! gpu || memory_allocators "fp32, unfused, batch 128" full train.precision=fp32 train.fuse=no train.batch=128 --steps 20
    memory_of_peer
    ! gpu || memory_of_large_batches "$p"
}

# offload_config NET: sets memory_config. The batch size is 256 for ResNet-50 and Wide-ResNet-50-2, 128 for other networks.
offload_config() {
    local arch batch=128 steps=7
    arch=$(echo "$1" | tr 'A-Z' 'a-z')
    case $arch in
        wide-resnet-*) arch=wide_resnet${arch#wide-resnet-} arch=${arch//-/_} batch=256 steps=5 ;;
        *) arch=${arch//-/} ;;
    esac
    [ "$arch" != resnet50 ] || batch=256
    memory_config="configs/resnet50.ini model.arch=$arch -b $batch --steps $steps"
    gpu || memory_config="configs/cifar10-resnet20.ini -b 16 --steps 3"
}

# offload_at NET FRACTION VALUES...: one row, with a limit of FRACTION of base_mib; sets line and r
offload_at() {
    local net=$1 fraction=$2
    shift 2
    line=$(memory_step "$@" memory.limit="$(limit_for "$fraction * $base_mib")")
    r=$(rate_of "$line")
    is_number "$r" && row INFO "$net, memory x $fraction" "$(memory_of "$line") MiB, $r img/s, slower by $(slowdowns "$r" "$line") %" ||
        row INFO "$net, memory x $fraction" "the limit cannot be met"
}

# Sets best_mib, best_rate and best_line to the run with the least memory among those within 1 % of base_rate.
note_best() { # RATE LINE
    is_number "$1" && holds "$1 >= 0.99 * $base_rate" || return 0
    [ -n "$best_mib" ] && holds "$best_mib <= $(memory_of "$2")" || best_mib=$(memory_of "$2") best_rate=$1 best_line=$2
}

# Offloading to host memory without recomputation, fp32 without TF32. For each of OFFLOAD_NETS: points of the curve (OFFLOAD_FRACTIONS of
# the memory without a limit), and, if OFFLOAD_PROBES > 0, a bisection for the smallest memory within 1 % of full speed.
part_offload() {
    local net fraction line r worst_points fractions p="train.precision=fp32 memory.recompute=no"
    for net in ${OFFLOAD_NETS:-ResNet-50 Wide-ResNet-50-2}; do
        offload_config "$net"
        case $net in
            Wide*) fractions=${OFFLOAD_FRACTIONS:-0.65 0.6 0.5} ;;
            *) fractions=${OFFLOAD_FRACTIONS:-0.82 0.7 0.5} ;;
        esac
        gpu || fractions=0.8
        # shellcheck disable=SC2086
        base $p || { row FAIL "$net, fp32" "no result"; continue; }
        row INFO "$net, fp32, no limit" "$base_mib MiB, $base_rate img/s"
        worst_points="" best_mib="" best_rate="" best_line=""
        for fraction in $fractions; do
            # shellcheck disable=SC2086
            offload_at "$net" "$fraction" $p
            note_prediction "$r" "$line"
            note_best "$r" "$line"
        done
        if [ "${OFFLOAD_PROBES:-0}" -gt 0 ]; then
            # shellcheck disable=SC2086
            least_memory 0.99 "$(calc %.0f "0.4 * $base_mib")" "$OFFLOAD_PROBES" $p
        fi
        if [ -n "$best_mib" ]; then
            holds "$best_mib <= (1 - 0.342) * $base_mib" || ! gpu
            verdict $? "$net, offload, within 1 %" "$best_mib MiB, $(calc %.1f "100 * (1 - $best_mib / $base_mib)") % less, slower by $(slowdowns "$best_rate" "$best_line") %; target 34.2 % less"
        else
            row "$(gpu && echo FAIL || echo INFO)" "$net, offload, within 1 %" "no limit qualifies"
        fi
        check_predictions "$net, offload"
    done
}

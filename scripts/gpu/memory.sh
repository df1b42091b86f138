# memory.sh: parts `memory` and `swap` of gpu-check.sh; sourced by parts.sh, whose helpers it uses.

# memory_step VALUES...: the JSON line of bench step; what it tells goes to the log.
memory_step() {
    local line
    # shellcheck disable=SC2086
    line=$(timeout 150 "$bin" bench step $memory_config data.kind=synthetic "$(device_option)" "$@" --json -q)
    echo "$* $line" >&2
    echo "$line"
}
# All that a run takes of the GPU; where the device does not tell (DEVICE=cpu), what it reserves.
memory_of() {
    local mib
    mib=$(echo "$1" | field device_mib)
    is_number "$mib" || mib=$(ask %.1f "0$(echo "$1" | field pool_mib) + 0$(echo "$1" | field store_mib)")
    echo "$mib"
}
rate_of() { echo "$1" | field images_per_s; }

# base VALUES...: sets base_rate and base_mib of the run without a limit: of two, the faster; and over_mib, what is taken of the device
# beyond what a limit counts (below 0: less)
base() {
    local line i r
    base_rate=0
    for i in 1 2; do
        line=$(memory_step "$@")
        r=$(rate_of "$line")
        is_number "$r" || return 1
        base_mib=$(memory_of "$line")
        over_mib=$(ask %.1f "$base_mib - $(echo "$line" | field reserved_mib)")
        base_rate=$(ask %.1f "($base_rate > $r) ? $base_rate : $r")
    done
}

# limit_for MIB: the memory.limit of a run that is to take MIB of the GPU in all
limit_for() { ask %.0fMiB "$1 - $over_mib"; }

# least_memory SHARE LOW PROBES VALUES...: the least memory, by halving between LOW and base_mib, at which the run still has SHARE of
# base_rate; sets best_mib, best_rate, best_limit, best_line (empty best_mib: none)
least_memory() {
    local share=$1 low=$2 high=$base_mib probes=$3 i want line r mib
    shift 3
    best_mib="" best_rate="" best_limit="" best_line=""
    for ((i = 0; i < probes; i++)); do
        want=$(ask %.1f "($low + $high) / 2")
        line=$(memory_step "$@" memory.limit="$(limit_for "$want")")
        r=$(rate_of "$line")
        mib=$(memory_of "$line")
        if is_number "$r" && holds "$r >= $share * $base_rate"; then
            high=$want
            best_mib=$mib best_rate=$r best_limit=$(limit_for "$want") best_line=$line
        else
            low=$want
        fi
    done
    [ -n "$best_mib" ]
}

# Slowdown in %, measured and as the compile step predicted it.
slowdowns() {
    local predicted
    predicted=$(echo "$2" | field predicted_slowdown)
    ask "%.2f" "100 * ($base_rate / $1 - 1)"
    is_number "$predicted" && ask " (predicted %.2f)" "100 * $predicted"
}

# note_prediction RATE LINE: keeps the largest distance of both in worst_points (empty: none yet)
note_prediction() {
    local predicted off
    predicted=$(echo "$2" | field predicted_slowdown)
    is_number "$predicted" && is_number "$1" || return 0
    off=$(ask %.2f "100 * ($base_rate / $1 - 1 - $predicted)")
    off=${off#-}
    [ -n "$worst_points" ] && holds "$off <= $worst_points" || worst_points=$off
}
judge_predictions() { # WHAT
    [ -n "$worst_points" ] || return 0
    holds "$worst_points <= 3" || ! gpu
    verdict $? "$1, predicted slowdown" "at most $worst_points points off, bar 3"
}

# The pools compared: a row each.
memory_pools() {
    local what=$1 out=$FILES/pools-$2.json
    shift 2
    # shellcheck disable=SC2086
    "$bin" bench pools $memory_config data.kind=synthetic "$(device_option)" "$@" --json -q >"$out"
    local code=$?
    cat "$out"
    [ $code -eq 0 ] || { row FAIL "pools, $what" "exit code $code"; return; }
    python3 - "$out" <<'PY' >"$WORK/pools.txt"
import json, sys
r = json.load(open(sys.argv[1]))
load = next(p["bytes"] for p in r["pools"] if p["pool"] == "load")
def one(p):
    text = p["pool"]
    if "bytes" in p: text += " %.1f MiB (%.4f)" % (p["bytes"] / 2**20, p["bytes"] / load)
    if p.get("ms"): text += " %.3f ms" % p["ms"]
    return text
planned = next(p["bytes"] for p in r["pools"] if p["pool"] == "planned")
print("PASS" if planned <= 1.01 * load else "FAIL")
print("%d requests a step: " % r["requests"] + "; ".join(one(p) for p in r["pools"]))
PY
    row "$(head -n 1 "$WORK/pools.txt")" "pools, $what" "$(tail -n 1 "$WORK/pools.txt")"
}

memory_of_peer() {
    local python line
    gpu && python=$(python_with_torch) || { row SKIP "PyTorch's memory" "no GPU, or no python3 with torch"; return; }
    timeout 150 "$python" tests/tools/torch_memory.py | tee "$FILES/torch-memory.json"
    while read -r line; do
        row INFO "PyTorch, $(echo "$line" | sed -n 's/.*"mode": "\([a-z]*\)".*/\1/p')" "$(memory_of "$line") MiB of the device, $(echo "$line" | field allocated_mib) allocated, $(echo "$line" | field reserved_mib) reserved, $(rate_of "$line") img/s"
    done < <(grep '"peer"' "$FILES/torch-memory.json")
}

memory_of_large_batches() { # PRECISION
    local line r
    memory_config="configs/resnet50.ini --steps 10"
    line=$(memory_step "$1" train.batch=6400 memory.limit=auto)
    r=$(rate_of "$line")
    is_number "$r" && holds "$r >= 6500"
    verdict $? "batch 6400" "${r:-none} img/s, $(memory_of "$line") MiB; bar 6500 (PyTorch 2.11: 3,200 at 3,740)"
    line=$(memory_step "$1" train.batch=auto train.batch_slowdown=70)
    row INFO "batch auto, at most 70 % slower" "batch $(echo "$line" | field batch), $(rate_of "$line") img/s, $(memory_of "$line") MiB"
}

part_memory() {
    local line r mib worst_points="" p="train.precision=$(gpu && echo fp16 || echo fp32)"
    memory_config="configs/resnet50.ini -b 256 --steps 40"
    gpu || memory_config="configs/cifar10-resnet20.ini -b 16 --steps 3"

    base "$p" || { row FAIL "ResNet-50, fp16, batch 256" "no result"; return; }
    row INFO "no limit" "$base_mib MiB, $base_rate img/s"
    if least_memory 0.99 "$(ask %.0f "0.6 * $base_mib")" "$(gpu && echo 6 || echo 2)" "$p"; then
        mib=$best_mib r=$best_rate
    else
        mib=$base_mib r=$base_rate
    fi
    if gpu; then
        holds "$mib <= 9216"
        verdict $? "within 1 % of full speed" "$mib MiB, $r img/s, slower by $(slowdowns "$r" "$best_line") %, memory.limit=${best_limit:-none}; bar 9216 (stretch 8192)"
        note_prediction "$r" "$best_line"
        line=$(memory_step "$p" memory.limit="$(limit_for 5088)")
        mib=$(memory_of "$line") r=$(rate_of "$line")
        note_prediction "$r" "$line"
        is_number "$r" && holds "$mib <= 5120 && $r >= 8500"
        verdict $? "within 5 GiB" "$mib MiB, ${r:-no result} img/s, slower by $(is_number "$r" && slowdowns "$r" "$line") %; bars 5120, 8500"
    else
        row INFO "within 1 % of full speed" "$mib MiB of $base_mib, memory.limit=${best_limit:-none}"
    fi
    judge_predictions "ResNet-50, fp16"
    memory_pools "$(gpu && echo "fp16, batch 256" || echo fp32)" half "$p" --steps 20
    ! gpu || memory_pools "fp32, plain, batch 128" full train.precision=fp32 train.fuse=no train.batch=128 --steps 20
    memory_of_peer
    ! gpu || memory_of_large_batches "$p"
}

# swap_config NET: sets memory_config; ResNet-50 and Wide-ResNet-50-2 in batches of 256, others of 128
swap_config() {
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

# swap_at NET SHARE STRATEGY VALUES...: one row; sets line and r
swap_at() {
    local net=$1 share=$2 score=$3
    shift 3
    line=$(memory_step "$@" memory.swap="$score" memory.limit="$(limit_for "$share * $base_mib")")
    r=$(rate_of "$line")
    is_number "$r" && row INFO "$net, memory x $share, $score" "$(memory_of "$line") MiB, $r img/s, slower by $(slowdowns "$r" "$line") %" ||
        row INFO "$net, memory x $share, $score" "cannot be kept"
}

# Keeps the least memory of the runs within 1 % of base_rate: best_mib, best_rate, best_line.
note_best() { # RATE LINE
    is_number "$1" && holds "$1 >= 0.99 * $base_rate" || return 0
    [ -n "$best_mib" ] && holds "$best_mib <= $(memory_of "$2")" || best_mib=$(memory_of "$2") best_rate=$1 best_line=$2
}

# Swapping alone, fp32 without TF32: for each of SWAP_NETS points of the curve (SWAP_SHARES of its memory without a limit), each of
# SWAP_STRATEGIES at one of them (SWAP_AT), and with SWAP_PROBES a search by halving for the least memory within 1 %.
part_swap() {
    local net score share line r worst_points shares at p="train.precision=fp32 memory.recompute=no"
    for net in ${SWAP_NETS:-ResNet-50 Wide-ResNet-50-2}; do
        swap_config "$net"
        case $net in
            Wide*) shares=${SWAP_SHARES:-0.65 0.6 0.5} at=${SWAP_AT:-0.55} ;;
            *) shares=${SWAP_SHARES:-0.82 0.7 0.5} at=${SWAP_AT:-0.7} ;;
        esac
        gpu || shares=0.8 at=0.8
        # shellcheck disable=SC2086
        base $p || { row FAIL "$net, fp32" "no result"; continue; }
        row INFO "$net, fp32, no limit" "$base_mib MiB, $base_rate img/s"
        worst_points="" best_mib="" best_rate="" best_line=""
        for share in $shares; do
            # shellcheck disable=SC2086
            swap_at "$net" "$share" best $p
            note_prediction "$r" "$line"
            note_best "$r" "$line"
        done
        if [ "${SWAP_PROBES:-0}" -gt 0 ]; then
            # shellcheck disable=SC2086
            least_memory 0.99 "$(ask %.0f "0.4 * $base_mib")" "$SWAP_PROBES" $p memory.swap=best
        fi
        if [ -n "$best_mib" ]; then
            holds "$best_mib <= (1 - 0.342) * $base_mib" || ! gpu
            verdict $? "$net, swap alone, within 1 %" "$best_mib MiB, $(ask %.1f "100 * (1 - $best_mib / $base_mib)") % less, slower by $(slowdowns "$best_rate" "$best_line") %; bar 34.2 % less"
        else
            row "$(gpu && echo FAIL || echo INFO)" "$net, swap alone, within 1 %" "no limit found"
        fi
        for score in ${SWAP_STRATEGIES:-best doa aoa wdoa swdoa first}; do
            # shellcheck disable=SC2086
            swap_at "$net" "$at" "$score" $p
        done
        judge_predictions "$net, swap"
    done
}

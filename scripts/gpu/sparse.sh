# sparse.sh: the parts of gpu-check.sh for sparse networks. parts.sh sources this file.

# Prints the path of MNIST's training images, unpacked into $WORK; nothing if there are none.
mnist_file() {
    local f out=$WORK/train-images-idx3-ubyte
    for f in ${CRESNET_MNIST:-} .gpu/mnist/train-images-idx3-ubyte .gpu/mnist/train-images-idx3-ubyte.gz; do
        [ -f "$f" ] || continue
        case $f in *.gz) gzip -dc "$f" >"$out" ;; *) cp "$f" "$out" ;; esac && echo "$out" && return
    done
}

spdnn_run() { # LIMIT OPTIONS...: JSON lines of cresnet-spdnn, at most LIMIT seconds
    local limit=$1
    shift
    # shellcheck disable=SC2086
    timeout "$limit" "$BUILD/tools/cresnet-spdnn" "$(device_option)" --json $spdnn_inputs "$@"
}

# One row per network. The targets are twice the published rate of an A100 (HPEC'20) and correct categories. The row also has the rate of
# XY-2021.
spdnn_results() { # FILE TARGETS: yes if the rates must reach the targets
    python3 - "$1" "$2" <<'PY'
import json, sys
a100 = {1024: (16.74, 20.99, 20.68), 4096: (14.27, 18.63, 19.86), 16384: (11.60, 14.31, 15.27), 65536: (8.15, 9.08, 9.33)}
xy = {1024: (15.8, 23.1, 26.4), 4096: (24.2, 40.2, 48.3), 16384: (26.4, 45.4, 55.2), 65536: (27.0, 45.9, 55.6)}
ones = {1024: 6374505, 4096: 25019051, 16384: 98858913, 65536: 392191985}
for line in open(sys.argv[1]):
    r = json.loads(line)
    n, rate = r["neurons"], r["teraedges_per_s"]
    deep = {120: 0, 480: 1, 1920: 2}.get(r["layers"])
    good, target = r["wrong"] == 0, ""
    if deep is not None and sys.argv[2] == "yes":
        good = good and rate >= 2 * a100[n][deep]
        target = "; target %.2f (2 x A100), XY-2021 %.1f: x %.2f" % (2 * a100[n][deep], xy[n][deep], rate / xy[n][deep])
    if r["images"] == "mnist" and r["inputs"] == 60000:
        good = good and abs(r["nonzeros"] / ones[n] - 1) <= 0.01
    print("%s|%d x %d|%.3f ms, %.0f inputs/s, %.2f TE/s%s; %s, nonzeros %.2f %% of the published number, %d active inputs, %d of %d checked are wrong%s" % (
        "PASS" if good else "FAIL", n, r["layers"], 1e3 * r["seconds"], r["inputs_per_s"], rate, target, r["images"],
        100 * r["nonzeros"] * 60000 / r["inputs"] / ones[n], r["categories"], r["wrong"], r["checked"], ", streamed" if r["streamed"] else ""))
PY
}

spdnn_rows() { # WHAT FILE TARGETS
    local result what numbers found=0
    while IFS='|' read -r result what numbers; do
        found=1
        row "$result" "$1 $what" "$numbers"
    done < <(spdnn_results "$2" "$3")
    [ $found = 1 ] || row FAIL "$1" "no result"
}

part_spdnn() {
    local option file=$FILES/spdnn.json spdnn_inputs neurons sizes="1024 4096 16384 65536" small="--neurons 1024,16384 --layers 120"
    spdnn_inputs=$(mnist_file)
    if [ -n "$spdnn_inputs" ]; then spdnn_inputs="--mnist $spdnn_inputs"; else row INFO "images" "no MNIST (CRESNET_MNIST): synthetic digits"; fi
    gpu || { sizes=1024; small="--neurons 1024 --layers 12 --inputs 300"; }
    : >"$file"
    for neurons in $sizes; do
        if gpu; then spdnn_run $((PART_LIMIT - 10)) --neurons "$neurons" --verbose; else spdnn_run 60 --neurons 1024 --layers 30 --inputs 500 --steps 1 --verbose; fi |
            tee -a /dev/stderr >>"$file"
    done
    spdnn_rows spdnn "$file" "$(gpu && echo yes || echo no)"
    for option in --no-drop --stream --no-groups; do
        # shellcheck disable=SC2086
        spdnn_run 120 $small --check 64 $option | tee /dev/stderr >"$FILES/spdnn$option.json"
        spdnn_rows "${option#--}" "$FILES/spdnn$option.json" no
    done
}

# ---- pruned convolutional networks ----

# Prints the path of STR's sparsity budgets for ResNet-50 (Kusupati et al. 2020); nothing if the file is missing.
str_budgets() {
    local f
    for f in ${CRESNET_BUDGETS:-} .gpu/sparsity-budgets/STR_Budgets_ResNet50.csv shared/data/sparsity-budgets/STR_Budgets_ResNet50.csv; do
        [ ! -f "$f" ] || { echo "$f"; return; }
    done
}

# One row per network, sparsity and baseline from the CSV of cresnet-sparse-bench: geometric mean and minimum of the speedup, fraction of layers
# where the sparse kernel is faster, and targets where there are any.
layers_results() { # FILE
    python3 - "$1" <<'PY'
import csv, math, sys
baselines = {"baseline1_us": "im2col+cuBLAS", "baseline2_us": "im2col+cuSPARSE", "dense_fp32_us": "dense fp32", "dense_tf32_us": "dense tf32", "dense_fp16_us": "dense fp16"}
# ResNet-50, batch 32, fp32: smallest geometric mean, smallest fraction of layers where the sparse kernel is faster
targets = {("0.9", "baseline1_us"): (3, 1), ("0.95", "baseline1_us"): (5, 0), ("0.9", "baseline2_us"): (3.2, 1), ("0.9", "dense_fp32_us"): (0, .75), ("0.95", "dense_fp32_us"): (0, 1)}
groups = {}
for r in csv.DictReader(open(sys.argv[1])):
    groups.setdefault((r["net"], r["batch"], r["type"], r["sparsity"]), []).append(r)
for (net, batch, type_, sparsity), rows in groups.items():
    for key, name in baselines.items():
        x = [(float(r[key]) / float(r["sparse_us"]), int(r["count"])) for r in rows if float(r[key]) > 0 and float(r["sparse_us"]) > 0]
        n = sum(c for _, c in x)
        if not n: continue
        mean, least = math.exp(sum(math.log(v) * c for v, c in x) / n), min(v for v, _ in x)
        won = sum(c for v, c in x if v > 1) / n
        target = targets.get((sparsity, key)) if (net, batch, type_) == ("resnet50", "32", "fp32") else None
        good = not target or (mean >= target[0] and won >= target[1])
        print("%s|%s %s %s %s|%s: mean %.2f, minimum %.2f, faster in %.0f %% of %d layers%s" % (
            "INFO" if not target else "PASS" if good else "FAIL", net, batch, type_, sparsity, name, mean, least, 100 * won, n,
            "" if not target else " (target: mean %g, %.0f %%)" % (target[0], 100 * target[1])))
PY
}

layers_rows() { # FILE
    local result what numbers
    while IFS='|' read -r result what numbers; do row "$result" "$what" "$numbers"; done < <(layers_results "$1")
}

infer_ms() { # OPTIONS...: ms of one batch of ResNet-50, pruned as the options say
    "$bin" bench infer configs/resnet50.ini "$(device_option)" data.kind=synthetic --json -q "$@" | tee -a /dev/stderr | field ms
}

# The whole network, with dense kernels only and with sparse kernels.
whole_row() { # PRECISION BATCH WHAT MOST OPTIONS...: FAIL if the time is above MOST * the dense time
    local precision=$1 batch=$2 what=$3 most=$4 dense sparse
    shift 4
    dense=$(infer_ms train.precision="$precision" --batch "$batch" "$@" train.sparse=no)
    sparse=$(infer_ms train.precision="$precision" --batch "$batch" "$@" train.sparse=yes)
    is_number "$dense" && is_number "$sparse" || { row FAIL "resnet50 $what $precision $batch" "no result"; return; }
    verdict "$(holds "$sparse <= $most * $dense"; echo $?)" "resnet50 $what $precision $batch" "dense $dense ms, sparse $sparse ms: x $(calc %.3f "$dense / $sparse") (target: $(calc %.2f "1 / $most"))"
}

# SPARSE: a subset of "layers half budgets whole" (all).
part_sparse() {
    local budget file=$FILES/sparse.csv what=${SPARSE:-layers whole budgets half} column
    gpu || { row SKIP kernels "no GPU"; return; }
    budget=$(str_budgets)
    timeout 120 "$BUILD/tests/test_checkops" --device cuda cuda.sparse; verdict $? "sparse kernels against the reference" "test_checkops cuda.sparse"
    case " $what " in *" layers "*)
        "$BUILD/tools/cresnet-sparse-bench" --nets resnet50 --batches 32 --types fp32 --sparsity 0.9,0.95,0.6,0.8,0.98 --csv "$(device_option)" | tee /dev/stderr >"$file"
        layers_rows "$file" ;;
    esac
    case " $what " in *" whole "*)
        [ -n "$budget" ] || row INFO budgets "no file of budgets (CRESNET_BUDGETS): uniform sparsity"
        for column in 0.9023 0.9503; do
            if [ -n "$budget" ]; then set -- prune.budget="$budget" prune.sparsity=$column; else set -- prune.sparsity=$column prune.scope=uniform; fi
            # fp32, batch 32: twice as fast at 90 %, never slower at 95 %; fp16: at most 2 % slower (measurement noise)
            whole_row fp32 32 "$column" "$([ $column = 0.9023 ] && echo 0.5 || echo 1.0)" "$@"
            for batch in 1 32 256; do whole_row fp16 $batch "$column" 1.02 "$@"; done
            "$bin" plan configs/resnet50.ini "$(device_option)" --which eval --choices data.kind=synthetic train.precision=fp32 --batch 32 "$@"
        done ;;
    esac
    case " $what " in *" budgets "*) [ -z "$budget" ] || {
        "$BUILD/tools/cresnet-sparse-bench" --nets resnet50 --batches 32 --types fp32 --sparsity 0.9023,0.9503 --budget "$budget" --csv "$(device_option)" | tee /dev/stderr >"$FILES/sparse-budgets.csv"
        layers_rows "$FILES/sparse-budgets.csv"
    } ;; esac
    case " $what " in *" half "*)
        "$BUILD/tools/cresnet-sparse-bench" --nets resnet50,resnet18 --batches 1,256 --types fp32,fp16 --sparsity 0.9 --csv "$(device_option)" | tee /dev/stderr >"$FILES/sparse-half.csv"
        layers_rows "$FILES/sparse-half.csv" ;;
    esac
}

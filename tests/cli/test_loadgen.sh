#!/usr/bin/env bash
# test_loadgen.sh: scripts/mlperf.sh: wrong arguments; and, where LoadGen is there, the three scenarios in both modes on the CPU with a
# tiny network, whose accuracy must be that of cresnet eval and whose answers must be those of cresnet predict.
#   CRESNET_TEST_LOADGEN  not empty: download LoadGen when build/loadgen does not have it (a minute, once). Without it these cases are skipped.
. "$(dirname "$0")/../harness/support.sh"
mlperf=$source_dir/scripts/mlperf.sh
export BUILD=${bin%/*} LOADGEN=${LOADGEN:-$source_dir/build/loadgen}

refused() { # NAME CODE TEXT ARGUMENTS...
    local name=$1 code=$2 text=$3
    shift 3
    "$mlperf" "$@" >stdout 2>stderr
    is "$name: exit code" $? "$code"
    has "$name" "$(cat stderr)" "$text"
}
refused "no scenario" 2 "SCENARIO is Offline, Server or SingleStream"
refused "unknown scenario" 2 "unknown scenario \"Batch\": give Offline, Server or SingleStream" Batch
refused "unknown option" 2 "unknown option --queries" Offline --queries 5
refused "option without a value" 2 "--qps: the value is missing" Server --qps
refused "no run" 1 "--run nowhere: no such file or folder" Offline --run nowhere
refused "no data" 1 "--data nowhere: no such folder" Offline --data nowhere
refused "accuracy without data" 2 "give --data DIR" Offline --accuracy
BUILD=$work refused "no library" 1 "has no libcresnet.so" Offline

case ${CRESNET_SANITIZE:-} in ?*) skip "the library of a build with a sanitizer needs its runtime"; sum_up ;; esac
[ -f "$BUILD/libcresnet.so" ] || { skip "a build without the library"; sum_up; }
# An empty folder for LoadGen, and no network.
LOADGEN=$work/empty PIP_INDEX_URL=http://127.0.0.1:9/ PIP_FIND_LINKS=$work PIP_RETRIES=0 refused "no network" 1 "pip cannot download LoadGen" build
if ! [ -f "$LOADGEN/build/cresnet-loadgen" ] && [ -z "${CRESNET_TEST_LOADGEN:-}" ]; then
    skip "no LoadGen: scripts/mlperf.sh build, or set CRESNET_TEST_LOADGEN"
    sum_up
fi
if ! "$mlperf" build >build.txt 2>&1; then
    skip "LoadGen cannot be built: $(tail -n 1 build.txt)"
    sum_up
fi

# ---- a network, its accuracy and its answers ----

{ tiny_model 16,32; cat; } >net.ini <<INI
[data]
kind = shapes
root = $work/shapes
train_images = 400
val_images = 100

[train]
batch = 20
epochs = 2
device = cpu
INI
holds "train" "$bin" train net.ini -o run -q
correct=$("$bin" eval run --json -q | sed -n 's/.*"correct": \([0-9]*\).*/\1/p')
"$bin" predict run shapes/val --json -k 1 2>/dev/null | sed 's/.*"image": "\([^"]*\)".*"label": \([0-9]*\).*/\2 \1/' | sort -k 2 >predicted.txt
is "predicted images" "$(wc -l <predicted.txt)" 100

# The answers of a run, in the form of predicted.txt.
answers() {
    python3 - "$1" "$work/" <<'PY'
import json, struct, sys
paths = [line.rstrip("\n").split(" ", 1)[1].removeprefix(sys.argv[2]) for line in open(sys.argv[1] + "/labels.txt")]
for entry in json.load(open(sys.argv[1] + "/mlperf_log_accuracy.json")):
    print(struct.unpack("<i", bytes.fromhex(entry["data"]))[0], paths[entry["qsl_idx"]])
PY
}

for scenario in Offline Server SingleStream; do
    options="--run run --data shapes --device cpu --seconds 0.5 --batch 7 --streams 2 --calls 2 --issue-threads 3"
    rate=""
    [ $scenario != Server ] || rate="--qps 100000" # requests come faster than they are answered, some in queries larger than a batch
    # shellcheck disable=SC2086
    timeout 600 "$mlperf" $scenario $options $rate --accuracy --out accuracy >stdout 2>stderr
    is "$scenario, accuracy mode: exit code: $(cat stderr)" $? 0
    has "$scenario: accuracy of cresnet eval" "$(cat stdout)" "good=$correct, total=100"
    answers accuracy | sort -k 2 >answers.txt
    holds "$scenario: answers of cresnet predict" cmp predicted.txt answers.txt
    [ $scenario != Server ] || rate="--qps 300"
    # shellcheck disable=SC2086
    timeout 600 "$mlperf" $scenario $options $rate --out performance >stdout 2>stderr
    is "$scenario, performance mode: exit code: $(cat stderr)" $? 0
    has "$scenario: the official summary" "$(cat stdout)" "MLPerf Results Summary"
    has "$scenario: no errors" "$(cat stdout)" "No errors encountered during test."
    has "$scenario: settings" "$(cat stdout)" "min_duration (ms): 500"
    has "$scenario: samples" "$(cat stdout)" "performance_sample_count : 100"
    case $scenario in # a busy machine may miss the latency limit, but it must answer every request
        Server)
            has "requests a second" "$(cat stdout)" "target_qps : 300"
            holds "issuing threads" grep -q '"requested_server_num_issue_query_threads", "value": 3' performance/mlperf_log_detail.txt
            has "delays" "$(cat stdout)" "of a thread" ;;
        *) has "$scenario: valid" "$(cat stdout)" "Min queries satisfied : Yes" ;;
    esac
done

# ---- what cannot be run ----

mkdir -p other/val/sphere && cp shapes/val/star/00000.png other/val/sphere/
refused "a class that the network does not have" 1 'no class "sphere"' Offline --run run --data other --device cpu --seconds 1
mkdir -p broken/val/star && echo "no image" >broken/val/star/bad.png
refused "a broken image" 1 "bad.png: not an image; JPEG, PNG" Offline --run run --data broken --device cpu --seconds 1
mkdir -p none
refused "no images" 1 "no PNG or JPEG images" Offline --run run --data none --device cpu --seconds 1
python3 "$source_dir/tools/loadgen/accuracy.py" performance >stdout 2>stderr
is "accuracy.py without accuracy mode: exit code" $? 1
has "accuracy.py without accuracy mode" "$(cat stderr)" "--accuracy"
sum_up

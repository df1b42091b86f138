# sparse.sh: parts of gpu-check.sh that judge sparse networks; parts.sh sources it.

# MNIST's training pictures, unpacked into $WORK; empty: not there.
mnist_pictures() {
    local f out=$WORK/train-images-idx3-ubyte
    for f in ${CRESNET_MNIST:-} .gpu/mnist/train-images-idx3-ubyte .gpu/mnist/train-images-idx3-ubyte.gz; do
        [ -f "$f" ] || continue
        case $f in *.gz) gzip -dc "$f" >"$out" ;; *) cp "$f" "$out" ;; esac && echo "$out" && return
    done
}

spdnn_run() { # LIMIT OPTIONS...: bench spdnn, JSON lines
    local limit=$1
    shift
    # shellcheck disable=SC2086
    timeout "$limit" "$bin" bench spdnn "$(device_option)" --json -q $spdnn_pictures "$@"
}

# A row a network: bars are twice the A100's published rate (HPEC'20) and exact categories; XY-2021's rate beside it.
spdnn_judge() { # FILE BARS: yes, where rates must reach them
    python3 - "$1" "$2" <<'PY'
import json, sys
a100 = {1024: (16.74, 20.99, 20.68), 4096: (14.27, 18.63, 19.86), 16384: (11.60, 14.31, 15.27), 65536: (8.15, 9.08, 9.33)}
xy = {1024: (15.8, 23.1, 26.4), 4096: (24.2, 40.2, 48.3), 16384: (26.4, 45.4, 55.2), 65536: (27.0, 45.9, 55.6)}
ones = {1024: 6374505, 4096: 25019051, 16384: 98858913, 65536: 392191985}
for line in open(sys.argv[1]):
    r = json.loads(line)
    n, rate = r["neurons"], r["teraedges_per_s"]
    deep = {120: 0, 480: 1, 1920: 2}.get(r["layers"])
    good, bar = r["wrong"] == 0, ""
    if deep is not None and sys.argv[2] == "yes":
        good = good and rate >= 2 * a100[n][deep]
        bar = "; bar %.2f (2 x A100), XY-2021 %.1f: x %.2f" % (2 * a100[n][deep], xy[n][deep], rate / xy[n][deep])
    if r["pictures"] == "mnist" and r["inputs"] == 60000:
        good = good and abs(r["nonzeros"] / ones[n] - 1) <= 0.01
    print("%s|%d x %d|%.3f ms, %.0f inputs/s, %.2f TE/s%s; %s, ones %.2f %% of published, %d survive, %d of %d checked wrong%s" % (
        "PASS" if good else "FAIL", n, r["layers"], 1e3 * r["seconds"], r["inputs_per_s"], rate, bar, r["pictures"],
        100 * r["nonzeros"] * 60000 / r["inputs"] / ones[n], r["categories"], r["wrong"], r["checked"], ", streamed" if r["streamed"] else ""))
PY
}

spdnn_rows() { # WHAT FILE BARS
    local result what numbers found=0
    while IFS='|' read -r result what numbers; do
        found=1
        row "$result" "$1 $what" "$numbers"
    done < <(spdnn_judge "$2" "$3")
    [ $found = 1 ] || row FAIL "$1" "no result"
}

part_spdnn() {
    local way file=$FILES/spdnn.json spdnn_pictures neurons sizes="1024 4096 16384 65536" small="--neurons 1024,16384 --layers 120"
    spdnn_pictures=$(mnist_pictures)
    if [ -n "$spdnn_pictures" ]; then spdnn_pictures="--mnist $spdnn_pictures"; else row INFO "pictures" "no MNIST: drawn strokes instead (CRESNET_MNIST)"; fi
    gpu || { sizes=1024; small="--neurons 1024 --layers 12 --inputs 300"; }
    : >"$file"
    for neurons in $sizes; do
        if gpu; then spdnn_run $((PART_LIMIT - 10)) --neurons "$neurons" --verbose; else spdnn_run 60 --neurons 1024 --layers 30 --inputs 500 --steps 1 --verbose; fi |
            tee -a /dev/stderr >>"$file"
    done
    spdnn_rows spdnn "$file" "$(gpu && echo yes || echo no)"
    for way in --no-drop --stream --no-groups; do
        # shellcheck disable=SC2086
        spdnn_run 120 $small --check 64 $way | tee /dev/stderr >"$FILES/spdnn$way.json"
        spdnn_rows "${way#--}" "$FILES/spdnn$way.json" no # what each is worth
    done
}

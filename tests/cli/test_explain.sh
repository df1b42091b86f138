#!/usr/bin/env bash
# test_explain.sh: cresnet explain: the maps equal those of PyTorch's hooks (tests/golden/explain/make.py) for basic, bottleneck and pruned
# networks, the overlay follows from the map, the image and the crop as a script computes them, and mistakes leave files as they were. Ends
# with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }
golden=$CRESNET_SOURCE/tests/golden/explain

network() { # BLOCK STEM WIDTHS
    printf '[model]\narch = custom\nblock = %s\nstem = %s\nshortcut = B\ndepths = 1, 1\nwidths = %s\nclasses = 3\n' "$@"
    printf '[data]\nkind = folder\nroot = none\nimage_size = 24\neval_resize = 26\n[train]\ndevice = cpu\nthreads = 1\n'
}
network basic cifar "4, 8" >basic.ini
network bottleneck imagenet "4, 6" >bottleneck.ini
run prune basic.ini --weights "$golden/basic.safetensors" --sparsity 0.5 --scope uniform -o P -q; expect "prune" 0

cat >check.py <<'PY'
import json, sys
def read_map(path):
    lines = [l.rstrip("\n").split(",") for l in open(path)]
    assert lines[0] == ["row\\column"] + [str(i) for i in range(len(lines[1]) - 1)], lines[0]
    assert [l[0] for l in lines[1:]] == [str(i) for i in range(len(lines) - 1)]
    return [[float(v) for v in l[1:]] for l in lines[1:]]
def same_map(path, said, want, label):
    got, said = read_map(path), json.loads(open(said).readline())
    assert len(got) == len(want["map"]) and len(got[0]) == len(want["map"][0]), (len(got), len(got[0]))
    off = max(abs(a - b) for g, w in zip(got, want["map"]) for a, b in zip(g, w))
    assert off <= want["bound"], (off, want["bound"])
    assert said["label"] == label and said["predicted_label"] == want["predicted"], said
    assert abs(said["probability"] - want["probability"]) < 1e-5 and abs(said["largest"] - max(map(max, want["map"]))) <= want["bound"], said
PY

# ---- the maps ----
for name in basic bottleneck pruned; do
    for class in 0 1 2; do
        weights=(--weights "$golden/$name.safetensors") config=$name.ini
        [ $name != pruned ] || { weights=() config=P; }
        run explain "$config" "${weights[@]}" "$golden/image.png" --class "$class" --csv "$name.csv" --json; expect "$name $class" 0
        holds "$name: the map of class $class is PyTorch's" python3 - "$golden/maps.json" $name "$class" <<'PY'
import json, sys; sys.path.insert(0, ".")
from check import same_map
golden, name, label = sys.argv[1], sys.argv[2], int(sys.argv[3])
same_map(name + ".csv", "stdout", json.load(open(golden))[name][label], label)
PY
    done
done

# ---- the overlay ----
run explain basic.ini --weights "$golden/basic.safetensors" "$golden/image.png" -o a.png --csv a.csv
predicted=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["basic"][0]["predicted"])' "$golden/maps.json")
expect "the predicted class" 0 "image.png: class $predicted, "
cat >overlay.py <<'PY'
import struct, sys, zlib; sys.path.insert(0, ".")
from check import read_map
def read_png(path):
    """Width, height, rows of RGB, and the type and content of the first chunk after the header."""
    data, at, packed, chunks = open(path, "rb").read(), 8, b"", []
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        chunks.append((kind, data[at + 8:at + 8 + n]))
        packed += chunks[-1][1] if kind == b"IDAT" else b""
        at += n + 12
    w, h = struct.unpack(">II", chunks[0][1][:8])
    raw, before, rows = zlib.decompress(packed), [0] * (3 * w), []
    for y in range(h):
        kind, line = raw[y * (3 * w + 1)], list(raw[y * (3 * w + 1) + 1:(y + 1) * (3 * w + 1)])
        for i in range(3 * w):
            a, b, c = line[i - 3] if i > 2 else 0, before[i], before[i - 3] if i > 2 else 0
            p = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line[i] = (line[i] + (0, a, b, (a + b) // 2, p)[kind]) % 256
        rows.append([line[3 * x:3 * x + 3] for x in range(w)])
        before = line
    return w, h, rows, chunks[1]
w, h, image, _ = read_png(sys.argv[1])
W, H, drawn, first = read_png("a.png")
assert (W, H) == (w, h) == (46, 34) and first == (b"tEXt", b"Software\0cresnet explain"), (W, H, first)
heat = read_map("a.csv")
largest = max(map(max, heat))
box = 6 * 46 / 35, 1 * 34 / 26, 24 * 46 / 35, 24 * 34 / 26  # resized to 35 x 26; 5.5 pixels are cut, rounded to even
inferno = [(0, 0, 4), (11, 7, 36), (33, 12, 74), (61, 9, 101), (87, 16, 110), (113, 25, 110), (138, 34, 106), (163, 44, 97), (188, 55, 84),
           (210, 70, 68), (228, 90, 49), (241, 115, 29), (249, 142, 9), (252, 172, 17), (249, 203, 53), (242, 234, 105), (252, 255, 164)]
def value(x, y):
    u, v = (x + .5 - box[0]) / box[2], (y + .5 - box[1]) / box[3]
    if not (0 <= u <= 1 and 0 <= v <= 1): return 0
    u, v = min(max(12 * u - .5, 0), 11), min(max(12 * v - .5, 0), 11)
    return sum(max(0, 1 - abs(u - i)) * max(0, 1 - abs(v - j)) * heat[j][i] for j in range(12) for i in range(12)) / largest
coloured = 0
for y in range(h):
    for x in range(w):
        s, rgb = value(x, y), image[y][x]
        grey, k = .299 * rgb[0] + .587 * rgb[1] + .114 * rgb[2], min(int(16 * s), 15)
        for c in range(3):
            base, colour = (rgb[c] + grey) / 2, inferno[k][c] + (16 * s - k) * (inferno[k + 1][c] - inferno[k][c])
            assert abs(drawn[y][x][c] - (base + .75 * s * (colour - base))) < .51, (x, y, c, s)
        coloured += s > .5
assert coloured > 10, coloured
PY
holds "the overlay is the image, the map and nothing else" python3 overlay.py "$golden/image.png"
cp a.png before.png
run explain basic.ini --weights "$golden/basic.safetensors" "$golden/image.png" -o - ; expect "standard output" 0 "class $predicted"
holds "the same overlay" cmp stdout before.png

# ---- standard input: a file, a pipe, /dev/stdin; also of predict ----
run explain basic.ini --weights "$golden/basic.safetensors" - -o b.png <"$golden/image.png"; expect "an image on standard input" 0 "/dev/stdin: class $predicted, "
holds "the same overlay" cmp b.png before.png
for name in - /dev/stdin; do
    cat "$golden/image.png" | run explain basic.ini --weights "$golden/basic.safetensors" $name -o b.png
    holds "the same overlay from a pipe, $name" cmp b.png before.png
    cat "$golden/image.png" | timeout 600 "$bin" predict basic.ini --weights "$golden/basic.safetensors" $name --json -q >piped 2>stderr
    run predict basic.ini --weights "$golden/basic.safetensors" "$golden/image.png" --json -q
    is "predict from a pipe, $name" "$(sed 's/"image": "[^"]*"//' piped)" "$(sed 's/"image": "[^"]*"//' stdout)"
done
run predict basic.ini --weights "$golden/basic.safetensors" - </dev/null; expect "nothing on standard input" 1 "/dev/stdin: the file is empty"

# ---- names, mistakes ----
rm P/step-0/checksums.txt # names are changed on purpose
printf 'cat\n1\ndog\n' >P/step-0/classes.txt 2>/dev/null || printf 'cat\n1\ndog\n' >"$(dirname "$(find P/ -name model.safetensors | head -1)")/classes.txt"
run explain P "$golden/image.png" --class dog -o n.png; expect "a name" 0 "image.png: dog, " "(predicted: "
run explain P "$golden/image.png" -o x.jpg; expect "a name of another format" 2 "-o x.jpg: the overlay is a PNG image: name it FILE.png"
run explain P "$golden/image.png" --class cow -o x.png; expect "no such class" 2 '--class cow: is no class of this network: give a name such as cat or a number from 0 to 2'
run explain P "$golden/image.png"; expect "no output" 2 "add -o FILE.png"
run explain P nothing.png -o x.png; expect "no such image" 1 "nothing.png"
run explain P P -o x.png; expect "a folder" 1 "P: is a folder, not an image"
holds "no file was written" test ! -e x.png
run explain P nothing.png -o a.png; expect "no such image" 1 "nothing.png"
holds "the overlay stays" cmp a.png before.png
cp "$golden/image.png" mine.png
run explain P "$golden/image.png" -o mine.png; expect "a foreign file" 2 "mine.png: exists and is not an overlay of cresnet explain"
holds "it stays" cmp "$golden/image.png" mine.png
run explain P "$golden/image.png" -o y.png quant.type=int8; expect "8 bits" 2 "explain needs a network in floating point"
sum_up

#!/usr/bin/env bash
# test_hostile_names.sh: names of files and classes with control characters, newlines, quotes and bytes that are no UTF-8. They reach no
# terminal, and JSON and CSV files stay valid. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/support.sh"
there python3 || { skip "no python3"; sum_up 77; }

png_images() { # FOLDER COUNT: small images of one colour each
    python_tools - "$@" <<'PY'
import os, sys
import png
os.makedirs(sys.argv[1], exist_ok=True)
for i in range(int(sys.argv[2])):
    png.write(os.path.join(sys.argv[1], "%d.png" % i), 16, 16, lambda x, y: (40 * i % 256, 9 * y, 200))
PY
}
{ tiny_model; cat; } >net.ini <<INI
[data]
kind = folder
root = $work/images
image_size = 16
val_fraction = 0.5
workers = 1

[train]
batch = 4
epochs = 1
eval_every = 0
device = cpu
INI
controls() { LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' "$1"; } # FILE: true when a terminal would obey a byte of it

# ---- class folders ----

png_images images/a 8
png_images "images/b
c" 8
for command in "train net.ini -o run" "data stat images" "data pack net.ini packed"; do
    # shellcheck disable=SC2086
    "$bin" $command >said.txt 2>&1
    is "newline in a class name, $command: exit code" $? 1
    has "newline in a class name, $command: names the folder" "$(cat said.txt)" 'b\x0ac: the name of this class folder has control characters'
done
rm -r images/b*

png_images $'images/quo"te, comma' 8
png_images $'images/\xff\xfe latin' 8
holds "training with quotes and bytes that are no UTF-8" "$bin" train net.ini -o run
holds "eval --confusion" "$bin" eval run --confusion matrix.csv
"$bin" eval run --json --per-class >eval.json 2>/dev/null
"$bin" predict run images/a --json >predict.json 2>/dev/null
holds "JSON and CSV are valid UTF-8" python3 - <<'PY'
import csv, json
names = ["a", 'quo"te, comma', "\ufffd\ufffd latin"]
assert [c["class"] for c in json.loads(open("eval.json", "rb").read().decode())["per_class"]] == names
for line in open("predict.json", "rb").read().decode().splitlines(): assert all(t["class"] in names for t in json.loads(line)["top"])
rows = list(csv.reader(open("matrix.csv", newline="", encoding="utf-8")))
assert rows[0][1:] == names and [r[0] for r in rows[1:]] == names, rows
for line in open("run/log.jsonl", "rb").read().decode().splitlines(): json.loads(line)
PY

# ---- files ----

evil=$'photos/\e]0;title\a\e[31mred\nsecond line \xc2\x9b.png'
png_images photos 1
cp photos/0.png "$evil"
cp photos/0.png $'photos/not utf \xff.png'
printf 'not an image' >$'photos/\e[2Jbroken.png'
"$bin" predict run photos >said.txt 2>&1
if controls said.txt; then fail "predict prints control characters of file names: $(cat -v said.txt)"; else pass; fi
is "one line an image" "$(grep -c 'second line' said.txt)" 1
has "the name is shown with escapes" "$(cat said.txt)" '\x1b]0;title\x07\x1b[31mred\x0asecond line \xc2\x9b.png'
"$bin" predict run photos --json >predict.json 2>/dev/null
holds "JSON of hostile file names" python3 -c 'import json; [json.loads(l) for l in open("predict.json", "rb").read().decode().splitlines()]'
if controls predict.json; then fail "JSON has control characters"; else pass; fi
"$bin" predict run $'missing\e[31m.png' >said.txt 2>&1
if controls said.txt; then fail "an error has control characters: $(cat -v said.txt)"; else pass; fi
"$bin" train $'missing\e[31m\n.ini' >said.txt 2>&1
if controls said.txt; then fail "a usage error has control characters: $(cat -v said.txt)"; else pass; fi
sum_up

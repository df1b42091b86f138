#!/usr/bin/env bash
# test_exif.sh: data.exif in all commands: images with an EXIF orientation give the results of the same images oriented upright; runs and packed
# files of older versions stay as they were. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

there python3 || { skip "no python3"; sum_up 77; }

# oriented/ holds images of 24x16 with an eXIf chunk, upright/ the images that it describes, without one
python_tools - <<'PY'
import os, struct, sys, zlib
import png
# where pixel (x, y) of the upright image is in a stored image of W x H
stored = {1: lambda x, y, W, H: (x, y), 2: lambda x, y, W, H: (W - 1 - x, y), 3: lambda x, y, W, H: (W - 1 - x, H - 1 - y),
          4: lambda x, y, W, H: (x, H - 1 - y), 5: lambda x, y, W, H: (y, x), 6: lambda x, y, W, H: (y, H - 1 - x),
          7: lambda x, y, W, H: (W - 1 - y, H - 1 - x), 8: lambda x, y, W, H: (W - 1 - y, x)}
for split, count in (("train", 16), ("val", 8)):
    for label in "ab":
        for top in ("oriented", "upright"):
            os.makedirs(f"{top}/{split}/{label}", exist_ok=True)
        for i in range(count):
            o = 1 + i % 8
            seed = i * 31 + (label == "b") * 97 + (split == "val") * 7
            pixel = lambda x, y: ((x * 9 + seed) % 256, (y * 13 + seed * 3) % 256, (x * y + seed * 5) % 256)
            name = f"{split}/{label}/{i}.png"
            png.write("oriented/" + name, 24, 16, pixel)
            size = (16, 24) if o > 4 else (24, 16)
            png.write("upright/" + name, *size, lambda x, y: pixel(*stored[o](x, y, 24, 16)))
            tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, o, 0, 0)
            data = b"eXIf" + tiff
            chunk = struct.pack(">I", len(tiff)) + data + struct.pack(">I", zlib.crc32(data))
            with open("oriented/" + name, "r+b") as f:
                old = f.read()
                f.seek(0)
                f.write(old[:33] + chunk + old[33:])
PY
options="data.kind=folder data.crop=random_resized data.workers=1 -q"
train() { run train files.ini $options "$@"; }
same() { holds "$1" cmp "$2/last/model.safetensors" "$3/last/model.safetensors"; }
differ() { if cmp -s "$2/last/model.safetensors" "$3/last/model.safetensors"; then fail "$1: equal"; else pass; fi; }
loss() { run eval "$@" --json; field loss; }

# ---- a new training ----
train data.root=oriented -o on --steps 4; expect "train" 0
train data.root=upright -o upright-run --steps 4; expect "train upright" 0
train data.root=oriented data.exif=no -o off --steps 4; expect "train, data.exif=no" 0
same "the run sees upright images" on upright-run
differ "data.exif=no uses the images as they are stored" on off
holds "a run records the key" grep -qx "exif = yes" on/last/config.ini
is "eval" "$(loss on)" "$(loss on data.root=upright)"
if [ "$(loss on)" = "$(loss on data.exif=no)" ]; then fail "eval data.exif=no: the same loss"; else pass; fi
run predict on oriented/val/a/5.png --json; cp stdout a.json
run predict on upright/val/a/5.png --json; sed -i 's/upright/oriented/' stdout; holds "predict" cmp stdout a.json
run data stat oriented; expect "data stat: upright sizes" 0 "width 16 to 24" "height 16 to 24"
run data stat oriented data.exif=no; expect "data stat, data.exif=no" 0 "width 24 to 24" "height 16 to 16"

# ---- a run of a version without the key ----
train data.root=oriented data.exif=no -o old --steps 2; expect "train two steps" 0
forget_key() { sed -i '/^exif = /d' old/*/config.ini && rm -f old/*/checksums.txt; } # as an older version wrote them
forget_key
is "eval of an older run" "$(loss old)" "$(loss old data.exif=no)"
train data.root=oriented -o old --resume auto --steps 4; expect "resume an older run" 0
same "the resumed run stays off" old off
holds "and records it" grep -qx "exif = no" old/last/config.ini
forget_key
run train files.ini $options data.root=oriented -o old --resume auto --steps 5 data.exif=yes; expect "changing it is refused" 2 "data.exif" "--force"

# ---- packed ----
packed="data.kind=packed data.root=packed"
run data pack oriented packed; expect "pack" 0
run data verify packed; expect "verify" 0
train $packed -o packed-on --steps 4; same "the orientation of packed files is applied" packed-on on
train $packed data.exif=no -o packed-off --steps 4; same "packed files, data.exif=no" packed-off off
# as an older version has packed it: without the flag, the number at byte 56
python3 - <<'PY'
import struct
def crc32c(data):
    crc = 0xffffffff
    for b in data:
        crc ^= b
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
for name in ("packed/train.crpk", "packed/val.crpk"):
    with open(name, "r+b") as f:
        head = bytearray(f.read(124))
        assert head[56:60] == b"\1\0\0\0"
        head[56] = 0
        f.seek(0)
        f.write(head + struct.pack("<I", crc32c(head)))
PY
run data verify packed; expect "verify an older file" 0
train $packed -o packed-old --steps 4; same "packed files of an older version stay as they were" packed-old off
rm -rf packed; run data pack oriented packed --raw 16; expect "pack pixels" 0
run data stat packed; expect "packed pixels are upright" 0 "width 16 to 24" "height 16 to 24"
train $packed -o raw --steps 4; same "packed pixels" raw on
run data packed data.exif=no; expect "packed pixels, data.exif=no" 0 "has no effect"
rm -rf packed; run data pack oriented packed --jpeg 16; expect "pack JPEGs" 0
run data stat packed; expect "packed JPEGs are upright" 0 "width 16 to 24" "height 16 to 24"
rm -rf packed; run data pack oriented packed --raw 16 data.exif=no; run data stat packed
expect "pixels packed with data.exif=no" 0 "width 24 to 24" "height 16 to 16"

sum_up

#!/usr/bin/env bash
# test_outputs.sh: options that name an output file replace what cresnet wrote there, and nothing else without --force; devices and pipes are
# written, links are followed. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

run train tiny.ini -o R --steps 3 -q; expect "train" 0
mkdir images; printf 'an image of the data set' >images/photo.png
inode() { stat -c %i "$1"; }

# each output: a name, the file, and the command that writes it
names=(onnx weights confusion csv report svg)
file_of() { echo "out-$1.$1"; }
write() { # write NAME FILE [ARGS...]
    local name=$1 file=$2
    shift 2
    case $name in
    onnx) run export R --onnx "$file" "$@" ;;
    weights) run export R -o "$file" "$@" ;;
    confusion) run eval R --confusion "$file" "$@" ;;
    csv) run eval R --csv "$file" "$@" ;;
    report) run report R --no-eval -o "$file" "$@" ;;
    svg) run plan tiny.ini --svg "$file" "$@" ;;
    esac
}

for name in "${names[@]}"; do
    file=$(file_of $name)
    write $name "$file"; expect "$name: a new name" 0
    cp "$file" first
    write $name "$file"; expect "$name: its own earlier output is replaced" 0
    [ $name = report ] || holds "$name: the same bytes" cmp first "$file"

    # another program's file
    cp images/photo.png victim; old=$(inode victim)
    write $name victim; expect "$name: a foreign file is refused" 2 "victim: exists and is not" "--force"
    holds "$name: the foreign file is untouched" cmp victim images/photo.png
    is "$name: the foreign file is the same one" "$(inode victim)" "$old"
    write $name victim --force; expect "$name --force" 0
    [ $name = report ] || holds "$name --force: the output" cmp victim first

    # an empty file, with its permissions
    : >empty; chmod 600 empty; write $name empty; expect "$name: an empty file" 0
    is "$name: the permissions stay" "$(stat -c %a empty)" 600

    # links: the target is checked and replaced, the link stays
    rm -f target link; cp first target; ln -s target link
    write $name link; expect "$name: a link to its own output" 0
    is "$name: the link stays" "$(readlink link)" target
    cp images/photo.png target
    write $name link; expect "$name: a link to a foreign file" 2 "link: exists and is not"
    holds "$name: the foreign target is untouched" cmp target images/photo.png
    rm -f link; ln -s nothing link
    write $name link; expect "$name: a link to nothing" 1 "link" "name the target"
    holds "$name: nothing is created through the link" [ ! -e nothing ]

    # a pipe is written, not replaced
    rm -f pipe; mkfifo pipe; timeout 600 cat pipe >piped & reader=$!
    write $name pipe; expect "$name: a pipe" 0
    holds "$name: the pipe is still one" [ -p pipe ]
    if [ $rc = 0 ] && [ -p pipe ]; then wait $reader; else kill $reader 2>/dev/null; fi
    [ $name = report ] || holds "$name: what the reader got" cmp piped first
    write $name images; expect "$name: a folder" 1 "images: is a folder"
done
holds "the image is untouched" grep -qx 'an image of the data set' images/photo.png
holds "no temporary files are left" [ -z "$(find . -name '*.tmp.*')" ]

# a device: a node of our own, since a program that replaces /dev/null would break this machine
if mknod null c 1 3 2>/dev/null && echo >null 2>/dev/null; then
    for name in "${names[@]}"; do
        write $name null; expect "$name: a device" 0
        holds "$name: the device is still one" [ -c null ]
        [ -c null ] || { rm -f null; mknod null c 1 3; }
    done
else skip "a device: no permission to make one"; fi

# /dev/stdout is standard output, also when that is a file
"$bin" export R --onnx /dev/stdout >stdout.onnx 2>/dev/null; holds "export --onnx /dev/stdout" cmp stdout.onnx out-onnx.onnx
"$bin" eval R --confusion /dev/stdout >stdout.csv 2>/dev/null; holds "eval --confusion /dev/stdout" cmp stdout.csv out-confusion.confusion

# files of checkpoints and downloaded weights are not exports
cp R/last/model.safetensors weights; write weights R/last/model.safetensors; expect "export over a checkpoint" 2 "is not an export of cresnet" "--force"
holds "the checkpoint is untouched" cmp weights R/last/model.safetensors

# the drawn plan has the rectangles of the tensors that --csv lists: their first and last op, and the largest size
run plan tiny.ini --csv; cp stdout pool.csv
python3 - out-svg.svg pool.csv <<'PY' && pass || fail "the drawn plan differs from plan --csv"
import csv, re, sys, xml.etree.ElementTree as tree
drawn = [(int(a), int(b) + 1, float(mib)) for title in tree.parse(sys.argv[1]).iter("{http://www.w3.org/2000/svg}title")
         for mib, a, b in re.findall(r"([\d.]+) MiB, ops (\d+) to (\d+)", title.text)]
listed = [(int(row["lower"]), int(row["upper"]), int(row["size"]) / 2**20) for row in csv.DictReader(open(sys.argv[2]))]
assert drawn and min(d[0] for d in drawn) == min(l[0] for l in listed) and max(d[1] for d in drawn) == max(l[1] for l in listed)
assert abs(max(d[2] for d in drawn) - max(l[2] for l in listed)) <= 0.005, (drawn, listed)
PY

# the report of a run, without -o
run report R --no-eval; expect "report" 0
run report R --no-eval; expect "report again" 0
cp images/photo.png R/report.html; run report R --no-eval; expect "report over a foreign file" 2 "R/report.html: exists and is not a report"
rm R/report.html; ln -s ../images/photo.png R/report.html; run report R --no-eval; expect "report.html of a run is a link" 1 "R/report.html: is a link"
holds "the link stays" [ -L R/report.html ]

# packed datasets
run data pack tiny.ini P; expect "data pack" 0
run data pack tiny.ini P; expect "data pack again" 0
cp images/photo.png P/val.crpk; run data pack tiny.ini P; expect "data pack over a foreign file" 2 "P/val.crpk: exists and is not a packed dataset"
holds "the foreign file is untouched" cmp P/val.crpk images/photo.png
run data pack tiny.ini P --force; expect "data pack --force" 0; run data verify P; expect "data pack --force: the files" 0

# a folder that does not exist: an error before the work
for name in onnx weights confusion csv report png; do
    write $name nowhere/file; expect "$name: into a missing folder" 1 "nowhere/file: cannot create" "make its folder"
    is "$name: into a missing folder: nothing else is printed" "$(printf '%s\n' "$out$err" | wc -l)" 1
done

# --force that would do nothing
run eval R --force; expect "eval --force" 2 "--force needs --confusion"
sum_up

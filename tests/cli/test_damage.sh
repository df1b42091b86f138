#!/usr/bin/env bash
# test_damage.sh: checkpoints with a flipped bit: a run resumes from the next older one, every other command refuses; files of other programs and of
# older versions are read without a word; other programs read our files. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

# flip FILE SEED [PART]: flips one bit, chosen by the seed; PART data: behind the header of a .safetensors
flip() {
    python3 - "$@" <<'PY'
import random, sys
path, seed, part = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
data = bytearray(open(path, "rb").read())
begin = 8 + int.from_bytes(data[:8], "little") if part else 0
bit = random.Random(seed).randrange(8 * begin, 8 * len(data))
data[bit // 8] ^= 1 << bit % 8
open(path, "wb").write(data)
PY
}
sums() { (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort; find . -type l -printf '%p %l\n' | sort); }
fresh() { rm -rf R && cp -a A R; } # an intact copy of the run

run train tiny.ini -o A --steps 9 train.keep=9 -q; expect "train" 0
rm -f A/best # the commands use the newest checkpoint
run train tiny.ini -o C --steps 12 train.keep=9 -q; expect "train on" 0

# ---- a run that resumes ----
for seed in 1 2 3 4 5 6 7 8; do
    file=$([ $((seed % 2)) = 0 ] && echo model || echo state)
    fresh; flip R/step-9/$file.safetensors $seed
    run train tiny.ini -o R --resume auto --steps 12
    expect "resume, flip $seed in $file" 0 "warning: checkpoint skipped: R/step-9/$file.safetensors: " "resume  R/step-6, step 6"
    is "one line about it, flip $seed" "$(grep -c skipped stderr)" 1
    holds "the same weights as without the damage, flip $seed" cmp R/step-12/model.safetensors C/step-12/model.safetensors
done
fresh; flip R/step-9/model.safetensors 11 data; flip R/step-6/state.safetensors 12 data; flip R/step-3/config.ini 13
before=$(sums R)
run train tiny.ini -o R --resume auto --steps 12 train.keep=1
expect "resume, all damaged" 1 "R/step-9/model.safetensors: tensor " "R/step-6/state.safetensors: tensor " "R/step-3/config.ini: " "no checkpoint in this folder can be read"
is "resume, all damaged: nothing changes" "$(sums R)" "$before"
fresh; flip R/step-9/model.safetensors 11 data
run train tiny.ini --resume R/step-9 --steps 12
expect "resume from a damaged checkpoint" 1 "R/step-9/model.safetensors: tensor " "is damaged (wrong checksum)" "the newest intact checkpoint before it is $work/R/step-6"
is "resume from a damaged checkpoint: one line" "$(wc -l <stderr)" 1
fresh; flip R/step-9/config.ini 7
run train tiny.ini -o R --resume auto --steps 12; expect "resume, a changed configuration" 0 "checkpoint skipped: R/step-9/config.ini: " "step-6, step 6"
fresh; flip R/step-9/state.safetensors 21 data
run train tiny.ini --ranks 2 --resume R/step-9 --steps 12; [ "$rc" != 0 ] && pass || fail "resume of two ranks: exit 0"
is "resume of two ranks: one message" "$(grep -c 'is damaged' stderr)" 1

# ---- all other commands ----
fresh; flip R/step-9/model.safetensors 11 data
cp A/step-9/config.ini plain.ini
refuses() { # refuses NAME ARGS...: the command names the tensor and writes nothing
    local name=$1
    shift
    run "$@"
    [ "$rc" != 0 ] && pass || fail "$name: exit 0"
    expect "$name" "$rc" "step-9/model.safetensors: tensor \"" "is damaged (wrong checksum): restore the file from a copy"
    is "$name: one line" "$(grep -c 'is damaged' stderr)" 1
}
refuses "eval" eval R
refuses "eval --weights" eval plain.ini --weights R
refuses "export" export R -o x.safetensors
refuses "report" report R -o x.html
refuses "model.weights" train tiny.ini -o W model.weights=R --steps 3
refuses "teacher" train tiny.ini -o T distill.teacher=R --steps 3
is "nothing is written" "$(ls -d x.safetensors x.onnx x.html Q/step-* F/step-* P/step-* W/step-* T/step-* 2>/dev/null)" ""
fresh; flip R/step-9/config.ini 7; run eval R; [ "$rc" != 0 ] && pass || fail "eval, a changed configuration: exit 0"
fresh; sed -i 's/^seed *=.*/seed = 7/' R/step-9/config.ini; run eval R; expect "eval, an edited configuration" 1 "step-9/config.ini: is damaged, or was changed" "remove checksums.txt"
rm R/step-9/checksums.txt; run eval R -q; expect "eval, edited on purpose" 0
fresh; cp R/step-6/classes.txt R/step-9/; run eval R -q; expect "eval, equal files" 0
cp R/step-6/model.safetensors R/step-9/; run eval R; expect "eval, a file of another checkpoint" 1 "step-9/model.safetensors: is damaged, or was changed"
run eval A --json; with=$(field loss); fresh; rm R/step-*/state.safetensors # only a resumed run needs it
run eval R --json; expect "eval, no optimizer state" 0; is "eval, no optimizer state: the loss" "$(field loss)" "$with"
run train tiny.ini -o R --resume auto --steps 12; expect "resume, no optimizer state" 1 "state.safetensors: cannot open"

# ---- files without sums ----
fresh; weights_file drop-sums R/step-*
run eval A --json; with=$(field loss); run eval R --json; is "an older version's run: the loss" "$(field loss)" "$with"
is "an older version's run: no line" "$(grep -ci 'checksum\|damage' stderr)" 0
run train tiny.ini -o R --resume auto --steps 12 -q; expect "an older version's run resumes" 0
holds "an older version's run: the same weights" cmp R/step-12/model.safetensors C/step-12/model.safetensors
run export A -o x.safetensors; expect "export" 0
flip x.safetensors 31 data; run eval plain.ini --weights x.safetensors; expect "a damaged export" 1 "x.safetensors: tensor \"" "is damaged"
mkdir D; run export A -o D/w.safetensors -q; echo "0123456789abcdef  w.safetensors" >D/checksums.txt
run eval plain.ini --weights D/w.safetensors --json; is "weights next to a checksums.txt of somebody else" "$(field loss)" "$with"

# ---- other programs ----
if python3 -c 'import numpy, safetensors' 2>/dev/null; then
    run export A -o y.safetensors -q
    holds "the Python package reads our files" python3 - A/step-9/model.safetensors A/step-9/state.safetensors y.safetensors <<'PY'
import sys
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
for path in sys.argv[1:]:
    tensors = load_file(path)
    raw = open(path, "rb").read()
    with safe_open(path, "numpy") as f:
        assert len(f.metadata()["cresnet_tensor_crc32c"]) == 8 * len(tensors)
    for name, value in tensors.items():
        assert value.tobytes() in raw, name
save_file(load_file(sys.argv[1]), "foreign.safetensors", {"format": "pt"})
PY
    run eval plain.ini --weights foreign.safetensors --json; is "a file that the package wrote" "$(field loss)" "$with"
else
    skip "the Python package safetensors is not installed"
fi
sum_up

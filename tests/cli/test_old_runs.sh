#!/usr/bin/env bash
# test_old_runs.sh: a run folder of version 0.3.0 is evaluated, exported, resumed; names that this version does not have are understood in
# run folders, and errors elsewhere. tests/golden/run-0.3.0 is what version 0.3.0 wrote with memory.swap = swdoa; the losses are those that
# version 0.3.0 printed for it. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"

fresh() { # FOLDER: the run as version 0.3.0 left it
    rm -rf "$1" && cp -r "$source_dir/tests/golden/run-0.3.0" "$1" && ln -s step-4 "$1/last" && ln -s step-4 "$1/best"
}
near() { python3 -c 'import sys; assert abs(float(sys.argv[1]) - float(sys.argv[2])) < 1e-4' "$2" "$3" && pass || fail "$1: $2, want $3"; }

fresh R; run eval R --last --no-ema --json; expect "eval" 0; near "eval: the loss" "$(field loss)" 1.536419
run eval R --json; expect "eval of the moving averages" 0; near "averages: the loss" "$(field loss)" 1.588276
run export R --no-ema -o R.safetensors; expect "export" 0
holds "export: the tensors" same_tensors R.safetensors R/step-4/model.safetensors
run report R -o R.html; expect "report" 0
cp R/step-4/config.ini old.ini
run train old.ini -o R --resume auto --steps 8 -q
expect "a configuration with an old value" 2 "old.ini:111: [memory] swap = swdoa: this version no longer has this value: write memory.swap = auto" \
    "[memory] trace = : this version no longer has this key: "
run train R/last/config.ini --resume R --steps 8 -q; expect "resume, as train --resume R advises" 0
run eval R --last --no-ema --json; near "resume: the loss" "$(field loss)" 1.264709
holds "the resumed run stores names of this version" grep -q '^swap = auto' R/step-8/config.ini
run eval R memory.swap=swdoa; expect "an old value of the command line" 2 "command line: [memory] swap = swdoa: this version no longer has this value"
fresh S; sed -i 's/^trace =/trace = stolen.log/' S/step-4/config.ini
run eval S --json; expect "eval, a run with a removed key" 0; is "a removed key has no effect" "$(ls stolen.log 2>/dev/null)" ""
fresh T; sed -i 's/^swap = swdoa/swap = nonsense/' T/step-4/config.ini; run eval T; expect "eval, an unknown value" 2 "T/step-4/config.ini:111: [memory] swap is invalid"

sum_up

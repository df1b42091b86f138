#!/usr/bin/env bash
# test_config_once.sh: a configuration from a pipe, which can be read once, gives the same results as the file:
# training, resuming, check on several devices, plan. A second reading of a pipe would find it empty, and the run would
# train the default network.
. "$(dirname "$0")/../harness/support.sh"

{
    tiny_model
    printf '[data]\nkind = synthetic\nimage_size = 8\ntrain_images = 16\nval_images = 8\nworkers = 0\n'
    printf '[train]\nbatch = 4\nepochs = 1\ndevice = cpu\nthreads = 1\n'
} >t.ini

holds "train from a file" timeout 600 "$bin" train t.ini -o file
holds "train from a pipe" timeout 600 "$bin" train <(cat t.ini) -o pipe
holds "train from standard input" timeout 600 "$bin" train /dev/stdin -o stdin <t.ini
for run in pipe stdin; do
    for file in model.safetensors config.ini; do
        holds "$run: $file" cmp <(sed "s#checkpoints/[a-z0-9]*##; s#^output = .*##" "file/last/$file") \
            <(sed "s#checkpoints/[a-z0-9]*##; s#^output = .*##" "$run/last/$file")
    done
done
holds "two ranks from a pipe" timeout 600 "$bin" train <(cat t.ini) -o ranks --ranks 2
holds "two ranks from a file" timeout 600 "$bin" train t.ini -o ranks-file --ranks 2
holds "two ranks" cmp ranks/last/model.safetensors ranks-file/last/model.safetensors
holds "resume from a pipe" timeout 600 "$bin" train <(cat t.ini) -o pipe --resume auto --epochs 2
holds "resume from a file" timeout 600 "$bin" train t.ini -o file --resume auto --epochs 2
holds "resumed" cmp pipe/last/model.safetensors file/last/model.safetensors
is "check of two devices" "$("$bin" check <(cat t.ini) --devices cpu,cpu --json 2>&1 | grep '^{')" \
    "$("$bin" check t.ini --devices cpu,cpu --json 2>&1 | grep '^{')"
is "devices checked" "$("$bin" check <(cat t.ini) --devices cpu,cpu --json 2>/dev/null | wc -l)" 2
program() { grep -v '^program'; }
planned=$("$bin" plan t.ini --program 2>/dev/null | program)
is "plan" "$("$bin" plan <(cat t.ini) --program 2>/dev/null | program)" "$planned"
mkfifo named
cat t.ini >named &
is "plan of a named pipe" "$(timeout 600 "$bin" plan named --program 2>/dev/null | program)" "$planned"
wait
sum_up

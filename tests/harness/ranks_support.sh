# ranks_support.sh: for tests of several ranks: a configuration whose runs end only when they are stopped, and their losses. Its time limits are
# reached by a rank that hangs, and by no rank of a busy machine: a case that waits for one sets a short one. To be sourced after support.sh.
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
now() { date +%s%N; }
# losses RUN: a line for each step, its number and its loss
losses() { grep '"event":"train"' "$1/log.jsonl" | sed 's/.*"step":\([0-9]*\).*"loss":\([^,]*\),.*/\1 \2/'; }
{ tiny_model; cat; } >net.ini <<'INI'
[data]
kind = synthetic
image_size = 16
train_images = 400
val_images = 40
workers = 1

[train]
batch = 4
epochs = 100000
eval_every = 0
save_every = 1000000
log_every = 1
device = cpu
threads = 1

[ranks]
timeout = 100
meet = 100
INI

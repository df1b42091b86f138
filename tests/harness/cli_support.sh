# cli_support.sh: helpers that tests/cli/*.sh source: runs the program, checks its exit code and outputs, and writes a configuration, tiny.ini.
. "$(dirname "${BASH_SOURCE[0]}")/support.sh"

# run ARGS...: runs the program; sets rc, out, err
run() {
    timeout 900 "$bin" "$@" >stdout 2>stderr
    rc=$?
    out=$(tr -d '\0' <stdout) err=$(cat stderr)
}
# plans_for_gpus: plan --target works: the program has CUDA, with its libraries
plans_for_gpus() { "$bin" plan tiny.ini --target h200 -q >/dev/null 2>&1; }
# expect NAME RC [TEXT...]: the last run exited with RC and its outputs contain every TEXT
expect() {
    local name=$1 want=$2 text
    shift 2
    if [ "$rc" != "$want" ]; then
        fail "$name: exit $rc, want $want; stderr: $(head -c 600 stderr)"
        return
    fi
    for text in "$@"; do
        case $out$'\n'$err in
        *"$text"*) ;;
        *) fail "$name: lacks \"$text\"; got: $(head -c 600 stdout stderr)"; return ;;
        esac
    done
    pass
}
# refused NAME RC TEXT ARGS...: the command exits with RC, prints TEXT in its one error, and makes no X
refused() {
    local name=$1 want=$2 text=$3
    shift 3
    run "$@"; expect "$name" "$want" "$text"
    is "$name: one error" "$(grep -c '^cresnet [a-z]*: ' stderr)" 1
    holds "$name: nothing is written" [ ! -e X ]
}
checksums() { find "$@" -type f | sort | xargs sha256sum; }
json_lines() { # every line of stdout is a JSON object
    python3 -c 'import json, sys
lines = sys.stdin.read().splitlines()
assert lines and all(isinstance(json.loads(l), dict) for l in lines)' <stdout 2>/dev/null
}
field() { python3 -c 'import json, sys; print(json.loads(open("stdout").readline())[sys.argv[1]])' "$1" 2>/dev/null; }
same_tensors() { weights_file same "$@"; } # FILE FILE: the metadata of an export differs

{ tiny_model; synthetic_data; cat; } >tiny.ini <<'INI'
[train]
batch = 4
epochs = 4
save_every = 3
log_every = 5
device = cpu
threads = 1
INI

grep -v '_images' tiny.ini >files.ini # for datasets with a size of their own
shapes="data.kind=shapes data.root=images data.train_images=200 data.val_images=40" # the images that `data shapes` generates

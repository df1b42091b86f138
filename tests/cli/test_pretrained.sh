#!/usr/bin/env bash
# test_pretrained.sh: weights of PyTorch and published weights by name: where they are searched, downloads from a server that fails in every
# way (tests/tools/weights_server.py), the hash, resumed downloads, proxies, offline use. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }
unset http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY TORCH_HOME CRESNET_CACHE CRESNET_OFFLINE
tools=$source_dir/tests/tools
loss() { run eval tiny.ini --weights "$@" --json; field loss; }

# ---- PyTorch's files wherever weights are accepted ----

run train tiny.ini -o R --steps 3 -q; expect "train" 0
weights=R/last/model.safetensors
want=$(loss $weights)
for kind in zip stream; do
    holds "$kind: written" python3 -B "$tools/torch_file.py" $weights $kind.pth $kind
    is "$kind: eval --weights" "$(loss $kind.pth)" "$want"
    run eval tiny.ini model.weights=$kind.pth --json; is "$kind: model.weights" "$(field loss)" "$want"
    run export $kind.pth -o $kind.safetensors; expect "$kind: export" 0
    holds "$kind: the tensors are those of the run" same_tensors $kind.safetensors $weights
    run train tiny.ini -o from-$kind --steps 1 model.weights=$kind.pth train.sparse=yes; expect "$kind: train" 0 "weights: $kind.pth"
done
run train tiny.ini -o from-st --steps 1 -q model.weights=$weights
for kind in zip stream; do holds "$kind: training starts from the same weights" same_tensors from-$kind/last/model.safetensors from-st/last/model.safetensors; done
cp zip.pth R/weights.pth; cp R/last/config.ini R/config.ini
run plan tiny.ini model.weights=zip.pth -q; expect "plan" 0
run check tiny.ini model.weights=stream.pth -q; expect "check" 0
run prune tiny.ini --weights zip.pth --sparsity 0.5 -o P; expect "prune" 0
run eval tiny.ini --weights "$source_dir/tests/fuzz/corpus/fuzz_torch/bad-global-system"
expect "a hostile pickle" 1 '"os.system" (opcode GLOBAL' "torch.save(model.state_dict(), FILE)"

# ---- names ----

hash=$(sha256sum zip.pth | cut -c1-8)
file=tiny-$hash.pth
mkdir files; cp zip.pth "files/$file"
printf '# our names\n\ntiny %s # the network of this test\n' "$file" >list
export CRESNET_WEIGHTS_LIST=$work/list CRESNET_DOWNLOAD_TIMEOUT=2
run eval tiny.ini --weights resnet5O; expect "an unknown name" 1 "resnet5O"
run train tiny.ini -o X model.weights=resnet5O; expect "train: an unknown name" 2 "[model] weights = resnet5O" "wide_resnet101_2.v2"
run train tiny.ini -o X model.weights=resnext50_64x4d; expect "no such ResNeXt" 2 "resnext50_32x4d.v2"
run train tiny.ini -o X model.weights=dir/resnet18; expect "a missing file" 2 "no such file or folder"
echo 'tiny tiny.pth' >bad-list; CRESNET_WEIGHTS_LIST=bad-list run train tiny.ini -o X model.weights=tiny; expect "a list without a hash" 1 "bad-list:1: "
CRESNET_WEIGHTS_LIST=none run train tiny.ini -o X model.weights=tiny; expect "a missing list" 1 "none: "
holds "nothing was trained" test ! -e X

# ---- without a network ----

export CRESNET_OFFLINE=1
run eval configs/resnet18.ini --weights resnet18; CRESNET_OFFLINE=1 run train "$source_dir/configs/resnet18.ini" data.kind=synthetic -o X model.weights=resnet18
expect "offline" 1 "CRESNET_OFFLINE is set" "https://download.pytorch.org/models/resnet18-f37072fd.pth" "$work/cache/cresnet/weights" "$work/cache/torch/hub/checkpoints" CRESNET_WEIGHTS_DIR
CRESNET_WEIGHTS_DIR=files run eval tiny.ini --weights tiny --json; is "a folder of the user" "$(field loss)" "$want"
mkdir -p torch/hub/checkpoints damaged; cp "files/$file" torch/hub/checkpoints
TORCH_HOME=torch run eval tiny.ini --weights tiny --json; is "the cache of PyTorch" "$(field loss)" "$want"
head -c 500 zip.pth >"damaged/$file"
CRESNET_WEIGHTS_DIR=damaged run eval tiny.ini --weights tiny; expect "a damaged file" 1 "is ignored: its SHA-256" "is not on this machine"
CRESNET_WEIGHTS_DIR=damaged TORCH_HOME=torch run eval tiny.ini --weights tiny --json; is "a damaged file before a good one" "$(field loss)" "$want"
CRESNET_CACHE=other TORCH_HOME=off run eval tiny.ini --weights tiny; expect "CRESNET_CACHE" 1 "one of these folders: other/weights;"
HOME='' XDG_CACHE_HOME='' run eval tiny.ini --weights tiny
expect "no cache folder" 1 "/$file elsewhere and name the folder that has it with CRESNET_WEIGHTS_DIR"
mkdir tiny; run eval tiny.ini --weights tiny; expect "a folder goes before a name" 1 "no model.safetensors"; rmdir tiny
unset CRESNET_OFFLINE

"$bin" --version | grep -q '^libcurl *no' && { skip "a build without libcurl"; sum_up; }

# ---- the server ----

python3 -B "$tools/weights_server.py" files requests >port 2>server.err &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
await $server [ -s port ]
base=http://127.0.0.1:$(cat port)
requests() { grep -c "^$1 " requests; }
# get MODE [ARGS...]: evaluates `tiny` from the server in this mode, with a cache of its own
get() {
    local mode=$1
    shift
    CRESNET_CACHE=cache-$mode CRESNET_WEIGHTS_URL=$base/$mode timeout 600 "$bin" eval tiny.ini --weights tiny --json "$@" >$mode.out 2>$mode.err
    echo $? >$mode.rc
}
# got MODE RC [TEXT...]: what `get MODE` did; a good one evaluates the same network and leaves one file
got() {
    local mode=$1
    rc=$(cat $mode.rc); cp $mode.out stdout; cp $mode.err stderr; out=$(cat stdout) err=$(cat stderr)
    expect "$@"
    if [ "$2" = 0 ]; then
        is "$mode: the loss" "$(field loss)" "$want"
        is "$mode: the cache" "$(ls cache-$mode/weights)" "$file"
        holds "$mode: the file" cmp "cache-$mode/weights/$file" zip.pth
    else holds "$mode: no file" test ! -e "cache-$mode/weights/$file"; fi
}
CRESNET_DOWNLOAD_MAX_TIME=0 get ok
got ok 0 "downloading $base/ok/$file" "weights: tiny, cache-ok/weights/$file" "CRESNET_DOWNLOAD_MAX_TIME is ignored: it must be a number of seconds from 1"
get ok; got ok 0; is "the second use is from the cache" "$(requests ok)" 1
CRESNET_OFFLINE=1 get ok; got ok 0

# A server that drips is as good as silent; one that never ends has a limit too: both end by limits of the program, not of this test.
CRESNET_DOWNLOAD_TIMEOUT=1 get drip & dripping=$!
CRESNET_DOWNLOAD_TIMEOUT=20 CRESNET_DOWNLOAD_MAX_TIME=3 get steady & steady=$!
good="redirect reset1 cut1 stall1 5001 5031 4291 short1 long1 norange slow"
bad="404 403 500 page changed loop file cut short"
CRESNET_CACHE=cache-none CRESNET_WEIGHTS_URL=http://127.0.0.1:1 "$bin" eval tiny.ini --weights tiny >no-server.out 2>&1 & no_server=$!
for mode in $good $bad; do get $mode & done
for mode in $good $bad; do while ! [ -s $mode.rc ]; do sleep 0.1; done; done
got redirect 0; got slow 0; got norange 0
for mode in reset1 cut1 stall1 long1; do
    got $mode 0 "attempt 2 of 4"
    is "$mode: continued" "$(sed -n "s/^$mode bytes=\([0-9]\).*/range/p" requests)" range
done
got 5001 0 "500" "attempt 2 of 4"; got 5031 0 "503"; got 4291 0 "429"
got short1 1 "SHA-256 of what the server sent"
got 404 1 "$base/404/$file" "404"; is "404 is not repeated" "$(requests 404)" 1
got 403 1 "403"; got 500 1 "500" "attempt 4 of 4" # the server may miss one: a busy machine ends it before the request
got page 1 "SHA-256 of what the server sent"; got changed 1 "does not begin with $hash"; got short 1 "SHA-256"
for mode in page changed short; do is "$mode: nothing is left" "$(ls cache-$mode/weights)" ""; done
got loop 1 "redirects"; got file 1 "cannot be downloaded"; got cut 1 "cannot be downloaded"
holds "what was received stays" test -s "cache-cut/weights/$file.part"
is "four attempts" "$(requests cut)" 4
has "a server that sends nothing" "$(cat stall1.err)" "sent nothing for 2 s"
wait $dripping $steady
got drip 1 "sent less than 1 kB/s for 1 s" "https_proxy"; is "dripping: four attempts" "$(grep -c "attempt [234] of 4" drip.err)" 3 # on a busy machine one may not get as far as a request
got steady 1 "not downloaded in the time of CRESNET_DOWNLOAD_MAX_TIME"; is "the time is that of all attempts" "$(requests steady)" 1
holds "what came is kept" test -s "cache-steady/weights/$file.part"

# ---- continued downloads ----

part() { mkdir -p "cache-$1/weights"; cat >"cache-$1/weights/$file.part"; } # part MODE: what an earlier download left is standard input
: >requests
head -c 1000 zip.pth | part ok2; CRESNET_CACHE=cache-ok2 CRESNET_WEIGHTS_URL=$base/ok run eval tiny.ini --weights tiny --json
is "continued after a kill" "$(field loss)" "$want"; holds "it says so" grep -q "continuing the download" stderr; is "only the rest was requested" "$(cat requests)" "ok bytes=1000-"
: >requests; rm -r cache-norange; head -c 1000 zip.pth | part norange; get norange; got norange 0; is "without ranges: the whole file" "$(cat requests)" "norange bytes=1000-"
: >requests; head -c 1000 zip.pth | part shifted; get shifted; got shifted 0; is "a wrong range: again from the begin" "$(cat requests)" "shifted bytes=1000-
shifted -"
: >requests; head -c 1000 /dev/zero | part ok; rm "cache-ok/weights/$file"; get ok; got ok 0; is "a foreign part: again from the begin" "$(requests ok)" 2
rm -r cache-ok; part ok <zip.pth; get ok; got ok 0
rm -r cache-ok; cat zip.pth zip.pth | part ok; get ok; got ok 0
CRESNET_DOWNLOAD_TIMEOUT=30 get stall & killed=$!
await $killed [ -s "cache-stall/weights/$file.part" ]
pid=$(pgrep -P "$(pgrep -P $killed timeout)" | head -1); kill -TERM "$pid"; wait $killed
holds "a kill leaves what was received" cmp -n 1000 zip.pth "cache-stall/weights/$file.part"
mv cache-stall cache-ok3; CRESNET_CACHE=cache-ok3 CRESNET_WEIGHTS_URL=$base/ok run eval tiny.ini --weights tiny --json; is "and is continued" "$(field loss)" "$want"

# ---- several processes, proxies, folders ----

: >requests; rm -r cache-slow
export CRESNET_DOWNLOAD_TIMEOUT=20
CRESNET_CACHE=cache-slow CRESNET_WEIGHTS_URL=$base/slow "$bin" eval tiny.ini --weights tiny --json >second.out 2>&1 & second=$!
get slow; wait $second; got slow 0; is "one process downloads" "$(requests slow)" 1
has "the other one waits" "$(cat second.out slow.err)" "another process downloads it"
has "both evaluate" "$(cat second.out)" "$want"
CRESNET_CACHE=cache-proxy http_proxy=$base CRESNET_WEIGHTS_URL=http://weights.invalid/ok run eval tiny.ini --weights tiny --json; is "a proxy" "$(field loss)" "$want"
CRESNET_CACHE=cache-none CRESNET_WEIGHTS_URL=http://weights.invalid/ok run eval tiny.ini --weights tiny; expect "no such host" 1 "weights.invalid" "https_proxy" "CRESNET_WEIGHTS_DIR"
wait $no_server; is "no server" $? 1; has "no server: the error" "$(tail -1 no-server.out)" "cannot be downloaded"
CRESNET_CACHE=off CRESNET_WEIGHTS_URL=$base/ok run eval tiny.ini --weights tiny; expect "no cache" 1 "CRESNET_CACHE is off"
mkdir -p cache-link/weights; ln -s "$work/R/best.json" "cache-link/weights/$file.part"
CRESNET_CACHE=cache-link CRESNET_WEIGHTS_URL=$base/ok run eval tiny.ini --weights tiny; expect "a link in place of the part" 1 "$file.part"
CRESNET_CACHE=cache-train CRESNET_WEIGHTS_URL=$base/ok run train tiny.ini -o T --steps 1 model.weights=tiny; expect "train" 0 "downloading" "weights: cache-train/weights/$file"
holds "the run keeps the name" grep -q '^weights = tiny$' T/last/config.ini
holds "train: the same weights" same_tensors T/last/model.safetensors from-st/last/model.safetensors
CRESNET_CACHE=cache-train CRESNET_OFFLINE=1 run export tiny -o tiny.safetensors; expect "export" 0; holds "export: the tensors" same_tensors tiny.safetensors $weights
CRESNET_CACHE=cache-ranks CRESNET_WEIGHTS_URL=$base/slow run train tiny.ini -o T2 --ranks 2 --steps 1 model.weights=tiny; expect "two ranks" 0
sum_up
